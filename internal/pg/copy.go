package pg

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// Copy streams n rows to a statement `COPY … FROM STDIN BINARY` over a connection
// or a transaction's. row appends the i-th one to b: its number of columns by
// Columns, then each column in the statement's order. It runs beside the caller,
// while PostgreSQL takes the rows before, and is never called again once Copy has
// returned.
//
// pgx's own CopyFrom asks for the columns' types each time and boxes every
// value; here nothing is allocated for a row.
func Copy(ctx context.Context, on Copier, sql string, n int, row func(b CopyRow, i int) CopyRow) error {
	tag, err := stream(ctx, on, sql, &copyStream{rows: n, row: row})
	if err == nil && int(tag.RowsAffected()) != n {
		err = fmt.Errorf("%d of %d rows were copied", tag.RowsAffected(), n)
	}
	return err
}

// Copier has a connection; pgx.Tx and pools' connections do.
type Copier interface{ Conn() *pgx.Conn }

// Made begins the rows of a CopyMade or CopyBlock, with room for so many bytes;
// End ends them.
func Made(room int) CopyRow {
	return append(make(CopyRow, 0, room+len(copySignature)+2), copySignature...)
}

// End ends rows that Made began.
func (b CopyRow) End() CopyRow { return append(b, copyTrailer...) }

// CopyMade is Copy of rows that were made before.
func CopyMade(ctx context.Context, on Copier, sql string, made CopyRow) error {
	_, err := stream(ctx, on, sql, bytes.NewReader(made))
	return err
}

// CopyBlock is CopyMade within a savepoint, in the same round trip. Where it
// fails, the transaction goes on after UndoBlock.
func CopyBlock(ctx context.Context, on Copier, sql string, made CopyRow) error {
	return CopyMade(ctx, on, "SAVEPOINT block; "+sql+"; RELEASE SAVEPOINT block", made)
}

// UndoBlock goes back to where a CopyBlock failed.
func UndoBlock(ctx context.Context, tx pgx.Tx) error {
	_, err := tx.Exec(ctx, "ROLLBACK TO SAVEPOINT block; RELEASE SAVEPOINT block")
	return err
}

func stream(ctx context.Context, on Copier, sql string, rows io.Reader) (tag pgconn.CommandTag, err error) {
	if t, ok := on.(*Tx); ok {
		if err := t.Flush(ctx); err != nil {
			return tag, err
		}
	}
	conn := on.Conn()
	if t := conn.Config().Tracer; t != nil {
		ctx = t.TraceQueryStart(ctx, conn, pgx.TraceQueryStartData{SQL: sql})
		defer func() { t.TraceQueryEnd(ctx, conn, pgx.TraceQueryEndData{Err: err}) }()
	}
	return conn.PgConn().CopyFrom(ctx, rows, sql)
}

// copySignature opens a binary COPY: magic, no flags, no header extension.
const copySignature = "PGCOPY\n\xff\r\n\x00\x00\x00\x00\x00\x00\x00\x00\x00"

// copyTrailer ends one.
const copyTrailer = "\xff\xff"

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
		s.buf, s.closed = append(s.buf, copyTrailer...), true
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
