package apikey

import (
	"context"
	"crypto/subtle"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/singleflight"
)

// Store finds keys. Lookup's error is ErrNoKey, or the store is away.
type Store interface {
	Lookup(ctx context.Context, keyID string) (Record, error)
	// Touch notes when keys were last used.
	Touch(ctx context.Context, used map[string]time.Time) error
}

// Notifier tells of keys that changed. Listen blocks until ctx ends or its
// connection is lost; it calls listening once it hears everything from then on,
// and changed with each id.
type Notifier interface {
	Listen(ctx context.Context, listening func(), changed func(keyID string)) error
}

// Config of a Verifier. The zero value of a field takes its default.
type Config struct {
	Fresh       time.Duration // a cached key is not asked for again; 30 s
	Stale       time.Duration // how much longer it works while the store is away; 60 s (faults P8)
	Negative    time.Duration // an unknown key is not asked for again; 5 s
	Lookup      time.Duration // longest look-up; 1 s
	Lookups     int           // at the same time; 8: invented keys must not take the store from known ones
	MaxKeys     int           // cached; 50,000
	MaxNegative int           // unknown ids remembered; 10,000
	Touch       time.Duration // how often last_used_at is written; 1 min
}

func (c Config) withDefaults() Config {
	fill(&c.Fresh, 30*time.Second)
	fill(&c.Stale, time.Minute)
	fill(&c.Negative, 5*time.Second)
	fill(&c.Lookup, time.Second)
	fill(&c.Lookups, 8)
	fill(&c.MaxKeys, 50_000)
	fill(&c.MaxNegative, 10_000)
	fill(&c.Touch, time.Minute)
	return c
}

func fill[T comparable](v *T, def T) {
	var zero T
	if *v == zero {
		*v = def
	}
}

// Deps of a Verifier. Notifier may be nil: revocation then takes Fresh. A nil
// Log discards, a nil Now is time.Now.
type Deps struct {
	Store    Store
	Notifier Notifier
	Log      *slog.Logger
	Metrics  prometheus.Registerer
	Now      func() time.Time
}

// Verifier knows who stands behind a key.
type Verifier struct {
	cfg   Config
	deps  Deps
	cache cache

	loads  singleflight.Group
	places chan struct{} // of look-ups under way
	away   atomic.Int64  // unix nanoseconds until which a stale key does not ask again

	answers *prometheus.CounterVec

	end context.CancelFunc // of the background work; nil before Start
	wg  sync.WaitGroup
}

// awayPause is for how long, after a failed look-up, stale keys are used without
// asking again: an absent store must not slow every request down.
const awayPause = time.Second

// NewVerifier makes a verifier. It works before Start, without hearing of
// revocations.
func NewVerifier(cfg Config, deps Deps) (*Verifier, error) {
	cfg = cfg.withDefaults()
	if deps.Store == nil || min(cfg.Fresh, cfg.Stale, cfg.Negative, cfg.Lookup, cfg.Touch) < 0 || min(cfg.Lookups, cfg.MaxKeys, cfg.MaxNegative) < 0 {
		return nil, errors.New("api keys: a store and positive limits are needed")
	}
	if deps.Log == nil {
		deps.Log = slog.New(slog.DiscardHandler)
	}
	if deps.Now == nil {
		deps.Now = time.Now
	}
	v := &Verifier{cfg: cfg, deps: deps, places: make(chan struct{}, cfg.Lookups)}
	v.cache.init(cfg)
	v.answers = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "carril_api_key_verifications_total",
		Help: "API key verifications by where the answer came from: cache, store, stale cache, none (refused), or unavailable.",
	}, []string{"source"})
	for _, s := range []string{"cache", "store", "stale", "none", "unavailable"} {
		v.answers.WithLabelValues(s)
	}
	if deps.Metrics != nil {
		if err := deps.Metrics.Register(v.answers); err != nil {
			return nil, fmt.Errorf("register api key metrics: %w", err)
		}
	}
	return v, nil
}

// Verify finds who presents a key. The error is ErrInvalid, ErrTenantDisabled
// or ErrUnavailable; never does a store that is away let anybody in.
func (v *Verifier) Verify(ctx context.Context, text string) (*Principal, error) {
	k, ok := Parse(text)
	if !ok {
		return v.refuse(ErrInvalid)
	}
	e, source, err := v.find(ctx, k.ID)
	if err != nil {
		return v.refuse(err)
	}
	now := v.deps.Now()
	same := subtle.ConstantTimeCompare(e.record.Hash[:], k.Hash[:]) == 1
	if !same || e.missing || !e.record.alive(now) {
		return v.refuse(ErrInvalid)
	}
	if e.record.Tenant.Disabled {
		return v.refuse(ErrTenantDisabled)
	}
	e.used.Store(now.UnixNano())
	v.answers.WithLabelValues(source).Inc()
	return &e.record.Principal, nil
}

// Known says whether a key is one that Verify can answer for from memory. It
// tells nothing of whether it is still valid.
func (v *Verifier) Known(text string) bool {
	k, ok := Parse(text)
	if !ok {
		return false
	}
	e := v.cache.get(k.ID)
	return e != nil && !e.missing && subtle.ConstantTimeCompare(e.record.Hash[:], k.Hash[:]) == 1
}

func (v *Verifier) refuse(err error) (*Principal, error) {
	source := "none"
	if errors.Is(err, ErrUnavailable) {
		source = "unavailable"
	}
	v.answers.WithLabelValues(source).Inc()
	return nil, err
}

// find gives the entry of a key id from the cache where that is young enough,
// else from the store, else from the cache while that may still be used.
func (v *Verifier) find(ctx context.Context, id string) (e *entry, source string, err error) {
	e = v.cache.get(id)
	now := v.deps.Now()
	if e != nil {
		age := e.age(now)
		if age < v.cfg.Fresh && !e.missing || age < v.cfg.Negative && e.missing {
			if !e.missing && age > v.cfg.Fresh*2/3 && now.UnixNano() >= v.away.Load() && e.renewing.CompareAndSwap(false, true) {
				v.start(id, now) // in the background: nobody shall have to wait when it gets too old
			}
			return e, "cache", nil
		}
		if !e.missing && age < v.cfg.Fresh+v.cfg.Stale && now.UnixNano() < v.away.Load() {
			return e, "stale", nil
		}
	}
	loaded, err := v.load(ctx, id, now)
	if err == nil {
		return loaded, "store", nil
	}
	if e != nil && !e.missing && e.age(now) < v.cfg.Fresh+v.cfg.Stale {
		return e, "stale", nil
	}
	return nil, "", err
}

// load asks the store, once for all who wait for the same key.
func (v *Verifier) load(ctx context.Context, id string, since time.Time) (*entry, error) {
	select {
	case r := <-v.start(id, since):
		if r.Err != nil {
			return nil, r.Err
		}
		return r.Val.(*entry), nil
	case <-ctx.Done():
		return nil, fmt.Errorf("%w: %w", ErrUnavailable, ctx.Err())
	}
}

// start begins a look-up that outlives the request that wants it first.
func (v *Verifier) start(id string, since time.Time) <-chan singleflight.Result {
	v.wg.Add(1)
	ch := make(chan singleflight.Result, 1)
	go func() {
		defer v.wg.Done()
		val, err, shared := v.loads.Do(id, func() (any, error) { return v.ask(id, since) })
		ch <- singleflight.Result{Val: val, Err: err, Shared: shared}
	}()
	return ch
}

// ask looks a key up, unless somebody else did so since the caller missed it.
func (v *Verifier) ask(id string, since time.Time) (*entry, error) {
	if e := v.cache.get(id); e != nil && e.loaded.Load() >= since.UnixNano() {
		return e, nil
	}
	ctx, cancel := context.WithTimeoutCause(context.Background(), v.cfg.Lookup, errors.New("look-up timeout"))
	defer cancel()
	select {
	case v.places <- struct{}{}:
		defer func() { <-v.places }()
	case <-ctx.Done():
		return nil, fmt.Errorf("%w: too many look-ups under way", ErrUnavailable)
	}
	epoch, began := v.cache.epoch.Load(), v.deps.Now()
	record, err := v.deps.Store.Lookup(ctx, id)
	e := &entry{record: record, missing: errors.Is(err, ErrNoKey)}
	if err != nil && !e.missing {
		v.away.Store(v.deps.Now().Add(awayPause).UnixNano())
		return nil, fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	e.loaded.Store(began.UnixNano())
	v.cache.put(id, e, epoch)
	return e, nil
}
