package rail

import (
	"context"
	"time"

	"github.com/softcrum/carril/dispatcher/bucket"
	"github.com/softcrum/carril/dispatcher/sends"
	"github.com/softcrum/carril/internal/pause"
	"github.com/softcrum/carril/internal/ratelimit"
	"github.com/softcrum/carril/schemas"
)

// schedule hands jobs out, one token each, for as long as ctx lives. It is the
// only asker of this process and rail, so a tenant has one ask at a time.
func (w *Worker) schedule(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-w.free:
		}
		it, grant := w.nextGranted(ctx)
		if it == nil {
			return
		}
		w.inFlight(1)
		w.senders.Go(func() {
			defer func() { w.inFlight(-1); w.free <- struct{}{}; signal(w.wake) }()
			w.send(it, grant)
		})
	}
}

// nextGranted waits for a job that has its token; nil when ctx ends.
func (w *Worker) nextGranted(ctx context.Context) (*item, bucket.Answer) {
	for {
		w.parkBehind(time.Now())
		it, q, wait := w.pickNext(time.Now())
		if it == nil {
			if !w.rest(ctx, wait) {
				return nil, bucket.Answer{}
			}
			continue
		}
		asked := time.Now()
		ans := w.deps.Limiter.Ask(ctx, w.askFor(it))
		w.mu.Lock()
		if ctx.Err() != nil {
			it.route.health.abort()
			w.mu.Unlock()
			return nil, ans
		}
		if !ans.Granted {
			switch {
			case ans.Most > 0 && ans.Most < it.messages: // whole it would wait for ever
				it.limit, it.most, it.messages = ans.Most, ans.Most, ans.Most
			case ans.Reason == ratelimit.Tenant:
				q.askAt = asked.Add(ans.Wait)
				q.refused(q.askAt, ans.TenantInterval)
			case it.bound != "":
				it.ready = asked.Add(ans.Wait) // its provider's bucket need not be that of the others
			default:
				q.askAt = asked.Add(ans.Wait)
			}
			it.route.health.abort()
			w.mu.Unlock()
			continue
		}
		q.granted(asked)
		if w.deps.Pace != nil {
			w.deps.Pace.Began(time.Now())
		}
		it.asked = asked
		ok := w.ring.take(it)
		if ok {
			it.entry.w.fly(it.entry)
		} else {
			it.route.health.abort()
		}
		w.mu.Unlock()
		if ok { // else its partition was revoked while we asked; the token is lost, the job is not
			if m := w.deps.Metrics; m != nil {
				m.wait.WithLabelValues(w.cfg.Channel, w.cfg.Rail).Observe(time.Since(it.arrived).Seconds())
			}
			return it, ans
		}
	}
}

func (w *Worker) askFor(it *item) bucket.Ask {
	return bucket.Ask{Provider: it.route.name, Tenant: it.ref.TenantID, Rail: w.cfg.Rail, Messages: it.messages}
}

// pickNext gives the job whose turn it is, or how long nothing can be done.
func (w *Worker) pickNext(now time.Time) (*item, *queue, time.Duration) {
	if w.cfg.Rail == schemas.RailMarketing {
		if yield, _ := w.deps.Yield.Yielding(); yield {
			return nil, nil, time.Second
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if wait := w.standstill(now); wait > 0 {
		return nil, nil, wait
	}
	if w.deps.Pace != nil && w.ring.size > 0 {
		if wait := w.deps.Pace.Wait(now); wait > 0 {
			return nil, nil, wait
		}
	}
	var aside []*item
	defer func() { w.setAside(aside) }()
	it, q, when := w.ring.next(now)
	for it != nil {
		r, wait := w.way(it, now)
		switch {
		case wait == 0:
			it.route = r
			r.health.begin()
			return it, q, 0
		case it.bound != "" && wait > w.cfg.Budget/10 && w.ring.take(it):
			it.entry.w.fly(it.entry)
			aside = append(aside, it)
		default:
			it.ready = now.Add(wait) // others pass it
		}
		it, q, when = w.ring.next(now)
	}
	if when.IsZero() {
		return nil, nil, time.Hour
	}
	return nil, nil, max(when.Sub(now), 0)
}

// rest waits until there is something to look at.
func (w *Worker) rest(ctx context.Context, wait time.Duration) bool {
	t := time.NewTimer(wait)
	defer t.Stop()
	var changed <-chan struct{}
	if w.deps.Yield != nil {
		changed = w.deps.Yield.Changed()
	}
	select {
	case <-ctx.Done():
		return false
	case <-w.wake:
	case <-changed:
	case <-t.C:
	}
	return true
}

// parkBehind puts aside what its tenant's own bucket holds up for longer than a
// tenth of the budget, whenever it came: the rest of a tenant's backlog must
// not age in the topic, where it would look like a rail that is behind. A
// provider's block parks nothing: there the age tells the truth.
func (w *Worker) parkBehind(now time.Time) {
	w.mu.Lock()
	items, delays := w.ring.behind(now, w.cfg.Budget/10)
	for _, it := range items {
		it.entry.w.fly(it.entry)
	}
	w.mu.Unlock()
	if len(items) == 0 {
		return
	}
	waits := make([]sends.Parking, len(items))
	for i, it := range items {
		waits[i] = sends.Parking{Ref: it.ref, Delay: min(delays[i], time.Minute)}
	}
	w.senders.Go(func() { w.park(items, waits, sends.ReasonTenantBucket) })
}

// backToProvider is how soon what may have been taken is tried again at its
// provider while that is out of order and another carries the rest.
const backToProvider = 10 * time.Second

// setAside parks what has to wait for its own provider, so that it does not age
// in the topic: a rail that another provider serves well is not behind. It is
// called under the worker's mutex.
func (w *Worker) setAside(items []*item) {
	if len(items) == 0 {
		return
	}
	waits := make([]sends.Parking, len(items))
	for i, it := range items {
		waits[i] = sends.Parking{Ref: it.ref, Delay: backToProvider}
	}
	w.senders.Go(func() { w.park(items, waits, sends.ReasonProvider) })
}

// park puts queued jobs aside in one transaction and lets their offsets go.
func (w *Worker) park(items []*item, waits []sends.Parking, reason string) {
	err := w.persist(func(ctx context.Context) error {
		slot, err := w.slots.current(ctx)
		if err != nil {
			return err
		}
		return w.deps.Store.Park(ctx, slot, waits, reason)
	})
	if err != nil {
		return // the worker is ending: the records come again
	}
	w.slots.wake()
	for _, it := range items {
		w.finish(it.entry)
	}
	w.countN("parked", len(items))
}

// persist tries a write until it lands or the worker ends: what is decided is
// not decided again because the database was away.
func (w *Worker) persist(f func(ctx context.Context) error) error {
	backoff := 20 * time.Millisecond
	for {
		ctx, cancel := context.WithTimeout(w.work, 15*time.Second)
		err := f(ctx)
		cancel()
		if err == nil || !retryable(err) || w.work.Err() != nil {
			return err
		}
		w.log.Warn("a write waits", "error", err, "backoff", backoff)
		if !pause.For(w.work, jitter(backoff)) {
			return w.work.Err()
		}
		backoff = min(2*backoff, 2*time.Second)
	}
}
