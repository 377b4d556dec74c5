package bench

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// takes is an op that takes d.
func takes(d time.Duration) Op {
	return func(context.Context) error { time.Sleep(d); return nil }
}

func TestClosed(t *testing.T) {
	t.Parallel()

	t.Run("CountsWhatEndsInTime", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			s := Closed(t.Context(), []Op{takes(100 * time.Millisecond), takes(300 * time.Millisecond)}, time.Second)
			require.EqualValues(t, 10+3, s.Latency.Count())
			require.InDelta(t, 13, s.Rate(), 0.01)
			require.Equal(t, 300*time.Millisecond, s.Latency.Max())
			require.Zero(t, s.Failed())
		})
	})

	t.Run("CountsErrorsByClassAndKeepsThemOutOfTheRate", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			var n int
			op := func(context.Context) error {
				time.Sleep(100 * time.Millisecond)
				if n++; n%2 == 0 {
					return &StatusError{Status: 429}
				}
				return nil
			}
			s := Closed(t.Context(), []Op{op}, time.Second)
			require.Equal(t, map[string]uint64{"http_429": 4}, s.Errors)
			require.EqualValues(t, 5, s.Latency.Count())
		})
	})

	t.Run("CountsAWorkersFirstEvenWhenItEndsLate", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			s := Closed(t.Context(), []Op{takes(3 * time.Second), takes(400 * time.Millisecond)}, time.Second)
			require.EqualValues(t, 1+2, s.Latency.Count())
			require.Equal(t, 3*time.Second, s.Elapsed)
		})
	})

	t.Run("EndsWithItsContext", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 250*time.Millisecond)
			defer cancel()
			s := Closed(ctx, []Op{takes(100 * time.Millisecond)}, time.Hour)
			require.EqualValues(t, 2, s.Latency.Count())
			require.Less(t, s.Elapsed, time.Second)
		})
	})
}

func TestOpenLoop(t *testing.T) {
	t.Parallel()

	t.Run("KeepsItsRateWithoutDrift", func(t *testing.T) {
		t.Parallel()
		require.Equal(t, time.Duration(0), dueAfter(0, 3))
		require.Equal(t, 1000*time.Second, dueAfter(3000, 3))
		synctest.Test(t, func(t *testing.T) {
			l := OpenLoop{Rate: 300, Duration: 2 * time.Second, Sleep: time.Sleep}
			s := l.Run(t.Context(), []Op{takes(time.Millisecond), takes(time.Millisecond)})
			require.EqualValues(t, 600, s.Latency.Count())
			require.InDelta(t, 300, s.Rate(), 0.5)
			require.LessOrEqual(t, s.Latency.Max(), 1001*time.Microsecond)
			require.Less(t, s.Late.Max(), time.Microsecond)
		})
	})

	// One stall of a second: a closed loop would see one slow operation; here
	// each of the hundred that fell due meanwhile has waited.
	t.Run("ChargesAStallToEveryOperationThatItDelays", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			var n int
			op := func(context.Context) error {
				if n++; n == 100 {
					time.Sleep(time.Second)
				}
				return nil
			}
			l := OpenLoop{Rate: 100, Duration: 5 * time.Second, Sleep: time.Sleep}
			s := l.Run(t.Context(), []Op{op})
			require.EqualValues(t, 500, s.Latency.Count())
			require.Equal(t, time.Second, s.Latency.Max())
			require.InDelta(t, float64(750*time.Millisecond), float64(s.Latency.Quantile(0.95)), float64(20*time.Millisecond))
			require.Zero(t, s.Latency.Quantile(0.79))
		})
	})

	t.Run("CountsWhatWasNeverStarted", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			l := OpenLoop{Rate: 100, Duration: time.Second, Drain: time.Second, Sleep: time.Sleep}
			s := l.Run(t.Context(), []Op{takes(300 * time.Millisecond)})
			require.EqualValues(t, 100, s.Latency.Count()+s.Failed())
			require.EqualValues(t, 7, s.Latency.Count())
			require.EqualValues(t, 93, s.Errors["not_started"])
		})
	})

	t.Run("LeavesNoOperationOutWhenItsContextEnds", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			var calls atomic.Int64
			l := OpenLoop{Rate: 10, Duration: time.Minute, Sleep: time.Sleep}
			s := l.Run(ctx, []Op{func(context.Context) error { calls.Add(1); return errors.New("no") }})
			require.EqualValues(t, 600, s.Failed())
			require.EqualValues(t, calls.Load(), s.Errors["failed"])
			require.Less(t, s.Elapsed, 2*time.Minute)
		})
	})
}

func TestSleepPrecisely(t *testing.T) {
	t.Parallel()
	start := time.Now()
	sleepPrecisely(2 * time.Millisecond)
	require.GreaterOrEqual(t, time.Since(start), 2*time.Millisecond)
}
