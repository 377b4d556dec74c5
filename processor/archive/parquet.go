package archive

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"

	"github.com/google/uuid"
	"github.com/parquet-go/parquet-go"

	"github.com/softcrum/carril/internal/storage"
)

// parquetEvent is an event's row of Parquet; its order is that of eventColumns.
// Properties are JSON text: their numbers keep their digits, and no two tenants
// have the same ones.
type parquetEvent struct {
	EventID         uuid.UUID `parquet:"event_id,uuid"`
	Kind            string    `parquet:"kind,dict"`
	EventName       string    `parquet:"event_name,dict"`
	ContactID       uuid.UUID `parquet:"contact_id,uuid"`
	OccurredAt      int64     `parquet:"occurred_at,timestamp(microsecond)"`
	OccurredOffset  int32     `parquet:"occurred_offset"` // seconds east
	OccurredClaimed *int64    `parquet:"occurred_claimed,optional,timestamp(microsecond)"`
	ReceivedAt      int64     `parquet:"received_at,timestamp(microsecond)"`
	IdempotencyKey  string    `parquet:"idempotency_key"`
	CorrelationID   string    `parquet:"correlation_id"`
	Historical      bool      `parquet:"historical"`
	Properties      string    `parquet:"properties"`
}

// parquetColumns makes readEvents give what parse reads, behind occurred_at.
const parquetColumns = `u.event_id, u.kind, u.event_name, u.contact_id, u.occurred_at, u.occurred_offset, u.occurred_claimed, u.received_at,
    u.idempotency_key, u.correlation_id, u.historical, u.properties::text`

func (e *parquetEvent) parse(f [][]byte) (err error) {
	if len(f) != 12 || len(f[5]) != 4 || len(f[10]) != 1 {
		return errColumn
	}
	if e.EventID, err = uuid.FromBytes(f[0]); err != nil {
		return err
	}
	if e.ContactID, err = uuid.FromBytes(f[3]); err != nil {
		return err
	}
	if e.OccurredAt, err = micros(f[4]); err != nil {
		return err
	}
	if e.ReceivedAt, err = micros(f[7]); err != nil {
		return err
	}
	e.OccurredClaimed = nil
	if f[6] != nil {
		claimed, err := micros(f[6])
		if err != nil {
			return err
		}
		e.OccurredClaimed = &claimed
	}
	e.Kind, e.EventName, e.IdempotencyKey, e.CorrelationID = string(f[1]), string(f[2]), string(f[8]), string(f[9])
	e.OccurredOffset, e.Historical, e.Properties = int32(binary.BigEndian.Uint32(f[5])), f[10][0] != 0, string(f[11])
	return nil
}

// What a row group holds at most: it is what is in memory.
const groupRows, groupBytes = 100_000, 32 << 20

// parquetFile writes events into an object.
type parquetFile struct {
	out    storage.Writer
	stored *counted
	w      *parquet.GenericWriter[parquetEvent]
	batch  []parquetEvent
	rows   int64
	group  int // bytes of text in the row group
}

func createParquet(ctx context.Context, s storage.Store, name string, c Compression) (*parquetFile, error) {
	out, err := s.Create(ctx, name)
	if err != nil {
		return nil, err
	}
	f := &parquetFile{out: out, stored: newCounted()}
	codec := parquet.Compression(&parquet.Zstd)
	if c == Gzip {
		codec = parquet.Compression(&parquet.Gzip)
	}
	f.w = parquet.NewGenericWriter[parquetEvent](io.MultiWriter(out, f.stored), codec, parquet.MaxRowsPerRowGroup(groupRows), parquet.CreatedBy("carril", "", ""))
	return f, nil
}

func (f *parquetFile) row(fields [][]byte) error {
	var e parquetEvent
	if err := e.parse(fields); err != nil {
		return err
	}
	f.batch = append(f.batch, e)
	f.rows++
	f.group += len(e.Properties) + len(e.IdempotencyKey) + len(e.CorrelationID)
	if len(f.batch) < 256 && f.group < groupBytes {
		return nil
	}
	return f.flush(f.group >= groupBytes)
}

func (f *parquetFile) flush(group bool) error {
	_, err := f.w.Write(f.batch)
	clear(f.batch)
	f.batch = f.batch[:0]
	if err == nil && group {
		f.group = 0
		err = f.w.Flush()
	}
	return err
}

func (f *parquetFile) commit() (Object, error) {
	defer f.abort()
	if err := f.flush(false); err != nil {
		return Object{}, err
	}
	if err := f.w.Close(); err != nil {
		return Object{}, err
	}
	info, err := f.out.Commit()
	if err != nil {
		return Object{}, err
	}
	if info.Size != f.stored.bytes {
		return Object{}, fmt.Errorf("%w: %d bytes are there, %d were written", ErrCorrupt, info.Size, f.stored.bytes)
	}
	return Object{Rows: f.rows, Bytes: f.stored.bytes, SHA256: f.stored.hex(), StorageDigest: info.Digest}, nil
}

func (f *parquetFile) abort() { f.out.Abort() }

// parquetRows gives the number of rows that a stored file says it has.
func parquetRows(r io.ReadSeeker, size int64) (int64, error) {
	f, err := parquet.OpenFile(seekerAt{r}, size, parquet.SkipPageIndex(true), parquet.SkipBloomFilters(true))
	if err != nil {
		return 0, err
	}
	return f.NumRows(), nil
}

// seekerAt reads at places of what can only seek; one goroutine at a time.
type seekerAt struct{ r io.ReadSeeker }

func (s seekerAt) ReadAt(p []byte, off int64) (int, error) {
	if _, err := s.r.Seek(off, io.SeekStart); err != nil {
		return 0, err
	}
	return io.ReadFull(s.r, p)
}
