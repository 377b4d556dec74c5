package pg

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// Copy streams n rows to a statement `COPY … FROM STDIN BINARY`. row appends the
// i-th one to b: its number of columns by Columns, then each column in the
// statement's order. It runs beside the caller, while PostgreSQL takes the rows
// before, and is never called again once Copy has returned.
//
// pgx's own CopyFrom asks for the columns' types each time and boxes every
// value; here nothing is allocated for a row.
func Copy(ctx context.Context, conn *pgx.Conn, sql string, n int, row func(b CopyRow, i int) CopyRow) (err error) {
	if t := conn.Config().Tracer; t != nil {
		ctx = t.TraceQueryStart(ctx, conn, pgx.TraceQueryStartData{SQL: sql})
		defer func() { t.TraceQueryEnd(ctx, conn, pgx.TraceQueryEndData{Err: err}) }()
	}
	tag, err := conn.PgConn().CopyFrom(ctx, &copyStream{rows: n, row: row}, sql)
	if err != nil {
		return err
	}
	if int(tag.RowsAffected()) != n {
		return fmt.Errorf("%d of %d rows were copied", tag.RowsAffected(), n)
	}
	return nil
}

// copySignature opens a binary COPY: magic, no flags, no header extension.
const copySignature = "PGCOPY\n\xff\r\n\x00\x00\x00\x00\x00\x00\x00\x00\x00"

// copyStream makes rows as they are read.
type copyStream struct {
	rows, next int
	row        func(CopyRow, int) CopyRow
	buf        []byte // made and not yet read
	off        int
	opened     bool
	closed     bool
}

// Read implements io.Reader. It fills p as far as whole rows allow and keeps the
// one that does not fit for the next call.
func (s *copyStream) Read(p []byte) (n int, err error) {
	if s.off == len(s.buf) {
		s.buf, s.off = s.buf[:0], 0
		s.fill(len(p))
	}
	if s.off == len(s.buf) {
		return 0, io.EOF
	}
	n = copy(p, s.buf[s.off:])
	s.off += n
	return n, nil
}

func (s *copyStream) fill(want int) {
	if !s.opened {
		s.buf, s.opened = append(s.buf, copySignature...), true
	}
	b := CopyRow(s.buf)
	for s.next < s.rows && len(b) < want {
		b = s.row(b, s.next)
		s.next++
	}
	s.buf = b
	if s.next == s.rows && !s.closed {
		s.buf, s.closed = append(s.buf, 0xff, 0xff), true // the trailer
	}
}

// CopyRow is a row of a binary COPY in the making. Each method appends one
// column in PostgreSQL's binary form.
type CopyRow []byte

// Columns begins a row of n columns.
func (b CopyRow) Columns(n int16) CopyRow { return binary.BigEndian.AppendUint16(b, uint16(n)) }

// UUID appends a uuid.
func (b CopyRow) UUID(v uuid.UUID) CopyRow { return append(b.length(len(v)), v[:]...) }

// Text appends a text.
func (b CopyRow) Text(v string) CopyRow { return append(b.length(len(v)), v...) }

// Bytes appends a bytea.
func (b CopyRow) Bytes(v []byte) CopyRow { return append(b.length(len(v)), v...) }

// JSONB appends a jsonb from its text.
func (b CopyRow) JSONB(v string) CopyRow { return append(append(b.length(len(v)+1), 1), v...) }

// Bool appends a boolean.
func (b CopyRow) Bool(v bool) CopyRow {
	if v {
		return append(b.length(1), 1)
	}
	return append(b.length(1), 0)
}

// Int16 appends a smallint.
func (b CopyRow) Int16(v int16) CopyRow { return binary.BigEndian.AppendUint16(b.length(2), uint16(v)) }

// Int32 appends an integer.
func (b CopyRow) Int32(v int32) CopyRow { return binary.BigEndian.AppendUint32(b.length(4), uint32(v)) }

// Int64 appends a bigint.
func (b CopyRow) Int64(v int64) CopyRow { return binary.BigEndian.AppendUint64(b.length(8), uint64(v)) }

// microsTo2000 lie between the epochs of Unix and of PostgreSQL.
const microsTo2000 = 946_684_800_000_000

// Time appends a timestamptz, in whole microseconds as PostgreSQL keeps it.
func (b CopyRow) Time(v time.Time) CopyRow { return b.Int64(v.UnixMicro() - microsTo2000) }

// TimeOrNull appends a timestamptz, or NULL for none.
func (b CopyRow) TimeOrNull(v *time.Time) CopyRow {
	if v == nil {
		return b.length(-1)
	}
	return b.Time(*v)
}

func (b CopyRow) length(n int) CopyRow { return binary.BigEndian.AppendUint32(b, uint32(int32(n))) }
