package rail_test

import (
	"context"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/softcrum/carril/dispatcher/bucket"
	"github.com/softcrum/carril/dispatcher/provider"
	"github.com/softcrum/carril/dispatcher/rail"
	"github.com/softcrum/carril/internal/ratelimit"
	"github.com/softcrum/carril/internal/testkit"
	"github.com/softcrum/carril/schemas"
)

func (b *bench) redis() *redis.Client {
	b.t.Helper()
	rdb, err := ratelimit.Open(b.redisURL)
	require.NoError(b.t, err)
	b.t.Cleanup(func() { _ = rdb.Close() })
	return rdb
}

// monitor runs the channel's monitor and a reader of its word.
func (b *bench) monitor(rate float64, change ...func(*rail.YieldConfig)) *rail.YieldReader {
	b.t.Helper()
	cfg := rail.YieldConfig{Budget: 2 * time.Second, SendP95: 50 * time.Millisecond, ResumeFor: 500 * time.Millisecond, Least: 500 * time.Millisecond}
	for _, f := range change {
		f(&cfg)
	}
	rdb := b.redis()
	limiter, err := bucket.New(bucket.Config{Prefix: b.prefix, Asker: "monitor", Providers: map[string]bucket.Stated{"fake": {RatePerSecond: rate}}}, bucket.Deps{Redis: rdb})
	require.NoError(b.t, err)
	m := rail.NewMonitor(rail.MonitorConfig{Channel: "email", Prefix: b.prefix, Every: 50 * time.Millisecond, Life: time.Second, Yield: cfg},
		rail.MonitorDeps{Kafka: b.kafka, Admin: kadm.NewClient(b.producer), Redis: rdb, Pool: b.pool, Buckets: limiter, Provider: "fake", Log: testkit.Logger(b.t)})
	reader := rail.NewYieldReader(rdb, b.prefix, "email", 20*time.Millisecond)
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { _ = m.Run(ctx) })
	wg.Go(func() { _ = reader.Run(ctx) })
	b.t.Cleanup(func() { cancel(); wg.Wait() })
	return reader
}

// FS-MSG-0005 AC2
func TestYield(t *testing.T) {
	t.Parallel()
	t.Run("StopsMarketingWhileTransactionalIsBehindAndLetsItBack", func(t *testing.T) {
		t.Parallel()
		b := newBench(t)
		reader := b.monitor(20)
		b.fake.latency = 20 * time.Millisecond
		b.start(setup{rate: 20})
		b.start(setup{rail: schemas.RailMarketing, rate: 20, yield: reader})
		_, first := b.enqueueBatch(b.tenant, 5, nil)
		b.eventually("marketing runs on a rail without any traffic (I10)", func() bool { return b.fake.delivered(first[0]) == 1 })
		codes := b.enqueue(make([]job, 60)...) // three seconds at the rate
		b.eventually("marketing yields", func() bool { yield, _ := reader.Yielding(); return yield })
		_, held := b.enqueueBatch(b.tenant, 5, nil)
		b.eventually("marketing is back", func() bool { return b.fake.delivered(held[0]) == 1 })
		for _, id := range codes {
			require.Equal(t, 1, b.fake.delivered(id), "the codes went before")
		}
	})

	// I10
	t.Run("DoesNotMindFivePartitionsOfSixWithoutTraffic", func(t *testing.T) {
		t.Parallel()
		b := newBenchOf(t, false)
		reader := b.monitor(1000)
		b.eventually("a fresh install lets marketing run", func() bool { yield, _ := reader.Yielding(); return !yield })
		b.start(setup{})
		one := uuid.New() // one key, one partition
		for range 20 {
			b.enqueue(job{contact: one})
		}
		b.await(20, "sent")
		b.drained()
		b.start(setup{rail: schemas.RailMarketing, yield: reader})
		_, all := b.enqueueBatch(b.tenant, 3, nil)
		b.eventually("marketing runs", func() bool { return b.fake.delivered(all[0]) == 1 })
		busy := b.count(`SELECT count(*) FROM core.stream_positions WHERE stage = 'rail:email.transactional' AND next_offset > 0`)
		require.Equal(t, 1, busy)
	})

	t.Run("NeedsAWorkerBesideABacklog", func(t *testing.T) {
		t.Parallel()
		b := newBench(t)
		reader := b.monitor(1000)
		b.eventually("nothing stands in the way", func() bool { yield, _ := reader.Yielding(); return !yield })
		b.enqueue(job{})
		b.eventually("nobody works on the backlog", func() bool { _, why := reader.Yielding(); return why == "blind: no_worker" })
		b.start(setup{})
		b.await(1, "sent")
		b.eventually("all is well again", func() bool { yield, _ := reader.Yielding(); return !yield })
	})

	// I49
	t.Run("IsNotCausedByATenantBehindItsOwnBucket", func(t *testing.T) {
		t.Parallel()
		b := newBench(t)
		b.exec(`INSERT INTO messaging.rate_limit_buckets (scope, provider, tenant_id, rail, capacity, refill_per_second) VALUES ('tenant', 'fake', $1, 'transactional', 1, 2)`, b.tenant)
		b.sweep()
		reader := b.monitor(1000, func(c *rail.YieldConfig) { c.Budget, c.SendP95 = 5*time.Second, 300*time.Millisecond })
		b.start(setup{rate: 1000, cfg: func(c *rail.Config) { c.Budget = 5 * time.Second }})
		other := b.addTenant("other")
		b.start(setup{rail: schemas.RailMarketing, rate: 1000, yield: reader})
		waiting := make([]job, 300)
		for i := range waiting {
			waiting[i].state = "waiting"
		}
		b.enqueue(waiting...)
		b.eventually("the backlog is parked or waits", func() bool {
			return b.count(`SELECT count(*) FROM core.processed_jobs WHERE id_time > now() - interval '1 day' AND reason = 'tenant_bucket'`) > 50
		})
		_, theirs := b.enqueueBatch(other, 5, nil)
		b.eventually("another tenant's marketing runs", func() bool { return b.fake.delivered(theirs[4]) == 1 })
		require.Less(t, b.count(`SELECT count(*) FROM core.processed_jobs WHERE id_time > now() - interval '1 day' AND worker = 'rail:email.transactional' AND state = 'sent'`), 300)

		h := rail.Health(t.Context(), b.healthDeps("fake"))
		tx := h.Channels[0].Rails[0]
		require.Empty(t, h.Channels[0].CannotSee)
		require.Greater(t, *tx.Parked+*tx.Waiting, int64(200), "parking hides nothing")
		require.Equal(t, *tx.Depth, *tx.Lag+*tx.Parked+*tx.Waiting+*tx.Held)
		require.Equal(t, 1, *tx.Workers)
		require.InDelta(t, 900, tx.Bucket.RatePerSecond, 1)
		require.Equal(t, "tenant_bucket", tx.LastError.Reason)
	})

	t.Run("IsTheAnswerToSilence", func(t *testing.T) {
		t.Parallel()
		b := newBench(t)
		rdb := b.redis()
		reader := rail.NewYieldReader(rdb, b.prefix, "email", 10*time.Millisecond)
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan struct{})
		go func() { defer close(done); _ = reader.Run(ctx) }()
		t.Cleanup(func() { cancel(); testkit.Ends(t, "the reader of the yield", func() { <-done }) })
		yield, _ := reader.Yielding()
		require.True(t, yield, "before anything was read")
		b.eventually("no word is a yield", func() bool { yield, why := reader.Yielding(); return yield && why == "no_word" })
		require.NoError(t, rdb.Set(ctx, rail.YieldKey(b.prefix, "email"), `{"yield":false,"at":"2026-01-01T00:00:00Z"}`, 0).Err())
		b.eventually("a fresh word counts", func() bool { yield, _ := reader.Yielding(); return !yield })
		b.eventually("one that never changes does not", func() bool { yield, why := reader.Yielding(); return yield && why == "old_word" })
	})
}

func (b *bench) healthDeps(name string) rail.HealthDeps {
	rdb := b.redis()
	limiter, err := bucket.New(bucket.Config{Prefix: b.prefix, Asker: "health", Providers: map[string]bucket.Stated{name: {RatePerSecond: 1000}}}, bucket.Deps{Redis: rdb})
	require.NoError(b.t, err)
	return rail.HealthDeps{Pool: b.pool, Kafka: b.kafka, Admin: kadm.NewClient(b.producer), Redis: rdb, Prefix: b.prefix, Buckets: limiter, Channels: []string{"email"},
		Providers: map[string]string{schemas.RailWorker("email", "transactional"): name, schemas.RailWorker("email", "marketing"): name}, Budget: 30 * time.Second} // the budget is no test's business here
}

func TestHealthSaysWhatItCannotSee(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	d := b.healthDeps("fake")
	broken := b.redis()
	require.NoError(t, broken.Close())
	d.Redis = broken
	limiter, err := bucket.New(bucket.Config{Prefix: b.prefix, Asker: "health", Providers: map[string]bucket.Stated{"fake": {RatePerSecond: 1000}}}, bucket.Deps{Redis: broken})
	require.NoError(t, err)
	d.Buckets = limiter
	var h rail.QueueHealth
	// A new broker needs a moment until it keeps the offsets of groups.
	b.eventually("Kafka can be seen", func() bool {
		h = rail.Health(t.Context(), d)
		return !slices.Contains(h.Channels[0].CannotSee, "transactional.kafka") && !slices.Contains(h.Channels[0].CannotSee, "marketing.kafka")
	})
	require.Equal(t, []string{"yield", "transactional.buckets", "marketing.buckets"}, h.Channels[0].CannotSee)
	require.NotNil(t, h.Channels[0].Rails[0].Depth)
	require.Nil(t, h.Channels[0].Rails[0].Bucket)
}

// A store that hangs takes the whole budget; what the others know is seen all
// the same.
func TestHealthSeesPastAStoreThatHangs(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	listener, err := net.Listen("tcp", "127.0.0.1:0") // takes connections and never answers
	require.NoError(t, err)
	t.Cleanup(func() { _ = listener.Close() })
	hung := listener.Addr().String()

	for name, c := range map[string]struct {
		hang func(d *rail.HealthDeps)
		want []string
		seen func(r rail.RailHealth) bool
	}{
		"Redis": {func(d *rail.HealthDeps) {
			rdb := redis.NewClient(&redis.Options{Addr: hung, ContextTimeoutEnabled: true, MaxRetries: -1, DialTimeout: time.Minute, ReadTimeout: time.Minute})
			t.Cleanup(func() { _ = rdb.Close() })
			limiter, err := bucket.New(bucket.Config{Prefix: b.prefix, Asker: "health", Providers: map[string]bucket.Stated{"fake": {RatePerSecond: 1000}}}, bucket.Deps{Redis: rdb})
			require.NoError(t, err)
			d.Redis, d.Buckets = rdb, limiter
		}, []string{"yield", "transactional.buckets", "marketing.buckets"}, func(r rail.RailHealth) bool { return r.Depth != nil && r.Bucket == nil }},
		"PostgreSQL": {func(d *rail.HealthDeps) {
			pool, err := pgxpool.New(context.Background(), "postgres://carril@"+hung+"/carril?sslmode=disable&connect_timeout=60")
			require.NoError(t, err)
			t.Cleanup(pool.Close)
			d.Pool = pool
		}, []string{"transactional.postgres", "marketing.postgres"}, func(r rail.RailHealth) bool { return r.Lag != nil && r.Bucket != nil && r.Depth == nil }},
	} {
		t.Run(name, func(t *testing.T) {
			d := b.healthDeps("fake")
			d.Budget = 3 * time.Second
			c.hang(&d)
			b.eventually("what answers is seen", func() bool {
				h := rail.Health(context.Background(), d).Channels[0]
				return slices.Equal(c.want, h.CannotSee) && c.seen(h.Rails[0]) && c.seen(h.Rails[1])
			})
		})
	}
}

// F30: a provider that fails for a while meets one request at a time.
func TestBreaker(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.sweep()
	var mu sync.Mutex
	var at []time.Time
	b.fake.set(func(n int, r provider.Request) (provider.Result, error) {
		mu.Lock()
		defer mu.Unlock()
		if len(at) < 12 {
			at = append(at, time.Now())
			return provider.Result{}, &provider.Error{Class: provider.ClassRetryable, Status: 503, Code: "unavailable"}
		}
		return b.fake.take(r)
	})
	all := b.enqueue(make([]job, 40)...)
	b.start(setup{cfg: func(c *rail.Config) { c.Concurrency, c.BackoffMax = 4, 50*time.Millisecond }})
	b.await(40, "sent")
	for _, id := range all {
		require.Equal(t, 1, b.fake.delivered(id))
	}
	mu.Lock()
	defer mu.Unlock()
	// Once it is open (five in a row, and what was on its way) each probe waits.
	for i := 9; i < 12; i++ {
		require.Greater(t, at[i].Sub(at[i-1]), 120*time.Millisecond, "probe %d", i)
	}
}
