package eventlog

import (
	"context"
	"crypto/sha256"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/softcrum/carril/internal/stream"
	"github.com/softcrum/carril/schemas"
)

// Platform is an event of the platform's own about a tenant: what caused a send
// that no event of the tenant's did.
type Platform struct {
	EventID       uuid.UUID
	TenantID      uuid.UUID
	CellID        string
	ContactID     uuid.UUID
	Name          string // begins with messaging. or core.
	Properties    string // JSON object without personal data
	At            time.Time
	CorrelationID string
	Class         int16 // retention in months
}

// AppendPlatform appends the platform's events to the tenants' own, through the
// same fence, inside another stage's batch.
func AppendPlatform(ctx context.Context, tx pgx.Tx, b *stream.Batch, codec *schemas.Codec, events []Platform) error {
	h := &Handler{deps: Deps{Codec: codec}}
	rows := make([]row, len(events))
	for i, e := range events {
		sum := sha256.Sum256([]byte(e.Name + e.Properties))
		rows[i] = row{index: i, class: e.Class, contact: e.ContactID, Event: &schemas.Event{
			Kind: "platform", EventID: e.EventID, TenantID: e.TenantID, CellID: e.CellID, EventName: e.Name, IdempotencyKey: e.EventID.String(),
			BodyHash: sum[:], OccurredAt: e.At, ReceivedAt: e.At, CorrelationID: e.CorrelationID, Identifiers: "{}", Payload: e.Properties,
		}}
	}
	k := h.keysOf(rows)
	lost, err := h.takeKeys(ctx, tx, k)
	if err != nil {
		return err
	}
	winners, err := h.winners(ctx, tx, b, k, lost)
	if err != nil || len(winners) == 0 {
		return err
	}
	taken, err := b.QueueEvents(ctx, len(winners))
	if err != nil {
		return err
	}
	return h.append(ctx, tx, b, &ahead{rows: winners, events: makeEvents(winners)}, taken)
}
