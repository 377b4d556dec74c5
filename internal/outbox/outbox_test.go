package outbox_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/softcrum/carril/internal/kafka"
	"github.com/softcrum/carril/internal/outbox"
	"github.com/softcrum/carril/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

type bench struct {
	t    *testing.T
	pool *pgxpool.Pool
	kc   kafka.Config
	sink outbox.Sink
}

func newBench(t *testing.T) bench {
	t.Helper()
	broker := testkit.Kafka(t)
	broker.CreateTopic("out", 1)
	b := bench{t: t, pool: testkit.Pool(t), kc: kafka.Config{Brokers: broker.Brokers, Prefix: broker.Prefix, SingleNode: true}}
	cl, err := b.kc.NewProducer()
	require.NoError(t, err)
	t.Cleanup(cl.Close)
	b.sink = outbox.ClientSink{Client: cl}
	return b
}

func msg(v string) outbox.Message {
	return outbox.Message{Topic: "out", Key: []byte("k"), Value: []byte(v)}
}

// write appends one message a value in one transaction.
func (b bench) write(lane outbox.Lane, values ...string) (items []outbox.Item, err error) {
	var msgs []outbox.Message
	for _, v := range values {
		msgs = append(msgs, msg(v))
	}
	err = pgx.BeginFunc(context.Background(), b.pool, func(tx pgx.Tx) error {
		items, err = lane.Append(context.Background(), tx, msgs)
		return err
	})
	return items, err
}

func (b bench) run(lane outbox.Lane, sink outbox.Sink) (p *outbox.Publisher, ended <-chan error) {
	p = outbox.NewPublisher(lane, outbox.PublisherConfig{Poll: 50 * time.Millisecond, Backoff: time.Millisecond, Page: 7},
		outbox.PublisherDeps{Pool: b.pool, Sink: sink, Source: outbox.TableSource{Pool: b.pool}, Topic: b.kc.Topic, Log: testkit.Logger(b.t)})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- p.Run(ctx) }()
	b.t.Cleanup(func() { cancel() })
	return p, done
}

// read gives the first n values of the topic, repeats included.
func (b bench) read(n int) (values []string) {
	b.t.Helper()
	opts, err := b.kc.Opts()
	require.NoError(b.t, err)
	cl, err := kgo.NewClient(append(opts, kgo.ConsumeTopics(b.kc.Topic("out")), kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))...)
	require.NoError(b.t, err)
	defer cl.Close()
	ctx, cancel := context.WithTimeout(b.t.Context(), time.Minute)
	defer cancel()
	for len(values) < n && ctx.Err() == nil {
		cl.PollFetches(ctx).EachRecord(func(r *kgo.Record) { values = append(values, string(r.Value)) })
	}
	require.GreaterOrEqual(b.t, len(values), n, "records of the topic")
	return values
}

func numbered(from, to int) (vs []string) {
	for i := from; i <= to; i++ {
		vs = append(vs, fmt.Sprintf("v%04d", i))
	}
	return vs
}

func TestLane(t *testing.T) {
	t.Run("SequencesAreContiguousInCommitOrderAndARollbackLeavesNoGap", func(t *testing.T) {
		t.Parallel()
		b := newBench(t)
		lane, err := outbox.Open(t.Context(), b.pool, "api/0", outbox.StoreOutbox, outbox.AnyEpoch)
		require.NoError(t, err)
		var wg sync.WaitGroup
		for i := range 40 {
			wg.Go(func() {
				_ = pgx.BeginFunc(context.Background(), b.pool, func(tx pgx.Tx) error {
					_, err := lane.Append(context.Background(), tx, []outbox.Message{msg(fmt.Sprint(i)), msg(fmt.Sprint(i))})
					if i%4 == 0 && err == nil {
						return errors.New("change of mind")
					}
					return err
				})
			})
		}
		wg.Wait()
		var n, first, last int
		require.NoError(t, b.pool.QueryRow(t.Context(), `SELECT count(*), min(lane_seq), max(lane_seq) FROM core.outbox WHERE written_at > now() - interval '1 hour'`).Scan(&n, &first, &last))
		require.Equal(t, []int{60, 1, 60}, []int{n, first, last})
	})

	t.Run("AnOlderOwnerCanNeitherWriteNorPublish", func(t *testing.T) {
		t.Parallel()
		b := newBench(t)
		old, err := outbox.Open(t.Context(), b.pool, "dispatch/0", outbox.StoreOutbox, 1)
		require.NoError(t, err)
		_, ended := b.run(old, b.sink)
		newer, err := outbox.Open(t.Context(), b.pool, "dispatch/0", outbox.StoreOutbox, 2)
		require.NoError(t, err)
		_, err = b.write(old, "zombie")
		require.ErrorIs(t, err, outbox.ErrFenced)
		_, err = outbox.Open(t.Context(), b.pool, "dispatch/0", outbox.StoreOutbox, 1)
		require.ErrorIs(t, err, outbox.ErrFenced)
		_, err = b.write(newer, "rightful")
		require.NoError(t, err)
		require.ErrorIs(t, <-ended, outbox.ErrFenced)
	})
}

// flaky fails what it is told to and publishes the rest.
type flaky struct {
	outbox.Sink
	mu    sync.Mutex
	fails int
}

func (f *flaky) Publish(ctx context.Context, rs []*kgo.Record) []error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.fails > 0 {
		f.fails--
		half := len(rs) / 2 // the second half is lost
		errs := append(f.Sink.Publish(ctx, rs[:half]), make([]error, len(rs)-half)...)
		for i := half; i < len(rs); i++ {
			errs[i] = errors.New("broker away")
		}
		return errs
	}
	return f.Sink.Publish(ctx, rs)
}

func TestPublisher(t *testing.T) {
	open := func(t *testing.T, b bench, epoch int64) outbox.Lane {
		lane, err := outbox.Open(t.Context(), b.pool, "lane", outbox.StoreOutbox, epoch)
		require.NoError(t, err)
		return lane
	}

	t.Run("PublishesWhatItsPredecessorLeftBeforeItsOwn", func(t *testing.T) { // I7
		t.Parallel()
		b := newBench(t)
		_, err := b.write(open(t, b, 1), numbered(1, 10)...) // X commits and dies before publishing
		require.NoError(t, err)
		lane := open(t, b, 2)
		own, err := b.write(lane, numbered(11, 20)...)
		require.NoError(t, err)
		p, _ := b.run(lane, b.sink)
		p.Offer(own)
		require.NoError(t, p.Drain(t.Context()))
		require.Equal(t, numbered(1, 20), b.read(20))
	})

	t.Run("TriesAgainInOrderWhenTheBrokerIsAway", func(t *testing.T) {
		t.Parallel()
		b := newBench(t)
		lane := open(t, b, 1)
		p, _ := b.run(lane, &flaky{Sink: b.sink, fails: 3})
		for i := range 5 {
			items, err := b.write(lane, numbered(i*10+1, i*10+10)...)
			require.NoError(t, err)
			p.Offer(items)
		}
		require.NoError(t, p.Drain(t.Context()))
		require.Equal(t, numbered(1, 50), b.read(50))
	})

	t.Run("PublishesOnWhileTheCursorCannotMove", func(t *testing.T) { // I12
		t.Parallel()
		b := newBench(t)
		lane := open(t, b, 1)
		tx, err := b.pool.Begin(t.Context())
		require.NoError(t, err)
		defer func() { _ = tx.Rollback(context.Background()) }()
		_, err = tx.Exec(t.Context(), `SELECT FROM core.outbox_cursors WHERE lane = $1 FOR UPDATE`, lane.ID)
		require.NoError(t, err)
		p, _ := b.run(lane, b.sink)
		for i := range 3 {
			items, err := b.write(lane, numbered(i*10+1, i*10+10)...)
			require.NoError(t, err)
			p.Offer(items)
			require.Equal(t, numbered(1, i*10+10), b.read(i*10+10))
		}
		short, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		require.ErrorIs(t, p.Drain(short), context.DeadlineExceeded, "the cursor stands")
		require.NoError(t, tx.Rollback(t.Context()))
		require.NoError(t, p.Drain(t.Context()))
		var cursor int64
		require.NoError(t, b.pool.QueryRow(t.Context(), `SELECT cursor FROM core.outbox_cursors WHERE lane = $1`, lane.ID).Scan(&cursor))
		require.EqualValues(t, 30, cursor)
	})

	t.Run("EndsWhenAnotherOwnerHasTheLane", func(t *testing.T) {
		t.Parallel()
		b := newBench(t)
		lane := open(t, b, 1)
		p, ended := b.run(lane, b.sink)
		items, err := b.write(lane, "a")
		require.NoError(t, err)
		p.Offer(items)
		require.NoError(t, p.Drain(t.Context()))
		items, err = b.write(lane, "b")
		require.NoError(t, err)
		open(t, b, 2)
		p.Offer(items)
		select {
		case err := <-ended:
			require.ErrorIs(t, err, outbox.ErrFenced)
		case <-time.After(time.Minute):
			t.Fatal("a fenced relay goes on")
		}
	})

	t.Run("FindsByItselfWhatWasNeverOffered", func(t *testing.T) {
		t.Parallel()
		b := newBench(t)
		lane := open(t, b, outbox.AnyEpoch)
		b.run(lane, b.sink)
		_, err := b.write(lane, numbered(1, 3)...)
		require.NoError(t, err)
		require.Equal(t, numbered(1, 3), b.read(3))
	})

	t.Run("DeadLettersTheOneRecordThatNoBrokerTakes", func(t *testing.T) { // I39
		t.Parallel()
		b := newBench(t)
		lane := open(t, b, 1)
		p, _ := b.run(lane, b.sink)
		items, err := b.write(lane, "before", strings.Repeat("x", 1_200_000), "after")
		require.NoError(t, err)
		p.Offer(items)
		require.NoError(t, p.Drain(t.Context()))
		require.Equal(t, "before after", strings.Join(b.read(2)[:2], " "), "a repeat may follow")
		var n int
		require.NoError(t, b.pool.QueryRow(t.Context(), `SELECT count(*) FROM core.dead_letters WHERE class = 'refused_by_broker' AND length(record_value) = 1200000`).Scan(&n))
		require.Equal(t, 1, n)
	})
}

func TestRunOrderedFencesThePredecessor(t *testing.T) { // I38
	t.Parallel()
	b := newBench(t)
	lane, err := outbox.Open(t.Context(), b.pool, "contact/0", outbox.StoreOutbox, outbox.AnyEpoch)
	require.NoError(t, err)
	_, err = b.write(lane, numbered(1, 5)...)
	require.NoError(t, err)
	// A predecessor took the transactional id, began, and sleeps.
	sleeper, err := b.kc.NewProducer(kgo.TransactionalID(b.kc.Prefix + "carril.contact/0"))
	require.NoError(t, err)
	t.Cleanup(sleeper.Close)
	require.NoError(t, sleeper.BeginTransaction())
	require.NoError(t, sleeper.ProduceSync(t.Context(), &kgo.Record{Topic: b.kc.Topic("out"), Value: []byte("late")}).FirstErr())

	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = outbox.RunOrdered(ctx, outbox.OrderedConfig{Producer: "contact/0", Holder: "test", Kafka: b.kc}, b.pool, testkit.Logger(t))
	}()
	t.Cleanup(func() { cancel(); <-done })
	require.Equal(t, numbered(1, 5), b.read(5))
	require.Error(t, sleeper.EndTransaction(t.Context(), kgo.TryCommit), "the sleeper wakes and is fenced")
	_, err = b.write(lane, "v0006")
	require.NoError(t, err)
	require.Equal(t, numbered(1, 6), b.read(6))
}
