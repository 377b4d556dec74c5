package schemas

import (
	"encoding/binary"

	"github.com/google/uuid"
)

// Of a blast's message there are two reports by its provider and two changes of its
// status, and every change is read by whoever delivers webhooks: these records are
// written and read by hand too.

func (e *ProviderEvent) appendAvro(b []byte) []byte {
	b = appendString(b, e.Provider)
	b = appendString(b, e.ProviderEventID)
	b = append(binary.AppendVarint(b, int64(len(e.Body))), e.Body...)
	b = appendMicros(b, e.ReceivedAt)
	b = appendUUIDOrNull(b, e.TenantID)
	b = appendUUIDOrNull(b, e.SendID)
	return appendStringOrNull(b, e.ProviderMessageID)
}

func (e *ProviderEvent) readAvro(data []byte) ([]byte, error) {
	r := hotBytes{text: string(data)}
	*e = ProviderEvent{
		Provider: r.string(), ProviderEventID: r.string(), Body: []byte(r.string()), ReceivedAt: r.micros(),
		TenantID: r.uuidOrNull(), SendID: r.uuidOrNull(), ProviderMessageID: r.stringOrNull(),
	}
	return r.rest(data)
}

func (m *MessageStatusChanged) appendAvro(b []byte) []byte {
	b = appendString(b, m.Type)
	b = appendUUID(b, m.ChangeID)
	b = appendUUID(b, m.SendID)
	b = appendUUID(b, m.TenantID)
	b = appendString(b, m.CellID)
	b = appendUUID(b, m.ContactID)
	b = appendString(b, m.Channel)
	b = appendString(b, m.Category)
	b = appendString(b, m.Status)
	b = binary.AppendVarint(b, int64(m.StatusRank))
	b = appendMicros(b, m.OccurredAt)
	b = appendMicros(b, m.RecordedAt)
	b = appendString(b, m.CorrelationID)
	b = appendUUID(b, m.OriginEventID)
	return appendStringOrNull(b, m.Reason)
}

func (m *MessageStatusChanged) readAvro(data []byte) ([]byte, error) {
	r := hotBytes{text: string(data)}
	*m = MessageStatusChanged{
		Type: r.string(), ChangeID: r.uuid(), SendID: r.uuid(), TenantID: r.uuid(), CellID: r.string(), ContactID: r.uuid(),
		Channel: r.string(), Category: r.string(), Status: r.string(), StatusRank: r.int32(), OccurredAt: r.micros(), RecordedAt: r.micros(),
		CorrelationID: r.string(), OriginEventID: r.uuid(), Reason: r.stringOrNull(),
	}
	return r.rest(data)
}

func appendStringOrNull(b []byte, s *string) []byte {
	if b = appendBranch(b, s != nil); s != nil {
		b = appendString(b, *s)
	}
	return b
}

func appendUUIDOrNull(b []byte, id *uuid.UUID) []byte {
	if b = appendBranch(b, id != nil); id != nil {
		b = appendUUID(b, *id)
	}
	return b
}

func (r *hotBytes) uuidOrNull() *uuid.UUID {
	if !r.some() {
		return nil
	}
	id := r.uuid()
	return &id
}
