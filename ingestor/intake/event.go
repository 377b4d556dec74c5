package intake

import (
	"bytes"

	"github.com/softcrum/carril/internal/jsonscan"
)

// Kinds of events, as the path or a batch item's type names them.
const (
	Track    = "track"
	Identify = "identify"
)

// slot is a field of the envelope.
type slot int

const (
	slotType slot = iota
	slotName
	slotKey
	slotOccurred
	slotIdentifiers
	slotProperties
	slotTraits
	slotCorrelation
	slotHistorical
	slots
	unknownSlot slot = -1
)

func (f slot) String() string {
	return [...]string{"type", "event_name", "idempotency_key", "occurred_at", "identifiers", "properties", "traits",
		"correlation_id", "historical"}[f]
}

// slotOf finds the field that a key names. A key that differs only in case is
// the same field to many decoders, so it counts as a second one of it, and is
// unknown when it stands alone (field report 15).
func slotOf(key []byte) (f slot, exact bool) {
	switch string(key) {
	case "type":
		return slotType, true
	case "event_name":
		return slotName, true
	case "idempotency_key":
		return slotKey, true
	case "occurred_at":
		return slotOccurred, true
	case "identifiers":
		return slotIdentifiers, true
	case "properties":
		return slotProperties, true
	case "traits":
		return slotTraits, true
	case "correlation_id":
		return slotCorrelation, true
	case "historical":
		return slotHistorical, true
	}
	for f := range slots {
		if bytes.EqualFold(key, []byte(f.String())) {
			return f, false
		}
	}
	return unknownSlot, false
}

// field is a value of the envelope, as scanned.
type field struct {
	first      byte // of its text: '"', '{', 'n' for null, …; 0 when it is absent
	spaced     bool // white space between its tokens
	at         int  // offset of the key
	start, end int  // of the value's text
	text       jsonscan.Ref
}

// present says that the field stands there with a value; null is absent.
func (f field) present() bool { return f.first != 0 && f.first != 'n' }

// envelope is one scanned event.
type envelope struct {
	fields     [slots]field
	start, end int
	unknown    int // offset of the first key that is no field, or -1
}

// event walks the event at i, an object, into e.
func (p *Parser) event(i int, e *envelope) int {
	*e = envelope{start: i, unknown: -1}
	p.scan.Begin()
	if i = p.scan.Space(i + 1); p.scan.At(i) != '}' {
		for {
			if i = p.member(i, e); i < 0 {
				return -1
			}
			i = p.scan.Space(i)
			if p.scan.At(i) != ',' {
				break
			}
			i = p.scan.Space(i + 1)
		}
	}
	if p.scan.At(i) != '}' {
		return p.scan.Broken(i)
	}
	e.end = i + 1
	return e.end
}

func (p *Parser) member(i int, e *envelope) int {
	at := i
	name, kept, next := p.scan.Key(i)
	if i = next; i < 0 {
		return -1
	}
	if !kept { // beyond MaxMembers: refused already
		return p.scan.Value(i, 1)
	}
	f, exact := slotOf(name)
	if f == unknownSlot {
		e.noteUnknown(at)
		return p.scan.Value(i, 1)
	}
	if e.fields[f].first != 0 {
		p.scan.Note(jsonscan.DuplicateKey, at)
	}
	if !exact {
		e.noteUnknown(at)
	}
	return p.field(i, at, &e.fields[f])
}

func (e *envelope) noteUnknown(at int) {
	if e.unknown < 0 || at < e.unknown {
		e.unknown = at
	}
}

func (p *Parser) field(i, at int, f *field) int {
	*f = field{first: p.scan.At(i), at: at, start: i}
	if f.first == '"' {
		f.text, f.end = p.scan.String(i)
		return f.end
	}
	p.scan.Spaced = false
	f.end = p.scan.Value(i, 1)
	f.spaced = p.scan.Spaced
	return f.end
}
