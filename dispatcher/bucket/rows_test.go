package bucket_test

import (
	"math"
	"sync"
	"testing"

	"github.com/google/uuid"
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
