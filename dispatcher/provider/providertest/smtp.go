package providertest

import (
	"bufio"
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/textproto"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
)

// SMTPOptions say what a relay offers. The zero value offers STARTTLS, and AUTH
// PLAIN and LOGIN for SMTPUser once the connection is private.
type SMTPOptions struct {
	Implicit   bool     // TLS from the first byte
	Plain      bool     // no TLS at all; AUTH is offered all the same
	Extensions []string // beside those
	Mechanisms []string // of AUTH; nil is PLAIN and LOGIN, empty none
}

// The credential that the relay knows.
const (
	SMTPUser     = "relay-user-canary"
	SMTPPassword = "relay-password-canary"
)

// The moments of a session at which a relay may be told what to do; see
// SMTPBackend.On.
const (
	AtGreeting = "greeting"
	AtHello    = "EHLO"
	AtTLS      = "STARTTLS"
	AtAuth     = "AUTH"
	AtReset    = "RSET"
	AtMail     = "MAIL"
	AtRcpt     = "RCPT"
	AtData     = "DATA"
	AtBody     = "body" // in the middle of the message
	AtDot      = "dot"
)

// What a relay may do instead of a reply.
const (
	CutReset = "!reset"
	CutClose = "!close"
	Hang     = "!hang"
)

// SMTPBackend is a relay under orders: a Backend, and by On more than the suite
// asks for. One physical request is one MAIL command, or one AUTH that an order
// refuses.
type SMTPBackend struct {
	Addr  string
	Roots *x509.CertPool // what its certificate is verified by

	opt     SMTPOptions
	tls     *tls.Config
	closing chan struct{}
	wg      sync.WaitGroup

	mu       sync.Mutex
	next     []Behaviour
	scripts  map[string][]string
	requests []Request
	taken    map[uuid.UUID][]string
	verbs    []string
	conns    map[net.Conn]bool
	opened   int
}

var _ Backend = (*SMTPBackend)(nil)

// NewSMTPBackend starts a relay on a free loopback port; it ends with the test.
func NewSMTPBackend(t testing.TB, opt SMTPOptions) *SMTPBackend {
	t.Helper()
	b := &SMTPBackend{opt: opt, closing: make(chan struct{}), scripts: map[string][]string{}, taken: map[uuid.UUID][]string{}, conns: map[net.Conn]bool{}}
	b.certify(t)
	var lc net.ListenConfig
	l, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	b.Addr = l.Addr().String()
	b.wg.Go(func() { b.accept(l) })
	t.Cleanup(func() {
		close(b.closing)
		_ = l.Close()
		b.CutAll()
		b.wg.Wait()
	})
	return b
}

func (b *SMTPBackend) certify(t testing.TB) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "relay"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour), IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	require.NoError(t, err)
	cert, err := x509.ParseCertificate(der)
	require.NoError(t, err)
	b.Roots = x509.NewCertPool()
	b.Roots.AddCert(cert)
	b.tls = &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}, MinVersion: tls.VersionTLS12}
}

// Supports names what one transaction of one message can come to.
func (b *SMTPBackend) Supports(kind Kind) bool {
	switch kind {
	case OK, Permanent, Throttled, DailyQuota, AccountRefused, SenderRefused, AcceptThenHang, AcceptThenReset, AcceptThenClose,
		Reset, SlowDrip, HugeBody, Unparsable:
		return true
	default: // a reply to the dot refuses, so there is no failure beside one; no batch, no key, no header for a wait
		return false
	}
}

// Enact queues what the next requests meet.
func (b *SMTPBackend) Enact(next ...Behaviour) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.next = append(b.next, next...)
}

// On queues a reply, or a cut, for the next time that a moment comes.
func (b *SMTPBackend) On(moment, reply string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.scripts[moment] = append(b.scripts[moment], reply)
}

// Requests gives every physical request so far.
func (b *SMTPBackend) Requests() []Request {
	b.mu.Lock()
	defer b.mu.Unlock()
	return append([]Request(nil), b.requests...)
}

// IDs gives the Message-ID of each message taken.
func (b *SMTPBackend) IDs() map[uuid.UUID][]string {
	b.mu.Lock()
	defer b.mu.Unlock()
	out := make(map[uuid.UUID][]string, len(b.taken))
	for id, ids := range b.taken {
		out[id] = append([]string(nil), ids...)
	}
	return out
}

// Verbs gives every command so far, without its arguments.
func (b *SMTPBackend) Verbs() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return append([]string(nil), b.verbs...)
}

// Opened is how many connections were made.
func (b *SMTPBackend) Opened() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.opened
}

// CutAll ends every connection that there is.
func (b *SMTPBackend) CutAll() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for c := range b.conns {
		_ = c.Close()
	}
}

func (b *SMTPBackend) accept(l net.Listener) {
	for {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		b.mu.Lock()
		b.conns[conn] = true
		b.opened++
		b.mu.Unlock()
		b.wg.Go(func() {
			(&smtpConn{SMTPBackend: b, raw: conn, conn: conn}).serve()
			_ = conn.Close()
			b.mu.Lock()
			delete(b.conns, conn)
			b.mu.Unlock()
		})
	}
}

// smtpConn is one session.
type smtpConn struct {
	*SMTPBackend
	raw, conn net.Conn
	text      *textproto.Conn
	private   bool
	behaviour Behaviour
	at        int // of the request
	from, to  string
}

func (c *smtpConn) use(conn net.Conn) {
	c.conn, c.text = conn, textproto.NewConn(conn)
}

func (c *smtpConn) serve() {
	if c.opt.Implicit {
		secure := tls.Server(c.raw, c.tls)
		if secure.HandshakeContext(context.Background()) != nil {
			return
		}
		c.private = true
		c.use(secure)
	} else {
		c.use(c.raw)
	}
	if !c.step(AtGreeting, "220 relay.example.com ready") {
		return
	}
	for {
		line, err := c.text.ReadLine()
		if err != nil || !c.command(line) {
			return
		}
	}
}

// step answers at a moment: as scripted, else as given. It is false where the
// session ends.
func (c *smtpConn) step(moment, reply string) bool { return c.say(c.scripted(moment, reply)) }

func (c *smtpConn) say(reply string) bool {
	switch reply {
	case CutReset, CutClose:
		c.cut(reply == CutReset)
		return false
	case Hang:
		c.wait()
		return false
	}
	err := c.text.PrintfLine("%s", reply)
	return err == nil && !strings.HasPrefix(reply, "421")
}

func (c *smtpConn) scripted(moment, otherwise string) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	if list := c.scripts[moment]; len(list) > 0 {
		c.scripts[moment] = list[1:]
		return list[0]
	}
	return otherwise
}

func (c *smtpConn) cut(reset bool) {
	if tcp, ok := c.raw.(*net.TCPConn); ok && reset {
		_ = tcp.SetLinger(0)
	}
	_ = c.raw.Close()
}

// wait ends when the client has left, or the test.
func (c *smtpConn) wait() {
	gone := make(chan struct{})
	c.wg.Go(func() {
		_, _ = io.Copy(io.Discard, c.conn)
		close(gone)
	})
	select {
	case <-gone:
	case <-c.closing:
	}
}

func (c *smtpConn) command(line string) bool {
	verb, rest, _ := strings.Cut(line, " ")
	verb = strings.ToUpper(verb)
	c.mu.Lock()
	c.verbs = append(c.verbs, verb)
	c.mu.Unlock()
	switch verb {
	case "EHLO", "HELO":
		return c.step(AtHello, "250-relay.example.com\r\n"+c.extensions())
	case "STARTTLS":
		return c.startTLS()
	case "AUTH":
		return c.auth(rest)
	case "RSET", "NOOP":
		return c.step(AtReset, "250 2.0.0 Ok")
	case "MAIL":
		return c.mail(rest)
	case "RCPT":
		return c.rcpt(rest)
	case "DATA":
		return c.data()
	case "QUIT":
		_ = c.text.PrintfLine("221 2.0.0 Bye")
		return false
	default:
		return c.text.PrintfLine("502 5.5.2 Unknown command") == nil
	}
}

// extensions gives the last lines of the answer to EHLO.
func (c *smtpConn) extensions() string {
	list := slices.Clone(c.opt.Extensions)
	if !c.private && !c.opt.Plain {
		list = append(list, "STARTTLS")
	}
	mechanisms := c.opt.Mechanisms
	if mechanisms == nil {
		mechanisms = []string{"PLAIN", "LOGIN"}
	}
	if (c.private || c.opt.Plain) && len(mechanisms) > 0 {
		list = append(list, "AUTH "+strings.Join(mechanisms, " "))
	}
	list = append(list, "ENHANCEDSTATUSCODES")
	for i, e := range list {
		sep := "-"
		if i == len(list)-1 {
			sep = " "
		}
		list[i] = "250" + sep + e
	}
	return strings.Join(list, "\r\n")
}

func (c *smtpConn) startTLS() bool {
	if !c.step(AtTLS, "220 2.0.0 Go ahead") {
		return false
	}
	secure := tls.Server(c.conn, c.tls)
	if secure.HandshakeContext(context.Background()) != nil {
		return false
	}
	c.private = true
	c.use(secure)
	return true
}

func (c *smtpConn) auth(rest string) bool {
	mechanism, initial, _ := strings.Cut(rest, " ")
	var ok bool
	switch strings.ToUpper(mechanism) {
	case "PLAIN":
		ok = decoded(initial) == "\x00"+SMTPUser+"\x00"+SMTPPassword
	case "LOGIN":
		ok = c.ask("Username:") == SMTPUser && c.ask("Password:") == SMTPPassword
	}
	c.mu.Lock()
	refused := len(c.next) > 0 && c.next[0].Kind == AccountRefused
	c.mu.Unlock()
	if refused {
		c.begin()
		return c.step(AtAuth, "535 5.7.8 Credentials of "+SMTPUser+" with "+SMTPPassword+" are bad")
	}
	if !ok {
		return c.step(AtAuth, "535 5.7.8 Credentials are bad")
	}
	return c.step(AtAuth, "235 2.7.0 Authenticated")
}

func (c *smtpConn) ask(prompt string) string {
	_ = c.text.PrintfLine("334 %s", base64.StdEncoding.EncodeToString([]byte(prompt)))
	line, _ := c.text.ReadLine()
	return decoded(line)
}

func decoded(s string) string {
	b, _ := base64.StdEncoding.DecodeString(s)
	return string(b)
}

// begin records a request and takes its orders.
func (c *smtpConn) begin() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.at = len(c.requests)
	c.requests = append(c.requests, Request{})
	c.behaviour = Behaviour{Kind: OK}
	if len(c.next) > 0 {
		c.behaviour, c.next = c.next[0], c.next[1:]
	}
}

// quoted is what an error must not repeat.
const quoted = " <rcpt-0@example.com>, who was to get Subject canary 0"

func (c *smtpConn) mail(rest string) bool {
	c.begin()
	c.from = "MAIL " + rest
	for _, own := range []string{" BODY=8BITMIME"} {
		c.from = strings.ReplaceAll(c.from, own, "")
	}
	switch c.behaviour.Kind {
	case Throttled:
		return c.step(AtMail, "421 4.7.0 Too many messages")
	case DailyQuota:
		return c.step(AtMail, "550 5.4.5 Daily sending quota exceeded")
	case AccountRefused:
		return c.step(AtMail, "530 5.7.0 Authentication required")
	case SenderRefused:
		return c.step(AtMail, "550 5.7.1 Sender refused for"+quoted)
	default:
		return c.step(AtMail, "250 2.1.0 Ok")
	}
}

func (c *smtpConn) rcpt(rest string) bool {
	c.to = "RCPT " + rest
	if c.behaviour.Kind == Permanent {
		return c.step(AtRcpt, "550 5.1.1 No such user:"+quoted)
	}
	return c.step(AtRcpt, "250 2.1.5 Ok")
}

func (c *smtpConn) data() bool {
	reply := c.scripted(AtData, "354 Go ahead")
	if !c.say(reply) || !strings.HasPrefix(reply, "354") {
		return strings.HasPrefix(reply, "4") || strings.HasPrefix(reply, "5")
	}
	if middle := c.scripted(AtBody, ""); middle != "" {
		_, _ = io.CopyN(io.Discard, c.text.R, 512)
		return c.say(middle)
	}
	raw, err := readDots(c.text.R)
	if err != nil {
		return false
	}
	c.mu.Lock()
	c.requests[c.at].Body = fmt.Appendf(nil, "%s\r\n%s\r\nDATA\r\n%s", c.from, c.to, raw)
	c.mu.Unlock()
	return c.finish(raw)
}

// readDots reads a message up to its dot, byte by byte as it came but for the
// dots that were stuffed: the reader of the standard library would make line
// breaks of its own.
func readDots(r *bufio.Reader) ([]byte, error) {
	var out bytes.Buffer
	for {
		line, err := r.ReadBytes('\n')
		if err != nil {
			return nil, err
		}
		if bytes.Equal(line, []byte(".\r\n")) {
			return out.Bytes(), nil
		}
		out.Write(bytes.TrimPrefix(line, []byte(".")))
	}
}

// finish answers the dot.
func (c *smtpConn) finish(raw []byte) bool {
	if c.behaviour.Kind == Reset {
		c.cut(true)
		return false
	}
	reply := c.scripted(AtDot, "250 2.0.0 Ok: queued as 4F2A")
	if strings.HasPrefix(reply, "2") || strings.HasPrefix(reply, "!") {
		c.take(raw)
	}
	if reached := c.behaviour.Reached; reached != nil && c.behaviour.Kind == AcceptThenHang {
		reached()
	}
	switch c.behaviour.Kind {
	case AcceptThenHang:
		reply = Hang
	case AcceptThenReset:
		reply = CutReset
	case AcceptThenClose:
		reply = CutClose
	case Unparsable:
		reply = "<html>It works!</html>"
	case SlowDrip:
		return c.drip()
	case HugeBody:
		return c.flood()
	}
	return c.say(reply)
}
