package jsonscan

import (
	"encoding/binary"
	"math/bits"
	"unicode/utf16"
	"unicode/utf8"
)

const (
	ones  = 0x0101010101010101
	highs = 0x8080808080808080
)

// special has the high bit set in the lowest byte of w that ends a run of plain
// ASCII in a string: a quote, a backslash, a control character or a byte beyond
// ASCII. Bytes above that one may be marked falsely.
func special(w uint64) uint64 {
	quote := w ^ ones*'"'
	slash := w ^ ones*'\\'
	return ((quote-ones)&^quote | (slash-ones)&^slash | (w-ones*0x20)&^w | w) & highs
}

// str walks the string at i and returns the offset behind its closing quote,
// and whether it has escapes. It notes what is well formed and still not text:
// NUL, half a surrogate pair, broken UTF-8.
func (s *Scanner) str(i int) (next int, escaped bool) {
	for i++; ; {
		for i+8 <= len(s.b) {
			if m := special(binary.LittleEndian.Uint64(s.b[i:])); m != 0 {
				i += bits.TrailingZeros64(m) >> 3
				break
			}
			i += 8
		}
		if i >= len(s.b) {
			return s.Broken(i), escaped
		}
		switch c := s.b[i]; {
		case c == '"':
			return i + 1, escaped
		case c == '\\':
			escaped = true
			if i = s.escape(i); i < 0 {
				return -1, true
			}
		case c == 0:
			s.Note(NulCharacter, i)
			i++
		case c < ' ':
			return s.Broken(i), escaped
		case c < utf8.RuneSelf:
			i++
		default:
			i = s.multibyte(i)
		}
	}
}

// multibyte walks one character beyond ASCII. utf8 refuses overlong forms and
// encoded surrogates.
func (s *Scanner) multibyte(i int) int {
	r, n := utf8.DecodeRune(s.b[i:])
	if r == utf8.RuneError && n == 1 {
		s.Note(InvalidUTF8, i)
	}
	return i + n
}

// escape walks the escape at i.
func (s *Scanner) escape(i int) int {
	switch s.At(i + 1) {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		return i + 2
	case 'u':
		return s.unicodeEscape(i)
	}
	return s.Broken(i)
}

func (s *Scanner) unicodeEscape(i int) int {
	r := hex4(s.b, i+2)
	switch {
	case r < 0:
		return s.Broken(i)
	case r == 0:
		s.Note(NulCharacter, i)
	case utf16.IsSurrogate(r):
		if s.At(i+6) == '\\' && s.At(i+7) == 'u' {
			if low := hex4(s.b, i+8); low >= 0 && utf16.DecodeRune(r, low) != utf8.RuneError {
				return i + 12
			}
		}
		s.Note(LoneSurrogate, i)
	}
	return i + 6
}

// hex4 reads four hexadecimal digits at i, or gives -1.
func hex4(b []byte, i int) rune {
	if i+4 > len(b) {
		return -1
	}
	var r rune
	for _, c := range b[i : i+4] {
		switch {
		case '0' <= c && c <= '9':
			c -= '0'
		case 'a' <= c|0x20 && c|0x20 <= 'f':
			c = c | 0x20 - 'a' + 10
		default:
			return -1
		}
		r = r<<4 | rune(c)
	}
	return r
}

// unescape appends the text that the content of a well-formed JSON string
// stands for. Half a surrogate pair becomes U+FFFD.
func unescape(dst, raw []byte) []byte {
	for i := 0; i < len(raw); i++ {
		c := raw[i]
		if c != '\\' {
			dst = append(dst, c)
			continue
		}
		i++
		switch raw[i] {
		case 'b':
			dst = append(dst, '\b')
		case 'f':
			dst = append(dst, '\f')
		case 'n':
			dst = append(dst, '\n')
		case 'r':
			dst = append(dst, '\r')
		case 't':
			dst = append(dst, '\t')
		case 'u':
			r := hex4(raw, i+1)
			i += 4
			if utf16.IsSurrogate(r) {
				low := rune(-1)
				if i+2 < len(raw) && raw[i+1] == '\\' && raw[i+2] == 'u' {
					low = hex4(raw, i+3)
				}
				if r = utf16.DecodeRune(r, low); r != utf8.RuneError {
					i += 6
				}
			}
			dst = utf8.AppendRune(dst, r)
		default: // a quote, a backslash or a slash
			dst = append(dst, raw[i])
		}
	}
	return dst
}
