package blast

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"unicode/utf8"

	"github.com/softcrum/carril/internal/jsonscan"
)

// ndjson reads one object a line.
type ndjson struct {
	file  File
	in    *bufio.Reader
	meter *meter
	scan  jsonscan.Scanner
	n     int64
}

func (d *ndjson) becomes() []byte {
	columns, _ := json.Marshal(d.file.Columns) // of text to text, sorted
	return columns
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
	if r.reason = unstorable(&d.scan, line); r.reason != "" {
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

// unstorable is the reason why JSON cannot be kept, and one such row would hold
// up its file for ever. Empty: it can.
func unstorable(s *jsonscan.Scanner, line []byte) string {
	switch s.Storable(line).Code {
	case "":
		return ""
	case jsonscan.TooDeep:
		return TooDeep
	case jsonscan.NumberOutOfRange:
		return BadNumber
	case jsonscan.Broken:
		return BadJSON
	}
	return BadCharacter
}
