package rail

import "time"

// breaker slows a rail down whose provider fails for reasons of its own: after
// a few failures in a row it lets one request at a time through, and each
// failure doubles the pause before the next, so that a recovery meets no herd
// (F30). A refused account pauses the rail likewise. It is guarded by its
// worker's mutex.
type breaker struct {
	failures int
	asking   int       // requests on their way since it opened
	until    time.Time // nothing leaves before
	reason   string
	longest  time.Duration // pause between two probes
}

// Why a rail stands still for its provider.
const (
	pausedFailing       = "provider_failing"
	pausedConfiguration = "configuration"
)

const (
	breakAfter = 5                      // failures in a row
	firstPause = 250 * time.Millisecond // doubled by each probe that fails
)

// wait says how long nothing may leave; at most one request is on its way
// while the breaker is open.
func (b *breaker) wait(now time.Time) time.Duration {
	if d := b.until.Sub(now); d > 0 {
		return d
	}
	if b.open() && b.asking > 0 {
		return time.Second // the probe's end wakes the scheduler
	}
	return 0
}

// open says that the last requests failed in a row: what leaves is a probe.
func (b *breaker) open() bool { return b.failures >= breakAfter }

func (b *breaker) begin() { b.asking++ }

// abort says that a request did not leave after all, or that what came of it
// says nothing about the provider.
func (b *breaker) abort() { b.asking = max(0, b.asking-1) }

func (b *breaker) succeeded() {
	b.abort()
	b.failures, b.until, b.reason = 0, time.Time{}, ""
}

func (b *breaker) failed(now time.Time) {
	b.abort()
	if b.open() && now.Before(b.until) {
		return // it was on its way when another's failure opened the breaker
	}
	if b.failures++; b.failures >= breakAfter {
		pause := min(b.longest, firstPause<<min(b.failures-breakAfter, 10))
		b.until, b.reason = now.Add(jitter(pause)), pausedFailing
	}
}

// stop pauses the rail for a time, whatever the failures.
func (b *breaker) stop(now time.Time, d time.Duration, reason string) {
	b.abort()
	if until := now.Add(d); until.After(b.until) {
		b.until, b.reason = until, reason
	}
	b.failures = max(b.failures, breakAfter) // then one request at a time until one is taken
}
