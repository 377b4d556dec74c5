package limit

import (
	"context"
	"errors"
	"time"

	"github.com/google/uuid"

	"github.com/softcrum/carril/internal/ratelimit"
)

// lease is one ask for tokens. Its fields are the tenant's lock's, but for done.
type lease struct {
	done chan struct{} // closed when the answer is there

	n        int  // tokens of the request that began it; 0: it is for later ones
	reserved int  // of them that were there already
	left     bool // that request has given up waiting
	granted  bool // it has its tokens
	began    int64
}

// sayAgain is how seldom an absent Redis is logged.
const sayAgain = 10 * time.Second

// errBudget is a Redis that is too slow to be waited for.
var errBudget = errors.New("no answer within the budget")

// takeSlowly gets n tokens that are not at hand: from Redis, with everybody else
// who waits for the same lease, or by the local limiter where Redis gives no
// answer in time. The tenant is locked, but for the waiting.
func (l *Limiter) takeSlowly(ctx context.Context, t *tenant, b *budget, n int) time.Duration {
	begin := time.Now()
	defer func() { l.metrics.waited.Observe(time.Since(begin).Seconds()) }()
	patience := time.NewTimer(l.cfg.Budget)
	defer patience.Stop()
	for {
		now := l.now()
		if b.tokens >= n {
			b.tokens -= n
			l.metrics.passed.Inc()
			return 0
		}
		if wait := b.refusedFor(n, now); wait > 0 {
			l.metrics.refused.Inc()
			return max(wait, t.wait(b, n, now)) // Redis may have refused fewer
		}
		if !l.reachable(t, b, now) {
			return l.alone(t, b, n, now)
		}
		c, mine := b.call, false
		if c == nil {
			c, mine = l.lease(t, b, n, now), true
		}
		waited := l.await(ctx, t, b, c, n, mine, patience.C)
		switch {
		case c.granted && mine:
			l.metrics.passed.Inc()
			return 0
		case !waited:
			return l.alone(t, b, n, l.now())
		}
	}
}

// await waits for a lease until the patience ends; false when it did. The tenant
// is unlocked meanwhile.
func (l *Limiter) await(ctx context.Context, t *tenant, b *budget, c *lease, n int, mine bool, patience <-chan time.Time) bool {
	if !mine {
		b.waiting += n
		defer func() { b.waiting -= n }()
	}
	t.mu.Unlock()
	defer t.mu.Lock()
	select {
	case <-c.done:
		return true
	case <-ctx.Done():
	case <-patience:
		if l.now()-c.began >= int64(l.cfg.Budget) { // else it was the third lease of a long queue
			l.lost(errBudget)
		}
	}
	t.mu.Lock()
	c.left = c.left || mine
	t.mu.Unlock()
	return false
}

// alone decides without Redis.
func (l *Limiter) alone(t *tenant, b *budget, n int, now int64) time.Duration {
	wait := t.alone(b, n, now)
	if wait > 0 {
		l.metrics.refusedAlone.Inc()
	} else {
		l.metrics.passedAlone.Inc()
	}
	return wait
}

// ahead leases the next block before this one is used up, so that no request of
// a steady stream has to wait.
func (l *Limiter) ahead(t *tenant, b *budget, now int64) {
	if b.block < 4 || 2*b.tokens >= b.block || b.call != nil || l.tryAt.Load() != 0 || l.closed.Load() || b.refusedFor(b.tokens+1, now) > 0 {
		return
	}
	l.lease(t, b, 0, now)
}

// reachable says whether Redis is to be waited for. While it is away, one ask a
// Retry goes out to see whether it is back, and nobody waits for that one.
func (l *Limiter) reachable(t *tenant, b *budget, now int64) bool {
	if l.closed.Load() {
		return false
	}
	at := l.tryAt.Load()
	if at == 0 {
		return true
	}
	if now >= at && b.call == nil && l.tryAt.CompareAndSwap(at, now+int64(l.cfg.Retry)) {
		l.lease(t, b, 0, now)
	}
	return false
}

// lease begins an ask for n tokens that are missing now and a block for later.
// The block doubles while leases are used up within a Block of time, so that a
// busy tenant asks seldom and a quiet one holds nothing.
func (l *Limiter) lease(t *tenant, b *budget, n int, now int64) *lease {
	rate, smallest := t.slowest(b)
	switch since := now - b.began; {
	case since < int64(l.cfg.Block):
		b.block = min(2*b.block, max(1, int(rate*l.cfg.Block.Seconds())))
	case since > int64(l.cfg.Hold):
		b.block = 1
	}
	b.block, b.began = max(1, b.block), now
	c := &lease{done: make(chan struct{}), n: n, began: now}
	a := ratelimit.Ask{Mode: ratelimit.Plain, Depth: MaxCost, Provider: ratelimit.Bucket{Capacity: t.plan.burst, Rate: t.plan.rate}}
	if b.own.rate > 0 {
		a.Tenant = ratelimit.Bucket{Capacity: b.own.burst, Rate: b.own.rate}
	}
	if float64(n) > smallest {
		a.Cost, a.Whole = n, true
	} else {
		c.reserved = min(b.tokens, n) // for this request, whoever comes meanwhile
		b.tokens -= c.reserved
		a.Least = max(1, n-c.reserved)
		a.Cost = max(a.Least, min(b.block+b.waiting, int(smallest)))
	}
	b.call = c
	l.leases.Go(func() { l.ask(t, b, c, a) })
	return c
}

// ask asks Redis and puts the answer where it belongs.
func (l *Limiter) ask(t *tenant, b *budget, c *lease, a ratelimit.Ask) {
	defer close(c.done)
	a.Keys = l.keys(t.id, b.keyID)
	ctx, cancel := context.WithTimeout(context.Background(), l.cfg.Budget)
	defer cancel()
	got, err := l.script.Take(ctx, l.deps.Redis, a)
	if err != nil {
		l.lost(err)
	} else {
		l.found()
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	b.call = nil
	l.settle(t, b, c, a, got, err)
}

func (l *Limiter) settle(t *tenant, b *budget, c *lease, a ratelimit.Ask, got ratelimit.Answer, err error) {
	b.tokens += c.reserved
	if err != nil {
		l.metrics.leases.WithLabelValues("failed").Inc()
		return
	}
	now := l.now()
	if got.Granted > 0 || got.Reason == ratelimit.Provider {
		t.plan.full = now + int64(got.ProviderDebt)
	}
	if b.own.rate > 0 {
		b.own.full = now + int64(got.TenantDebt)
	}
	if got.Granted == 0 {
		l.metrics.leases.WithLabelValues("refused").Inc()
		b.refused, b.until = max(a.Least, a.Cost*whole(a)), now+int64(got.Wait)
		return
	}
	l.metrics.leases.WithLabelValues("granted").Inc()
	b.refused, b.came = 0, now
	b.tokens += got.Granted
	if c.n > 0 && !c.left && b.tokens >= c.n {
		b.tokens -= c.n
		c.granted = true
	}
}

func whole(a ratelimit.Ask) int {
	if a.Whole {
		return 1
	}
	return 0
}

// keys of one tenant share a hash tag, so that one script may touch them all.
func (l *Limiter) keys(id uuid.UUID, keyID string) ratelimit.Keys {
	base := l.cfg.Prefix + "limit:{" + id.String() + "}"
	return ratelimit.Keys{Provider: base, Tenant: base + ":key:" + keyID, Waiters: base + ":waiters", Served: base + ":served", Askers: base + ":askers"}
}

// lost notes that Redis gives no answer.
func (l *Limiter) lost(err error) {
	next := l.now() + int64(l.cfg.Retry)
	if l.tryAt.Swap(next) == 0 {
		l.metrics.away.Set(1)
		if said := l.said.Load(); said != 0 && next-said < int64(sayAgain) {
			return // of a Redis that comes and goes the metric tells
		}
		l.said.Store(next)
		l.deps.Log.Warn("the API's limits are kept by this process alone: Redis gives no answer", "error", err)
	}
}

// found notes that it does.
func (l *Limiter) found() {
	if l.tryAt.Load() != 0 && l.tryAt.Swap(0) != 0 {
		l.metrics.away.Set(0)
	}
}
