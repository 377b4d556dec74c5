package schemas

import (
	"encoding/binary"
	"time"

	"github.com/google/uuid"
)

// The records that there is one of for every event, or for every new person, and those
// of messages' reports (hotmessage.go), are written by hand:
// an eighth of the time that the codec takes to find each field by reflection
// (docs/decisions/codec.md). The tests hold them to the codec's bytes, field by
// field, so a schema that grows cannot leave them behind unseen.

func (e *Event) appendAvro(b []byte) []byte {
	b = appendString(b, e.Kind)
	b = appendUUID(b, e.EventID)
	b = appendUUID(b, e.TenantID)
	b = appendString(b, e.CellID)
	b = appendString(b, e.EventName)
	b = appendString(b, e.IdempotencyKey)
	b = append(binary.AppendVarint(b, int64(len(e.BodyHash))), e.BodyHash...)
	b = appendMicros(b, e.OccurredAt)
	b = binary.AppendVarint(b, int64(e.OccurredOffset))
	if b = appendBranch(b, e.OccurredClaimed != nil); e.OccurredClaimed != nil {
		b = appendMicros(b, *e.OccurredClaimed)
	}
	b = appendMicros(b, e.ReceivedAt)
	b = appendString(b, e.CorrelationID)
	b = appendString(b, e.Identifiers)
	b = appendString(b, e.Payload)
	b = appendBool(b, e.Historical)
	if b = appendBranch(b, e.RequestID != nil); e.RequestID != nil {
		b = appendString(b, *e.RequestID)
	}
	return b
}

func (e *EventTracked) appendAvro(b []byte) []byte {
	b = appendUUID(b, e.EventID)
	b = appendUUID(b, e.TenantID)
	b = appendString(b, e.CellID)
	b = appendUUID(b, e.ContactID)
	b = appendString(b, e.Kind)
	b = appendString(b, e.EventName)
	b = appendMicros(b, e.OccurredAt)
	b = binary.AppendVarint(b, int64(e.OccurredOffset))
	b = appendMicros(b, e.ReceivedAt)
	b = appendString(b, e.CorrelationID)
	b = appendString(b, e.IdempotencyKey)
	b = appendString(b, e.Payload)
	b = appendBool(b, e.Historical)
	b = binary.AppendVarint(b, int64(e.Lane))
	return binary.AppendVarint(b, e.LaneSeq)
}

func (c *ContactChanged) appendAvro(b []byte) []byte {
	b = appendUUID(b, c.TenantID)
	b = appendString(b, c.CellID)
	b = appendUUID(b, c.ContactID)
	b = appendString(b, c.Change)
	if b = appendBranch(b, c.IntoContactID != nil); c.IntoContactID != nil {
		b = appendUUID(b, *c.IntoContactID)
	}
	b = appendString(b, c.Traits)
	b = appendMicros(b, c.ChangedAt)
	if b = appendBranch(b, c.CauseEventID != nil); c.CauseEventID != nil {
		b = appendUUID(b, *c.CauseEventID)
	}
	return appendString(b, c.CorrelationID)
}

func appendString(b []byte, s string) []byte {
	return append(binary.AppendVarint(b, int64(len(s))), s...)
}

// appendUUID appends the text form, which the schemas have.
func appendUUID(b []byte, id uuid.UUID) []byte {
	const digits = "0123456789abcdef"
	at := len(b) + 1
	b = append(b, "\x4800000000-0000-0000-0000-000000000000"...) // 36 as a varint, and room
	text := b[at : at+36]
	for i, j := range places {
		text[j], text[j+1] = digits[id[i]>>4], digits[id[i]&15]
	}
	return b
}

func appendMicros(b []byte, t time.Time) []byte { return binary.AppendVarint(b, t.UnixMicro()) }

// appendBranch says which side of a union with null follows.
func appendBranch(b []byte, some bool) []byte {
	if some {
		return append(b, 2)
	}
	return append(b, 0)
}

func appendBool(b []byte, v bool) []byte {
	if v {
		return append(b, 1)
	}
	return append(b, 0)
}
