package blast

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"math"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// Limits of what stands in a row of NDJSON: those of the API's other bodies, so
// that what a row may say, a single message may say too.
const (
	maxDepth    = 32
	maxDigits   = 64  // significant, of a number
	maxDecimals = 400 // places of a number
)

// ndjson reads one object a line.
type ndjson struct {
	file  File
	in    *bufio.Reader
	meter *meter
	n     int64
}

func (d *ndjson) next() (*row, error) {
	for {
		d.meter.row = 0
		line, err := d.line()
		if len(line) == 0 && errors.Is(err, io.EOF) {
			return nil, io.EOF
		}
		d.n++
		if err != nil && !errors.Is(err, io.EOF) {
			return nil, d.meter.fault(d.n, err)
		}
		line = bytes.TrimSpace(line)
		if len(line) == 0 {
			continue
		}
		if !utf8.Valid(line) {
			return nil, notUTF8(d.n)
		}
		r := &row{n: d.n, raw: append(bytes.Clone(line), '\n')}
		d.fill(r, line)
		return r, nil
	}
}

// line reads to the end of a line, bounded.
func (d *ndjson) line() ([]byte, error) {
	var out []byte
	for {
		part, err := d.in.ReadSlice('\n')
		out = append(out, part...)
		if len(out) > maxRowBytes {
			return nil, errRowTooLong
		}
		if !errors.Is(err, bufio.ErrBufferFull) {
			return out, err
		}
		d.meter.row = 0
	}
}

func (d *ndjson) fill(r *row, line []byte) {
	names, values, ok := members(line)
	if !ok {
		r.reason = BadJSON
		return
	}
	if r.reason = unstorable(line); r.reason != "" {
		return
	}
	vars := map[string]json.RawMessage{}
	seen := map[string]bool{}
	for i, name := range names {
		to := d.file.becomes(name)
		if name == "variables" {
			to = name
		}
		if to == "" {
			continue
		}
		// Which of two is meant, nobody knows: the message could go to either.
		if seen[to] {
			if r.reason = TwiceTheField; known(to) == to {
				r.col = to
			}
			return
		}
		seen[to] = true
		if name != "variables" {
			if r.set(to, values[i], vars); r.reason != "" {
				return
			}
		}
	}
	r.merge(names, values, vars)
}

// set puts a field's value where it belongs: with what says who, or among the
// variables.
func (r *row) set(to string, v json.RawMessage, vars map[string]json.RawMessage) {
	text := &r.address
	switch to {
	case "contact_id":
		text = &r.contactID
	case "external_id":
		text = &r.externalID
	case "address":
	default:
		vars[to] = v
		return
	}
	if json.Unmarshal(v, text) != nil {
		r.reason, r.col = NoIdentifier, to
	}
	*text = strings.TrimSpace(*text)
}

// merge writes the row's variables: its fields over those in its variables.
func (r *row) merge(names []string, values []json.RawMessage, fields map[string]json.RawMessage) {
	vars := map[string]json.RawMessage{}
	for i, name := range names {
		if name == "variables" && (json.Unmarshal(values[i], &vars) != nil || vars == nil) {
			r.reason, r.col = BadVariables, "variables"
			return
		}
	}
	for name, v := range fields {
		vars[name] = v
	}
	if len(vars) > maxColumns {
		r.reason, r.col = BadVariables, "variables"
		return
	}
	r.variables, _ = json.Marshal(vars) // of valid JSON
}

// becomes says what a field or column becomes: one of those that say who, a
// variable, or nothing. A name that is known by itself is a variable where
// another column was told to be what it is.
func (f File) becomes(name string) string {
	if to, given := f.Columns[name]; given {
		return to
	}
	if k := known(name); k != "" && !f.mapsTo(k) {
		return k
	}
	return name
}

func (f File) mapsTo(target string) bool {
	for _, to := range f.Columns {
		if to == target {
			return true
		}
	}
	return false
}

// members reads an object's members in their order; ok is false where the line
// is no object.
func members(line []byte) (names []string, values []json.RawMessage, ok bool) {
	if !json.Valid(line) || line[0] != '{' {
		return nil, nil, false
	}
	dec := json.NewDecoder(bytes.NewReader(line))
	_, _ = dec.Token() // the brace
	for dec.More() {
		name, err := dec.Token()
		if err != nil {
			return nil, nil, false
		}
		var v json.RawMessage
		if err := dec.Decode(&v); err != nil {
			return nil, nil, false
		}
		names, values = append(names, name.(string)), append(values, v)
	}
	return names, values, true
}

// unstorable is the reason why valid JSON cannot be kept: the database refuses
// NUL, half of a surrogate pair and numbers beyond its own, and one such row
// would hold up its file for ever. Empty: it can.
func unstorable(line []byte) string {
	depth := 0
	for i := 0; i < len(line); i++ {
		switch c := line[i]; {
		case c == '"':
			end, ok := plainString(line, i+1)
			if !ok {
				return BadCharacter
			}
			i = end
		case c == '{' || c == '[':
			if depth++; depth > maxDepth {
				return TooDeep
			}
		case c == '}' || c == ']':
			depth--
		case c == '-' || c >= '0' && c <= '9':
			n := len(line[i:]) - len(bytes.TrimLeft(line[i:], "+-.0123456789eE"))
			if !storable(string(line[i : i+n])) {
				return BadNumber
			}
			i += n - 1
		}
	}
	return ""
}

// plainString walks a string from behind its quote to the one that ends it.
func plainString(line []byte, i int) (end int, ok bool) {
	for ; line[i] != '"'; i++ {
		if line[i] != '\\' {
			continue
		}
		if i++; line[i] != 'u' {
			continue
		}
		r := escaped(line[i-1:])
		switch {
		case r == 0:
			return i, false
		case utf16.IsSurrogate(r):
			if utf16.DecodeRune(r, escaped(line[i+5:])) == utf8.RuneError {
				return i, false
			}
			i += 6
		}
		i += 4
	}
	return i, true
}

// escaped reads what begins like \u0041; -1 where it does not.
func escaped(b []byte) rune {
	if len(b) < 6 || b[0] != '\\' || b[1] != 'u' {
		return -1
	}
	n, err := strconv.ParseUint(string(b[2:6]), 16, 16)
	if err != nil {
		return -1
	}
	return rune(n)
}

// storable says whether a number keeps its digits in the database.
func storable(number string) bool {
	if f, err := strconv.ParseFloat(number, 64); err != nil || math.IsInf(f, 0) {
		return false
	}
	mantissa, exponent, _ := strings.Cut(strings.ToLower(strings.TrimPrefix(number, "-")), "e")
	whole, fraction, _ := strings.Cut(mantissa, ".")
	e := 0
	if exponent != "" {
		var err error
		if e, err = strconv.Atoi(exponent); err != nil {
			return false
		}
	}
	return len(strings.TrimLeft(whole+fraction, "0")) <= maxDigits && len(fraction)-e <= maxDecimals
}
