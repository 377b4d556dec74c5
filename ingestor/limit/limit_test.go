package limit

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/softcrum/carril/ingestor/apikey"
	"github.com/softcrum/carril/internal/ratelimit"
	"github.com/softcrum/carril/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m, func() error { return goleak.Find() }) }

// patient waits for Redis as long as a loaded test machine may need: the tests
// of what Redis decides must not end in a local decision.
const patient = 10 * time.Second

// open gives a client of the test's Redis and its prefix.
func open(t testing.TB) (rdb *redis.Client, prefix string) {
	t.Helper()
	url, prefix := testkit.Redis(t)
	rdb, err := ratelimit.Open(url)
	require.NoError(t, err)
	t.Cleanup(func() { _ = rdb.Close() })
	return rdb, prefix
}

func newLimiter(t testing.TB, rdb redis.Scripter, cfg Config) *Limiter {
	t.Helper()
	l, err := New(cfg, Deps{Redis: rdb, Metrics: prometheus.NewRegistry(), Log: testkit.Logger(t)})
	require.NoError(t, err)
	t.Cleanup(l.Stop)
	return l
}

// of is a key of a tenant with a plan's limits.
func of(rate, burst int) *apikey.Principal {
	return &apikey.Principal{KeyID: "k1", TenantID: uuid.New(), Tenant: apikey.Tenant{EventsPerSecond: rate, EventsBurst: burst}}
}

// withOwn is another key of the same tenant, with a limit of its own.
func withOwn(p *apikey.Principal, id string, rate, burst int) *apikey.Principal {
	q := *p
	q.KeyID, q.Rate = id, apikey.Rate{PerSecond: rate, Burst: burst}
	return &q
}

func take(l *Limiter, p *apikey.Principal, n int) time.Duration {
	return l.Take(context.Background(), p, n, http.Header{})
}

// taken counts how many single events pass before one is refused.
func taken(l *Limiter, p *apikey.Principal, most int) (n int) {
	for n < most && take(l, p, 1) == 0 {
		n++
	}
	return n
}

func TestLimits(t *testing.T) {
	t.Parallel()
	rdb, prefix := open(t)
	l := newLimiter(t, rdb, Config{Prefix: prefix, Budget: patient})
	// A rate of one a second refills too slowly to matter in these tests.
	t.Run("LetTheBurstPassAndNoMore", func(t *testing.T) {
		t.Parallel()
		p := of(1, 50)
		require.InDelta(t, 50, taken(l, p, 100), 2)
		require.Positive(t, take(l, p, 1))
		require.LessOrEqual(t, take(l, p, 1), time.Second)
	})
	t.Run("ChargeABatchByItsEvents", func(t *testing.T) {
		t.Parallel()
		p := of(1, 600)
		require.Zero(t, take(l, p, 500))
		wait := take(l, p, 500)
		require.InDelta(t, 400, wait.Seconds(), 5, "until the missing 400 are there")
		require.Zero(t, take(l, p, 90), "what a large one was refused is left for small ones")
	})
	t.Run("LetABatchAboveTheBurstIntoDebt", func(t *testing.T) {
		t.Parallel()
		p := of(1, 100)
		require.Zero(t, take(l, p, 500))
		require.InDelta(t, 401, take(l, p, 1).Seconds(), 5, "the debt is paid first")
		require.InDelta(t, 450, take(l, p, 500).Seconds(), 5, "half of the burst must be there for the next")
	})
	t.Run("LetABatchAboveTheBurstPassBesideSmallOnes", func(t *testing.T) {
		t.Parallel()
		p := of(1, 100)
		require.Equal(t, 40, taken(l, p, 40))
		require.Zero(t, take(l, p, 500), "a bucket that is never quite full is no eternal 429")
	})
	t.Run("OfAKeyStandBesideThoseOfItsTenant", func(t *testing.T) {
		t.Parallel()
		p := of(1, 100)
		small := withOwn(p, "small", 1, 10)
		require.InDelta(t, 10, taken(l, small, 50), 2)
		require.InDelta(t, 90, taken(l, p, 200), 4, "the tenant has the rest")
		require.Positive(t, take(l, withOwn(p, "other", 1, 10), 5), "and a key cannot have what its tenant lacks")
	})
	t.Run("OfAKeyChargeNothingOfTheTenantWhenTheyRefuse", func(t *testing.T) {
		t.Parallel()
		p := of(1, 100)
		small := withOwn(p, "small", 1, 10)
		require.Zero(t, take(l, small, 10))
		for range 20 {
			require.Positive(t, take(l, small, 5))
		}
		require.InDelta(t, 90, taken(l, p, 200), 4)
	})
	t.Run("OfOneTenantAreNotAnothers", func(t *testing.T) { // faults P7
		t.Parallel()
		a, b := of(1, 20), of(1, 20)
		taken(l, a, 100)
		require.InDelta(t, 20, taken(l, b, 100), 2)
	})
	t.Run("ChangeWithThePlan", func(t *testing.T) {
		t.Parallel()
		p := of(1, 20)
		taken(l, p, 100)
		richer := *p
		richer.Tenant.EventsPerSecond, richer.Tenant.EventsBurst = 1, 120
		require.InDelta(t, 100, taken(l, &richer, 300), 3, "the burst is larger by a hundred")
	})
	t.Run("AreNoneWithoutARate", func(t *testing.T) {
		t.Parallel()
		h := http.Header{}
		require.Zero(t, l.Take(t.Context(), of(0, 0), 500, h))
		require.Empty(t, h)
	})
}

func TestReplicas(t *testing.T) {
	t.Parallel()
	rdb, prefix := open(t)
	t.Run("ShareOneRate", func(t *testing.T) {
		t.Parallel()
		const rate, burst = 100, 200 // what a stall of two seconds leaves undone is not lost
		p := of(rate, burst)
		var passed atomic.Int64
		var wg sync.WaitGroup
		begin := time.Now()
		for range 2 {
			l := newLimiter(t, rdb, Config{Prefix: prefix, Budget: patient})
			for range 4 {
				wg.Go(func() {
					for time.Since(begin) < 5*time.Second {
						if wait := take(l, p, 1); wait == 0 {
							passed.Add(1)
						} else {
							time.Sleep(min(wait, 5*time.Millisecond)) // as a client would, and sooner
						}
					}
				})
			}
		}
		wg.Wait()
		allowed := burst + rate*time.Since(begin).Seconds()
		require.LessOrEqual(t, float64(passed.Load()), allowed+1)
		require.Greater(t, float64(passed.Load()), allowed*0.7, "and the rate can be used")
	})
	t.Run("SeeEachOthersDebt", func(t *testing.T) {
		t.Parallel()
		p := of(1, 100)
		a, b := newLimiter(t, rdb, Config{Prefix: prefix, Budget: patient}), newLimiter(t, rdb, Config{Prefix: prefix, Budget: patient})
		require.Zero(t, take(a, p, 500))
		require.InDelta(t, 401, take(b, p, 1).Seconds(), 5)
	})
}

func TestLeases(t *testing.T) {
	t.Parallel()
	rdb, prefix := open(t)
	t.Run("AreFewForABusyTenant", func(t *testing.T) {
		t.Parallel()
		l := newLimiter(t, rdb, Config{Prefix: prefix, Budget: patient})
		p := of(100_000, 200_000)
		for range 20_000 {
			require.Zero(t, take(l, p, 1))
		}
		l.Stop()
		require.Less(t, testutil.ToFloat64(l.metrics.leases.WithLabelValues("granted")), 60.0)
	})
	t.Run("HoldLittleForAQuietOne", func(t *testing.T) {
		t.Parallel()
		a, b := newLimiter(t, rdb, Config{Prefix: prefix, Budget: patient}), newLimiter(t, rdb, Config{Prefix: prefix, Budget: patient})
		p := of(5, 20)
		require.Zero(t, take(a, p, 1))
		require.InDelta(t, 19, taken(b, p, 50), 2, "the first replica holds none of the burst")
	})
	t.Run("AreLetGoWhenNobodyUsesThem", func(t *testing.T) {
		t.Parallel()
		l := newLimiter(t, rdb, Config{Prefix: prefix, Budget: patient, Hold: time.Millisecond})
		p := of(10, 100)
		tn := l.tenant(p)
		tn.shared.tokens, tn.shared.block = 7, 8
		tn.plan.set(10, 100)
		tn.mu.Lock()
		b := tn.budget(p, l.now()+int64(time.Second))
		tn.mu.Unlock()
		require.Zero(t, b.tokens)
	})
	t.Run("AreOneAtATimeForAllWhoWait", func(t *testing.T) {
		t.Parallel()
		slow := &held{Scripter: rdb, asked: make(chan struct{}, 100), release: make(chan struct{})}
		l := newLimiter(t, slow, Config{Prefix: prefix, Budget: patient})
		p := of(1, 100)
		var wg sync.WaitGroup
		var passed atomic.Int64
		for range 50 {
			wg.Go(func() {
				if take(l, p, 1) == 0 {
					passed.Add(1)
				}
			})
		}
		<-slow.asked
		require.Eventually(t, func() bool {
			tn := l.tenant(p)
			tn.mu.Lock()
			defer tn.mu.Unlock()
			return tn.shared.waiting == 49
		}, patient, time.Millisecond)
		require.Empty(t, slow.asked, "one ask is under way")
		close(slow.release)
		wg.Wait()
		l.Stop()
		require.EqualValues(t, 50, passed.Load())
		require.LessOrEqual(t, testutil.ToFloat64(l.metrics.leases.WithLabelValues("granted")), 4.0, "the second lease is for all who wait")
	})
	t.Run("OfARefusedTenantCostRedisNothing", func(t *testing.T) {
		t.Parallel()
		l := newLimiter(t, rdb, Config{Prefix: prefix, Budget: patient})
		p := of(1, 10)
		taken(l, p, 50)
		l.leases.Wait()
		before := testutil.ToFloat64(l.metrics.leases.WithLabelValues("refused"))
		refused := 0
		for range 1_000 {
			if take(l, p, 1) > 0 {
				refused++
			}
		}
		require.Greater(t, refused, 990)
		require.LessOrEqual(t, testutil.ToFloat64(l.metrics.leases.WithLabelValues("refused")), before+5)
		require.Positive(t, l.Refused(p, http.Header{}))
	})
	t.Run("AreForgottenWithIdleTenants", func(t *testing.T) {
		t.Parallel()
		l := newLimiter(t, rdb, Config{Prefix: prefix, Budget: patient, MaxTenants: 10, MaxKeys: 3})
		for range 50 {
			require.Zero(t, take(l, of(1, 10), 1))
		}
		require.LessOrEqual(t, len(l.tenants), 10)
		p := of(1, 1000)
		for i := range 20 {
			require.Zero(t, take(l, withOwn(p, fmt.Sprint("k", i), 1, 10), 1))
		}
		require.LessOrEqual(t, len(l.tenant(p).keys), 3)
	})
}

// held is a Redis that answers when it is released.
type held struct {
	redis.Scripter
	asked   chan struct{}
	release chan struct{}
}

func (h *held) EvalSha(ctx context.Context, sha string, keys []string, args ...any) *redis.Cmd {
	h.asked <- struct{}{}
	select {
	case <-h.release:
		return h.Scripter.EvalSha(ctx, sha, keys, args...)
	case <-ctx.Done():
		return redis.NewCmdResult(nil, ctx.Err())
	}
}

func TestRedisAway(t *testing.T) { // faults P8, F27
	t.Parallel()
	t.Run("IsNoReasonToWaitOrToRefuse", func(t *testing.T) {
		t.Parallel()
		url, prefix := testkit.Redis(t)
		opts, err := redis.ParseURL(url)
		require.NoError(t, err)
		proxy := testkit.NewProxy(t, opts.Addr)
		rdb, err := ratelimit.Open("redis://" + proxy.Addr() + "/" + strconv.Itoa(opts.DB))
		require.NoError(t, err)
		t.Cleanup(func() { _ = rdb.Close() })
		const rate, burst = 50, 100
		l := newLimiter(t, rdb, Config{Prefix: prefix, Retry: 20 * time.Millisecond})
		p := of(rate, burst)
		for name, broken := range map[string]func(){"Hanging": proxy.Blackhole, "Down": proxy.Refuse} {
			broken()
			begin, passed, slow, all := time.Now(), 0, 0, 0
			for time.Since(begin) < 500*time.Millisecond {
				at := time.Now()
				all++
				if take(l, p, 1) == 0 {
					passed++
				}
				if time.Since(at) > 20*time.Millisecond {
					slow++
				}
			}
			require.Positive(t, passed, name)
			require.LessOrEqual(t, float64(passed), burst+rate*time.Since(begin).Seconds()+burst, name+": at the same rate")
			require.Less(t, slow*20, all, name+": the first waits out the budget, and nobody after it")
			require.InDelta(t, 1, testutil.ToFloat64(l.metrics.away), 0)
			proxy.Pass()
			require.Eventually(t, func() bool {
				take(l, p, 1)
				return testutil.ToFloat64(l.metrics.away) == 0
			}, patient, 5*time.Millisecond, name+": it is found again")
		}
	})
	t.Run("GivesNoSecondBurst", func(t *testing.T) {
		t.Parallel()
		rdb, prefix := open(t)
		flaky := &held{Scripter: rdb, asked: make(chan struct{}, 1000), release: make(chan struct{})}
		close(flaky.release)
		l := newLimiter(t, flaky, Config{Prefix: prefix, Budget: patient})
		p := of(1, 60)
		taken(l, p, 100)
		l.lost(context.DeadlineExceeded)
		require.LessOrEqual(t, taken(l, p, 100), 2, "it goes on from where the bucket stood")
	})
	t.Run("AFlushCostsOneBurst", func(t *testing.T) { // faults F28
		t.Parallel()
		rdb, prefix := open(t)
		l := newLimiter(t, rdb, Config{Prefix: prefix, Budget: patient})
		p := of(1, 60)
		taken(l, p, 100)
		for range 3 {
			keys := l.keys(p.TenantID, "")
			require.NoError(t, rdb.Del(t.Context(), keys.Provider).Err())
			tn := l.tenant(p)
			tn.mu.Lock()
			tn.shared.refused = 0 // as if a refusal's time had passed
			tn.mu.Unlock()
			require.InDelta(t, 60, taken(l, p, 200), 2)
		}
	})
	t.Run("HoldsTheRuleOfLargeBatches", func(t *testing.T) {
		t.Parallel()
		l := newLimiter(t, dead{}, Config{})
		p := of(1, 100)
		require.Zero(t, take(l, p, 500))
		require.InDelta(t, 401, take(l, p, 1).Seconds(), 5)
		small := withOwn(of(1, 1000), "small", 1, 10)
		require.Zero(t, take(l, small, 10))
		require.Positive(t, take(l, small, 1))
	})
	t.Run("BoundsWhatTheRequestWaits", func(t *testing.T) {
		t.Parallel()
		never := &held{Scripter: dead{}, asked: make(chan struct{}, 1000), release: make(chan struct{})}
		l := newLimiter(t, never, Config{Budget: 30 * time.Millisecond})
		p := of(1000, 1000)
		var wg sync.WaitGroup
		begin := time.Now()
		for range 40 {
			wg.Go(func() { take(l, p, 1) })
		}
		wg.Wait()
		require.Less(t, time.Since(begin), 30*time.Second)
		require.EqualValues(t, 40, testutil.ToFloat64(l.metrics.passedAlone))
		require.Len(t, never.asked, 1, "all waited for one ask, and then for none")
	})
}

// dead is a Redis that is not there.
type dead struct{ redis.Scripter }

func (dead) EvalSha(context.Context, string, []string, ...any) *redis.Cmd {
	return redis.NewCmdResult(nil, redis.ErrClosed)
}

func TestStop(t *testing.T) {
	t.Parallel()
	rdb, prefix := open(t)
	l := newLimiter(t, rdb, Config{Prefix: prefix, Budget: patient})
	p := of(1000, 1000)
	require.Zero(t, take(l, p, 1))
	l.Stop()
	require.Zero(t, take(l, p, 400), "decided without Redis")
	require.InDelta(t, 1, testutil.ToFloat64(l.metrics.passedAlone), 0)
}

func TestNewRefusesWhatCannotBe(t *testing.T) {
	t.Parallel()
	good := Deps{Redis: dead{}, Metrics: prometheus.NewRegistry()}
	for name, cfg := range map[string]Config{"Budget": {Budget: -1}, "Tenants": {MaxTenants: -1}} {
		_, err := New(cfg, good)
		require.Error(t, err, name)
	}
	_, err := New(Config{}, Deps{Redis: dead{}})
	require.Error(t, err)
	_, err = New(Config{}, good)
	require.NoError(t, err)
	_, err = New(Config{}, good)
	require.Error(t, err, "metrics twice")
}
