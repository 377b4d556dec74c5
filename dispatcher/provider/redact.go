package provider

import (
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"
)

// maxDetail is how much of a provider's words an error or an event keeps, in bytes.
const maxDetail = 300

const mask = "[redacted]"

// private matches what a provider quotes from a message: text in double quotes,
// addresses with or without their angle brackets, telephone numbers.
var private = regexp.MustCompile(`"[^"]*"|<[^>]*@[^>]*>|[^\s"'<>(),;:` + "`" + `]+@[^\s"'<>(),;` + "`" + `]+|\+\d{6,}|\d{9,}`)

// Redact makes a provider's words fit for errors, logs and the status history:
// quoted text, addresses and telephone numbers are masked, the secrets given are
// masked wherever they stand, control characters go, and it ends after 300 bytes.
func Redact(s string, secrets ...string) string {
	for _, secret := range secrets {
		if secret != "" {
			s = strings.ReplaceAll(s, secret, mask)
		}
	}
	s = private.ReplaceAllString(s, mask)
	s = strings.Map(func(r rune) rune {
		switch {
		case r == utf8.RuneError:
			return -1
		case unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r):
			return ' '
		default:
			return r
		}
	}, s)
	return truncate(strings.TrimSpace(s), maxDetail)
}

// truncate cuts at a rune's border.
func truncate(s string, limit int) string {
	if len(s) <= limit {
		return s
	}
	for limit > 0 && !utf8.RuneStart(s[limit]) {
		limit--
	}
	return s[:limit]
}
