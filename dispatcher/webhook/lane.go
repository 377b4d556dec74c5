package webhook

import (
	"context"
	"sync"
	"time"

	"github.com/google/uuid"
)

// lane is one endpoint's share of this process: its deliveries in memory, in
// order by order key, and how many of them may be attempted at once. Nothing of
// it waits for another lane.
type lane struct {
	d        *Dispatcher
	endpoint uuid.UUID
	targets  *targetCache

	mu       sync.Mutex
	queues   map[string]*queue    // order keys with deliveries in memory
	ready    []string             // order keys of which one may go now, oldest first
	held     map[uuid.UUID]bool   // deliveries in memory
	blocked  map[string]time.Time // order keys that went back to the table, and when
	queued   int                  // deliveries that wait in memory
	inflight int                  // attempts that run
	limit    int                  // attempts that may run; grows with success
	latency  time.Duration        // of an attempt, smoothed
	breaker  breaker
	pace     pace
	paused   time.Time // the endpoint, or we, asked for quiet until then
	backlog  bool      // the table may have rows to claim
	claiming bool
	timer    *time.Timer
	used     time.Time // when something last happened
	closed   bool
}

type queue struct {
	items []*delivery
	busy  bool // its first is being attempted
}

// blockedFor is for how long a direct delivery may still arrive behind one that
// went back to the table: longer than a stage's transaction takes.
const blockedFor = 2 * time.Minute

const firstLimit = 4

func newLane(d *Dispatcher, endpoint uuid.UUID) *lane {
	return &lane{d: d, endpoint: endpoint, targets: newTargetCache(d, endpoint),
		queues: map[string]*queue{}, held: map[uuid.UUID]bool{}, blocked: map[string]time.Time{},
		limit: min(firstLimit, d.cfg.Concurrency), latency: 50 * time.Millisecond, used: time.Now(),
		breaker: breaker{after: d.cfg.BreakAfter, min: d.cfg.BreakMin, max: d.cfg.BreakMax},
		pace:    pace{every: time.Duration(float64(time.Second) / d.cfg.Rate)}}
}

// room is how many more deliveries the lane would take straight from the stage.
func (l *lane) room() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	if l.closed || l.breaker.wait > 0 || now.Before(l.paused) {
		return 0
	}
	return max(0, l.capacity()-l.queued-l.inflight)
}

// capacity is what the lane can attempt in half of the time that a lease leaves
// for waiting, at the pace at which the endpoint answers.
func (l *lane) capacity() int {
	waits := (l.d.cfg.Lease - l.d.deadline - 2*margin) / 2
	n := int(float64(l.limit) * float64(max(waits, time.Second)) / float64(max(l.latency, time.Millisecond)))
	return min(max(n, firstLimit), l.d.cfg.QueueItems)
}

// hand gives the lane deliveries that are leased to this process, in order;
// those that it cannot keep go back to the table.
func (l *lane) hand(ds []*delivery) {
	now := time.Now()
	l.mu.Lock()
	var back []result
	for _, it := range ds {
		at, blocked := l.blocked[it.orderKey]
		blocked = blocked && now.Sub(at) < blockedFor && !it.claimed
		switch wait := l.quiet(now); {
		case l.held[it.id]: // claimed again after its lease; it is here already
		case l.closed || blocked || wait > 0:
			back = append(back, result{it: it, verdict: verdict{outcome: released, wait: wait}})
		default:
			l.keep(it)
		}
	}
	l.used = now
	l.mu.Unlock()
	l.d.settler.add(back...)
	l.pump()
}

func (l *lane) keep(it *delivery) {
	if it.claimed {
		delete(l.blocked, it.orderKey)
	}
	q := l.queues[it.orderKey]
	if q == nil {
		q = &queue{}
		l.queues[it.orderKey] = q
		l.ready = append(l.ready, it.orderKey)
	}
	q.items = append(q.items, it)
	l.held[it.id] = true
	l.queued++
	l.d.lanes.bytes.Add(int64(len(it.body)))
}

// drop takes a delivery out of memory; its result is still to be written.
func (l *lane) drop(it *delivery) {
	delete(l.held, it.id)
	l.d.lanes.bytes.Add(-int64(len(it.body)))
}

// poke says that the table may have rows for the endpoint.
func (l *lane) poke() {
	l.mu.Lock()
	l.backlog = true
	l.mu.Unlock()
	l.pump()
}

// pump starts what may start: attempts, and a claim when little is left.
func (l *lane) pump() {
	now := time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return
	}
	allowed := l.breaker.allows(now, l.limit)
	if now.Before(l.paused) {
		allowed = 0
	}
	for l.inflight < allowed && len(l.ready) > 0 {
		if wait := l.pace.take(now); wait > 0 {
			l.wakeIn(wait)
			break
		}
		l.begin()
	}
	if want := l.wants(allowed); want > 0 {
		l.claiming, l.backlog = true, false
		l.d.lanes.spawn(func(ctx context.Context) { l.claim(ctx, want) })
	}
	if quiet := l.quiet(now); quiet > 0 && (l.backlog || l.queued > 0) {
		l.wakeIn(quiet)
	}
}

// wants is how many rows a claim should bring; 0: none now.
func (l *lane) wants(allowed int) int {
	if !l.backlog || l.claiming || allowed == 0 {
		return 0
	}
	if l.breaker.wait > 0 {
		if l.inflight+l.queued > 0 {
			return 0
		}
		return 1 // the probe
	}
	capacity := l.capacity()
	if l.queued > capacity/2 || l.d.lanes.bytes.Load() > l.d.cfg.QueueBytes {
		return 0
	}
	return min(capacity-l.queued, maxClaim)
}

func (l *lane) begin() {
	key := l.ready[0]
	l.ready = l.ready[1:]
	q := l.queues[key]
	q.busy = true
	l.queued--
	l.inflight++
	it := q.items[0]
	l.d.lanes.spawn(func(ctx context.Context) { l.ended(it, l.d.attempt(ctx, l.targets, it)) })
}

func (l *lane) claim(ctx context.Context, want int) {
	ds, more, err := l.d.table.claim(ctx, l.endpoint, want)
	l.mu.Lock()
	l.claiming = false
	l.backlog = l.backlog || more
	l.mu.Unlock()
	if err != nil {
		l.d.log.Warn("webhook deliveries could not be claimed", "endpoint_id", l.endpoint, "error", err)
		return // the sweep asks again
	}
	l.d.metrics.claimed.Add(float64(len(ds)))
	l.hand(ds)
}

// ended takes an attempt's verdict in: what becomes of the delivery, of those
// behind it, and of the lane's own pace.
func (l *lane) ended(it *delivery, v verdict) {
	now := time.Now()
	l.mu.Lock()
	l.inflight--
	l.used = now
	l.learn(now, v)
	l.drop(it)
	out := []result{{it: it, verdict: v, health: l.targets.health(now, v)}}
	q := l.queues[it.orderKey]
	q.items, q.busy = q.items[1:], false
	switch {
	case v.outcome == retried || v.outcome == released:
		l.blocked[it.orderKey] = now
		out = append(out, l.giveBack(it.orderKey, it, v)...)
	case len(q.items) > 0:
		l.ready = append(l.ready, it.orderKey)
	default:
		delete(l.queues, it.orderKey)
	}
	if l.quiet(now) > 0 {
		out = append(out, l.giveAllBack(now)...)
	}
	l.mu.Unlock()
	l.d.settler.add(out...)
	l.pump()
}

// learn adapts the lane to what its endpoint did. What was our own fault
// teaches nothing.
func (l *lane) learn(now time.Time, v verdict) {
	if v.pause > 0 {
		l.paused = now.Add(v.pause)
	}
	if v.disable != "" { // quiet until the endpoint's row says so
		l.paused = now.Add(l.d.cfg.BreakMin)
	}
	if !v.asked {
		return
	}
	l.latency += (v.took - l.latency) / 8
	if v.outcome == delivered {
		l.limit = min(l.limit+1, l.d.cfg.Concurrency)
		l.breaker.succeeded()
		return
	}
	l.limit = max(1, l.limit/2)
	if l.breaker.failed(now) {
		l.d.metrics.opened.Inc()
	}
}

// giveBack returns what stands behind a delivery that goes back to the table.
func (l *lane) giveBack(key string, head *delivery, v verdict) []result {
	q := l.queues[key]
	delete(l.queues, key)
	out := make([]result, len(q.items))
	for i, it := range q.items {
		out[i] = result{it: it, verdict: verdict{outcome: released, wait: v.wait}}
		if v.outcome == retried {
			out[i].head = head
		}
		l.drop(it)
	}
	l.queued -= len(out)
	return out
}

// giveAllBack empties the lane of what is not being attempted.
func (l *lane) giveAllBack(now time.Time) []result {
	var out []result
	wait := l.quiet(now)
	for key, q := range l.queues {
		waiting := q.items
		if q.busy {
			waiting = q.items[1:]
			q.items = q.items[:1]
		} else {
			delete(l.queues, key)
		}
		if len(waiting) > 0 {
			l.blocked[key] = now
		}
		for _, it := range waiting {
			out = append(out, result{it: it, verdict: verdict{outcome: released, wait: wait}})
			l.drop(it)
		}
	}
	l.queued -= len(out)
	l.ready = nil
	return out
}

// quiet is how long nothing will be attempted.
func (l *lane) quiet(now time.Time) time.Duration {
	wait := l.paused.Sub(now)
	if l.breaker.wait > 0 {
		wait = max(wait, l.breaker.until.Sub(now))
	}
	return max(wait, 0)
}

func (l *lane) wakeIn(wait time.Duration) {
	if l.timer != nil {
		l.timer.Reset(wait)
		return
	}
	l.timer = time.AfterFunc(wait, l.pump)
}

// idle says that the lane may be forgotten, and closes it if so.
func (l *lane) idle(now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for key, at := range l.blocked {
		if now.Sub(at) > blockedFor {
			delete(l.blocked, key)
		}
	}
	if len(l.held) > 0 || l.inflight > 0 || l.claiming || len(l.blocked) > 0 || now.Before(l.paused) || now.Sub(l.used) < idleLane {
		return false
	}
	l.shut()
	return true
}

const idleLane = 10 * time.Minute

// shut ends the lane: nothing starts any more.
func (l *lane) shut() {
	l.closed = true
	if l.timer != nil {
		l.timer.Stop()
	}
}

// stop ends the lane and gives back what waits in memory.
func (l *lane) stop() {
	l.mu.Lock()
	l.shut()
	out := l.giveAllBack(time.Now())
	l.mu.Unlock()
	l.d.settler.add(out...)
}
