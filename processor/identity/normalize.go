package identity

import (
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

// identifiersOf reads and normalises an event's identifiers, strongest kind
// first, and says which it refused and why.
func identifiersOf(raw string) (ids []identifier, refused map[string]string) {
	var in map[string]string
	refused = map[string]string{}
	if err := json.Unmarshal([]byte(raw), &in); err != nil {
		refused["identifiers"] = "not an object of strings"
		return nil, refused
	}
	for kind, value := range in {
		v, err := Normalize(kind, value)
		if err != nil {
			refused[kind] = err.Error()
			continue
		}
		ids = append(ids, identifier{kind, v})
	}
	slices.SortFunc(ids, func(a, b identifier) int {
		if d := strength(a.kind) - strength(b.kind); d != 0 {
			return d
		}
		return strings.Compare(a.kind, b.kind)
	})
	return ids, refused
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

func normalizePhone(v string) (string, error) {
	n, err := phonenumbers.Parse(v, "")
	if err != nil || !phonenumbers.IsPossibleNumber(n) {
		return "", fmt.Errorf("not a phone number with its country code")
	}
	return phonenumbers.Format(n, phonenumbers.E164), nil
}
