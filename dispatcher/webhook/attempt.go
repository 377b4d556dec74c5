package webhook

import (
	"context"
	"errors"
	"time"

	"github.com/softcrum/carril/dispatcher/webhook/guard"
)

// attempt makes one attempt and judges it. What never leaves because of us is
// released: it costs the endpoint nothing.
func (d *Dispatcher) attempt(ctx context.Context, targets *targetCache, it *delivery) verdict {
	if !d.enter(ctx) {
		return d.ours(guard.ClassCanceled)
	}
	defer d.leave()
	t, err := targets.get(ctx)
	switch {
	case errors.Is(err, errSealed):
		d.log.Error("webhook secrets do not open under the configured keys", "endpoint_id", it.endpoint, "error", err)
		return d.ours(classNoKey)
	case err != nil:
		return d.ours(classNoTarget)
	case !t.usable:
		return verdict{outcome: cancelled, class: classNoTarget}
	case time.Until(it.leaseEnd) < d.deadline+margin:
		return verdict{outcome: released} // it waited too long in memory
	}
	now := time.Now()
	header, err := t.sign(d.deps.Keys, it.endpoint, it.id.String(), now, it.body)
	if err != nil {
		return d.ours(classNoKey)
	}
	answer, err := d.client.Post(ctx, t.url, header, it.body)
	v := d.judge(it, t.url, answer, err)
	d.metrics.attempted(v)
	d.log.Debug("webhook attempt", "tenant_id", it.tenant, "endpoint_id", it.endpoint, "delivery_id", it.id, "event_type", it.eventType,
		"attempt", it.attempts+1, "class", v.class, "status", v.status, "duration_ms", v.took.Milliseconds(), "counted", v.asked)
	return v
}

// ours is the verdict on what never left.
func (d *Dispatcher) ours(class guard.Class) verdict {
	v := d.blameless(class)
	d.metrics.attempted(v)
	return v
}

// enter waits for one of the process's attempts to be free.
func (d *Dispatcher) enter(ctx context.Context) bool {
	select {
	case d.slots <- struct{}{}:
		return ctx.Err() == nil || d.exit()
	case <-ctx.Done():
		return false
	}
}

func (d *Dispatcher) exit() bool { d.leave(); return false }

func (d *Dispatcher) leave() { <-d.slots }
