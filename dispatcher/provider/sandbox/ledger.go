package sandbox

import (
	"sync"
	"sync/atomic"
	"time"
)

// Request is one physical request to the API.
type Request struct {
	Seq        uint64    `json:"seq"` // from 1, in the order of answering
	At         time.Time `json:"at"`
	Method     string    `json:"method"`
	Path       string    `json:"path"`
	Key        string    `json:"key"` // its idempotency key
	BodySHA256 string    `json:"body_sha256"`
	Count      int       `json:"count"`  // messages that it took or repeated
	Replay     bool      `json:"replay"` // answered as before, taking nothing
	Fault      FaultKind `json:"fault,omitempty"`
	// Answer is the status as text, or what was done instead: "hang", "reset",
	// "close".
	Answer string `json:"answer"`
	// Name is the error's, where the answer was one.
	Name string `json:"name,omitempty"`
}

// Receipt is one message of one physical request that was taken, or answered as
// before.
type Receipt struct {
	Seq        uint64    `json:"seq"` // from 1, in the order of taking
	Request    uint64    `json:"request"`
	At         time.Time `json:"at"`
	Key        string    `json:"key"`
	TenantID   string    `json:"tenant_id"` // its tag; empty without one
	SendID     string    `json:"send_id"`   // its tag; empty without one
	To         string    `json:"to"`
	BodySHA256 string    `json:"body_sha256"` // of the request that it was part of
	MessageID  string    `json:"message_id"`
	Replay     bool      `json:"replay"` // this request did not send it; an earlier one did
	Answer     string    `json:"answer"` // as Request.Answer
}

// Content is a message as it would have been sent.
type Content struct {
	MessageID string            `json:"message_id"`
	At        time.Time         `json:"at"`
	From      string            `json:"from"`
	To        []string          `json:"to"`
	ReplyTo   []string          `json:"reply_to,omitempty"`
	Subject   string            `json:"subject"`
	HTML      string            `json:"html,omitempty"`
	Text      string            `json:"text,omitempty"`
	Headers   map[string]string `json:"headers,omitempty"`
	Tags      map[string]string `json:"tags,omitempty"`
}

// Counters are totals since the start.
type Counters struct {
	Requests     uint64 `json:"requests"`      // physical, to the API
	Accepted     uint64 `json:"accepted"`      // messages taken
	Refused      uint64 `json:"refused"`       // messages refused within a permissive batch
	Replayed     uint64 `json:"replayed"`      // requests answered as before
	RateLimited  uint64 `json:"rate_limited"`  // requests beyond the rate
	Failed       uint64 `json:"failed"`        // requests refused, the rate's too
	Faults       uint64 `json:"faults"`        // requests that met a fault
	UnknownPaths uint64 `json:"unknown_paths"` // requests to what is not sending

	WebhooksPending   int    `json:"webhooks_pending"`
	WebhooksDelivered uint64 `json:"webhooks_delivered"`
	WebhooksFailed    uint64 `json:"webhooks_failed"` // attempts
	WebhooksGivenUp   uint64 `json:"webhooks_given_up"`
	WebhooksDropped   uint64 `json:"webhooks_dropped"`
}

// ring keeps the newest entries.
type ring[T any] struct {
	mu      sync.Mutex
	entries []T
	next    int    // where the next one goes once it is full
	total   uint64 // ever added
	max     int
}

// add numbers an entry and keeps it.
func (r *ring[T]) add(number func(seq uint64) T) T {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.total++
	e := number(r.total)
	if len(r.entries) < r.max {
		r.entries = append(r.entries, e)
		return e
	}
	r.entries[r.next] = e
	r.next = (r.next + 1) % r.max
	return e
}

func (r *ring[T]) all() []T {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := make([]T, 0, len(r.entries))
	out = append(out, r.entries[r.next:]...)
	return append(out, r.entries[:r.next]...)
}

// since gives at most limit entries after number seq, and how many after it are
// already gone.
func (r *ring[T]) since(seq uint64, limit int) (entries []T, gone uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := uint64(len(r.entries))
	if seq >= r.total {
		return []T{}, 0
	}
	oldest := r.total - n // the number before the oldest kept
	if seq < oldest {
		gone, seq = oldest-seq, oldest
	}
	count := min(r.total-seq, uint64(limit))
	entries = make([]T, 0, count)
	for i := range count {
		at := (uint64(r.next) + seq - oldest + i) % n
		entries = append(entries, r.entries[at])
	}
	return entries, gone
}

// ledger is what the sandbox remembers.
type ledger struct {
	requests ring[Request]
	receipts ring[Receipt]
	contents ring[Content]

	accepted, refused, replayed, limited, failed, faults, unknown atomic.Uint64
}

func newLedger(cfg Config) *ledger {
	return &ledger{
		requests: ring[Request]{max: cfg.MaxRequests},
		receipts: ring[Receipt]{max: cfg.MaxReceipts},
		contents: ring[Content]{max: cfg.MaxContents},
	}
}

func (l *ledger) counters() Counters {
	l.requests.mu.Lock()
	requests := l.requests.total
	l.requests.mu.Unlock()
	return Counters{
		Requests: requests, Accepted: l.accepted.Load(), Refused: l.refused.Load(), Replayed: l.replayed.Load(),
		RateLimited: l.limited.Load(), Failed: l.failed.Load(), Faults: l.faults.Load(), UnknownPaths: l.unknown.Load(),
	}
}
