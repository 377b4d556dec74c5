package limit

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"

	"github.com/softcrum/carril/ingestor/apikey"
	"github.com/softcrum/carril/internal/ratelimit"
)

// MaxCost is the most that one request is charged: the events of a batch, the
// recipients of a message. It bounds how far a bucket goes into debt.
const MaxCost = 500

// Config of a Limiter. The zero value of a field takes its default.
type Config struct {
	Prefix     string        // before every key in Redis, e.g. "carril:"
	Budget     time.Duration // longest that a request waits for Redis; 25 ms (architecture §5)
	Block      time.Duration // of a rate, the most that is leased ahead of need; 100 ms (architecture §10)
	Hold       time.Duration // an unused lease is let go after; 1 s
	Retry      time.Duration // how often Redis is tried while it is away; 500 ms
	MaxTenants int           // remembered; 50,000
	MaxKeys    int           // with limits of their own, remembered for each tenant; 1,000
}

func (c Config) withDefaults() Config {
	fill(&c.Budget, 25*time.Millisecond)
	fill(&c.Block, 100*time.Millisecond)
	fill(&c.Hold, time.Second)
	fill(&c.Retry, 500*time.Millisecond)
	fill(&c.MaxTenants, 50_000)
	fill(&c.MaxKeys, 1_000)
	return c
}

func fill[T comparable](v *T, def T) {
	var zero T
	if *v == zero {
		*v = def
	}
}

// Deps of a Limiter. A nil Log discards.
type Deps struct {
	Redis   redis.Scripter // from ratelimit.Open, which keeps a caller's deadline
	Log     *slog.Logger
	Metrics prometheus.Registerer
}

// Limiter is safe for concurrent use.
type Limiter struct {
	cfg     Config
	deps    Deps
	script  *ratelimit.Script
	metrics *metrics
	start   time.Time

	mu      sync.RWMutex
	tenants map[uuid.UUID]*tenant

	tryAt  atomic.Int64 // while Redis is away: when it may be tried again; 0: it is there
	said   atomic.Int64 // when that was logged last; 0: never
	leases sync.WaitGroup
	closed atomic.Bool
}

// New makes a limiter. It does not ask Redis yet.
func New(cfg Config, deps Deps) (*Limiter, error) {
	cfg = cfg.withDefaults()
	if deps.Redis == nil || deps.Metrics == nil {
		return nil, errors.New("limit: a Redis client and a metrics registerer are needed")
	}
	if min(cfg.Budget, cfg.Block, cfg.Hold, cfg.Retry) < 0 || min(cfg.MaxTenants, cfg.MaxKeys) < 0 {
		return nil, errors.New("limit: times and sizes must be positive")
	}
	if deps.Log == nil {
		deps.Log = slog.New(slog.DiscardHandler)
	}
	m, err := newMetrics(deps.Metrics)
	if err != nil {
		return nil, err
	}
	return &Limiter{cfg: cfg, deps: deps, script: ratelimit.New(), metrics: m, start: time.Now(), tenants: map[uuid.UUID]*tenant{}}, nil
}

// Stop waits for the leases under way, which the budget bounds. What is asked
// afterwards is decided without Redis.
func (l *Limiter) Stop() {
	l.closed.Store(true)
	l.leases.Wait()
}

// now is nanoseconds of the monotonic clock, from 1 on.
func (l *Limiter) now() int64 { return int64(time.Since(l.start)) + 1 }

// Take charges n events or recipients. It gives the time to wait where they are
// more than is allowed now, and 0 where they pass; h gets the RateLimit headers.
// It waits for Redis at most the budget.
func (l *Limiter) Take(ctx context.Context, p *apikey.Principal, n int, h http.Header) time.Duration {
	t := l.tenant(p)
	if t == nil {
		return 0
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	now := l.now()
	b := t.budget(p, now)
	if b.tokens >= n {
		b.tokens -= n
		l.metrics.passed.Inc()
		l.ahead(t, b, now)
		t.headers(h, b, 0, now)
		return 0
	}
	wait := l.takeSlowly(ctx, t, b, n)
	t.headers(h, b, wait, l.now())
	return wait
}

// Refused gives the time to wait where the next single event would surely be
// refused, so that nobody reads its body; 0 where Take must say.
func (l *Limiter) Refused(p *apikey.Principal, h http.Header) time.Duration {
	t := l.tenant(p)
	if t == nil {
		return 0
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	now := l.now()
	b := t.budget(p, now)
	if b.tokens > 0 {
		return 0
	}
	wait := b.refusedFor(1, now)
	if wait > 0 {
		l.metrics.refused.Inc()
		t.headers(h, b, wait, now)
	}
	return wait
}

// Show writes the headers of an answer that charged nothing.
func (l *Limiter) Show(p *apikey.Principal, h http.Header) {
	t := l.tenant(p)
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	now := l.now()
	t.headers(h, t.budget(p, now), 0, now)
}

// tenant gives what is known of a principal's tenant; nil where its plan has no
// rate, which no plan of the database is.
func (l *Limiter) tenant(p *apikey.Principal) *tenant {
	if p.Tenant.EventsPerSecond <= 0 {
		return nil
	}
	l.mu.RLock()
	t := l.tenants[p.TenantID]
	l.mu.RUnlock()
	if t != nil {
		return t
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if t = l.tenants[p.TenantID]; t != nil {
		return t
	}
	if len(l.tenants) >= l.cfg.MaxTenants {
		l.forget()
	}
	t = &tenant{id: p.TenantID, cfg: &l.cfg, keys: map[string]*budget{}}
	l.tenants[p.TenantID] = t
	return t
}

// forget makes room: idle tenants go, or any one. What is lost is an estimate:
// the buckets are in Redis.
func (l *Limiter) forget() {
	now, before := l.now(), len(l.tenants)
	for id, t := range l.tenants {
		if t.idle(now) {
			delete(l.tenants, id)
		}
	}
	for id := range l.tenants {
		if len(l.tenants) < before {
			return
		}
		delete(l.tenants, id)
	}
}
