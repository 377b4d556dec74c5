package rail_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/softcrum/carril/dispatcher/bucket"
	"github.com/softcrum/carril/dispatcher/provider"
	"github.com/softcrum/carril/dispatcher/provider/resend"
	"github.com/softcrum/carril/dispatcher/provider/sandbox"
	"github.com/softcrum/carril/dispatcher/rail"
	"github.com/softcrum/carril/schemas"
)

// account is a provider's account with a quota, on a clock that begins at noon:
// no test is cut in two by a midnight that it did not ask for.
type account struct {
	*bench
	server *sandbox.Server
	resend *resend.Adapter
	reg    *prometheus.Registry
	set    setup
	began  time.Time
	days   atomic.Int64
}

// account opens one whose provider takes messages up to a quota, and says that its
// quota is another one.
func (b *bench) account(taken, said int, reserve float64) *account {
	b.t.Helper()
	a := &account{bench: b, began: time.Now(), reg: prometheus.NewRegistry()}
	var err error
	a.server, err = sandbox.New(sandbox.Config{Rate: 100_000, DailyQuota: taken}, sandbox.Deps{Now: a.now})
	require.NoError(b.t, err)
	require.NoError(b.t, a.server.Start(context.Background()))
	b.t.Cleanup(func() { require.NoError(b.t, a.server.Stop(context.Background())) })
	a.resend, err = resend.New(resend.Config{APIKey: resend.NewKey("re_quota_0123456789"), BaseURL: a.server.URL()}, resend.Deps{})
	require.NoError(b.t, err)
	b.t.Cleanup(a.resend.Close)
	a.set = setup{provider: a.resend, quota: said, reserve: reserve, now: a.now, buckets: bucket.NewMetrics(a.reg, []string{resend.Name})}
	return a
}

func (a *account) now() time.Time {
	noon := a.began.UTC().Truncate(24 * time.Hour).Add(12 * time.Hour)
	return noon.AddDate(0, 0, int(a.days.Load())).Add(time.Since(a.began))
}

// work runs the worker of a rail, one request at a time: what the provider says
// is used is then all that is.
func (a *account) work(r string) {
	s := a.set
	s.rail, s.cfg = r, func(c *rail.Config) { c.Concurrency = 1 }
	a.start(s)
}

// taken counts the messages that the provider has.
func (a *account) taken() int { return int(a.server.Counters().Accepted) }

// refused counts marketing's asks that the quota refused.
func (a *account) refused() float64 {
	a.t.Helper()
	families, err := a.reg.Gather()
	require.NoError(a.t, err)
	for _, f := range families {
		for _, m := range f.GetMetric() {
			labels := map[string]string{}
			for _, l := range m.GetLabel() {
				labels[l.GetName()] = l.GetValue()
			}
			if f.GetName() == "carril_bucket_asks_total" && labels["rail"] == schemas.RailMarketing && labels["reason"] == "quota" {
				return m.GetCounter().GetValue()
			}
		}
	}
	return 0
}

func (a *account) waits() {
	a.t.Helper()
	before := a.refused()
	a.eventually("marketing waits, for the quota", func() bool { return a.refused() > before })
}

func (a *account) health() *rail.BucketHealth {
	a.t.Helper()
	limiter, err := bucket.New(bucket.Config{Prefix: a.prefix, Asker: "health", Reserve: &a.set.reserve, Providers: map[string]bucket.Stated{resend.Name: {RatePerSecond: 5, DayQuota: a.set.quota}}},
		bucket.Deps{Redis: a.redis(), Pool: a.pool, Now: a.now})
	require.NoError(a.t, err)
	require.NoError(a.t, limiter.Load(context.Background()))
	d := a.healthDeps(resend.Name)
	d.Buckets = limiter
	h := rail.Health(context.Background(), d).Channels[0].Rails[1].Bucket
	require.NotNil(a.t, h)
	return h
}

func TestQuota(t *testing.T) {
	t.Parallel()

	// I29: one tenant's newsletter takes all that a day gives to marketing; another
	// tenant's codes have the rest, to the last.
	t.Run("ABlastStopsAtTheReserveAndCodesGoOnToTheEnd", func(t *testing.T) {
		t.Parallel()
		b := newBench(t)
		a := b.account(60, 60, 0.25) // 45 of 60 for marketing
		bank := b.addTenant("bank")
		for range 6 {
			b.enqueueBatch(b.tenant, 10, nil)
		}
		a.work(schemas.RailMarketing)
		a.work(schemas.RailTransactional)
		b.await(4, "sent")
		a.waits()
		require.Equal(t, 40, a.taken())
		h := a.health()
		require.Equal(t, []any{40, 60, 0.25}, []any{h.DayUsed, h.DayQuota, *h.QuotaReserve})
		require.Zero(t, h.BlockedSeconds, "nobody was asked for what there is not")

		codes := make([]job, 20)
		for i := range codes {
			codes[i].tenant = bank
		}
		b.enqueue(codes...)
		b.await(24, "sent")
		require.Equal(t, 60, a.taken())

		b.enqueue(job{tenant: bank}) // the provider itself says no, and nothing is dropped
		b.eventually("the last code waits", func() bool {
			return b.count(`SELECT count(*) FROM core.processed_jobs WHERE id_time > now() - interval '1 day' AND worker = 'rail:email.transactional'
    AND state = 'in_topic' AND reason = 'throttled' AND attempts = 0`) == 1
		})
		h = a.health()
		require.Positive(t, h.BlockedSeconds)
		require.InDelta(t, h.Configured, h.RatePerSecond, 1e-9, "a quota lowers no rate")
		require.Equal(t, 2, b.batches("in_topic"))
		require.Equal(t, 60, a.taken())
		require.Zero(t, b.count(`SELECT count(*) FROM core.dead_letters`))
	})

	t.Run("WhatWaitsGoesTheNextDay", func(t *testing.T) {
		t.Parallel()
		b := newBench(t)
		a := b.account(40, 40, 0.25)
		for range 4 {
			b.enqueueBatch(b.tenant, 10, nil)
		}
		a.work(schemas.RailMarketing)
		b.await(3, "sent")
		a.waits()
		a.days.Add(1)
		b.await(4, "sent")
		require.Equal(t, 10, a.health().DayUsed)
	})

	t.Run("ARowWinsOverTheSettingWithoutARestart", func(t *testing.T) {
		t.Parallel()
		b := newBench(t)
		a := b.account(1_000, 20, 0.1)
		for range 4 {
			b.enqueueBatch(b.tenant, 10, nil)
		}
		a.work(schemas.RailMarketing)
		b.await(1, "sent")
		a.waits()
		at := bucket.Place{Scope: bucket.ScopeGlobal, Provider: resend.Name}
		_, _, err := bucket.Set(t.Context(), b.pool, at, bucket.Stated{RatePerSecond: 100}, bucket.Change{DayQuota: new(40), Rate: new(90.0)})
		require.NoError(t, err)
		b.await(3, "sent")
		a.waits()
		require.Equal(t, 40, a.health().DayQuota)
		_, _, err = bucket.Set(t.Context(), b.pool, at, bucket.Stated{RatePerSecond: 100}, bucket.Change{Reserve: new(0.0)})
		require.NoError(t, err)
		b.await(4, "sent")
	})

	// A small account takes less of marketing in a whole day than a batch holds.
	t.Run("ABatchAboveADaysShareGoesInPieces", func(t *testing.T) {
		t.Parallel()
		b := newBench(t)
		a := b.account(8, 8, 0.25)
		b.enqueueBatch(b.tenant, 15, nil)
		a.work(schemas.RailMarketing)
		for day, taken := range []int{6, 12, 15} {
			if day > 0 {
				a.waits()
				a.days.Add(1)
			}
			b.eventually("the day's share has gone", func() bool { return a.taken() == taken })
		}
		b.await(1, "sent")
	})

	// What says nothing of a quota sets no counter back.
	t.Run("AFailureForgetsNothing", func(t *testing.T) {
		t.Parallel()
		b := newBench(t)
		b.fake.next(func(r provider.Request) (provider.Result, error) {
			res, err := b.fake.take(r)
			res.Limits.DailyUsed = 45
			return res, err
		}, fails(provider.Error{Class: provider.ClassRetryable, Code: "unavailable"}))
		a := &account{bench: b, began: time.Now()}
		b.start(setup{quota: 50, now: a.now, cfg: func(c *rail.Config) { c.Concurrency = 1 }})
		for i := range 2 {
			b.enqueue(job{})
			b.await(i+1, "sent")
		}
		l, err := bucket.New(bucket.Config{Prefix: b.prefix, Asker: "look", Providers: map[string]bucket.Stated{"fake": {RatePerSecond: 1}}}, bucket.Deps{Redis: b.redis(), Now: a.now})
		require.NoError(t, err)
		levels, err := l.Levels(t.Context(), "fake")
		require.NoError(t, err)
		require.Equal(t, 47, levels.DayUsed, "what was said, and two requests since")
	})
}
