// Package sms is the provider adapter for text messages over an HTTP API of the
// form that Twilio's Messages API has: one form-encoded POST a message, basic
// authentication, errors in JSON. It owns the form of a request, one attempt at
// sending it, the meaning of every answer, how many segments a text costs, and
// the reading of status callbacks. It leaves to the rail when and how fast to
// send and how often to try, and the verification of callbacks to the front
// door. Nothing here can reach any path of the API but the one that sends.
package sms

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"sync/atomic"
	"time"

	"github.com/softcrum/carril/dispatcher/provider"
)

// Name is the adapter's name in configuration, rows and metrics.
const Name = "sms"

const (
	defaultBaseURL     = "https://api.twilio.com"
	defaultMaxSegments = 10
	maxBodyBytes       = 64 << 10
)

// Config is what the adapter is told.
type Config struct {
	// BaseURL is the API's; empty is https://api.twilio.com. Plain http is taken
	// for a loopback host only, which is where the sandbox is.
	BaseURL string
	// Account names the account whose messages are sent; required.
	Account string
	// KeyID names the API key that Token belongs to; empty is the account itself.
	KeyID string
	// Token is the secret of the account or the key; required.
	Token Token
	// CallbackURL is where the provider reports what becomes of a message, as it
	// reaches our front door from outside; empty asks for no reports. Each
	// message's carries its send's id.
	CallbackURL string
	// MaxSegments bounds what one text may cost; 0 is 10.
	MaxSegments int
	// Timeout bounds one attempt, its answer's body included; 0 is 30 s. An
	// earlier deadline of the context wins.
	Timeout time.Duration
	// MaxConns is the most connections to the API at once; 0 is 16.
	MaxConns int
	// RatePerSecond is what the account is allowed, in messages; 0 is 10.
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

// Adapter sends text messages. It is safe for concurrent use.
type Adapter struct {
	cfg      Config
	endpoint *url.URL
	token    atomic.Pointer[Token]
	client   *http.Client
	pool     *http.Transport // nil where the transport was given
	now      func() time.Time
}

var _ provider.Provider = (*Adapter)(nil)

// New makes an adapter. An error names the setting at fault, never its value.
func New(cfg Config, deps Deps) (*Adapter, error) {
	cfg = withDefaults(cfg)
	base, err := validate(cfg)
	if err != nil {
		return nil, fmt.Errorf("configure sms: %w", err)
	}
	a := &Adapter{cfg: cfg, endpoint: sendingURL(base, cfg.Account), now: deps.Now}
	if a.now == nil {
		a.now = time.Now
	}
	carrier := deps.Transport
	if carrier == nil {
		a.pool = newPool(cfg)
		carrier = a.pool
	}
	a.client = &http.Client{
		Transport: guard{endpoint: a.endpoint, next: carrier},
		// An API that redirects a POST is not the API: its answer stands as it is.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	a.token.Store(&cfg.Token)
	return a, nil
}

func withDefaults(cfg Config) Config {
	if cfg.BaseURL == "" {
		cfg.BaseURL = defaultBaseURL
	}
	if cfg.KeyID == "" {
		cfg.KeyID = cfg.Account
	}
	if cfg.MaxSegments == 0 {
		cfg.MaxSegments = defaultMaxSegments
	}
	if cfg.Timeout == 0 {
		cfg.Timeout = 30 * time.Second
	}
	if cfg.MaxConns == 0 {
		cfg.MaxConns = 16
	}
	if cfg.RatePerSecond == 0 {
		cfg.RatePerSecond = 10
	}
	return cfg
}

var identifier = regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}$`)

func validate(cfg Config) (*url.URL, error) {
	switch {
	case !identifier.MatchString(cfg.Account):
		return nil, errors.New("account is not letters and digits")
	case !identifier.MatchString(cfg.KeyID):
		return nil, errors.New("key is not letters and digits")
	case cfg.Timeout < 0:
		return nil, errors.New("timeout is negative")
	case cfg.MaxConns < 0:
		return nil, errors.New("max_conns is negative")
	case cfg.MaxSegments < 1 || cfg.MaxSegments > defaultMaxSegments:
		return nil, fmt.Errorf("max_segments is not within 1 and %d", defaultMaxSegments)
	case !(cfg.RatePerSecond > 0) || cfg.RatePerSecond > 1e6: // NaN is not above 0 either
		return nil, errors.New("rate_per_second is not a positive number")
	}
	if err := cfg.Token.check(); err != nil {
		return nil, err
	}
	if cfg.CallbackURL != "" {
		if u, err := parseURL(cfg.CallbackURL); err != nil || u.RawQuery != "" {
			return nil, errors.New("callback_url must be https, or http on a loopback host, without a query")
		}
	}
	base, err := parseURL(strings.TrimRight(cfg.BaseURL, "/"))
	if err != nil || base.RawQuery != "" {
		return nil, errors.New("base_url must be https, or http on a loopback host, with at most a path")
	}
	return base, nil
}

// parseURL keeps its own error: the library's would repeat the value, userinfo
// and all.
func parseURL(raw string) (*url.URL, error) {
	u, err := url.Parse(raw)
	if err != nil || u.Host == "" || u.User != nil || u.Fragment != "" {
		return nil, errors.New("not a plain URL")
	}
	if u.Scheme == "https" || u.Scheme == "http" && isLoopback(u.Hostname()) {
		return u, nil
	}
	return nil, errors.New("not a URL that keeps a secret")
}

func isLoopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

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

// Name gives "sms".
func (a *Adapter) Name() string { return Name }

// Capabilities gives what the API is: one message a request, and no key by which
// a repeat could be known.
func (a *Adapter) Capabilities() provider.Capabilities {
	return provider.Capabilities{Channel: "sms", MaxBatch: 1, MaxBodyBytes: maxBodyBytes, RatePerSecond: a.cfg.RatePerSecond}
}

// SetToken takes another token for every attempt from now on, as when its file
// changed.
func (a *Adapter) SetToken(t Token) error {
	if err := t.check(); err != nil {
		return fmt.Errorf("set the sms token: %w", err)
	}
	a.token.Store(&t)
	return nil
}

// Close ends the idle connections. Attempts under way go on.
func (a *Adapter) Close() {
	if a.pool != nil {
		a.pool.CloseIdleConnections()
	}
}
