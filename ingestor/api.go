package ingestor

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/softcrum/carril/ingestor/apikey"
	"github.com/softcrum/carril/ingestor/intake"
	"github.com/softcrum/carril/internal/httpserver"
	"github.com/softcrum/carril/schemas"
	"github.com/softcrum/carril/schemas/openapi"
)

// Config of an API. The zero value of a field takes its default.
type Config struct {
	EnqueueTimeout time.Duration // how long a request waits for the queue; 2 s (faults P8)
	Ahead          time.Duration // how far ahead of our clock occurred_at may be; 15 min
	MaxEventBody   int           // bytes of a track or identify body, inflated; 1 MiB
	MaxBatchBody   int           // bytes of a batch body, inflated; 5 MiB
	MaxMessageBody int           // bytes of a message body, inflated; 512 KiB: it becomes one record
	MaxRatio       int           // inflated bytes for one that was sent, beyond the first 256 KiB; 500
	MaxHeldBytes   int64         // that all requests hold at once, bodies and what is made of them; 128 MiB (faults P13)
}

func (c Config) withDefaults() Config {
	fill(&c.EnqueueTimeout, 2*time.Second)
	fill(&c.Ahead, 15*time.Minute)
	fill(&c.MaxEventBody, 1<<20)
	fill(&c.MaxBatchBody, 5<<20)
	fill(&c.MaxMessageBody, 512<<10)
	fill(&c.MaxRatio, 500)
	fill(&c.MaxHeldBytes, 128<<20)
	return c
}

func fill[T comparable](v *T, def T) {
	var zero T
	if *v == zero {
		*v = def
	}
}

// Record is an event on its way into the queue.
type Record struct {
	Event       *schemas.Event
	Traceparent string // the caller's; empty: none
}

// Enqueuer puts the events of one request in the queue: the topic of imports
// when they are historical, which all of them are or none. nil says that all of
// them are there for good; an *EnqueueError that any of them may not be. The
// events may be used again when it returns.
type Enqueuer interface {
	Enqueue(ctx context.Context, records []Record) error
}

// Requester puts a request for messages in the queue of its rail, with the
// caller's traceparent; empty: none. Its answers are those of an Enqueuer.
type Requester interface {
	Request(ctx context.Context, n *schemas.NotificationRequested, traceparent string) error
}

// Limiter charges requests to the budgets of a tenant and its key; *limit.Limiter
// does it. Each method sets the RateLimit headers on h.
type Limiter interface {
	// Refused gives the time to wait where a single event would surely be
	// refused: its body is not worth reading. Zero: Take must say.
	Refused(p *apikey.Principal, h http.Header) (wait time.Duration)
	// Take charges events, or recipients, and gives the time to wait where it
	// refuses; zero lets the request pass.
	Take(ctx context.Context, p *apikey.Principal, events int, h http.Header) (wait time.Duration)
	// Show is for an answer that charged nothing.
	Show(p *apikey.Principal, h http.Header)
}

// Unlimited lets everything pass.
type Unlimited struct{}

// Take implements Limiter.
func (Unlimited) Take(context.Context, *apikey.Principal, int, http.Header) time.Duration { return 0 }

// Refused implements Limiter.
func (Unlimited) Refused(*apikey.Principal, http.Header) time.Duration { return 0 }

// Show implements Limiter.
func (Unlimited) Show(*apikey.Principal, http.Header) {}

// Deps of an API. Limits may be nil for none, Requests for an API without
// messages; a nil Log discards, a nil Now is time.Now.
type Deps struct {
	Keys     apikey.Verify
	Queue    Enqueuer
	Requests Requester
	Channels []string // that messages may go by
	Limits   Limiter
	Taxonomy Taxonomy // nil: no event is judged
	Log      *slog.Logger
	Metrics  prometheus.Registerer
	Now      func() time.Time
}

// API serves the runtime endpoints.
type API struct {
	cfg     Config
	deps    Deps
	metrics *metrics

	events  sync.Pool // *visit, for single events
	batches sync.Pool // *visit, for batches, whose memory is larger
	held    atomic.Int64
	away    atomic.Bool // the last request found the queue away
}

// New makes an API.
func New(cfg Config, deps Deps) (*API, error) {
	cfg = cfg.withDefaults()
	if deps.Keys == nil || deps.Queue == nil || deps.Metrics == nil {
		return nil, errors.New("ingestor: keys, a queue and a metrics registerer are needed")
	}
	if min(cfg.EnqueueTimeout, cfg.Ahead) < 0 || min(cfg.MaxEventBody, cfg.MaxBatchBody, cfg.MaxMessageBody, cfg.MaxRatio) < 0 || cfg.MaxHeldBytes < int64(cfg.MaxBatchBody) {
		return nil, errors.New("ingestor: limits must be positive, and the bytes held no less than one batch")
	}
	if deps.Limits == nil {
		deps.Limits = Unlimited{}
	}
	if deps.Log == nil {
		deps.Log = slog.New(slog.DiscardHandler)
	}
	if deps.Now == nil {
		deps.Now = time.Now
	}
	a := &API{cfg: cfg, deps: deps}
	a.events.New = func() any { return &visit{parser: intake.NewParser()} }
	a.batches.New = a.events.New
	var err error
	a.metrics, err = newMetrics(deps.Metrics, &a.held)
	return a, err
}

// Mount puts the routes on a router.
func (a *API) Mount(r chi.Router) {
	r.Post("/v1/core/track", a.one(intake.Track))
	r.Post("/v1/core/identify", a.one(intake.Identify))
	r.Post("/v1/core/batch", a.batch)
	if a.deps.Requests != nil {
		r.Post("/v1/messaging/messages", a.messages)
	}
	r.Get("/v1/core/limits", a.limits)
	r.Get("/openapi.yaml", contract)
	r.Head("/openapi.yaml", contract)
	r.Get("/docs", reference)
	r.Head("/docs", reference)
}

// contract serves the OpenAPI document.
func contract(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/yaml")
	_, _ = w.Write(openapi.YAML) // a reader that is gone needs none
}

// reference serves the OpenAPI document as a page. It loads nothing, and may not.
func reference(w http.ResponseWriter, r *http.Request) {
	page, err := openapi.Page()
	if err != nil { // a test renders it
		(&httpserver.Problem{Status: http.StatusInternalServerError, Code: "internal", Title: "Something broke on our side"}).Write(w, r)
		return
	}
	h := w.Header()
	h.Set("Content-Type", "text/html; charset=utf-8")
	h.Set("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'")
	h.Set("X-Content-Type-Options", "nosniff")
	_, _ = w.Write(page) // a reader that is gone needs none
}
