package ingestor

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sr"

	"github.com/softcrum/carril/ingestor/apikey"
	"github.com/softcrum/carril/ingestor/limit"
	"github.com/softcrum/carril/internal/httpserver"
	"github.com/softcrum/carril/internal/kafka"
	"github.com/softcrum/carril/internal/pg"
	"github.com/softcrum/carril/internal/ratelimit"
	"github.com/softcrum/carril/internal/testkit"
	"github.com/softcrum/carril/schemas"
)

// margin is what a busy machine may add to a promise of seconds; what it tells
// apart is an answer in time from one that waited for a client's own timeout.
const margin = 5 * time.Second

// door is the front door over the tier's services, each behind a proxy that
// breaks it.
type door struct {
	addr                             string
	reg                              *prometheus.Registry
	kafka, postgres, redis, registry *testkit.Proxy
	key                              string
	keys                             *apikey.Postgres // past the proxy
	topic                            string
	broker                           testkit.Broker
}

// through puts a proxy before the service that a URL names.
func through(t *testing.T, raw string) (string, *testkit.Proxy) {
	t.Helper()
	u, err := url.Parse(raw)
	require.NoError(t, err)
	p := testkit.NewProxy(t, u.Host)
	u.Host = p.Addr()
	return u.String(), p
}

func newDoor(t *testing.T) *door {
	t.Helper()
	d := &door{reg: prometheus.NewRegistry(), broker: testkit.Kafka(t)}
	log := slog.New(slog.DiscardHandler)
	codec := d.openCodec(t)
	queue := d.openQueue(t, codec)
	verifier := d.openKeys(t)
	redisURL, prefix := testkit.Redis(t)
	redisURL, d.redis = through(t, redisURL)
	rdb, err := ratelimit.Open(redisURL)
	require.NoError(t, err)
	t.Cleanup(func() { _ = rdb.Close() })
	limits, err := limit.New(limit.Config{Prefix: prefix}, limit.Deps{Redis: rdb, Metrics: d.reg})
	require.NoError(t, err)
	t.Cleanup(limits.Stop)
	api, err := New(Config{}, Deps{Keys: verifier, Queue: queue, Limits: limits, Log: log, Metrics: d.reg})
	require.NoError(t, err)
	r := httpserver.NewRouter()
	api.Mount(r)
	s, err := httpserver.New(httpserver.Config{Addr: "127.0.0.1:0"}, r, log)
	require.NoError(t, err)
	d.addr, err = s.Start(t.Context())
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Stop(context.Background())) })
	return d
}

func (d *door) openCodec(t *testing.T) *schemas.Codec {
	t.Helper()
	registryURL := testkit.Registry(t)
	direct, err := sr.NewClient(sr.URLs(registryURL))
	require.NoError(t, err)
	require.NoError(t, schemas.Register(t.Context(), direct, d.broker.Prefix, []string{"email"}))
	registryURL, d.registry = through(t, registryURL)
	cl, err := sr.NewClient(sr.URLs(registryURL))
	require.NoError(t, err)
	codec, err := schemas.NewCodec(cl, d.broker.Prefix)
	require.NoError(t, err)
	require.NoError(t, codec.Warm(t.Context(), schemas.TopicEvents, schemas.TopicEventsHistorical))
	return codec
}

func (d *door) openQueue(t *testing.T, codec *schemas.Codec) *Kafka {
	t.Helper()
	d.topic = d.broker.CreateTopic(schemas.TopicEvents, 4)
	d.broker.CreateTopic(schemas.TopicEventsHistorical, 1)
	d.kafka = testkit.NewProxy(t, d.broker.Brokers[0])
	cfg := kafka.Config{Brokers: d.broker.Brokers[:1], Prefix: d.broker.Prefix, SingleNode: true}
	client, err := cfg.NewProducer(append(ProducerConfig{}.Opts(), kgo.Dialer(d.kafka.Dial))...)
	require.NoError(t, err)
	t.Cleanup(client.Close)
	return NewKafka(cfg, client, codec)
}

func (d *door) openKeys(t *testing.T) *apikey.Verifier {
	t.Helper()
	dsn := testkit.Postgres(t)
	direct, err := pgxpool.New(t.Context(), dsn)
	require.NoError(t, err)
	t.Cleanup(direct.Close)
	tenant := uuid.New()
	_, err = direct.Exec(t.Context(), `INSERT INTO core.plans (plan_id, retention_months, events_per_second, events_burst) VALUES ('wide', 13, 100000, 200000)`)
	require.NoError(t, err)
	_, err = direct.Exec(t.Context(), `INSERT INTO core.tenants (tenant_id, slug, name, plan_id) VALUES ($1, 'acme', 'Acme', 'wide')`, tenant)
	require.NoError(t, err)
	d.keys = apikey.NewPostgres(direct)
	d.key, _, err = d.keys.Create(t.Context(), apikey.New{TenantID: tenant, Env: "live", Scopes: []string{apikey.ScopeEventsWrite}})
	require.NoError(t, err)
	dsn, d.postgres = through(t, dsn)
	pool, err := pgxpool.New(t.Context(), dsn)
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	v, err := apikey.NewVerifier(apikey.Config{}, apikey.Deps{Store: apikey.NewPostgres(pool), Notifier: pg.Listener{URL: dsn, Channel: apikey.Channel}, Metrics: d.reg})
	require.NoError(t, err)
	require.NoError(t, v.Start(t.Context()))
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		_ = v.Stop(ctx)
	})
	return v
}

// answerOf is an answer and how long it took.
type answerOf struct {
	status     int
	body       string
	retryAfter string
	took       time.Duration
}

func (d *door) send(key, idem string, padding int) (answerOf, error) {
	body := fmt.Sprintf(`{"event_name":"invoice.paid","idempotency_key":%q,"occurred_at":%q,"identifiers":{"external_id":"c-1"},"properties":{"note":%q}}`,
		idem, time.Now().UTC().Format(time.RFC3339), strings.Repeat("n", padding))
	req, err := http.NewRequest(http.MethodPost, "http://"+d.addr+trackPath, strings.NewReader(body))
	if err != nil {
		return answerOf{}, err
	}
	req.Header.Set("Authorization", "Bearer "+key)
	req.Header.Set("Content-Type", "application/json")
	tr := &http.Transport{}
	defer tr.CloseIdleConnections()
	began := time.Now()
	resp, err := (&http.Client{Transport: tr, Timeout: 30 * time.Second}).Do(req)
	if err != nil {
		return answerOf{}, err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	return answerOf{resp.StatusCode, string(b), resp.Header.Get("Retry-After"), time.Since(began)}, err
}

func (d *door) post(t *testing.T, idem string) answerOf {
	t.Helper()
	a, err := d.send(d.key, idem, 0)
	require.NoError(t, err)
	return a
}

// open waits until the door takes events.
func (d *door) open(t *testing.T, within time.Duration) {
	t.Helper()
	n := 0
	require.Eventually(t, func() bool {
		n++
		a, err := d.send(d.key, fmt.Sprint("open-", n, "-", time.Now().UnixNano()), 0)
		return err == nil && a.status == http.StatusAccepted
	}, within, tick)
}

// metric adds up a metric's series that carry the labels.
func (d *door) metric(t *testing.T, name string, labels ...string) (sum float64) {
	t.Helper()
	families, err := d.reg.Gather()
	require.NoError(t, err)
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		for _, m := range f.GetMetric() {
			have := map[string]string{}
			for _, l := range m.GetLabel() {
				have[l.GetName()] = l.GetValue()
			}
			all := true
			for i := 0; i < len(labels); i += 2 {
				all = all && have[labels[i]] == labels[i+1]
			}
			if all {
				sum += m.GetCounter().GetValue() + m.GetGauge().GetValue()
			}
		}
	}
	return sum
}

// count gives how many records the topic has, past the proxy.
func (d *door) count(t *testing.T) (n int64) {
	t.Helper()
	admin := kadm.NewClient(d.broker.Client())
	ends, err := admin.ListEndOffsets(t.Context(), d.topic)
	require.NoError(t, err)
	ends.Each(func(o kadm.ListedOffset) { n += o.Offset })
	return n
}

func heap() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapInuse
}

// TestDependencyAway takes each service away from a running front door (faults
// P8, F9, F27).
func TestDependencyAway(t *testing.T) {
	d := newDoor(t)
	d.open(t, 30*time.Second)
	t.Run("KafkaIsA503WithinTwoSecondsAndNever202", func(t *testing.T) { // faults P1, P8
		for name, broken := range map[string]func(){"Down": d.kafka.Refuse, "Blackholed": d.kafka.Blackhole} {
			before, failed := d.count(t), d.metric(t, "carril_ingest_enqueue_failures_total")
			broken()
			answers := make(chan answerOf, 3)
			for i := range 3 {
				go func() {
					a, err := d.send(d.key, fmt.Sprint(name, i), 0)
					if err != nil {
						a.body = err.Error()
					}
					answers <- a
				}()
			}
			for range 3 {
				a := <-answers
				require.Equal(t, http.StatusServiceUnavailable, a.status, a.body)
				require.Contains(t, a.body, `"code":"queue_unavailable"`)
				require.Regexp(t, "^[123]$", a.retryAfter)
				require.Less(t, a.took, 2*time.Second+margin)
			}
			require.Equal(t, before, d.count(t))
			require.InDelta(t, failed+3, d.metric(t, "carril_ingest_enqueue_failures_total"), 0)
			d.kafka.Reset()
			d.kafka.Pass()
			d.open(t, 30*time.Second)
		}
	})
	t.Run("KafkaCostsNoMemory", func(t *testing.T) { // faults F9, P13
		before := heap()
		d.kafka.Blackhole()
		var wg sync.WaitGroup
		var mu sync.Mutex
		statuses := map[int]int{}
		for w := range 50 {
			wg.Go(func() {
				for i := range 3 {
					a, err := d.send(d.key, fmt.Sprintf("m-%d-%d", w, i), 30_000)
					mu.Lock()
					if err != nil {
						a.status = -1
					}
					statuses[a.status]++
					mu.Unlock()
				}
			})
		}
		wg.Wait()
		grown := int64(heap()) - int64(before)
		d.kafka.Reset()
		d.kafka.Pass()
		d.open(t, 30*time.Second)
		require.Equal(t, 150, statuses[http.StatusServiceUnavailable], statuses)
		require.Less(t, grown, int64(96<<20), "bytes of heap for what no broker took")
	})
	t.Run("PostgresLeavesCachedKeysTheDoor", func(t *testing.T) { // faults P8
		for name, broken := range map[string]func(){"Down": d.postgres.Refuse, "Blackholed": d.postgres.Blackhole} {
			d.open(t, 30*time.Second)
			broken()
			for i := range 20 {
				require.Equal(t, http.StatusAccepted, d.post(t, fmt.Sprint("pg", name, i)).status)
			}
			other, _, err := apikey.Generate("live")
			require.NoError(t, err)
			a, err := d.send(other, "x", 0)
			require.NoError(t, err)
			require.Equal(t, http.StatusServiceUnavailable, a.status, "never open")
			require.Contains(t, a.body, `"code":"key_store_unavailable"`)
			require.NotEmpty(t, a.retryAfter)
			require.Less(t, a.took, 2*time.Second+margin)
			require.Positive(t, d.metric(t, "carril_api_key_verifications_total", "source", "unavailable"))
			d.postgres.Reset()
			d.postgres.Pass()
		}
	})
	t.Run("RedisLeavesTheLimitsToThisProcess", func(t *testing.T) { // faults P8, F27
		for name, broken := range map[string]func(){"Hanging": d.redis.Blackhole, "Down": d.redis.Refuse} {
			broken()
			var slowest time.Duration
			require.Eventually(t, func() bool {
				a := d.post(t, fmt.Sprint("redis", name, time.Now().UnixNano()))
				require.Equal(t, http.StatusAccepted, a.status, a.body)
				slowest = max(slowest, a.took)
				return d.metric(t, "carril_limit_redis_away") == 1
			}, 30*time.Second, time.Millisecond)
			for i := range 50 {
				a := d.post(t, fmt.Sprint("redis", name, i))
				require.Equal(t, http.StatusAccepted, a.status, a.body)
				slowest = max(slowest, a.took)
			}
			t.Logf("slowest answer while Redis is %s: %s", strings.ToLower(name), slowest)
			require.Less(t, slowest, margin)
			require.Positive(t, d.metric(t, "carril_limit_decisions_total", "by", "local", "decision", "passed"))
			d.redis.Reset()
			d.redis.Pass()
			require.Eventually(t, func() bool {
				d.post(t, fmt.Sprint("back", name, time.Now().UnixNano()))
				return d.metric(t, "carril_limit_redis_away") == 0
			}, 30*time.Second, 50*time.Millisecond)
		}
	})
	t.Run("RegistryIsNotNeededForKnownSchemas", func(t *testing.T) { // faults P8, F16
		d.registry.Refuse()
		for i := range 20 {
			require.Equal(t, http.StatusAccepted, d.post(t, fmt.Sprint("registry", i)).status)
		}
		d.registry.Pass()
	})
	t.Run("AllButKafkaAtOnce", func(t *testing.T) {
		d.open(t, 30*time.Second)
		for _, p := range []*testkit.Proxy{d.postgres, d.redis, d.registry} {
			p.Blackhole()
		}
		for i := range 20 {
			require.Equal(t, http.StatusAccepted, d.post(t, fmt.Sprint("all", i)).status)
		}
		for _, p := range []*testkit.Proxy{d.postgres, d.redis, d.registry} {
			p.Reset()
			p.Pass()
		}
	})
}
