package eventlog

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/softcrum/carril/internal/db/processordb"
	"github.com/softcrum/carril/internal/ids"
	"github.com/softcrum/carril/internal/kafka"
	"github.com/softcrum/carril/internal/outbox"
	"github.com/softcrum/carril/internal/pg"
	"github.com/softcrum/carril/internal/stream"
	"github.com/softcrum/carril/processor/identity"
	"github.com/softcrum/carril/schemas"
)

func (h *Handler) recordConflicts(ctx context.Context, tx pgx.Tx, b *stream.Batch, again []row) error {
	if len(again) == 0 {
		return nil
	}
	n := len(again)
	rows := processordb.RecordKeyConflictsParams{Tenants: make([]uuid.UUID, n), Events: make([]uuid.UUID, n),
		BodyHashes: make([][]byte, n), Received: make([]time.Time, n)}
	for i, r := range again {
		rows.Tenants[i], rows.Events[i], rows.BodyHashes[i], rows.Received[i] = r.TenantID, r.EventID, r.BodyHash, r.ReceivedAt
	}
	recorded, err := processordb.New(tx).RecordKeyConflicts(ctx, rows)
	if err != nil {
		return fmt.Errorf("record key conflicts: %w", err)
	}
	if m := h.deps.Metrics; m != nil && recorded > 0 {
		b.OnCommit(func() { m.conflicts.Add(float64(recorded)) })
	}
	return nil
}

// append writes the winners with their lane sequences, and the span that says
// where they lie.
func (h *Handler) append(ctx context.Context, tx pgx.Tx, b *stream.Batch, a *ahead, taken taken) error {
	if err := pg.Flush(ctx, tx); err != nil { // identity asked nothing
		return err
	}
	lane, first, at := taken()
	rows := a.rows
	// The messages are made while PostgreSQL is busy with the rows.
	var msgs []outbox.Message
	var failed error
	var made sync.WaitGroup
	made.Go(func() { msgs, failed = h.messages(ctx, rows, lane, first) })
	err := a.events.copy(ctx, tx, rows, lane, first)
	made.Wait()
	if err != nil {
		return err
	}
	if failed != nil {
		return failed
	}
	if err := insertSpan(ctx, tx, spanOf(rows), lane, first, first+int64(len(rows))-1); err != nil {
		return err
	}
	b.EmitEvents(outbox.Number(msgs, first, at))
	return nil
}

// messages makes what is published of appended rows, all values in one piece of
// memory.
func (h *Handler) messages(ctx context.Context, rows []row, lane int32, first int64) ([]outbox.Message, error) {
	msgs, ends := make([]outbox.Message, len(rows)), make([]int, len(rows))
	tenants := map[uuid.UUID]address{}
	var values []byte
	var e schemas.EventTracked
	for i, r := range rows {
		a, ok := tenants[r.TenantID]
		if !ok {
			a = address{[]byte(r.TenantID.String()), kafka.Source(r.TenantID)}
			tenants[r.TenantID] = a
		}
		e = Tracked(r.Event, r.name(), r.Kind, r.contact, lane, first+int64(i))
		var err error
		if values, err = h.deps.Codec.Encode(ctx, values, schemas.TopicEventTracked, &e); err != nil {
			return nil, waitFor(err)
		}
		if i == 0 { // the others are about as long
			values = slices.Grow(values, len(rows)*(len(values)+64))
		}
		msgs[i], ends[i] = message(&e, a, nil), len(values)
		msgs[i].Headers = kafka.Traced(msgs[i].Headers, r.from)
	}
	from := 0
	for i, end := range ends {
		msgs[i].Value = values[from:end:end]
		from = end
	}
	return msgs, nil
}

// copyEvents has its columns in the order of eventRow.
const copyEvents = `COPY core.tracked_events (tenant_id, event_id, cell_id, contact_id, kind, event_name, properties, occurred_at,
    occurred_offset, occurred_claimed, received_at, idempotency_key, correlation_id, retention_months, historical, lane, lane_seq) FROM STDIN BINARY`

func eventRow(b pg.CopyRow, r *row, lane int32, seq int64) pg.CopyRow {
	return b.Columns(17).UUID(r.TenantID).UUID(r.EventID).Text(r.CellID).UUID(r.contact).Text(r.Kind).Text(r.name()).JSONB(r.Payload).
		Time(r.OccurredAt).Int32(r.OccurredOffset).TimeOrNull(r.OccurredClaimed).Time(r.ReceivedAt).Text(r.IdempotencyKey).
		Text(r.CorrelationID).Int16(r.class).Bool(r.Historical).Int32(lane).Int64(seq)
}

// eventRows are the rows of a COPY, made before it is known whose events they
// are and which sequences they get.
type eventRows struct {
	made pg.CopyRow
	ends []int // of each row
}

// Where a row keeps what is filled in later: the contact behind the cell, whose
// text has a length of its own, and lane and sequence at its end.
const (
	beforeCell  = 2 + 2*(4+16) + 4
	laneFromEnd = 4 + 4 + 8
	seqFromEnd  = 8
)

func makeEvents(rows []row) *eventRows {
	e := &eventRows{made: pg.Made(0), ends: make([]int, len(rows))}
	for i := range rows {
		e.made = eventRow(e.made, &rows[i], 0, 0)
		e.ends[i] = len(e.made)
		if i == 0 { // the others are about as long
			e.made = slices.Grow(e.made, len(rows)*(len(e.made)+64))
		}
	}
	e.made = e.made.End()
	return e
}

// copy appends the rows under the lane's sequences from first on.
func (e *eventRows) copy(ctx context.Context, tx pgx.Tx, rows []row, lane int32, first int64) error {
	from := len(pg.Made(0))
	for i, end := range e.ends {
		r := &rows[i]
		copy(e.made[from+beforeCell+len(r.CellID)+4:], r.contact[:])
		binary.BigEndian.PutUint32(e.made[end-laneFromEnd:], uint32(lane))
		binary.BigEndian.PutUint64(e.made[end-seqFromEnd:], uint64(first)+uint64(i))
		from = end
	}
	if err := pg.CopyMade(ctx, tx, copyEvents, e.made); err != nil {
		return fmt.Errorf("append %d events: %w", len(rows), err)
	}
	return nil
}

// insertSpan writes the span with the transaction's next statement, which is its
// commit as a rule.
func insertSpan(ctx context.Context, tx pgx.Tx, s span, lane int32, first, last int64) error {
	var ask pg.Captured
	_ = processordb.New(&ask).InsertSpan(ctx, processordb.InsertSpanParams{
		Lane: lane, FirstSeq: first, LastSeq: last, MinOccurred: s.min, MaxOccurred: s.max, Tenants: s.tenants})
	if err := pg.QueueExec(ctx, tx, ask.SQL, ask.Args...); err != nil {
		return fmt.Errorf("write the span of lane %d: %w", lane, err)
	}
	return nil
}

func writeWarnings(ctx context.Context, tx pgx.Tx, ws []identity.Warning) error {
	if len(ws) == 0 {
		return nil
	}
	n := len(ws)
	p := processordb.InsertWarningsParams{Tenants: make([]uuid.UUID, n), Warnings: make([]uuid.UUID, n), Events: make([]uuid.UUID, n),
		Kinds: make([]string, n), Details: make([]string, n)}
	for i, w := range ws {
		d, err := json.Marshal(w.Detail)
		if err != nil {
			return fmt.Errorf("write warnings: %w", err)
		}
		p.Tenants[i], p.Warnings[i], p.Events[i], p.Kinds[i], p.Details[i] = w.TenantID, ids.New(), w.EventID, w.Kind, string(d)
	}
	if err := processordb.New(tx).InsertWarnings(ctx, p); err != nil {
		return fmt.Errorf("write %d warnings: %w", n, err)
	}
	return nil
}
