package ingestor

import (
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/softcrum/carril/internal/ids"
	"github.com/softcrum/carril/schemas"
)

// The parts of the headers that are the same on every record. kafka.Event
// renders the same headers; here they share the flight's memory.
var (
	specVersion = []byte("1.0")
	eventType   = []byte(EventType)
	contentType = []byte("application/avro")
)

const tenantSource = "/tenants/"

// perRecord is about what a record takes beside what the caller sent: ids,
// times, the hash and the headers' texts.
const perRecord = 480

// expect makes room for records at once, rather than by doubling.
func (f *flight) expect(records []Record) {
	n := 64
	for i := range records {
		ev := records[i].Event
		n += perRecord + len(ev.Payload) + len(ev.Identifiers) + 2*len(ev.EventName) + len(ev.IdempotencyKey) + 2*len(ev.CorrelationID) + len(records[i].Traceparent)
	}
	f.bytes = slices.Grow(f.bytes, n)
	f.headers, f.records = slices.Grow(f.headers, 9*len(records)), slices.Grow(f.records, len(records))
}

// add puts a record on the flight, keyed by tenant, with its CloudEvents
// headers in binary mode.
func (f *flight) add(topic string, value []byte, r *Record) {
	ev := r.Event
	from := len(f.headers)
	if f.key == nil || f.tenant != ev.TenantID { // a request is one tenant's
		f.tenant, f.key = ev.TenantID, f.text(func(b []byte) []byte { return ids.AppendText(append(b, tenantSource...), ev.TenantID) })
	}
	tenant := f.key[len(tenantSource):]
	f.headers = append(f.headers,
		kgo.RecordHeader{Key: "ce_specversion", Value: specVersion},
		kgo.RecordHeader{Key: "ce_id", Value: f.text(func(b []byte) []byte { return ids.AppendText(b, ev.EventID) })},
		kgo.RecordHeader{Key: "ce_type", Value: eventType},
		kgo.RecordHeader{Key: "ce_source", Value: f.key},
		kgo.RecordHeader{Key: "ce_time", Value: f.text(func(b []byte) []byte { return appendTime(b, ev) })},
		kgo.RecordHeader{Key: "content-type", Value: contentType},
		kgo.RecordHeader{Key: "correlation_id", Value: f.text(func(b []byte) []byte { return append(b, ev.CorrelationID...) })},
		kgo.RecordHeader{Key: "ce_subject", Value: f.text(func(b []byte) []byte { return append(b, ev.EventName...) })},
	)
	if r.Traceparent != "" {
		f.headers = append(f.headers, kgo.RecordHeader{Key: "traceparent", Value: f.text(func(b []byte) []byte { return append(b, r.Traceparent...) })})
	}
	f.records = append(f.records, kgo.Record{Topic: topic, Key: tenant, Value: value, Headers: f.headers[from:len(f.headers):len(f.headers)]})
}

// text appends to the flight's bytes and gives what was appended. What was
// given out before stays where it is when the bytes move.
func (f *flight) text(write func([]byte) []byte) []byte {
	from := len(f.bytes)
	f.bytes = write(f.bytes)
	return f.bytes[from:len(f.bytes):len(f.bytes)]
}

func appendTime(b []byte, ev *schemas.Event) []byte {
	return ev.OccurredAt.UTC().AppendFormat(b, time.RFC3339Nano)
}
