package schemas

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"reflect"
	"time"

	"github.com/google/uuid"
)

// errTruncated covers every way in which bytes are not the record.
var errTruncated = errors.New("not the record's bytes")

// hotReader is a record that reads what its own schema wrote, without the
// codec. Another version goes through the codec, which resolves the two.
type hotReader interface {
	readAvro(data []byte) (rest []byte, err error)
}

// sameSchema says that two texts are one schema, however they are laid out. It
// compares all of them: the canonical form leaves logical types out, and
// milliseconds would be read as microseconds.
func sameSchema(a, b string) bool {
	var x, y any
	return json.Unmarshal([]byte(a), &x) == nil && json.Unmarshal([]byte(b), &y) == nil && reflect.DeepEqual(x, y)
}

func (e *Event) readAvro(data []byte) ([]byte, error) {
	r := hotBytes{text: string(data)}
	*e = Event{
		Kind: r.string(), EventID: r.uuid(), TenantID: r.uuid(), CellID: r.string(), EventName: r.string(), IdempotencyKey: r.string(),
		BodyHash: []byte(r.string()), OccurredAt: r.micros(), OccurredOffset: r.int32(), OccurredClaimed: r.microsOrNull(), ReceivedAt: r.micros(),
		CorrelationID: r.string(), Identifiers: r.string(), Payload: r.string(), Historical: r.bool(), RequestID: r.stringOrNull(),
	}
	return r.rest(data)
}

func (e *EventTracked) readAvro(data []byte) ([]byte, error) {
	r := hotBytes{text: string(data)}
	*e = EventTracked{
		EventID: r.uuid(), TenantID: r.uuid(), CellID: r.string(), ContactID: r.uuid(), Kind: r.string(), EventName: r.string(),
		OccurredAt: r.micros(), OccurredOffset: r.int32(), ReceivedAt: r.micros(), CorrelationID: r.string(), IdempotencyKey: r.string(),
		Payload: r.string(), Historical: r.bool(), Lane: r.int32(), LaneSeq: r.long(),
	}
	return r.rest(data)
}

// hotBytes reads Avro's binary form field by field; once wrong, it gives
// nothing more. Its texts share one piece of memory.
type hotBytes struct {
	text string
	at   int
	bad  bool
}

func (r *hotBytes) rest(data []byte) ([]byte, error) {
	if r.bad {
		return nil, errTruncated
	}
	return data[r.at:], nil
}

func (r *hotBytes) long() int64 {
	var u uint64
	for i := range binary.MaxVarintLen64 {
		if r.bad || r.at == len(r.text) {
			break
		}
		b := r.text[r.at]
		r.at++
		if i == binary.MaxVarintLen64-1 && b > 1 { // more than 64 bits
			break
		}
		u |= uint64(b&0x7f) << (7 * i)
		if b < 0x80 {
			return int64(u>>1) ^ -int64(u&1)
		}
	}
	r.bad = true
	return 0
}

func (r *hotBytes) int32() int32 {
	n := r.long()
	if n != int64(int32(n)) {
		r.bad = true
	}
	return int32(n)
}

func (r *hotBytes) string() string {
	n := r.long()
	if r.bad || n < 0 || n > int64(len(r.text)-r.at) {
		r.bad = true
		return ""
	}
	s := r.text[r.at : r.at+int(n)]
	r.at += int(n)
	return s
}

func (r *hotBytes) uuid() uuid.UUID {
	s := r.string()
	if r.bad {
		return uuid.UUID{}
	}
	id, ok := plainUUID(s)
	if !ok {
		var err error
		id, err = uuid.Parse(s)
		r.bad = err != nil
	}
	return id
}

// plainUUID reads the form that appendUUID writes.
func plainUUID(s string) (id uuid.UUID, ok bool) {
	if len(s) != 36 || s[8] != '-' || s[13] != '-' || s[18] != '-' || s[23] != '-' {
		return id, false
	}
	var bad byte
	for i, j := range places {
		hi, lo := nibbles[s[j]], nibbles[s[j+1]]
		bad |= hi | lo
		id[i] = hi<<4 | lo
	}
	return id, bad < 16
}

// places of a UUID's bytes in its text.
var places = [16]int{0, 2, 4, 6, 9, 11, 14, 16, 19, 21, 24, 26, 28, 30, 32, 34}

// nibbles are what lower-case digits stand for; 255: no digit.
var nibbles = func() (n [256]byte) {
	for i := range n {
		n[i] = 255
	}
	for i, c := range "0123456789abcdef" {
		n[c] = byte(i)
	}
	return n
}()

func (r *hotBytes) micros() time.Time { return time.UnixMicro(r.long()).UTC() }

func (r *hotBytes) bool() bool {
	if r.bad || r.at == len(r.text) || r.text[r.at] > 1 {
		r.bad = true
		return false
	}
	r.at++
	return r.text[r.at-1] == 1
}

// some says which side of a union with null follows.
func (r *hotBytes) some() bool {
	n := r.long()
	r.bad = r.bad || n < 0 || n > 1
	return n == 1 && !r.bad
}

func (r *hotBytes) microsOrNull() *time.Time {
	if !r.some() {
		return nil
	}
	t := r.micros()
	return &t
}

func (r *hotBytes) stringOrNull() *string {
	if !r.some() {
		return nil
	}
	s := r.string()
	return &s
}
