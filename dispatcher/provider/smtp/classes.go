package smtp

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"net/textproto"
	"regexp"
	"strings"

	"github.com/softcrum/carril/dispatcher/provider"
)

// stage is how far an attempt came. Only behind the last may the message have
// been taken: until its final dot is out, a relay must not deliver it.
type stage string

const (
	stageConnect stage = "connect"
	stageTLS     stage = "tls"
	stageGreet   stage = "greet"
	stageAuth    stage = "auth"
	stageMail    stage = "mail"
	stageRcpt    stage = "rcpt"
	stageData    stage = "data"
	stageBody    stage = "body"
	stageDot     stage = "dot"
)

// The codes that are ours; the first two are PDF-012G's.
const (
	codeAuth      = "smtp_auth_failed"
	codeTimeout   = "smtp_timeout"
	codeTLS       = "smtp_tls_failed"
	codeRefused   = "smtp_service_refused"
	codeSender    = "sender_refused"
	codeRecipient = "recipient_refused"
	codeContent   = "content_refused"
	codeTooLarge  = "message_too_large"
	codeThrottled = "throttled"
	codeQuota     = "quota_exceeded"
	codeLater     = "try_later"
)

const replyClosing = 421 // the relay ends the connection

// failure classifies an attempt that ended at a stage.
func (a *Adapter) failure(ctx context.Context, st stage, err error, e envelope) *provider.Error {
	var reply *textproto.Error
	switch {
	case errors.As(err, &reply):
		return a.refused(st, reply.Code, reply.Msg, e)
	case errors.Is(err, errTooLarge):
		return refusal(codeTooLarge, err.Error())
	case errors.Is(err, errNoUTF8):
		return refusal("smtputf8_missing", err.Error())
	case errors.Is(err, errNoTLS):
		return &provider.Error{Class: provider.ClassConfiguration, Code: codeTLS, Detail: err.Error()}
	case errors.Is(err, errNoAuth):
		return &provider.Error{Class: provider.ClassConfiguration, Code: codeAuth, Detail: err.Error()}
	}
	out := &provider.Error{Class: provider.ClassRetryable, Code: transportCode(ctx, err), Detail: "at " + string(st), Err: ctx.Err()}
	switch {
	case st == stageDot:
		out.Class = provider.ClassUncertain
	case ctx.Err() == nil && isTLS(err):
		out.Class, out.Code = provider.ClassConfiguration, codeTLS
	case ctx.Err() == nil && st == stageAuth && !isTransport(err):
		out.Class, out.Code = provider.ClassConfiguration, codeAuth // as a server whose own proof is wrong
	}
	return out
}

// transportCode names a failure that is no reply. The error itself is not kept:
// it may quote the relay, and the relay the message.
func transportCode(ctx context.Context, err error) string {
	var (
		netErr   net.Error
		dns      *net.DNSError
		op       *net.OpError
		protocol textproto.ProtocolError
	)
	switch {
	case errors.Is(ctx.Err(), context.Canceled):
		return "canceled"
	case ctx.Err() != nil:
		return codeTimeout
	case errors.Is(err, errTooLong):
		return "answer_too_large"
	case errors.As(err, &protocol):
		return "unreadable_answer"
	case errors.As(err, &dns):
		return "dns"
	case errors.As(err, &op) && op.Op == "dial":
		return "connect"
	case errors.As(err, &netErr) && netErr.Timeout():
		return codeTimeout
	default:
		return "reset"
	}
}

// isTLS tells a handshake that was refused, by us or by the relay, from a
// connection that broke during one.
func isTLS(err error) bool {
	var (
		cert      *tls.CertificateVerificationError
		record    tls.RecordHeaderError
		alert     tls.AlertError
		authority x509.UnknownAuthorityError
		name      x509.HostnameError
		invalid   x509.CertificateInvalidError
	)
	return err != nil && (errors.As(err, &cert) || errors.As(err, &record) || errors.As(err, &alert) || errors.As(err, &authority) ||
		errors.As(err, &name) || errors.As(err, &invalid) || strings.Contains(err.Error(), "tls: "))
}

func isTransport(err error) bool {
	var netErr net.Error
	return err == nil || errors.As(err, &netErr) || errors.Is(err, errTooLong) || strings.HasSuffix(err.Error(), "EOF")
}

func replyCode(err error) int {
	var reply *textproto.Error
	if errors.As(err, &reply) {
		return reply.Code
	}
	return 0
}

// enhanced is RFC 3463's status code at the beginning of a reply's text.
var enhanced = regexp.MustCompile(`^([245])\.(\d{1,3})\.(\d{1,3})(\s|$)`)

// status is a reply taken apart.
type status struct {
	code            int
	subject, detail string // of the enhanced code; empty without one
	text            string // in lower case
}

func readStatus(code int, msg string) status {
	s := status{code: code, text: strings.ToLower(msg)}
	if m := enhanced.FindStringSubmatch(msg); m != nil {
		s.subject, s.detail = m[2], m[3]
	}
	return s
}

func (s status) is(subject string, details ...string) bool {
	if s.subject != subject {
		return false
	}
	for _, d := range details {
		if s.detail == d {
			return true
		}
	}
	return len(details) == 0
}

// refused gives a reply its meaning by the stage at which it came. A reply to
// the final dot is an answer too: what it refuses was not taken.
func (a *Adapter) refused(st stage, code int, msg string, e envelope) *provider.Error {
	detail := provider.Redact(msg, append(a.secrets(), e.private()...)...)
	class, name := classify(st, readStatus(code, detail))
	out := &provider.Error{Class: class, Code: name, Status: code, Detail: string(st) + ": " + detail}
	out.Quota = class == provider.ClassThrottled && name == codeQuota
	// What a relay says of one recipient says nothing about the relay.
	out.Recipient = class == provider.ClassRetryable && (st == stageRcpt || st == stageDot) && code != replyClosing
	return out
}

func classify(st stage, s status) (provider.Class, string) {
	switch {
	case s.is("4", "5") && s.code >= 500, s.is("4", "5") && strings.Contains(s.text, "quota"):
		return provider.ClassThrottled, codeQuota // so do the large mailbox providers say it
	case s.code >= 400 && s.code < 500:
		return temporary(st, s)
	case s.code < 500:
		if st == stageDot {
			return provider.ClassUncertain, "unexpected_reply"
		}
		return provider.ClassRetryable, "unexpected_reply"
	case s.code == 535, s.code == 534, s.code == 538, s.code == 530, s.is("7", "8", "9"):
		return provider.ClassConfiguration, codeAuth
	}
	switch st {
	case stageTLS:
		return provider.ClassConfiguration, codeTLS
	case stageAuth:
		return provider.ClassConfiguration, codeAuth
	case stageConnect, stageGreet:
		return provider.ClassConfiguration, codeRefused
	}
	return permanent(st, s)
}

// temporary is for the replies of 4xx. The subject 7 is the relay's policy
// towards us, as its rate; its 4.7.1 to a recipient is how greylisting speaks,
// which concerns this pair of addresses alone.
func temporary(st stage, s status) (provider.Class, string) {
	late := st == stageRcpt || st == stageData || st == stageDot
	grey := strings.Contains(s.text, "greylist") || strings.Contains(s.text, "graylist") ||
		late && s.code != replyClosing && s.is("7", "1")
	if s.subject == "7" && !grey && st != stageAuth {
		return provider.ClassThrottled, codeThrottled
	}
	return provider.ClassRetryable, codeLater
}

// permanent is for the replies of 5xx within a transaction.
func permanent(st stage, s status) (provider.Class, string) {
	relaying := strings.Contains(s.text, "relay") && st == stageRcpt
	switch {
	case s.code == 552 && (st != stageRcpt || s.is("3", "4")), s.is("3", "4"):
		return provider.ClassPermanent, codeTooLarge
	case s.code == 503: // out of order: the relay and we disagree where we are, and nothing was taken
		return provider.ClassRetryable, "bad_sequence"
	case relaying && s.is("7", "1"), relaying && s.code == 551:
		return provider.ClassConfiguration, codeRefused // it carries nothing of ours: one message's loss would be every message's
	case st == stageMail, s.is("1", "7", "8"):
		return provider.ClassSender, codeSender
	case st == stageRcpt:
		return provider.ClassPermanent, codeRecipient
	default:
		return provider.ClassPermanent, codeContent
	}
}
