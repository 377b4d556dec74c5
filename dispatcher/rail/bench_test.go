package rail_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sr"
	"go.uber.org/goleak"

	"github.com/softcrum/carril/dispatcher/bucket"
	"github.com/softcrum/carril/dispatcher/feeder"
	"github.com/softcrum/carril/dispatcher/provider"
	"github.com/softcrum/carril/dispatcher/rail"
	"github.com/softcrum/carril/dispatcher/sends"
	parts "github.com/softcrum/carril/internal/content"
	"github.com/softcrum/carril/internal/ids"
	"github.com/softcrum/carril/internal/kafka"
	"github.com/softcrum/carril/internal/outbox"
	"github.com/softcrum/carril/internal/ratelimit"
	"github.com/softcrum/carril/internal/stream"
	"github.com/softcrum/carril/internal/testkit"
	"github.com/softcrum/carril/schemas"
)

func TestMain(m *testing.M) {
	if raw := os.Getenv(envChild); raw != "" {
		if err := runAsChild(raw); err != nil {
			fmt.Fprintln(os.Stderr, "rail worker of the test:", err)
			os.Exit(1)
		}
		return
	}
	testkit.Main(m, func() error { return goleak.Find() })
}

// bench is a test's own rail: database, topics, registry, buckets and a
// provider in memory.
type bench struct {
	t        testing.TB
	pool     *pgxpool.Pool
	kafka    kafka.Config
	codec    *schemas.Codec
	producer *kgo.Client
	redisURL string
	prefix   string
	fake     *fake
	tenant   uuid.UUID

	trimAfter time.Duration // of the sweep; 0: its default
	metrics   *feeder.Metrics

	mu  sync.Mutex
	seq int
}

func newBench(t testing.TB) *bench { return newBenchOf(t, true) }

// newBenchOf makes a bench with the partitions of the embedded broker or with
// those of a real one.
func newBenchOf(t testing.TB, embedded bool) *bench {
	t.Helper()
	broker := testkit.Kafka(t)
	b := &bench{t: t, pool: testkit.Pool(t), kafka: kafka.Config{Brokers: broker.Brokers, Prefix: broker.Prefix, SingleNode: true}, fake: newFake()}
	b.redisURL, b.prefix = testkit.Redis(t)
	var err error
	b.producer, err = b.kafka.NewProducer()
	require.NoError(t, err)
	t.Cleanup(b.producer.Close)
	_, err = kafka.CreateTopics(t.Context(), kadm.NewClient(b.producer), b.kafka.Specs([]string{"email"}, embedded))
	require.NoError(t, err)
	reg, err := sr.NewClient(sr.URLs(testkit.Registry(t)))
	require.NoError(t, err)
	b.codec, err = schemas.NewCodec(reg, b.kafka.Prefix)
	require.NoError(t, err)
	b.tenant = b.addTenant("acme")
	return b
}

func (b *bench) exec(sql string, args ...any) {
	b.t.Helper()
	_, err := b.pool.Exec(context.Background(), sql, args...)
	require.NoError(b.t, err)
}

func (b *bench) count(sql string, args ...any) (n int) {
	b.t.Helper()
	require.NoError(b.t, b.pool.QueryRow(context.Background(), sql, args...).Scan(&n))
	return n
}

func (b *bench) addTenant(slug string) uuid.UUID {
	b.t.Helper()
	id := ids.New()
	b.exec(`INSERT INTO core.tenants (tenant_id, slug, name, plan_id) VALUES ($1, $2, $2, 'starter')`, id, slug)
	b.exec(`INSERT INTO messaging.senders (tenant_id, channel, sender, verified) VALUES ($1, 'email', $2, true)`, id, slug+" <"+slug+"@example.com>")
	return id
}

func (b *bench) eventually(what string, ok func() bool) {
	b.t.Helper()
	deadline := time.Now().Add(time.Minute)
	for !ok() {
		require.True(b.t, time.Now().Before(deadline), "not in time: "+what)
		time.Sleep(5 * time.Millisecond)
	}
}

// await waits until so many jobs stand in a state.
func (b *bench) await(n int, state string) {
	b.t.Helper()
	const sql = `SELECT count(*) FROM core.processed_jobs WHERE worker LIKE 'rail:%' AND state = $1 AND id_time > now() - interval '40 days'`
	b.eventually(fmt.Sprintf("%d jobs %s", n, state), func() bool { return b.count(sql, state) >= n })
	require.Equal(b.t, n, b.count(sql, state), state)
}

// job is a message on its way, as the channels stage makes it.
type job struct {
	tenant   uuid.UUID
	category string
	subject  string
	address  string
	expires  *time.Time
	state    string    // "" is in_topic, with its record
	contact  uuid.UUID // with the tenant, the record's key
}

func (b *bench) message(j job) schemas.JobMessage {
	b.mu.Lock()
	b.seq++
	n := b.seq
	b.mu.Unlock()
	now := time.Now().UTC().Truncate(time.Millisecond)
	m := schemas.JobMessage{RequestID: ids.New(), RequestedAt: now, ContactID: ids.New(), Address: j.address, Category: j.category, RetentionMonths: 13,
		CorrelationID: fmt.Sprintf("c-%d", n), OriginEventID: ids.New(), ExpiresAt: j.expires}
	if j.contact != uuid.Nil {
		m.ContactID = j.contact
	}
	if m.Address == "" {
		m.Address = fmt.Sprintf("p%d@example.com", n)
	}
	m.SendID = ids.Send(j.tenant, m.RequestID, now, 0, "email")
	content, err := json.Marshal(parts.Parts{Subject: def(j.subject, "hi"), Text: "hello"})
	require.NoError(b.t, err)
	m.Content = content
	return m
}

func def(s, otherwise string) string {
	if s == "" {
		return otherwise
	}
	return s
}

// enqueue writes transactional jobs and, where they are in the topic, their
// records.
func (b *bench) enqueue(jobs ...job) []uuid.UUID {
	b.t.Helper()
	out := make([]uuid.UUID, len(jobs))
	var batch pgx.Batch
	var records []*kgo.Record
	for i, j := range jobs {
		if j.tenant == uuid.Nil {
			j.tenant = b.tenant
		}
		j.category, j.state = def(j.category, "transactional"), def(j.state, "in_topic")
		m := b.message(j)
		out[i] = m.SendID
		payload, err := json.Marshal(schemas.JobPayload{Channel: "email", CellID: "cell-1", Messages: []schemas.JobMessage{m}})
		require.NoError(b.t, err)
		batch.Queue(`INSERT INTO core.processed_jobs (id_time, worker, job_id, state, tenant_id, category, payload, expires_at) VALUES ($1, $2, $3, $4, $5, $6, $7, $8)`,
			ids.Time(m.SendID), schemas.RailWorker("email", "transactional"), m.SendID, j.state, j.tenant, j.category, payload, j.expires)
		if j.state == "in_topic" {
			records = append(records, b.record(schemas.SendJob{JobID: m.SendID, TenantID: j.tenant, CellID: "cell-1", Channel: "email", Category: j.category, Turn: 1,
				CorrelationID: m.CorrelationID, OriginEventID: m.OriginEventID, EnqueuedAt: m.RequestedAt, ExpiresAt: j.expires}, m.ContactID))
		}
	}
	require.NoError(b.t, b.pool.SendBatch(context.Background(), &batch).Close())
	b.produce(records...)
	return out
}

func (b *bench) record(rec schemas.SendJob, contact uuid.UUID) *kgo.Record {
	v, err := b.codec.Encode(context.Background(), nil, "notif.email.transactional", &rec)
	require.NoError(b.t, err)
	return &kgo.Record{Topic: b.kafka.Topic("notif.email.transactional"), Key: []byte(rec.TenantID.String() + "/" + contact.String()), Value: v}
}

func (b *bench) produce(records ...*kgo.Record) {
	b.t.Helper()
	require.NoError(b.t, b.producer.ProduceSync(context.Background(), records...).FirstErr())
}

// enqueueBatch freezes n messages of a tenant into a marketing job, as the
// feeder does.
func (b *bench) enqueueBatch(tenant uuid.UUID, n int, edit func(i int, j *job)) (jobID uuid.UUID, sendIDs []uuid.UUID) {
	b.t.Helper()
	p := schemas.JobPayload{Channel: "email", CellID: "cell-1"}
	for i := range n {
		j := job{tenant: tenant, category: "marketing"}
		if edit != nil {
			edit(i, &j)
		}
		m := b.message(j)
		b.exec(`INSERT INTO messaging.consents (tenant_id, contact_id, channel, granted, source) VALUES ($1, $2, 'email', true, 'test')`, tenant, m.ContactID)
		p.Messages = append(p.Messages, m)
		sendIDs = append(sendIDs, m.SendID)
	}
	jobID = ids.Batch(sendIDs[0], time.Now())
	payload, err := json.Marshal(p)
	require.NoError(b.t, err)
	b.exec(`INSERT INTO core.processed_jobs (id_time, worker, job_id, state, tenant_id, category, payload) VALUES ($1, $2, $3, 'in_topic', $4, 'marketing', $5)`,
		ids.Time(jobID), schemas.RailWorker("email", "marketing"), jobID, tenant, payload)
	v, err := b.codec.Encode(context.Background(), nil, "notif.email.marketing", &schemas.SendBatch{JobID: jobID, TenantID: tenant, CellID: "cell-1", Channel: "email",
		Turn: 1, SendIDs: sendIDs, CorrelationID: "blast", EnqueuedAt: time.Now().UTC()})
	require.NoError(b.t, err)
	b.produce(&kgo.Record{Topic: b.kafka.Topic("notif.email.marketing"), Key: []byte(sends.ShardKey(tenant, jobID)), Value: v})
	return jobID, sendIDs
}

// setup of a worker under test.
type setup struct {
	rail     string
	cfg      func(*rail.Config)
	store    func(*sends.Config)
	rate     float64 // of the provider as stated; default 100,000
	quota    int     // of a day, as stated; 0: none
	reserve  float64 // of it; 0: the default
	now      func() time.Time
	buckets  *bucket.Metrics
	hook     func(rail.Point)
	yield    rail.Yielder
	pace     rail.Pacer
	asker    string
	provider provider.Provider
	others   []provider.Provider
	metrics  *rail.Metrics
	pool     *pgxpool.Pool // nil: one of its own
}

// start runs a worker until the test ends or stop is called.
func (b *bench) start(s setup) (w *rail.Worker, stop func()) {
	b.t.Helper()
	w, limiter, closeAll := b.build(s)
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { _ = w.Run(ctx) })
	wg.Go(func() { _ = limiter.Run(ctx) })
	var once sync.Once
	stop = func() {
		once.Do(func() {
			cancel()
			if testkit.Ends(b.t, "the rail's worker", wg.Wait) {
				closeAll()
			}
		})
	}
	b.t.Cleanup(stop)
	return w, stop
}

func (b *bench) build(s setup) (*rail.Worker, *bucket.Limiter, func()) {
	b.t.Helper()
	s.rail = def(s.rail, schemas.RailTransactional)
	if s.rate == 0 {
		s.rate = 100_000
	}
	if s.provider == nil {
		s.provider = b.fake
	}
	pool, err := s.pool, error(nil)
	if pool == nil {
		pool, err = pgxpool.NewWithConfig(context.Background(), b.pool.Config())
	}
	require.NoError(b.t, err)
	sc := sends.Config{Channel: "email", Rail: s.rail, Provider: s.provider.Name()}
	if s.store != nil {
		s.store(&sc)
	}
	known, stated := map[string]provider.Provider{}, map[string]bucket.Stated{}
	for i, p := range append([]provider.Provider{s.provider}, s.others...) {
		known[p.Name()], stated[p.Name()] = p, bucket.Stated{RatePerSecond: s.rate, DayQuota: s.quota}
		if i > 0 {
			sc.Others = append(sc.Others, p.Name())
		}
	}
	store, err := sends.New(sc, sends.Deps{Pool: pool, Codec: b.codec, Providers: known})
	require.NoError(b.t, err)
	rdb, err := ratelimit.Open(b.redisURL)
	require.NoError(b.t, err)
	var reserve *float64
	if s.reserve > 0 {
		reserve = &s.reserve
	}
	limiter, err := bucket.New(bucket.Config{Prefix: b.prefix, Reserve: reserve, Asker: def(s.asker, "p1-"+s.rail), Rail: s.rail, Budget: 500 * time.Millisecond,
		Providers: stated},
		bucket.Deps{Redis: rdb, Pool: pool, Listen: b.pool, Log: testkit.Logger(b.t), Now: s.now, Metrics: s.buckets})
	require.NoError(b.t, err)
	require.NoError(b.t, limiter.Load(context.Background()))
	cfg := rail.Config{Channel: "email", Rail: s.rail, Backoff: 20 * time.Millisecond}
	if s.cfg != nil {
		s.cfg(&cfg)
	}
	if s.rail == schemas.RailMarketing && s.yield == nil {
		s.yield = neverYield{}
	}
	w, err := rail.New(cfg, rail.Deps{Kafka: b.kafka, Pool: pool, Store: store, Codec: b.codec, Limiter: limiter,
		Sink: outbox.ClientSink{Client: b.producer}, Yield: s.yield, Pace: s.pace, Log: testkit.Logger(b.t), Hook: s.hook,
		Board: rdb, BoardPrefix: b.prefix, Metrics: s.metrics})
	require.NoError(b.t, err)
	return w, limiter, func() { pool.Close(); _ = rdb.Close() }
}

type neverYield struct{}

func (neverYield) Yielding() (bool, string) { return false, "" }
func (neverYield) Changed() <-chan struct{} { return nil }

// changes reads the first n status changes, by ce_id.
func (b *bench) changes(n int) map[uuid.UUID][]string {
	b.t.Helper()
	opts, err := b.kafka.Opts()
	require.NoError(b.t, err)
	cl, err := kgo.NewClient(append(opts, kgo.ConsumeTopics(b.kafka.Topic(schemas.TopicMessage)), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))...)
	require.NoError(b.t, err)
	defer cl.Close()
	seen, out := map[uuid.UUID]bool{}, map[uuid.UUID][]string{}
	b.eventually(fmt.Sprintf("%d status changes", n), func() bool {
		ctx, cancel := context.WithTimeout(context.Background(), 200*time.Millisecond)
		defer cancel()
		cl.PollFetches(ctx).EachRecord(func(r *kgo.Record) {
			var c schemas.MessageStatusChanged
			require.NoError(b.t, b.codec.Decode(context.Background(), schemas.TopicMessage, r.Value, &c))
			if !seen[c.ChangeID] {
				seen[c.ChangeID] = true
				out[c.SendID] = append(out[c.SendID], c.Type)
			}
		})
		return len(seen) >= n
	})
	return out
}

// history counts a send's rows by status.
func (b *bench) history(send uuid.UUID) map[string]int {
	b.t.Helper()
	rows, err := b.pool.Query(context.Background(), `SELECT status, count(*)::int FROM messaging.send_status_history
WHERE requested_at > now() - interval '40 days' AND send_id = $1 GROUP BY 1`, send)
	require.NoError(b.t, err)
	out := map[string]int{}
	var status string
	var n int
	_, err = pgx.ForEachRow(rows, []any{&status, &n}, func() error { out[status] = n; return nil })
	require.NoError(b.t, err)
	return out
}

// event is a provider's webhook as the front door passes it on.
type event struct {
	id           string
	status       provider.Status
	message      string
	send, tenant uuid.UUID
	at           time.Time
	recipients   []string
}

// statuses runs the status stage until the test ends.
func (b *bench) statuses() {
	b.t.Helper()
	h := sends.NewStatuses(b.codec, map[string]sends.Parser{"fake": parseEvent}, nil)
	l, err := stream.New(stream.Config{Stage: sends.StageStatuses, Topics: []string{schemas.TopicProviderEvents}, Backoff: 5 * time.Millisecond},
		stream.Deps{Kafka: b.kafka, Pool: b.pool, Sink: outbox.ClientSink{Client: b.producer}, Handler: h, Log: testkit.Logger(b.t)})
	require.NoError(b.t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); _ = l.Run(ctx) }()
	b.t.Cleanup(func() { cancel(); testkit.Ends(b.t, "what runs beside the rail", func() { <-done }) })
}

func parseEvent(body []byte) (provider.Event, error) {
	var ev provider.Event
	err := json.Unmarshal(body, &ev)
	return ev, err
}

func (b *bench) report(e event) {
	b.t.Helper()
	body, err := json.Marshal(provider.Event{Type: "x", Status: e.status, ProviderMessageID: e.message, SendID: e.send, TenantID: e.tenant, OccurredAt: e.at, Recipients: e.recipients})
	require.NoError(b.t, err)
	v, err := b.codec.Encode(context.Background(), nil, schemas.TopicProviderEvents, &schemas.ProviderEvent{Provider: "fake", ProviderEventID: e.id, Body: body, ReceivedAt: time.Now().UTC()})
	require.NoError(b.t, err)
	key := e.message // the front door keys by the send or the message, so that one send's events stay in one partition
	if e.send != uuid.Nil {
		key = e.send.String()
	}
	b.produce(&kgo.Record{Topic: b.kafka.Topic(schemas.TopicProviderEvents), Key: []byte(key), Value: v})
}

func contains(body []byte, s string) bool { return bytes.Contains(body, []byte(s)) }

// sweep runs the sweep of both rails until the test ends.
func (b *bench) sweep() { b.t.Helper(); b.sweepWith(nil) }

func (b *bench) sweepWith(edit func(*sends.Config)) (stop func()) {
	b.t.Helper()
	pool, err := pgxpool.NewWithConfig(context.Background(), b.pool.Config())
	require.NoError(b.t, err)
	var stores []*sends.Store
	for _, r := range []string{schemas.RailTransactional, schemas.RailMarketing} {
		sc := sends.Config{Channel: "email", Rail: r, Provider: "fake"}
		if edit != nil {
			edit(&sc)
		}
		s, err := sends.New(sc, sends.Deps{Pool: pool, Codec: b.codec, Providers: map[string]provider.Provider{"fake": b.fake}})
		require.NoError(b.t, err)
		stores = append(stores, s)
	}
	sw := rail.NewSweeper(rail.SweeperConfig{Channel: "email", Every: 20 * time.Millisecond, Reconcile: 200 * time.Millisecond, LostAfter: 2 * time.Second, Life: time.Second, TrimAfter: b.trimAfter, TrimEvery: 100 * time.Millisecond},
		rail.SweeperDeps{Pool: pool, Kafka: b.kafka, Admin: kadm.NewClient(b.producer), Sink: outbox.ClientSink{Client: b.producer}, Stores: stores, Log: testkit.Logger(b.t)})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); _ = sw.Run(ctx) }()
	var once sync.Once
	stop = func() {
		once.Do(func() { cancel(); testkit.Ends(b.t, "what runs beside the rail", func() { <-done; pool.Close() }) })
	}
	b.t.Cleanup(stop)
	return stop
}

// repeatTopic produces everything that stands in the transactional topic again.
func (b *bench) repeatTopic(times int) {
	b.t.Helper()
	records := b.readTopic(schemas.RailTopic("email", schemas.RailTransactional))
	for range times {
		again := make([]*kgo.Record, len(records))
		for i, r := range records {
			again[i] = &kgo.Record{Topic: r.Topic, Key: r.Key, Value: r.Value, Headers: r.Headers}
		}
		b.produce(again...)
	}
}

func (b *bench) readTopic(topic string) (out []*kgo.Record) {
	b.t.Helper()
	adm := kadm.NewClient(b.producer)
	ends, err := adm.ListEndOffsets(context.Background(), b.kafka.Topic(topic))
	require.NoError(b.t, err)
	starts, err := adm.ListStartOffsets(context.Background(), b.kafka.Topic(topic))
	require.NoError(b.t, err)
	left := map[int32]int64{}
	ends.Each(func(o kadm.ListedOffset) {
		if start, ok := starts.Lookup(o.Topic, o.Partition); ok && o.Offset > start.Offset {
			left[o.Partition] = o.Offset
		}
	})
	opts, err := b.kafka.Opts()
	require.NoError(b.t, err)
	cl, err := kgo.NewClient(append(opts, kgo.ConsumeTopics(b.kafka.Topic(topic)), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))...)
	require.NoError(b.t, err)
	defer cl.Close()
	b.eventually("the topic is read", func() bool {
		ctx, cancel := context.WithTimeout(context.Background(), 200*time.Millisecond)
		defer cancel()
		cl.PollFetches(ctx).EachRecord(func(r *kgo.Record) {
			if r.Offset < ends[r.Topic][r.Partition].Offset {
				out = append(out, r)
			}
			if r.Offset+1 >= left[r.Partition] {
				delete(left, r.Partition)
			}
		})
		return len(left) == 0
	})
	return out
}

// standing counts the records of a topic, from its log's start to its end.
func (b *bench) standing(topic string) (n int64) {
	b.t.Helper()
	adm := kadm.NewClient(b.producer)
	starts, err := adm.ListStartOffsets(context.Background(), b.kafka.Topic(topic))
	require.NoError(b.t, err)
	ends, err := adm.ListEndOffsets(context.Background(), b.kafka.Topic(topic))
	require.NoError(b.t, err)
	ends.Each(func(o kadm.ListedOffset) {
		start, ok := starts.Lookup(o.Topic, o.Partition)
		require.True(b.t, ok && start.Err == nil && o.Err == nil)
		n += o.Offset - start.Offset
	})
	return n
}

// position sums where the transactional rail stands, over its partitions.
func (b *bench) position() int {
	b.t.Helper()
	return b.count(`SELECT coalesce(sum(next_offset), 0)::int FROM core.stream_positions WHERE stage = 'rail:email.transactional'`)
}

// drained waits until everything that stands in the transactional topic is
// finished and committed.
func (b *bench) drained() {
	b.t.Helper()
	adm := kadm.NewClient(b.producer)
	topic := b.kafka.Topic(schemas.RailTopic("email", schemas.RailTransactional))
	b.eventually("the topic is drained", func() bool {
		ends, err := adm.ListEndOffsets(context.Background(), topic)
		require.NoError(b.t, err)
		committed, err := adm.FetchOffsets(context.Background(), b.kafka.Group(rail.Group("email", schemas.RailTransactional)))
		require.NoError(b.t, err)
		ok := true
		ends.Each(func(o kadm.ListedOffset) {
			c, found := committed.Lookup(topic, o.Partition)
			ok = ok && (o.Offset == 0 || found && c.At == o.Offset)
		})
		return ok
	})
}

func (b *bench) recreate(topic string) {
	b.t.Helper()
	adm := kadm.NewClient(b.producer)
	_, err := adm.DeleteTopics(context.Background(), b.kafka.Topic(topic))
	require.NoError(b.t, err)
	b.eventually("the topic is gone and there again", func() bool {
		_, err := kafka.CreateTopics(context.Background(), adm, b.kafka.Specs([]string{"email"}, true))
		return err == nil && kafka.WaitForTopics(context.Background(), adm, b.kafka.Topic(topic)) == nil
	})
	b.producer.PurgeTopicsFromClient(b.kafka.Topic(topic))
}

func (b *bench) forgetGroup(r string) {
	b.t.Helper()
	group := b.kafka.Group(rail.Group("email", r))
	b.eventually("the group is forgotten", func() bool {
		res, err := kadm.NewClient(b.producer).DeleteGroups(context.Background(), group)
		return err == nil && res[group].Err == nil
	})
}

// deleteRecords deletes all that stands in a topic, as a broker does with what has
// grown too old.
func (b *bench) deleteRecords(topic string) {
	b.t.Helper()
	adm := kadm.NewClient(b.producer)
	ends, err := adm.ListEndOffsets(context.Background(), b.kafka.Topic(topic))
	require.NoError(b.t, err)
	deleted, err := adm.DeleteRecords(context.Background(), ends.Offsets())
	require.NoError(b.t, err)
	require.NoError(b.t, deleted.Error())
	require.Zero(b.t, b.standing(topic))
}

func (b *bench) topicConfig(topic, key string) string {
	b.t.Helper()
	got, err := kadm.NewClient(b.producer).DescribeTopicConfigs(context.Background(), b.kafka.Topic(topic))
	require.NoError(b.t, err)
	require.Len(b.t, got, 1)
	require.NoError(b.t, got[0].Err)
	for _, c := range got[0].Configs {
		if c.Key == key {
			return c.MaybeValue()
		}
	}
	return ""
}

// settled waits until so many members share the transactional rail.
func (b *bench) settled(members int) {
	b.t.Helper()
	group := b.kafka.Group(rail.Group("email", schemas.RailTransactional))
	b.eventually("the members have shared the partitions", func() bool {
		got, err := kadm.NewClient(b.producer).DescribeGroups(context.Background(), group)
		if err != nil || got[group].State != "Stable" || len(got[group].Members) != members {
			return false
		}
		for _, m := range got[group].Members {
			c, ok := m.Assigned.AsConsumer()
			if !ok || len(c.Topics) == 0 {
				return false
			}
		}
		return true
	})
}
