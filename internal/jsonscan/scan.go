package intake

import "bytes"

// Limits of one event. Sizes are bytes, not characters (field report 12).
const (
	MaxEventBytes = 32 << 10 // of the event's JSON text, as sent
	MaxDepth      = 32       // levels of properties or traits, which are the first
	MaxMembers    = 10_000   // object members and array elements of an event
	MaxKeyBytes   = 512      // of one key, decoded
)

// fault is a refusal met while scanning.
type fault struct {
	code Code
	at   int // offset in the body
}

// scanner walks one body once. What breaks the JSON's structure is hard: the
// methods return -1 and nothing after it can be trusted. What is wrong with a
// value is soft: the first is noted and the walk goes on, so that a batch loses
// one event and not its neighbours (field report 4).
type scanner struct {
	b       []byte
	hard    int // where the structure broke; valid after a -1
	soft    fault
	keys    []keyRef // of the objects that are open, innermost last
	arena   []byte   // decoded forms of strings with escapes
	members int      // of the event
	grown   int      // bytes of the event's numbers when written without exponents
	levels  levels   // of a value that is too deep
	space   bool     // white space between tokens was seen since it was last cleared
}

// keyRef is a key of an open object; no pointers, so that the stack costs the
// collector nothing.
type keyRef struct {
	at, start, end int32
	arena          bool // start and end are offsets in the arena
}

func (s *scanner) reset(b []byte) {
	s.b, s.hard, s.soft = b, 0, fault{}
	s.keys, s.arena = s.keys[:0], s.arena[:0]
	s.members, s.grown, s.space = 0, 0, false
}

// note keeps the first soft fault.
func (s *scanner) note(c Code, at int) {
	if s.soft.code == "" {
		s.soft = fault{c, at}
	}
}

// broken marks a hard fault.
func (s *scanner) broken(at int) int {
	s.hard = at
	return -1
}

// at gives the byte at i, or NUL past the end, which no token begins with.
func (s *scanner) at(i int) byte {
	if i < len(s.b) {
		return s.b[i]
	}
	return 0
}

// ws skips white space.
func (s *scanner) ws(i int) int {
	if i < len(s.b) && s.b[i] > ' ' {
		return i
	}
	return s.skipSpace(i)
}

func (s *scanner) skipSpace(i int) int {
	for i < len(s.b) && (s.b[i] == ' ' || s.b[i] == '\n' || s.b[i] == '\t' || s.b[i] == '\r') {
		s.space = true
		i++
	}
	return i
}

// value walks the value at i, the depth-th level of its event, and returns the
// offset behind it.
func (s *scanner) value(i, depth int) int {
	switch c := s.at(i); {
	case c == '"':
		next, _ := s.str(i)
		return next
	case c == '{':
		return s.object(i, depth)
	case c == '[':
		return s.array(i, depth)
	case c == '-' || '0' <= c && c <= '9':
		return s.number(i)
	case c == 't':
		return s.literal(i, "true")
	case c == 'f':
		return s.literal(i, "false")
	case c == 'n':
		return s.literal(i, "null")
	}
	return s.broken(i)
}

func (s *scanner) literal(i int, want string) int {
	if end := i + len(want); end <= len(s.b) && string(s.b[i:end]) == want {
		return end
	}
	return s.broken(i)
}

func (s *scanner) object(i, depth int) int {
	if depth > MaxDepth {
		s.note(TooDeep, i)
		return s.deep(i)
	}
	base := len(s.keys)
	if i = s.ws(i + 1); s.at(i) == '}' {
		return i + 1
	}
	for {
		if i = s.key(i); i < 0 {
			return -1
		}
		if i = s.value(i, depth+1); i < 0 {
			return -1
		}
		i = s.ws(i)
		switch s.at(i) {
		case ',':
			i = s.ws(i + 1)
		case '}':
			s.unique(base)
			s.keys = s.keys[:base]
			return i + 1
		default:
			return s.broken(i)
		}
	}
}

func (s *scanner) array(i, depth int) int {
	if depth > MaxDepth {
		s.note(TooDeep, i)
		return s.deep(i)
	}
	if i = s.ws(i + 1); s.at(i) == ']' {
		return i + 1
	}
	for {
		s.count(i)
		if i = s.value(i, depth+1); i < 0 {
			return -1
		}
		i = s.ws(i)
		switch s.at(i) {
		case ',':
			i = s.ws(i + 1)
		case ']':
			return i + 1
		default:
			return s.broken(i)
		}
	}
}

// count notes an event with too many members.
func (s *scanner) count(i int) {
	if s.members++; s.members > MaxMembers {
		s.note(TooManyKeys, i)
	}
}

// key walks a member's key and colon to its value, and remembers the key.
func (s *scanner) key(i int) int {
	if s.at(i) != '"' {
		return s.broken(i)
	}
	end, escaped := s.str(i)
	if end < 0 {
		return -1
	}
	if s.count(i); s.members <= MaxMembers {
		s.keys = append(s.keys, s.ref(i, end, escaped))
		if k := s.keys[len(s.keys)-1]; k.end-k.start > MaxKeyBytes {
			s.note(KeyTooLong, i)
		}
	}
	if i = s.ws(end); s.at(i) != ':' {
		return s.broken(i)
	}
	return s.ws(i + 1)
}

// ref points at the content of the string from i to end, decoded where it has
// escapes.
func (s *scanner) ref(i, end int, escaped bool) keyRef {
	if !escaped {
		return keyRef{at: int32(i), start: int32(i + 1), end: int32(end - 1)}
	}
	from := len(s.arena)
	s.arena = unescape(s.arena, s.b[i+1:end-1])
	return keyRef{at: int32(i), start: int32(from), end: int32(len(s.arena)), arena: true}
}

func (s *scanner) text(k keyRef) []byte {
	if k.arena {
		return s.arena[k.start:k.end]
	}
	return s.b[k.start:k.end]
}

// fewKeys is up to where comparing each pair is cheaper than sorting.
const fewKeys = 12

// unique notes the first of the keys from base on that stands twice. The keys
// are compared as jsonb compares them: decoded, exactly.
func (s *scanner) unique(base int) {
	open := s.keys[base:]
	if len(open) > fewKeys {
		s.uniqueSorted(open)
		return
	}
	for i := 1; i < len(open); i++ {
		for j := range i {
			if open[i].end-open[i].start == open[j].end-open[j].start && bytes.Equal(s.text(open[i]), s.text(open[j])) {
				s.note(DuplicateKey, int(open[i].at))
				return
			}
		}
	}
}

// closingQuote finds the quote that ends the string at i, or -1.
func closingQuote(b []byte, i int) int {
	for i++; i < len(b); i++ {
		switch b[i] {
		case '\\':
			i++
		case '"':
			return i
		}
	}
	return -1
}
