package rail

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// simulate runs a transactional rail with one server queue at a rate, and gives
// the share of the time during which marketing may run, by half seconds.
func simulate(t *testing.T, rate float64, send time.Duration, dur time.Duration, next func() time.Duration) (share float64, yields int) {
	t.Helper()
	cfg := YieldConfig{SendP95: send}.withDefaults()
	d := decision{cfg: cfg}
	start := time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC)
	type rec struct{ in, committed time.Time }
	var recs []rec
	free := start
	for at := start.Add(next()); at.Before(start.Add(dur)); at = at.Add(next()) {
		leave := at
		if free.After(leave) {
			leave = free
		}
		free = leave.Add(time.Duration(float64(time.Second) / rate))
		recs = append(recs, rec{at, leave.Add(send).Truncate(cfg.Commit).Add(cfg.Commit)})
	}
	running, samples, was, lo := 0, 0, false, 0
	for now := start; now.Before(start.Add(dur)); now = now.Add(500 * time.Millisecond) {
		for lo < len(recs) && !recs[lo].committed.After(now) {
			lo++
		}
		r := reading{at: now, young: true}
		for _, x := range recs[lo:] {
			if x.in.After(now) {
				break
			}
			if x.committed.After(now) {
				r.lag++
				r.old = r.old || now.Sub(x.in) > cfg.yieldAt()
				r.young = r.young && now.Sub(x.in) < cfg.resumeAt(rate)
			}
		}
		r.drain = time.Duration(float64(r.lag) / rate * float64(time.Second))
		yield, _ := d.see(r, rate)
		if !yield {
			running++
		}
		if yield && !was {
			yields++
		}
		was = yield
		samples++
	}
	return float64(running) / float64(samples), yields
}

func poisson(rng *rand.Rand, perSecond float64) func() time.Duration {
	return func() time.Duration {
		return time.Duration(-math.Log(1-rng.Float64()) / perSecond * float64(time.Second))
	}
}

func every(d time.Duration) func() time.Duration { return func() time.Duration { return d } }

func TestDecision(t *testing.T) {
	t.Parallel()
	// I48
	t.Run("LetsMarketingRunBesideOneCodeASecondForAnHour", func(t *testing.T) {
		t.Parallel()
		share, _ := simulate(t, 4.5, 300*time.Millisecond, time.Hour, every(time.Second))
		require.Greater(t, share, 0.99)
		share, _ = simulate(t, 4.5, 300*time.Millisecond, time.Hour, poisson(rand.New(rand.NewPCG(7, 7)), 1))
		require.Greater(t, share, 0.9)
	})
	t.Run("LetsMarketingRunWithoutAnyTransactionalTraffic", func(t *testing.T) {
		t.Parallel()
		share, yields := simulate(t, 4.5, 300*time.Millisecond, time.Minute, every(2*time.Minute))
		require.Zero(t, yields)
		require.EqualValues(t, 1, share)
	})
	// I11
	t.Run("ResumesBesideAHealthyRailWithinTenSeconds", func(t *testing.T) {
		t.Parallel()
		cfg := YieldConfig{}.withDefaults()
		d := decision{cfg: cfg}
		at := time.Now()
		yield, reason := d.see(reading{at: at, old: true}, 10)
		require.True(t, yield)
		require.Equal(t, "age", reason)
		for i := range 20 { // five codes a second, of which two or three are always on their way
			at = at.Add(500 * time.Millisecond)
			yield, _ = d.see(reading{at: at, young: true, lag: int64(2 + i%2), drain: time.Duration(2+i%2) * 100 * time.Millisecond}, 10)
		}
		require.False(t, yield)
	})
	t.Run("YieldsAtATimeToStarveOnNoMatterHowFewRecords", func(t *testing.T) {
		t.Parallel()
		d := decision{cfg: YieldConfig{}.withDefaults()}
		yield, reason := d.see(reading{at: time.Now(), old: true, lag: 1}, 1000)
		require.True(t, yield)
		require.Equal(t, "age", reason)
	})
	t.Run("YieldsToEachSignal", func(t *testing.T) {
		t.Parallel()
		for why, r := range map[string]reading{
			"age": {old: true}, "depth": {young: true, lag: 1000}, "drain": {young: true, lag: 5, drain: 1100 * time.Millisecond},
			"waiting": {young: true, waiting: time.Second}, "blind: kafka": {blind: "kafka"},
		} {
			d := decision{cfg: YieldConfig{}.withDefaults()}
			r.at = time.Now()
			yield, reason := d.see(r, 1e9)
			require.True(t, yield, why)
			require.Equal(t, why, reason)
		}
	})
	t.Run("StaysForTwoSecondsAndUntilAllHasBeenWellForAWhile", func(t *testing.T) {
		t.Parallel()
		d := decision{cfg: YieldConfig{}.withDefaults()}
		at := time.Now()
		d.see(reading{at: at, old: true}, 10)
		for range 3 { // well for long enough at the second, and two seconds are not over
			at = at.Add(500 * time.Millisecond)
			yield, _ := d.see(reading{at: at, young: true}, 10)
			require.True(t, yield)
		}
		at = at.Add(500 * time.Millisecond)
		d.see(reading{at: at, young: false}, 10) // between the thresholds: the count begins again
		at = at.Add(500 * time.Millisecond)
		still, _ := d.see(reading{at: at, young: true}, 10)
		require.True(t, still)
		at = at.Add(500 * time.Millisecond)
		yield, _ := d.see(reading{at: at, young: true}, 10)
		require.False(t, yield)
	})
}
