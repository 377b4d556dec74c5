package archive

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"path"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// Keep says what becomes of a row of a tenant: it gives the row as it shall be,
// or false where it goes. It is called twice for rows of an object that changes
// and must answer alike. row holds until it returns; what it gives is one JSON
// value.
type Keep func(tenant uuid.UUID, row []byte) ([]byte, bool, error)

// Rewrite changes the rows of an export, of one tenant or of all (uuid.Nil), for
// the erasure of a person: an object
// that has a row to change is written anew under another name and read back, the
// manifest is replaced by one that names it, and the old object is deleted. When
// it returns nil no object of the export holds what keep took out. Killed in the
// middle it is called again with the same keep, and finishes: what nothing names
// is deleted first and last. One at a time works on an export, whatever the
// number of processes.
func (a *Archive) Rewrite(ctx context.Context, manifest string, of uuid.UUID, keep Keep) error {
	err := pgx.BeginFunc(ctx, a.deps.Pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `SELECT pg_advisory_xact_lock(hashtextextended('carril.archive:' || $1, 0))`, manifest); err != nil {
			return fmt.Errorf("wait for another's rewrite: %w", err)
		}
		return a.rewrite(ctx, manifest, of, keep)
	})
	if err != nil {
		return fmt.Errorf("rewrite %s: %w", manifest, err)
	}
	return nil
}

func (a *Archive) rewrite(ctx context.Context, manifest string, of uuid.UUID, keep Keep) error {
	m, err := ReadManifest(ctx, a.deps.Storage, manifest)
	if err != nil {
		return err
	}
	if m.Kind != "leaf" || m.DataFormat != FormatNDJSON {
		return fmt.Errorf("%w: it is no export of a leaf", ErrMismatch)
	}
	dir := path.Dir(manifest)
	if err := a.sweep(ctx, dir, m.named(manifest)); err != nil {
		return err
	}
	var done int64
	for i := 0; i < len(m.Objects); i++ {
		o := m.Objects[i]
		changes := false
		if of == uuid.Nil || of == *o.TenantID {
			if changes, err = a.changes(ctx, m, dir, o, keep); err != nil {
				return err
			}
		}
		if changes {
			before := len(m.Objects)
			if m, err = a.replace(ctx, m, manifest, i, keep); err != nil {
				return err
			}
			i += len(m.Objects) - before // one object can become several, or none
		}
		done += o.Rows
		a.deps.Report(Progress{Step: "rewrite", Rows: done, Fraction: fraction(done, m.Rows)})
	}
	return nil
}

// changes says whether keep would change a row of an object.
func (a *Archive) changes(ctx context.Context, m *Manifest, dir string, o Object, keep Keep) (changes bool, err error) {
	err = a.rows(ctx, m, dir, o, func(row []byte) error {
		if changes {
			return nil
		}
		kept, ok, err := keep(*o.TenantID, row)
		changes = err == nil && (!ok || !bytes.Equal(kept, row))
		return err
	})
	return changes, err
}

// replace rewrites object i, and brings the manifest to it: an erasure that is
// killed after a thousand objects begins at the next. It gives the new manifest.
func (a *Archive) replace(ctx context.Context, m *Manifest, manifest string, i int, keep Keep) (*Manifest, error) {
	dir, old := path.Dir(manifest), m.Objects[i]
	w := &leafWriter{a: a, ctx: ctx, dir: dir, attempt: attempt(), m: &Manifest{Compression: m.Compression}}
	defer w.abort()
	err := a.rows(ctx, m, dir, old, func(row []byte) error {
		kept, ok, err := keep(*old.TenantID, row)
		if err != nil || !ok {
			return err
		}
		if !json.Valid(kept) || bytes.ContainsAny(kept, "\n\r") {
			return fmt.Errorf("%w: a rewritten row is not one line of JSON", ErrMismatch)
		}
		return w.row([][]byte{old.TenantID[:], kept})
	})
	if err == nil {
		err = w.finish()
	}
	if err != nil {
		return nil, err
	}
	a.deps.At(PointRewrite)
	next := *m
	next.Objects = append(append(append([]Object{}, m.Objects[:i]...), w.m.Objects...), m.Objects[i+1:]...)
	for _, o := range w.m.Objects {
		if _, err := a.verify(ctx, m, path.Join(dir, o.Name), o); err != nil {
			return nil, err
		}
	}
	next.Rewrites, next.RewrittenAt = m.Rewrites+1, new(time.Now().UTC())
	if err := next.total(); err != nil {
		return nil, err
	}
	b, err := next.encode()
	if err != nil {
		return nil, err
	}
	if err := a.deps.Storage.Replace(ctx, manifest, b); err != nil {
		return nil, err
	}
	a.deps.At(PointReplaced)
	return &next, a.deps.Storage.Delete(ctx, path.Join(dir, old.Name))
}

// rows reads the lines of an object, and sees that they are all of it.
func (a *Archive) rows(ctx context.Context, m *Manifest, dir string, o Object, row func([]byte) error) error {
	if o.TenantID == nil {
		return fmt.Errorf("%w: an object of a leaf without its tenant", ErrCorrupt)
	}
	r, err := a.deps.Storage.Open(ctx, path.Join(dir, o.Name))
	if err != nil {
		return err
	}
	defer r.Close()
	var d Digest
	err = readLines(r, m.Compression, func(line []byte) error {
		d.line(line)
		return row(line)
	})
	if err == nil && (d.Rows != o.Rows || d.String() != o.Digest) {
		err = fmt.Errorf("%w: %s has other lines", ErrCorrupt, o.Name)
	}
	return err
}
