package eventlog

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/softcrum/carril/internal/db/processordb"
	"github.com/softcrum/carril/internal/ids"
	"github.com/softcrum/carril/internal/kafka"
	"github.com/softcrum/carril/internal/outbox"
	"github.com/softcrum/carril/internal/stream"
	"github.com/softcrum/carril/processor/identity"
)

// fence keeps, of each key, the first event that the database has not seen
// (FS-CORE-0006 §3). The same key with another body is a conflict that the
// tenant can look up, never a second effect.
func (h *Handler) fence(ctx context.Context, tx pgx.Tx, b *stream.Batch, rows []row) ([]row, error) {
	first := make(map[uuid.UUID]row, len(rows))
	var again []row
	for _, r := range rows {
		if _, ok := first[r.EventID]; ok {
			again = append(again, r)
			continue
		}
		first[r.EventID] = r
	}
	won, err := insertKeys(ctx, tx, first)
	if err != nil {
		return nil, err
	}
	winners := make([]row, 0, len(won))
	for _, r := range rows {
		if f := first[r.EventID]; f.index != r.index {
			continue
		}
		if won[r.EventID] {
			winners = append(winners, r)
		} else {
			again = append(again, r)
		}
	}
	return winners, h.recordConflicts(ctx, tx, b, again)
}

// insertKeys takes the keys in one order, so that two writers never wait for
// each other in a ring.
func insertKeys(ctx context.Context, tx pgx.Tx, first map[uuid.UUID]row) (map[uuid.UUID]bool, error) {
	keys := make([]uuid.UUID, 0, len(first))
	for id := range first {
		keys = append(keys, id)
	}
	slices.SortFunc(keys, func(a, b uuid.UUID) int { return bytes.Compare(a[:], b[:]) })
	n := len(keys)
	rows := processordb.InsertEventKeysParams{Events: keys, Tenants: make([]uuid.UUID, n), BodyHashes: make([][]byte, n),
		Occurred: make([]time.Time, n), Received: make([]time.Time, n)}
	for i, id := range keys {
		r := first[id]
		rows.Tenants[i], rows.BodyHashes[i], rows.Occurred[i], rows.Received[i] = r.TenantID, r.BodyHash, r.OccurredAt, r.ReceivedAt
	}
	won, err := processordb.New(tx).InsertEventKeys(ctx, rows)
	if err != nil {
		return nil, fmt.Errorf("take %d event keys: %w", len(keys), err)
	}
	set := make(map[uuid.UUID]bool, len(won))
	for _, id := range won {
		set[id] = true
	}
	return set, nil
}

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
func (h *Handler) append(ctx context.Context, tx pgx.Tx, b *stream.Batch, rows []row) error {
	lane, first, at, err := b.TakeEvents(ctx, len(rows))
	if err != nil {
		return err
	}
	if err := insertEvents(ctx, tx, rows, lane, first); err != nil {
		return err
	}
	if err := insertSpan(ctx, tx, spanOf(rows), lane, first, first+int64(len(rows))-1); err != nil {
		return err
	}
	msgs := make([]outbox.Message, len(rows))
	for i, r := range rows {
		msgs[i], err = Message(ctx, h.deps.Codec, Tracked(r.Event, r.name(), r.Kind, r.contact, lane, first+int64(i)))
		if err != nil {
			return err
		}
		msgs[i].Headers = kafka.Traced(msgs[i].Headers, r.from)
	}
	b.EmitEvents(outbox.Number(msgs, first, at))
	return nil
}

func insertEvents(ctx context.Context, tx pgx.Tx, rows []row, lane int32, first int64) error {
	n := len(rows)
	p := processordb.InsertEventsParams{Lane: lane,
		Tenants: make([]uuid.UUID, n), Events: make([]uuid.UUID, n), Contacts: make([]uuid.UUID, n),
		Cells: make([]string, n), Kinds: make([]string, n), EventNames: make([]string, n), Properties: make([]string, n),
		IdempotencyKeys: make([]string, n), Correlations: make([]string, n),
		Occurred: make([]time.Time, n), Received: make([]time.Time, n), Claimed: make([]*time.Time, n), OccurredOffsets: make([]int32, n),
		RetentionMonths: make([]int16, n), Historical: make([]bool, n), LaneSeqs: make([]int64, n)}
	for i, r := range rows {
		p.Tenants[i], p.Events[i], p.Contacts[i] = r.TenantID, r.EventID, r.contact
		p.Cells[i], p.Kinds[i], p.EventNames[i], p.Properties[i] = r.CellID, r.Kind, r.name(), r.Payload
		p.IdempotencyKeys[i], p.Correlations[i] = r.IdempotencyKey, r.CorrelationID
		p.Occurred[i], p.Received[i], p.Claimed[i], p.OccurredOffsets[i] = r.OccurredAt, r.ReceivedAt, r.OccurredClaimed, r.OccurredOffset
		p.RetentionMonths[i], p.Historical[i], p.LaneSeqs[i] = r.class, r.Historical, first+int64(i)
	}
	if err := processordb.New(tx).InsertEvents(ctx, p); err != nil {
		return fmt.Errorf("append %d events: %w", n, err)
	}
	return nil
}

func insertSpan(ctx context.Context, tx pgx.Tx, s span, lane int32, first, last int64) error {
	err := processordb.New(tx).InsertSpan(ctx, processordb.InsertSpanParams{
		Lane: lane, FirstSeq: first, LastSeq: last, MinOccurred: s.min, MaxOccurred: s.max, Tenants: s.tenants})
	if err != nil {
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
