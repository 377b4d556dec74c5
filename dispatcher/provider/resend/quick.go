package resend

import (
	"bytes"
	"strings"
	"time"

	"github.com/softcrum/carril/dispatcher/provider"
)

// A blast brings two reports a message, and the front door reads what the stage reads
// again. quick reads a report in the documented shape in one pass; whatever is
// different in any way, well-formed or not, is none of its business and goes through
// encoding/json (ParseWebhook). What it reads, it reads as that would; a test holds
// the two together.
func quick(body []byte) (ev provider.Event, ok bool) {
	s := scanner{text: body}
	var seen, inData fields
	var at string
	s.object(func(key []byte) {
		switch string(key) {
		case "type":
			seen.once(&s, 0)
			ev.Type = s.plain()
		case "created_at":
			seen.once(&s, 1)
			at = s.plain()
		case "data":
			seen.once(&s, 2)
			s.object(func(key []byte) { s.data(key, &inData, &ev) })
		default:
			s.skip(1)
		}
	})
	ev.Status = quickStatus(ev.Type)
	ev.OccurredAt = parseTime(at)
	s.space()
	if s.bad || s.at != len(s.text) || ev.Status == "" || ev.OccurredAt.IsZero() {
		return provider.Event{}, false
	}
	return ev, true
}

// fields are those that were there; which of two counts is left to encoding/json.
type fields [5]bool

func (f *fields) once(s *scanner, i int) {
	s.bad = s.bad || f[i]
	f[i] = true
}

// quickStatus knows those that say nothing of why.
func quickStatus(kind string) provider.Status {
	switch kind {
	case "email.sent", "email.delivered", "email.delivery_delayed", "email.opened", "email.clicked", "email.complained":
		status, _ := readStatus(kind, webhookData{})
		return status
	}
	return ""
}

func (s *scanner) data(key []byte, seen *fields, ev *provider.Event) {
	switch string(key) {
	case "email_id":
		seen.once(s, 0)
		ev.ProviderMessageID = s.plain()
	case "to":
		seen.once(s, 1)
		ev.Recipients = s.list()
	case "tags":
		seen.once(s, 2)
		s.object(func(key []byte) {
			switch string(key) {
			case tagSend:
				seen.once(s, 3)
				ev.SendID = readID(s.plain())
			case tagTenant:
				seen.once(s, 4)
				ev.TenantID = readID(s.plain())
			default:
				s.skip(3)
			}
		})
	default:
		s.skip(2)
	}
}

// scanner goes through JSON; once bad, it stands still and gives nothing more.
type scanner struct {
	text []byte
	at   int
	bad  bool
}

func (s *scanner) space() {
	for s.at < len(s.text) {
		switch s.text[s.at] {
		case ' ', '\t', '\n', '\r':
			s.at++
		default:
			return
		}
	}
}

// next gives the next byte that is no space, without taking it; 0 at the end.
func (s *scanner) next() byte {
	s.space()
	if s.bad || s.at == len(s.text) {
		s.bad = true
		return 0
	}
	return s.text[s.at]
}

func (s *scanner) take(c byte) bool {
	if s.next() != c || s.bad {
		return false
	}
	s.at++
	return true
}

// object hands over each key, whose value field takes. Keys are lower-case letters,
// digits and underlines: encoding/json would know others for the same.
func (s *scanner) object(field func(key []byte)) {
	if s.bad = s.bad || !s.take('{'); s.bad || s.take('}') {
		return
	}
	for !s.bad {
		key := s.word()
		if s.bad = s.bad || !s.take(':'); s.bad {
			return
		}
		field(key)
		if s.take(',') {
			continue
		}
		s.bad = s.bad || !s.take('}')
		return
	}
}

func (s *scanner) word() []byte {
	key := s.raw()
	for _, c := range key {
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '_' {
			s.bad = true
		}
	}
	return key
}

func (s *scanner) plain() string { return string(s.raw()) }

// raw is a string of printable ASCII without escapes.
func (s *scanner) raw() []byte {
	if s.bad = s.bad || !s.take('"'); s.bad {
		return nil
	}
	for i, c := range s.text[s.at:] {
		switch {
		case c == '"':
			text := s.text[s.at : s.at+i]
			s.at += i + 1
			return text
		case c < ' ' || c > '~' || c == '\\':
			s.bad = true
			return nil
		}
	}
	s.bad = true
	return nil
}

// list is one string or more.
func (s *scanner) list() (out []string) {
	if s.bad = s.bad || !s.take('['); s.bad {
		return nil
	}
	for !s.bad {
		out = append(out, s.plain())
		if s.take(',') {
			continue
		}
		s.bad = s.bad || !s.take(']')
		break
	}
	return out
}

// deepest is how deep a report in the documented shape may be.
const deepest = 16

// skip goes over a value that nobody reads, and over nothing that is none.
func (s *scanner) skip(depth int) {
	if depth > deepest {
		s.bad = true
		return
	}
	switch c := s.next(); {
	case s.bad:
	case c == '"':
		s.skipString()
	case c == '{':
		s.skipMany('{', '}', func() {
			if s.next() != '"' {
				s.bad = true
				return
			}
			s.skipString()
			s.bad = s.bad || !s.take(':')
			s.skip(depth + 1)
		})
	case c == '[':
		s.skipMany('[', ']', func() { s.skip(depth + 1) })
	default:
		s.skipWord()
	}
}

func (s *scanner) skipMany(begin, end byte, one func()) {
	if s.bad = s.bad || !s.take(begin); s.bad || s.take(end) {
		return
	}
	for !s.bad {
		one()
		if s.take(',') {
			continue
		}
		s.bad = s.bad || !s.take(end)
		return
	}
}

// skipString goes over a string, whatever its escapes stand for.
func (s *scanner) skipString() {
	for s.at++; s.at < len(s.text); s.at++ {
		switch c := s.text[s.at]; {
		case c == '"':
			s.at++
			return
		case c < ' ':
			s.bad = true
			return
		case c == '\\':
			n := escape(s.text[s.at+1:])
			if s.bad = n == 0; s.bad {
				return
			}
			s.at += n
		}
	}
	s.bad = true
}

// escape is how many bytes follow a backslash; 0: it escapes nothing.
func escape(rest []byte) int {
	if len(rest) == 0 {
		return 0
	}
	if rest[0] != 'u' {
		return bytes.Count([]byte(`"\/bfnrt`), rest[:1])
	}
	if len(rest) < 5 || len(bytes.Trim(rest[1:5], "0123456789abcdefABCDEF")) > 0 {
		return 0
	}
	return 5
}

// skipWord goes over null, true, false and whole numbers.
func (s *scanner) skipWord() {
	from := s.at
	for s.at < len(s.text) && strings.IndexByte(",]} \t\r\n", s.text[s.at]) < 0 {
		s.at++
	}
	switch word := string(s.text[from:s.at]); word {
	case "null", "true", "false", "0":
	default:
		s.bad = s.bad || word == "" || word[0] == '0' || strings.Trim(word, "0123456789") != ""
	}
}

func parseTime(s string) time.Time {
	for _, layout := range []string{time.RFC3339Nano, "2006-01-02 15:04:05.999999999Z07", "2006-01-02 15:04:05.999999999Z07:00"} {
		if t, err := time.Parse(layout, s); err == nil {
			return t.UTC()
		}
	}
	return time.Time{}
}
