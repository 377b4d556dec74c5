package lease_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/softcrum/carril/internal/lease"
	"github.com/softcrum/carril/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

func TestLease(t *testing.T) {
	t.Parallel()
	t.Run("IsHeldByOneAndFencedByItsEpoch", func(t *testing.T) {
		t.Parallel()
		pool := testkit.Pool(t)
		cfg := lease.Config{Name: "x", Holder: "a", Life: time.Hour}
		first, err := lease.Take(t.Context(), pool, cfg)
		require.NoError(t, err)
		_, err = lease.Take(t.Context(), pool, cfg)
		require.ErrorIs(t, err, lease.ErrHeld)
		_, err = pool.Exec(t.Context(), `UPDATE core.leases SET until = now()`) // its life is over
		require.NoError(t, err)
		second, err := lease.Take(t.Context(), pool, cfg)
		require.NoError(t, err)
		require.Equal(t, first.Epoch+1, second.Epoch)
		require.ErrorIs(t, first.Renew(t.Context(), pool), lease.ErrLost)
		require.NoError(t, first.Release(t.Context(), pool))
		require.NoError(t, second.Renew(t.Context(), pool), "a former holder releases nothing")
		_, err = lease.Take(t.Context(), pool, cfg)
		require.ErrorIs(t, err, lease.ErrHeld)
	})
	t.Run("GivesEachProcessASlotOfItsOwn", func(t *testing.T) {
		t.Parallel()
		pool := testkit.Pool(t)
		seen := map[int]bool{}
		for range 3 {
			_, n, err := lease.TakeSlot(t.Context(), pool, "s", 3, lease.Config{Holder: "a", Life: time.Minute})
			require.NoError(t, err)
			require.False(t, seen[n])
			seen[n] = true
		}
		_, _, err := lease.TakeSlot(t.Context(), pool, "s", 3, lease.Config{Holder: "a"})
		require.ErrorIs(t, err, lease.ErrHeld)
	})
	t.Run("RunsOneOfManyAndHandsOver", func(t *testing.T) {
		t.Parallel()
		pool := testkit.Pool(t)
		var running, most, turns atomic.Int32
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 3)
		for range 3 {
			go func() {
				done <- lease.Run(ctx, pool, lease.Config{Name: "y", Life: 250 * time.Millisecond}, testkit.Logger(t), func(ctx context.Context, _ *lease.Lease) error {
					most.Store(max(most.Load(), running.Add(1)))
					defer running.Add(-1)
					turns.Add(1)
					return errors.New("this turn is over")
				})
			}()
		}
		require.Eventually(t, func() bool { return turns.Load() >= 5 }, 60*time.Second, 10*time.Millisecond)
		cancel()
		for range 3 {
			require.NoError(t, <-done)
		}
		require.EqualValues(t, 1, most.Load())
	})
}
