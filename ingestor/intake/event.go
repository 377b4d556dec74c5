package intake

import "bytes"

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
	text       keyRef
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
func (s *scanner) event(i int, e *envelope) int {
	*e = envelope{start: i, unknown: -1}
	s.members, s.grown = 0, 0
	base := len(s.keys)
	if i = s.ws(i + 1); s.at(i) != '}' {
		for {
			if i = s.member(i, e); i < 0 {
				return -1
			}
			i = s.ws(i)
			if s.at(i) != ',' {
				break
			}
			i = s.ws(i + 1)
		}
	}
	if s.at(i) != '}' {
		return s.broken(i)
	}
	s.keys = s.keys[:base]
	e.end = i + 1
	return e.end
}

func (s *scanner) member(i int, e *envelope) int {
	at := i
	depth := len(s.keys)
	if i = s.key(i); i < 0 {
		return -1
	}
	if len(s.keys) == depth { // beyond MaxMembers: refused already, and its key was not kept
		return s.value(i, 1)
	}
	name := s.text(s.keys[depth])
	s.keys = s.keys[:depth]
	f, exact := slotOf(name)
	if f == unknownSlot {
		e.noteUnknown(at)
		return s.value(i, 1)
	}
	if e.fields[f].first != 0 {
		s.note(DuplicateKey, at)
	}
	if !exact {
		e.noteUnknown(at)
	}
	return s.field(i, at, &e.fields[f])
}

func (e *envelope) noteUnknown(at int) {
	if e.unknown < 0 || at < e.unknown {
		e.unknown = at
	}
}

func (s *scanner) field(i, at int, f *field) int {
	*f = field{first: s.at(i), at: at, start: i}
	if f.first == '"' {
		end, escaped := s.str(i)
		if end < 0 {
			return -1
		}
		f.end, f.text = end, s.ref(i, end, escaped)
		return end
	}
	s.space = false
	f.end = s.value(i, 1)
	f.spaced = s.space
	return f.end
}
