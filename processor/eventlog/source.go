package eventlog

import (
	"context"
	"fmt"
	"time"

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
	events, err := processordb.New(s.Pool).EventsOfSpan(ctx, processordb.EventsOfSpanParams{
		MinOccurred: sp.MinOccurred, MaxOccurred: sp.MaxOccurred, Tenants: sp.TenantIDs,
		Lane: lane, After: after, LastSeq: sp.LastSeq, MaxRows: int64(limit)})
	if err != nil {
		return nil, fmt.Errorf("read events of lane %d: %w", lane, err)
	}
	items := make([]outbox.Item, len(events))
	for i, e := range events {
		m, err := Message(ctx, s.Codec, &schemas.EventTracked{
			EventID: e.EventID, TenantID: e.TenantID, CellID: e.CellID, ContactID: e.ContactID, Kind: e.Kind, EventName: e.EventName,
			OccurredAt: e.OccurredAt, OccurredOffset: e.OccurredOffset, ReceivedAt: e.ReceivedAt, CorrelationID: e.CorrelationID,
			IdempotencyKey: e.IdempotencyKey, Payload: e.Properties, Historical: e.Historical, Lane: e.Lane, LaneSeq: e.LaneSeq})
		if err != nil {
			return nil, err
		}
		items[i] = outbox.Item{Seq: e.LaneSeq, WrittenAt: time.Now(), Message: m}
	}
	return items, nil
}
