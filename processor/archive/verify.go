package archive

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path"

	"github.com/softcrum/carril/internal/storage"
)

// Verify reads the stored objects of an export back, every byte of them, and
// gives the digest of the rows that are in them: the manifest's word is checked
// and not taken. The error is ErrCorrupt where an object is not what it was: its
// bytes, its lines, their number, or the server's own digest of it.
func (a *Archive) Verify(ctx context.Context, manifest string) (Digest, error) {
	m, err := ReadManifest(ctx, a.deps.Storage, manifest)
	if err != nil {
		return Digest{}, err
	}
	var all Digest
	for _, o := range m.Objects {
		d, err := a.verify(ctx, m, path.Join(path.Dir(manifest), o.Name), o)
		if err != nil {
			return Digest{}, fmt.Errorf("verify %s: %w", manifest, err)
		}
		all.Add(d)
		a.deps.Report(Progress{Step: "verify", Rows: all.Rows, Fraction: fraction(all.Rows, m.Rows)})
	}
	if all.Rows != m.Rows || m.DataFormat == FormatNDJSON && all.String() != m.Digest {
		return Digest{}, fmt.Errorf("verify %s: %w: its objects do not add up to it", manifest, ErrCorrupt)
	}
	return all, nil
}

// verify reads one object as it is stored. Of Parquet the bytes are checked, and
// the number of rows that the file says it has.
func (a *Archive) verify(ctx context.Context, m *Manifest, name string, o Object) (Digest, error) {
	info, err := a.deps.Storage.Stat(ctx, name)
	if errors.Is(err, storage.ErrNotFound) {
		err = errors.Join(err, ErrCorrupt)
	}
	if err != nil {
		return Digest{}, err
	}
	if info.Size != o.Bytes || info.Digest != o.StorageDigest {
		return Digest{}, fmt.Errorf("%w: the storage says another size or digest of %s", ErrCorrupt, name)
	}
	r, err := a.deps.Storage.Open(ctx, name)
	if err != nil {
		return Digest{}, err
	}
	defer r.Close()
	stored, content := newCounted(), newCounted()
	tee := &failingReader{r: io.TeeReader(r, stored)}
	d := Digest{Rows: o.Rows}
	if m.DataFormat == FormatNDJSON {
		d = Digest{}
		err = readLines(tee, m.Compression, func(line []byte) error {
			d.line(line)
			_, _ = content.Write(line) // a hash takes everything
			_, _ = content.Write([]byte{'\n'})
			return nil
		})
	}
	if err == nil { // what the decompressor had no use for
		_, err = io.Copy(io.Discard, tee)
	}
	switch {
	case tee.err != nil: // the storage's trouble, not the object's
		return Digest{}, tee.err
	case err != nil:
		return Digest{}, fmt.Errorf("%w: %s: %w", ErrCorrupt, name, err)
	case stored.bytes != o.Bytes || stored.hex() != o.SHA256:
		return Digest{}, fmt.Errorf("%w: %s has other bytes", ErrCorrupt, name)
	case m.DataFormat == FormatNDJSON && (d.Rows != o.Rows || d.String() != o.Digest || content.hex() != o.ContentSHA256):
		return Digest{}, fmt.Errorf("%w: %s has other lines", ErrCorrupt, name)
	case m.DataFormat == FormatParquet:
		n, err := parquetRows(r, info.Size)
		if err == nil && n != o.Rows {
			err = fmt.Errorf("%w: %s has %d rows", ErrCorrupt, name, n)
		}
		return d, err
	}
	return d, nil
}

// failingReader remembers that reading itself failed, so that a connection that
// broke is not taken for a broken object.
type failingReader struct {
	r   io.Reader
	err error
}

func (f *failingReader) Read(p []byte) (int, error) {
	n, err := f.r.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		f.err = err
	}
	return n, err
}
