package rail

import (
	"time"

	"github.com/google/uuid"

	"github.com/softcrum/carril/dispatcher/sends"
)

// item is a job in a worker's memory.
type item struct {
	ref      sends.Ref
	entry    *entry
	messages int       // in its next request, for the quotas
	limit    int       // messages of one request; 0: all (a refused batch is halved)
	most     int       // what limit may not grow beyond: more of it fits into no day's quota; 0: anything
	arrived  time.Time // when it was received
	ready    time.Time // not before: a short backoff
	lane     int       // 0 before 1: transactional before product
	bound    string    // the provider that may have taken its request; empty: any
	route    *route    // the way that its token is for
	asked    time.Time // when its token was asked for
}

// queue is one tenant's jobs, in order within each lane.
type queue struct {
	tenant uuid.UUID
	lanes  [2][]*item
	askAt  time.Time // the buckets said: not before
	inRing bool

	// While the tenant's own bucket is what holds it up: when that has its next
	// token, and how far apart they come. A zero own is not known to.
	own   time.Time
	every time.Duration
}

// refused keeps what the tenant's own bucket said.
func (q *queue) refused(own time.Time, every time.Duration) { q.own, q.every = own, every }

// granted moves on to the token after the one that was just had. A bucket that
// had more than one again holds nobody up.
func (q *queue) granted(now time.Time) {
	if q.own.IsZero() || now.Sub(q.own) > q.every {
		q.own = time.Time{}
		return
	}
	q.own = q.own.Add(q.every)
}

// behind removes what the tenant's own bucket lets go later than in patience,
// and gives for each how long it takes.
func (q *queue) behind(now time.Time, patience time.Duration) (items []*item, delays []time.Duration) {
	if q.own.IsZero() || q.every <= 0 {
		return nil, nil
	}
	first := max(q.own.Sub(now), 0)
	keep := 0
	if first <= patience {
		keep = 1 + int((patience-first)/q.every)
	}
	n := 0
	for l, lane := range q.lanes {
		stay := min(max(keep-n, 0), len(lane))
		for i, it := range lane[stay:] {
			items, delays = append(items, it), append(delays, first+time.Duration(n+stay+i)*q.every)
		}
		n += len(lane)
		q.lanes[l] = lane[:stay:stay]
	}
	return items, delays
}

func (q *queue) head(now time.Time) (*item, time.Time) {
	var soonest time.Time
	for _, lane := range q.lanes {
		for _, it := range lane {
			if !it.ready.After(now) {
				return it, time.Time{}
			}
			if soonest.IsZero() || it.ready.Before(soonest) {
				soonest = it.ready
			}
		}
	}
	return nil, soonest
}

func (q *queue) len() int { return len(q.lanes[0]) + len(q.lanes[1]) }

func (q *queue) remove(it *item) bool {
	for i, have := range q.lanes[it.lane] {
		if have == it {
			q.lanes[it.lane] = append(q.lanes[it.lane][:i:i], q.lanes[it.lane][i+1:]...)
			return true
		}
	}
	return false
}

// ring goes around the tenants that have work. Every job costs one token, and a
// token is what is shared, so a round of one job a tenant is deficit round
// robin. A tenant that may not ask yet is stepped over. It is guarded by its
// worker's mutex.
type ring struct {
	tenants map[uuid.UUID]*queue
	order   []*queue
	at      int // index of whose turn it is
	size    int
}

func newRing() *ring { return &ring{tenants: map[uuid.UUID]*queue{}} }

// push queues a job at its lane's end, or at its front where it was before.
func (r *ring) push(it *item, front bool) {
	q := r.tenants[it.ref.TenantID]
	if q == nil {
		q = &queue{tenant: it.ref.TenantID}
		r.tenants[q.tenant] = q
	}
	if front {
		q.lanes[it.lane] = append([]*item{it}, q.lanes[it.lane]...)
	} else {
		q.lanes[it.lane] = append(q.lanes[it.lane], it)
	}
	if !q.inRing {
		q.inRing = true
		r.order = append(r.order, q)
	}
	r.size++
}

// next gives the job whose turn it is and moves the turn on; the job stays
// queued. Without one, it gives when there may be one; zero: when something is
// pushed.
func (r *ring) next(now time.Time) (it *item, q *queue, when time.Time) {
	for range len(r.order) {
		if r.at >= len(r.order) {
			r.at = 0
		}
		q := r.order[r.at]
		if q.len() == 0 {
			r.drop(r.at)
			continue
		}
		r.at++
		if q.askAt.After(now) {
			when = sooner(when, q.askAt)
			continue
		}
		it, soonest := q.head(now)
		if it != nil {
			return it, q, time.Time{}
		}
		when = sooner(when, soonest)
	}
	return nil, nil, when
}

func sooner(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// drop takes a tenant without work out of the ring. What the buckets told it is
// forgotten with it: they will tell it again.
func (r *ring) drop(i int) {
	q := r.order[i]
	q.inRing = false
	delete(r.tenants, q.tenant)
	r.order = append(r.order[:i], r.order[i+1:]...)
}

// take removes a job from its queue; false where it is there no more.
func (r *ring) take(it *item) bool {
	q := r.tenants[it.ref.TenantID]
	if q == nil || !q.remove(it) {
		return false
	}
	r.size--
	return true
}

// behind removes, over all tenants, what their own buckets let go later than in
// patience.
func (r *ring) behind(now time.Time, patience time.Duration) (items []*item, delays []time.Duration) {
	for _, q := range r.order {
		its, ds := q.behind(now, patience)
		items, delays = append(items, its...), append(delays, ds...)
	}
	r.size -= len(items)
	return items, delays
}

// boundTo says that a job that has no other provider is ready by a time.
func (r *ring) boundTo(provider string, by time.Time) bool {
	for _, q := range r.order {
		for _, lane := range q.lanes {
			for _, it := range lane {
				if it.bound == provider && !it.ready.After(by) {
					return true
				}
			}
		}
	}
	return false
}

// takeIf removes every job that f names.
func (r *ring) takeIf(f func(*item) bool) (taken []*item) {
	for _, q := range r.order {
		for l, lane := range q.lanes {
			kept := lane[:0:0]
			for _, it := range lane {
				if f(it) {
					taken = append(taken, it)
				} else {
					kept = append(kept, it)
				}
			}
			q.lanes[l] = kept
		}
	}
	r.size -= len(taken)
	return taken
}
