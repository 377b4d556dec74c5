// Package stagetest gives the tests of stages a running loop over real
// services: a database, topics and a registry of the test's own, a tenant, and
// ways to produce what a stage reads and to wait for what it writes.
package stagetest

import (
	"context"
	"crypto/sha256"
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sr"

	"github.com/softcrum/carril/internal/ids"
	"github.com/softcrum/carril/internal/kafka"
	"github.com/softcrum/carril/internal/outbox"
	"github.com/softcrum/carril/internal/stream"
	"github.com/softcrum/carril/internal/testkit"
	"github.com/softcrum/carril/schemas"
)

// Bench is a test's own services.
type Bench struct {
	T        *testing.T
	Pool     *pgxpool.Pool // for stages
	Side     *pgxpool.Pool // for caches and the test's own look-ups
	Kafka    kafka.Config
	Codec    *schemas.Codec
	Producer *kgo.Client
	Tenant   uuid.UUID
}

// New makes a bench with every topic of the channels and one tenant.
func New(t *testing.T, channels ...string) *Bench {
	t.Helper()
	broker := testkit.Kafka(t)
	b := &Bench{T: t, Pool: testkit.Pool(t), Kafka: kafka.Config{Brokers: broker.Brokers, Prefix: broker.Prefix, SingleNode: true}}
	side, err := pgxpool.NewWithConfig(context.Background(), b.Pool.Config())
	require.NoError(t, err)
	t.Cleanup(side.Close)
	b.Side = side
	if len(channels) == 0 {
		channels = []string{"email"}
	}
	b.Producer, err = b.Kafka.NewProducer()
	require.NoError(t, err)
	t.Cleanup(b.Producer.Close)
	_, err = kafka.CreateTopics(t.Context(), kadm.NewClient(b.Producer), b.Kafka.Specs(channels, true))
	require.NoError(t, err)
	reg, err := sr.NewClient(sr.URLs(testkit.Registry(t)))
	require.NoError(t, err)
	b.Codec, err = schemas.NewCodec(reg, b.Kafka.Prefix)
	require.NoError(t, err)
	b.Tenant = b.AddTenant("acme", "starter")
	return b
}

// AddTenant makes a tenant of a plan.
func (b *Bench) AddTenant(slug, plan string) uuid.UUID {
	b.T.Helper()
	id := ids.New()
	b.Exec(`INSERT INTO core.tenants (tenant_id, slug, name, plan_id) VALUES ($1, $2, $2, $3)`, id, slug, plan)
	return id
}

// Exec runs a statement.
func (b *Bench) Exec(sql string, args ...any) {
	b.T.Helper()
	_, err := b.Side.Exec(context.Background(), sql, args...)
	require.NoError(b.T, err)
}

// Count runs a query that gives one number.
func (b *Bench) Count(sql string, args ...any) int {
	b.T.Helper()
	var n int
	require.NoError(b.T, b.Side.QueryRow(context.Background(), sql, args...).Scan(&n))
	return n
}

// Eventually waits for something, for at most a minute.
func (b *Bench) Eventually(what string, ok func() bool) {
	b.T.Helper()
	deadline := time.Now().Add(time.Minute)
	for !ok() {
		require.True(b.T, time.Now().Before(deadline), "not in time: "+what)
		time.Sleep(10 * time.Millisecond)
	}
}

// Await waits until a query gives n, and not more.
func (b *Bench) Await(n int, sql string, args ...any) {
	b.T.Helper()
	b.Eventually(fmt.Sprintf("%d of %s", n, sql), func() bool { return b.Count(sql, args...) >= n })
	require.Equal(b.T, n, b.Count(sql, args...), sql)
}

// Run runs a handler's loop until the test ends or stop is called.
func (b *Bench) Run(stage string, topics []string, h stream.Handler, events outbox.Source) (stop func()) {
	b.T.Helper()
	l, err := stream.New(stream.Config{Stage: stage, Topics: topics, Backoff: 5 * time.Millisecond}, stream.Deps{
		Kafka: b.Kafka, Pool: b.Pool, Sink: outbox.ClientSink{Client: b.Producer}, Events: events, Handler: h, Log: testkit.Logger(b.T)})
	require.NoError(b.T, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); _ = l.Run(ctx) }()
	stop = func() { cancel(); <-done }
	b.T.Cleanup(stop)
	return stop
}

// Event makes an accepted track of the bench's tenant.
func (b *Bench) Event(key, name string, at time.Time, identifiers, properties string) schemas.Event {
	sum := sha256.Sum256([]byte(name + identifiers + properties + at.String()))
	id := ids.Event(b.Tenant, key)
	return schemas.Event{Kind: "track", EventID: id, TenantID: b.Tenant, CellID: "cell-1", EventName: name, IdempotencyKey: key, BodyHash: sum[:],
		OccurredAt: at.UTC().Truncate(time.Microsecond), ReceivedAt: time.Now().UTC().Truncate(time.Microsecond), CorrelationID: id.String(), Identifiers: identifiers, Payload: properties}
}

// Identify makes an accepted identify of the bench's tenant.
func (b *Bench) Identify(key string, at time.Time, identifiers, traits string) schemas.Event {
	e := b.Event(key, "", at, identifiers, traits)
	e.Kind = "identify"
	return e
}

// Send produces records to a topic, keyed by tenant, and waits for the acks.
func Send[T any](b *Bench, topic string, tenant uuid.UUID, records ...T) {
	b.T.Helper()
	rs := make([]*kgo.Record, len(records))
	for i := range records {
		v, err := b.Codec.Encode(b.T.Context(), nil, topic, &records[i])
		require.NoError(b.T, err)
		rs[i] = &kgo.Record{Topic: b.Kafka.Topic(topic), Key: []byte(tenant.String()), Value: v}
	}
	require.NoError(b.T, b.Producer.ProduceSync(b.T.Context(), rs...).FirstErr())
}

// SendEvents produces accepted events.
func (b *Bench) SendEvents(events ...schemas.Event) {
	b.T.Helper()
	for _, e := range events {
		Send(b, schemas.TopicEvents, e.TenantID, e)
	}
}

// SendTraced produces a record as its producer does, with CloudEvents headers of
// a type and the caller's traceparent; empty: none.
func SendTraced[T any](b *Bench, topic, kind string, id uuid.UUID, trace string, record T) {
	b.T.Helper()
	v, err := b.Codec.Encode(b.T.Context(), nil, topic, &record)
	require.NoError(b.T, err)
	h := kafka.Event{ID: id.String(), Type: kind, Source: kafka.Source(b.Tenant), Time: time.Now(), CorrelationID: id.String(), TraceParent: trace}
	require.NoError(b.T, b.Producer.ProduceSync(b.T.Context(), &kgo.Record{Topic: b.Kafka.Topic(topic), Key: []byte(b.Tenant.String()), Value: v,
		Headers: h.Headers()}).FirstErr())
}

// Headers gives the headers of the first record of a topic.
func (b *Bench) Headers(topic string) map[string]string {
	b.T.Helper()
	opts, err := b.Kafka.Opts()
	require.NoError(b.T, err)
	cl, err := kgo.NewClient(append(opts, kgo.ConsumeTopics(b.Kafka.Topic(topic)), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))...)
	require.NoError(b.T, err)
	defer cl.Close()
	headers := map[string]string{}
	b.Eventually("a record of "+topic, func() bool {
		ctx, cancel := context.WithTimeout(context.Background(), 200*time.Millisecond)
		defer cancel()
		cl.PollFetches(ctx).EachRecord(func(r *kgo.Record) {
			if len(headers) > 0 {
				return
			}
			for _, h := range r.Headers {
				headers[h.Key] = string(h.Value)
			}
		})
		return len(headers) > 0
	})
	return headers
}

// Read gives the first n distinct records of a topic, by ce_id, in order of
// first appearance.
func Read[T any](b *Bench, topic string, n int) []T {
	b.T.Helper()
	opts, err := b.Kafka.Opts()
	require.NoError(b.T, err)
	cl, err := kgo.NewClient(append(opts, kgo.ConsumeTopics(b.Kafka.Topic(topic)), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))...)
	require.NoError(b.T, err)
	defer cl.Close()
	seen := map[string]bool{}
	var out []T
	b.Eventually(fmt.Sprintf("%d records of %s", n, topic), func() bool {
		ctx, cancel := context.WithTimeout(context.Background(), 200*time.Millisecond)
		defer cancel()
		cl.PollFetches(ctx).EachRecord(func(r *kgo.Record) {
			id := kafka.Header(r, "ce_id")
			if seen[id] {
				return
			}
			seen[id] = true
			var v T
			require.NoError(b.T, b.Codec.Decode(context.Background(), topic, r.Value, &v))
			out = append(out, v)
		})
		return len(out) >= n
	})
	require.Len(b.T, out, n)
	return out
}

// Metric gives a counter or gauge, all of its labels together.
func Metric(t *testing.T, reg *prometheus.Registry, name string) (sum float64) {
	t.Helper()
	families, err := reg.Gather()
	require.NoError(t, err)
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		for _, m := range f.GetMetric() {
			sum += m.GetCounter().GetValue() + m.GetGauge().GetValue()
		}
	}
	return sum
}
