package deadletter_test

import (
	"context"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"
	"go.uber.org/goleak"

	"github.com/softcrum/carril/internal/deadletter"
	"github.com/softcrum/carril/internal/kafka"
	"github.com/softcrum/carril/internal/outbox"
	"github.com/softcrum/carril/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m, func() error { return goleak.Find() }) }

type bench struct {
	t    *testing.T
	pool *pgxpool.Pool
	kc   kafka.Config
	prod *kgo.Client
	cl   *kgo.Client
}

func newBench(t *testing.T) *bench {
	t.Helper()
	broker := testkit.Kafka(t)
	broker.CreateTopic("in", 1)
	b := &bench{t: t, pool: testkit.Pool(t), kc: kafka.Config{Brokers: broker.Brokers, Prefix: broker.Prefix, SingleNode: true}}
	var err error
	b.prod, err = b.kc.NewProducer()
	require.NoError(t, err)
	t.Cleanup(b.prod.Close)
	b.cl = broker.Client(kgo.ConsumeTopics(b.kc.Topic("in")), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	return b
}

// relay publishes until the test ends or stop is called.
func (b *bench) relay() (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = deadletter.Relay(ctx, deadletter.RelayDeps{Pool: b.pool, Sink: outbox.ClientSink{Client: b.prod}, Topic: b.kc.Topic, Holder: "test", Log: testkit.Logger(b.t)})
	}()
	stop = func() { cancel(); <-done }
	b.t.Cleanup(stop)
	return stop
}

// keep makes an open dead letter.
func (b *bench) keep(stage string, tenant *uuid.UUID, headers *string, value []byte, at time.Time) uuid.UUID {
	b.t.Helper()
	id := uuid.New()
	_, err := b.pool.Exec(b.t.Context(), `INSERT INTO core.dead_letters (dead_letter_id, stage, class, reason, tenant_id, send_id, topic, topic_partition, topic_offset, record_key, record_value, record_headers, created_at)
VALUES ($1, $2, 'refused', 'because', $3, CASE WHEN $2 LIKE 'rail:%' THEN gen_random_uuid() END, 'in', 0, 7, 'key', $4, $5::jsonb, $6)`, id, stage, tenant, value, headers, at)
	require.NoError(b.t, err)
	return id
}

var plain = `[["ce_id", "é"], ["raw", "AP8=", "base64"], ["outbox-id", "3:4"]]`

func (b *bench) read(n int) []*kgo.Record {
	b.t.Helper()
	var out []*kgo.Record
	ctx, cancel := context.WithTimeout(b.t.Context(), time.Minute)
	defer cancel()
	for len(out) < n {
		fs := b.cl.PollFetches(ctx)
		require.NoError(b.t, ctx.Err(), "%d of %d records", len(out), n)
		out = append(out, fs.Records()...)
	}
	return out
}

func (b *bench) count(sql string, args ...any) (n int) {
	b.t.Helper()
	require.NoError(b.t, b.pool.QueryRow(b.t.Context(), sql, args...).Scan(&n))
	return n
}

func one(id uuid.UUID) deadletter.Filter { return deadletter.Filter{IDs: []uuid.UUID{id}} }

func TestReplay(t *testing.T) {
	t.Run("GivesBackTheRecordsOwnBytesKeyAndHeaders", func(t *testing.T) {
		t.Parallel()
		b := newBench(t)
		b.relay()
		id := b.keep("append", nil, &plain, []byte{0, 1, 255}, time.Now())
		s := deadletter.New(b.pool, nil)
		done, err := s.Replay(t.Context(), one(id), "ana@shop", "mended", 0)
		require.NoError(t, err)
		require.Equal(t, []uuid.UUID{id}, done.Changed)
		r := b.read(1)[0]
		require.Equal(t, []byte{0, 1, 255}, r.Value)
		require.Equal(t, "key", string(r.Key))
		require.Equal(t, []kgo.RecordHeader{{Key: "ce_id", Value: []byte("é")}, {Key: "raw", Value: []byte{0, 255}}}, r.Headers[:2])
		require.Len(t, r.Headers, 3, "and the stamp of the lane it went out by")
		require.Equal(t, "outbox-id", r.Headers[2].Key)
		require.NotEqual(t, "3:4", string(r.Headers[2].Value))
		out, err := s.AwaitPublished(t.Context(), done)
		require.NoError(t, err)
		require.True(t, out)
		require.Equal(t, 1, b.count(`SELECT count(*) FROM core.dead_letters WHERE status = 'replayed' AND status_by = 'ana@shop' AND status_at IS NOT NULL
			AND status_note = 'mended' AND replay_lane = $1 AND replay_seq = $2`, done.Lane, done.LastSeq))

		again, err := s.Replay(t.Context(), one(id), "eva@shop", "", 0)
		require.NoError(t, err)
		require.Empty(t, again.Changed)
		require.ErrorIs(t, again.Refused[0].Err, deadletter.ErrNotOpen)
		require.ErrorContains(t, again.Refused[0].Err, "replayed by ana@shop")
		require.Equal(t, 1, b.count(`SELECT count(*) FROM core.outbox WHERE written_at > now() - interval '1 day'`))
	})

	// Killed before its commit, a replay has not happened; killed after it, it
	// goes out as soon as there is a relay, and asking again adds nothing.
	t.Run("IsWholeOrNothingWhereverItIsKilled", func(t *testing.T) {
		t.Parallel()
		b := newBench(t)
		id := b.keep("append", nil, &plain, []byte("v"), time.Now())
		s := deadletter.New(b.pool, nil)
		tx, err := b.pool.Begin(t.Context()) // stands in the way of the mark
		require.NoError(t, err)
		_, err = tx.Exec(t.Context(), `SELECT FROM core.dead_letters FOR UPDATE`)
		require.NoError(t, err)
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		defer cancel()
		_, err = s.Replay(ctx, one(id), "ana", "", 0)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.NoError(t, tx.Rollback(t.Context()))
		require.Equal(t, 1, b.count(`SELECT count(*) FROM core.dead_letters WHERE status = 'open'`))
		require.Zero(t, b.count(`SELECT count(*) FROM core.outbox WHERE written_at > now() - interval '1 day'`))

		done, err := s.Replay(t.Context(), one(id), "ana", "", 0)
		require.NoError(t, err)
		short, stop := context.WithTimeout(t.Context(), 200*time.Millisecond)
		defer stop()
		out, err := s.AwaitPublished(short, done)
		require.NoError(t, err)
		require.False(t, out, "nobody relays")
		_, err = s.Replay(t.Context(), one(id), "ana", "", 0)
		require.NoError(t, err)
		b.relay()
		require.Equal(t, "v", string(b.read(1)[0].Value))
		require.Equal(t, 1, b.count(`SELECT count(*) FROM core.outbox WHERE written_at > now() - interval '1 day'`))
	})

	t.Run("TakesWhatAFilterChoosesIfItIsAsManyAsConfirmed", func(t *testing.T) {
		t.Parallel()
		b := newBench(t)
		ana, eva := uuid.New(), uuid.New()
		old := time.Now().Add(-3 * time.Hour)
		for range 150 { // more than one transaction takes
			b.keep("append", &ana, &plain, []byte("a"), time.Now())
		}
		b.keep("append", &ana, &plain, []byte("old"), old)
		b.keep("append", &eva, &plain, []byte("other"), time.Now())
		b.keep("rules", &ana, &plain, []byte("other"), time.Now())
		s := deadletter.New(b.pool, nil)
		f := deadletter.Filter{Stage: "append", Class: "refused", Tenant: ana, Since: time.Now().Add(-time.Hour), Until: time.Now().Add(time.Minute)}
		n, err := s.Count(t.Context(), f)
		require.NoError(t, err)
		require.Equal(t, 150, n)
		_, err = s.Replay(t.Context(), f, "ana", "", 149)
		require.ErrorIs(t, err, deadletter.ErrChanged)
		done, err := s.Replay(t.Context(), f, "ana", "", 150)
		require.NoError(t, err)
		require.Len(t, done.Changed, 150)
		require.Equal(t, 150, b.count(`SELECT count(*) FROM core.dead_letters WHERE status = 'replayed'`))
		_, err = s.Replay(t.Context(), deadletter.Filter{}, "ana", "", 3)
		require.ErrorIs(t, err, deadletter.ErrNoFilter)
		letters, err := s.List(t.Context(), deadletter.Filter{Status: deadletter.StatusOpen}, 2)
		require.NoError(t, err)
		require.Len(t, letters, 2)
		letters, err = s.List(t.Context(), deadletter.Filter{Status: deadletter.StatusOpen, Until: time.Now().Add(-time.Hour)}, 9)
		require.NoError(t, err)
		require.Len(t, letters, 1)
	})

	t.Run("SaysWhatToDoWhereItCannot", func(t *testing.T) {
		t.Parallel()
		b := newBench(t)
		s := deadletter.New(b.pool, nil)
		bytesOnly := b.keep("stage:statuses", nil, nil, []byte("body"), time.Now())
		erased := b.keep("append", nil, &plain, nil, time.Now())
		send := b.keep("rail:email.transactional", nil, nil, nil, time.Now())
		good := b.keep("append", nil, &plain, []byte("v"), time.Now())
		done, err := s.Replay(t.Context(), deadletter.Filter{IDs: []uuid.UUID{bytesOnly, erased, send, uuid.New(), good}}, "ana", "", 0)
		require.NoError(t, err)
		require.Equal(t, []uuid.UUID{good}, done.Changed, "the others are in nobody's way")
		for i, want := range []error{deadletter.ErrNoRecord, deadletter.ErrNoRecord, deadletter.ErrSend, deadletter.ErrNotFound} {
			require.ErrorIs(t, done.Refused[i].Err, want)
		}
	})

	t.Run("LeavesMessagesToTheirRail", func(t *testing.T) {
		t.Parallel()
		b := newBench(t)
		send := b.keep("rail:email.transactional", nil, nil, nil, time.Now())
		rail := &rail{refuse: deadletter.ErrSend}
		done, err := deadletter.New(b.pool, rail).Replay(t.Context(), one(send), "ana", "", 0)
		require.NoError(t, err)
		require.Len(t, done.Refused, 1)
		rail.refuse = nil
		done, err = deadletter.New(b.pool, rail).Replay(t.Context(), one(send), "ana", "", 0)
		require.NoError(t, err)
		require.Len(t, done.Changed, 1)
		require.Len(t, rail.sends, 1)
		require.Equal(t, 1, b.count(`SELECT count(*) FROM core.dead_letters WHERE status = 'replayed' AND replay_seq IS NULL`))
	})
}

// rail is what replays sends.
type rail struct {
	refuse error
	sends  []uuid.UUID
}

func (r *rail) Replay(_ context.Context, _ pgx.Tx, send uuid.UUID, _ string) error {
	if r.refuse == nil {
		r.sends = append(r.sends, send)
	}
	return r.refuse
}

func TestDiscard(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	s := deadletter.New(b.pool, nil)
	id := b.keep("rail:email.transactional", nil, nil, nil, time.Now())
	done, err := s.Discard(t.Context(), one(id), "ana", "it arrived", 0)
	require.NoError(t, err)
	require.Equal(t, []uuid.UUID{id}, done.Changed)
	require.Equal(t, 1, b.count(`SELECT count(*) FROM core.dead_letters WHERE status = 'discarded' AND status_by = 'ana' AND status_note = 'it arrived'`))
	done, err = s.Replay(t.Context(), one(id), "ana", "", 0)
	require.NoError(t, err)
	require.ErrorIs(t, done.Refused[0].Err, deadletter.ErrNotOpen)
	_, err = s.Value(t.Context(), uuid.New())
	require.ErrorIs(t, err, deadletter.ErrNotFound)
}
