package guard

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"sync/atomic"
	"time"
)

// Client makes guarded requests. Its connections are kept and used again. It is
// safe for concurrent use; Close ends the idle connections.
type Client struct {
	guard     *Guard
	transport *http.Transport
}

// Answer is what came back, as far as it did.
type Answer struct {
	Status     int    // 0: no status line came
	RetryAfter string // the header, as it stands
	Kept       []byte // the beginning of the body, at most KeepLimit
	Took       time.Duration
}

// NewClient makes the client of a guard.
func NewClient(g *Guard) *Client {
	c := g.cfg
	only1 := new(http.Protocols) // one request a connection: the bound on connections is one on requests
	only1.SetHTTP1(true)
	return &Client{guard: g, transport: &http.Transport{
		Proxy:                  nil, // never the environment's: the guard must see the target
		DialContext:            g.dial,
		Protocols:              only1,
		TLSClientConfig:        &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: c.Roots},
		TLSHandshakeTimeout:    c.DialTimeout,
		DisableCompression:     true, // an answer is never inflated
		MaxResponseHeaderBytes: c.HeaderLimit,
		MaxConnsPerHost:        c.ConnsPerHost,
		MaxIdleConnsPerHost:    c.ConnsPerHost, // fewer would close what the next delivery needs
		MaxIdleConns:           c.IdleConns,
		IdleConnTimeout:        c.IdleFor,
	}}
}

// Close ends the idle connections.
func (c *Client) Close() { c.transport.CloseIdleConnections() }

// Post sends body to url and reads the answer, all within the deadline. It
// follows no redirect and judges no status. The error is a *Failure; what came
// before it stands in the answer.
func (c *Client) Post(parent context.Context, url string, header http.Header, body []byte) (Answer, error) {
	started := time.Now()
	ctx, cancel := context.WithTimeout(parent, c.guard.cfg.Deadline)
	defer cancel()
	p := new(progress)
	answer, err := c.post(p.watch(ctx), url, header, body)
	answer.Took = time.Since(started)
	if err != nil {
		var f *Failure
		if !errors.As(err, &f) {
			err = &Failure{Class: c.guard.classify(parent, ctx, err, p), err: err}
		}
	}
	return answer, err
}

func (c *Client) post(ctx context.Context, url string, header http.Header, body []byte) (Answer, error) {
	if _, err := c.guard.parse(url); err != nil {
		return Answer{}, &Failure{Class: ClassURL, err: err}
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return Answer{}, &Failure{Class: ClassURL, err: err}
	}
	for name, values := range header {
		req.Header[name] = values
	}
	// Empty and so never sent: it lets the transport try once more when a kept
	// connection turns out to be closed. The receiver knows a repeat by its id.
	req.Header["Idempotency-Key"] = []string{}
	resp, err := c.transport.RoundTrip(req)
	if err != nil {
		return Answer{}, fmt.Errorf("post a webhook: %w", err)
	}
	defer resp.Body.Close()
	answer := Answer{Status: resp.StatusCode, RetryAfter: resp.Header.Get("Retry-After")}
	answer.Kept, err = c.read(resp.Body)
	return answer, err
}

// read takes an answer's body up to the limit. What is longer is left unread,
// and its connection closed.
func (c *Client) read(body io.Reader) ([]byte, error) {
	limited := io.LimitReader(body, c.guard.cfg.ReadLimit)
	kept, err := io.ReadAll(io.LimitReader(limited, int64(c.guard.cfg.KeepLimit)))
	if err == nil {
		_, err = io.Copy(io.Discard, limited)
	}
	if err != nil {
		return kept, fmt.Errorf("read a webhook's answer: %w", err)
	}
	return kept, nil
}

// progress notes how far a request came. The transport dials in goroutines of
// its own.
type progress struct {
	connected, tlsFailed atomic.Bool
	began                atomic.Int64 // Unix nanoseconds when its connection was begun, or found; 0: neither
}

func (p *progress) begin() { p.began.CompareAndSwap(0, time.Now().UnixNano()) }

// starved says that the request spent its time waiting for a connection of ours
// to come free: it got none, or too late for the target to be judged.
func (p *progress) starved(fair time.Duration) bool {
	at := p.began.Load()
	return at == 0 || time.Since(time.Unix(0, at)) < fair
}

type progressKey struct{}

// progressOf finds the request that a connection is dialled for.
func progressOf(ctx context.Context) *progress {
	if p, ok := ctx.Value(progressKey{}).(*progress); ok {
		return p
	}
	return new(progress)
}

func (p *progress) watch(ctx context.Context) context.Context {
	ctx = context.WithValue(ctx, progressKey{}, p)
	return httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		GotConn: func(httptrace.GotConnInfo) { p.begin(); p.connected.Store(true) },
		TLSHandshakeDone: func(_ tls.ConnectionState, err error) {
			if err != nil {
				p.tlsFailed.Store(true)
			}
		},
	})
}
