package webhook

import "time"

// breaker keeps attempts away from an endpoint that fails at everything. Open,
// it lets nothing through until its wait is over, and then one probe at a time.
type breaker struct {
	after    int // failures in a row that open it
	min, max time.Duration

	failures int
	wait     time.Duration // 0: closed
	until    time.Time     // open until, then half-open
}

func (b *breaker) open(now time.Time) bool { return b.wait > 0 && now.Before(b.until) }

// allows says how many attempts may run at once, of limit.
func (b *breaker) allows(now time.Time, limit int) int {
	switch {
	case b.wait == 0:
		return limit
	case now.Before(b.until):
		return 0
	}
	return 1
}

func (b *breaker) succeeded() { b.failures, b.wait = 0, 0 }

// failed counts a failure of the endpoint's own and says whether it opened the
// breaker, or opened it again.
func (b *breaker) failed(now time.Time) bool {
	b.failures++
	if b.failures < b.after && b.wait == 0 {
		return false
	}
	if b.open(now) { // attempts that began before it opened
		return false
	}
	b.wait = min(max(2*b.wait, b.min), b.max)
	b.until = now.Add(b.wait)
	return true
}

// pace spreads attempts evenly at a rate.
type pace struct {
	every time.Duration
	next  time.Time
}

// maxBurst is how far a pace may lag behind and catch up.
const maxBurst = 50 * time.Millisecond

// take uses the next slot, or says how long until it comes.
func (p *pace) take(now time.Time) time.Duration {
	if wait := p.next.Sub(now); wait > 0 {
		return wait
	}
	if p.next.Before(now.Add(-maxBurst)) {
		p.next = now.Add(-maxBurst)
	}
	p.next = p.next.Add(p.every)
	return 0
}
