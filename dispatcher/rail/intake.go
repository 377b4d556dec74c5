package rail

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/softcrum/carril/dispatcher/sends"
	"github.com/softcrum/carril/internal/pause"
	"github.com/softcrum/carril/schemas"
)

// arrival is a record between the poll and its tenant's queue.
type arrival struct {
	record *kgo.Record
	entry  *entry
}

// takeIn reads what the poll received, drops what is finished already, and
// queues the rest. It waits while the database or the registry is away; the
// windows bound what piles up before it.
func (w *Worker) takeIn(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-w.arrived:
		}
		w.mu.Lock()
		batch := w.intake
		w.intake = nil
		w.mu.Unlock()
		backoff := 50 * time.Millisecond
		for {
			err := w.queueArrivals(ctx, batch)
			if err == nil {
				break
			}
			if ctx.Err() != nil {
				return
			}
			w.log.Warn("records wait to be looked up", "records", len(batch), "error", err, "backoff", backoff)
			if !pause.For(ctx, jitter(backoff)) {
				return
			}
			backoff = min(2*backoff, 2*time.Second)
		}
	}
}

func (w *Worker) queueArrivals(ctx context.Context, batch []*arrival) error {
	items := make([]*item, 0, len(batch))
	bad := map[*arrival]error{}
	for _, a := range batch {
		it, err := w.read(ctx, a)
		switch {
		case err == nil:
			items = append(items, it)
		case errors.Is(err, schemas.ErrRegistryAway):
			return err
		case errors.Is(err, schemas.ErrMalformed), errors.Is(err, errWrongRail):
			bad[a] = err
		default:
			return err
		}
	}
	refs := make([]sends.Ref, len(items))
	for i, it := range items {
		refs[i] = it.ref
	}
	pctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	rows, err := w.deps.Store.Peek(pctx, refs)
	if err != nil {
		return err
	}
	for a, why := range bad {
		if err := w.refuseRecord(pctx, a, why); err != nil {
			return err
		}
	}
	for _, it := range items {
		w.queueItem(pctx, it, rows)
	}
	signal(w.wake)
	return nil
}

// queueItem queues a job whose row waits for it. A row that is finished, of
// another turn, or with a living worker asks for nothing here.
func (w *Worker) queueItem(ctx context.Context, it *item, rows map[uuid.UUID]sends.Peeked) {
	row, ok := rows[it.ref.JobID]
	switch {
	case !ok:
		w.count("orphan") // the database is older than the topic: whoever wrote the record writes both again
		w.finish(it.entry)
		return
	case row.Turn != it.ref.Turn, row.State != sends.StateInTopic && row.State != sends.StateClaimed:
		w.count("stale")
		w.finish(it.entry)
		return
	case row.Alive:
		w.count("busy")
		w.finish(it.entry)
		return
	}
	if row.Category == "product" {
		it.lane = 1
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if !it.entry.w.closed && !w.stopping {
		w.ring.push(it, false)
	}
}

// errWrongRail marks a job that may not ride this rail (FS-MSG-0005 §9).
var errWrongRail = errors.New("job of another rail")

// read makes a job of a record. The two rails' records are different types:
// a batch cannot even be read from the transactional topic. What is left to
// check here is what a record says of itself.
func (w *Worker) read(ctx context.Context, a *arrival) (*item, error) {
	it := &item{entry: a.entry, arrived: time.Now(), messages: 1}
	if w.cfg.Rail == schemas.RailMarketing {
		var rec schemas.SendBatch
		if err := w.deps.Codec.Decode(ctx, w.topic, a.record.Value, &rec); err != nil {
			return nil, err
		}
		it.ref = sends.Ref{JobID: rec.JobID, Turn: rec.Turn, TenantID: rec.TenantID}
		it.messages = len(rec.SendIDs)
		return it, w.checkChannel(rec.Channel)
	}
	var rec schemas.SendJob
	if err := w.deps.Codec.Decode(ctx, w.topic, a.record.Value, &rec); err != nil {
		return nil, err
	}
	it.ref = sends.Ref{JobID: rec.JobID, Turn: rec.Turn, TenantID: rec.TenantID}
	if rail, ok := schemas.RailOf(rec.Category); !ok || rail != w.cfg.Rail {
		return it, fmt.Errorf("%w: category %q on the %s rail", errWrongRail, rec.Category, w.cfg.Rail)
	}
	return it, w.checkChannel(rec.Channel)
}

func (w *Worker) checkChannel(channel string) error {
	if channel != w.cfg.Channel {
		return fmt.Errorf("%w: channel %q on %s", errWrongRail, channel, w.cfg.Channel)
	}
	return nil
}

// refuseRecord makes a dead letter of a record that this rail must not send or
// cannot read, and of its job where it has one.
func (w *Worker) refuseRecord(ctx context.Context, a *arrival, why error) error {
	class, job := "undecodable", uuid.Nil
	if errors.Is(why, errWrongRail) {
		class = "wrong_rail"
		var rec schemas.SendJob
		if err := w.deps.Codec.Decode(ctx, w.topic, a.record.Value, &rec); err == nil {
			job = rec.JobID
		}
	}
	err := w.deps.Store.Refuse(ctx, sends.Refusal{Class: class, Reason: why.Error(), JobID: job, Topic: w.topic, TopicID: a.entry.w.topicID, Record: a.record})
	if err != nil {
		return err
	}
	w.log.Warn("record refused", "class", class, "partition", a.record.Partition, "offset", a.record.Offset)
	w.count("refused")
	w.finish(a.entry)
	return nil
}
