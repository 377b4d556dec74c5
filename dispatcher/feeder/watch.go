package feeder

import (
	"context"
	"time"

	"github.com/google/uuid"

	"github.com/softcrum/carril/dispatcher/blast"
)

// foldEvery is how often the counts of blasts are folded.
const foldEvery = 5 * time.Second

// tend looks after the blasts of the channel until ctx ends: begins those whose
// time has come, freezes audiences, pauses those whose outcomes would cost
// everybody the account, ends those that are done. A paused blast's batches
// that are in the topic already are held by their claim.
func (f *Feeder) tend(ctx context.Context) {
	tick := time.NewTicker(min(f.cfg.Watch, 500*time.Millisecond))
	defer tick.Stop()
	defer f.deps.Metrics.clear(f.cfg.Channel) // another process feeds it now, and says how it stands
	var watched, folded, measured time.Time
	for {
		f.try(ctx, "begin scheduled blasts", func(ctx context.Context) error {
			_, err := f.blasts.Due(ctx, f.cfg.Channel)
			return err
		})
		f.try(ctx, "freeze audiences", f.prepare)
		if time.Since(watched) >= f.cfg.Watch {
			watched = time.Now()
			f.try(ctx, "judge blasts", f.watch)
		}
		if time.Since(folded) >= foldEvery {
			folded = time.Now()
			f.try(ctx, "fold the counts of blasts", func(ctx context.Context) error {
				_, err := f.blasts.Fold(ctx)
				return err
			})
		}
		if f.deps.Metrics != nil && time.Since(measured) >= f.cfg.Measure {
			measured = time.Now()
			f.try(ctx, "look over the blasts", f.measure)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

func (f *Feeder) try(ctx context.Context, what string, do func(context.Context) error) {
	tctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	if err := do(tctx); err != nil && ctx.Err() == nil {
		f.deps.Log.Warn("blasts wait", "channel", f.cfg.Channel, "job", what, "error", err)
	}
}

// prepare freezes audiences chunk by chunk, for a while: a large one must not
// keep the others from being judged.
func (f *Feeder) prepare(ctx context.Context) error {
	for end := time.Now().Add(max(f.cfg.Watch, time.Second)); ; {
		more, err := f.blasts.Prepare(ctx, f.cfg.Channel)
		if err != nil || !more || time.Now().After(end) {
			return err
		}
	}
}

func (f *Feeder) watch(ctx context.Context) error {
	if _, err := f.blasts.Finish(ctx, f.cfg.Channel); err != nil {
		return err
	}
	paused, err := f.blasts.Watch(ctx, f.cfg.Channel)
	for _, p := range paused {
		f.tell(p.BlastID, p.TenantID, p.Reason, p.Outcomes)
	}
	return err
}

func (f *Feeder) tell(id, tenant uuid.UUID, reason string, o blast.Outcomes) {
	f.deps.Metrics.tripped(f.cfg.Channel, reason)
	f.deps.Log.Error("blast is paused for its outcomes", "blast_id", id, "tenant_id", tenant, "reason", reason,
		"outcomes", o.Reported, "bounced", o.Bounced, "complained", o.Complained)
}
