package schemas

import (
	"time"

	"github.com/google/uuid"
)

// Event is a record of avro/event.avsc, which documents each field. An event as accepted at the front door, before anybody knows whose it is.
type Event struct {
	Kind            string     `avro:"kind"`
	EventID         uuid.UUID  `avro:"event_id"`
	TenantID        uuid.UUID  `avro:"tenant_id"`
	CellID          string     `avro:"cell_id"`
	EventName       string     `avro:"event_name"`
	IdempotencyKey  string     `avro:"idempotency_key"`
	BodyHash        []byte     `avro:"body_hash"`
	OccurredAt      time.Time  `avro:"occurred_at"`
	OccurredOffset  int32      `avro:"occurred_offset"`
	OccurredClaimed *time.Time `avro:"occurred_claimed"`
	ReceivedAt      time.Time  `avro:"received_at"`
	CorrelationID   string     `avro:"correlation_id"`
	Identifiers     string     `avro:"identifiers"`
	Payload         string     `avro:"payload"`
	Historical      bool       `avro:"historical"`
	RequestID       *string    `avro:"request_id"`
}

// EventTracked is a record of avro/event_tracked.avsc, which documents each field. An event whose row stands in core.tracked_events, with the contact it belongs to.
type EventTracked struct {
	EventID        uuid.UUID `avro:"event_id"`
	TenantID       uuid.UUID `avro:"tenant_id"`
	CellID         string    `avro:"cell_id"`
	ContactID      uuid.UUID `avro:"contact_id"`
	Kind           string    `avro:"kind"`
	EventName      string    `avro:"event_name"`
	OccurredAt     time.Time `avro:"occurred_at"`
	OccurredOffset int32     `avro:"occurred_offset"`
	ReceivedAt     time.Time `avro:"received_at"`
	CorrelationID  string    `avro:"correlation_id"`
	IdempotencyKey string    `avro:"idempotency_key"`
	Payload        string    `avro:"payload"`
	Historical     bool      `avro:"historical"`
	Lane           int32     `avro:"lane"`
	LaneSeq        int64     `avro:"lane_seq"`
}

// ContactChanged is a record of avro/contact_changed.avsc, which documents each field. What happened to a contact. An erased contact carries no personal data.
type ContactChanged struct {
	TenantID      uuid.UUID  `avro:"tenant_id"`
	CellID        string     `avro:"cell_id"`
	ContactID     uuid.UUID  `avro:"contact_id"`
	Change        string     `avro:"change"`
	IntoContactID *uuid.UUID `avro:"into_contact_id"`
	Traits        string     `avro:"traits"`
	ChangedAt     time.Time  `avro:"changed_at"`
	CauseEventID  *uuid.UUID `avro:"cause_event_id"`
	CorrelationID string     `avro:"correlation_id"`
}

// NotificationRequested is a record of avro/notification_requested.avsc, which documents each field. Somebody asks for a message; whether it may go is decided behind this topic.
type NotificationRequested struct {
	RequestID        uuid.UUID  `avro:"request_id"`
	TenantID         uuid.UUID  `avro:"tenant_id"`
	CellID           string     `avro:"cell_id"`
	Category         string     `avro:"category"`
	Channel          string     `avro:"channel"`
	Origin           string     `avro:"origin"`
	OriginEventID    *uuid.UUID `avro:"origin_event_id"`
	CorrelationID    string     `avro:"correlation_id"`
	IdempotencyKey   *string    `avro:"idempotency_key"`
	BodyHash         []byte     `avro:"body_hash"`
	ReceivedAt       time.Time  `avro:"received_at"`
	OriginOccurredAt *time.Time `avro:"origin_occurred_at"`
	RuleID           *string    `avro:"rule_id"`
	ContactID        *uuid.UUID `avro:"contact_id"`
	Recipients       string     `avro:"recipients"`
	TemplateID       *string    `avro:"template_id"`
	TemplateVersion  *int32     `avro:"template_version"`
	Variables        string     `avro:"variables"`
	Content          *string    `avro:"content"`
	ExpiresAt        *time.Time `avro:"expires_at"`
	SendAt           *time.Time `avro:"send_at"`
	MaxAgeSeconds    *int64     `avro:"max_age_seconds"`
}

// SendJob is a record of avro/send_job.avsc, which documents each field. One message of the transactional rail. The payload stands in core.processed_jobs; a record whose turn is not the row's is skipped.
type SendJob struct {
	JobID         uuid.UUID  `avro:"job_id"`
	TenantID      uuid.UUID  `avro:"tenant_id"`
	CellID        string     `avro:"cell_id"`
	Channel       string     `avro:"channel"`
	Category      string     `avro:"category"`
	Turn          int32      `avro:"turn"`
	CorrelationID string     `avro:"correlation_id"`
	OriginEventID uuid.UUID  `avro:"origin_event_id"`
	EnqueuedAt    time.Time  `avro:"enqueued_at"`
	ExpiresAt     *time.Time `avro:"expires_at"`
}

// SendBatch is a record of avro/send_batch.avsc, which documents each field. A frozen list of at most 100 messages of one tenant on the marketing rail; its membership was fixed when it was enqueued.
type SendBatch struct {
	JobID         uuid.UUID   `avro:"job_id"`
	TenantID      uuid.UUID   `avro:"tenant_id"`
	CellID        string      `avro:"cell_id"`
	Channel       string      `avro:"channel"`
	Turn          int32       `avro:"turn"`
	BlastID       *uuid.UUID  `avro:"blast_id"`
	SendIDs       []uuid.UUID `avro:"send_ids"`
	CorrelationID string      `avro:"correlation_id"`
	EnqueuedAt    time.Time   `avro:"enqueued_at"`
}

// ProviderEvent is a record of avro/provider_event.avsc, which documents each field. A provider's webhook, verified, as it came.
type ProviderEvent struct {
	Provider          string     `avro:"provider"`
	ProviderEventID   string     `avro:"provider_event_id"`
	Body              []byte     `avro:"body"`
	ReceivedAt        time.Time  `avro:"received_at"`
	TenantID          *uuid.UUID `avro:"tenant_id"`
	SendID            *uuid.UUID `avro:"send_id"`
	ProviderMessageID *string    `avro:"provider_message_id"`
}

// MessageStatusChanged is a record of avro/message_status_changed.avsc, which documents each field. A step in the life of a send. Never carries content.
type MessageStatusChanged struct {
	Type          string    `avro:"type"`
	ChangeID      uuid.UUID `avro:"change_id"`
	SendID        uuid.UUID `avro:"send_id"`
	TenantID      uuid.UUID `avro:"tenant_id"`
	CellID        string    `avro:"cell_id"`
	ContactID     uuid.UUID `avro:"contact_id"`
	Channel       string    `avro:"channel"`
	Category      string    `avro:"category"`
	Status        string    `avro:"status"`
	StatusRank    int32     `avro:"status_rank"`
	OccurredAt    time.Time `avro:"occurred_at"`
	RecordedAt    time.Time `avro:"recorded_at"`
	CorrelationID string    `avro:"correlation_id"`
	OriginEventID uuid.UUID `avro:"origin_event_id"`
	Reason        *string   `avro:"reason"`
}
