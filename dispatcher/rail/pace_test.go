package rail

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// busy is a machine in a test: what marketing begins on it, and what else it does,
// make beats late.
type busy struct {
	now    time.Time
	most   float64 // batches a second that fill its cores; 0: there are always cores to spare
	beside float64 // of its cores that others take, 0 to 1
	hungry float64 // batches a second that each process has tokens for
	paces  []*Pace
	tokens []float64
	load   float64 // of the last second: 1 is full cores
	beats  float64 // spreads the late ones out evenly
}

func newBusy(processes int, most, hungry float64) *busy {
	m := &busy{now: time.Unix(1, 0), most: most, hungry: hungry, tokens: make([]float64, processes)}
	for range processes {
		m.paces = append(m.paces, NewPace(PaceConfig{}, PaceDeps{}))
	}
	return m
}

// run gives how many batches began a second.
func (m *busy) run(d time.Duration) float64 {
	const step = 20 * time.Millisecond
	all := 0
	for end := m.now.Add(d); m.now.Before(end); m.now = m.now.Add(step) {
		began := 0
		for i, p := range m.paces {
			m.tokens[i] = min(m.tokens[i]+m.hungry*step.Seconds(), m.hungry*step.Seconds()+1)
			for at := m.now; m.tokens[i] >= 1; {
				if at = at.Add(p.Wait(at)); at.After(m.now.Add(step)) {
					break
				}
				p.Began(at)
				m.tokens[i]--
				began++
			}
			p.heard(m.beat())
			if len(p.beats) == 25 {
				p.look()
			}
		}
		all += began
		load := m.beside
		if m.most > 0 {
			load += float64(began) / step.Seconds() / m.most
		}
		m.load += (load - m.load) / 50
	}
	return float64(all) / d.Seconds()
}

// beat is late as often as was measured: one in forty on cores that are half idle,
// every sixth on full ones.
func (m *busy) beat() time.Duration {
	share := 0.01 + 0.03*min(m.load, 0.7) + 0.5*min(max(m.load-0.7, 0), 0.5)
	if m.beats += share; m.beats >= 1 {
		m.beats--
		return 12 * time.Millisecond
	}
	return 300 * time.Microsecond
}

func TestPace(t *testing.T) {
	t.Parallel()
	t.Run("LeavesCoresToCodesWhereverThereAreTooFew", func(t *testing.T) {
		t.Parallel()
		for _, processes := range []int{1, 3} {
			m := newBusy(processes, 30, 200)
			m.run(20 * time.Second)
			for range 20 {
				got := m.run(5 * time.Second)
				require.Less(t, got, 0.97*30, "marketing fills the cores")
				require.Greater(t, got, 0.4*30, "marketing leaves what nobody wants")
			}
		}
	})
	t.Run("IsNoLimitWhereThereAreCoresToSpare", func(t *testing.T) {
		t.Parallel()
		m := newBusy(2, 0, 300)
		m.run(6 * time.Second)
		require.InDelta(t, 2*300, m.run(time.Minute), 1)
	})
	t.Run("NeverStandsStill", func(t *testing.T) {
		t.Parallel()
		m := newBusy(1, 0, 300)
		m.beside = 5
		m.run(10 * time.Second)
		for range 10 {
			require.InDelta(t, 2, m.run(10*time.Second), 0.3)
		}
	})
	t.Run("ComesBackWhenOthersAreDone", func(t *testing.T) {
		t.Parallel()
		m := newBusy(2, 100, 300)
		m.beside = 1
		m.run(30 * time.Second)
		require.Less(t, m.run(10*time.Second), 5.0)
		m.beside = 0
		m.run(40 * time.Second)
		require.Greater(t, m.run(20*time.Second), 40.0)
	})
	t.Run("IsALimitAtOnceThoughTokensHeldItBackForLong", func(t *testing.T) {
		t.Parallel()
		m := newBusy(1, 0, 4)
		m.run(10 * time.Minute)
		m.beside = 1.2
		m.run(6 * time.Second)
		require.Less(t, m.run(10*time.Second), 2.5)
	})
	t.Run("IsNotWoundUpByWhatTokensHoldBack", func(t *testing.T) {
		t.Parallel()
		p, now := NewPace(PaceConfig{}, PaceDeps{}), time.Unix(1, 0)
		for range 200 {
			for range 2 { // tokens come in twos: the second always waits for its turn
				p.Wait(now)
				p.Began(now)
			}
			for range 25 {
				p.heard(300 * time.Microsecond)
			}
			now = now.Add(500 * time.Millisecond)
			p.look()
		}
		require.LessOrEqual(t, p.rate, 16.0, "four times the four a second that began")
	})
	t.Run("BeginsAnewAfterAWhileWithoutWork", func(t *testing.T) {
		t.Parallel()
		m := newBusy(1, 0, 300)
		m.beside = 5
		m.run(time.Minute)
		m.beside, m.load = 0, 0
		m.now = m.now.Add(time.Minute)
		m.run(6 * time.Second)
		require.InDelta(t, 300, m.run(10*time.Second), 1)
	})
	t.Run("TakesAsUsualWhatIsUsual", func(t *testing.T) {
		t.Parallel()
		p := NewPace(PaceConfig{}, PaceDeps{})
		for range 20 {
			for i := range 25 { // a database far away, over a line that is not always as quick
				p.heard(time.Duration(4+i%4) * time.Millisecond)
			}
			_, share := p.look()
			require.Zero(t, share)
		}
	})
}

// A beat is a timer and a round trip; where nobody has marketing to send there is none.
func TestPaceRun(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		var took time.Duration
		var fails error
		pings := 0
		p := NewPace(PaceConfig{}, PaceDeps{Ping: func(context.Context) error {
			pings++
			time.Sleep(took)
			return fails
		}})
		done := make(chan error, 1)
		go func() { done <- p.Run(ctx) }()
		time.Sleep(time.Minute)
		require.Zero(t, pings, "nobody asked")

		hungry := func(d time.Duration) (began int) {
			for end := time.Now().Add(d); time.Now().Before(end); {
				if wait := p.Wait(time.Now()); wait > 0 {
					time.Sleep(wait)
					continue
				}
				p.Began(time.Now())
				began++
				time.Sleep(time.Millisecond) // for its token
			}
			return began
		}
		hungry(10 * time.Second)
		require.Greater(t, pings, 400)
		require.Greater(t, hungry(time.Second), 900, "the machine is never late")
		fails = errors.New("the database is away")
		hungry(30 * time.Second)
		require.Less(t, hungry(10*time.Second), 25)
		fails, took = nil, time.Millisecond
		hungry(5 * time.Minute)
		require.Greater(t, hungry(time.Second), 100)

		time.Sleep(5 * time.Second)
		pings = 0
		time.Sleep(time.Minute)
		require.Zero(t, pings, "nobody asks any more")
		cancel()
		require.NoError(t, <-done)
	})
}
