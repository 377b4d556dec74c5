package providertest

import (
	"bytes"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"sync"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
)

// Dialect is an HTTP API's way of saying things.
type Dialect interface {
	// Parse reads a request: its idempotency key and the send ids of its messages.
	Parse(r *http.Request, body []byte) (key string, sends []uuid.UUID, err error)
	// Success answers with one id a message, in order; an empty one was refused.
	Success(r *http.Request, ids []string) []byte
	// Failure answers for one of the kinds that are refusals; status is that of
	// ServerError and AcceptThenError. ok is false where the API has no such answer.
	Failure(kind Kind, status int) (code int, body []byte, ok bool)
}

// HTTPBackend is a Backend for a provider with an HTTP API.
type HTTPBackend struct {
	URL string

	dialect Dialect
	server  *httptest.Server
	closing chan struct{}

	mu       sync.Mutex
	next     []Behaviour
	requests []Request
	taken    map[uuid.UUID][]string
	answers  map[string][]string // by idempotency key
	payloads map[string]string
}

var _ Backend = (*HTTPBackend)(nil)

// NewHTTPBackend starts a backend on a free loopback port; it ends with the test.
func NewHTTPBackend(t testing.TB, d Dialect) *HTTPBackend {
	t.Helper()
	b := &HTTPBackend{
		dialect:  d,
		closing:  make(chan struct{}),
		taken:    map[uuid.UUID][]string{},
		answers:  map[string][]string{},
		payloads: map[string]string{},
	}
	b.server = httptest.NewServer(http.HandlerFunc(b.serve))
	b.URL = b.server.URL
	t.Cleanup(func() {
		close(b.closing) // whoever hangs would keep Close waiting
		b.server.Close()
	})
	return b
}

// UnusedAddress gives a loopback address that refuses connections until the test
// ends. It is the near end of a connection: unlike a port that was freed again,
// no other test can be given it meanwhile.
func UnusedAddress(t testing.TB) string {
	t.Helper()
	var lc net.ListenConfig
	l, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	var d net.Dialer
	near, err := d.DialContext(t.Context(), "tcp", l.Addr().String())
	require.NoError(t, err)
	t.Cleanup(func() {
		_ = near.Close()
		_ = l.Close()
	})
	return near.LocalAddr().String()
}

// Supports asks the dialect for refusals; the rest is the same in every HTTP API.
func (b *HTTPBackend) Supports(kind Kind) bool {
	switch kind {
	case OK, AcceptThenHang, AcceptThenReset, AcceptThenClose, Reset, SlowDrip, HugeBody, Unparsable:
		return true
	case ItemFailures, Short:
		return b.batches()
	case NamedWait:
		return b.Supports(Throttled)
	default:
		_, _, ok := b.dialect.Failure(kind, http.StatusInternalServerError)
		return ok
	}
}

// batches says whether the API has a batch to fail in part.
func (b *HTTPBackend) batches() bool {
	_, _, ok := b.dialect.Failure(ItemFailures, 0)
	return ok
}

// Enact queues what the next requests meet.
func (b *HTTPBackend) Enact(next ...Behaviour) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.next = append(b.next, next...)
}

// Requests gives every physical request so far.
func (b *HTTPBackend) Requests() []Request {
	b.mu.Lock()
	defer b.mu.Unlock()
	return append([]Request(nil), b.requests...)
}

// IDs gives the ids of each message taken.
func (b *HTTPBackend) IDs() map[uuid.UUID][]string {
	b.mu.Lock()
	defer b.mu.Unlock()
	out := make(map[uuid.UUID][]string, len(b.taken))
	for id, ids := range b.taken {
		out[id] = append([]string(nil), ids...)
	}
	return out
}

func (b *HTTPBackend) serve(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	key, sends, err := b.dialect.Parse(r, body)
	if err != nil {
		http.Error(w, err.Error(), http.StatusTeapot)
		return
	}
	behaviour := b.enter(key, body)
	if takesNothing(behaviour.Kind) {
		b.refuse(w, behaviour)
		return
	}
	ids, kind := b.take(key, body, sends, behaviour)
	if kind != "" {
		b.refuse(w, Behaviour{Kind: kind})
		return
	}
	b.answer(w, r, behaviour, ids)
}

// enter records a request and takes its orders.
func (b *HTTPBackend) enter(key string, body []byte) Behaviour {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.requests = append(b.requests, Request{Key: key, Body: body})
	if len(b.next) == 0 {
		return Behaviour{Kind: OK}
	}
	behaviour := b.next[0]
	b.next = b.next[1:]
	return behaviour
}

func takesNothing(kind Kind) bool {
	switch kind {
	case OK, ItemFailures, AcceptThenError, AcceptThenHang, AcceptThenReset, AcceptThenClose, SlowDrip, HugeBody,
		Unparsable, Short:
		return false
	default:
		return true
	}
}

// take gives the messages their ids, once a key; a kind other than "" is the
// refusal of a key that was used for another payload.
func (b *HTTPBackend) take(key string, body []byte, sends []uuid.UUID, behaviour Behaviour) ([]string, Kind) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if ids, ok := b.answers[key]; ok && key != "" {
		if b.payloads[key] != string(body) {
			return nil, Permanent
		}
		return ids, ""
	}
	ids := make([]string, len(sends))
	for i, send := range sends {
		if behaviour.Kind == ItemFailures && slices.Contains(behaviour.Items, i) {
			continue
		}
		ids[i] = uuid.NewString()
		b.taken[send] = append(b.taken[send], ids[i])
	}
	b.answers[key], b.payloads[key] = ids, string(body)
	return ids, ""
}

func (b *HTTPBackend) refuse(w http.ResponseWriter, behaviour Behaviour) {
	if behaviour.Kind == Reset {
		cut(w, true)
		return
	}
	code, body, _ := b.dialect.Failure(behaviour.Kind, statusOf(behaviour))
	if behaviour.RetryAfter != nil {
		w.Header().Set("Retry-After", *behaviour.RetryAfter)
	}
	writeJSON(w, code, body)
}

func statusOf(behaviour Behaviour) int {
	if behaviour.Status == 0 {
		return http.StatusInternalServerError
	}
	return behaviour.Status
}

func (b *HTTPBackend) answer(w http.ResponseWriter, r *http.Request, behaviour Behaviour, ids []string) {
	reached := behaviour.Reached
	if reached == nil {
		reached = func() {}
	}
	switch behaviour.Kind {
	case AcceptThenError:
		code, body, _ := b.dialect.Failure(AcceptThenError, statusOf(behaviour))
		writeJSON(w, code, body)
	case AcceptThenHang:
		reached()
		b.wait(r)
	case AcceptThenReset:
		cut(w, true)
	case AcceptThenClose:
		cut(w, false)
	case SlowDrip:
		b.drip(w, r, reached)
	case HugeBody:
		flood(w, b.dialect.Success(r, ids))
	case Unparsable:
		writeJSON(w, http.StatusOK, []byte(`<html>It works!</html>`))
	case Short:
		writeJSON(w, http.StatusOK, b.dialect.Success(r, ids[1:]))
	default:
		writeJSON(w, http.StatusOK, b.dialect.Success(r, ids))
	}
}

// wait ends when the client has left, or the test.
func (b *HTTPBackend) wait(r *http.Request) {
	select {
	case <-r.Context().Done():
	case <-b.closing:
	}
}

// drip sends a body that has begun and does not go on.
func (b *HTTPBackend) drip(w http.ResponseWriter, r *http.Request, reached func()) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusOK)
	_, _ = w.Write([]byte("{"))
	_ = http.NewResponseController(w).Flush()
	reached()
	b.wait(r)
}

// flood writes the right answer behind 64 MB of white space, or as much as the
// client stands: who reads on without a limit finds a success.
func flood(w http.ResponseWriter, body []byte) {
	w.Header().Set("Content-Type", "application/json")
	block := bytes.Repeat([]byte(" "), 64<<10)
	for range 1024 {
		if _, err := w.Write(block); err != nil {
			return
		}
	}
	_, _ = w.Write(body)
}

// cut ends the connection under a request, with a reset or with a plain close.
func cut(w http.ResponseWriter, reset bool) {
	conn, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return
	}
	if tcp, ok := conn.(*net.TCPConn); ok && reset {
		_ = tcp.SetLinger(0)
	}
	_ = conn.Close()
}

func writeJSON(w http.ResponseWriter, code int, body []byte) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(code)
	_, _ = w.Write(body)
}
