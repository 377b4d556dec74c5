// Package oneline owns what free text may be that people write and the database,
// logs and answers carry on: names, reasons, notes. It is of one line, so that it
// stays what it is in a log, a table or a header. Parsers of requests and of
// commands ask it; how long a text may be is theirs to say.
package oneline

import (
	"unicode"
	"unicode/utf8"
)

// Fits says whether s is at most so many bytes of UTF-8 without control
// characters and line separators. Empty text fits.
func Fits(s string, most int) bool {
	if len(s) > most {
		return false
	}
	for _, r := range s {
		if r < utf8.RuneSelf {
			if r < ' ' || r == 0x7f {
				return false
			}
		} else if r == utf8.RuneError && !utf8.ValidString(s) || Breaks(r) {
			return false
		}
	}
	return true
}

// Breaks says that a character breaks a line, or is none that is seen.
func Breaks(r rune) bool { return unicode.IsControl(r) || r == '\u2028' || r == '\u2029' }
