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

	"github.com/softcrum/carril/internal/ids"
	"github.com/softcrum/carril/internal/outbox"
	"github.com/softcrum/carril/internal/stream"
	"github.com/softcrum/carril/processor/identity"
)

// fence keeps, of each key, the first event that the database has not seen
// (FS-CORE-0006 §3). The same key with another body is a conflict that the
// tenant can look up, never a second effect.
func (h *Handler) fence(ctx context.Context, tx pgx.Tx, rows []row) ([]row, error) {
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
	return winners, recordConflicts(ctx, tx, again)
}

// insertKeys takes the keys in one order, so that two writers never wait for
// each other in a ring.
func insertKeys(ctx context.Context, tx pgx.Tx, first map[uuid.UUID]row) (map[uuid.UUID]bool, error) {
	keys := make([]uuid.UUID, 0, len(first))
	for id := range first {
		keys = append(keys, id)
	}
	slices.SortFunc(keys, func(a, b uuid.UUID) int { return bytes.Compare(a[:], b[:]) })
	tenants, hashes := make([]uuid.UUID, len(keys)), make([][]byte, len(keys))
	occurred, received := make([]time.Time, len(keys)), make([]time.Time, len(keys))
	for i, id := range keys {
		r := first[id]
		tenants[i], hashes[i], occurred[i], received[i] = r.TenantID, r.BodyHash, r.OccurredAt, r.ReceivedAt
	}
	const sql = `INSERT INTO core.event_keys (tenant_id, event_id, body_hash, occurred_at, received_at)
SELECT * FROM unnest($1::uuid[], $2::uuid[], $3::bytea[], $4::timestamptz[], $5::timestamptz[])
ON CONFLICT DO NOTHING RETURNING event_id`
	q, err := tx.Query(ctx, sql, tenants, keys, hashes, occurred, received)
	if err != nil {
		return nil, fmt.Errorf("take %d event keys: %w", len(keys), err)
	}
	won, err := pgx.CollectRows(q, pgx.RowTo[uuid.UUID])
	if err != nil {
		return nil, fmt.Errorf("take %d event keys: %w", len(keys), err)
	}
	set := make(map[uuid.UUID]bool, len(won))
	for _, id := range won {
		set[id] = true
	}
	return set, nil
}

func recordConflicts(ctx context.Context, tx pgx.Tx, again []row) error {
	if len(again) == 0 {
		return nil
	}
	tenants, keys := make([]uuid.UUID, len(again)), make([]uuid.UUID, len(again))
	hashes, received := make([][]byte, len(again)), make([]time.Time, len(again))
	for i, r := range again {
		tenants[i], keys[i], hashes[i], received[i] = r.TenantID, r.EventID, r.BodyHash, r.ReceivedAt
	}
	const sql = `INSERT INTO core.idempotency_conflicts (tenant_id, event_id, body_hash, received_at)
SELECT DISTINCT ON (u.tenant_id, u.event_id, u.body_hash) u.tenant_id, u.event_id, u.body_hash, u.received_at
FROM unnest($1::uuid[], $2::uuid[], $3::bytea[], $4::timestamptz[]) AS u(tenant_id, event_id, body_hash, received_at)
JOIN core.event_keys k ON k.event_id = u.event_id AND k.tenant_id = u.tenant_id AND k.body_hash <> u.body_hash
ON CONFLICT DO NOTHING`
	if _, err := tx.Exec(ctx, sql, tenants, keys, hashes, received); err != nil {
		return fmt.Errorf("record key conflicts: %w", err)
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
	}
	b.EmitEvents(outbox.Number(msgs, first, at))
	return nil
}

func insertEvents(ctx context.Context, tx pgx.Tx, rows []row, lane int32, first int64) error {
	n := len(rows)
	var (
		tenants, events, contacts  = make([]uuid.UUID, n), make([]uuid.UUID, n), make([]uuid.UUID, n)
		cells, kinds, names, props = make([]string, n), make([]string, n), make([]string, n), make([]string, n)
		keys, correlations         = make([]string, n), make([]string, n)
		occurred, received         = make([]time.Time, n), make([]time.Time, n)
		claimed                    = make([]*time.Time, n)
		offsets                    = make([]int32, n)
		classes                    = make([]int16, n)
		historical                 = make([]bool, n)
		seqs                       = make([]int64, n)
	)
	for i, r := range rows {
		tenants[i], events[i], contacts[i] = r.TenantID, r.EventID, r.contact
		cells[i], kinds[i], names[i], props[i] = r.CellID, r.Kind, r.name(), r.Payload
		keys[i], correlations[i] = r.IdempotencyKey, r.CorrelationID
		occurred[i], received[i], claimed[i], offsets[i] = r.OccurredAt, r.ReceivedAt, r.OccurredClaimed, r.OccurredOffset
		classes[i], historical[i], seqs[i] = r.class, r.Historical, first+int64(i)
	}
	const sql = `INSERT INTO core.tracked_events (tenant_id, event_id, cell_id, contact_id, kind, event_name, properties, occurred_at,
    occurred_offset, occurred_claimed, received_at, idempotency_key, correlation_id, retention_months, historical, lane, lane_seq)
SELECT t, e, c, p, k, n, j::jsonb, o, z, l, r, i, x, m, h, $17, s
FROM unnest($1::uuid[], $2::uuid[], $3::text[], $4::uuid[], $5::text[], $6::text[], $7::text[], $8::timestamptz[], $9::int[],
    $10::timestamptz[], $11::timestamptz[], $12::text[], $13::text[], $14::smallint[], $15::bool[], $16::bigint[])
    AS u(t, e, c, p, k, n, j, o, z, l, r, i, x, m, h, s)`
	_, err := tx.Exec(ctx, sql, tenants, events, cells, contacts, kinds, names, props, occurred, offsets, claimed, received,
		keys, correlations, classes, historical, seqs, lane)
	if err != nil {
		return fmt.Errorf("append %d events: %w", n, err)
	}
	return nil
}

func insertSpan(ctx context.Context, tx pgx.Tx, s span, lane int32, first, last int64) error {
	const sql = `INSERT INTO core.event_spans (lane, first_seq, last_seq, min_occurred, max_occurred, tenant_ids) VALUES ($1, $2, $3, $4, $5, $6)`
	if _, err := tx.Exec(ctx, sql, lane, first, last, s.min, s.max, s.tenants); err != nil {
		return fmt.Errorf("write the span of lane %d: %w", lane, err)
	}
	return nil
}

func writeWarnings(ctx context.Context, tx pgx.Tx, ws []identity.Warning) error {
	if len(ws) == 0 {
		return nil
	}
	n := len(ws)
	tenants, warnings, events := make([]uuid.UUID, n), make([]uuid.UUID, n), make([]uuid.UUID, n)
	kinds, details := make([]string, n), make([]string, n)
	for i, w := range ws {
		d, err := json.Marshal(w.Detail)
		if err != nil {
			return fmt.Errorf("write warnings: %w", err)
		}
		tenants[i], warnings[i], events[i], kinds[i], details[i] = w.TenantID, ids.New(), w.EventID, w.Kind, string(d)
	}
	const sql = `INSERT INTO core.warnings (tenant_id, warning_id, event_id, kind, detail)
SELECT t, w, e, k, d::jsonb FROM unnest($1::uuid[], $2::uuid[], $3::uuid[], $4::text[], $5::text[]) AS u(t, w, e, k, d)`
	if _, err := tx.Exec(ctx, sql, tenants, warnings, events, kinds, details); err != nil {
		return fmt.Errorf("write %d warnings: %w", n, err)
	}
	return nil
}
