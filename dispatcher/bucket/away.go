package bucket

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/softcrum/carril/internal/ratelimit"
	"github.com/softcrum/carril/schemas"
)

// mayTry says whether Redis may be asked now. While it is away one ask a
// Retry is let through to see whether it is back.
func (l *Limiter) mayTry(now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.tryAt.IsZero() {
		return true
	}
	if now.Before(l.tryAt) {
		return false
	}
	l.tryAt = now.Add(l.cfg.Retry)
	return true
}

// heard keeps what an answer taught for the time when there is none.
func (l *Limiter) heard(ctx context.Context, provider string, got ratelimit.Answer, err error) {
	if err != nil {
		if ctx.Err() == nil {
			l.lostRedis(err)
		}
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.tryAt.IsZero() {
		l.tryAt = time.Time{}
		l.deps.Log.Info("the buckets are back in Redis")
	}
	l.factor[provider] = got.Factor
	if got.Askers > 0 {
		l.askers[provider] = got.Askers
	}
	if got.Reason == ratelimit.Blocked {
		l.blocked[provider] = later(l.blocked[provider], time.Now().Add(got.Wait))
	}
	if m := l.deps.Metrics; m != nil {
		m.factor.WithLabelValues(provider).Set(got.Factor)
		m.away.Set(0)
	}
}

func (l *Limiter) lostRedis(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.tryAt.IsZero() {
		l.deps.Log.Error("the buckets in Redis give no answer: marketing waits, transactional takes its local share", "error", err)
	}
	l.tryAt = time.Now().Add(l.cfg.Retry)
	if m := l.deps.Metrics; m != nil {
		m.away.Set(1)
	}
}

func (l *Limiter) block(provider string, until time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.blocked[provider] = later(l.blocked[provider], until)
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

// askLocal decides without Redis. The share is the provider's rate, at its last
// known factor, divided by the processes that asked lately.
func (l *Limiter) askLocal(a Ask, provider, tenant ratelimit.Bucket) Answer {
	if a.Rail != schemas.RailTransactional {
		return Answer{Wait: l.cfg.Retry, Reason: RedisAway}
	}
	l.mu.Lock()
	factor, askers, blocked := l.factor[a.Provider], l.askers[a.Provider], l.blocked[a.Provider]
	l.mu.Unlock()
	if factor == 0 {
		factor = 1
	}
	div := float64(max(1, askers))
	now := time.Now()
	if wait := blocked.Sub(now); wait > 0 {
		return Answer{Wait: wait, Reason: ratelimit.Blocked}
	}
	keys := l.keys(a.Provider, a.Tenant, a.Rail)
	steps := []step{{keys.Provider, time.Duration(float64(time.Second) * div / (provider.Rate * factor)), ratelimit.Provider}}
	if tenant.Rate > 0 {
		steps = append(steps, step{keys.Tenant, time.Duration(float64(time.Second) * div / tenant.Rate), ratelimit.Tenant})
	}
	return l.local.take(now, steps)
}

// local is both buckets in memory, each with a burst of one.
type local struct {
	mu   sync.Mutex
	full map[string]time.Time // when a bucket's next token is there
}

type step struct {
	key      string
	interval time.Duration
	reason   ratelimit.Reason
}

func (b *local) take(now time.Time, steps []step) Answer {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, s := range steps {
		if wait := b.full[s.key].Sub(now); wait > 0 {
			return Answer{Wait: min(wait, s.interval), Reason: s.reason}
		}
	}
	if len(b.full) > 10_000 { // tenants of an outage; an empty map grants each one token
		clear(b.full)
	}
	for _, s := range steps {
		b.full[s.key] = now.Add(s.interval)
	}
	return Answer{Granted: true, Reason: ratelimit.Granted}
}

// seen keeps this process among the askers of every provider, so that the
// share is right even of one that had nothing to send lately.
func (l *Limiter) seen(ctx context.Context) error {
	if l.cfg.Rail == schemas.RailMarketing || !l.mayTry(time.Now()) {
		return nil
	}
	var errs []error
	for name := range l.cfg.Providers {
		rctx, cancel := context.WithTimeout(ctx, l.cfg.Budget)
		got, err := l.script.Seen(rctx, l.deps.Redis, l.keys(name, [16]byte{}, ""), l.cfg.Asker)
		cancel()
		l.heard(ctx, name, got, err)
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}
