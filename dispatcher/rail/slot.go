package rail

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/softcrum/carril/dispatcher/lane"
	"github.com/softcrum/carril/dispatcher/sends"
	"github.com/softcrum/carril/internal/lease"
	"github.com/softcrum/carril/internal/outbox"
	"github.com/softcrum/carril/internal/pause"
)

// slotKeeper holds the process's place among the rail workers: a lease that is
// renewed, and the outbox lane that is written under the lease's epoch, with
// its relay. A place that was lost is replaced by another.
type slotKeeper struct {
	w *Worker

	mu      sync.Mutex
	slot    *sends.Slot
	pub     *outbox.Publisher
	changed chan struct{}
}

func newSlotKeeper(w *Worker) *slotKeeper { return &slotKeeper{w: w, changed: make(chan struct{})} }

// current waits for a slot.
func (k *slotKeeper) current(ctx context.Context) (sends.Slot, error) {
	for {
		k.mu.Lock()
		s, changed := k.slot, k.changed
		k.mu.Unlock()
		if s != nil {
			return *s, nil
		}
		select {
		case <-ctx.Done():
			return sends.Slot{}, ctx.Err()
		case <-changed:
		}
	}
}

// wake has the relay look at the lane after a commit.
func (k *slotKeeper) wake() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.pub != nil {
		k.pub.Wake()
	}
}

func (k *slotKeeper) set(s *sends.Slot, p *outbox.Publisher) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.slot, k.pub = s, p
	close(k.changed)
	k.changed = make(chan struct{})
}

// run takes a slot and keeps it, and takes another when it is lost, until ctx
// ends; then the slot is given up, so that what is left claimed can be taken
// over at once.
func (k *slotKeeper) run(ctx context.Context) {
	backoff := 50 * time.Millisecond
	for ctx.Err() == nil {
		err := k.hold(ctx)
		k.set(nil, nil)
		if ctx.Err() != nil {
			return
		}
		k.w.log.Warn("rail worker looks for a slot again", "error", err, "backoff", backoff)
		pause.For(ctx, jitter(backoff))
		backoff = min(2*backoff, 2*time.Second)
	}
}

func (k *slotKeeper) hold(ctx context.Context) error {
	pool := k.w.deps.Pool
	l, n, err := lease.TakeSlot(ctx, pool, sends.SlotPrefix, k.w.cfg.Slots, lease.Config{Holder: k.w.cfg.Owner, Life: k.w.cfg.SlotLife})
	if err != nil {
		return err
	}
	own, err := outbox.Open(ctx, pool, fmt.Sprintf("%s:%d", sends.SlotPrefix, n), outbox.StoreOutbox, l.Epoch)
	if err != nil {
		return err
	}
	pub := outbox.NewPublisher(own, outbox.PublisherConfig{}, outbox.PublisherDeps{Pool: pool, Sink: k.w.deps.Sink,
		Source: outbox.TableSource{Pool: pool}, Topic: k.w.deps.Kafka.Topic, Log: k.w.log})
	hctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	errs := make(chan error, 2)
	wg.Go(func() { errs <- l.Keep(hctx, pool); cancel() })
	wg.Go(func() { errs <- pub.Run(hctx); cancel() })
	wg.Go(func() { k.rescue(hctx) })
	k.set(&sends.Slot{N: n, Epoch: l.Epoch, Lane: own, Wake: pub.Wake}, pub)
	wg.Wait()
	err = errors.Join(<-errs, <-errs)
	rctx, done := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
	defer done()
	return errors.Join(err, l.Release(rctx, pool))
}

// rescue publishes what dead workers left in their lanes.
func (k *slotKeeper) rescue(ctx context.Context) {
	tick := time.NewTicker(k.w.cfg.SlotLife)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		n, err := lane.Rescue(ctx, sends.SlotPrefix, k.w.cfg.Owner, lane.Deps{Pool: k.w.deps.Pool, Sink: k.w.deps.Sink, Topic: k.w.deps.Kafka.Topic, Log: k.w.log})
		switch {
		case err != nil && ctx.Err() == nil:
			k.w.log.Warn("lanes of dead workers wait", "error", err)
		case n > 0:
			k.w.log.Info("lanes of dead workers are emptied", "lanes", n)
		}
	}
}
