package webhook

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/softcrum/carril/dispatcher/webhook/guard"
	"github.com/softcrum/carril/internal/ids"
)

// stand is a lane whose attempts are decided by the test: what it spawns is kept
// and never run.
type stand struct {
	*lane
	d       *Dispatcher
	spawned int
}

func newStand(cfg Config) *stand {
	d := &Dispatcher{cfg: cfg.withDefaults(), deadline: 15 * time.Second, slots: make(chan struct{}, 1)}
	d.lanes = &lanes{d: d}
	d.settler = newSettler(d)
	d.metrics = newMetrics(prometheus.NewRegistry(), func() float64 { return 0 })
	s := &stand{d: d}
	d.lanes.start(context.Background())
	d.lanes.spawn = func(func(context.Context)) { s.spawned++ }
	s.lane = d.lanes.get(ids.New())
	return s
}

// direct is a delivery straight from the stage, about somebody.
func (s *stand) direct(about string, seq int64) *delivery {
	return &delivery{id: ids.New(), endpoint: s.endpoint, orderKey: about, seq: seq, body: []byte("{}"), leased: true, leaseEnd: time.Now().Add(time.Minute)}
}

func (s *stand) claimed(about string, seq int64) *delivery {
	it := s.direct(about, seq)
	it.claimed = true
	return it
}

// results are what the lane wants written since the last call.
func (s *stand) results() []result {
	s.d.settler.mu.Lock()
	defer s.d.settler.mu.Unlock()
	out := s.d.settler.pending
	s.d.settler.pending = nil
	return out
}

var (
	success = verdict{outcome: delivered, asked: true, class: classDelivered, took: time.Millisecond}
	failure = verdict{outcome: retried, asked: true, class: classStatus, wait: time.Minute, took: time.Millisecond}
)

func TestLane(t *testing.T) {
	t.Parallel()

	t.Run("OneOfAKeyAtATime", func(t *testing.T) {
		t.Parallel()
		s := newStand(Config{})
		a1, a2, b1 := s.direct("a", 1), s.direct("a", 2), s.direct("b", 1)
		s.hand([]*delivery{a1, a2, b1})
		require.Equal(t, 2, s.spawned)
		s.ended(b1, success)
		require.Equal(t, 2, s.spawned)
		s.ended(a1, success)
		require.Equal(t, 3, s.spawned)
	})

	t.Run("WhatStandsBehindAFailureGoesBackWithIt", func(t *testing.T) {
		t.Parallel()
		s := newStand(Config{})
		a1, a2, a3, b1 := s.direct("a", 1), s.direct("a", 2), s.direct("a", 3), s.direct("b", 1)
		s.hand([]*delivery{a1, a2, a3, b1})
		s.ended(a1, failure)
		got := s.results()
		require.Len(t, got, 3)
		require.Equal(t, retried, got[0].verdict.outcome)
		for i, it := range []*delivery{a2, a3} {
			require.Same(t, it, got[i+1].it)
			require.Equal(t, released, got[i+1].verdict.outcome)
			require.Same(t, a1, got[i+1].head)
			require.False(t, got[i+1].verdict.asked)
		}
		late := s.direct("a", 4) // its batch had not seen the failure yet
		s.hand([]*delivery{late})
		require.Same(t, late, s.results()[0].it, "it may not overtake")
		s.hand([]*delivery{s.claimed("a", 1), s.direct("a", 5)})
		require.Empty(t, s.results(), "the table has given the key's head again")
	})

	t.Run("FailuresNarrowIt_SuccessWidensIt", func(t *testing.T) {
		t.Parallel()
		s := newStand(Config{Concurrency: 16, BreakAfter: 1000})
		require.Equal(t, firstLimit, s.limit)
		for i := range 20 {
			it := s.direct(fmt.Sprint(i), 1)
			s.hand([]*delivery{it})
			s.ended(it, success)
		}
		require.Equal(t, 16, s.limit)
		for i, want := range []int{8, 4, 2, 1, 1} {
			it := s.direct(fmt.Sprint("x", i), 1)
			s.hand([]*delivery{it})
			s.ended(it, failure)
			require.Equal(t, want, s.limit, "a dead endpoint holds few attempts")
		}
		it := s.direct("ours", 1)
		s.hand([]*delivery{it})
		s.ended(it, verdict{outcome: released, class: string(guard.ClassDNSAway), wait: time.Second})
		require.Equal(t, 1, s.limit, "what was our fault teaches nothing")
	})

	t.Run("AnOpenBreakerEmptiesItAndThenProbesByOne", func(t *testing.T) {
		t.Parallel()
		s := newStand(Config{BreakAfter: 3, BreakMin: time.Hour, BreakMax: time.Hour})
		var its []*delivery
		for i := range 10 {
			its = append(its, s.direct(fmt.Sprint(i), 1))
		}
		s.hand(its)
		for i := range 3 {
			s.ended(its[i], failure)
		}
		require.Zero(t, s.room())
		before := s.spawned
		back := s.results()
		require.Len(t, back, 3+10-before, "all but what is on its way is back")
		require.InDelta(t, time.Hour, back[len(back)-1].verdict.wait, float64(time.Minute))
		s.poke()
		require.Equal(t, before, s.spawned)
		s.breaker.until = time.Now()
		for _, it := range its[3:before] {
			s.ended(it, verdict{outcome: released})
		}
		s.breaker.until = time.Now()
		s.poke()
		require.Equal(t, before+1, s.spawned, "a claim")
		s.claiming, s.backlog = false, true
		require.Equal(t, 1, s.wants(1), "of one row")
		require.Zero(t, s.room())
	})

	t.Run("ItTakesWhatItCanServeWithinItsLeases", func(t *testing.T) {
		t.Parallel()
		s := newStand(Config{})
		fast := s.room()
		s.latency = 5 * time.Second
		require.Equal(t, 8, s.room(), "four at once, two after each other in ten seconds")
		s.latency = time.Minute
		require.Equal(t, firstLimit, s.room())
		require.Greater(t, fast, 100)
	})

	t.Run("MemoryHasABound", func(t *testing.T) {
		t.Parallel()
		s := newStand(Config{QueueBytes: 10})
		var ds []*delivery
		for i := range 20 {
			d := s.direct(fmt.Sprint(i), int64(i))
			d.leased = false
			ds = append(ds, d)
		}
		s.d.lanes.reserve(ds, map[uuid.UUID]bool{})
		for i, d := range ds {
			require.Equal(t, i < 5, d.leased, "2 bytes each, and those behind wait with it")
		}
		s.d.lanes.reserve(ds, map[uuid.UUID]bool{s.endpoint: true})
		require.False(t, ds[0].leased, "rows elsewhere go first")
	})

	t.Run("NothingIsLostOrDoubledInMemory", func(t *testing.T) {
		rapid.Check(t, func(t *rapid.T) {
			s := newStand(Config{BreakAfter: 4, BreakMin: time.Nanosecond, BreakMax: time.Nanosecond})
			running, out := map[*delivery]bool{}, map[*delivery]int{}
			handed, seq := 0, int64(0)
			lastOf := map[string]int64{}
			for range rapid.IntRange(1, 80).Draw(t, "steps") {
				if rapid.Bool().Draw(t, "hand") {
					seq++
					it := s.direct(rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "key"), seq)
					it.claimed = rapid.Bool().Draw(t, "claimed")
					handed++
					s.hand([]*delivery{it})
				} else if len(running) > 0 {
					var pick *delivery
					for it := range running {
						if pick == nil || it.seq < pick.seq {
							pick = it
						}
					}
					delete(running, pick)
					s.ended(pick, rapid.SampledFrom([]verdict{success, success, failure, {outcome: released}, {outcome: failed, asked: true}}).Draw(t, "verdict"))
				}
				for _, r := range s.results() {
					out[r.it]++
				}
				busy := map[string]bool{}
				s.mu.Lock()
				for key, q := range s.queues {
					if q.busy {
						require.False(t, busy[key])
						busy[key] = true
						if !running[q.items[0]] {
							require.Greater(t, q.items[0].seq, lastOf[key], "a key goes forward")
							lastOf[key] = q.items[0].seq
						}
						running[q.items[0]] = true
					}
				}
				inMemory := 0
				for _, q := range s.queues {
					inMemory += len(q.items)
				}
				require.Len(t, s.held, inMemory)
				require.Equal(t, len(running), s.inflight)
				require.Equal(t, inMemory-len(running), s.queued)
				require.EqualValues(t, 2*inMemory, s.d.lanes.bytes.Load())
				s.mu.Unlock()
				require.Equal(t, handed, inMemory+len(out))
				for _, n := range out {
					require.Equal(t, 1, n)
				}
			}
		})
	})
}
