package gates

import (
	"net/mail"
	"strings"
	"unicode"

	"golang.org/x/net/idna"
)

// Normalize gives the form in which an address is stored in
// messaging.suppressions, compared and handed to a provider, and whether it is
// one bare address at all: no display name, no domain literal, no white space
// or control character (bad inputs 48, 51). An internationalised domain becomes
// its A-label, so that both its forms meet (53). An address that is none comes
// back as it was.
func Normalize(channel, address string) (string, bool) {
	if channel == "email" {
		return normalizeEmail(address)
	}
	return normalizePhone(address)
}

// Email addresses are compared without regard to case: no provider of
// consequence tells Ana@ from ana@, and a complaint must not be escaped by a
// capital letter.
func normalizeEmail(s string) (string, bool) {
	if len(s) > 320 || strings.ContainsFunc(s, func(r rune) bool {
		return unicode.IsSpace(r) || unicode.IsControl(r) || strings.ContainsRune(`<>()[],;:"\`, r)
	}) {
		return s, false
	}
	local, domain, ok := cutLast(s, '@')
	if !ok || local == "" || len(local) > 64 || strings.Contains(local, "@") {
		return s, false
	}
	domain, err := idna.Lookup.ToASCII(strings.TrimSuffix(domain, "."))
	if err != nil || !strings.Contains(domain, ".") || strings.HasPrefix(domain, ".") || !inDNS(domain) {
		return s, false
	}
	out := strings.ToLower(local) + "@" + strings.ToLower(domain)
	if a, err := mail.ParseAddress(out); err != nil || a.Address != out {
		return s, false
	}
	return out, true
}

// inDNS says whether a domain could be looked up: the lengths of RFC 1035 §2.3.4,
// and a last label that is no number, as of an IP address (RFC 3696 §2). One such
// address has a provider refuse the whole batch that it is in.
func inDNS(domain string) bool {
	labels := strings.Split(domain, ".")
	for _, l := range labels {
		if l == "" || len(l) > 63 {
			return false
		}
	}
	return len(domain) <= 253 && strings.Trim(labels[len(labels)-1], "0123456789") != ""
}

func cutLast(s string, sep byte) (before, after string, ok bool) {
	i := strings.LastIndexByte(s, sep)
	if i < 0 {
		return s, "", false
	}
	return s[:i], s[i+1:], true
}

// normalizePhone takes E.164 alone: what a number without its country means is
// for whoever took it in to say.
func normalizePhone(s string) (string, bool) {
	digits, plus := strings.CutPrefix(s, "+")
	if !plus || len(digits) < 7 || len(digits) > 15 || digits[0] == '0' || strings.Trim(digits, "0123456789") != "" {
		return s, false
	}
	return s, true
}
