package benchmarks

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/softcrum/carril/cmd/carril/app"
	"github.com/softcrum/carril/ingestor/apikey"
	"github.com/softcrum/carril/ingestor/intake"
	"github.com/softcrum/carril/schemas"
)

// tenant is one that a benchmark made for itself.
type tenant struct {
	id  uuid.UUID
	key string // an API key
}

// tenants makes n of them, on a plan whose limits nothing here reaches: a
// benchmark that meets a limiter measures the limit.
func (s *site) tenants(ctx context.Context, n int, scopes ...string) ([]tenant, error) {
	const plan = `INSERT INTO core.plans (plan_id, retention_months, events_per_second, events_burst)
VALUES ('bench', 13, 10000000, 20000000) ON CONFLICT DO NOTHING`
	if _, err := s.pool.Exec(ctx, plan); err != nil {
		return nil, fmt.Errorf("make a plan: %w", err)
	}
	ts := make([]tenant, n)
	for i := range ts {
		var err error
		if ts[i].id, err = app.CreateTenant(ctx, s.pool, fmt.Sprintf("bench-%d", i), "Bench", "bench", "cell-1"); err != nil {
			return nil, err
		}
		ts[i].key, _, err = apikey.NewPostgres(s.pool).Create(ctx, apikey.New{TenantID: ts[i].id, Env: "bench",
			Scopes: append([]string{apikey.ScopeEventsWrite}, scopes...), Name: "bench"})
		if err != nil {
			return nil, err
		}
	}
	return ts, nil
}

// Marks of what differs from event to event; as wide as the hexadecimal digits
// that take their place.
const (
	keyMark    = "KKKKKKKKKKKKKKKK"
	personMark = "PPPPPPPP"
	eventName  = "invoice.paid"
)

// Bounds of an event's body: what an event needs, and what the front door takes.
const (
	minPayload = 320
	maxPayload = 32 << 10
)

// eventBody is an event as a point of sale sends it, of size bytes, with marks
// where events differ.
func eventBody(size int, at time.Time) ([]byte, error) {
	const form = `{"event_name":"` + eventName + `","idempotency_key":"bench-` + keyMark + `","occurred_at":"%s",` +
		`"identifiers":{"external_id":"c-` + personMark + `","email":"c-` + personMark + `@example.com"},"properties":{"invoice":"889","total":182500.50,` +
		`"currency":"COP","paid":true,"note":"%s"}}`
	return fillBody(form, size, at)
}

// identifyBody is an identify as a shop sends it, likewise.
func identifyBody(size int, at time.Time) ([]byte, error) {
	const form = `{"idempotency_key":"bench-` + keyMark + `","occurred_at":"%s",` +
		`"identifiers":{"external_id":"c-` + personMark + `","email":"c-` + personMark + `@example.com"},"traits":{"first_name":"Ana","plan":"pro",` +
		`"age":34,"city":"Cali","newsletter":true,"note":"%s"}}`
	return fillBody(form, size, at)
}

// fillBody fills a form with a time and as much text as makes it size bytes.
func fillBody(form string, size int, at time.Time) ([]byte, error) {
	if size < minPayload || size > maxPayload {
		return nil, fmt.Errorf("%w: payload-bytes must be %d to %d", app.ErrConfig, minPayload, maxPayload)
	}
	stamp := at.UTC().Format("2006-01-02T15:04:05.000Z")
	bare := len(fmt.Sprintf(form, stamp, ""))
	if size < bare {
		return nil, errors.New("the smallest event has grown")
	}
	return fmt.Appendf(nil, form, stamp, filler(size-bare)), nil
}

// filler is text that compresses about as text does.
func filler(n int) string {
	const words = "mesa silla lampara cuaderno lapiz zapato camisa reloj bolso libro vaso plato "
	var b strings.Builder
	for i := uint32(7); b.Len() < n; i = i*1664525 + 1013904223 {
		at := int(i>>16) % (len(words) - 8)
		b.WriteString(words[at : at+1+int(i>>28)%7])
	}
	return b.String()[:n]
}

// stencil is bytes in which marks are overwritten in place, at no cost but the
// digits'.
type stencil struct {
	bytes   []byte
	keys    []int
	persons []int
}

func newStencil(b []byte) stencil {
	return stencil{bytes: bytes.Clone(b), keys: find(b, keyMark), persons: find(b, personMark)}
}

func find(b []byte, mark string) (at []int) {
	for from := 0; ; {
		i := bytes.Index(b[from:], []byte(mark))
		if i < 0 {
			return at
		}
		at = append(at, from+i)
		from += i + len(mark)
	}
}

// renew gives every event in the bytes a key and a person of its own, counting
// on from last; it gives the last one used.
func (s *stencil) renew(last uint64) uint64 {
	a := len(s.persons) / len(s.keys)
	for i, at := range s.keys {
		last++
		hex16(s.bytes[at:], last)
		for _, at := range s.persons[i*a : (i+1)*a] {
			hexDigits(s.bytes[at:at+len(personMark)], personOf(last, people))
		}
	}
	return last
}

// setOne writes the key and the person of the one event in the bytes.
func (s *stencil) setOne(key, person uint64) {
	hex16(s.bytes[s.keys[0]:], key)
	for _, at := range s.persons {
		hexDigits(s.bytes[at:at+len(personMark)], person)
	}
}

// people is how many persons the events of the front door's benchmarks are
// about.
const people = 100_000

// personOf scatters keys over persons.
func personOf(key, persons uint64) uint64 { return key * 2654435761 % persons }

func hex16(b []byte, n uint64) { hexDigits(b[:len(keyMark)], n) }

func hexDigits(b []byte, n uint64) {
	const digits = "0123456789abcdef"
	for i := len(b) - 1; i >= 0; i-- {
		b[i] = digits[n&15]
		n >>= 4
	}
}

// keyOf is the idempotency key that set writes.
func keyOf(n uint64) string {
	var b [len(keyMark)]byte
	hex16(b[:], n)
	return "bench-" + string(b[:])
}

// record is the event of a body as the front door puts it into Kafka.
func record(ctx context.Context, codec *schemas.Codec, t tenant, kind string, body []byte, now time.Time) (*schemas.Event, []byte, error) {
	ev, err := parse(t, kind, body, now)
	if err != nil {
		return nil, nil, err
	}
	value, err := codec.Encode(ctx, nil, schemas.TopicEvents, ev)
	return ev, value, err
}

func parse(t tenant, kind string, body []byte, now time.Time) (*schemas.Event, error) {
	caller := intake.Caller{TenantID: t.id, CellID: "cell-1", ReceivedAt: now, Earliest: now.AddDate(0, -1, 0), Latest: now.Add(15 * time.Minute)}
	ev, refused := intake.NewParser().One(kind, body, &caller)
	if refused != nil {
		return nil, fmt.Errorf("the benchmark's own event is refused: %w", refused)
	}
	return ev, nil
}
