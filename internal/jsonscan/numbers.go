package jsonscan

import (
	"math"
	"strconv"
)

// What jsonb stores and gives back sanely; see the package's comment.
const (
	MaxDigits = 64       // significant, trailing zeros included
	MaxPlaces = 400      // decimal places, and the exponent's size; 5e-324 passes
	MaxGrown  = 32 << 10 // bytes of all numbers since Begin, written without exponents
)

const (
	plainNumber = 16        // bytes up to which a number without exponent needs no look
	tooLarge    = 1_000_000 // where counting an exponent stops
)

// number walks the number at i by the grammar of RFC 8259 and notes one that is
// out of range.
func (s *Scanner) number(i int) int {
	start := i
	if s.At(i) == '-' {
		i++
	}
	switch c := s.At(i); {
	case c == '0':
		i++
	case '1' <= c && c <= '9':
		i = s.digits(i)
	default:
		return s.Broken(i)
	}
	if s.At(i) == '.' {
		from := i + 1
		if i = s.digits(from); i == from {
			return s.Broken(i)
		}
	}
	exponent := s.At(i)|0x20 == 'e'
	if exponent {
		i++
		if c := s.At(i); c == '+' || c == '-' {
			i++
		}
		from := i
		if i = s.digits(from); i == from {
			return s.Broken(i)
		}
	}
	if exponent || i-start > plainNumber {
		s.measure(start, i)
	}
	return i
}

func (s *Scanner) digits(i int) int {
	for i < len(s.b) && '0' <= s.b[i] && s.b[i] <= '9' {
		i++
	}
	return i
}

// measure notes a number that is out of range, by itself or with the others of
// its event.
func (s *Scanner) measure(start, end int) {
	d := decimalOf(s.b[start:end])
	if !d.sane(s.b[start:end]) {
		s.Note(NumberOutOfRange, start)
		return
	}
	if s.grown += d.length(); s.grown > MaxGrown {
		s.Note(NumberOutOfRange, start)
	}
}

// decimal is the shape of a number: how many digits it has where.
type decimal struct {
	whole, fraction int // digits before and after the point
	zeros           int // leading zeros of whole and fraction together
	exponent        int
}

func decimalOf(num []byte) decimal {
	var d decimal
	count, leading := &d.whole, true
	for i, c := range num {
		switch {
		case c == '-':
		case c == '.':
			count = &d.fraction
		case c|0x20 == 'e':
			d.exponent = exponentOf(num[i+1:])
			return d
		default:
			*count++
			if leading = leading && c == '0'; leading {
				d.zeros++
			}
		}
	}
	return d
}

func exponentOf(b []byte) int {
	e, sign := 0, 1
	for _, c := range b {
		switch c {
		case '-':
			sign = -1
		case '+':
		default:
			e = min(e*10+int(c-'0'), tooLarge)
		}
	}
	return sign * e
}

// sane says whether the number is taken, num being its text.
func (d decimal) sane(num []byte) bool {
	digits := d.whole + d.fraction
	if d.exponent > MaxPlaces || d.fraction-d.exponent > MaxPlaces {
		return false
	}
	if d.zeros == digits { // zero, however long it is written
		return digits <= MaxDigits
	}
	top := d.whole - 1 - d.zeros + d.exponent // the power of ten of the first digit
	if digits-d.zeros > MaxDigits || top > 308 {
		return false
	}
	if top < 308 {
		return true
	}
	f, err := strconv.ParseFloat(string(num), 64)
	return err == nil && !math.IsInf(f, 0)
}

// length is how many bytes the number takes written without an exponent.
func (d decimal) length() int {
	return max(d.whole+d.exponent, 1) + max(d.fraction-d.exponent, 0) + 2
}
