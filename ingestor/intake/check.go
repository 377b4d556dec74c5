package intake

import (
	"fmt"
	"strconv"
	"strings"
	"time"
	"unsafe"

	"github.com/google/uuid"

	"github.com/softcrum/carril/internal/ids"
	"github.com/softcrum/carril/internal/jsonscan"
	"github.com/softcrum/carril/internal/oneline"
	"github.com/softcrum/carril/schemas"
)

// Limits of one event. Sizes are bytes, not characters (field report 12).
const (
	MaxEventBytes = 32 << 10            // of the event's JSON text, as sent
	MaxDepth      = jsonscan.MaxDepth   // levels of properties or traits, which are the first
	MaxMembers    = jsonscan.MaxMembers // object members and array elements of an event
	MaxKeyBytes   = jsonscan.MaxKeyBytes
)

// Limits of the envelope's texts, in bytes.
const (
	MaxEventName      = 200
	MaxIdempotencyKey = 255
	MaxCorrelationID  = 255
	MaxIdentifier     = 512 // an index entry of PostgreSQL ends at 2,704
	MaxIdentifierKind = 64
	MaxIdentifiers    = 32
)

// IdentifiedName is the event_name of an identify.
const IdentifiedName = "core.contact.identified"

// Caller is who sent the request, and when.
type Caller struct {
	TenantID       uuid.UUID
	CellID         string
	ReceivedAt     time.Time // ours, stamped once at the edge
	Earliest       time.Time // the window of occurred_at, both ends included; see Window
	Latest         time.Time
	Clamp          bool   // the tenant's clock policy: move occurred_at into the window instead of refusing it
	RequestID      string // Carril-Request-Id; empty: none
	IdempotencyKey string // the Idempotency-Key header; empty: none; not for batches
}

// alone is the place of an event that is no part of a batch.
const alone place = -1

// place is where an event stands: its index in the batch, or alone.
type place int

// pointer is the JSON pointer of the event, or of what lies under it.
func (n place) pointer(under string) string {
	if n == alone {
		return under
	}
	return "/events/" + strconv.Itoa(int(n)) + under
}

// check turns a scanned event of a kind into ev, or refuses it.
func (p *Parser) check(kind string, e *envelope, c *Caller, ev *schemas.Event, hash *[32]byte, at place) *Error {
	if err := p.checkShape(kind, e, at); err != nil {
		return err
	}
	*ev = schemas.Event{Kind: kind, TenantID: c.TenantID, CellID: c.CellID, ReceivedAt: c.ReceivedAt.Truncate(time.Microsecond)}
	if c.RequestID != "" {
		ev.RequestID = &c.RequestID
	}
	for _, step := range [...]func(*Parser, *envelope, *Caller, *schemas.Event) *Error{
		(*Parser).checkName, (*Parser).checkKey, (*Parser).checkTime, (*Parser).checkIdentifiers, (*Parser).checkPayload, (*Parser).checkRest,
	} {
		if err := step(p, e, c, ev); err != nil {
			if err.Pointer != "" {
				err.Pointer = at.pointer(err.Pointer)
			}
			return err
		}
	}
	*hash = p.bodyHash(e, ev)
	ev.BodyHash = hash[:]
	return window(c, ev, at)
}

// checkShape refuses what the scan noted, an event that is too large, and
// fields that are unknown or missing.
func (p *Parser) checkShape(kind string, e *envelope, at place) *Error {
	if p.scan.Soft.Code != "" {
		return p.softError()
	}
	if size := e.end - e.start; size > MaxEventBytes {
		return &Error{Code: EventTooLarge, Pointer: at.pointer(""), Detail: fmt.Sprintf("An event has at most %d bytes; this one has %d.", MaxEventBytes, size)}
	}
	foreign := slotName
	if kind == Track {
		foreign = slotTraits
	}
	for _, f := range [...]slot{slotProperties, slotType, foreign} {
		if e.fields[f].first != 0 && !belongs(f, kind, at) {
			e.noteUnknown(e.fields[f].at)
		}
	}
	if e.unknown >= 0 {
		return &Error{Code: UnknownField, Pointer: jsonscan.Pointer(p.b, e.unknown)}
	}
	required := [...]slot{slotName, slotOccurred, slotIdentifiers, slotProperties}
	if kind == Identify {
		required = [...]slot{slotOccurred, slotOccurred, slotIdentifiers, slotTraits}
	}
	for _, f := range required {
		if !e.fields[f].present() {
			return &Error{Code: MissingField, Pointer: at.pointer("/" + f.String()), Detail: f.String() + " is required."}
		}
	}
	return nil
}

// belongs says whether a field that not every event has is one of this one's.
// type belongs to the items of a batch: on the others the path says it.
func belongs(f slot, kind string, at place) bool {
	switch f {
	case slotType:
		return at != alone
	case slotTraits:
		return kind == Identify
	}
	return kind == Track
}

func (p *Parser) checkName(e *envelope, _ *Caller, ev *schemas.Event) *Error {
	if ev.Kind == Identify {
		ev.EventName = IdentifiedName
		return nil
	}
	f := &e.fields[slotName]
	name := p.fieldText(f)
	if f.first != '"' || !validName(name) {
		return &Error{Code: InvalidEventName, Pointer: "/event_name", Detail: fmt.Sprintf(
			"1 to %d ASCII letters, digits, '.', '_', '-' and ':', beginning with a letter or a digit, single spaces between words.", MaxEventName)}
	}
	if reserved(name) {
		return &Error{Code: ReservedEventName, Pointer: "/event_name", Detail: "Names that begin with core. or messaging. are the platform's own."}
	}
	ev.EventName = unsafeString(name)
	return nil
}

// TenantName says whether an event of a tenant's may have this name.
func TenantName(name string) bool {
	b := []byte(name)
	return validName(b) && !reserved(b)
}

// reserved names are the platform's own.
func reserved(name []byte) bool {
	return hasPrefixFold(name, "core.") || hasPrefixFold(name, "messaging.")
}

// validName is ^[A-Za-z0-9][A-Za-z0-9._:-]*( [A-Za-z0-9._:-]+)*$ up to MaxEventName.
func validName(b []byte) bool {
	if len(b) == 0 || len(b) > MaxEventName || !alphanumeric(b[0]) || b[len(b)-1] == ' ' {
		return false
	}
	for i, c := range b {
		if !alphanumeric(c) && c != '.' && c != '_' && c != '-' && c != ':' && (c != ' ' || b[i-1] == ' ') {
			return false
		}
	}
	return true
}

func alphanumeric(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9'
}

func hasPrefixFold(b []byte, prefix string) bool {
	return len(b) >= len(prefix) && strings.EqualFold(unsafeString(b[:len(prefix)]), prefix)
}

// checkKey takes the key of the body or of the header; both must agree.
func (p *Parser) checkKey(e *envelope, c *Caller, ev *schemas.Event) *Error {
	const pointer = "/idempotency_key"
	f := &e.fields[slotKey]
	switch {
	case f.present():
		ev.IdempotencyKey = unsafeString(p.fieldText(f))
		if f.first != '"' || !Visible(ev.IdempotencyKey, MaxIdempotencyKey) {
			return keyError(pointer)
		}
		if c.IdempotencyKey != "" && c.IdempotencyKey != ev.IdempotencyKey {
			return &Error{Code: IdempotencyKeyMismatch, Pointer: pointer}
		}
	case c.IdempotencyKey == "":
		return &Error{Code: MissingField, Pointer: pointer, Detail: "idempotency_key is required: without one a retry would count twice."}
	case !Visible(c.IdempotencyKey, MaxIdempotencyKey):
		return keyError("")
	default:
		ev.IdempotencyKey = c.IdempotencyKey
	}
	ev.EventID = ids.Event(ev.TenantID, ev.IdempotencyKey)
	return nil
}

func keyError(pointer string) *Error {
	return &Error{Code: InvalidIdempotencyKey, Pointer: pointer, Detail: fmt.Sprintf(
		"1 to %d bytes of text without control characters, no white space at either end.", MaxIdempotencyKey)}
}

// Visible says whether s is 1 to most bytes of UTF-8 without control characters
// or line separators, and without white space at either end, which a header
// could not carry.
func Visible(s string, most int) bool {
	return s != "" && oneline.Fits(s, most) && strings.TrimSpace(s) == s
}

func (p *Parser) checkTime(e *envelope, _ *Caller, ev *schemas.Event) *Error {
	f := &e.fields[slotOccurred]
	at, offset, ok := time.Time{}, int32(0), false
	if f.first == '"' {
		at, offset, ok = parseTime(p.fieldText(f))
	}
	if !ok {
		return &Error{Code: InvalidTime, Pointer: "/occurred_at", Detail: "Write it as 2026-11-01T01:30:00.123456-05:00 or 2026-11-01T06:30:00Z."}
	}
	ev.OccurredAt, ev.OccurredOffset = at, offset
	return nil
}

// window holds occurred_at to the accepted span. A clamped event ahead of us happened no later than
// we received it; one from before the window goes to its beginning. The body
// hash was taken before: it must not depend on when the event came.
func window(c *Caller, ev *schemas.Event, at place) *Error {
	ahead := ev.OccurredAt.After(c.Latest)
	if !ahead && !ev.OccurredAt.Before(c.Earliest) {
		return nil
	}
	if !c.Clamp {
		return &Error{Code: OccurredAtOutOfRange, Pointer: at.pointer("/occurred_at"), ServerTime: c.ReceivedAt, Detail: fmt.Sprintf(
			"Accepted from %s to %s.", c.Earliest.UTC().Format(time.RFC3339), c.Latest.UTC().Format(time.RFC3339))}
	}
	claimed := ev.OccurredAt
	ev.OccurredClaimed = &claimed
	if ev.OccurredAt = c.Earliest.Add(time.Microsecond - 1).Truncate(time.Microsecond).UTC(); ahead {
		ev.OccurredAt = ev.ReceivedAt.UTC()
	}
	return nil
}

func (p *Parser) checkPayload(e *envelope, _ *Caller, ev *schemas.Event) *Error {
	name := slotProperties
	if ev.Kind == Identify {
		name = slotTraits
	}
	f := &e.fields[name]
	if f.first != '{' {
		return fieldError(name, "an object")
	}
	ev.Payload = unsafeString(p.b[f.start:f.end])
	return nil
}

func fieldError(f slot, want string) *Error {
	return &Error{Code: InvalidField, Pointer: "/" + f.String(), Detail: f.String() + " is " + want + "."}
}

// checkRest takes the optional fields.
func (p *Parser) checkRest(e *envelope, _ *Caller, ev *schemas.Event) *Error {
	switch f := &e.fields[slotHistorical]; f.first {
	case 't':
		ev.Historical = true
	case 'f', 'n', 0:
	default:
		return fieldError(slotHistorical, "true or false")
	}
	f := &e.fields[slotCorrelation]
	if !f.present() {
		ev.CorrelationID = p.idText(ev.EventID)
		return nil
	}
	ev.CorrelationID = unsafeString(p.fieldText(f))
	if f.first != '"' || !Visible(ev.CorrelationID, MaxCorrelationID) {
		return &Error{Code: InvalidCorrelationID, Pointer: "/correlation_id", Detail: fmt.Sprintf(
			"A string of 1 to %d bytes without control characters, no white space at either end.", MaxCorrelationID)}
	}
	return nil
}

// fieldText is the decoded text of a string field.
func (p *Parser) fieldText(f *field) []byte {
	if f.first != '"' {
		return nil
	}
	return p.scan.Text(f.text)
}

// idText writes an id as text. What was handed out before stays where it is when
// there is more to write.
func (p *Parser) idText(id uuid.UUID) string {
	from := len(p.texts)
	p.texts = ids.AppendText(p.texts, id)
	return unsafeString(p.texts[from:])
}

// unsafeString lends bytes of the body or the parser as text; the Parser's
// comment says for how long.
func unsafeString(b []byte) string {
	return unsafe.String(unsafe.SliceData(b), len(b))
}

// softError makes the scan's first soft fault an error.
func (p *Parser) softError() *Error {
	e := &Error{Code: Code(p.scan.Soft.Code), Pointer: jsonscan.Pointer(p.b, p.scan.Soft.At)}
	switch e.Code {
	case TooDeep:
		e.Detail = fmt.Sprintf("At most %d levels.", MaxDepth)
	case TooManyKeys:
		e.Detail = fmt.Sprintf("At most %d keys and array elements.", MaxMembers)
	case KeyTooLong:
		e.Detail = fmt.Sprintf("At most %d bytes.", MaxKeyBytes)
	case NumberOutOfRange:
		e.Detail = fmt.Sprintf("At most %d significant digits, finite as a 64-bit float, no more than %d decimal places; all numbers of an event at most %d bytes without exponents.",
			jsonscan.MaxDigits, jsonscan.MaxPlaces, jsonscan.MaxGrown)
	}
	return e
}
