package guard

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"net/textproto"
	"strings"
	"syscall"
)

// Class is why a request got no complete answer. The set is closed and fit to
// be a metric label.
type Class string

// The classes.
const (
	ClassAddress     Class = "address_not_allowed"
	ClassURL         Class = "url_not_allowed"  // the settings no longer allow what was stored
	ClassDNS         Class = "dns"              // the name does not exist, or has no address
	ClassDNSAway     Class = "dns_unavailable"  // no name server gave an answer
	ClassRefused     Class = "refused"          // the host refused the connection
	ClassConnect     Class = "connect"          // silence while connecting
	ClassUnreachable Class = "unreachable"      // no way there from here
	ClassTLS         Class = "tls"              // no handshake, or a certificate that does not hold
	ClassTimeout     Class = "timeout"          // connected, and not done by the deadline
	ClassReset       Class = "reset"            // the connection ended before the answer did
	ClassAnswer      Class = "malformed_answer" // not HTTP, or headers without end
	ClassLocal       Class = "local_resources"  // descriptors, ports or memory of ours ran out
	ClassBusy        Class = "no_connection"    // our connections to the host were all in use
	ClassCanceled    Class = "canceled"         // the caller gave up
)

// Classes lists every class, for metrics that pre-initialise their labels.
func Classes() []Class {
	return []Class{ClassAddress, ClassURL, ClassDNS, ClassDNSAway, ClassRefused, ClassConnect, ClassUnreachable, ClassTLS, ClassTimeout,
		ClassReset, ClassAnswer, ClassLocal, ClassBusy, ClassCanceled}
}

// Failure is a request without a complete answer. It prints its class alone:
// what lies beneath may quote the target.
type Failure struct {
	Class Class
	err   error
}

func (f *Failure) Error() string { return "webhook request: " + string(f.Class) }

func (f *Failure) Unwrap() error { return f.err }

// classify says what a transport's error means. parent is the caller's context,
// ctx the request's with the deadline.
func (g *Guard) classify(parent, ctx context.Context, err error, p *progress) Class {
	var refused *Error
	var dns *net.DNSError
	switch {
	case errors.As(err, &refused):
		return ClassAddress
	case parent.Err() != nil:
		return ClassCanceled
	case isLocal(err):
		return ClassLocal
	case errors.As(err, &dns):
		return dnsClass(dns)
	case p.tlsFailed.Load() || isTLS(err):
		return ClassTLS
	case ctx.Err() != nil && p.starved(min(g.cfg.DialTimeout, g.cfg.Deadline/2)):
		return ClassBusy
	case !p.connected.Load():
		return connectClass(err)
	case ctx.Err() != nil || isTimeout(err):
		return ClassTimeout
	case isReset(err):
		return ClassReset
	}
	return ClassAnswer
}

// dnsClass tells a name that does not exist from a server that did not say. The
// second may be anybody's fault; who is to blame is for the caller to judge.
func dnsClass(err *net.DNSError) Class {
	if err.IsNotFound {
		return ClassDNS
	}
	return ClassDNSAway
}

func connectClass(err error) Class {
	for _, errno := range []syscall.Errno{syscall.ENETUNREACH, syscall.EHOSTUNREACH, syscall.EACCES, syscall.EPERM} {
		if errors.Is(err, errno) {
			return ClassUnreachable
		}
	}
	if errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, syscall.ECONNRESET) {
		return ClassRefused
	}
	return ClassConnect
}

func isLocal(err error) bool {
	for _, errno := range []syscall.Errno{syscall.EMFILE, syscall.ENFILE, syscall.EADDRNOTAVAIL, syscall.EADDRINUSE, syscall.ENOBUFS, syscall.ENOMEM} {
		if errors.Is(err, errno) {
			return true
		}
	}
	return false
}

func isTLS(err error) bool {
	var verify *tls.CertificateVerificationError
	var record tls.RecordHeaderError
	var alert tls.AlertError
	var unknown x509.UnknownAuthorityError
	return errors.As(err, &verify) || errors.As(err, &record) || errors.As(err, &alert) || errors.As(err, &unknown)
}

func isTimeout(err error) bool {
	var ne net.Error
	return errors.As(err, &ne) && ne.Timeout()
}

// isReset knows an ended connection. The transport wraps some ends in words of
// its own, and nothing else.
func isReset(err error) bool {
	var protocol textproto.ProtocolError
	if errors.As(err, &protocol) {
		return false
	}
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.ECONNRESET) ||
		errors.Is(err, syscall.EPIPE) || errors.Is(err, net.ErrClosed) || strings.Contains(err.Error(), "server closed idle connection")
}
