package stream

import (
	"context"

	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/softcrum/carril/internal/pg"
)

// Fencer is a Handler whose natural fence can be taken by itself. While a worker
// catches up, the next batch's is, on a connection of its own, beside the rest of
// the batch in hand: keys lie in a table of their own, and nothing else of a batch
// may be done before the batch before it has been committed.
type Fencer interface {
	// Fence takes the batch's natural keys inside tx and keeps in b.Prepared what
	// Apply, which follows in the same transaction, has to know of it. It locks
	// nothing else: whoever waits for one of the keys waits for the batch in hand,
	// which takes no more of them. It is asked once a transaction, before Apply.
	Fence(ctx context.Context, tx pgx.Tx, b *Batch) error
}

// ahead is the batch after the one in hand: it is decoded and prepared at once,
// and its keys are taken when the batch in hand has taken its own. A nil ahead is
// of a batch that has none.
//
// Its transaction is worth keeping only while the batch in hand goes well: what is
// tried again may want a key that the next one holds, and would wait for it for
// ever, since the next one waits in this process, where PostgreSQL sees no circle.
type ahead struct {
	turn   chan struct{} // closed: the batch in hand has taken its keys
	opened bool
	cancel context.CancelFunc // the keys are not wanted any more
	done   chan prepared      // of one
}

// open lets the next batch take its keys.
func (a *ahead) open() {
	if a != nil && !a.opened {
		a.opened = true
		close(a.turn)
	}
}

// drop gives up the next batch's transaction, and with it what was prepared and is
// used up; what is decoded stays.
func (a *ahead) drop() {
	if a == nil {
		return
	}
	a.cancel()
	p := <-a.done
	if p.front != nil {
		p.front.rollback()
		p.front, p.ready = nil, nil
	}
	a.done <- p
}

// take waits for the next batch. A batch in hand that had no keys to take is over
// without having let it.
func (a *ahead) take() prepared {
	if !a.opened {
		a.cancel()
	}
	defer a.cancel()
	return <-a.done
}

// lead is what was done ahead for a batch's first attempt, and the batch behind.
type lead struct {
	ready any
	front *front
	next  *ahead
}

// front is a transaction that has taken the keys of a batch.
type front struct {
	tx *pg.Tx
	b  *Batch
}

func (f *front) rollback() {
	if f != nil {
		rollback(f.tx)
	}
}

// lookAhead begins with the batch after the one in hand while that one is in the
// database, if the queue holds a full one: to cut a smaller one early would leave
// what comes meanwhile to a transaction of its own. nil: it does not. It gives one
// value, soon after ctx ends at the latest.
func (w *worker) lookAhead(ctx context.Context) *ahead {
	records, _ := w.next(true)
	if records == nil {
		return nil
	}
	fctx, cancel := context.WithCancel(ctx)
	a := &ahead{turn: make(chan struct{}), cancel: cancel, done: make(chan prepared, 1)}
	go func() {
		p := w.prepare(ctx, records)
		if stage, ok := w.l.deps.Handler.(Fencer); ok && p.ready != nil && w.waitTurn(fctx, a.turn) {
			if p.front = w.fenceAhead(fctx, stage, p); p.front == nil {
				p.ready = nil // used up
			}
		}
		a.done <- p
	}()
	return a
}

// waitTurn waits until the batch in hand has taken its keys, and says whether the
// next one should take its own: not where that would keep a connection, or keys,
// from those who have work to do.
func (w *worker) waitTurn(ctx context.Context, turn <-chan struct{}) bool {
	select {
	case <-ctx.Done():
		return false
	case <-turn:
	}
	s := w.l.deps.Pool.Stat()
	return !w.l.deps.Slots.wanted() && s.AcquiredConns()+s.ConstructingConns() <= s.MaxConns()/2
}

// fenceAhead takes a batch's keys in a transaction of its own. nil: something is
// amiss, which the batch meets again when it is its turn.
func (w *worker) fenceAhead(ctx context.Context, stage Fencer, p prepared) *front {
	fctx, cancel := context.WithTimeout(ctx, w.l.cfg.TxTimeout)
	defer cancel()
	tx, err := pg.Begin(fctx, w.l.deps.Pool)
	if err != nil {
		return nil
	}
	f := &front{tx, w.batch(p.good, p.ready)}
	f.b.tx, f.b.Ahead = tx, true
	tx.Queue(letGo)
	if err := w.guard(f.b, func() error { return stage.Fence(fctx, tx, f.b) }); err != nil {
		f.rollback()
		return nil
	}
	w.l.deps.Hook.at(PointAhead)
	return f
}

// letGo ends a transaction that is asked nothing for so long by itself, as the
// position's statement does: a process that is paused keeps no key longer.
const letGo = `SELECT set_config('idle_in_transaction_session_timeout', '15s', true)`

// prepared is a batch that is decoded and not yet applied.
type prepared struct {
	good  []Record
	ready any    // what the stage prepared of good
	front *front // has its keys; nil: they are still to be taken
	bad   []reject
	last  *kgo.Record
	err   error
	bytes int
}

func (w *worker) prepare(ctx context.Context, records []*kgo.Record) prepared {
	good, bad, err := w.decode(ctx, records)
	p := prepared{good: good, bad: bad, last: records[len(records)-1], err: err}
	for _, r := range records {
		p.bytes += recordBytes(r)
	}
	if stage, ok := w.l.deps.Handler.(Preparer); ok && err == nil && len(good) > 0 {
		p.ready = w.callPrepare(ctx, stage, good)
	}
	return p
}

// callPrepare keeps a panic of the stage from the process: Apply meets it again.
func (w *worker) callPrepare(ctx context.Context, stage Preparer, good []Record) (ready any) {
	defer func() {
		if recover() != nil {
			ready = nil
		}
	}()
	return stage.Prepare(ctx, good)
}

// batch is what a Handler gets of records.
func (w *worker) batch(good []Record, ready any) *Batch {
	return &Batch{Stage: w.l.cfg.Stage, Topic: w.tp.topic, Partition: w.tp.partition, Records: good, Prepared: ready,
		events: w.claim.events, derived: w.claim.derived}
}
