package stream

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/softcrum/carril/internal/outbox"
	"github.com/softcrum/carril/internal/pg"
)

// fencing is effects as a Fencer: a batch's keys are taken by themselves.
type fencing struct {
	*effects
	hook func(ctx context.Context, b *Batch) error // of Apply, before the rows

	mu     sync.Mutex
	ahead  int     // batches whose keys were taken ahead and that were applied so
	late   int     // and those that took them in their own transaction
	fenced []int64 // first offsets of the batches that took keys ahead
	twice  error
}

type taken struct {
	keys  []string
	early bool
	done  bool
}

func (*fencing) Prepare(context.Context, []Record) any { return &taken{} }

func (f *fencing) Fence(ctx context.Context, tx pgx.Tx, b *Batch) error {
	t, ok := b.Prepared.(*taken)
	if !ok {
		t = &taken{}
	}
	if t.done {
		f.note(func() { f.twice = errors.New("a batch was asked for its keys again in what it had before") })
	}
	t.done, t.early = true, b.Ahead
	keys := make([]string, 0, len(b.Records))
	for _, r := range b.Records {
		keys = append(keys, r.Value.(string))
	}
	slices.Sort(keys)
	rows, err := tx.Query(ctx, `INSERT INTO effects (key, size) SELECT k, length(k) FROM unnest($1::text[]) AS k ORDER BY k ON CONFLICT DO NOTHING RETURNING key`, slices.Compact(keys))
	if err != nil {
		return err
	}
	if t.keys, err = pgx.CollectRows(rows, pgx.RowTo[string]); err != nil {
		return err
	}
	b.Prepared = t
	if b.Ahead {
		f.note(func() { f.fenced = append(f.fenced, b.Records[0].Offset) })
	}
	return nil
}

func (f *fencing) Apply(ctx context.Context, tx pgx.Tx, b *Batch) error {
	t := b.Prepared.(*taken)
	if f.hook != nil {
		if err := f.hook(ctx, b); err != nil {
			return err
		}
	}
	for _, r := range b.Records {
		if _, err := tx.Exec(ctx, `INSERT INTO applied (part, off) VALUES ($1, $2)`, r.Partition, r.Offset); err != nil {
			return err
		}
	}
	f.note(func() {
		if t.early {
			f.ahead++
		} else {
			f.late++
		}
	})
	for _, r := range b.Records { // in the records' order
		if i := slices.Index(t.keys, r.Value.(string)); i >= 0 {
			t.keys = slices.Delete(t.keys, i, i+1)
			b.Emit(outbox.Message{Topic: "out", Key: []byte(r.Value.(string)), Value: []byte(r.Value.(string))})
		}
	}
	return nil
}

func (f *fencing) note(what func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	what()
}

func (f *fencing) early() (n int) {
	f.note(func() { n = f.ahead })
	return n
}

// took is how many batches have taken their keys ahead.
func (f *fencing) took() (n int) {
	f.note(func() { n = len(f.fenced) })
	return n
}

func TestKeysAreTakenAhead(t *testing.T) {
	t.Parallel()
	run := func(t *testing.T, partitions int32, stage *fencing, change func(*Config, *Deps), send func(b *bench)) *bench {
		b := newBench(t, partitions)
		stage.effects = b.stage
		send(b)
		b.loop(func(c *Config, d *Deps) {
			c.MaxRecords, c.CatchupRecords, d.Handler = 20, 40, stage
			if change != nil {
				change(c, d)
			}
		})
		return b
	}
	backlog := func(b *bench) { b.send(0, values("a", 400)...) }

	t.Run("BesideTheBatchInHand", func(t *testing.T) {
		t.Parallel()
		stage := &fencing{}
		var beside atomic.Bool
		// A batch in hand does not end before the next one has its keys. The first may
		// have none behind it yet.
		stage.hook = func(_ context.Context, batch *Batch) error {
			had := stage.took()
			for deadline := time.Now().Add(5 * time.Second); batch.Records[0].Offset < 300 && !beside.Load() && time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
				beside.Store(stage.took() > had)
			}
			return nil
		}
		b := run(t, 1, stage, nil, backlog)
		b.awaitEffects(400)
		require.Len(t, b.published(400), 400)
		b.appliedOnce(400)
		require.Zero(t, b.count(`SELECT count(*) FROM core.dead_letters`))
		require.NoError(t, stage.twice)
		require.True(t, beside.Load())
		require.Positive(t, stage.early())
	})

	t.Run("AndGivenUpWhereTheBatchInHandFails", func(t *testing.T) {
		t.Parallel()
		stage := &fencing{}
		// Both batches have the key: whoever is tried again would wait for the other's
		// transaction, which waits for its turn.
		shared := func(b *bench) {
			vs := values("a", 400)
			vs[10], vs[50] = "both", "both"
			b.send(0, vs...)
		}
		var once sync.Once
		stage.hook = func(ctx context.Context, batch *Batch) (err error) {
			if batch.Records[0].Offset != 0 {
				return nil
			}
			once.Do(func() {
				time.Sleep(50 * time.Millisecond) // room for the next batch to wait for the key
				err = fmt.Errorf("%w: test", ErrWait)
			})
			return err
		}
		counted := newAlarmCounter()
		b := run(t, 1, stage, func(_ *Config, d *Deps) { d.Metrics = counted.m }, shared)
		b.awaitEffects(399)
		b.eventually("all applied", 60*time.Second, func() bool { return b.count(`SELECT count(*) FROM applied`) == 400 })
		b.appliedOnce(400)
		require.InDelta(t, 1, testutil.ToFloat64(counted.m.retries.WithLabelValues("effects", "wait")), 0, "nobody waited for the next batch's key")
		require.NoError(t, stage.twice)
		require.Equal(t, "both", b.published(399)[10], "the first of a key is the one that counts")
	})

	t.Run("AndNotWaitedForBehindABatchWithoutOne", func(t *testing.T) {
		t.Parallel()
		stage := &fencing{}
		b := run(t, 1, stage, nil, func(b *bench) {
			b.send(0, slices.Concat(values("a", 80), values("undecodable", 80), values("b", 80))...)
		})
		b.awaitEffects(160)
		require.Equal(t, 80, b.count(`SELECT count(*) FROM core.dead_letters`))
	})

	t.Run("AndGivenUpWhereTheStageEnds", func(t *testing.T) {
		t.Parallel()
		stage := &fencing{}
		stop := make(chan struct{})
		var once sync.Once
		stage.hook = func(context.Context, *Batch) error {
			if stage.took() > 0 {
				once.Do(func() { close(stop) })
			}
			time.Sleep(5 * time.Millisecond) // room for the next batch's keys, and for the end
			return nil
		}
		b := newBench(t, 1)
		stage.effects = b.stage
		backlog(b)
		l := b.loop(func(c *Config, d *Deps) { c.MaxRecords, c.CatchupRecords, d.Handler = 5, 10, stage })
		select {
		case <-stop:
		case <-time.After(60 * time.Second):
			require.Fail(t, "no batch took its keys ahead")
		}
		l.stop()
		require.Zero(t, b.pool.Stat().AcquiredConns(), "no transaction is left open")
		effects, applied := b.count(`SELECT count(*) FROM effects`), b.count(`SELECT count(*) FROM applied`)
		require.Equal(t, applied, effects, "no key without its batch")
		b.loop(func(c *Config, d *Deps) { c.MaxRecords, c.CatchupRecords, d.Handler = 20, 40, stage })
		b.awaitEffects(400)
		b.appliedOnce(400)
	})

	t.Run("NotWhereAnotherPartitionWaitsForItsTurn", func(t *testing.T) {
		t.Parallel()
		stage := &fencing{}
		b := run(t, 2, stage, func(_ *Config, d *Deps) { d.Slots = NewSlots(1); d.Slots.wait.Add(1) }, func(b *bench) {
			b.send(0, values("a", 400)...)
			b.send(1, values("b", 400)...)
		})
		b.awaitEffects(800)
		b.appliedOnce(800)
		require.Zero(t, stage.early())
	})
}

// What was not asked by the time of the commit is asked before it: a batch whose
// stage asks nothing is fenced all the same.
func TestPositionIsTheFenceOfAStageThatAsksNothing(t *testing.T) {
	t.Parallel()
	b := newBench(t, 1)
	b.send(0, "a")
	l := b.loop(func(_ *Config, d *Deps) { d.Handler = idle{b.stage} })
	next := func() int { return b.count(`SELECT coalesce(max(next_offset), 0) FROM core.stream_positions`) }
	b.eventually("the position", 60*time.Second, func() bool { return next() == 1 })
	l.mu.Lock()
	old := l.workers[tp{"in", 0}]
	l.mu.Unlock()
	w := &worker{l: old.l, tp: old.tp, claim: old.claim, pubs: old.pubs}
	l.stop()
	w.claim.next = 1
	_, err := b.pool.Exec(t.Context(), `UPDATE core.stream_positions SET epoch = epoch + 1`)
	require.NoError(t, err)
	late := Record{Record: &kgo.Record{Topic: b.kcfg.Topic("in"), Offset: 1, Value: []byte("late")}, Value: "late"}
	require.ErrorIs(t, w.attempt(t.Context(), []Record{late}, lead{}, nil, late.Record), errFenced)
	require.Equal(t, 1, next())
	b.appliedOnce(1)
}

// idle is a stage whose only statement travels with the commit.
type idle struct{ *effects }

func (idle) Apply(ctx context.Context, tx pgx.Tx, b *Batch) error {
	return pg.QueueExec(ctx, tx, `INSERT INTO applied (part, off) VALUES ($1, $2)`, b.Partition, b.Records[0].Offset)
}
