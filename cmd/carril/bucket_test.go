package main

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/softcrum/carril/cmd/carril/app"
	"github.com/softcrum/carril/dispatcher/bucket"
	"github.com/softcrum/carril/internal/pg"
	"github.com/softcrum/carril/internal/ratelimit"
	"github.com/softcrum/carril/internal/testkit"
	"github.com/softcrum/carril/schemas"
	"github.com/softcrum/carril/schemas/openapi"
)

// TestBucketCommands configures the buckets as an operator does.
func TestBucketCommands(t *testing.T) {
	url := testkit.Postgres(t)
	redisURL, prefix := testkit.Redis(t)
	pool, err := pg.Open(t.Context(), pg.Config{URL: url, MaxConns: 4})
	require.NoError(t, err)
	defer pool.Close()
	tenant, err := app.CreateTenant(t.Context(), pool, "acme", "Acme", "starter", "cell-1")
	require.NoError(t, err)
	t.Setenv("CARRIL_POSTGRES_URL", url)
	t.Setenv("CARRIL_REDIS_PREFIX", prefix)
	ask := func(args ...string) (int, string, string) {
		t.Helper()
		return try(append([]string{"bucket"}, args...)...)
	}
	list := func(args ...string) (out buckets) {
		t.Helper()
		code, raw, errs := ask(append([]string{"list", "--json", "--redis-url=" + redisURL}, args...)...)
		require.Zero(t, code, errs)
		require.NoError(t, json.Unmarshal([]byte(raw), &out))
		return out
	}
	set := func(args ...string) string {
		t.Helper()
		code, out, errs := ask(append([]string{"set"}, args...)...)
		require.Zero(t, code, errs)
		return strings.TrimSpace(out)
	}

	t.Run("ListsEveryDefaultInForce", func(t *testing.T) {
		got := list()
		require.Empty(t, got.CannotSee)
		want := map[string]float64{"resend": 4.5, "smtp": 4.5, "sms": 9}
		require.Len(t, got.Buckets, len(want))
		for _, b := range got.Buckets {
			require.True(t, b.Default)
			require.Equal(t, bucket.ScopeGlobal, b.Scope)
			require.InDelta(t, want[b.Provider], b.Rate, 1e-9, b.Provider)
			require.InDelta(t, 1, b.Capacity, 0)
			require.InDelta(t, 1000/b.Rate, b.IntervalMS, 1e-6)
			require.Equal(t, &bucketLive{RateFactor: 1}, b.Live)
		}
		require.Len(t, list("--provider=sms").Buckets, 1)
	})

	t.Run("SetsARowThatEveryProcessHearsOf", func(t *testing.T) {
		direct, err := pg.Open(t.Context(), pg.Config{URL: url, MaxConns: 1})
		require.NoError(t, err)
		defer direct.Close()
		rdb, err := ratelimit.Open(redisURL)
		require.NoError(t, err)
		defer rdb.Close()
		rail, err := bucket.New(bucket.Config{Asker: "rail", Prefix: prefix + "carril:", Refresh: time.Hour, Providers: map[string]bucket.Stated{"resend": {RatePerSecond: 5}}},
			bucket.Deps{Redis: rdb, Pool: pool, Listen: direct})
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); _ = rail.Run(ctx) }()
		defer func() { cancel(); <-done }()
		hears := func(rate, own float64) {
			t.Helper()
			require.Eventually(t, func() bool {
				g, o := rail.Rates("resend", tenant, schemas.RailMarketing)
				return g.Rate == rate && o.Rate == own
			}, 30*time.Second, 5*time.Millisecond)
		}
		require.Equal(t, "resend: 4.5/s, capacity 1 (default) -> 4/s, capacity 2", set("--provider=resend", "--rate=4", "--capacity=2"))
		hears(4, 0)
		require.Equal(t, "resend, tenant acme, marketing: no bucket -> 1.5/s, capacity 1", set("--provider=resend", "--tenant=acme", "--rail=marketing", "--rate=1.5"))
		require.Equal(t, "resend, every tenant: no bucket -> 2/s, capacity 1", set("--provider=resend", "--every-tenant", "--rate=2"))
		hears(4, 1.5)
		require.Equal(t, "resend: 4/s, capacity 2 -> 4/s, capacity 2, day quota 100, month quota none, reserve 0.25",
			set("--provider=resend", "--day-quota=100", "--month-quota=0", "--reserve=0.25"))
		require.Eventually(t, func() bool { return rail.Quotas("resend") == bucket.Quotas{Day: 100, Reserve: 0.25} }, 30*time.Second, 5*time.Millisecond)

		rail.Report(t.Context(), bucket.Report{Provider: "resend", Throttled: true, RetryIn: 10 * time.Minute, DayUsed: 40, MonthUsed: 400})
		got := list("--provider=resend")
		require.Len(t, got.Buckets, 3)
		global := got.Buckets[0]
		require.False(t, global.Default)
		require.Equal(t, []any{100, 0, 0.25}, []any{*global.DayQuota, *global.MonthQuota, *global.Reserve})
		require.InDelta(t, 0.7, global.Live.RateFactor, 1e-9)
		require.Equal(t, []int{40, 400}, []int{global.Live.DayUsed, global.Live.MonthUsed})
		require.NotNil(t, global.Live.BlockedUntil)
		require.Nil(t, got.Buckets[1].TenantID, "every tenant's stands before one tenant's")
		require.Equal(t, []any{tenant, "acme", schemas.RailMarketing}, []any{*got.Buckets[2].TenantID, got.Buckets[2].Tenant, got.Buckets[2].Rail})
		require.Nil(t, got.Buckets[2].Live)
		code, out, _ := ask("list", "--redis-url="+redisURL)
		require.Zero(t, code)
		require.Regexp(t, `global +resend +4/s +2 +250ms +0\.70 +20\S+Z +0 +40/100 +400/none +0\.25`, out)
		require.Regexp(t, `tenant +resend +acme `+tenant.String()+` +marketing +1\.5/s`, out)

		for _, args := range [][]string{{}, {"--tenant=acme", "--rail=marketing"}, {"--every-tenant"}} {
			code, out, errs := ask(append([]string{"reset", "--provider=resend"}, args...)...)
			require.Zero(t, code, errs)
			require.Regexp(t, `-> (4\.5/s, capacity 1 \(default\)|no bucket)\n$`, out)
		}
		hears(4.5, 0)
	})

	t.Run("ListsWhatHoldsForOneTenant", func(t *testing.T) {
		other, err := app.CreateTenant(t.Context(), pool, "other", "Other", "starter", "cell-1")
		require.NoError(t, err)
		set("--provider=sms", "--tenant=acme", "--rate=1")
		set("--provider=sms", "--tenant="+other.String(), "--rate=2")
		set("--provider=sms", "--every-tenant", "--rate=3")
		var whose []*uuid.UUID
		for _, b := range list("--tenant=acme", "--provider=sms").Buckets[1:] {
			whose = append(whose, b.TenantID)
		}
		require.Equal(t, []*uuid.UUID{nil, &tenant}, whose)
	})

	t.Run("ListsWithoutRedisAndSaysSo", func(t *testing.T) {
		for _, redis := range []string{"", "redis://127.0.0.1:1"} {
			code, out, errs := ask("list", "--redis-url="+redis)
			require.Zero(t, code, errs)
			require.Contains(t, errs, "cannot see redis")
			require.Regexp(t, `global +resend +4\.5/s +1 +222\.2ms +\? +\? +\? +\?/none`, out)
		}
	})

	t.Run("RefusesWhatCannotBe", func(t *testing.T) {
		for says, args := range map[string][]string{
			"there are resend, sms, smtp":         {"--provider=pigeon", "--rate=1"},
			"nothing to set":                      {"--provider=resend"},
			"serves both rails":                   {"--provider=resend", "--rail=marketing", "--rate=1"},
			"above the 5":                         {"--provider=resend", "--rate=6"},
			"rate: NaN":                           {"--provider=resend", "--rate=NaN"},
			"capacity: 0":                         {"--provider=resend", "--capacity=0"},
			"reserve: 1":                          {"--provider=resend", "--reserve=1"},
			"there is no tenant":                  {"--provider=resend", "--tenant=nobody", "--rate=1"},
			"quotas and the reserve are of the p": {"--provider=resend", "--tenant=acme", "--rate=1", "--day-quota=5"},
			"--tenant and --every-tenant can't":   {"--provider=resend", "--tenant=acme", "--every-tenant", "--rate=1"},
		} {
			code, out, errs := ask(append([]string{"set"}, args...)...)
			require.Equal(t, exitUsage, code, says)
			require.Contains(t, errs, says)
			require.Empty(t, out)
		}
		code, _, errs := ask("reset", "--provider=pigeon")
		require.Equal(t, exitUsage, code, errs)
		require.Equal(t, "resend: 4.5/s, capacity 1 (default) -> 6/s, capacity 1", set("--provider=resend", "--rate=6", "--force"))
	})

	// FS-MSG-0005: a tenant does not adjust our limits.
	t.Run("IsNoRoute", func(t *testing.T) {
		require.NotRegexp(t, `(?m)^  /\S*(bucket|rate.limit|quota)`, string(openapi.YAML))
	})
}
