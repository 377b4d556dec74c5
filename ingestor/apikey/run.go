package apikey

import (
	"context"
	"time"

	"github.com/softcrum/carril/internal/pg"
)

// Start listens for changed keys and writes last_used_at in the background,
// until Stop; ctx only bounds the start.
func (v *Verifier) Start(ctx context.Context) error {
	ctx, v.end = context.WithCancel(context.WithoutCancel(ctx))
	if v.deps.Notifier != nil {
		v.wg.Go(func() { v.listen(ctx) })
	}
	v.wg.Go(func() { v.touchEvery(ctx) })
	return nil
}

// Stop ends the background work, waits for it until ctx ends, and writes the
// last uses. Nobody may verify any more. It is harmless twice, and before Start.
func (v *Verifier) Stop(ctx context.Context) error {
	if v.end != nil {
		v.end()
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		v.wg.Wait()
		v.touch(ctx)
	}()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// listen hears of changes over one connection after the other.
func (v *Verifier) listen(ctx context.Context) {
	pg.KeepListening(ctx, v.deps.Notifier.Listen, func() { v.cache.mistrust(v.deps.Now()) }, v.cache.changed, func(err error) {
		v.deps.Log.Warn("api keys: not hearing of revocations, which take effect when cached keys get old", "error", err)
	})
}

func (v *Verifier) touchEvery(ctx context.Context) {
	tick := time.NewTicker(v.cfg.Touch)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			bounded, cancel := context.WithTimeout(ctx, 10*time.Second)
			v.touch(bounded)
			cancel()
		case <-ctx.Done():
			return
		}
	}
}

// touch writes when keys were last used. It is a courtesy to operators: what
// fails is not tried again.
func (v *Verifier) touch(ctx context.Context) {
	used := v.cache.takeUsed()
	if len(used) == 0 {
		return
	}
	if err := v.deps.Store.Touch(ctx, used); err != nil {
		v.deps.Log.Warn("api keys: last_used_at not written", "keys", len(used), "error", err)
	}
}
