package archive

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"

	"github.com/softcrum/carril/internal/storage"
)

func (c Compression) known() bool { return c == Zstd || c == Gzip }

// extension of an object's name; DuckDB and people go by it.
func (c Compression) extension() string {
	if c == Gzip {
		return ".ndjson.gz"
	}
	return ".ndjson.zst"
}

// encoder compresses with bounded memory, on the caller's goroutine.
func (c Compression) encoder(w io.Writer) (io.WriteCloser, error) {
	if c == Gzip {
		return gzip.NewWriterLevel(w, gzip.DefaultCompression)
	}
	return zstd.NewWriter(w, zstd.WithEncoderConcurrency(1), zstd.WithWindowSize(1<<20))
}

// decoder reads it back. It says when the bytes are not whole.
func (c Compression) decoder(r io.Reader) (io.ReadCloser, error) {
	if c == Gzip {
		return gzip.NewReader(r)
	}
	d, err := zstd.NewReader(r, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(256<<20))
	if err != nil {
		return nil, err
	}
	return d.IOReadCloser(), nil
}

// counted hashes and counts what goes through.
type counted struct {
	sum   hash.Hash
	bytes int64
}

func newCounted() *counted { return &counted{sum: sha256.New()} }

func (c *counted) Write(p []byte) (int, error) {
	c.bytes += int64(len(p))
	return c.sum.Write(p)
}

func (c *counted) hex() string { return hex.EncodeToString(c.sum.Sum(nil)) }

// ndjson writes lines into an object.
type ndjson struct {
	out     storage.Writer
	enc     io.WriteCloser
	lines   *bufio.Writer // before the compressor
	content *counted      // the lines
	stored  *counted      // the object
	digest  Digest
}

func createNDJSON(ctx context.Context, s storage.Store, name string, c Compression) (*ndjson, error) {
	out, err := s.Create(ctx, name)
	if err != nil {
		return nil, err
	}
	w := &ndjson{out: out, content: newCounted(), stored: newCounted()}
	if w.enc, err = c.encoder(io.MultiWriter(out, w.stored)); err != nil {
		out.Abort()
		return nil, err
	}
	w.lines = bufio.NewWriterSize(io.MultiWriter(w.enc, w.content), 64<<10)
	return w, nil
}

func (w *ndjson) line(line []byte) error {
	w.digest.line(line)
	_, _ = w.lines.Write(line) // its error stays, and comes again
	return w.lines.WriteByte('\n')
}

func (w *ndjson) commit() (Object, error) {
	defer w.abort()
	err := w.lines.Flush()
	if err == nil {
		err = w.enc.Close()
	}
	if err != nil {
		return Object{}, err
	}
	info, err := w.out.Commit()
	if err != nil {
		return Object{}, err
	}
	if info.Size != w.stored.bytes {
		return Object{}, fmt.Errorf("%w: %d bytes are there, %d were written", ErrCorrupt, info.Size, w.stored.bytes)
	}
	return Object{Rows: w.digest.Rows, Digest: w.digest.String(), Bytes: w.stored.bytes, SHA256: w.stored.hex(),
		ContentBytes: w.content.bytes, ContentSHA256: w.content.hex(), StorageDigest: info.Digest}, nil
}

func (w *ndjson) abort() { w.out.Abort() }

// readLines gives each line of compressed NDJSON, without its end, as long as
// the callback runs. The last must end as the others do.
func readLines(r io.Reader, c Compression, line func([]byte) error) error {
	d, err := c.decoder(r)
	if err != nil {
		return err
	}
	defer d.Close()
	lines := bufio.NewReaderSize(d, 256<<10)
	var long []byte // a line that is longer than the buffer
	for {
		part, err := lines.ReadSlice('\n')
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
			long = append(long, part...)
			continue
		case errors.Is(err, io.EOF) && len(part)+len(long) == 0:
			return nil
		case errors.Is(err, io.EOF):
			return fmt.Errorf("%w: its last line has no end", ErrCorrupt)
		case err != nil:
			return err
		}
		whole := part[:len(part)-1]
		if len(long) > 0 {
			long = append(long, whole...)
			whole, long = long, long[:0]
		}
		if err := line(whole); err != nil {
			return err
		}
	}
}
