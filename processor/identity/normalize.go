package identity

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/mail"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/nyaruka/phonenumbers"
	"golang.org/x/net/idna"
	"golang.org/x/text/unicode/norm"
)

// nobody lists values that programs send when they know nobody: as identifiers
// they would make one person of all who share them.
var nobody = map[string]bool{
	"": true, "null": true, "nil": true, "undefined": true, "none": true, "anonymous": true, "guest": true, "unknown": true,
	"0": true, "-1": true, "true": true, "false": true, "nan": true, "n/a": true, "na": true, "[object object]": true,
	"00000000-0000-0000-0000-000000000000": true, "test": true, "example": true, "id": true, "user": true, "userid": true, "user_id": true,
}

// MaxIdentifierBytes bounds one identifier's value.
const MaxIdentifierBytes = 512

type identifier struct{ kind, value string }

// Identifiers are an event's, normalised.
type Identifiers struct {
	ids     []identifier      // strongest kind first
	refused map[string]string // kind and why
}

// Read reads and normalises an event's identifiers, a JSON object of strings,
// and keeps why it refused any. It asks nobody, so it can be done ahead.
func Read(raw string) *Identifiers {
	pairs, ok := plainPairs(raw)
	if !ok {
		var in map[string]string
		if err := json.Unmarshal([]byte(raw), &in); err != nil {
			return &Identifiers{refused: map[string]string{"identifiers": "not an object of strings"}}
		}
		for kind, value := range in {
			pairs = append(pairs, identifier{kind, value})
		}
	}
	out := &Identifiers{ids: pairs[:0]}
	for _, id := range pairs {
		v, err := Normalize(id.kind, id.value)
		if err != nil {
			if out.refused == nil {
				out.refused = map[string]string{}
			}
			out.refused[id.kind] = err.Error()
			continue
		}
		out.ids = append(out.ids, identifier{id.kind, v})
	}
	slices.SortFunc(out.ids, func(a, b identifier) int {
		return cmp.Or(strength(a.kind)-strength(b.kind), strings.Compare(a.kind, b.kind))
	})
	return out
}

// plainPairs reads an object of strings as nearly all are: printable ASCII, no
// escapes, no key twice. ok is false for any other, which encoding/json reads.
func plainPairs(raw string) (pairs []identifier, ok bool) {
	s, ok := strings.CutPrefix(raw, "{")
	if !ok {
		return nil, false
	}
	if s == "}" {
		return nil, true
	}
	pairs = make([]identifier, 0, 4)
	for {
		var id identifier
		if id.kind, s, ok = plainString(s); !ok || !strings.HasPrefix(s, ":") {
			return nil, false
		}
		if id.value, s, ok = plainString(s[1:]); !ok || s == "" {
			return nil, false
		}
		for _, p := range pairs {
			if p.kind == id.kind {
				return nil, false
			}
		}
		pairs = append(pairs, id)
		switch {
		case s == "}":
			return pairs, true
		case s[0] != ',':
			return nil, false
		}
		s = s[1:]
	}
}

// plainString cuts a quoted string off s.
func plainString(s string) (v, rest string, ok bool) {
	if !strings.HasPrefix(s, `"`) {
		return "", s, false
	}
	for i := 1; i < len(s); i++ {
		switch c := s[i]; {
		case c == '"':
			return s[1:i], s[i+1:], true
		case c < ' ' || c > '~' || c == '\\':
			return "", s, false
		}
	}
	return "", s, false
}

// strength orders kinds by how surely they name one person.
func strength(kind string) int {
	switch kind {
	case KindExternalID:
		return 0
	case KindEmail:
		return 1
	case KindPhone:
		return 2
	case KindAnonymous:
		return 4
	}
	return 3
}

// Normalize gives an identifier the one form under which it is kept: an email
// in lower case with its domain as an A-label, a phone number in E.164. The
// error says why a value is nobody's, without repeating it.
func Normalize(kind, value string) (string, error) {
	v := strings.TrimSpace(norm.NFC.String(value))
	switch {
	case nobody[strings.ToLower(v)]:
		return "", fmt.Errorf("a value that names nobody")
	case len(v) > MaxIdentifierBytes:
		return "", fmt.Errorf("longer than %d bytes", MaxIdentifierBytes)
	case !utf8.ValidString(v) || strings.ContainsRune(v, 0):
		return "", fmt.Errorf("not storable text")
	}
	switch kind {
	case KindEmail:
		return normalizeEmail(v)
	case KindPhone:
		return normalizePhone(v)
	}
	return v, nil
}

func normalizeEmail(v string) (string, error) {
	if plainEmail(v) {
		return strings.ToLower(v), nil
	}
	a, err := mail.ParseAddress(v)
	if err != nil || a.Address != v || strings.ContainsAny(v, "\r\n[]") {
		return "", fmt.Errorf("not an email address")
	}
	at := strings.LastIndexByte(v, '@')
	domain, err := idna.Lookup.ToASCII(v[at+1:])
	if err != nil || !strings.Contains(domain, ".") {
		return "", fmt.Errorf("not an email address")
	}
	return strings.ToLower(v[:at] + "@" + domain), nil
}

// plainEmail knows the addresses that need no parser: words of letters, digits,
// '_' and '-' between single dots, at a domain of letters, digits and inner
// hyphens that ends in a word of letters.
func plainEmail(v string) bool {
	at := strings.IndexByte(v, '@')
	if at < 1 || len(v) > 254 || at > 64 {
		return false
	}
	domain := v[at+1:]
	dot := strings.LastIndexByte(domain, '.')
	if dot < 0 {
		return false
	}
	for i := dot + 1; i < len(domain); i++ {
		if !isLetter(domain[i]) {
			return false
		}
	}
	return words(v[:at], "_-", false) && words(domain, "-", true)
}

// words says that s is words between single dots, each of letters, digits and
// the extra bytes, which a strict word neither begins nor ends with nor has
// beside each other.
func words(s, extra string, strict bool) bool {
	start := 0
	for i := 0; i <= len(s); i++ {
		if i == len(s) || s[i] == '.' {
			if i == start || i-start > 63 || strict && (s[start] == '-' || s[i-1] == '-') {
				return false
			}
			start = i + 1
			continue
		}
		c := s[i]
		plain := isLetter(c) || '0' <= c && c <= '9'
		if !plain && (strings.IndexByte(extra, c) < 0 || strict && i > 0 && s[i-1] == c) {
			return false
		}
	}
	return true
}

func isLetter(c byte) bool { return 'a' <= c|0x20 && c|0x20 <= 'z' }

func normalizePhone(v string) (string, error) {
	n, err := phonenumbers.Parse(v, "")
	if err != nil || !phonenumbers.IsPossibleNumber(n) {
		return "", fmt.Errorf("not a phone number with its country code")
	}
	return phonenumbers.Format(n, phonenumbers.E164), nil
}
