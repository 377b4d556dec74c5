package webhook

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
)

// lanes are the endpoints that this process works for. Before Run and after it,
// there are none, and what the stage writes is left in the table.
type lanes struct {
	d     *Dispatcher
	bytes atomic.Int64 // of bodies in memory

	mu     sync.Mutex
	open   bool
	byID   map[uuid.UUID]*lane
	active sync.WaitGroup

	// spawn runs one attempt or claim; only an open lane may call it.
	spawn func(f func(ctx context.Context))
}

// start opens the lanes; attempts and claims end with ctx.
func (ls *lanes) start(ctx context.Context) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	ls.open, ls.byID = true, map[uuid.UUID]*lane{}
	ls.spawn = func(f func(context.Context)) { ls.active.Go(func() { f(ctx) }) }
}

// stop closes the lanes and gives back what they hold; what runs goes on.
func (ls *lanes) stop() {
	ls.mu.Lock()
	ls.open = false
	all := ls.byID
	ls.byID = nil
	ls.mu.Unlock()
	for _, l := range all {
		l.stop()
	}
}

// get gives an endpoint's lane, or nil when the lanes are closed.
func (ls *lanes) get(endpoint uuid.UUID) *lane {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if !ls.open {
		return nil
	}
	l := ls.byID[endpoint]
	if l == nil {
		l = newLane(ls.d, endpoint)
		ls.byID[endpoint] = l
	}
	return l
}

// reserve marks which deliveries this process takes: for each endpoint that has
// nothing elsewhere, the first so many as its lane has room for. Room is looked
// at, not held: a batch of another partition may take it too, and a lane then
// has twice as much.
func (ls *lanes) reserve(ds []*delivery, busy map[uuid.UUID]bool) {
	room := map[uuid.UUID]int{}
	bytes := ls.d.cfg.QueueBytes - ls.bytes.Load()
	for _, it := range ds {
		left, known := room[it.endpoint]
		if !known && !busy[it.endpoint] {
			if l := ls.get(it.endpoint); l != nil {
				left = l.room()
			}
		}
		it.leased = left > 0 && bytes > 0
		if it.leased {
			room[it.endpoint] = left - 1
			bytes -= int64(len(it.body))
		} else {
			room[it.endpoint] = 0 // those behind it wait with it
		}
	}
}

// hand gives committed deliveries to their lanes.
func (ls *lanes) hand(ds []*delivery) {
	leased, waiting := map[uuid.UUID][]*delivery{}, map[uuid.UUID]bool{}
	for _, it := range ds {
		if it.leased {
			leased[it.endpoint] = append(leased[it.endpoint], it)
		} else {
			waiting[it.endpoint] = true
		}
	}
	for endpoint, its := range leased {
		if l := ls.get(endpoint); l != nil {
			l.hand(its)
		}
	}
	ls.poke(keysOf(waiting))
}

// poke tells lanes that the table has something for them.
func (ls *lanes) poke(endpoints []uuid.UUID) {
	for _, endpoint := range endpoints {
		if l := ls.get(endpoint); l != nil {
			l.poke()
		}
	}
}

// tidy forgets lanes in which nothing has happened for long.
func (ls *lanes) tidy(now time.Time) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	for id, l := range ls.byID {
		if l.idle(now) {
			delete(ls.byID, id)
		}
	}
	ls.d.metrics.lanes.Set(float64(len(ls.byID)))
	ls.d.metrics.memory.Set(float64(ls.bytes.Load()))
}
