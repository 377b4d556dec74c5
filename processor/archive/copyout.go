package archive

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// copyRows reads a query by COPY in binary: no escapes to undo, and no row kept
// that was given to the callback. fields hold until it returns; a null is nil.
func copyRows(ctx context.Context, tx pgx.Tx, query string, row func(fields [][]byte) error) error {
	p := &copyParser{row: row}
	if _, err := tx.Conn().PgConn().CopyTo(ctx, p, `COPY (`+query+`) TO STDOUT (FORMAT binary)`); err != nil {
		return errors.Join(p.failed, err)
	}
	if !p.ended {
		return errors.New("the copy ended before its end")
	}
	return nil
}

// copySignature begins a binary copy; flags and the length of an extension follow.
var copySignature = []byte("PGCOPY\n\xff\r\n\x00")

// copyParser takes a binary copy apart. PostgreSQL sends a row a message, so that
// the rest is mostly empty; that is not promised, and so not relied on.
type copyParser struct {
	row    func(fields [][]byte) error
	rest   []byte // of a row that is not complete
	begun  bool
	ended  bool
	failed error // the callback's own
	fields [][]byte
}

var errCopy = errors.New("this is no binary copy")

func (p *copyParser) Write(b []byte) (int, error) {
	n := len(b)
	if len(p.rest) > 0 {
		b = append(p.rest, b...)
	}
	for {
		used, err := p.next(b)
		if err != nil {
			p.failed = err
			return 0, err
		}
		if used == 0 {
			break
		}
		b = b[used:]
	}
	p.rest = append(p.rest[:0], b...)
	return n, nil
}

// next takes the header, a row or the end from b and says how long it was; 0
// where it is not all there.
func (p *copyParser) next(b []byte) (int, error) {
	switch {
	case len(b) == 0:
		return 0, nil
	case p.ended:
		return 0, fmt.Errorf("%w: bytes after its end", errCopy)
	case !p.begun:
		return p.header(b)
	case len(b) < 2:
		return 0, nil
	}
	columns := int16(binary.BigEndian.Uint16(b))
	if columns == -1 {
		p.ended = true
		return 2, nil
	}
	at := 2
	p.fields = p.fields[:0]
	for range columns {
		if len(b) < at+4 {
			return 0, nil
		}
		length := int32(binary.BigEndian.Uint32(b[at:]))
		at += 4
		if length == -1 {
			p.fields = append(p.fields, nil)
			continue
		}
		if length < 0 {
			return 0, errCopy
		}
		end := at + int(length)
		if len(b) < end {
			return 0, nil
		}
		p.fields = append(p.fields, b[at:end:end])
		at = end
	}
	return at, p.row(p.fields)
}

func (p *copyParser) header(b []byte) (int, error) {
	known := min(len(b), len(copySignature))
	if !bytes.Equal(b[:known], copySignature[:known]) {
		return 0, errCopy
	}
	const fixed = 11 + 4 + 4
	if len(b) < fixed {
		return 0, nil
	}
	end := fixed + int(binary.BigEndian.Uint32(b[15:]))
	if len(b) < end {
		return 0, nil
	}
	p.begun = true
	return end, nil
}
