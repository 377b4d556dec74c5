// Package resend is the provider adapter for Resend's email API. It owns the
// form of a request's body, one attempt at sending it, the meaning of every
// answer and the reading of Resend's webhooks. It leaves to the rail when and
// how fast to send, how often to try, and the verification of webhooks, which
// happens on the raw bytes at the front door. Nothing here can reach any path
// of the API but the two that send: no contact is ever written to a provider's
// audience (FS-MSG-0005 §6).
package resend

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"github.com/softcrum/carril/dispatcher/provider"
)

// Name is the adapter's name in configuration, rows and metrics.
const Name = "resend"

// What Resend states of itself.
const (
	defaultBaseURL = "https://api.resend.com"
	maxBatch       = 100
	maxBodyBytes   = 40_000_000 // of one email, after Base64; held to for a whole body
	keyLife        = 24 * time.Hour
	maxKeyLength   = 256
)

// Config is what the adapter is told.
type Config struct {
	// APIKey is required.
	APIKey Key
	// BaseURL is the API's; empty is https://api.resend.com. Plain http is taken
	// for a loopback host only, which is where the sandbox is.
	BaseURL string
	// UserAgent is required by Resend; empty is "carril".
	UserAgent string
	// Timeout bounds one attempt, its answer's body included; 0 is 30 s. An
	// earlier deadline of the context wins.
	Timeout time.Duration
	// MaxConns is the most connections to the API at once; 0 is 32. Further
	// attempts wait for one, within their timeout.
	MaxConns int
	// RatePerSecond is what the account is allowed, in requests; 0 is 5.
	RatePerSecond float64
}

// Deps is what the adapter works with.
type Deps struct {
	// Transport carries the requests; nil is a pooled one. The guard stands in
	// front of it either way.
	Transport http.RoundTripper
	// Now is the clock for Retry-After dates; nil is time.Now.
	Now func() time.Time
}

// Adapter sends through Resend. It is safe for concurrent use.
type Adapter struct {
	cfg    Config
	base   *url.URL
	key    atomic.Pointer[Key]
	client *http.Client
	pool   *http.Transport // nil where the transport was given
	now    func() time.Time
}

var _ provider.Provider = (*Adapter)(nil)

// New makes an adapter. An error names the setting at fault, never its value.
func New(cfg Config, deps Deps) (*Adapter, error) {
	cfg = withDefaults(cfg)
	base, err := validate(cfg)
	if err != nil {
		return nil, fmt.Errorf("configure resend: %w", err)
	}
	a := &Adapter{cfg: cfg, base: base, now: deps.Now}
	if a.now == nil {
		a.now = time.Now
	}
	carrier := deps.Transport
	if carrier == nil {
		a.pool = newPool(cfg)
		carrier = a.pool
	}
	a.client = &http.Client{
		Transport: guard{base: base, next: carrier},
		// An API that redirects a POST is not the API: its answer stands as it is.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	a.key.Store(&cfg.APIKey)
	return a, nil
}

func withDefaults(cfg Config) Config {
	if cfg.BaseURL == "" {
		cfg.BaseURL = defaultBaseURL
	}
	if cfg.UserAgent == "" {
		cfg.UserAgent = "carril"
	}
	if cfg.Timeout == 0 {
		cfg.Timeout = 30 * time.Second
	}
	if cfg.MaxConns == 0 {
		cfg.MaxConns = 32
	}
	if cfg.RatePerSecond == 0 {
		cfg.RatePerSecond = 5
	}
	return cfg
}

func validate(cfg Config) (*url.URL, error) {
	if err := cfg.APIKey.check(); err != nil {
		return nil, err
	}
	switch {
	case cfg.Timeout < 0:
		return nil, errors.New("timeout is negative")
	case cfg.MaxConns < 0:
		return nil, errors.New("max_conns is negative")
	case !(cfg.RatePerSecond > 0) || cfg.RatePerSecond > 1e6: // NaN is not above 0 either
		return nil, errors.New("rate_per_second is not a positive number")
	case !printable(cfg.UserAgent):
		return nil, errors.New("user_agent has characters that no header may hold")
	}
	return parseBase(cfg.BaseURL)
}

func parseBase(raw string) (*url.URL, error) {
	base, err := url.Parse(strings.TrimRight(raw, "/"))
	if err != nil {
		return nil, errors.New("base_url is not a URL") // the error would repeat the value, userinfo and all
	}
	switch {
	case base.Host == "" || base.User != nil || base.RawQuery != "" || base.Fragment != "":
		return nil, errors.New("base_url must be a scheme, a host and at most a path")
	case base.Scheme == "https":
	case base.Scheme == "http" && isLoopback(base.Hostname()):
	default:
		return nil, errors.New("base_url must be https, or http on a loopback host")
	}
	return base, nil
}

func isLoopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// newPool keeps as many connections idle as may be open: a rail works at a
// steady rate, and a dial and a handshake for every burst would cost more than
// the request.
func newPool(cfg Config) *http.Transport {
	return &http.Transport{
		Proxy:                  http.ProxyFromEnvironment,
		DialContext:            (&net.Dialer{Timeout: 5 * time.Second, KeepAlive: 30 * time.Second}).DialContext,
		TLSHandshakeTimeout:    5 * time.Second,
		ForceAttemptHTTP2:      true,
		MaxConnsPerHost:        cfg.MaxConns,
		MaxIdleConns:           cfg.MaxConns,
		MaxIdleConnsPerHost:    cfg.MaxConns,
		IdleConnTimeout:        60 * time.Second,
		MaxResponseHeaderBytes: 64 << 10,
		DisableCompression:     true, // answers are small, and an inflated one is not
	}
}

// Name gives "resend".
func (a *Adapter) Name() string { return Name }

// Capabilities gives what Resend states, with the configured rate.
func (a *Adapter) Capabilities() provider.Capabilities {
	return provider.Capabilities{
		Channel:         "email",
		IdempotencyKeys: true,
		KeyLife:         keyLife,
		Batch:           true,
		MaxBatch:        maxBatch,
		MaxBodyBytes:    maxBodyBytes,
		RatePerSecond:   a.cfg.RatePerSecond,
	}
}

// SetAPIKey takes another key for every attempt from now on, as when its file
// changed. A key that cannot be one is refused and the old one stays.
func (a *Adapter) SetAPIKey(k Key) error {
	if err := k.check(); err != nil {
		return fmt.Errorf("set the resend key: %w", err)
	}
	a.key.Store(&k)
	return nil
}

// Close ends the idle connections. Attempts under way go on.
func (a *Adapter) Close() {
	if a.pool != nil {
		a.pool.CloseIdleConnections()
	}
}
