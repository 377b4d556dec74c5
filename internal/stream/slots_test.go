package stream

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestSlots(t *testing.T) {
	few := func(c *Config, d *Deps) {
		c.MaxRecords, c.CatchupRecords = 10, 50
		d.Slots = NewSlots(1)
	}

	t.Run("ApplyOneLargeBatchAtATime", func(t *testing.T) {
		t.Parallel()
		b := newBench(t, 4)
		var large, now, most atomic.Int64
		b.stage.hook = func(_ context.Context, batch *Batch) error {
			if len(batch.Records) <= 10 {
				return nil
			}
			large.Add(1)
			most.Store(max(most.Load(), now.Add(1)))
			time.Sleep(2 * time.Millisecond) // room for another that does not wait
			now.Add(-1)
			return nil
		}
		for p := range int32(4) {
			b.send(p, values(fmt.Sprint("p", p), 400)...)
		}
		b.loop(few)
		b.awaitEffects(1600)
		require.Greater(t, large.Load(), int64(10))
		require.EqualValues(t, 1, most.Load())
	})

	t.Run("LetSmallBatchesPass", func(t *testing.T) {
		t.Parallel()
		b := newBench(t, 2)
		held, passed := make(chan struct{}), make(chan struct{})
		var once sync.Once
		b.stage.hook = func(ctx context.Context, batch *Batch) error {
			if batch.Partition == 1 {
				once.Do(func() { close(passed) })
				return nil
			}
			if len(batch.Records) > 10 {
				select {
				case held <- struct{}{}:
				case <-passed:
				}
				select {
				case <-passed:
				case <-ctx.Done():
					return ctx.Err()
				}
			}
			return nil
		}
		b.send(0, values("large", 400)...)
		b.loop(few)
		select {
		case <-held: // the slot is taken
		case <-time.After(time.Minute):
			require.FailNow(t, "no large batch came")
		}
		b.send(1, "small")
		b.awaitEffects(401)
	})
}
