package webhook_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strconv"
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
	"go.uber.org/goleak"

	"github.com/softcrum/carril/dispatcher/webhook"
	"github.com/softcrum/carril/dispatcher/webhook/guard"
	"github.com/softcrum/carril/dispatcher/webhook/seal"
	"github.com/softcrum/carril/internal/ids"
	"github.com/softcrum/carril/internal/kafka"
	"github.com/softcrum/carril/internal/outbox"
	"github.com/softcrum/carril/internal/signature"
	"github.com/softcrum/carril/internal/stream"
	"github.com/softcrum/carril/internal/testkit"
	"github.com/softcrum/carril/schemas"
)

func TestMain(m *testing.M) {
	testkit.Main(m, func() error { return goleak.Find() })
}

// bench is a test's own database with one tenant, and what reaches loopback.
type bench struct {
	t      testing.TB
	pool   *pgxpool.Pool
	keys   *seal.Keys
	guard  *guard.Guard
	store  *webhook.Store
	tenant uuid.UUID
}

func newBench(t testing.TB) *bench {
	return newBenchWith(t, guard.Config{}, nil)
}

func newBenchWith(t testing.TB, cfg guard.Config, r guard.Resolver) *bench {
	t.Helper()
	b := &bench{t: t, pool: testkit.Pool(t)}
	var err error
	b.keys, err = seal.Parse(seal.NewKey())
	require.NoError(t, err)
	cfg.AnyPort, cfg.AllowHTTP = true, true
	cfg.Private = append(cfg.Private, netip.MustParsePrefix("127.0.0.0/8"))
	b.guard, err = guard.New(cfg, r)
	require.NoError(t, err)
	b.store = webhook.NewStore(webhook.StoreConfig{}, webhook.StoreDeps{Pool: b.pool, Guard: b.guard, Keys: b.keys})
	b.tenant = b.addTenant("acme")
	return b
}

func (b *bench) addTenant(slug string) uuid.UUID {
	b.t.Helper()
	id := ids.New()
	b.exec(`INSERT INTO core.tenants (tenant_id, slug, name, plan_id) VALUES ($1, $2, $2, 'starter')`, id, slug)
	return id
}

func (b *bench) exec(sql string, args ...any) {
	b.t.Helper()
	_, err := b.pool.Exec(context.Background(), sql, args...)
	require.NoError(b.t, err)
}

// value runs a query that gives one value.
func value[T any](b *bench, sql string, args ...any) T {
	b.t.Helper()
	var v T
	require.NoError(b.t, b.pool.QueryRow(context.Background(), sql, args...).Scan(&v), sql)
	return v
}

func (b *bench) count(sql string, args ...any) int { b.t.Helper(); return value[int](b, sql, args...) }

// eventually waits for something, for at most a minute.
func (b *bench) eventually(what string, ok func() bool) {
	b.t.Helper()
	deadline := time.Now().Add(time.Minute)
	for !ok() {
		require.True(b.t, time.Now().Before(deadline), "not in time: "+what)
		time.Sleep(5 * time.Millisecond)
	}
}

// await waits until a query gives n, and not more.
func (b *bench) await(n int, sql string, args ...any) {
	b.t.Helper()
	b.eventually(sql, func() bool { return b.count(sql, args...) >= n })
	require.Equal(b.t, n, b.count(sql, args...), sql)
}

// received is one request that a sink got.
type received struct {
	id     string
	header http.Header
	body   string
	at     time.Time
}

// sink is a tenant's server: it keeps what it gets and answers as it is told.
type sink struct {
	*httptest.Server
	mu     sync.Mutex
	got    []received
	answer http.HandlerFunc // nil: 204
}

func newSink(t testing.TB, answer http.HandlerFunc) *sink {
	t.Helper()
	s := &sink{answer: answer}
	s.Server = httptest.NewServer(s)
	t.Cleanup(s.Close)
	return s
}

func (s *sink) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	s.mu.Lock()
	s.got = append(s.got, received{r.Header.Get(signature.HeaderID), r.Header.Clone(), string(body), time.Now()})
	answer := s.answer
	s.mu.Unlock()
	if answer == nil {
		w.WriteHeader(http.StatusNoContent)
		return
	}
	answer(w, r)
}

// will makes the sink answer otherwise from now on.
func (s *sink) will(answer http.HandlerFunc) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.answer = answer
}

func (s *sink) requests() []received {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.got)
}

func (s *sink) count() int { return len(s.requests()) }

func status(code int) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(code) }
}

// mirror is a bench with a broker, and the stage and the dispatcher over it.
type mirror struct {
	*bench
	kafka    kafka.Config
	codec    *schemas.Codec
	producer *kgo.Client
	cfg      webhook.Config
	log      *slog.Logger
}

func newMirror(t testing.TB, cfg webhook.Config) *mirror {
	t.Helper()
	return newMirrorWith(t, cfg, guard.Config{}, nil)
}

func newMirrorWith(t testing.TB, cfg webhook.Config, g guard.Config, r guard.Resolver) *mirror {
	t.Helper()
	broker := testkit.Kafka(t)
	if cfg.Sweep == 0 {
		cfg.Sweep = 50 * time.Millisecond
	}
	m := &mirror{bench: newBenchWith(t, g, r), kafka: kafka.Config{Brokers: broker.Brokers, Prefix: broker.Prefix, SingleNode: true}, cfg: cfg, log: testkit.Logger(t)}
	var err error
	m.producer, err = m.kafka.NewProducer()
	require.NoError(t, err)
	t.Cleanup(m.producer.Close)
	_, err = kafka.CreateTopics(t.Context(), kadm.NewClient(m.producer), m.kafka.Specs([]string{"email"}, true))
	require.NoError(t, err)
	reg, err := sr.NewClient(sr.URLs(testkit.Registry(t)))
	require.NoError(t, err)
	m.codec, err = schemas.NewCodec(reg, m.kafka.Prefix)
	require.NoError(t, err)
	return m
}

// dispatcher makes one over a pool of its own.
func (m *mirror) dispatcher(cfg webhook.Config) *webhook.Dispatcher {
	m.t.Helper()
	pool, err := pgxpool.NewWithConfig(context.Background(), m.pool.Config())
	require.NoError(m.t, err)
	m.t.Cleanup(pool.Close)
	d, err := webhook.New(cfg, webhook.Deps{Pool: pool, Codec: m.codec, Guard: m.guard, Keys: m.keys, Log: m.log, Metrics: prometheus.NewRegistry()})
	require.NoError(m.t, err)
	return d
}

// background runs something until the test ends or stop is called.
func background(t testing.TB, run func(ctx context.Context) error) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := run(ctx); err != nil {
			t.Errorf("ended with %v", err)
		}
	}()
	stop = func() { cancel(); <-done }
	t.Cleanup(stop)
	return stop
}

// consume runs the stage of a dispatcher.
func (m *mirror) consume(d *webhook.Dispatcher) (stop func()) {
	m.t.Helper()
	l, err := stream.New(stream.Config{Stage: webhook.Stage, Topics: webhook.Topics(), Backoff: 5 * time.Millisecond}, stream.Deps{
		Kafka: m.kafka, Pool: m.pool, Sink: outbox.ClientSink{Client: m.producer}, Handler: d.Handler(), Log: m.log})
	require.NoError(m.t, err)
	return background(m.t, l.Run)
}

// run runs the whole role.
func (m *mirror) run() (stop func()) {
	m.t.Helper()
	d := m.dispatcher(m.cfg)
	stopRun := background(m.t, d.Run)
	stopLoop := m.consume(d)
	return func() { stopLoop(); stopRun() }
}

// endpoint makes one for a sink.
func (m *mirror) endpoint(tenant uuid.UUID, url string, types ...string) (webhook.Endpoint, signature.Secret) {
	m.t.Helper()
	e, secret, err := m.store.Create(context.Background(), tenant, draft(url, types...))
	require.NoError(m.t, err)
	return e, secret
}

// event makes a tracked event of a contact.
func (m *mirror) event(tenant uuid.UUID, key, contact string) schemas.EventTracked {
	now := time.Now().UTC().Truncate(time.Microsecond)
	return schemas.EventTracked{EventID: ids.Event(tenant, key), TenantID: tenant, CellID: "cell-1", ContactID: uuid.NewSHA1(tenant, []byte(contact)),
		Kind: "track", EventName: "invoice.paid", OccurredAt: now, ReceivedAt: now, CorrelationID: "corr-" + key, IdempotencyKey: key, Payload: `{"n":1.10}`}
}

// events makes n of them, each of a contact of its own.
func (m *mirror) events(tenant uuid.UUID, prefix string, n int) []schemas.EventTracked {
	es := make([]schemas.EventTracked, n)
	for i := range es {
		es[i] = m.event(tenant, fmt.Sprintf("%s-%d", prefix, i), fmt.Sprintf("%s-%d", prefix, i))
	}
	return es
}

func (m *mirror) change(tenant uuid.UUID, step, id string) schemas.MessageStatusChanged {
	now := time.Now().UTC().Truncate(time.Microsecond)
	send := uuid.NewSHA1(tenant, []byte("send"))
	return schemas.MessageStatusChanged{Type: "messaging.message." + step, ChangeID: ids.StatusChange(send, step, "test", id), SendID: send, TenantID: tenant, CellID: "cell-1",
		ContactID: uuid.NewSHA1(tenant, []byte("c")), Channel: "email", Category: "transactional", Status: step, OccurredAt: now, RecordedAt: now,
		CorrelationID: "corr", OriginEventID: ids.Event(tenant, "origin")}
}

// send produces records, keyed by tenant, and waits for the acknowledgements.
func send[T any](m *mirror, topic string, tenant uuid.UUID, records ...T) {
	m.t.Helper()
	rs := make([]*kgo.Record, len(records))
	for i := range records {
		v, err := m.codec.Encode(context.Background(), nil, topic, &records[i])
		require.NoError(m.t, err)
		rs[i] = &kgo.Record{Topic: m.kafka.Topic(topic), Key: []byte(tenant.String()), Value: v}
	}
	require.NoError(m.t, m.producer.ProduceSync(context.Background(), rs...).FirstErr())
}

const byState = `SELECT count(*) FROM core.webhook_deliveries WHERE created_at > now() - interval '20 days' AND state = $1`

func (m *mirror) awaitState(state string, n int) {
	m.t.Helper()
	m.await(n, byState, state)
}

// behindProxy makes a dispatcher whose own way to the database can be cut.
func (m *mirror) behindProxy(cfg webhook.Config) (*testkit.Proxy, *webhook.Dispatcher) {
	m.t.Helper()
	pc := m.pool.Config()
	proxy := testkit.NewProxy(m.t, net.JoinHostPort(pc.ConnConfig.Host, fmt.Sprint(pc.ConnConfig.Port)))
	host, port, err := net.SplitHostPort(proxy.Addr())
	require.NoError(m.t, err)
	n, err := strconv.ParseUint(port, 10, 16)
	require.NoError(m.t, err)
	pc.ConnConfig.Host, pc.ConnConfig.Port, pc.ConnConfig.Fallbacks = host, uint16(n), nil
	pool, err := pgxpool.NewWithConfig(context.Background(), pc)
	require.NoError(m.t, err)
	m.t.Cleanup(pool.Close)
	d, err := webhook.New(cfg, webhook.Deps{Pool: pool, Codec: m.codec, Guard: m.guard, Keys: m.keys, Log: m.log, Metrics: prometheus.NewRegistry()})
	require.NoError(m.t, err)
	return proxy, d
}
