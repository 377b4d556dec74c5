package rail

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"github.com/softcrum/carril/dispatcher/bucket"
	"github.com/softcrum/carril/dispatcher/provider"
	"github.com/softcrum/carril/dispatcher/sends"
	"github.com/softcrum/carril/internal/outbox"
	"github.com/softcrum/carril/internal/pg"
)

// retryable says that a write may land when it is tried again.
func retryable(err error) bool {
	return !errors.Is(err, sends.ErrLeaseLost) && !errors.Is(err, context.Canceled)
}

func (w *Worker) at(p Point) {
	if w.deps.Hook != nil {
		w.deps.Hook(p)
	}
}

// send is one job's way from its token to its outcome. Whatever happens, the
// job's row says what is next; the record leaves its window only once that is
// written.
func (w *Worker) send(it *item, grant bucket.Answer) {
	w.at(PointToken)
	c, verdict, err := w.claim(it)
	other := err == nil && verdict == sends.Ready && c.Provider.Name() != it.route.name
	if err != nil || verdict != sends.Ready || other {
		w.mu.Lock()
		it.route.health.abort()
		w.mu.Unlock()
	}
	switch {
	case err != nil:
		return // the worker is ending: the record comes again
	case verdict != sends.Ready:
		w.slots.wake()
		w.count(string(verdict))
		w.settle(it, verdict == sends.Closed && (it.limit > 0 || c.Remains()))
		return
	case other: // it goes again, with a token of the provider that it belongs to
		w.count("rerouted")
		w.write(it, c, c.GivenBack())
		return
	}
	if w.late.of(time.Since(it.asked)) && !w.deps.Limiter.Renew(w.work, w.askFor(it), renewWithin) {
		w.mu.Lock()
		it.route.health.abort()
		w.mu.Unlock()
		w.count("late")
		w.write(it, c, c.GivenBack())
		return
	}
	w.at(PointClaimed)
	started := time.Now()
	ctx, cancel := context.WithTimeout(w.work, w.cfg.SendTimeout)
	res, sendErr := c.Provider.Send(ctx, c.Request)
	cancel()
	if w.work.Err() != nil && sendErr != nil {
		return // cut off by our own end: whoever takes the job over sends the same bytes
	}
	w.at(PointAnswered)
	class := w.judge(c, res, sendErr, grant)
	step := w.decide(it, c, res, sendErr)
	w.observe(c.Provider.Name(), class, time.Since(started))
	w.report(c, step, class, time.Since(started))
	w.write(it, c, step)
}

const (
	// lateGrant is how much longer than it usually takes the way from a token to its
	// request may be. Nine tenths of a provider's rate leave a tenth of a second for
	// what is late.
	lateGrant = 60 * time.Millisecond
	// renewWithin bounds the wait for another token; the job goes back into its queue
	// then. It is far below a lease.
	renewWithin = 2 * time.Second
)

// lateness knows how long the way from a token to its request usually is. What is
// always slow does no harm: requests then come as far apart as their tokens.
type lateness struct{ usual atomic.Int64 }

// of says that a request would be late, and learns from it.
func (l *lateness) of(took time.Duration) bool {
	usual := l.usual.Load()
	l.usual.Store(usual + (int64(took)-usual)/8) // a lost update is one sample less
	return took > time.Duration(usual)+lateGrant
}

// claim claims a job, waiting out the database; a missing partition is made.
func (w *Worker) claim(it *item) (c sends.Claimed, v sends.Verdict, err error) {
	var lease uuid.UUID // the same one each time: an error may hide a commit that landed
	err = w.persist(func(ctx context.Context) error {
		slot, err := w.slots.current(ctx)
		if err != nil {
			return err
		}
		if lease == uuid.Nil {
			lease = slot.NewLease()
		}
		c, v, err = w.deps.Store.Claim(ctx, slot, it.ref, lease, it.limit, it.route.name)
		if pg.FaultOf(err) == pg.FaultPartition {
			return errors.Join(err, w.deps.Store.EnsurePartitions(ctx, it.ref))
		}
		return err
	})
	return c, v, err
}

// settle lets a job go whose claim found nothing to send. One that a limit cut
// in pieces may have more: its row says in_topic still, so it is asked for again.
func (w *Worker) settle(it *item, again bool) {
	if again {
		w.requeue(it, 0, true)
		return
	}
	w.finish(it.entry)
}

// write applies a step and lets the record go, or queues the job again where
// the step left it in the topic.
func (w *Worker) write(it *item, c sends.Claimed, step sends.Step) {
	err := w.persist(func(ctx context.Context) error {
		err := w.deps.Store.Apply(ctx, c, step)
		if errors.Is(err, outbox.ErrFenced) { // our slot is another's by now: write under the one we have
			slot, e := w.slots.current(ctx)
			if e != nil {
				return e
			}
			c = c.WithSlot(slot)
		}
		return err
	})
	again := err == nil && step.State == sends.StateInTopic
	if errors.Is(err, sends.ErrLeaseLost) {
		again, err = w.stillInTopic(it)
	}
	if err != nil {
		return
	}
	w.slots.wake()
	w.at(PointWritten)
	if again {
		it.bound = ""
		if step.Uncertain {
			it.bound = c.Provider.Name()
		}
		w.requeue(it, step.Delay, !step.Counted)
		return
	}
	w.finish(it.entry)
}

// stillInTopic says that a job waits in the topic under our turn, although its
// lease is not ours: the write that we lost sight of has landed, or a sweep has
// brought nothing new. Then the record in our hand is the one that counts.
func (w *Worker) stillInTopic(it *item) (yes bool, err error) {
	err = w.persist(func(ctx context.Context) error {
		rows, err := w.deps.Store.Peek(ctx, []sends.Ref{it.ref})
		row, ok := rows[it.ref.JobID]
		yes = ok && row.Turn == it.ref.Turn && row.State == sends.StateInTopic
		return err
	})
	return yes, err
}

// requeue puts a job back: before its tenant's others where it was its turn and
// nothing was its fault, behind them after a failure, so that the probes of a
// failing provider do not spend all tries of one job.
func (w *Worker) requeue(it *item, delay time.Duration, front bool) {
	it.ready = time.Time{}
	if delay > 0 {
		it.ready = time.Now().Add(delay)
	}
	w.mu.Lock()
	it.entry.w.land(it.entry)
	if !it.entry.w.closed && !w.stopping {
		w.ring.push(it, front)
	}
	w.mu.Unlock()
	signal(w.wake)
}

// judge tells the buckets and the breaker what an answer said about the
// provider, and gives its class; "" for a success.
func (w *Worker) judge(c sends.Claimed, res provider.Result, err error, grant bucket.Answer) provider.Class {
	r := bucket.Report{Provider: c.Provider.Name(), Grant: grant, DayUsed: res.Limits.DailyUsed, MonthUsed: res.Limits.MonthlyUsed}
	class := provider.Class("")
	var pe *provider.Error
	if err != nil {
		class = provider.ClassOf(err)
		errors.As(err, &pe)
	}
	now := time.Now()
	w.mu.Lock()
	health := &w.routeTo(c.Provider.Name()).health
	switch {
	case class == "", pe != nil && pe.Recipient:
		health.succeeded()
	case class == provider.ClassRetryable, class == provider.ClassUncertain:
		health.failed(now)
	case class == provider.ClassConfiguration:
		health.stop(now, w.cfg.Recheck, pausedConfiguration)
	default:
		health.abort()
	}
	w.mu.Unlock()
	w.showRoutes(now)
	if class == provider.ClassThrottled {
		r.Throttled, r.Quota, r.RetryIn = true, pe.Quota, pe.RetryAfter
		if r.RetryIn <= 0 { // it named no wait: ours, spread over a few seconds
			r.RetryIn = time.Second + fullJitter(4*time.Second)
		}
		r.RetryIn = min(max(r.RetryIn, time.Second), 15*time.Minute)
	}
	if res.Limits == (provider.Limits{}) {
		r.DayUsed, r.MonthUsed = -1, -1 // an adapter that says nothing leaves zeros
	}
	w.deps.Limiter.Report(w.work, r)
	return class
}
