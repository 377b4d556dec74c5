package schemas

import (
	"encoding/json"
	"time"

	"github.com/google/uuid"
)

// JobMessage is one message of a rail's job, as core.processed_jobs.payload
// keeps it: who it goes to and what it says, before it is rendered.
type JobMessage struct {
	SendID          uuid.UUID       `json:"send_id"`
	RequestID       uuid.UUID       `json:"request_id"`
	RecipientIndex  int             `json:"recipient_index"`
	RequestedAt     time.Time       `json:"requested_at"` // the request's first received_at; equals the send id's time
	ContactID       uuid.UUID       `json:"contact_id"`
	Address         string          `json:"address"`
	Category        string          `json:"category"`
	RetentionMonths int16           `json:"retention_months"`
	TemplateID      string          `json:"template_id,omitempty"`
	TemplateVersion int             `json:"template_version,omitempty"`
	Variables       json.RawMessage `json:"variables,omitempty"` // a JSON object
	Content         json.RawMessage `json:"content,omitempty"`   // {subject, html, text} given inline instead of a template
	CorrelationID   string          `json:"correlation_id"`
	OriginEventID   uuid.UUID       `json:"origin_event_id"`
	RuleID          *uuid.UUID      `json:"rule_id,omitempty"`
	BlastID         *uuid.UUID      `json:"blast_id,omitempty"`
	ExpiresAt       *time.Time      `json:"expires_at,omitempty"`
}

// JobPayload is the whole of core.processed_jobs.payload for a rail's job: one
// message on the transactional rail, up to 100 of one tenant on the marketing
// rail.
type JobPayload struct {
	Channel  string       `json:"channel"`
	CellID   string       `json:"cell_id"`
	Messages []JobMessage `json:"messages"`
}

// RailWorker names a rail's jobs in core.processed_jobs.worker.
func RailWorker(channel, rail string) string { return "rail:" + channel + "." + rail }
