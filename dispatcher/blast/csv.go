package blast

import (
	"bufio"
	"bytes"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"unicode/utf8"
)

// csvReader reads a CSV as spreadsheets write it.
type csvReader struct {
	file    File
	in      *csv.Reader
	meter   *meter
	names   []string // of the variables; empty: none
	targets []string // contact_id, external_id, address, or empty
	n       int64
}

func newCSV(f File, in *bufio.Reader, m *meter) (*csvReader, error) {
	c := &csvReader{file: f, meter: m}
	delimiter, err := c.delimiter(in)
	if err != nil {
		return nil, err
	}
	c.in = csv.NewReader(in)
	c.in.Comma, c.in.FieldsPerRecord, c.in.ReuseRecord = delimiter, -1, true
	m.row = 0
	header, err := c.in.Read()
	c.n = 1
	switch {
	case errors.Is(err, io.EOF):
		return nil, &FileError{Code: EmptyFile, Row: 1, Detail: "There is nothing in the file."}
	case err != nil && m.broke != nil:
		return nil, m.fault(c.n, m.broke)
	case errors.As(err, new(*csv.ParseError)):
		return nil, &FileError{Code: NoColumns, Row: c.n, Detail: "The header cannot be read: a quote is out of place."}
	case err != nil:
		return nil, m.fault(c.n, err)
	}
	return c, c.columns(header)
}

// delimiter is the given one, or what the first line has most of outside quotes.
// Excel may say it in a line of its own, which it does not show as a row: sep=;
func (c *csvReader) delimiter(in *bufio.Reader) (rune, error) {
	line, _ := in.Peek(in.Size())
	if i := bytes.IndexByte(line, '\n'); i >= 0 {
		line = line[:i]
	}
	said := c.file.Delimiter
	if rest, ok := bytes.CutPrefix(bytes.ToLower(bytes.TrimRight(line, "\r")), []byte("sep=")); ok && len(rest) == 1 {
		if said == "" {
			said = string(rest)
		}
		_, _ = in.ReadString('\n')
	}
	switch said {
	case ",", ";", "\t":
		return rune(said[0]), nil
	case "":
	default:
		return 0, &FileError{Code: MixedDelimiters, Row: 1, Detail: "The delimiter is a comma, a semicolon or a tab."}
	}
	counts, quoted := map[byte]int{}, false
	for _, b := range line {
		if b == '"' {
			quoted = !quoted
		}
		if !quoted {
			counts[b]++
		}
	}
	best := byte(',')
	for _, d := range []byte(";\t") {
		if counts[d] > counts[best] {
			best = d
		}
	}
	return rune(best), nil
}

// known are the columns that name a contact, by the names that people give them.
func known(name string) string {
	switch strings.ToLower(name) {
	case "contact_id":
		return "contact_id"
	case "external_id":
		return "external_id"
	case "address", "email", "e-mail", "phone":
		return "address"
	}
	return ""
}

// columns says what becomes of each column.
func (c *csvReader) columns(header []string) error {
	fail := func(code, detail string) error { return &FileError{Code: code, Row: c.n, Detail: detail} }
	if len(header) > maxColumns {
		return fail(TooManyColumns, fmt.Sprintf("A file has at most %d columns.", maxColumns))
	}
	c.names, c.targets = make([]string, len(header)), make([]string, len(header))
	seen, mapped := map[string]bool{}, 0
	for i, h := range header {
		if !utf8.ValidString(h) {
			return notUTF8(c.n)
		}
		h = strings.TrimSpace(h)
		if len(h) > maxColumn || strings.ContainsRune(h, 0) {
			return fail(TooManyColumns, fmt.Sprintf("The name of a column has at most %d bytes, without NUL.", maxColumn))
		}
		if _, given := c.file.Columns[h]; given {
			mapped++
		}
		to := c.file.becomes(h)
		if to == "" {
			continue
		}
		if seen[to] {
			return fail(TwiceTheColumn, fmt.Sprintf("Two columns become the same: column %d.", i+1))
		}
		seen[to] = true
		if to == "contact_id" || to == "external_id" || to == "address" {
			c.targets[i] = to
		} else {
			c.names[i] = to
		}
	}
	if mapped < len(c.file.Columns) {
		return fail(UnknownMapping, "A column that columns maps is not in the file.")
	}
	if !seen["contact_id"] && !seen["external_id"] && !seen["address"] {
		return fail(NoColumns, "No column says who: contact_id, external_id or address. Map one with columns.")
	}
	return nil
}

func (c *csvReader) becomes() []byte { return fmt.Appendf(nil, "%q%q", c.targets, c.names) }

func (c *csvReader) next() (*row, error) {
	c.meter.row = 0
	record, err := c.in.Read()
	if errors.Is(err, io.EOF) {
		return nil, io.EOF
	}
	c.n++
	r := &row{n: c.n}
	var bad *csv.ParseError
	switch {
	case err != nil && c.meter.broke != nil: // cut between the two characters of a line's end, a good row looks malformed
		return nil, c.meter.fault(c.n, c.meter.broke)
	case errors.As(err, &bad) && bad.Line > bad.StartLine: // it has swallowed rows, and nobody knows how many
		return nil, &FileError{Code: BadQuotes, Row: c.n, Detail: "A quote that begins here is not closed where its cell ends."}
	case errors.As(err, &bad):
		r.reason = BadQuotes
		return r, nil
	case err != nil:
		return nil, c.meter.fault(c.n, err)
	}
	size := 0
	for _, v := range record {
		size += len(v) + 1
		r.raw = append(append(r.raw, v...), 0)
	}
	if size > maxRowBytes {
		return nil, c.meter.fault(c.n, errRowTooLong)
	}
	if !utf8.Valid(r.raw) {
		return nil, notUTF8(c.n)
	}
	c.fill(r, record)
	return r, nil
}

func (c *csvReader) fill(r *row, record []string) {
	if len(record) != len(c.names) {
		r.reason = WrongWidth
		return
	}
	vars := map[string]string{}
	for i, v := range record {
		switch c.targets[i] {
		case "contact_id":
			r.contactID = strings.TrimSpace(v)
		case "external_id":
			r.externalID = strings.TrimSpace(v)
		case "address":
			r.address = strings.TrimSpace(v)
		}
		if strings.ContainsRune(v, 0) {
			r.reason, r.col = BadCharacter, c.column(i)
			return
		}
		if c.names[i] != "" {
			vars[c.names[i]] = v
		}
	}
	r.variables, _ = json.Marshal(vars) // text by text
}

func (c *csvReader) column(i int) string {
	if c.targets[i] != "" {
		return c.targets[i]
	}
	return c.names[i]
}
