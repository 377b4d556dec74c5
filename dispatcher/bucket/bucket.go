// Package bucket decides when a request may leave for a provider: a bucket for
// the provider, which is physics, and one for each tenant and rail, which is
// justice (FS-MSG-0005 §3). It owns the limits' configuration
// (messaging.rate_limit_buckets), their keys in Redis and what happens while
// Redis is away; the arithmetic is internal/ratelimit's. The rail workers ask
// it before every request; there is no way around it and no urgent flag (§9).
package bucket

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"

	"github.com/softcrum/carril/internal/ratelimit"
	"github.com/softcrum/carril/schemas"
)

// RedisAway refuses marketing while Redis gives no answer.
const RedisAway ratelimit.Reason = "redis_away"

// renewed is a token that was taken in place of one that came to nothing.
const renewed ratelimit.Reason = "renewed"

// share of a provider's stated rate that is used where nothing is configured: a
// burst or a rate of exactly the limit collects 429s under jitter.
const share = 0.9

// Stated is what is known of a provider without any configuration.
type Stated struct {
	RatePerSecond float64 // requests; provider.Capabilities.RatePerSecond
	DayQuota      int     // messages a UTC day; 0: none
	MonthQuota    int     // messages a month; 0: none
}

// Config of a limiter; zero values take the defaults.
type Config struct {
	Prefix    string            // before every key in Redis, e.g. "carril:"
	Asker     string            // who asks: one process and rail; required, without a colon
	Rail      string            // the only rail that asks here; empty: both may. Marketing takes no local share, so it is not counted among those who do
	Providers map[string]Stated // by provider.Provider.Name
	Reserve   *float64          // share of a quota that marketing leaves to transactional; default 0.1
	Budget    time.Duration     // longest an ask may wait for Redis; default 250 ms
	Retry     time.Duration     // how often Redis is tried again while it is away; default 500 ms
	Refresh   time.Duration     // how often the configuration is read again without a notice; default 5 s
}

func (c Config) withDefaults() Config {
	if c.Reserve == nil {
		c.Reserve = new(0.1)
	}
	if c.Budget == 0 {
		c.Budget = 250 * time.Millisecond
	}
	if c.Retry == 0 {
		c.Retry = 500 * time.Millisecond
	}
	if c.Refresh == 0 {
		c.Refresh = 5 * time.Second
	}
	return c
}

// Deps is what a limiter works with.
type Deps struct {
	Redis   redis.Scripter // from ratelimit.Open
	Pool    *pgxpool.Pool  // reads the configuration; nil: the defaults alone
	Listen  *pgxpool.Pool  // reaches PostgreSQL directly, for LISTEN; nil: the configuration is only polled
	Log     *slog.Logger
	Metrics *Metrics         // nil: not measured
	Now     func() time.Time // whose UTC date the quotas count by; nil: time.Now
}

// Ask wants the tokens of one request.
type Ask struct {
	Provider string
	Tenant   uuid.UUID
	Rail     string // schemas.RailTransactional or RailMarketing
	Messages int    // in the request, for the quotas
}

// Answer is a grant, or when to ask again and why.
type Answer struct {
	Granted bool
	Wait    time.Duration    // 0 when granted
	Reason  ratelimit.Reason // ratelimit.Reasons and RedisAway
	At      time.Time        // of the grant, by Redis's clock; goes back with a Report; zero from the local share
	// TenantInterval is the time between two grants of the tenant's bucket; 0
	// where it has none.
	TenantInterval time.Duration
	// Most is what one request of marketing may hold for its quotas, whole as they
	// are: beside a refusal for a quota; 0 elsewhere.
	Most int
}

// Report is what a provider's answer said of its limits.
type Report struct {
	Provider  string
	Throttled bool
	Quota     bool          // it was a quota, not the rate
	RetryIn   time.Duration // already clamped
	Grant     Answer        // the request's
	DayUsed   int           // -1 when not stated
	MonthUsed int           // -1 when not stated
}

// Limiter is safe for concurrent use. Run keeps its configuration fresh; it
// answers without Run too.
type Limiter struct {
	cfg    Config
	deps   Deps
	script *ratelimit.Script
	limits atomic.Pointer[limits]
	local  local

	mu      sync.Mutex
	tryAt   time.Time // while Redis is away: when it may be tried again; zero: it is there
	factor  map[string]float64
	askers  map[string]int
	blocked map[string]time.Time // by the local clock
}

// New makes a limiter with the default limits.
func New(cfg Config, deps Deps) (*Limiter, error) {
	cfg = cfg.withDefaults()
	if cfg.Asker == "" {
		return nil, errors.New("bucket: no asker is named")
	}
	if r := *cfg.Reserve; !(r >= 0 && r < 1) {
		return nil, fmt.Errorf("bucket: a reserve of %v is not between 0 and below 1", r)
	}
	for name, s := range cfg.Providers {
		if s.RatePerSecond <= 0 || math.IsNaN(s.RatePerSecond) || math.IsInf(s.RatePerSecond, 0) {
			return nil, fmt.Errorf("bucket: provider %s states no rate", name)
		}
	}
	if deps.Log == nil {
		deps.Log = slog.New(slog.DiscardHandler)
	}
	if deps.Now == nil {
		deps.Now = time.Now
	}
	l := &Limiter{cfg: cfg, deps: deps, script: ratelimit.New(), local: local{full: map[string]time.Time{}},
		factor: map[string]float64{}, askers: map[string]int{}, blocked: map[string]time.Time{}}
	l.limits.Store(&limits{})
	return l, nil
}

// Ask asks both buckets. It never fails: while Redis is away, transactional is
// paced by this process's share of the rate, and marketing waits.
func (l *Limiter) Ask(ctx context.Context, a Ask) Answer {
	provider, tenant := l.Rates(a.Provider, a.Tenant, a.Rail)
	interval := time.Duration(0)
	if tenant.Rate > 0 {
		interval = time.Duration(float64(time.Second) / tenant.Rate)
	}
	mode := ratelimit.Marketing
	if a.Rail == schemas.RailTransactional {
		mode = ratelimit.Transactional
	}
	ans, ok := l.askRedis(ctx, a, mode, provider, tenant)
	if !ok {
		ans = l.askLocal(a, provider, tenant)
	}
	ans.TenantInterval = interval
	if ans.Reason == ratelimit.Quota {
		ans.Most = l.Quotas(a.Provider).most()
	}
	if m := l.deps.Metrics; m != nil {
		m.asks.WithLabelValues(a.Provider, a.Rail, string(ans.Reason)).Inc()
	}
	return ans
}

// catchUp is the part of an interval that an ask which came late may come early the
// next time: timers and scheduling take some of every interval, and a bucket of one
// would lose all of it. A second never holds a request more for it, at nine tenths
// of any rate (docs/decisions/bucket-script.md).
func catchUp(rate float64) float64 { return min(0.1, 0.05*rate) }

func (l *Limiter) askRedis(ctx context.Context, a Ask, mode ratelimit.Mode, provider, tenant ratelimit.Bucket) (Answer, bool) {
	if !l.mayTry(time.Now()) {
		return Answer{}, false
	}
	asker := l.cfg.Asker
	if mode == ratelimit.Renew {
		asker += "-late" // its mark is not that of the tenant's next ask
	}
	provider.Capacity += catchUp(provider.Rate)
	q := l.Quotas(a.Provider)
	rctx, cancel := context.WithTimeout(ctx, l.cfg.Budget)
	defer cancel()
	got, err := l.script.Take(rctx, l.deps.Redis, ratelimit.Ask{
		Keys: l.keys(a.Provider, a.Tenant, a.Rail), Mode: mode, Provider: provider, Tenant: tenant,
		TenantID: a.Tenant.String(), Asker: asker, Messages: a.Messages,
		Quota: ratelimit.QuotaLimits{Day: q.Day, Month: q.Month, Reserve: q.Reserve, Now: l.deps.Now()},
	})
	l.heard(ctx, a.Provider, got, err)
	if err != nil {
		return Answer{}, false
	}
	return Answer{Granted: got.Granted > 0, Wait: got.Wait, Reason: got.Reason, At: got.At}, true
}

// Renew exchanges a token that could not be used at once. Requests that were held
// up would meet those of later tokens, and the provider would refuse what no second
// of tokens held too many of. A code takes the next token that there is, for its
// turn had come; marketing waits in its order, behind the codes. Nothing is charged
// to tenant or quotas again. False: there was none within the time.
func (l *Limiter) Renew(ctx context.Context, a Ask, within time.Duration) bool {
	mode := ratelimit.Renew
	if a.Rail == schemas.RailMarketing {
		mode = ratelimit.Marketing
	}
	a.Messages = 0
	for end := time.Now().Add(within); ; {
		provider, _ := l.Rates(a.Provider, a.Tenant, a.Rail)
		got, ok := l.askRedis(ctx, a, mode, provider, ratelimit.Bucket{})
		if !ok { // without Redis there is no order to keep
			return true
		}
		if got.Granted {
			if m := l.deps.Metrics; m != nil {
				m.asks.WithLabelValues(a.Provider, a.Rail, string(renewed)).Inc()
			}
			return true
		}
		if time.Until(end) < got.Wait {
			return false
		}
		select {
		case <-ctx.Done():
			return false
		case <-time.After(got.Wait):
		}
	}
}

// Report passes on what a provider said of its limits. A 429 blocks the whole
// provider; it lowers the rate once for a blocked window.
func (l *Limiter) Report(ctx context.Context, r Report) {
	now := time.Now()
	if r.Throttled {
		l.block(r.Provider, now.Add(r.RetryIn))
		if m := l.deps.Metrics; m != nil {
			m.throttled.WithLabelValues(r.Provider, kindOf(r)).Inc()
		}
	}
	if !r.Throttled && r.DayUsed < 0 && r.MonthUsed < 0 {
		return
	}
	if !l.mayTry(now) {
		return
	}
	rctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), l.cfg.Budget)
	defer cancel()
	err := l.script.Report(rctx, l.deps.Redis, ratelimit.Report{
		Keys: l.keys(r.Provider, uuid.Nil, ""), Throttled: r.Throttled, Quota: r.Quota, GrantedAt: r.Grant.At,
		RetryIn: r.RetryIn, DayUsed: r.DayUsed, MonthUsed: r.MonthUsed, Now: l.deps.Now(),
	})
	if err != nil {
		l.lostRedis(err)
	}
}

func kindOf(r Report) string {
	if r.Quota {
		return "quota"
	}
	return "rate"
}

// keys of one provider share a hash tag, so that one script may touch them all.
func (l *Limiter) keys(provider string, tenant uuid.UUID, rail string) ratelimit.Keys {
	base := l.cfg.Prefix + "bucket:{" + provider + "}"
	return ratelimit.Keys{
		Provider: base, Tenant: base + ":tenant:" + tenant.String() + ":" + rail,
		Waiters: base + ":waiters", Served: base + ":served", Askers: base + ":askers",
	}
}

// Metrics of all limiters of a process.
type Metrics struct {
	asks      *prometheus.CounterVec
	throttled *prometheus.CounterVec
	factor    *prometheus.GaugeVec
	away      prometheus.Gauge
	used      *prometheus.GaugeVec
	limit     *prometheus.GaugeVec
}

// What a quota is of, as the metrics' label has it.
const (
	periodDay   = "day"
	periodMonth = "month"
)

// NewMetrics registers the limiters' metrics.
func NewMetrics(reg prometheus.Registerer, providers []string) *Metrics {
	m := &Metrics{
		asks:      prometheus.NewCounterVec(prometheus.CounterOpts{Name: "carril_bucket_asks_total", Help: "Asks for a token, by what came of them."}, []string{"provider", "rail", "reason"}),
		throttled: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "carril_bucket_throttled_total", Help: "429s of a provider, for its rate or a quota."}, []string{"provider", "kind"}),
		factor:    prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "carril_bucket_rate_factor", Help: "Share of the configured rate that is used, below 1 after a 429."}, []string{"provider"}),
		away:      prometheus.NewGauge(prometheus.GaugeOpts{Name: "carril_bucket_redis_away", Help: "1 while Redis gives no answer."}),
		used:      prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "carril_bucket_quota_used", Help: "Messages of this UTC day or month, as counted here or as the provider says."}, []string{"provider", "period"}),
		limit:     prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "carril_bucket_quota_limit", Help: "Messages that the provider's account takes in a UTC day or month; 0 is no limit."}, []string{"provider", "period"}),
	}
	reg.MustRegister(m.asks, m.throttled, m.factor, m.away, m.used, m.limit)
	for _, p := range providers {
		m.factor.WithLabelValues(p).Set(1)
		for _, period := range []string{periodDay, periodMonth} {
			m.used.WithLabelValues(p, period)
			m.limit.WithLabelValues(p, period)
		}
		for _, kind := range []string{"rate", "quota"} {
			m.throttled.WithLabelValues(p, kind)
		}
		for _, rail := range []string{schemas.RailTransactional, schemas.RailMarketing} {
			for _, why := range append(ratelimit.Reasons(), RedisAway, renewed) {
				m.asks.WithLabelValues(p, rail, string(why))
			}
		}
	}
	return m
}
