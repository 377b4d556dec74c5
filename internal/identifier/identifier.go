// Package identifier owns the one form in which an identifier of a person is
// kept and compared, whoever writes or asks for it, and the keyed hash that
// stands for it once the person is erased. Whose an identifier is belongs to
// processor/identity; in what form an address is handed to a provider, to
// internal/gates.
package identifier

import (
	"crypto/sha256"
	"fmt"
	"net/mail"
	"strings"
	"unicode/utf8"

	"github.com/nyaruka/phonenumbers"
	"golang.org/x/net/idna"
	"golang.org/x/text/unicode/norm"
)

// Kinds of identifiers that the platform knows; a tenant may use its own beside
// them.
const (
	ExternalID = "external_id"
	Email      = "email"
	Phone      = "phone"
	Anonymous  = "anonymous_id"
)

// nobody lists values that programs send when they know nobody: as identifiers
// they would make one person of all who share them.
var nobody = map[string]bool{
	"": true, "null": true, "(null)": true, "nil": true, "undefined": true, "none": true, "(none)": true, "not set": true, "(not set)": true, "anonymous": true, "guest": true, "unknown": true,
	"-1": true, "true": true, "false": true, "nan": true, "n/a": true, "na": true, "[object object]": true,
	"test": true, "example": true, "id": true, "user": true, "userid": true, "user_id": true,
}

// MaxBytes bounds one identifier's value.
const MaxBytes = 512

// OfChannel is the kind of identifier that a channel delivers to; empty where a
// person has none that is delivered to.
func OfChannel(channel string) string {
	switch channel {
	case "email":
		return Email
	case "sms", "whatsapp":
		return Phone
	}
	return ""
}

// Normalize gives an identifier the one form under which it is kept: an email
// in lower case with its domain as an A-label, a phone number in E.164. The
// error says why a value is nobody's, without repeating it.
func Normalize(kind, value string) (string, error) {
	v := strings.TrimSpace(norm.NFC.String(value))
	switch {
	case nobody[strings.ToLower(v)], strings.Trim(v, "0-. ") == "": // zeros of any length, the nil UUID among them
		return "", fmt.Errorf("a value that names nobody")
	case len(v) > MaxBytes:
		return "", fmt.Errorf("longer than %d bytes", MaxBytes)
	case !utf8.ValidString(v) || strings.ContainsRune(v, 0):
		return "", fmt.Errorf("not storable text")
	}
	switch kind {
	case Email:
		return normalizeEmail(v)
	case Phone:
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

// KeyBytes is how long a tenant's erasure key is.
const KeyBytes = 32

// Hash stands for an erased person's identifier: nobody without the tenant's key
// can try addresses against it. It is SHA-256 of the key and the SHA-256 of key,
// kind and value, which PostgreSQL computes too (core.erased_hash).
func Hash(key []byte, kind, value string) []byte {
	inner := sha256.New()
	inner.Write(key)
	inner.Write([]byte(kind + "\n" + value))
	outer := sha256.New()
	outer.Write(key)
	outer.Write(inner.Sum(nil))
	return outer.Sum(nil)
}
