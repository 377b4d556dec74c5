package eventlog

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/softcrum/carril/internal/outbox"
	"github.com/softcrum/carril/schemas"
)

// Source reads appended events that their owner did not live to publish. The
// spans say which months and tenants to look into, so that each read carries
// its partition predicate as a literal range.
type Source struct {
	Pool  *pgxpool.Pool
	Codec *schemas.Codec
}

type storedSpan struct {
	last     int64
	min, max time.Time
	tenants  []uuid.UUID
}

// Page reads up to limit events of the lane after a sequence.
func (s Source) Page(ctx context.Context, lane outbox.Lane, after int64, _ time.Time, limit int) ([]outbox.Item, error) {
	spans, err := s.spans(ctx, lane.ID, after, limit)
	if err != nil {
		return nil, err
	}
	var items []outbox.Item
	for _, sp := range spans {
		if len(items) >= limit {
			break
		}
		more, err := s.read(ctx, lane.ID, after, sp, limit-len(items))
		if err != nil {
			return nil, err
		}
		items = append(items, more...)
		after = sp.last
	}
	return items, nil
}

func (s Source) spans(ctx context.Context, lane int32, after int64, limit int) ([]storedSpan, error) {
	const sql = `SELECT last_seq, min_occurred, max_occurred, tenant_ids FROM core.event_spans
WHERE lane = $1 AND first_seq >= (SELECT coalesce(max(first_seq), 0) FROM core.event_spans WHERE lane = $1 AND first_seq <= $2 + 1) AND last_seq > $2
ORDER BY first_seq LIMIT $3`
	rows, err := s.Pool.Query(ctx, sql, lane, after, limit)
	if err != nil {
		return nil, fmt.Errorf("read the spans of lane %d: %w", lane, err)
	}
	spans, err := pgx.CollectRows(rows, func(r pgx.CollectableRow) (sp storedSpan, err error) {
		err = r.Scan(&sp.last, &sp.min, &sp.max, &sp.tenants)
		return sp, err
	})
	if err != nil {
		return nil, fmt.Errorf("read the spans of lane %d: %w", lane, err)
	}
	return spans, nil
}

func (s Source) read(ctx context.Context, lane int32, after int64, sp storedSpan, limit int) ([]outbox.Item, error) {
	const sql = `SELECT event_id, tenant_id, cell_id, contact_id, kind, event_name, occurred_at, occurred_offset, received_at,
    correlation_id, idempotency_key, properties::text, historical, lane, lane_seq
FROM core.tracked_events
WHERE occurred_at BETWEEN $1 AND $2 AND tenant_id = ANY($3) AND lane = $4 AND lane_seq > $5 AND lane_seq <= $6
ORDER BY lane_seq LIMIT $7`
	rows, err := s.Pool.Query(ctx, sql, sp.min, sp.max, sp.tenants, lane, after, sp.last, limit)
	if err != nil {
		return nil, fmt.Errorf("read events of lane %d: %w", lane, err)
	}
	events, err := pgx.CollectRows(rows, func(r pgx.CollectableRow) (*schemas.EventTracked, error) {
		var e schemas.EventTracked
		err := r.Scan(&e.EventID, &e.TenantID, &e.CellID, &e.ContactID, &e.Kind, &e.EventName, &e.OccurredAt, &e.OccurredOffset,
			&e.ReceivedAt, &e.CorrelationID, &e.IdempotencyKey, &e.Payload, &e.Historical, &e.Lane, &e.LaneSeq)
		return &e, err
	})
	if err != nil {
		return nil, fmt.Errorf("read events of lane %d: %w", lane, err)
	}
	items := make([]outbox.Item, len(events))
	for i, e := range events {
		m, err := Message(ctx, s.Codec, e)
		if err != nil {
			return nil, err
		}
		items[i] = outbox.Item{Seq: e.LaneSeq, WrittenAt: time.Now(), Message: m}
	}
	return items, nil
}
