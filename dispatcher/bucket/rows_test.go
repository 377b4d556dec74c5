package bucket_test

import (
	"math"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/softcrum/carril/dispatcher/bucket"
	"github.com/softcrum/carril/internal/ratelimit"
	"github.com/softcrum/carril/internal/testkit"
	"github.com/softcrum/carril/schemas"
)

func TestRows(t *testing.T) {
	t.Parallel()
	stated := bucket.Stated{RatePerSecond: 5}
	global := bucket.Place{Scope: bucket.ScopeGlobal, Provider: provider}

	t.Run("ChangeWhatIsGivenAndFallBackToTheDefault", func(t *testing.T) {
		t.Parallel()
		pool := testkit.Pool(t)
		before, after, err := bucket.Set(t.Context(), pool, global, stated, bucket.Change{DayQuota: new(100)})
		require.NoError(t, err)
		require.Equal(t, bucket.Default(provider, stated), before)
		require.Equal(t, ratelimit.Bucket{Capacity: 1, Rate: 4.5}, after.Bucket)
		before, after, err = bucket.Set(t.Context(), pool, global, stated, bucket.Change{Rate: new(2.0), Reserve: new(0.0)})
		require.NoError(t, err)
		require.Equal(t, 100, *before.DayQuota)
		require.Equal(t, []any{2.0, 1.0, 100, 0.0}, []any{after.Rate, after.Capacity, *after.DayQuota, *after.Reserve})
		rows, err := bucket.List(t.Context(), pool)
		require.NoError(t, err)
		require.Len(t, rows, 1)
		require.Equal(t, 100, *rows[0].DayQuota)
		require.Nil(t, rows[0].MonthQuota)
		before, after, err = bucket.Reset(t.Context(), pool, global, stated)
		require.NoError(t, err)
		require.InDelta(t, 2, before.Rate, 0)
		require.Equal(t, bucket.Default(provider, stated), after)
		before, _, err = bucket.Reset(t.Context(), pool, global, stated)
		require.NoError(t, err)
		require.True(t, before.UpdatedAt.IsZero(), "there was none any more")
	})

	t.Run("RefuseWhatCannotBe", func(t *testing.T) {
		t.Parallel()
		pool, tenant := testkit.Pool(t), uuid.New()
		theirs := bucket.Place{Scope: bucket.ScopeTenant, Provider: provider, Tenant: &tenant, Rail: schemas.RailMarketing}
		for says, tc := range map[string]struct {
			at bucket.Place
			c  bucket.Change
		}{
			"rate: NaN":                  {global, bucket.Change{Rate: new(math.NaN())}},
			"rate: +Inf":                 {theirs, bucket.Change{Rate: new(math.Inf(1))}},
			"rate: 0":                    {theirs, bucket.Change{Rate: new(0.0)}},
			"rate: -1":                   {theirs, bucket.Change{Rate: new(-1.0)}},
			"capacity: NaN":              {global, bucket.Change{Capacity: new(math.NaN())}},
			"capacity: 0.5":              {global, bucket.Change{Capacity: new(0.5)}},
			"above the 5":                {global, bucket.Change{Rate: new(5.1)}},
			"day-quota: -1":              {global, bucket.Change{DayQuota: new(-1)}},
			"month-quota: 2147483648":    {global, bucket.Change{MonthQuota: new(1 << 31)}},
			"reserve: 1":                 {global, bucket.Change{Reserve: new(1.0)}},
			"reserve: NaN":               {global, bucket.Change{Reserve: new(math.NaN())}},
			"first row must say it":      {theirs, bucket.Change{Capacity: new(2.0)}},
			"of its own bucket alone":    {theirs, bucket.Change{Rate: new(1.0), DayQuota: new(5)}},
			"are of the provider's acco": {theirs, bucket.Change{Rate: new(1.0), Reserve: new(0.5)}},
		} {
			_, _, err := bucket.Set(t.Context(), pool, tc.at, stated, tc.c)
			var refused *bucket.RefusedError
			require.ErrorAs(t, err, &refused, says)
			require.ErrorContains(t, err, says)
		}
		rows, err := bucket.List(t.Context(), pool)
		require.NoError(t, err)
		require.Empty(t, rows)
		_, after, err := bucket.Set(t.Context(), pool, global, stated, bucket.Change{Rate: new(50.0), Force: true})
		require.NoError(t, err)
		require.InDelta(t, 50, after.Rate, 0)
		_, _, err = bucket.Set(t.Context(), pool, global, stated, bucket.Change{Capacity: new(2.0)})
		require.NoError(t, err, "what was forced once is not asked for again")
	})

	t.Run("LandBothWhenTwoChangeDifferentFields", func(t *testing.T) {
		t.Parallel()
		pool := testkit.Pool(t)
		var wg sync.WaitGroup
		for i := range 8 {
			c := bucket.Change{DayQuota: new(10)}
			if i%2 == 0 {
				c = bucket.Change{MonthQuota: new(20)}
			}
			wg.Go(func() {
				if _, _, err := bucket.Set(t.Context(), pool, global, stated, c); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		rows, err := bucket.List(t.Context(), pool)
		require.NoError(t, err)
		require.Len(t, rows, 1)
		require.Equal(t, []int{10, 20}, []int{*rows[0].DayQuota, *rows[0].MonthQuota})
	})

	t.Run("AreGuardedByTheirTableToo", func(t *testing.T) {
		t.Parallel()
		pool := testkit.Pool(t)
		for _, row := range []string{
			`'tenant', NULL, 5, NULL, NULL`, `'tenant', NULL, NULL, NULL, 0.5`, `'global', 'marketing', NULL, 5, NULL`,
			`'global', NULL, -1, NULL, NULL`, `'global', NULL, NULL, -1, NULL`, `'global', NULL, NULL, NULL, 1`, `'global', NULL, NULL, NULL, 'NaN'`,
		} {
			_, err := pool.Exec(t.Context(), `INSERT INTO messaging.rate_limit_buckets (scope, provider, capacity, refill_per_second, rail, day_quota, month_quota, reserve)
SELECT v.s, 'p', 1, 1, v.r, v.d::int, v.m::int, v.x::float8 FROM (VALUES (`+row+`)) AS v(s, r, d, m, x)`)
			require.ErrorContains(t, err, "23514", row)
		}
	})
}

// The row wins over what is stated, field by field.
func TestQuotasAreTheRowsElseTheSettings(t *testing.T) {
	t.Parallel()
	pool := testkit.Pool(t)
	l, err := bucket.New(bucket.Config{Asker: "x", Providers: map[string]bucket.Stated{provider: {RatePerSecond: 5, DayQuota: 50, MonthQuota: 700}}, Reserve: new(0.2)}, bucket.Deps{Pool: pool})
	require.NoError(t, err)
	require.Equal(t, bucket.Quotas{Day: 50, Month: 700, Reserve: 0.2}, l.Quotas(provider))
	_, _, err = bucket.Set(t.Context(), pool, bucket.Place{Scope: bucket.ScopeGlobal, Provider: provider}, bucket.Stated{RatePerSecond: 5}, bucket.Change{DayQuota: new(0), Reserve: new(0.0)})
	require.NoError(t, err)
	require.NoError(t, l.Load(t.Context()))
	require.Equal(t, bucket.Quotas{Month: 700}, l.Quotas(provider), "0 is none, and no reserve is one too")
	require.Equal(t, 700, l.Quotas(provider).OfMarketing(700))
	require.Equal(t, 89, bucket.Quotas{Reserve: 0.1}.OfMarketing(99))
}

// What is used and what there is, by day and month: as the rows and the provider
// say, without anybody asking for a token.
func TestQuotasAreMeasured(t *testing.T) {
	t.Parallel()
	pool, reg := testkit.Pool(t), prometheus.NewRegistry()
	rawURL, prefix := testkit.Redis(t)
	rdb, err := ratelimit.Open(rawURL)
	require.NoError(t, err)
	t.Cleanup(func() { _ = rdb.Close() })
	noon := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	var days atomic.Int64
	l, err := bucket.New(bucket.Config{Prefix: prefix, Asker: "p1", Refresh: 20 * time.Millisecond, Budget: 30 * time.Second,
		Providers: map[string]bucket.Stated{provider: {RatePerSecond: 1000, DayQuota: 50}, "relay": {RatePerSecond: 1}}},
		bucket.Deps{Redis: rdb, Pool: pool, Log: testkit.Logger(t), Now: func() time.Time { return noon.AddDate(0, 0, int(days.Load())) }, Metrics: bucket.NewMetrics(reg, []string{provider, "relay"})})
	require.NoError(t, err)
	shows := func(name string, day, month int) func() bool {
		return func() bool {
			return gauge(t, reg, name, provider, "day") == float64(day) && gauge(t, reg, name, provider, "month") == float64(month)
		}
	}
	require.True(t, shows("carril_bucket_quota_limit", 0, 0)(), "the series are there from the start")
	ctx, cancel := testContext(t)
	done := make(chan struct{})
	go func() { defer close(done); _ = l.Run(ctx) }()
	defer func() { cancel(); <-done }()
	soon := func(what string, ok func() bool) { require.Eventually(t, ok, 30*time.Second, 5*time.Millisecond, what) }

	soon("as stated", shows("carril_bucket_quota_limit", 50, 0))
	_, _, err = bucket.Set(t.Context(), pool, bucket.Place{Scope: bucket.ScopeGlobal, Provider: provider}, bucket.Stated{RatePerSecond: 1000}, bucket.Change{DayQuota: new(40), MonthQuota: new(700)})
	require.NoError(t, err)
	soon("as its row says", shows("carril_bucket_quota_limit", 40, 700))
	require.True(t, l.Ask(t.Context(), bucket.Ask{Provider: provider, Tenant: uuid.New(), Rail: schemas.RailTransactional, Messages: 3}).Granted)
	soon("as counted here", shows("carril_bucket_quota_used", 3, 3))
	l.Report(t.Context(), bucket.Report{Provider: provider, DayUsed: 33, MonthUsed: 600})
	soon("as the provider says", shows("carril_bucket_quota_used", 33, 600))
	days.Store(1) // into December
	soon("a new day of a new month", shows("carril_bucket_quota_used", 0, 0))
	require.Zero(t, gauge(t, reg, "carril_bucket_quota_limit", "relay", "day"))
}

// gauge reads a series; -1 where there is none.
func gauge(t *testing.T, reg *prometheus.Registry, name, provider, period string) float64 {
	t.Helper()
	families, err := reg.Gather()
	require.NoError(t, err)
	for _, f := range families {
		for _, m := range f.GetMetric() {
			labels := map[string]string{}
			for _, l := range m.GetLabel() {
				labels[l.GetName()] = l.GetValue()
			}
			if f.GetName() == name && labels["provider"] == provider && labels["period"] == period {
				return m.GetGauge().GetValue()
			}
		}
	}
	return -1
}
