package webhook

import (
	"bytes"
	"encoding/json"
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/softcrum/carril/schemas"
)

// event is what a record means to endpoints. Its body is rendered once and goes
// out with the same bytes at every attempt and to every endpoint.
type event struct {
	tenant    uuid.UUID
	id        uuid.UUID
	eventType string
	about     uuid.UUID // events about the same arrive in order
	received  time.Time
	body      []byte
}

// envelope is the body of a delivery, in the form that Standard Webhooks names.
type envelope struct {
	Type      string    `json:"type"`
	Timestamp time.Time `json:"timestamp"` // when it happened, in UTC
	Data      any       `json:"data"`
}

type trackedData struct {
	EventID       uuid.UUID       `json:"event_id"`
	EventName     string          `json:"event_name"`
	ContactID     uuid.UUID       `json:"contact_id"`
	OccurredAt    time.Time       `json:"occurred_at"` // with the caller's offset
	ReceivedAt    time.Time       `json:"received_at"`
	Properties    json.RawMessage `json:"properties"` // as they were sent: numbers keep their digits
	CorrelationID string          `json:"correlation_id"`
	Historical    bool            `json:"historical"`
}

// messageData never carries content (FS-MSG-0003, "Eventos").
type messageData struct {
	SendID        uuid.UUID `json:"send_id"`
	ContactID     uuid.UUID `json:"contact_id"`
	Channel       string    `json:"channel"`
	Category      string    `json:"category"`
	Status        string    `json:"status"`
	OccurredAt    time.Time `json:"occurred_at"`
	Reason        *string   `json:"reason"`
	CorrelationID string    `json:"correlation_id"`
	OriginEventID uuid.UUID `json:"origin_event_id"`
}

// trackedEvent renders an event of a tenant. The error is the record's own.
func trackedEvent(e *schemas.EventTracked) (event, error) {
	properties := e.Payload
	if properties == "" {
		properties = "{}"
	}
	body, err := render(envelope{TypeTracked, e.OccurredAt.UTC(), trackedData{
		EventID: e.EventID, EventName: e.EventName, ContactID: e.ContactID, OccurredAt: withOffset(e.OccurredAt, e.OccurredOffset),
		ReceivedAt: e.ReceivedAt.UTC(), Properties: json.RawMessage(properties), CorrelationID: e.CorrelationID, Historical: e.Historical,
	}})
	return event{e.TenantID, e.EventID, TypeTracked, e.ContactID, e.ReceivedAt.UTC(), body}, err
}

// messageEvent renders a step in the life of a send, known by its change id.
func messageEvent(m *schemas.MessageStatusChanged) (event, error) {
	body, err := render(envelope{m.Type, m.OccurredAt.UTC(), messageData{
		SendID: m.SendID, ContactID: m.ContactID, Channel: m.Channel, Category: m.Category, Status: m.Status, OccurredAt: m.OccurredAt.UTC(),
		Reason: m.Reason, CorrelationID: m.CorrelationID, OriginEventID: m.OriginEventID,
	}})
	return event{m.TenantID, m.ChangeID, m.Type, m.SendID, m.RecordedAt.UTC(), body}, err
}

func render(e envelope) ([]byte, error) {
	var out bytes.Buffer
	enc := json.NewEncoder(&out)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(e); err != nil {
		return nil, fmt.Errorf("render a webhook of type %s: %w", e.Type, err)
	}
	return bytes.TrimSuffix(out.Bytes(), []byte("\n")), nil
}

// withOffset shows an instant at an offset in seconds east, cut to the minutes
// that RFC 3339 can say.
func withOffset(at time.Time, offset int32) time.Time {
	offset -= offset % 60
	if offset == 0 {
		return at.UTC()
	}
	return at.In(time.FixedZone("", int(offset)))
}
