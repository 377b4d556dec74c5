package stream

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/softcrum/carril/internal/db/streamdb"
	"github.com/softcrum/carril/internal/ids"
	"github.com/softcrum/carril/internal/pause"
	"github.com/softcrum/carril/internal/pg"
)

// decode reads every record; what is poison is put aside, what has to wait is
// waited for.
func (w *worker) decode(ctx context.Context, records []*kgo.Record) ([]Record, []reject, error) {
	good := make([]Record, 0, len(records))
	var bad []reject
	backoff := w.l.cfg.Backoff
	for i := 0; i < len(records); {
		v, err := w.l.deps.Handler.Decode(ctx, records[i])
		switch {
		case err == nil:
			good = append(good, Record{records[i], v})
			i++
		case ctx.Err() != nil:
			return nil, nil, ctx.Err()
		case errors.Is(err, ErrPoison):
			bad = append(bad, reject{record: records[i], class: "undecodable", reason: err.Error()})
			i++
		default:
			if err := w.backOff(ctx, "decode", err, &backoff); err != nil {
				return nil, nil, err
			}
		}
	}
	return good, bad, nil
}

// applyRange brings good records into the database and keeps the rejects, through
// the record last: all of them in one transaction where it can, down to single
// rows where one of them is refused. It returns only when they are applied or
// dead-lettered, when the worker is fenced, or when its context ends.
//
// on is what was done ahead; it serves the first attempt.
func (w *worker) applyRange(ctx context.Context, good []Record, on lead, bad []reject, last *kgo.Record) error {
	backoff, raced := w.l.cfg.Backoff, false
	for {
		err := w.attempt(ctx, good, on, bad, last)
		if err == nil {
			return nil
		}
		on.next.drop()
		on = lead{}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		switch verdict(err, &raced) {
		case giveUp:
			return err
		case again:
			w.count("race")
		case makePartitions:
			w.count("partition")
			if e := w.ensurePartitions(ctx, good); e != nil {
				if err := w.backOff(ctx, "partition", errors.Join(err, e), &backoff); err != nil {
					return err
				}
			}
		case wait:
			w.alarmStatement(err)
			if err := w.backOff(ctx, "wait", err, &backoff); err != nil {
				return err
			}
		case bisect:
			w.count("bisect")
			return w.bisect(ctx, good, bad, last, err)
		}
	}
}

// bisect halves a refused batch, rejects and all, until the one record that is
// refused stands alone: a good one becomes a reject; a reject that the database
// refuses even as a dead letter is kept without what it brought, which its offset
// still names. Rather that than a partition that stands.
func (w *worker) bisect(ctx context.Context, good []Record, bad []reject, last *kgo.Record, cause error) error {
	switch {
	case len(good) == 1 && len(bad) == 0:
		return w.applyRange(ctx, nil, lead{}, []reject{{record: good[0].Record, class: classOf(cause), reason: redact(cause)}}, last)
	case len(good) == 0 && len(bad) == 1 && !bad[0].bare:
		r := bad[0]
		r.bare, r.reason = true, r.reason+"; its bytes were refused: "+redact(cause)
		return w.applyRange(ctx, nil, lead{}, []reject{r}, last)
	case len(good)+len(bad) < 2:
		return fmt.Errorf("keep dead letters of %s/%d: %w", w.tp.topic, w.tp.partition, cause)
	}
	mid := middle(good, bad)
	g, _ := slices.BinarySearchFunc(good, mid.Offset+1, func(r Record, at int64) int { return cmp.Compare(r.Offset, at) })
	b, _ := slices.BinarySearchFunc(bad, mid.Offset+1, func(r reject, at int64) int { return cmp.Compare(r.record.Offset, at) })
	if err := w.applyRange(ctx, good[:g], lead{}, bad[:b:b], mid); err != nil {
		return err
	}
	return w.applyRange(ctx, good[g:], lead{}, bad[b:], last)
}

// middle is the last record of the first half of a batch, by offset.
func middle(good []Record, bad []reject) *kgo.Record {
	all := make([]*kgo.Record, 0, len(good)+len(bad))
	for _, r := range good {
		all = append(all, r.Record)
	}
	for _, r := range bad {
		all = append(all, r.record)
	}
	slices.SortFunc(all, func(a, b *kgo.Record) int { return cmp.Compare(a.Offset, b.Offset) })
	return all[(len(all)-1)/2]
}

// attempt is one transaction. Its outcome is never guessed: a commit that gave
// an error is settled by reading the position back.
func (w *worker) attempt(ctx context.Context, good []Record, on lead, bad []reject, last *kgo.Record) error {
	if len(good) > w.l.cfg.MaxRecords {
		giveBack, err := w.l.deps.Slots.take(ctx)
		if err != nil {
			on.front.rollback()
			return err
		}
		defer giveBack()
	}
	started := time.Now()
	tctx, cancel := context.WithTimeout(ctx, w.l.cfg.TxTimeout)
	defer cancel()
	from, end := w.position(), last.Offset+1
	f, err := w.begin(tctx, good, on)
	if err != nil {
		return err
	}
	tx, b := f.tx, f.b
	commit, err := w.inTx(tctx, tx, b, on, bad, from, last)
	if err != nil {
		rollback(tx)
		return err
	}
	w.l.deps.Hook.at(PointCommitting)
	if err := tx.Commit(tctx); errors.Is(err, pg.ErrRolledBack) {
		rollback(tx)
		return err
	} else if err != nil {
		landed, err := w.settle(ctx, from, end, err)
		if err != nil {
			return err
		}
		if !landed {
			return fmt.Errorf("%w: commit did not land", ErrWait)
		}
	}
	w.l.deps.Hook.at(PointCommitted)
	w.committed(b, commit, end, len(good), len(bad)+len(b.rejects), time.Since(started))
	return nil
}

// begin gives the transaction that a batch is applied in: the one that has its
// keys already, or a new one.
func (w *worker) begin(ctx context.Context, good []Record, on lead) (*front, error) {
	if on.front != nil {
		return on.front, nil
	}
	tx, err := pg.Begin(ctx, w.l.deps.Pool)
	if err != nil {
		return nil, fmt.Errorf("begin: %w", err)
	}
	f := &front{tx, w.batch(good, on.ready)}
	f.b.tx = tx
	return f, nil
}

func rollback(tx pgx.Tx) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	_ = tx.Rollback(ctx) // the connection is thrown away if even that fails
}

// inTx does everything between BEGIN and COMMIT: position and batch row, the
// stage, the dead letters, the outbox.
func (w *worker) inTx(ctx context.Context, tx *pg.Tx, b *Batch, on lead, bad []reject, from int64, last *kgo.Record) (out committedBatch, err error) {
	advanced := w.queueAdvance(tx, from, last)
	if len(b.Records) > 0 {
		if err := w.callHandler(ctx, tx, b, on); err != nil {
			return out, err
		}
		w.l.deps.Hook.at(PointApplied)
	}
	if err := keepDeadLetters(ctx, tx, w.l.cfg.Stage, w.claim.topicID, w.l.deps.Kafka.Logical, append(bad[:len(bad):len(bad)], b.rejects...)); err != nil {
		return out, err
	}
	if out.derived, err = b.derived.Append(ctx, tx, b.msgs); err != nil {
		return out, err
	}
	if !*advanced { // nothing was asked after it, and COMMIT must not travel with it
		return out, tx.Flush(ctx)
	}
	return out, nil
}

// callHandler lets the stage take its keys, where that was not done ahead, and
// do the rest; the next batch's keys may be taken in between.
func (w *worker) callHandler(ctx context.Context, tx pgx.Tx, b *Batch, on lead) error {
	return w.guard(b, func() error {
		if stage, ok := w.l.deps.Handler.(Fencer); ok {
			if on.front == nil {
				if err := stage.Fence(ctx, tx, b); err != nil {
					return err
				}
			}
			on.next.open()
		}
		return w.l.deps.Handler.Apply(ctx, tx, b)
	})
}

// guard keeps a panic of the stage to the batch that caused it.
func (w *worker) guard(b *Batch, work func() error) (err error) {
	defer func() {
		if r := recover(); r != nil {
			w.l.log.Error("stage panicked", "stage", b.Stage, "topic", b.Topic, "partition", b.Partition, "panic", fmt.Sprint(r), "stack", string(debug.Stack()))
			err = fmt.Errorf("%w: panic in stage %s", ErrPoison, b.Stage)
		}
	}()
	return work()
}

// queueAdvance is the fence: position from where we stand to the batch's end, under
// our epoch; and the batch's own row. It travels with the transaction's next
// statement, which fails where another owner has taken over; done says that it has.
func (w *worker) queueAdvance(tx *pg.Tx, from int64, last *kgo.Record) (done *bool) {
	var ask pg.Captured
	_, _ = streamdb.New(&ask).AdvancePosition(context.Background(), streamdb.AdvancePositionParams{
		Stage: w.l.cfg.Stage, Topic: w.tp.topic, Partition: w.tp.partition, TopicID: w.claim.topicID, Epoch: w.claim.epoch,
		FromOffset: from, NextOffset: last.Offset + 1, LeaderEpoch: last.LeaderEpoch,
		JobID: ids.BatchOfOffsets(w.l.cfg.Stage, w.claim.topicID, w.tp.partition, w.claim.epoch, from)})
	done = new(bool)
	tx.Queue(ask.SQL, ask.Args...).Exec(func(moved pgconn.CommandTag) error {
		*done = true
		if moved.RowsAffected() == 0 {
			return errFenced
		}
		return nil
	})
	return done
}

// settle finds out whether a commit of unknown outcome landed. The row lock
// waits for a transaction that is still on its way.
func (w *worker) settle(ctx context.Context, from, end int64, cause error) (landed bool, err error) {
	w.count("commit_unknown")
	backoff := w.l.cfg.Backoff
	for {
		next, epoch, err := w.readBack(ctx)
		switch {
		case err != nil:
			if err := w.backOff(ctx, "settle", errors.Join(cause, err), &backoff); err != nil {
				return false, err
			}
		case epoch != w.claim.epoch:
			return false, errFenced
		default:
			return next == end && next != from, nil
		}
	}
}

func (w *worker) readBack(ctx context.Context) (next, epoch int64, err error) {
	rctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	err = pgx.BeginFunc(rctx, w.l.deps.Pool, func(tx pgx.Tx) error {
		at, err := streamdb.New(tx).ReadBackPosition(rctx, streamdb.ReadBackPositionParams{
			Stage: w.l.cfg.Stage, Topic: w.tp.topic, Partition: w.tp.partition})
		next, epoch = at.NextOffset, at.Epoch
		return err
	})
	return next, epoch, err
}

// committed publishes what the batch wants published and moves on.
func (w *worker) committed(b *Batch, out committedBatch, end int64, good, dead int, took time.Duration) {
	w.moveTo(end)
	derived := w.pubs[len(w.pubs)-1]
	derived.Offer(out.derived)
	if w.l.deps.Events != nil {
		w.pubs[0].Offer(b.pubEv)
	}
	for _, f := range b.after {
		f()
	}
	if m := w.l.deps.Metrics; m != nil {
		m.records.WithLabelValues(b.Stage).Add(float64(good))
		m.batches.WithLabelValues(b.Stage).Observe(took.Seconds())
		m.deadLetters.WithLabelValues(b.Stage).Add(float64(dead))
	}
	if dead > 0 {
		w.l.log.Warn("records dead-lettered", "stage", b.Stage, "topic", b.Topic, "partition", b.Partition, "count", dead)
	}
}

func (w *worker) ensurePartitions(ctx context.Context, records []Record) error {
	tctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	if p, ok := w.l.deps.Handler.(PartitionMaker); ok {
		return p.MakePartitions(tctx, w.l.deps.Pool, records)
	}
	return pg.EnsurePartitions(tctx, w.l.deps.Pool, time.Now())
}

// PartitionMaker is a Handler that knows which partitions its records need; it
// is asked when the database finds none.
type PartitionMaker interface {
	MakePartitions(ctx context.Context, pool *pgxpool.Pool, records []Record) error
}

func (w *worker) backOff(ctx context.Context, cause string, err error, backoff *time.Duration) error {
	w.count(cause)
	w.l.log.Warn("batch waits", "stage", w.l.cfg.Stage, "topic", w.tp.topic, "partition", w.tp.partition, "cause", cause, "error", err, "backoff", *backoff)
	wait := jitter(*backoff)
	*backoff = min(2**backoff, 5*time.Second)
	if !pause.For(ctx, wait) {
		return ctx.Err()
	}
	return nil
}

// alarmStatement pages for a statement that the schema does not know: it waits
// for a migration that may never come.
func (w *worker) alarmStatement(err error) {
	if pg.FaultOf(err) != pg.FaultStatement || errors.Is(err, ErrWait) {
		return
	}
	if m := w.l.deps.Metrics; m != nil {
		m.alarms.WithLabelValues(w.l.cfg.Stage, "statement").Inc()
	}
}

func (w *worker) count(cause string) {
	if m := w.l.deps.Metrics; m != nil {
		m.retries.WithLabelValues(w.l.cfg.Stage, cause).Inc()
	}
}
