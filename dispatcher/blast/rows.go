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
	BadNumber      = "number_out_of_range"
	TooDeep        = "too_deep"
	TwiceTheField  = "duplicate_field"
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
	becomes() []byte // what the columns become, for the digest of the file
}

// open reads the beginning of a file: gzip is inflated, a byte order mark left
// out.
func (f File) open(r io.Reader) (rowReader, error) {
	file := &whole{r: r}
	src := bufio.NewReaderSize(file, 64<<10)
	if head, _ := src.Peek(2); len(head) == 2 && head[0] == 0x1f && head[1] == 0x8b {
		z, err := gzip.NewReader(src)
		if err != nil && !file.ended && !errors.Is(err, gzip.ErrHeader) {
			return nil, err // the connection, within the first bytes
		}
		if err != nil {
			return nil, &FileError{Code: BadGzip, Row: 1, Detail: "The file begins like gzip and is none."}
		}
		src = bufio.NewReaderSize(z, 64<<10)
	}
	meter := &meter{src: src, left: maxFileBytes, file: file}
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

// whole tells a file that ends from a connection that breaks off: in the middle
// of gzip both look alike further up.
type whole struct {
	r     io.Reader
	ended bool
}

func (w *whole) Read(p []byte) (int, error) {
	n, err := w.r.Read(p)
	if errors.Is(err, io.EOF) {
		w.ended = true
	}
	return n, err
}

// errRowTooLong and errFileTooLong come out of a meter.
var (
	errRowTooLong  = errors.New("row too long")
	errFileTooLong = errors.New("file too long")
)

// meter bounds what one row, and the whole file, may have: a quote that is never
// closed would otherwise take the rest of the file into memory.
type meter struct {
	src   io.Reader
	row   int64
	left  int64
	file  *whole
	broke error // of src, other than its end
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
	if err != nil && !errors.Is(err, io.EOF) {
		m.broke = err
	}
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
	case errors.Is(err, gzip.ErrChecksum), errors.Is(err, gzip.ErrHeader), errors.As(err, new(flate.CorruptInputError)),
		errors.Is(err, io.ErrUnexpectedEOF) && m.file.ended: // all of it has arrived, and it is not all there
		return &FileError{Code: BadGzip, Row: n, Detail: "The file cannot be inflated from here on."}
	}
	return err
}

func notUTF8(n int64) error {
	return &FileError{Code: BadEncoding, Row: n, Detail: "The file is not UTF-8 (Windows-1252, likely): save it as “CSV UTF-8”."}
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
