package limit

import (
	"math"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/softcrum/carril/ingestor/apikey"
)

// level is a bucket as this process last knew it: what Redis said of it, and
// what was decided without Redis since.
type level struct {
	burst, rate float64
	full        int64 // when it is full again
}

func (b *level) free(now int64) float64 {
	if now >= b.full {
		return b.burst
	}
	return b.burst - float64(b.full-now)/float64(time.Second)*b.rate
}

// wanted is what must be there for n: the rule is the script's.
func (b *level) wanted(n int) float64 {
	if float64(n) > b.burst {
		return math.Max(1, math.Floor(b.burst/2))
	}
	return float64(n)
}

func (b *level) wait(n int, now int64) time.Duration {
	// A millionth of a token, or rounding would have a bucket wait for what it has.
	short := b.wanted(n) - b.free(now) - 1e-6
	return max(0, time.Duration(math.Ceil(short/b.rate*float64(time.Second))))
}

func (b *level) spend(n int, now int64) {
	b.full = max(b.full, now) + int64(float64(n)/b.rate*float64(time.Second))
}

// remaining is what may still be sent at once, with what is leased already.
func (b *level) remaining(leased int, now int64) int64 {
	return int64(math.Max(0, math.Min(b.burst, math.Floor(b.free(now)+1e-6)+float64(leased))))
}

// set takes a limit over and says whether it is another than before.
func (b *level) set(rate, burst int) bool {
	if b.rate == float64(rate) && b.burst == float64(burst) {
		return false
	}
	b.rate, b.burst = float64(rate), float64(burst)
	return true
}

// tenant is a tenant's limits and what this process has leased of them.
type tenant struct {
	id  uuid.UUID
	cfg *Config

	mu     sync.Mutex
	plan   level
	shared budget             // of the keys without a limit of their own
	keys   map[string]*budget // of those with one
	used   int64
}

// budget is tokens that were leased from the tenant's bucket, and from a key's
// own where it has one, and how the next are got.
type budget struct {
	keyID string // "": the tenant's keys without a limit of their own
	own   level  // the key's; rate 0: none

	tokens int
	came   int64 // when the last tokens came
	block  int   // tokens of the next lease, beyond what is waited for
	began  int64 // when the last lease began

	refused int   // tokens that Redis refused last; 0: none
	until   int64 // when they are there

	call    *lease // under way; nil: none
	waiting int    // tokens that are waited for meanwhile

	fixed fixedHeaders
}

// budget finds where a key's tokens come from and takes over limits that have
// changed. The tenant is locked.
func (t *tenant) budget(p *apikey.Principal, now int64) *budget {
	t.used = now
	changed := t.plan.set(p.Tenant.EventsPerSecond, p.Tenant.EventsBurst)
	if changed {
		t.shared.restart()
		for _, b := range t.keys {
			b.restart()
		}
	}
	b := &t.shared
	if p.Rate.PerSecond > 0 {
		b = t.ofKey(p.KeyID)
		if b.own.set(p.Rate.PerSecond, p.Rate.Burst) {
			b.restart()
		}
	}
	if b.tokens > 0 && now-b.came > int64(t.cfg.Hold) {
		b.tokens, b.block = 0, 1
	}
	return b
}

func (t *tenant) ofKey(id string) *budget {
	if b := t.keys[id]; b != nil {
		return b
	}
	if len(t.keys) >= t.cfg.MaxKeys {
		for victim, b := range t.keys { // any that nobody waits for
			if b.call == nil {
				delete(t.keys, victim)
				break
			}
		}
	}
	b := &budget{keyID: id}
	t.keys[id] = b
	return b
}

// idle says whether forgetting the tenant changes nothing.
func (t *tenant) idle(now int64) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, b := range t.keys {
		if b.call != nil || b.own.full > now {
			return false
		}
	}
	return t.shared.call == nil && t.plan.full <= now && now-t.used > int64(time.Minute)
}

// restart lets go of what was leased under another limit.
func (b *budget) restart() {
	b.tokens, b.block, b.refused, b.until = 0, 1, 0, 0
	b.fixed = fixedHeaders{}
}

// refusedFor gives how long n tokens are surely not there: Redis refused as many
// a moment ago.
func (b *budget) refusedFor(n int, now int64) time.Duration {
	if b.refused == 0 || n-b.tokens < b.refused || now >= b.until {
		return 0
	}
	return time.Duration(b.until - now)
}

// levels are the buckets that the budget draws on, the tenant's first.
func (t *tenant) levels(b *budget) []*level {
	if b.own.rate == 0 {
		return []*level{&t.plan}
	}
	return []*level{&t.plan, &b.own}
}

// alone decides about n tokens without Redis, at the same rate and from where
// the buckets stood when they were last known.
func (t *tenant) alone(b *budget, n int, now int64) (wait time.Duration) {
	if wait = t.wait(b, n, now); wait > 0 {
		return wait
	}
	for _, lv := range t.levels(b) {
		lv.spend(n, now)
	}
	return 0
}

// wait is until n tokens are there, as far as this process knows.
func (t *tenant) wait(b *budget, n int, now int64) (wait time.Duration) {
	for _, lv := range t.levels(b) {
		wait = max(wait, lv.wait(n, now))
	}
	return wait
}

// slowest is the lowest rate of the budget's buckets, and smallest their lowest
// burst.
func (t *tenant) slowest(b *budget) (rate, smallest float64) {
	if b.own.rate == 0 {
		return t.plan.rate, t.plan.burst
	}
	return math.Min(t.plan.rate, b.own.rate), math.Min(t.plan.burst, b.own.burst)
}
