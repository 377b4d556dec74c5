package smtp

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/wneessen/go-mail/smtp"

	"github.com/softcrum/carril/dispatcher/provider"
)

// maxReply is how much may be read of a connection for one message, handshake
// included, in bytes: a reply is a few lines, a chain of certificates some KB.
const maxReply = 256 << 10

var errTooLong = fmt.Errorf("the replies are longer than %d bytes", maxReply)

// bounded is a connection that gives no more than it was allowed: the client
// reads a line whatever its length.
type bounded struct {
	net.Conn
	left atomic.Int64
}

func (b *bounded) Read(p []byte) (int, error) {
	left := b.left.Load()
	if left <= 0 {
		return 0, errTooLong
	}
	if int64(len(p)) > left {
		p = p[:left]
	}
	n, err := b.Conn.Read(p)
	b.left.Add(-int64(n))
	return n, err
}

// session is a connection to the relay on which mail may be sent.
type session struct {
	client *smtp.Client
	conn   *bounded
	epoch  uint64 // of the pool: an older one had another password
	sent   int    // transactions begun
	idle   time.Time
}

// watch ends what the connection waits for when ctx ends. The session may be
// used again only where release says that it did not come to that.
func (s *session) watch(ctx context.Context) (release func() bool) {
	_ = s.conn.SetDeadline(time.Time{})
	s.conn.left.Store(maxReply)
	return context.AfterFunc(ctx, func() { _ = s.conn.SetDeadline(time.Unix(1, 0)) })
}

func (s *session) close() { _ = s.conn.Close() }

// farewell leaves politely, and does not wait long for the answer.
func (s *session) farewell() {
	_ = s.conn.SetDeadline(time.Now().Add(time.Second))
	s.conn.left.Store(maxReply)
	_ = s.client.Quit()
	s.close()
}

// alive asks a connection that was idle whether it still is one. What it finds
// out here it does not find out in the middle of a message.
func (s *session) alive(ctx context.Context) bool {
	release := s.watch(ctx)
	err := s.client.Reset()
	return release() && err == nil
}

// open makes a session: dialled, private, authenticated.
func (a *Adapter) open(ctx context.Context, e envelope) (*session, *provider.Error) {
	epoch := a.pool.epoch()
	d := net.Dialer{Timeout: 10 * time.Second, KeepAlive: 30 * time.Second}
	conn, err := d.DialContext(ctx, "tcp", a.cfg.Addr)
	if err != nil {
		return nil, a.failure(ctx, stageConnect, err, e)
	}
	s := &session{conn: &bounded{Conn: conn}, epoch: epoch}
	release := s.watch(ctx)
	st, err := a.introduce(ctx, s)
	if !release() || err != nil {
		s.close()
		return nil, a.failure(ctx, st, err, e)
	}
	return s, nil
}

// introduce goes as far as the first mail, and names the stage where it failed.
func (a *Adapter) introduce(ctx context.Context, s *session) (stage, error) {
	var carrier net.Conn = s.conn
	if a.cfg.Security == Implicit {
		secure := tls.Client(s.conn, a.tls)
		if err := secure.HandshakeContext(ctx); err != nil {
			return stageTLS, err
		}
		carrier = secure
	}
	var err error
	if s.client, err = smtp.NewClient(carrier, a.host); err != nil {
		return stageGreet, err
	}
	if err := s.client.Hello(a.cfg.HelloName); err != nil {
		return stageGreet, err
	}
	if a.cfg.Security == STARTTLS {
		if ok, _ := s.client.Extension("STARTTLS"); !ok {
			return stageTLS, errNoTLS
		}
		if err := s.client.StartTLS(a.tls); err != nil {
			return stageTLS, err
		}
	}
	return stageAuth, a.authenticate(s.client)
}

var (
	errNoTLS  = errors.New("the relay offers no STARTTLS")
	errNoAuth = errors.New("the relay offers no mechanism that is configured")
)

func (a *Adapter) authenticate(c *smtp.Client) error {
	if a.cfg.Auth == AuthNone {
		return nil
	}
	_, offered := c.Extension("AUTH")
	mechanism := choose(a.cfg.Auth, strings.Fields(strings.ToLower(offered)))
	user, password := a.cfg.User, a.password.Load().value
	plain := a.cfg.Security == Plain // by name and on loopback alone
	switch mechanism {
	case AuthScramSHA256:
		return c.Auth(smtp.ScramSHA256Auth(user, password))
	case AuthScramSHA1:
		return c.Auth(smtp.ScramSHA1Auth(user, password))
	case AuthPlain:
		return c.Auth(smtp.PlainAuth("", user, password, a.host, plain))
	case AuthLogin:
		return c.Auth(smtp.LoginAuth(user, password, a.host, plain))
	default:
		return errNoAuth
	}
}

// choose gives the mechanism to use, empty where the relay offers none of ours.
func choose(want Mechanism, offered []string) Mechanism {
	for _, m := range []Mechanism{AuthScramSHA256, AuthScramSHA1, AuthPlain, AuthLogin} {
		if (want == AuthAuto || want == m) && slices.Contains(offered, string(m)) {
			return m
		}
	}
	return ""
}
