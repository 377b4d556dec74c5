package stream

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/softcrum/carril/internal/kafka"
	"github.com/softcrum/carril/internal/outbox"
	"github.com/softcrum/carril/internal/testkit"
)

func TestMain(m *testing.M) {
	if raw := os.Getenv(envChild); raw != "" {
		if err := runAsChild(raw); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	testkit.Main(m)
}

// effects is a stage with a natural fence: one row a key, whoever sends it how
// often, and one derived message a row.
type effects struct {
	mu     sync.Mutex
	decode func(string) string                       // nil: the value as it is
	hook   func(ctx context.Context, b *Batch) error // before the rows
	calls  int
	idle   string // idle_in_transaction_session_timeout of the last batch
}

func (e *effects) Decode(_ context.Context, r *kgo.Record) (any, error) {
	v := string(r.Value)
	if strings.HasPrefix(v, "undecodable") {
		return nil, fmt.Errorf("%w: test", ErrPoison)
	}
	if e.decode != nil {
		v = e.decode(v)
	}
	return v, nil
}

func (e *effects) Apply(ctx context.Context, tx pgx.Tx, b *Batch) error {
	e.mu.Lock()
	e.calls++
	hook := e.hook
	err := tx.QueryRow(ctx, `SELECT current_setting('idle_in_transaction_session_timeout')`).Scan(&e.idle)
	e.mu.Unlock()
	if err != nil {
		return err
	}
	if hook != nil {
		if err := hook(ctx, b); err != nil {
			return err
		}
	}
	// applied has no fence of its own: only the position keeps a record from
	// being applied twice.
	for _, r := range b.Records {
		if _, err := tx.Exec(ctx, `INSERT INTO applied (part, off) VALUES ($1, $2)`, r.Partition, r.Offset); err != nil {
			return err
		}
	}
	var keys []string
	seen := map[string]bool{}
	for _, r := range b.Records {
		if k := r.Value.(string); !seen[k] {
			seen[k] = true
			keys = append(keys, k)
		}
	}
	rows, err := tx.Query(ctx, `INSERT INTO effects (key, size) SELECT k, length(k) FROM unnest($1::text[]) AS k ORDER BY k ON CONFLICT DO NOTHING RETURNING key`, keys)
	if err != nil {
		return err
	}
	won, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return err
	}
	for _, k := range won {
		b.Emit(outbox.Message{Topic: "out", Key: []byte(k), Value: []byte(k)})
	}
	return nil
}

// bench is a test's own services and stage.
type bench struct {
	t      *testing.T
	pool   *pgxpool.Pool
	broker testkit.Broker
	kcfg   kafka.Config
	prod   *kgo.Client
	stage  *effects
}

func newBench(t *testing.T, partitions int32) *bench {
	t.Helper()
	b := &bench{t: t, pool: testkit.Pool(t), broker: testkit.Kafka(t), stage: &effects{}}
	b.kcfg = kafka.Config{Brokers: b.broker.Brokers, Prefix: b.broker.Prefix, SingleNode: true}
	b.broker.CreateTopic("in", partitions)
	b.broker.CreateTopic("out", 1)
	_, err := b.pool.Exec(t.Context(), `CREATE TABLE effects (key text PRIMARY KEY, size int NOT NULL CHECK (size < 100), at timestamptz DEFAULT now());
		CREATE TABLE applied (part int, off bigint)`)
	require.NoError(t, err)
	b.prod, err = b.kcfg.NewProducer(kgo.RecordPartitioner(kgo.ManualPartitioner()))
	require.NoError(t, err)
	t.Cleanup(b.prod.Close)
	return b
}

func (b *bench) send(partition int32, values ...string) {
	b.t.Helper()
	var rs []*kgo.Record
	for _, v := range values {
		rs = append(rs, &kgo.Record{Topic: b.kcfg.Topic("in"), Partition: partition, Value: []byte(v)})
	}
	require.NoError(b.t, b.prod.ProduceSync(b.t.Context(), rs...).FirstErr())
}

type running struct {
	*Loop
	t      testing.TB
	cancel context.CancelFunc
	done   chan struct{}
}

func (b *bench) loop(change func(*Config, *Deps)) *running {
	b.t.Helper()
	sink, err := b.kcfg.NewProducer()
	require.NoError(b.t, err)
	cfg := Config{Stage: "effects", Topics: []string{"in"}, Backoff: 5 * time.Millisecond, Drain: 2 * time.Second}
	deps := Deps{Kafka: b.kcfg, Pool: b.pool, Sink: outbox.ClientSink{Client: sink}, Handler: b.stage, Log: testkit.Logger(b.t)}
	if change != nil {
		change(&cfg, &deps)
	}
	l, err := New(cfg, deps)
	require.NoError(b.t, err)
	ctx, cancel := context.WithCancel(context.Background())
	r := &running{Loop: l, t: b.t, cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(r.done)
		_ = l.Run(ctx)
		sink.Close()
	}()
	b.t.Cleanup(r.stop)
	return r
}

func (r *running) stop() {
	r.t.Helper()
	r.cancel()
	testkit.Ends(r.t, "the loop", func() { <-r.done })
}

// crash ends the loop as a kill would: nothing is drained, committed or left.
func (r *running) crash() {
	r.mu.Lock()
	for _, w := range r.workers {
		w.kill()
	}
	r.workers = map[tp]*worker{}
	r.mu.Unlock()
	r.stop()
}

func (b *bench) eventually(what string, within time.Duration, ok func() bool) {
	b.t.Helper()
	deadline := time.Now().Add(within)
	for !ok() {
		if time.Now().After(deadline) {
			require.Fail(b.t, "not in time: "+what)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func (b *bench) count(sql string, args ...any) int {
	b.t.Helper()
	var n int
	require.NoError(b.t, b.pool.QueryRow(context.Background(), sql, args...).Scan(&n))
	return n
}

func (b *bench) awaitEffects(n int) {
	b.t.Helper()
	b.eventually(fmt.Sprintf("%d effects", n), 60*time.Second, func() bool { return b.count(`SELECT count(*) FROM effects`) >= n })
	require.Equal(b.t, n, b.count(`SELECT count(*) FROM effects`))
}

// published reads the derived topic until it holds n distinct values, and
// gives the values in order of first appearance.
func (b *bench) published(n int) []string {
	b.t.Helper()
	cl := b.broker.Client(kgo.ConsumeTopics(b.kcfg.Topic("out")), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	seen, order := map[string]bool{}, []string{}
	b.eventually(fmt.Sprintf("%d published", n), 60*time.Second, func() bool {
		ctx, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
		defer cancel()
		cl.PollFetches(ctx).EachRecord(func(r *kgo.Record) {
			if v := string(r.Value); !seen[v] {
				seen[v] = true
				order = append(order, v)
			}
		})
		return len(order) >= n
	})
	require.Len(b.t, order, n)
	return order
}

// appliedOnce checks that each of n records was applied exactly once.
func (b *bench) appliedOnce(n int) {
	b.t.Helper()
	require.Equal(b.t, n, b.count(`SELECT count(DISTINCT (part, off)) FROM applied`), "applied records")
	require.Equal(b.t, n, b.count(`SELECT count(*) FROM applied`), "applications")
}

func values(prefix string, n int) []string {
	vs := make([]string, n)
	for i := range vs {
		vs[i] = fmt.Sprintf("%s-%05d", prefix, i)
	}
	return vs
}

// newProducerBench gives a bench a producer that has not met the old topic.
func newProducerBench(t *testing.T, b *bench) *bench {
	t.Helper()
	c := *b
	var err error
	c.prod, err = b.kcfg.NewProducer(kgo.RecordPartitioner(kgo.ManualPartitioner()))
	require.NoError(t, err)
	t.Cleanup(c.prod.Close)
	return &c
}

type alarmCounter struct {
	reg *prometheus.Registry
	m   *Metrics
}

func newAlarmCounter() alarmCounter {
	reg := prometheus.NewRegistry()
	return alarmCounter{reg, NewMetrics(reg)}
}

func (a alarmCounter) alarms(t *testing.T, kind string) float64 {
	t.Helper()
	return testutil.ToFloat64(a.m.alarms.WithLabelValues("effects", kind))
}
