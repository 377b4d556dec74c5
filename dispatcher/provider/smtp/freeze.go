package smtp

import (
	"bytes"
	"fmt"
	"net/mail"
	"strings"

	"github.com/google/uuid"
	"golang.org/x/net/idna"

	"github.com/softcrum/carril/dispatcher/provider"
)

// EndpointTransaction is the adapter's one endpoint, as it stands in
// provider.Frozen: a whole mail transaction.
const EndpointTransaction = "transaction"

// The headers by which a report or a person finds a send.
const (
	headerSend   = "Carril-Send-Id"
	headerTenant = "Carril-Tenant-Id"
)

// address is a mailbox as a transaction names it.
type address struct {
	path string // "<local@domain>", the domain in ASCII
	name string // the display name; empty: none
	host string // the domain, in ASCII
	utf8 bool   // the local part is not ASCII
}

// Freeze renders one message as a mail transaction: the envelope's commands and
// the message, before dots are stuffed. It is pure: every header that is not the
// caller's follows from the send's id. A *provider.MessageError names a message
// that can never be sent.
func (a *Adapter) Freeze(msgs []provider.Message, batch bool) (provider.Frozen, error) {
	switch {
	case len(msgs) == 0:
		return provider.Frozen{}, refusal("empty_request", "no message to freeze")
	case batch || len(msgs) > 1:
		return provider.Frozen{}, refusal("not_a_batch", fmt.Sprintf("%d messages for one transaction", len(msgs)))
	}
	body, perr := render(msgs[0])
	if perr == nil && len(body) > a.cfg.MaxBytes {
		perr = refusal("message_too_large", fmt.Sprintf("%d bytes, at most %d", len(body), a.cfg.MaxBytes))
	}
	if perr != nil {
		return provider.Frozen{}, &provider.MessageError{Index: 0, Reason: perr}
	}
	return provider.Frozen{Endpoint: EndpointTransaction, Body: body, Count: 1}, nil
}

func render(m provider.Message) ([]byte, *provider.Error) {
	from, to, replyTo, perr := check(m)
	if perr != nil {
		return nil, perr
	}
	var buf bytes.Buffer
	envelope{from: from.path, to: to.path, utf8: from.utf8 || to.utf8}.write(&buf)
	if perr := writeMessage(&buf, m, from, to, replyTo); perr != nil {
		return nil, perr
	}
	return buf.Bytes(), nil
}

func check(m provider.Message) (from, to, replyTo address, perr *provider.Error) {
	var ok bool
	switch {
	case m.SendID == uuid.Nil || m.TenantID == uuid.Nil:
		perr = refusal("missing_id", "a message needs a send id and a tenant id")
	case oneLine(m.Subject) == "":
		perr = refusal("missing_subject", "the subject is empty")
	case m.HTML == "" && m.Text == "":
		perr = refusal("missing_content", "there is neither HTML nor text")
	}
	if perr != nil {
		return from, to, replyTo, perr
	}
	if to, ok = parseAddress(m.To); !ok || to.name != "" || strings.ContainsAny(m.To, "<> ") {
		return from, to, replyTo, refusal("invalid_recipient", "the recipient is not one bare address")
	}
	if from, ok = parseAddress(m.From); !ok {
		return from, to, replyTo, refusal("invalid_from_address", "the sender is not an address, with or without a name")
	}
	if replyTo, ok = parseAddress(m.ReplyTo); m.ReplyTo != "" && !ok {
		return from, to, replyTo, refusal("invalid_reply_to", "the reply address is not an address")
	}
	return from, to, replyTo, checkHeaders(m.Headers)
}

// parseAddress wants one address with a domain of names. The domain becomes
// ASCII, so that any relay can look it up; a local part that is not ASCII needs
// a relay with SMTPUTF8.
func parseAddress(s string) (address, bool) {
	if s == "" || hasControl(s) {
		return address{}, false
	}
	parsed, err := mail.ParseAddress(s)
	if err != nil {
		return address{}, false
	}
	at := strings.LastIndexByte(parsed.Address, '@')
	local, domain := parsed.Address[:at], parsed.Address[at+1:]
	domain, err = idna.Lookup.ToASCII(domain)
	if err != nil || domain == "" || strings.HasPrefix(domain, "[") || len(local) > 64 || len(domain) > 253 {
		return address{}, false
	}
	path := (&mail.Address{Address: local + "@" + domain}).String()
	return address{path: path, name: parsed.Name, host: domain, utf8: !isASCII(local)}, true
}

// reserved are the headers that the adapter writes itself, and those that would
// add recipients or another sender behind our back.
func reserved(name string) bool {
	switch strings.ToLower(name) {
	case "from", "to", "cc", "bcc", "subject", "sender", "reply-to", "return-path", "date", "message-id", "received",
		"mime-version", "content-type", "content-transfer-encoding", "content-disposition", "dkim-signature",
		"resent-from", "resent-to", "resent-cc", "resent-bcc", "resent-sender", "resent-date", "resent-message-id",
		strings.ToLower(headerSend), strings.ToLower(headerTenant):
		return true
	default:
		return false
	}
}

func checkHeaders(headers map[string]string) *provider.Error {
	for name, value := range headers {
		if !isHeaderName(name) || reserved(name) || hasControl(value) {
			return refusal("invalid_header", "a header may not be set, or its name or value is malformed")
		}
	}
	return nil
}

func isHeaderName(s string) bool {
	return s != "" && len(s) <= 64 && strings.IndexFunc(s, func(r rune) bool { return r <= ' ' || r > '~' || r == ':' }) < 0
}

func isControl(r rune) bool {
	return r < ' ' || r >= 0x7f && r < 0xa0 || r == '\u2028' || r == '\u2029'
}

func hasControl(s string) bool { return strings.IndexFunc(s, isControl) >= 0 }

func isASCII(s string) bool {
	return strings.IndexFunc(s, func(r rune) bool { return r > 0x7e }) < 0
}

// oneLine keeps a template's line break, or a recipient's, from becoming a
// second header.
func oneLine(s string) string {
	return strings.TrimSpace(strings.Join(strings.FieldsFunc(s, isControl), " "))
}

func refusal(code, detail string) *provider.Error {
	return &provider.Error{Class: provider.ClassPermanent, Code: code, Detail: detail}
}
