package eventlog

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/softcrum/carril/internal/db/processordb"
	"github.com/softcrum/carril/internal/outbox"
	"github.com/softcrum/carril/schemas"
)

// Source reads appended events that their owner did not live to publish; they go
// without the traceparent, which no row keeps. The
// spans say which months and tenants to look into, so that each read carries
// its partition predicate as a literal range.
type Source struct {
	Pool  *pgxpool.Pool
	Codec *schemas.Codec
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
		after = sp.LastSeq
	}
	return items, nil
}

func (s Source) spans(ctx context.Context, lane int32, after int64, limit int) ([]processordb.SpansOfLaneRow, error) {
	spans, err := processordb.New(s.Pool).SpansOfLane(ctx, processordb.SpansOfLaneParams{Lane: lane, After: after, MaxRows: int64(limit)})
	if err != nil {
		return nil, fmt.Errorf("read the spans of lane %d: %w", lane, err)
	}
	return spans, nil
}

func (s Source) read(ctx context.Context, lane int32, after int64, sp processordb.SpansOfLaneRow, limit int) ([]outbox.Item, error) {
	events, err := s.events(ctx, lane, after, sp, limit)
	if err != nil {
		return nil, fmt.Errorf("read events of lane %d: %w", lane, err)
	}
	items := make([]outbox.Item, len(events))
	for i := range events {
		m, err := Message(ctx, s.Codec, &events[i])
		if err != nil {
			return nil, err
		}
		items[i] = outbox.Item{Seq: events[i].LaneSeq, WrittenAt: time.Now(), Message: m}
	}
	return items, nil
}

const trackedColumns = `event_id, tenant_id, cell_id, contact_id, kind, event_name, occurred_at, occurred_offset, received_at,
    correlation_id, idempotency_key, properties::text, historical, lane, lane_seq`

// EventsOfSpanSQL reads a span's events back: its times are the partition
// predicate, its tenants and the lane find them by index. What stands in a leaf
// that retention has detached is read there (I34). By hand: sqlc does not know
// functions that give the rows of a table.
const EventsOfSpanSQL = `SELECT ` + trackedColumns + ` FROM core.tracked_events
WHERE occurred_at BETWEEN $1 AND $2 AND tenant_id = ANY($3::uuid[]) AND lane = $4 AND lane_seq > $5 AND lane_seq <= $6
UNION ALL
SELECT ` + trackedColumns + ` FROM core.detached(NULL::core.tracked_events, $1, $2, $3)
WHERE lane = $4 AND lane_seq > $5 AND lane_seq <= $6
ORDER BY lane_seq LIMIT $7`

func (s Source) events(ctx context.Context, lane int32, after int64, sp processordb.SpansOfLaneRow, limit int) ([]schemas.EventTracked, error) {
	rows, err := s.Pool.Query(ctx, EventsOfSpanSQL, sp.MinOccurred, sp.MaxOccurred, sp.TenantIDs, lane, after, sp.LastSeq, limit)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (e schemas.EventTracked, err error) {
		err = row.Scan(&e.EventID, &e.TenantID, &e.CellID, &e.ContactID, &e.Kind, &e.EventName, &e.OccurredAt, &e.OccurredOffset, &e.ReceivedAt,
			&e.CorrelationID, &e.IdempotencyKey, &e.Payload, &e.Historical, &e.Lane, &e.LaneSeq)
		return e, err
	})
}
