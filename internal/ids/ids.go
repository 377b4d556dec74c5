// Package ids derives the platform's identifiers. Every derived id hashes its
// kind first, so that one key used on two endpoints never meets itself, and is
// a UUIDv8, so that any replica finds the same id without a look-up. It knows
// no storage; everybody who names an event, a request or a send calls it.
package ids

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"time"

	"github.com/google/uuid"
)

// Event is the id of the event that a tenant sent under key (FS-CORE-0006 §3).
func Event(tenant uuid.UUID, key string) uuid.UUID {
	return derive("event", tenant[:], []byte(key))
}

// Request is the id of a notification that a tenant asked for under key.
func Request(tenant uuid.UUID, key string) uuid.UUID {
	return derive("request", tenant[:], []byte(key))
}

// Blast is the id of the blast that a tenant made under key.
func Blast(tenant uuid.UUID, key string) uuid.UUID {
	return derive("blast", tenant[:], []byte(key))
}

// RuleRequest is the id of the notification that a rule's action asks for on an
// event.
func RuleRequest(event, rule uuid.UUID, action int) uuid.UUID {
	return derive("rule-request", event[:], rule[:], binary.BigEndian.AppendUint32(nil, uint32(action)))
}

// PlatformEvent is the id of the platform's own event about a request, for
// sends that no event of the tenant's caused.
func PlatformEvent(request uuid.UUID) uuid.UUID {
	return derive("platform-event", request[:])
}

// Send is the id of one message: the request's first received_at in
// milliseconds, then a hash over the request, the recipient's index in it and
// the channel. Not over the contact, which can be merged meanwhile.
func Send(tenant, request uuid.UUID, firstReceived time.Time, recipient int, channel string) uuid.UUID {
	id := derive("send", tenant[:], request[:], binary.BigEndian.AppendUint32(nil, uint32(recipient)), []byte(channel))
	return stamp(id, firstReceived)
}

// Batch is the id of a frozen batch of sends enqueued at a time.
func Batch(firstSend uuid.UUID, at time.Time) uuid.UUID {
	return stamp(derive("batch", firstSend[:]), at)
}

// StatusChange is the id of a step in a send's life, by the source that
// reported it and the source's own id for the report. That a message was sent
// is said twice, by us and by the provider, and is one step: whoever dedupes on
// the id hears of it once.
func StatusChange(send uuid.UUID, status, source, sourceID string) uuid.UUID {
	if status == "sent" {
		source, sourceID = "", ""
	}
	return derive("status-change", send[:], []byte(status), []byte(source), []byte(sourceID))
}

// WebhookDelivery is the id of one event's delivery to one endpoint: the time
// at which the event was received in milliseconds, then a hash over the
// endpoint, the event and its type. A repeated record gives the same id.
func WebhookDelivery(endpoint, event uuid.UUID, eventType string, received time.Time) uuid.UUID {
	return stamp(derive("webhook-delivery", endpoint[:], event[:], []byte(eventType)), received)
}

// BatchOfOffsets is the id of a stage's batch in core.processed_jobs.
func BatchOfOffsets(stage string, topicID [16]byte, partition int32, epoch, firstOffset int64) uuid.UUID {
	b := binary.BigEndian.AppendUint32(nil, uint32(partition))
	b = binary.BigEndian.AppendUint64(b, uint64(epoch))
	b = binary.BigEndian.AppendUint64(b, uint64(firstOffset))
	return derive("stage-batch", []byte(stage), topicID[:], b)
}

// Time reads the time that a send's, batch's or delivery's id begins with, in UTC, to the
// millisecond. It is the partition key of everything that hangs on the id.
func Time(id uuid.UUID) time.Time {
	ms := int64(binary.BigEndian.Uint64(append([]byte{0, 0}, id[:6]...)))
	return time.UnixMilli(ms).UTC()
}

// New is a fresh, time-ordered id for what is not derived from anything.
func New() uuid.UUID {
	id, err := uuid.NewV7FromReader(rand.Reader)
	if err != nil { // crypto/rand never fails (it ends the program instead)
		panic(err)
	}
	return id
}

// AppendText appends the 36 characters of an id to dst.
func AppendText(dst []byte, id uuid.UUID) []byte {
	const digits = "0123456789abcdef"
	at := len(dst)
	dst = append(dst, "00000000-0000-0000-0000-000000000000"...)
	text := dst[at : at+36]
	for i, j := range [...]int{0, 2, 4, 6, 9, 11, 14, 16, 19, 21, 24, 26, 28, 30, 32, 34} {
		text[j], text[j+1] = digits[id[i]>>4], digits[id[i]&15]
	}
	return dst
}

// derive hashes each part with its length before it, so that no two lists of
// parts read the same. The front door calls it for every event: one buffer on
// the stack, one hash, no allocation.
func derive(kind string, parts ...[]byte) uuid.UUID {
	var buf [512]byte
	b := binary.BigEndian.AppendUint32(buf[:0], uint32(len(kind)))
	b = append(b, kind...)
	for _, p := range parts {
		b = binary.BigEndian.AppendUint32(b, uint32(len(p)))
		b = append(b, p...)
	}
	sum := sha256.Sum256(b)
	var id uuid.UUID
	copy(id[:], sum[:])
	id[6] = id[6]&0x0f | 0x80
	id[8] = id[8]&0x3f | 0x80
	return id
}

func stamp(id uuid.UUID, at time.Time) uuid.UUID {
	ms := binary.BigEndian.AppendUint64(nil, uint64(at.UnixMilli()))
	copy(id[:6], ms[2:])
	return id
}
