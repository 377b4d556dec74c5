package rail_test

import (
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/softcrum/carril/dispatcher/provider"
	"github.com/softcrum/carril/dispatcher/rail"
	"github.com/softcrum/carril/dispatcher/sends"
	"github.com/softcrum/carril/schemas"
)

// second makes another provider beside the bench's.
func second() *fake {
	f := newFake()
	f.name = "second"
	return f
}

// everybodyOnce wants each send to have been delivered by one of the providers,
// once.
func everybodyOnce(t *testing.T, all []uuid.UUID, providers ...*fake) {
	t.Helper()
	for _, id := range all {
		n := 0
		for _, p := range providers {
			n += p.delivered(id)
		}
		require.Equal(t, 1, n, "send %s", id)
	}
}

// sentJobs counts the jobs that are done.
func (b *bench) sentJobs() int {
	return b.count(`SELECT count(*) FROM core.processed_jobs WHERE id_time > now() - interval '1 day' AND starts_with(worker, 'rail:') AND state = 'sent'`)
}

// What is known not taken goes by another provider when the first is out of
// order, what may have been taken stays, and nobody gets two (I46, F30, F31).
func TestFailover(t *testing.T) {
	t.Parallel()

	for _, r := range []string{schemas.RailTransactional, schemas.RailMarketing} {
		t.Run("SendsWhatWasNotTakenByTheOther_"+r, func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			b.sweep()
			other := second()
			var up atomic.Bool
			down := provider.Error{Class: provider.ClassRetryable, Code: "connect"}
			b.fake.set(func(n int, req provider.Request) (provider.Result, error) {
				switch {
				case up.Load():
					return b.fake.take(req)
				case n <= 2: // the last that it took before it went down; nobody heard
					return b.fake.takenButLost(req)
				default:
					return provider.Result{}, &down
				}
			})
			var all []uuid.UUID
			send := func(n int) {
				if r == schemas.RailTransactional {
					all = append(all, b.enqueue(make([]job, n)...)...)
					return
				}
				for range n {
					_, ids := b.enqueueBatch(b.tenant, 3, nil)
					all = append(all, ids...)
				}
			}
			send(20)
			jobs := 20
			b.start(setup{rail: r, others: []provider.Provider{other}, cfg: func(c *rail.Config) { c.Tries, c.BackoffMax, c.Concurrency = 1000, 200*time.Millisecond, 4 }})
			b.eventually("the other takes what is not uncertain", func() bool { return b.sentJobs() >= jobs-2 })
			require.Equal(t, jobs-2, b.sentJobs(), "what may have been taken is not sent by the other")
			_, people := other.count()
			require.Equal(t, len(all)*(jobs-2)/jobs, people)
			up.Store(true)
			b.await(jobs, "sent")
			everybodyOnce(t, all, b.fake, other)
			require.Empty(t, b.fake.twice())
			for _, id := range all {
				if b.fake.delivered(id) > 0 {
					require.Equal(t, 1, b.fake.keysOf(id), "the same key until it was settled")
					require.Zero(t, other.keysOf(id))
				}
			}
			before, _ := other.count()
			send(20)
			jobs += 20
			b.await(jobs, "sent")
			everybodyOnce(t, all, b.fake, other)
			after, _ := other.count()
			require.LessOrEqual(t, after-before, 4, "the first is used again")
			require.Equal(t, len(all), b.count(`SELECT count(DISTINCT send_id) FROM messaging.provider_messages`))
		})
	}

	t.Run("FollowsARefusedAccountAtOnce", func(t *testing.T) {
		t.Parallel()
		b := newBench(t)
		b.sweep()
		other := second()
		b.fake.set(func(int, provider.Request) (provider.Result, error) {
			return provider.Result{}, &provider.Error{Class: provider.ClassConfiguration, Status: 401, Code: "invalid_api_key"}
		})
		all := b.enqueue(make([]job, 10)...)
		b.start(setup{others: []provider.Provider{other}, cfg: func(c *rail.Config) { c.Concurrency = 1 }})
		b.await(10, "sent")
		everybodyOnce(t, all, other)
		require.Zero(t, b.count(`SELECT coalesce(sum(attempts), 0)::int FROM core.processed_jobs WHERE id_time > now() - interval '1 day' AND worker = 'rail:email.transactional'`))
		requests, _ := b.fake.count()
		require.Equal(t, 1, requests)
	})

	t.Run("DoesNotFollowAThrottleOrARecipientsOwnFailure", func(t *testing.T) {
		t.Parallel()
		b := newBench(t)
		b.sweep()
		other := second()
		b.fake.set(func(n int, req provider.Request) (provider.Result, error) {
			switch {
			case n <= 8:
				return provider.Result{}, &provider.Error{Class: provider.ClassRetryable, Status: 450, Code: "try_later", Recipient: true}
			case n <= 10:
				return provider.Result{}, &provider.Error{Class: provider.ClassThrottled, Status: 429, Code: "rate_limit_exceeded", RetryAfter: time.Second}
			default:
				return b.fake.take(req)
			}
		})
		all := b.enqueue(make([]job, 5)...)
		b.start(setup{others: []provider.Provider{other}, cfg: func(c *rail.Config) { c.Tries, c.BackoffMax = 1000, 100*time.Millisecond }})
		b.await(5, "sent")
		everybodyOnce(t, all, b.fake)
		requests, _ := other.count()
		require.Zero(t, requests)
	})

	t.Run("HoldsWhileBothAreOutOfOrder", func(t *testing.T) {
		t.Parallel()
		b := newBench(t)
		b.sweep()
		other := second()
		var up atomic.Bool
		for _, f := range []*fake{b.fake, other} {
			f.set(func(_ int, req provider.Request) (provider.Result, error) {
				if f == other && up.Load() {
					return f.take(req)
				}
				return provider.Result{}, &provider.Error{Class: provider.ClassRetryable, Code: "connect"}
			})
		}
		all := b.enqueue(make([]job, 30)...)
		b.start(setup{others: []provider.Provider{other}, cfg: func(c *rail.Config) { c.Tries, c.BackoffMax = 1000, 100*time.Millisecond }})
		b.eventually("both are tried", func() bool {
			x, _ := b.fake.count()
			y, _ := other.count()
			return x >= 5 && y >= 5
		})
		up.Store(true)
		b.await(30, "sent")
		everybodyOnce(t, all, other)
	})

	// A job that was put aside while its outcome was unknown comes back to a rail
	// that uses the other provider by now: its bytes go where they belong, under a
	// token of that bucket.
	t.Run("TakesWhatWasPutAsideBackToItsProvider", func(t *testing.T) {
		t.Parallel()
		b := newBench(t)
		b.sweep()
		other := second()
		var up atomic.Bool
		b.fake.set(func(n int, req provider.Request) (provider.Result, error) {
			switch {
			case up.Load():
				return b.fake.take(req)
			case n == 1:
				return b.fake.takenButLost(req)
			default:
				return provider.Result{}, &provider.Error{Class: provider.ClassConfiguration, Status: 401, Code: "invalid_api_key"}
			}
		})
		metrics := rail.NewMetrics(prometheus.NewRegistry(), []string{"email"})
		first := b.enqueue(job{})
		b.start(setup{others: []provider.Provider{other}, metrics: metrics, cfg: func(c *rail.Config) {
			c.Concurrency, c.Budget, c.Backoff, c.Tries, c.Recheck = 1, time.Millisecond, time.Second, 1000, time.Hour
		}})
		b.eventually("it is put aside", func() bool {
			return b.count(`SELECT count(*) FROM core.processed_jobs WHERE id_time > now() - interval '1 day' AND attempts > 0`) == 1
		})
		all := append(first, b.enqueue(make([]job, 5)...)...)
		b.await(5, "sent")
		b.eventually("it came back and was not given to the other", func() bool { return metrics.Rerouted("email", schemas.RailTransactional) > 0 })
		require.Zero(t, other.keysOf(first[0]))
		require.Equal(t, 1, b.fake.keysOf(first[0]))
		for _, id := range all[1:] {
			require.Equal(t, 1, other.delivered(id))
		}
		require.Equal(t, 1, b.fake.delivered(first[0]))
	})

	t.Run("IsSeenInTheHealthOfTheQueues", func(t *testing.T) {
		t.Parallel()
		b := newBench(t)
		b.sweep()
		other := second()
		b.fake.set(func(int, provider.Request) (provider.Result, error) {
			return provider.Result{}, &provider.Error{Class: provider.ClassConfiguration, Status: 401, Code: "invalid_api_key"}
		})
		b.enqueue(job{})
		b.start(setup{others: []provider.Provider{other}})
		b.await(1, "sent")
		d := b.healthDeps("fake")
		b.eventually("the worker says which it uses", func() bool {
			h := rail.Health(t.Context(), d)
			p := h.Channels[0].Rails[0].Providers
			return len(p) == 2 && p[1].InUse && !p[0].InUse && p[0].State == "open" && p[0].Reason == "configuration" && p[1].State == "closed"
		})
	})
}

// A provider without keys gets an uncertain request again as often as the rail's
// policy says, and not once more; an attempt that reached nobody is none.
func TestUncertainRepeats(t *testing.T) {
	t.Parallel()
	once := func(c *sends.Config) { c.UncertainRepeats = 1 }

	t.Run("OnceThenItIsForAPerson", func(t *testing.T) {
		t.Parallel()
		b := newBench(t)
		b.sweep()
		b.fake.caps.IdempotencyKeys = false
		b.fake.next(b.fake.takenButLost, b.fake.takenButLost)
		id := b.enqueue(job{})[0]
		b.start(setup{store: once})
		b.await(1, "needs_review")
		require.Equal(t, 2, b.fake.delivered(id))
		require.Equal(t, 1, b.count(`SELECT count(*) FROM core.dead_letters WHERE class = 'outcome_unknown' AND send_id = $1`, id))
	})

	for name, refusal := range map[string]provider.Error{
		"connect":   {Class: provider.ClassRetryable, Code: "connect"},
		"throttled": {Class: provider.ClassThrottled, Status: 421, Code: "throttled", RetryAfter: time.Second},
		"auth":      {Class: provider.ClassConfiguration, Status: 535, Code: "smtp_auth_failed"},
	} {
		t.Run(fmt.Sprintf("AreNotUsedUpBy_%s", name), func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			b.sweep()
			b.fake.caps.IdempotencyKeys = false
			lost := func(provider.Request) (provider.Result, error) { // it did not arrive, but who knows
				return provider.Result{}, &provider.Error{Class: provider.ClassUncertain, Code: "smtp_timeout"}
			}
			b.fake.next(lost, fails(refusal), fails(refusal))
			id := b.enqueue(job{})[0]
			b.start(setup{store: once, cfg: func(c *rail.Config) { c.Recheck, c.BackoffMax = 50*time.Millisecond, 100*time.Millisecond }})
			b.await(1, "sent")
			require.Equal(t, 1, b.fake.delivered(id))
			require.Equal(t, 1, b.fake.keysOf(id))
			requests, _ := b.fake.count()
			require.Equal(t, 4, requests)
		})
	}
}
