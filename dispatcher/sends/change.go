package sends

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/softcrum/carril/internal/kafka"
	"github.com/softcrum/carril/internal/outbox"
	"github.com/softcrum/carril/schemas"
)

// rank and event of each status, as messaging.send_statuses has them; a test
// holds the two together.
var statuses = map[string]struct {
	rank  int32
	event string
}{
	"queued": {10, ""}, "sent": {30, "messaging.message.sent"}, "delayed": {35, ""}, "soft_bounced": {40, "messaging.message.bounced"},
	"failed": {45, "messaging.message.failed"}, "delivered": {50, "messaging.message.delivered"}, "opened": {60, "messaging.message.opened"},
	"clicked": {70, "messaging.message.clicked"}, "bounced": {90, "messaging.message.bounced"}, "complained": {100, "messaging.message.complained"},
}

// change is a step in a send's life as it is published.
type change struct {
	id, send, tenant, contact, origin uuid.UUID
	cell, channel, category, status   string
	occurred, recorded                time.Time
	correlation, reason               string
}

// statusChange makes the record of a change; it carries no content.
func statusChange(ctx context.Context, codec *schemas.Codec, c change) (outbox.Message, error) {
	st := statuses[c.status]
	rec := schemas.MessageStatusChanged{Type: st.event, ChangeID: c.id, SendID: c.send, TenantID: c.tenant, CellID: c.cell, ContactID: c.contact,
		Channel: c.channel, Category: c.category, Status: c.status, StatusRank: st.rank, OccurredAt: c.occurred.UTC(), RecordedAt: c.recorded.UTC(),
		CorrelationID: c.correlation, OriginEventID: c.origin}
	if c.reason != "" {
		rec.Reason = &c.reason
	}
	value, err := codec.Encode(ctx, nil, schemas.TopicMessage, &rec)
	if err != nil {
		return outbox.Message{}, fmt.Errorf("encode a status change: %w", err)
	}
	return outbox.Message{Topic: schemas.TopicMessage, Key: []byte(c.tenant.String()), Value: value,
		Headers: kafka.Event{ID: c.id.String(), Type: st.event, Source: kafka.Source(c.tenant), Subject: c.send.String(),
			Time: c.occurred, CorrelationID: c.correlation}.Headers()}, nil
}

// StatusInfo gives a status's rank and the event that announces it; "" where
// none does.
func StatusInfo(status string) (rank int32, event string, ok bool) {
	s, ok := statuses[status]
	return s.rank, s.event, ok
}
