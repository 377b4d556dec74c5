// Package smtp is the provider adapter for a mail relay that speaks SMTP. It
// owns the form of a message, a small pool of connections, one attempt at
// handing a message over, and the meaning of every reply at every stage. It
// leaves to the rail when and how fast to send, how often to try, and what is to
// become of an attempt whose outcome nobody knows: SMTP has no idempotency keys,
// so a message whose final dot left without an answer may be there or not.
//
// It has no batch endpoint either, so no marketing email goes through it
// (FS-MSG-0005 §5). Nothing reports back: what becomes of a message behind the
// relay is not heard of here.
package smtp

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"time"

	"github.com/softcrum/carril/dispatcher/provider"
)

// Name is the adapter's name in configuration, rows and metrics.
const Name = "smtp"

// Security is how a connection becomes private.
type Security string

// The ways. There is none that falls back to a connection anybody can read.
const (
	STARTTLS Security = "starttls" // a plain connection that is upgraded before anything is said; usually port 587
	Implicit Security = "implicit" // TLS from the first byte; usually port 465
	// Plain encrypts nothing. It is taken for a loopback host only, and only
	// because it was named: a relay beside the process, or a test.
	Plain Security = "plain"
)

// Mechanism is a way to authenticate.
type Mechanism string

// The mechanisms. AuthAuto takes the first that the relay offers, in the order
// in which they stand here.
const (
	AuthAuto        Mechanism = "auto"
	AuthScramSHA256 Mechanism = "scram-sha-256"
	AuthScramSHA1   Mechanism = "scram-sha-1"
	AuthPlain       Mechanism = "plain"
	AuthLogin       Mechanism = "login"
	AuthNone        Mechanism = "none" // a relay that knows us by our address
)

// Config is what the adapter is told.
type Config struct {
	// Addr is the relay's HOST:PORT; required. The host is what its certificate
	// must be for.
	Addr string
	// Security defaults to STARTTLS.
	Security Security
	// Auth defaults to AuthAuto where there is a user, else to AuthNone.
	Auth Mechanism
	// User and Password go together.
	User     string
	Password Password
	// HelloName is what the adapter calls itself; empty is "localhost".
	HelloName string
	// Timeout bounds one attempt from the dial to the last reply; 0 is 30 s. An
	// earlier deadline of the context wins.
	Timeout time.Duration
	// MaxConns is the most connections at once; 0 is 8. Further attempts wait for
	// one, within their timeout.
	MaxConns int
	// IdleTimeout is how long a connection is kept for the next message; 0 is
	// 30 s, below what relays keep.
	IdleTimeout time.Duration
	// MaxPerConn is how many messages a connection carries; 0 is 100.
	MaxPerConn int
	// MaxBytes bounds one message; 0 is 25,000,000. What the relay announces as
	// its SIZE is held to as well.
	MaxBytes int
	// RatePerSecond is what the relay takes, in messages; 0 is 5.
	RatePerSecond float64
}

// Deps is what the adapter works with.
type Deps struct {
	// RootCAs verify the relay's certificate; nil is the system's.
	RootCAs *x509.CertPool
	// Now is the clock of the pool; nil is time.Now.
	Now func() time.Time
}

// Adapter sends through a relay. It is safe for concurrent use.
type Adapter struct {
	cfg      Config
	host     string
	tls      *tls.Config
	password atomic.Pointer[Password]
	pool     *pool
}

var _ provider.Provider = (*Adapter)(nil)

// New makes an adapter; it does not connect. An error names the setting at
// fault, never its value.
func New(cfg Config, deps Deps) (*Adapter, error) {
	cfg = withDefaults(cfg)
	host, err := validate(cfg)
	if err != nil {
		return nil, fmt.Errorf("configure smtp: %w", err)
	}
	if deps.Now == nil {
		deps.Now = time.Now
	}
	a := &Adapter{cfg: cfg, host: host, tls: &tls.Config{ServerName: host, RootCAs: deps.RootCAs, MinVersion: tls.VersionTLS12}}
	a.password.Store(&cfg.Password)
	a.pool = newPool(cfg, deps.Now)
	return a, nil
}

func withDefaults(cfg Config) Config {
	if cfg.Security == "" {
		cfg.Security = STARTTLS
	}
	if cfg.Auth == "" {
		cfg.Auth = AuthAuto
		if cfg.User == "" && cfg.Password.value == "" {
			cfg.Auth = AuthNone
		}
	}
	cfg.HelloName = or(cfg.HelloName, "localhost")
	cfg.Timeout = or(cfg.Timeout, 30*time.Second)
	cfg.MaxConns = or(cfg.MaxConns, 8)
	cfg.IdleTimeout = or(cfg.IdleTimeout, 30*time.Second)
	cfg.MaxPerConn = or(cfg.MaxPerConn, 100)
	cfg.MaxBytes = or(cfg.MaxBytes, 25_000_000)
	cfg.RatePerSecond = or(cfg.RatePerSecond, 5)
	return cfg
}

func or[T comparable](v, otherwise T) T {
	var zero T
	if v == zero {
		return otherwise
	}
	return v
}

func validate(cfg Config) (host string, err error) {
	host, port, err := net.SplitHostPort(cfg.Addr)
	number, bad := net.DefaultResolver.LookupPort(context.Background(), "tcp", port) // a number, or the name of a service; asks nobody
	switch {
	case err != nil || host == "" || bad != nil || number == 0:
		return "", errors.New("addr is not HOST:PORT")
	case cfg.Security != STARTTLS && cfg.Security != Implicit && cfg.Security != Plain:
		return "", errors.New("security is none of starttls, implicit and plain")
	case cfg.Security == Plain && !isLoopback(host):
		return "", errors.New("security is plain, which is for a loopback host only")
	case cfg.Timeout < 0 || cfg.IdleTimeout < 0:
		return "", errors.New("a timeout is negative")
	case cfg.MaxConns < 0 || cfg.MaxPerConn < 0 || cfg.MaxBytes < 0:
		return "", errors.New("a bound is negative")
	case !(cfg.RatePerSecond > 0) || cfg.RatePerSecond > 1e6: // NaN is not above 0 either
		return "", errors.New("rate_per_second is not a positive number")
	case !isHostName(cfg.HelloName):
		return "", errors.New("hello_name is not a host name")
	}
	return host, validateAuth(cfg)
}

func validateAuth(cfg Config) error {
	switch cfg.Auth {
	case AuthNone:
		if cfg.User != "" || cfg.Password.value != "" {
			return errors.New("auth is none, and there is a user or a password")
		}
		return nil
	case AuthAuto, AuthScramSHA256, AuthScramSHA1, AuthPlain, AuthLogin:
	default:
		return errors.New("auth is no mechanism that is known")
	}
	if cfg.User == "" || cfg.Password.value == "" {
		return errors.New("user and password go together")
	}
	if hasControl(cfg.User) || hasControl(cfg.Password.value) {
		return errors.New("user or password has control characters")
	}
	return nil
}

func isLoopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

func isHostName(s string) bool {
	return s != "" && len(s) <= 253 && strings.IndexFunc(s, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && !strings.ContainsRune(".-[]:", r)
	}) < 0
}

// Name gives "smtp".
func (a *Adapter) Name() string { return Name }

// Capabilities gives what SMTP is: one message at a time, and no key by which a
// repeat could be known.
func (a *Adapter) Capabilities() provider.Capabilities {
	return provider.Capabilities{Channel: "email", MaxBatch: 1, MaxBodyBytes: a.cfg.MaxBytes, RatePerSecond: a.cfg.RatePerSecond}
}

// SetPassword takes another password for every connection from now on, as when
// its file changed.
func (a *Adapter) SetPassword(p Password) error {
	cfg := a.cfg
	cfg.Password = p
	if err := validateAuth(cfg); err != nil {
		return fmt.Errorf("set the smtp password: %w", err)
	}
	a.password.Store(&p)
	a.pool.drop()
	return nil
}

// Close ends the idle connections. Attempts under way go on.
func (a *Adapter) Close() { a.pool.drop() }
