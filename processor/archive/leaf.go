package archive

import (
	"context"
	"errors"
	"fmt"
	"path"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/softcrum/carril/internal/storage"
)

// reportRows is how many rows lie between two words on the progress.
const reportRows = 20_000

// Export writes the rows of a leaf, each tenant's into objects of its own, and
// the manifest last; it gives the manifest's name and the digest of the rows. A
// run that has its manifest already gets that one. The table must be quiet:
// detached, with nobody who writes to it but erasure, which changes its digest.
func (a *Archive) Export(ctx context.Context, l Leaf) (manifest string, d Digest, err error) {
	name := path.Join(l.dir(), manifestName)
	m, err := ReadManifest(ctx, a.deps.Storage, name)
	if errors.Is(err, storage.ErrNotFound) {
		if m, err = a.exportLeaf(ctx, l); err == nil {
			a.deps.At(PointObjects)
			m, err = createManifest(ctx, a.deps.Storage, name, m)
		}
	}
	if err != nil {
		return "", Digest{}, fmt.Errorf("export %s: %w", l.Table, err)
	}
	a.deps.At(PointManifest)
	if err := a.sweep(ctx, l.dir(), m.named(name)); err != nil {
		return "", Digest{}, err
	}
	d, err = parseDigest(m.Rows, m.Digest)
	return name, d, err
}

func (a *Archive) exportLeaf(ctx context.Context, l Leaf) (*Manifest, error) {
	m := &Manifest{Format: manifestFormat, Kind: "leaf", Parent: l.Parent, Table: l.Table, LeafOID: l.OID, Run: &l.Run, RetentionMonths: l.RetentionMonths,
		From: l.From.UTC(), To: l.To.UTC(), DataFormat: FormatNDJSON, Compression: a.cfg.Compression, CreatedAt: time.Now().UTC(), Objects: []Object{}}
	w := &leafWriter{a: a, ctx: ctx, dir: l.dir(), attempt: attempt(), m: m}
	defer w.abort()
	err := pgx.BeginTxFunc(ctx, a.deps.Pool, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
		name, err := resolve(ctx, tx, l.Table, l.OID)
		if err != nil {
			return err
		}
		if _, err = tx.Exec(ctx, settings); err != nil {
			return err
		}
		var column string
		err = tx.QueryRow(ctx, `SELECT quote_ident(core.partition_column($1)), greatest(reltuples, 0)::bigint FROM pg_class WHERE oid = to_regclass($2)::oid`,
			l.Parent, l.Table).Scan(&column, &w.total)
		if err != nil {
			return err
		}
		// Sorted as rows, before their text is made: the text is longer.
		return copyRows(ctx, tx, `SELECT t.tenant_id, to_jsonb(t)::text FROM (SELECT * FROM `+name+` ORDER BY tenant_id, `+column+`) t`, w.row)
	})
	if err == nil {
		err = w.finish()
	}
	if err == nil {
		err = m.total()
	}
	return m, err
}

// leafWriter takes rows sorted by tenant and divides them into objects.
type leafWriter struct {
	a            *Archive
	ctx          context.Context //nolint:containedctx // the life of one export
	dir, attempt string
	m            *Manifest
	total        int64
	rows         int64

	out    *ndjson
	name   string
	tenant uuid.UUID
	part   int
}

func (w *leafWriter) row(fields [][]byte) error {
	tenant, err := uuid.FromBytes(fields[0])
	if err != nil {
		return fmt.Errorf("a row without a tenant: %w", err)
	}
	if w.out != nil && (tenant != w.tenant || w.out.content.bytes >= w.a.cfg.ObjectBytes) {
		if err := w.finish(); err != nil {
			return err
		}
	}
	if w.out == nil {
		if err := w.begin(tenant); err != nil {
			return err
		}
	}
	w.rows++
	if w.rows%reportRows == 0 {
		w.a.deps.Report(Progress{Step: "export", Rows: w.rows, Fraction: fraction(w.rows, w.total)})
	}
	return w.out.line(fields[1])
}

func (w *leafWriter) begin(tenant uuid.UUID) (err error) {
	if tenant != w.tenant {
		w.part = 0
	}
	w.tenant, w.part = tenant, w.part+1
	w.name = fmt.Sprintf("tenant-%s/%s-%04d%s", tenant, w.attempt, w.part, w.m.Compression.extension())
	w.out, err = createNDJSON(w.ctx, w.a.deps.Storage, path.Join(w.dir, w.name), w.m.Compression)
	return err
}

// finish ends the object at hand, if there is one.
func (w *leafWriter) finish() error {
	if w.out == nil {
		return nil
	}
	o, err := w.out.commit()
	if err != nil {
		return err
	}
	w.out = nil
	tenant := w.tenant
	o.Name, o.TenantID = w.name, &tenant
	w.m.Objects = append(w.m.Objects, o)
	w.a.deps.At(PointObject)
	return nil
}

func (w *leafWriter) abort() {
	if w.out != nil {
		w.out.abort()
	}
}

// Discard removes an export, the manifest first: for a leaf whose rows changed
// after it was exported. A crash in the middle is finished by a second call, or
// by the next export of the same run.
func (a *Archive) Discard(ctx context.Context, manifest string) error {
	if err := a.deps.Storage.Delete(ctx, manifest); err != nil && !errors.Is(err, storage.ErrNotFound) {
		return fmt.Errorf("discard an export: %w", err)
	}
	return a.sweep(ctx, path.Dir(manifest), nil)
}
