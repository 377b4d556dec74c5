package bucket_test

import (
	"context"
	"net/url"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/softcrum/carril/dispatcher/bucket"
	"github.com/softcrum/carril/internal/ratelimit"
	"github.com/softcrum/carril/internal/testkit"
	"github.com/softcrum/carril/schemas"
)

func TestMain(m *testing.M) { testkit.Main(m, func() error { return goleak.Find() }) }

const provider = "acme"

type bundle struct {
	*bucket.Limiter
	proxy *testkit.Proxy
	pool  *pgxpool.Pool
}

// setup gives a limiter whose Redis stands behind a proxy, and is waited for as
// long as it takes.
func setup(t *testing.T, rate float64, pool *pgxpool.Pool) *bundle {
	t.Helper()
	return setupWith(t, rate, pool, 30*time.Second)
}

func setupWith(t *testing.T, rate float64, pool *pgxpool.Pool, budget time.Duration) *bundle {
	t.Helper()
	rawURL, prefix := testkit.Redis(t)
	u, err := url.Parse(rawURL)
	require.NoError(t, err)
	proxy := testkit.NewProxy(t, u.Host)
	u.Host = proxy.Addr()
	rdb, err := ratelimit.Open(u.String())
	require.NoError(t, err)
	t.Cleanup(func() { _ = rdb.Close() })
	l, err := bucket.New(bucket.Config{
		Prefix: prefix, Asker: "p1", Providers: map[string]bucket.Stated{provider: {RatePerSecond: rate}},
		Retry: 20 * time.Millisecond, Refresh: 50 * time.Millisecond, Budget: budget,
	}, bucket.Deps{Redis: rdb, Pool: pool, Listen: pool, Log: testkit.Logger(t), Metrics: bucket.NewMetrics(prometheus.NewRegistry(), []string{provider})})
	require.NoError(t, err)
	return &bundle{Limiter: l, proxy: proxy, pool: pool}
}

func (b *bundle) ask(t *testing.T, tenant uuid.UUID, rail string) bucket.Answer {
	return b.Ask(t.Context(), bucket.Ask{Provider: provider, Tenant: tenant, Rail: rail, Messages: 1})
}

func TestLimiter(t *testing.T) {
	t.Parallel()
	a, b := uuid.New(), uuid.New()

	t.Run("UsesNinetyPercentOfTheStatedRateOneAtATime", func(t *testing.T) {
		t.Parallel()
		l := setup(t, 0.5, nil)
		require.True(t, l.ask(t, a, schemas.RailMarketing).Granted)
		got := l.ask(t, a, schemas.RailMarketing)
		require.Equal(t, ratelimit.Provider, got.Reason)
		require.InDelta(t, 2220, got.Wait.Milliseconds(), 2000)
	})

	t.Run("RenewsATokenFromTheProvidersBucketAlone", func(t *testing.T) {
		t.Parallel()
		l := setup(t, 2, nil)
		for _, rail := range []string{schemas.RailTransactional, schemas.RailMarketing} {
			require.Eventually(t, func() bool { return l.ask(t, a, rail).Granted }, 30*time.Second, 10*time.Millisecond)
			at := time.Now()
			ask := bucket.Ask{Provider: provider, Tenant: a, Rail: rail, Messages: 5}
			require.False(t, l.Renew(t.Context(), ask, 0), "the next one is half a second away")
			require.True(t, l.Renew(t.Context(), ask, 30*time.Second))
			require.Greater(t, time.Since(at), 200*time.Millisecond)
		}
		got, err := l.Levels(t.Context(), provider)
		require.NoError(t, err)
		require.LessOrEqual(t, got.DayUsed, 2, "one message an ask; a renewal charges none")
	})

	// FS-MSG-0005 AC5
	t.Run("SpendsNothingOfAnotherTenantsBucket", func(t *testing.T) {
		t.Parallel()
		pool := testkit.Pool(t)
		l := setup(t, 1000, pool)
		_, err := pool.Exec(t.Context(), `INSERT INTO messaging.rate_limit_buckets (scope, provider, tenant_id, rail, capacity, refill_per_second)
VALUES ('global', $1, NULL, NULL, 1000, 1000), ('tenant', $1, NULL, NULL, 2, 0.001), ('tenant', $1, $2, 'marketing', 3, 0.001)`, provider, a)
		require.NoError(t, err)
		require.NoError(t, l.Load(t.Context()))
		count := func(tenant uuid.UUID, rail string) (n int) {
			for range 6 {
				if l.ask(t, tenant, rail).Granted {
					n++
				}
			}
			return n
		}
		require.Equal(t, 3, count(a, schemas.RailMarketing))
		require.Equal(t, 2, count(a, schemas.RailTransactional), "the rails of one tenant are apart")
		require.Equal(t, 2, count(b, schemas.RailTransactional))
		require.Equal(t, ratelimit.Tenant, l.ask(t, b, schemas.RailTransactional).Reason)
	})

	t.Run("HearsOfAChangeWithoutARestart", func(t *testing.T) {
		t.Parallel()
		pool := testkit.Pool(t)
		l := setup(t, 1000, pool)
		ctx, cancel := testContext(t)
		done := make(chan struct{})
		go func() { defer close(done); _ = l.Run(ctx) }()
		defer func() { cancel(); <-done }()
		_, err := pool.Exec(t.Context(), `INSERT INTO messaging.rate_limit_buckets (scope, provider, capacity, refill_per_second) VALUES ('global', $1, 7, 3)`, provider)
		require.NoError(t, err)
		require.Eventually(t, func() bool {
			g, _ := l.Rates(provider, a, schemas.RailMarketing)
			return g.Rate == 3 && g.Capacity == 7
		}, 30*time.Second, 5*time.Millisecond)
	})

	// F27
	t.Run("StopsMarketingAndPacesTransactionalWhileRedisIsAway", func(t *testing.T) {
		t.Parallel()
		l := setupWith(t, 100, nil, 100*time.Millisecond)
		for _, broken := range []func(){l.proxy.Refuse, l.proxy.Blackhole} {
			l.proxy.Pass()
			require.Eventually(t, func() bool {
				return l.ask(t, a, schemas.RailTransactional).Reason != bucket.RedisAway && l.ask(t, a, schemas.RailMarketing).Reason != bucket.RedisAway
			}, 30*time.Second, 5*time.Millisecond)
			broken()
			require.Eventually(t, func() bool { return l.ask(t, a, schemas.RailMarketing).Reason == bucket.RedisAway }, 30*time.Second, 5*time.Millisecond)
			granted, started := 0, time.Now()
			for time.Since(started) < 500*time.Millisecond {
				got := l.ask(t, a, schemas.RailTransactional)
				if got.Granted {
					granted++
				}
				require.NotEqual(t, bucket.RedisAway, got.Reason)
				time.Sleep(min(got.Wait, 5*time.Millisecond))
			}
			require.Positive(t, granted)
			require.LessOrEqual(t, float64(granted), 90*time.Since(started).Seconds()+1, "no faster than the rate")
		}
		l.proxy.Pass()
		require.Eventually(t, func() bool { return l.ask(t, b, schemas.RailMarketing).Granted }, 30*time.Second, 5*time.Millisecond, "it comes back by itself")
	})

	t.Run("KeepsABlockWhileRedisIsAway", func(t *testing.T) {
		t.Parallel()
		l := setup(t, 100, nil)
		l.proxy.Refuse()
		l.Report(t.Context(), bucket.Report{Provider: provider, Throttled: true, RetryIn: time.Minute, DayUsed: -1, MonthUsed: -1})
		got := l.ask(t, a, schemas.RailTransactional)
		require.Equal(t, ratelimit.Blocked, got.Reason)
		require.Greater(t, got.Wait, 50*time.Second)
	})

	t.Run("RefusesAProviderWithoutARate", func(t *testing.T) {
		t.Parallel()
		_, err := bucket.New(bucket.Config{Asker: "x", Providers: map[string]bucket.Stated{"p": {}}}, bucket.Deps{})
		require.ErrorContains(t, err, "states no rate")
	})
}

func testContext(t *testing.T) (context.Context, context.CancelFunc) {
	return context.WithCancel(t.Context())
}
