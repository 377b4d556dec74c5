package ratelimit_test

import (
	"context"
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/softcrum/carril/internal/ratelimit"
	"github.com/softcrum/carril/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m, func() error { return goleak.Find() }) }

var start = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// virtual is a Redis whose clock the test holds.
type virtual struct {
	t   require.TestingT
	srv *miniredis.Miniredis
	rdb *redis.Client
	s   *ratelimit.Script
	now time.Time
}

func newVirtual(t *testing.T) *virtual {
	srv := miniredis.RunT(t)
	srv.ClockTTL(true)
	rdb := redis.NewClient(&redis.Options{Addr: srv.Addr()})
	t.Cleanup(func() { _ = rdb.Close() })
	v := &virtual{t: t, srv: srv, rdb: rdb, s: ratelimit.New(), now: start}
	srv.SetTime(start)
	return v
}

func (v *virtual) reset(t require.TestingT) {
	v.srv.FlushAll()
	v.t = t
	v.now = v.now.Add(time.Hour)
	v.srv.SetTime(v.now)
}

func (v *virtual) to(at time.Time) { v.now = at; v.srv.SetTime(at) }

func (v *virtual) take(a ratelimit.Ask) ratelimit.Answer {
	a.Keys = keys(a.TenantID, string(order(a.Mode)))
	got, err := v.s.Take(context.Background(), v.rdb, a)
	require.NoError(v.t, err)
	return got
}

func (v *virtual) report(r ratelimit.Report) {
	r.Keys, r.DayUsed, r.MonthUsed = keys("", ""), -1, -1
	require.NoError(v.t, v.s.Report(context.Background(), v.rdb, r))
}

func keys(tenant, rail string) ratelimit.Keys {
	return ratelimit.Keys{Provider: "b:{p}", Tenant: "b:{p}:t:" + tenant + ":" + rail, Waiters: "b:{p}:w", Served: "b:{p}:s", Askers: "b:{p}:a"}
}

func TestScript(t *testing.T) {
	t.Parallel()
	v := newVirtual(t)
	t.Run("AnswersLikeTheModel", func(t *testing.T) {
		rapid.Check(t, func(t *rapid.T) {
			v.reset(t)
			m := newModel(v.now.UnixMicro())
			rate := rapid.SampledFrom([]float64{0.5, 4.5, 90, 3333}).Draw(t, "rate")
			burst := float64(rapid.IntRange(1, 4).Draw(t, "burst"))
			tenantRate := rapid.SampledFrom([]float64{0, 1, 10}).Draw(t, "tenant_rate")
			var granted int64
			for range rapid.IntRange(1, 60).Draw(t, "steps") {
				gap := rapid.OneOf(rapid.Int64Range(0, 3000), rapid.Int64Range(0, 400_000), rapid.Int64Range(0, 5_000_000)).Draw(t, "gap")
				v.to(v.now.Add(time.Duration(gap) * time.Microsecond))
				m.now = v.now.UnixMicro()
				if rapid.IntRange(0, 9).Draw(t, "what") == 0 {
					r := ratelimit.Report{Throttled: true, Quota: rapid.Bool().Draw(t, "quota"),
						RetryIn: time.Duration(rapid.Int64Range(0, 3e6).Draw(t, "retry")) * time.Microsecond}
					kind := "rate"
					if r.Quota {
						kind = "quota"
					}
					if granted > 0 && rapid.Bool().Draw(t, "named") {
						r.GrantedAt = time.UnixMicro(granted)
						m.report(kind, granted, r.RetryIn.Microseconds())
					} else {
						m.report(kind, 0, r.RetryIn.Microseconds())
					}
					v.report(r)
					continue
				}
				a := ratelimit.Ask{
					Mode:     rapid.SampledFrom([]ratelimit.Mode{ratelimit.Transactional, ratelimit.Transactional, ratelimit.Renew, ratelimit.Marketing, ratelimit.Plain}).Draw(t, "mode"),
					TenantID: rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "tenant"),
					Asker:    rapid.SampledFrom([]string{"1", "2"}).Draw(t, "asker"),
					Provider: ratelimit.Bucket{Capacity: burst, Rate: rate},
					Cost:     rapid.IntRange(1, int(burst)).Draw(t, "cost"),
				}
				a.Least = rapid.IntRange(1, a.Cost).Draw(t, "least")
				if tenantRate > 0 {
					a.Tenant = ratelimit.Bucket{Capacity: burst, Rate: tenantRate}
				}
				// The model keeps one bucket a tenant; the rails' are told apart by their keys.
				a.TenantID += string(order(a.Mode)[0])
				n, why, wait := m.take(a)
				got := v.take(a)
				require.Equal(t, why, got.Reason)
				require.Equal(t, n, got.Granted)
				require.InDelta(t, math.Ceil(math.Max(0, wait)), float64(got.Wait.Microseconds()), 1)
				require.InDelta(t, m.currentFactor(), got.Factor, 1e-9)
				levels, err := v.s.Levels(context.Background(), v.rdb, keys("", ""), v.now)
				require.NoError(t, err)
				require.ElementsMatch(t, m.waiting(), levels.Waiters)
				if n > 0 {
					granted = m.now
				}
			}
		})
	})
}

// party is somebody who asks whenever it was told to, with work or without.
type party struct {
	mode    ratelimit.Mode
	tenant  string
	asker   string
	bucket  ratelimit.Bucket
	arrives func(i int) (time.Duration, bool) // arrival of its i-th job; nil: it always has one

	next   time.Time
	job    int
	got    int
	waited []time.Duration
}

// play lets the parties ask in the order of their times for a while.
func play(v *virtual, provider ratelimit.Bucket, dur time.Duration, parties []*party) {
	from := v.now
	arrival := func(p *party) (time.Time, bool) {
		if p.arrives == nil {
			return from, true
		}
		d, ok := p.arrives(p.job)
		return from.Add(d), ok
	}
	for _, p := range parties {
		p.next, _ = arrival(p)
	}
	for {
		var p *party
		for _, q := range parties {
			if at, ok := arrival(q); ok && (p == nil || q.next.Before(p.next)) {
				if q.next.Before(at) {
					q.next = at
				}
				if p == nil || q.next.Before(p.next) {
					p = q
				}
			}
		}
		if p == nil || p.next.Sub(from) >= dur {
			return
		}
		v.to(p.next)
		a := v.take(ratelimit.Ask{Mode: p.mode, TenantID: p.tenant, Asker: p.asker, Provider: provider, Tenant: p.bucket})
		if a.Granted == 0 {
			p.next = p.next.Add(a.Wait + 500*time.Microsecond) // a timer is never early
			continue
		}
		p.got++
		at, _ := arrival(p)
		p.waited = append(p.waited, p.next.Sub(at))
		p.job++
		p.next = p.next.Add(500 * time.Microsecond)
	}
}

func every(d time.Duration) func(int) (time.Duration, bool) {
	return func(i int) (time.Duration, bool) { return time.Duration(i)*d + 137*time.Millisecond, true }
}

func TestFairness(t *testing.T) {
	t.Parallel()
	five := ratelimit.Bucket{Capacity: 1, Rate: 5}

	// I26
	t.Run("GivesMarketingWhatATenantBehindItsOwnBucketLeaves", func(t *testing.T) {
		t.Parallel()
		a := &party{mode: ratelimit.Transactional, tenant: "a", asker: "1", bucket: ratelimit.Bucket{Capacity: 1, Rate: 1}}
		b := &party{mode: ratelimit.Transactional, tenant: "b", asker: "1", arrives: every(4 * time.Second)}
		m := &party{mode: ratelimit.Marketing, tenant: "m", asker: "2"}
		play(newVirtual(t), five, 12*time.Second, []*party{a, b, m})
		require.GreaterOrEqual(t, m.got, 40)
		require.InDelta(t, 12, a.got, 1)
		for _, w := range b.waited {
			require.Less(t, w, 450*time.Millisecond)
		}
	})

	// I53
	t.Run("ServesAQuietTenantBesideABacklogInSixProcesses", func(t *testing.T) {
		t.Parallel()
		var ps []*party
		for i := range 6 {
			ps = append(ps, &party{mode: ratelimit.Transactional, tenant: "a", asker: fmt.Sprint(i)})
		}
		b := &party{mode: ratelimit.Transactional, tenant: "b", asker: "3", arrives: every(3 * time.Second)}
		play(newVirtual(t), ratelimit.Bucket{Capacity: 1, Rate: 4.5}, 5*time.Minute, append(ps, b))
		require.GreaterOrEqual(t, b.got, 95)
		for _, w := range b.waited {
			require.Less(t, w, 500*time.Millisecond)
		}
	})

	// I50, as far as the buckets go
	t.Run("ServesAQuietTenantBesideTwentyBacklogs", func(t *testing.T) {
		t.Parallel()
		var ps []*party
		for i := range 20 {
			ps = append(ps, &party{mode: ratelimit.Transactional, tenant: fmt.Sprint("t", i), asker: "1"})
		}
		b := &party{mode: ratelimit.Transactional, tenant: "b", asker: "3", arrives: every(7 * time.Second)}
		play(newVirtual(t), ratelimit.Bucket{Capacity: 1, Rate: 4.5}, 30*time.Second, append(ps, b))
		for _, w := range b.waited[2:] { // in the first round nobody was ever served, and they are all alike
			require.Less(t, w, time.Second)
		}
		for _, p := range ps {
			require.InDelta(t, 6, p.got, 1, "tenants with backlogs share alike")
		}
	})

	t.Run("SharesMarketingAlikeHoweverManyProcessesATenantIsIn", func(t *testing.T) {
		t.Parallel()
		marketing := func(tenant, asker string) *party {
			return &party{mode: ratelimit.Marketing, tenant: tenant, asker: asker}
		}
		large := []*party{marketing("large", "1"), marketing("large", "2"), marketing("large", "3")}
		small := marketing("small", "1")
		code := &party{mode: ratelimit.Transactional, tenant: "code", asker: "4", arrives: every(time.Second)}
		play(newVirtual(t), five, time.Minute, append(large, small, code))
		require.InDelta(t, 60, code.got, 1)
		require.InDelta(t, 120, small.got, 5, "half of what the codes leave")
		require.InDelta(t, 120, large[0].got+large[1].got+large[2].got, 5)
	})

	t.Run("WaitsForADeadMarketingWaiterForOneIntervalAtMost", func(t *testing.T) {
		t.Parallel()
		v := newVirtual(t)
		ask := ratelimit.Ask{Mode: ratelimit.Marketing, TenantID: "a", Asker: "1", Provider: ratelimit.Bucket{Capacity: 1, Rate: 50}}
		dead, code := ask, ask
		dead.TenantID, dead.Asker = "b", "2"
		code.Mode, code.TenantID = ratelimit.Transactional, "c"
		require.Equal(t, 1, v.take(ask).Granted)
		require.Equal(t, ratelimit.Provider, v.take(dead).Reason)
		v.to(v.now.Add(25 * time.Millisecond))
		require.Equal(t, ratelimit.Waiter, v.take(ask).Reason)
		require.Equal(t, 1, v.take(code).Granted, "marketing's marks hold up no code")
		v.to(v.now.Add(25 * time.Millisecond))
		require.Equal(t, ratelimit.Waiter, v.take(ask).Reason)
		v.to(v.now.Add(15 * time.Millisecond))
		require.Equal(t, 1, v.take(ask).Granted, "the mark lives, and the token has lain for an interval")
	})

	t.Run("GivesATokenThatCameToNothingAgainBeforeAllOthers", func(t *testing.T) {
		t.Parallel()
		v := newVirtual(t)
		ask := func(mode ratelimit.Mode, tenant string) ratelimit.Answer {
			return v.take(ratelimit.Ask{Mode: mode, TenantID: tenant, Asker: "1", Provider: ratelimit.Bucket{Capacity: 1, Rate: 50}})
		}
		require.Equal(t, 1, ask(ratelimit.Transactional, "b").Granted)
		v.to(v.now.Add(20 * time.Millisecond))
		require.Equal(t, 1, ask(ratelimit.Transactional, "a").Granted)
		require.Equal(t, ratelimit.Provider, ask(ratelimit.Transactional, "b").Reason)
		require.Equal(t, ratelimit.Provider, ask(ratelimit.Renew, "a").Reason)
		v.to(v.now.Add(20 * time.Millisecond))
		require.Equal(t, ratelimit.Waiter, ask(ratelimit.Transactional, "b").Reason, "served less recently, but a was not served")
		require.Equal(t, ratelimit.Waiter, ask(ratelimit.Marketing, "c").Reason)
		require.Equal(t, 1, ask(ratelimit.Renew, "a").Granted)
		v.to(v.now.Add(20 * time.Millisecond))
		require.Equal(t, 1, ask(ratelimit.Transactional, "b").Granted)
	})

	t.Run("KeepsTheLastTokenOfABurstForACode", func(t *testing.T) {
		t.Parallel()
		v := newVirtual(t)
		two := ratelimit.Bucket{Capacity: 2, Rate: 4}
		m := ratelimit.Ask{Mode: ratelimit.Marketing, TenantID: "m", Asker: "1", Provider: two}
		code := ratelimit.Ask{Mode: ratelimit.Transactional, TenantID: "b", Asker: "1", Provider: two}
		require.Equal(t, 1, v.take(m).Granted)
		require.Equal(t, ratelimit.Provider, v.take(m).Reason)
		require.Equal(t, 1, v.take(code).Granted, "without any wait")
		got := v.take(m)
		require.Equal(t, 500*time.Millisecond, got.Wait)
		v.to(v.now.Add(got.Wait))
		require.Equal(t, 1, v.take(m).Granted)
	})

	t.Run("WaitsForADeadWaiterNoLongerThanItsMark", func(t *testing.T) {
		t.Parallel()
		v := newVirtual(t)
		ask := ratelimit.Ask{Mode: ratelimit.Transactional, TenantID: "a", Asker: "1", Provider: five}
		require.Equal(t, 1, v.take(ask).Granted)
		dead := ask
		dead.TenantID, dead.Asker = "b", "2"
		require.Equal(t, ratelimit.Provider, v.take(dead).Reason)
		v.to(v.now.Add(200 * time.Millisecond))
		got := v.take(ask)
		require.Equal(t, ratelimit.Waiter, got.Reason)
		v.to(v.now.Add(got.Wait))
		require.Equal(t, 1, v.take(ask).Granted)
	})
}

func TestThrottled(t *testing.T) {
	t.Parallel()
	bucket := ratelimit.Bucket{Capacity: 10, Rate: 10}
	ask := ratelimit.Ask{Mode: ratelimit.Transactional, TenantID: "a", Asker: "1", Provider: bucket}

	// I27
	t.Run("CutsTheRateOnceForTenRequestsInFlight", func(t *testing.T) {
		t.Parallel()
		v := newVirtual(t)
		var at []time.Time
		for range 10 {
			at = append(at, v.take(ask).At)
		}
		for _, granted := range at { // the last answers come after the one-second block has ended
			v.to(v.now.Add(150 * time.Millisecond))
			v.report(ratelimit.Report{Throttled: true, GrantedAt: granted, RetryIn: time.Second})
		}
		v.to(v.now.Add(time.Second))
		got := v.take(ask)
		require.Equal(t, 1, got.Granted)
		require.InDelta(t, 0.7, got.Factor, 0.01)
	})

	t.Run("RecoversInAHundredSecondsAndNeverBelowTheFloor", func(t *testing.T) {
		t.Parallel()
		v := newVirtual(t)
		for range 12 {
			got := v.take(ask)
			require.Equal(t, 1, got.Granted)
			v.report(ratelimit.Report{Throttled: true, GrantedAt: got.At, RetryIn: time.Second})
			v.to(v.now.Add(time.Second + time.Millisecond))
		}
		require.InDelta(t, 0.1, v.take(ask).Factor, 0.01)
		v.to(v.now.Add(100 * time.Second))
		require.InDelta(t, 1, v.take(ask).Factor, 1e-6)
	})

	// I55
	t.Run("LeavesTheRateAloneWhenAQuotaIsSpent", func(t *testing.T) {
		t.Parallel()
		v := newVirtual(t)
		for range 5 {
			v.report(ratelimit.Report{Throttled: true, Quota: true, GrantedAt: v.take(ask).At, RetryIn: 15 * time.Minute})
			require.Equal(t, ratelimit.Blocked, v.take(ask).Reason)
			v.to(v.now.Add(15 * time.Minute))
		}
		require.InDelta(t, 1, v.take(ask).Factor, 1e-9)
	})

	t.Run("CutsNothingForARequestFromBeforeTheLastCut", func(t *testing.T) {
		t.Parallel()
		v := newVirtual(t)
		old := v.take(ask).At
		v.to(v.now.Add(time.Second))
		v.report(ratelimit.Report{Throttled: true, GrantedAt: v.take(ask).At, RetryIn: time.Second})
		v.to(v.now.Add(2 * time.Second))
		v.report(ratelimit.Report{Throttled: true, GrantedAt: old, RetryIn: time.Second})
		v.to(v.now.Add(time.Second))
		require.Greater(t, v.take(ask).Factor, 0.69)
	})
}

func TestQuota(t *testing.T) {
	t.Parallel()
	// I29, the bucket's part
	t.Run("KeepsTheReserveFromMarketing", func(t *testing.T) {
		t.Parallel()
		v := newVirtual(t)
		quota := ratelimit.QuotaLimits{Day: 1000, Reserve: 0.1, Now: start}
		m := ratelimit.Ask{Mode: ratelimit.Marketing, TenantID: "m", Asker: "1", Provider: ratelimit.Bucket{Capacity: 100, Rate: 1000}, Messages: 100, Quota: quota}
		for range 9 {
			require.Equal(t, 1, v.take(m).Granted)
		}
		require.Equal(t, ratelimit.Quota, v.take(m).Reason)
		code := m
		code.Mode, code.TenantID, code.Messages = ratelimit.Transactional, "b", 1
		require.Equal(t, 1, v.take(code).Granted)
		m.Quota.Now = start.Add(24 * time.Hour)
		require.Equal(t, 1, v.take(m).Granted)
	})
	t.Run("BelievesTheProvidersOwnCount", func(t *testing.T) {
		t.Parallel()
		v := newVirtual(t)
		require.NoError(t, v.s.Report(context.Background(), v.rdb, ratelimit.Report{Keys: keys("", ""), DayUsed: 95, MonthUsed: -1, Now: start}))
		m := ratelimit.Ask{Mode: ratelimit.Marketing, TenantID: "m", Asker: "1", Provider: ratelimit.Bucket{Capacity: 1, Rate: 10},
			Messages: 1, Quota: ratelimit.QuotaLimits{Day: 100, Reserve: 0.1, Now: start}}
		require.Equal(t, ratelimit.Quota, v.take(m).Reason)
	})
}

func TestForeignClock(t *testing.T) {
	t.Parallel()
	t.Run("OwesNoMoreThanTheBucketHoldsAfterAFailover", func(t *testing.T) {
		t.Parallel()
		v := newVirtual(t)
		ask := ratelimit.Ask{Mode: ratelimit.Transactional, TenantID: "a", Asker: "1", Provider: ratelimit.Bucket{Capacity: 1, Rate: 5}, Tenant: ratelimit.Bucket{Capacity: 1, Rate: 5}}
		require.Equal(t, 1, v.take(ask).Granted)
		other := ask
		other.TenantID = "b"
		require.Equal(t, ratelimit.Provider, v.take(other).Reason)
		v.to(v.now.Add(-30 * time.Minute)) // the new master's clock is behind
		marketing := ask
		marketing.Mode = ratelimit.Marketing
		got := v.take(marketing)
		require.Equal(t, ratelimit.Provider, got.Reason)
		require.LessOrEqual(t, got.Wait, 200*time.Millisecond)
		v.to(v.now.Add(200 * time.Millisecond))
		require.Equal(t, 1, v.take(marketing).Granted, "marks of another clock do not stand")
	})
	t.Run("EndsABlockAfterAQuarterOfAnHourAtMost", func(t *testing.T) {
		t.Parallel()
		v := newVirtual(t)
		ask := ratelimit.Ask{Mode: ratelimit.Plain, TenantID: "a", Provider: ratelimit.Bucket{Capacity: 1, Rate: 5}}
		v.report(ratelimit.Report{Throttled: true, RetryIn: 15 * time.Minute})
		v.to(v.now.Add(-24 * time.Hour))
		require.Equal(t, ratelimit.Blocked, v.take(ask).Reason)
		v.to(v.now.Add(15 * time.Minute))
		require.Equal(t, 1, v.take(ask).Granted)
	})
}

func TestRealRedis(t *testing.T) {
	t.Parallel()
	rdb, prefix := testkit.RedisClient(t)
	s := ratelimit.New()
	k := ratelimit.Keys{Provider: prefix + "{p}", Tenant: prefix + "{p}:t", Waiters: prefix + "{p}:w", Served: prefix + "{p}:s", Askers: prefix + "{p}:a"}
	ask := ratelimit.Ask{Keys: k, Mode: ratelimit.Transactional, TenantID: "a", Asker: "1", Provider: ratelimit.Bucket{Capacity: 1, Rate: 0.1}, Tenant: ratelimit.Bucket{Capacity: 5, Rate: 1}}

	t.Run("SurvivesAScriptFlush", func(t *testing.T) {
		got, err := s.Take(t.Context(), rdb, ask)
		require.NoError(t, err)
		require.Equal(t, 1, got.Granted)
		require.Equal(t, 1, got.Askers)
		require.NoError(t, rdb.ScriptFlush(t.Context()).Err())
		second := ask
		second.Asker = "2"
		got, err = s.Take(t.Context(), rdb, second)
		require.NoError(t, err)
		require.Equal(t, ratelimit.Provider, got.Reason)
		require.Equal(t, 2, got.Askers)
		require.InDelta(t, 2*time.Second, got.Wait, float64(time.Millisecond), "it asks again before its mark ends")
		_, err = s.Seen(t.Context(), rdb, k, "3")
		require.NoError(t, err)
		require.NoError(t, s.Report(t.Context(), rdb, ratelimit.Report{Keys: k, Throttled: true, RetryIn: time.Minute, DayUsed: -1, MonthUsed: -1}))
		got, err = s.Take(t.Context(), rdb, ask)
		require.NoError(t, err)
		require.Equal(t, ratelimit.Blocked, got.Reason)
		require.Equal(t, 3, got.Askers)
		require.InDelta(t, 0.7, got.Factor, 1e-6)
	})
	t.Run("LeavesNoKeyWithoutALife", func(t *testing.T) {
		for _, key := range []string{k.Provider, k.Tenant, k.Waiters, k.Served, k.Askers} {
			ttl, err := rdb.PTTL(t.Context(), key).Result()
			require.NoError(t, err)
			require.Greater(t, ttl, time.Duration(0), key)
		}
	})
}

func TestWhole(t *testing.T) {
	t.Parallel()
	v := newVirtual(t)
	api := func(cost, least int, whole bool) ratelimit.Ask {
		return ratelimit.Ask{Mode: ratelimit.Plain, Cost: cost, Least: least, Whole: whole, Depth: 500,
			Provider: ratelimit.Bucket{Capacity: 100, Rate: 10}, TenantID: "t"}
	}
	t.Run("IsGrantedAboveTheCapacityAndLeavesADebt", func(t *testing.T) {
		v.reset(t)
		got := v.take(api(300, 0, true))
		require.Equal(t, 300, got.Granted)
		require.Equal(t, 30*time.Second, got.ProviderDebt)
		got = v.take(api(1, 0, false))
		require.Equal(t, 0, got.Granted)
		require.Equal(t, 20*time.Second+100*time.Millisecond, got.Wait, "200 below empty, and one more")
		require.Equal(t, 30*time.Second, got.ProviderDebt, "the debt stands, whoever asks")
	})
	t.Run("NeedsHalfOfTheCapacity", func(t *testing.T) {
		v.reset(t)
		require.Equal(t, 60, v.take(api(60, 0, false)).Granted)
		got := v.take(api(300, 0, true))
		require.Equal(t, []any{0, time.Second}, []any{got.Granted, got.Wait}, "ten are missing")
		v.to(v.now.Add(time.Second))
		require.Equal(t, 300, v.take(api(300, 0, true)).Granted)
	})
	t.Run("NeedsAllOfItWhereTheBucketCanHoldIt", func(t *testing.T) {
		v.reset(t)
		require.Equal(t, 60, v.take(api(60, 0, false)).Granted)
		require.Zero(t, v.take(api(50, 0, true)).Granted)
		require.Equal(t, 40, v.take(api(50, 1, false)).Granted, "which an ask for a block takes in part")
	})
	t.Run("IsTakenFromBothOrFromNeither", func(t *testing.T) {
		v.reset(t)
		a := api(300, 0, true)
		a.Tenant = ratelimit.Bucket{Capacity: 20, Rate: 1}
		got := v.take(a)
		require.Equal(t, 300, got.Granted)
		require.Equal(t, 300*time.Second, got.TenantDebt)
		got = v.take(a)
		require.Equal(t, ratelimit.Tenant, got.Reason)
		require.Equal(t, 290*time.Second, got.Wait)
		require.Equal(t, 200*time.Second/10, v.take(api(1, 0, false)).Wait-100*time.Millisecond, "and the other was charged once")
	})
}
