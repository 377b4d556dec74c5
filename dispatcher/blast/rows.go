package blast

import (
	"bufio"
	"bytes"
	"compress/flate"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"unicode/utf8"

	"github.com/google/uuid"
)

// Formats of a file of recipients.
const (
	CSV    = "csv"
	NDJSON = "ndjson"
)

// Limits of a file.
const (
	maxRowBytes  = 64 << 10
	maxFileBytes = 8 << 30 // inflated
	maxColumns   = 200
	maxColumn    = 200 // bytes of a column's name
)

// What ends a file as a whole.
const (
	BadEncoding     = "not_utf8"
	BadGzip         = "not_gzip"
	RowTooLong      = "row_too_long"
	FileTooLong     = "file_too_large"
	NoColumns       = "no_recipient_column"
	TwiceTheColumn  = "duplicate_column"
	TooManyColumns  = "too_many_columns"
	UnknownMapping  = "unknown_column"
	EmptyFile       = "empty_file"
	MixedDelimiters = "invalid_delimiter"
)

// Why a row is not taken.
const (
	UnknownContact = "unknown_contact"
	NoIdentifier   = "no_identifier"
	BadContactID   = "invalid_contact_id"
	BadAddress     = "invalid_address"
	NoAddress      = "no_address"
	ForeignAddress = "address_of_another"
	BadQuotes      = "malformed_quotes"
	WrongWidth     = "wrong_number_of_columns"
	BadJSON        = "malformed_json"
	BadCharacter   = "invalid_character"
	BadVariables   = "invalid_variables"
)

// FileError ends a file of recipients at a row, counted from 1 with the header
// of a CSV as row 1.
type FileError struct {
	Code   string
	Row    int64
	Detail string
}

func (e *FileError) Error() string {
	return fmt.Sprintf("file of recipients: %s at row %d: %s", e.Code, e.Row, e.Detail)
}

// File says how to read a file of recipients.
type File struct {
	Format    string            // CSV or NDJSON
	Delimiter string            // of a CSV: one of , ; and tab; empty: found out
	Columns   map[string]string // column or field → contact_id, external_id, address, or the variable that it becomes; "" leaves it out
}

// row is one row as it stands in a file.
type row struct {
	n          int64 // as people count: the header of a CSV is row 1
	contactID  string
	externalID string
	address    string
	variables  json.RawMessage
	col        string // at fault
	reason     string // why it cannot be taken; empty: it may
	raw        []byte // what the digest of the file goes by
}

// rowReader gives the rows of a file one after the other; io.EOF at its end, and
// a *FileError where it cannot go on. It keeps one row in memory.
type rowReader interface {
	next() (*row, error)
}

// open reads the beginning of a file: gzip is inflated, a byte order mark left
// out.
func (f File) open(r io.Reader) (rowReader, error) {
	src := bufio.NewReaderSize(r, 64<<10)
	if head, _ := src.Peek(2); len(head) == 2 && head[0] == 0x1f && head[1] == 0x8b {
		z, err := gzip.NewReader(src)
		if err != nil {
			return nil, &FileError{Code: BadGzip, Row: 1, Detail: "The file begins like gzip and is none."}
		}
		src = bufio.NewReaderSize(z, 64<<10)
	}
	meter := &meter{src: src, left: maxFileBytes}
	in := bufio.NewReaderSize(meter, 4<<10)
	head, err := in.Peek(3)
	switch {
	case len(head) == 0 && errors.Is(err, io.EOF):
		return nil, &FileError{Code: EmptyFile, Row: 1, Detail: "There is nothing in the file."}
	case len(head) == 0:
		return nil, meter.fault(1, err)
	case bytes.HasPrefix(head, []byte("\xef\xbb\xbf")):
		_, _ = in.Discard(3)
	case bytes.HasPrefix(head, []byte("\xff\xfe")) || bytes.HasPrefix(head, []byte("\xfe\xff")):
		return nil, &FileError{Code: BadEncoding, Row: 1, Detail: "The file is UTF-16; save it as UTF-8."}
	}
	if f.Format == NDJSON {
		return &ndjson{file: f, in: in, meter: meter}, nil
	}
	return newCSV(f, in, meter)
}

// errRowTooLong and errFileTooLong come out of a meter.
var (
	errRowTooLong  = errors.New("row too long")
	errFileTooLong = errors.New("file too long")
)

// meter bounds what one row, and the whole file, may have: a quote that is never
// closed would otherwise take the rest of the file into memory.
type meter struct {
	src  io.Reader
	row  int64
	left int64
}

func (m *meter) Read(p []byte) (int, error) {
	if m.row > maxRowBytes+8<<10 { // what is read ahead belongs to the next rows
		return 0, errRowTooLong
	}
	if m.left <= 0 {
		return 0, errFileTooLong
	}
	n, err := m.src.Read(p)
	m.row += int64(n)
	m.left -= int64(n)
	return n, err
}

// fault is what an error of reading means for the file; one that says nothing of
// the file itself, such as a connection that broke off, stays as it is.
func (m *meter) fault(n int64, err error) error {
	switch {
	case errors.Is(err, errRowTooLong):
		return &FileError{Code: RowTooLong, Row: n, Detail: fmt.Sprintf("A row has at most %d bytes; a quote may not be closed.", maxRowBytes)}
	case errors.Is(err, errFileTooLong):
		return &FileError{Code: FileTooLong, Row: n, Detail: fmt.Sprintf("A file has at most %d bytes inflated.", int64(maxFileBytes))}
	case errors.Is(err, gzip.ErrChecksum), errors.Is(err, gzip.ErrHeader), errors.As(err, new(flate.CorruptInputError)):
		return &FileError{Code: BadGzip, Row: n, Detail: "The file cannot be inflated from here on."}
	}
	return err
}

func notUTF8(n int64) error {
	return &FileError{Code: BadEncoding, Row: n, Detail: "The file is not UTF-8 (Windows-1252, likely): save it as “CSV UTF-8”."}
}

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
	var object map[string]json.RawMessage
	if json.Unmarshal(line, &object) != nil || object == nil {
		r.reason = BadJSON
		return
	}
	if bytes.Contains(line, []byte(`\u0000`)) {
		r.reason = BadCharacter
		return
	}
	vars := map[string]json.RawMessage{}
	if raw, ok := object["variables"]; ok {
		if json.Unmarshal(raw, &vars) != nil || vars == nil {
			r.reason, r.col = BadVariables, "variables"
			return
		}
		delete(object, "variables")
	}
	for name, v := range object {
		to, given := d.file.Columns[name]
		if !given {
			if to = known(name); to == "" {
				to = name
			}
		}
		text := &r.address
		switch to {
		case "":
			continue
		case "contact_id":
			text = &r.contactID
		case "external_id":
			text = &r.externalID
		case "address":
		default:
			vars[to] = v
			continue
		}
		if json.Unmarshal(v, text) != nil {
			r.reason, r.col = NoIdentifier, to
			return
		}
		*text = strings.TrimSpace(*text)
	}
	if len(vars) > maxColumns {
		r.reason, r.col = BadVariables, "variables"
		return
	}
	r.variables, _ = json.Marshal(vars) // of valid JSON
}

// who says by what a row names its contact: the column, and its value.
func (r *row) who() (kind, value string) {
	switch {
	case r.contactID != "":
		return "contact_id", r.contactID
	case r.externalID != "":
		return "external_id", r.externalID
	}
	return "address", r.address
}

// contact reads the row's contact_id.
func (r *row) contact() (uuid.UUID, bool) {
	id, err := uuid.Parse(r.contactID)
	return id, err == nil && len(r.contactID) == len(uuid.Nil.String())
}
