package jsonscan

import "bytes"

// Scanner walks one text once. What breaks the JSON's structure is hard: the
// methods return -1 and nothing after it can be trusted. What is wrong with a
// value is soft: the first is noted and the walk goes on, so that a batch loses
// one event and not its neighbours (field report 4). A Scanner is used again and
// again, by one goroutine at a time; the zero value is ready for Reset.
type Scanner struct {
	Soft   Fault // the first soft fault since Reset; Code is empty without one
	Hard   int   // where the structure broke; valid after a -1
	Spaced bool  // white space between tokens was seen since it was last cleared

	b       []byte
	keys    []Ref  // of the objects that are open, innermost last
	arena   []byte // decoded forms of strings with escapes
	members int    // since Begin
	grown   int    // bytes of the numbers since Begin, written without exponents
	levels  levels // of a value that is too deep
	loose   bool   // keys as such are nobody's concern; see Storable
}

// Ref is a string of the text, decoded; no pointers, so that a stack of them
// costs the collector nothing. Text gives what it stands for.
type Ref struct {
	at, start, end int32
	arena          bool // start and end are offsets in the arena
}

// Reset begins a text. What Text and Decode gave of the one before is gone.
func (s *Scanner) Reset(b []byte) {
	s.b, s.Hard, s.Soft = b, 0, Fault{}
	s.keys, s.arena = s.keys[:0], s.arena[:0]
	s.Spaced = false
	s.Begin()
}

// Begin counts members and the size of numbers from nothing: what is bounded
// for one event is not bounded for a batch of them.
func (s *Scanner) Begin() { s.members, s.grown = 0, 0 }

// Note keeps the first soft fault.
func (s *Scanner) Note(c Code, at int) {
	if s.Soft.Code != "" || s.loose && c.ofKeys() {
		return
	}
	s.Soft = Fault{c, at}
}

// Broken marks a hard fault, and returns the -1 that says so.
func (s *Scanner) Broken(at int) int {
	s.Hard = at
	return -1
}

// At gives the byte at i, or NUL past the end, which no token begins with.
func (s *Scanner) At(i int) byte {
	if i < len(s.b) {
		return s.b[i]
	}
	return 0
}

// Space skips white space.
func (s *Scanner) Space(i int) int {
	if i < len(s.b) && s.b[i] > ' ' {
		return i
	}
	return s.skipSpace(i)
}

func (s *Scanner) skipSpace(i int) int {
	for i < len(s.b) && (s.b[i] == ' ' || s.b[i] == '\n' || s.b[i] == '\t' || s.b[i] == '\r') {
		s.Spaced = true
		i++
	}
	return i
}

// Value walks the value at i, the depth-th level of its event or document with
// the first as 1, and returns the offset behind it, or -1.
func (s *Scanner) Value(i, depth int) int {
	switch c := s.At(i); {
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
	return s.Broken(i)
}

func (s *Scanner) literal(i int, want string) int {
	if end := i + len(want); end <= len(s.b) && string(s.b[i:end]) == want {
		return end
	}
	return s.Broken(i)
}

func (s *Scanner) object(i, depth int) int {
	if depth > MaxDepth {
		s.Note(TooDeep, i)
		return s.deep(i)
	}
	base := len(s.keys)
	if i = s.Space(i + 1); s.At(i) == '}' {
		return i + 1
	}
	for {
		if i = s.key(i); i < 0 {
			return -1
		}
		if i = s.Value(i, depth+1); i < 0 {
			return -1
		}
		i = s.Space(i)
		switch s.At(i) {
		case ',':
			i = s.Space(i + 1)
		case '}':
			s.unique(base)
			s.keys = s.keys[:base]
			return i + 1
		default:
			return s.Broken(i)
		}
	}
}

func (s *Scanner) array(i, depth int) int {
	if depth > MaxDepth {
		s.Note(TooDeep, i)
		return s.deep(i)
	}
	if i = s.Space(i + 1); s.At(i) == ']' {
		return i + 1
	}
	for {
		s.count(i)
		if i = s.Value(i, depth+1); i < 0 {
			return -1
		}
		i = s.Space(i)
		switch s.At(i) {
		case ',':
			i = s.Space(i + 1)
		case ']':
			return i + 1
		default:
			return s.Broken(i)
		}
	}
}

// count notes too many members.
func (s *Scanner) count(i int) {
	if s.members++; s.members > MaxMembers {
		s.Note(TooManyKeys, i)
	}
}

// key walks a member's key and colon to its value, and remembers the key.
func (s *Scanner) key(i int) int {
	if s.At(i) != '"' {
		return s.Broken(i)
	}
	end, escaped := s.str(i)
	if end < 0 {
		return -1
	}
	if s.count(i); s.members <= MaxMembers {
		s.keys = append(s.keys, s.ref(i, end, escaped))
		if k := s.keys[len(s.keys)-1]; k.end-k.start > MaxKeyBytes {
			s.Note(KeyTooLong, i)
		}
	}
	if i = s.Space(end); s.At(i) != ':' {
		return s.Broken(i)
	}
	return s.Space(i + 1)
}

// Key walks a member's key and colon to its value, and gives the key, decoded.
// Whether it stands twice is for the caller to see. kept is false beyond
// MaxMembers, which is noted: the key was not looked at.
func (s *Scanner) Key(i int) (name []byte, kept bool, next int) {
	depth := len(s.keys)
	if next = s.key(i); next < 0 || len(s.keys) == depth {
		return nil, false, next
	}
	name = s.Text(s.keys[depth])
	s.keys = s.keys[:depth]
	return name, true, next
}

// String walks the string at i and points at its content; next is -1 where the
// string is broken.
func (s *Scanner) String(i int) (text Ref, next int) {
	end, escaped := s.str(i)
	if end < 0 {
		return Ref{}, -1
	}
	return s.ref(i, end, escaped), end
}

// ref points at the content of the string from i to end, decoded where it has
// escapes.
func (s *Scanner) ref(i, end int, escaped bool) Ref {
	if !escaped {
		return Ref{at: int32(i), start: int32(i + 1), end: int32(end - 1)}
	}
	from := len(s.arena)
	s.arena = unescape(s.arena, s.b[i+1:end-1])
	return Ref{at: int32(i), start: int32(from), end: int32(len(s.arena)), arena: true}
}

// Text is what a string stands for: a part of the text or of the scanner, which
// holds until Reset.
func (s *Scanner) Text(k Ref) []byte {
	if k.arena {
		return s.arena[k.start:k.end]
	}
	return s.b[k.start:k.end]
}

// Decode is what the content of a string without its quotes stands for, the
// string having been walked before. It holds until Reset.
func (s *Scanner) Decode(raw []byte) []byte {
	if bytes.IndexByte(raw, '\\') < 0 {
		return raw
	}
	from := len(s.arena)
	s.arena = unescape(s.arena, raw)
	return s.arena[from:]
}

// fewKeys is up to where comparing each pair is cheaper than sorting.
const fewKeys = 12

// unique notes the first of the keys from base on that stands twice. The keys
// are compared as jsonb compares them: decoded, exactly.
func (s *Scanner) unique(base int) {
	open := s.keys[base:]
	if len(open) > fewKeys {
		s.uniqueSorted(open)
		return
	}
	for i := 1; i < len(open); i++ {
		for j := range i {
			if open[i].end-open[i].start == open[j].end-open[j].start && bytes.Equal(s.Text(open[i]), s.Text(open[j])) {
				s.Note(DuplicateKey, int(open[i].at))
				return
			}
		}
	}
}

// ClosingQuote finds the quote that ends the string at i, or gives -1.
func ClosingQuote(b []byte, i int) int {
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
