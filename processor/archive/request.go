package archive

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/softcrum/carril/internal/db/processordb"
	"github.com/softcrum/carril/internal/ids"
)

// The formats of a tenant's export.
const (
	FormatNDJSON  = "ndjson"
	FormatParquet = "parquet"
)

// keep is how long the objects of an export stay in the platform's own storage:
// they hold personal data, and no erasure rewrites them.
const keep = 7 * 24 * time.Hour

// ErrBusy says that another process works on the same export.
var ErrBusy = errors.New("another process works on this export")

// Request is an export of a tenant's events that an operator asks for. The same
// request goes on where it stopped.
type Request struct {
	TenantID    uuid.UUID
	From, To    time.Time // To excluded
	Format      string
	Compression Compression // of NDJSON, and inside of Parquet
	// Elsewhere says that the storage is not the platform's own, where objects are
	// deleted after keep.
	Elsewhere bool
}

// key is what stands for the same request to the same place.
func (r Request) key(storage string) ([]byte, string) {
	sum := sha256.Sum256(fmt.Appendf(nil, "%s\x00%d\x00%d\x00%s\x00%s\x00%s", r.TenantID, r.From.UnixMicro(), r.To.UnixMicro(), r.Format, r.Compression, storage))
	return sum[:], hex.EncodeToString(sum[:])
}

func (r Request) validate() error {
	switch {
	case !r.From.Before(r.To):
		return errors.New("an export's range begins before its end")
	case r.Format != FormatNDJSON && r.Format != FormatParquet:
		return fmt.Errorf("an export is %s or %s", FormatNDJSON, FormatParquet)
	case !r.Compression.known():
		return fmt.Errorf("an export is compressed with %s or %s", Zstd, Gzip)
	}
	return nil
}

// Finished is what an export that is done has to show.
type Finished struct {
	ExportID    uuid.UUID `json:"export_id"`
	Storage     string    `json:"storage"`
	Manifest    string    `json:"manifest"` // its name there
	Rows        int64     `json:"rows"`
	Bytes       int64     `json:"bytes"`
	Objects     int       `json:"objects"`
	AlreadyDone bool      `json:"already_done"` // by an earlier call
}

// Run makes an export, or goes on with the one that the same request began, until
// it is done. fresh begins anew where the same request was done before. ErrBusy
// while another process does it.
func (a *Archive) Run(ctx context.Context, r Request, fresh bool) (*Finished, error) {
	if err := r.validate(); err != nil {
		return nil, err
	}
	hash, key := r.key(a.deps.Storage.String())
	var done *Finished
	err := pgx.BeginFunc(ctx, a.deps.Pool, func(lock pgx.Tx) error {
		// A moment of patience: a process that was killed holds its lock until the
		// server has noticed.
		if _, err := lock.Exec(ctx, `SET LOCAL lock_timeout = '10s'`); err != nil {
			return err
		}
		if _, err := lock.Exec(ctx, `SELECT pg_advisory_xact_lock(hashtextextended('carril.export:' || $1, 0))`, key); err != nil {
			return busy(err)
		}
		id, err := a.open(ctx, r, hash, key, fresh)
		if err != nil {
			return err
		}
		for done == nil {
			if done, err = a.Step(ctx, id); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("export events of tenant %s: %w", r.TenantID, err)
	}
	return done, nil
}

func busy(err error) error {
	var pe *pgconn.PgError
	if errors.As(err, &pe) && pe.Code == "55P03" { // lock_not_available
		return ErrBusy
	}
	return err
}

// open finds or makes the export of a request.
func (a *Archive) open(ctx context.Context, r Request, hash []byte, key string, fresh bool) (uuid.UUID, error) {
	q := processordb.New(a.deps.Pool)
	find := processordb.FindExportParams{TenantID: r.TenantID, Origin: "operator", RequestKey: key}
	old, err := q.FindExport(ctx, find)
	if err == nil && (fresh && old.State == "done" || old.State == "expired" || old.State == "failed") {
		if err := q.ForgetExportKey(ctx, processordb.ForgetExportKeyParams(find)); err != nil {
			return uuid.Nil, err
		}
		err = pgx.ErrNoRows
	}
	if !errors.Is(err, pgx.ErrNoRows) {
		return old.ExportID, err
	}
	made := processordb.MakeExportParams{ExportID: ids.New(), TenantID: r.TenantID, Origin: "operator", RequestKey: key, RequestHash: hash,
		FromTime: r.From, ToTime: r.To, Format: r.Format, Compression: string(r.Compression)}
	if r.Elsewhere {
		made.Storage = a.deps.Storage.String()
	}
	return made.ExportID, q.MakeExport(ctx, made)
}

// request is an export as the database knows it.
type request struct {
	processordb.ReadExportRow
	parts []processordb.ExportPartsRow
}

func exportDir(tenant, export uuid.UUID) string {
	return fmt.Sprintf("exports/tenant-%s/%s", tenant, export)
}

func (r *request) dir() string { return exportDir(r.TenantID, r.ExportID) }

// Step does the next part of an export, or, when all are done, its manifest;
// then it gives what the export has to show. Each part is read back before it
// counts. Killed in the middle it is called again.
func (a *Archive) Step(ctx context.Context, id uuid.UUID) (*Finished, error) {
	r, err := a.read(ctx, id)
	if err != nil {
		return nil, err
	}
	if r.State == "done" && r.Manifest != nil {
		return a.finished(ctx, r, true)
	}
	for i, p := range r.parts {
		if p.FinishedAt == nil {
			return nil, a.part(ctx, r, i)
		}
	}
	return a.finish(ctx, r)
}

func (a *Archive) read(ctx context.Context, id uuid.UUID) (*request, error) {
	q := processordb.New(a.deps.Pool)
	e, err := q.ReadExport(ctx, id)
	if err != nil {
		return nil, fmt.Errorf("read an export: %w", err)
	}
	r := &request{ReadExportRow: e}
	if r.State == "queued" {
		if err := q.PlanExport(ctx, id); err != nil {
			return nil, fmt.Errorf("plan an export: %w", err)
		}
		if err := q.AdvanceExport(ctx, id); err != nil {
			return nil, fmt.Errorf("start an export: %w", err)
		}
	}
	if r.parts, err = q.ExportParts(ctx, id); err != nil {
		return nil, fmt.Errorf("read an export's parts: %w", err)
	}
	return r, nil
}

// part makes part i, reads it back and records it.
func (a *Archive) part(ctx context.Context, r *request, i int) error {
	p := r.parts[i]
	o, err := a.writePart(ctx, r, i)
	if err == nil && o.Rows > 0 {
		_, err = a.verify(ctx, r.manifest(), path.Join(r.dir(), o.Name), o)
	}
	if err != nil {
		return fmt.Errorf("export %s of %s: %w", p.FromTime.UTC().Format("2006-01"), r.ExportID, err)
	}
	var made []byte
	if o.Rows > 0 {
		if made, err = json.Marshal(o); err != nil {
			return err
		}
	}
	q := processordb.New(a.deps.Pool)
	_, err = q.FinishExportPart(ctx, processordb.FinishExportPartParams{Made: string(made), Rows: o.Rows, Bytes: o.Bytes, ExportID: r.ExportID, Part: p.Part})
	if err == nil {
		err = q.AdvanceExport(ctx, r.ExportID)
	}
	if err != nil {
		return fmt.Errorf("record a part of an export: %w", err)
	}
	a.deps.At(PointRecorded)
	return nil
}

// eventWriter is an object of either format.
type eventWriter interface {
	row(fields [][]byte) error // what columns asked for
	commit() (Object, error)
	abort()
}

// line makes an object of lines one of rows.
type line struct{ *ndjson }

func (l line) row(fields [][]byte) error { return l.ndjson.line(fields[0]) }

// writePart writes an object; a month without an event has none.
func (a *Archive) writePart(ctx context.Context, r *request, i int) (Object, error) {
	p := r.parts[i]
	name := fmt.Sprintf("events-%s-%s", p.FromTime.UTC().Format("2006-01"), attempt())
	create := func() (eventWriter, error) {
		w, err := createNDJSON(ctx, a.deps.Storage, path.Join(r.dir(), name), Compression(r.Compression))
		if err != nil {
			return nil, err
		}
		return line{w}, nil
	}
	columns := `to_jsonb(u)::text`
	if r.Format == FormatParquet {
		name += ".parquet"
		columns = parquetColumns
		create = func() (eventWriter, error) {
			w, err := createParquet(ctx, a.deps.Storage, path.Join(r.dir(), name), Compression(r.Compression))
			if err != nil {
				return nil, err
			}
			return w, nil
		}
	} else {
		name += Compression(r.Compression).extension()
	}
	var w eventWriter
	progress := a.partProgress(ctx, r, i)
	err := a.readEvents(ctx, r.TenantID, p.FromTime, p.ToTime, columns, func(fields [][]byte) (err error) {
		if w == nil {
			if w, err = create(); err != nil {
				return err
			}
		}
		if err := progress(fields[0]); err != nil {
			return err
		}
		return w.row(fields[1:])
	})
	if w == nil {
		return Object{}, err
	}
	defer w.abort()
	if err != nil {
		return Object{}, err
	}
	o, err := w.commit()
	o.Name, o.From, o.To = name, new(p.FromTime.UTC()), new(p.ToTime.UTC())
	a.deps.At(PointObject)
	return o, err
}

// partProgress says how far an export is by the time of the row at hand: now and
// then to who watches, and each second to the database.
func (a *Archive) partProgress(ctx context.Context, r *request, i int) func(occurred []byte) error {
	rows, said := int64(0), time.Now()
	for _, p := range r.parts[:i] {
		var o Object
		if json.Unmarshal([]byte(p.Made), &o) == nil {
			rows += o.Rows
		}
	}
	p := r.parts[i]
	length := p.ToTime.Sub(p.FromTime).Seconds()
	return func(occurred []byte) error {
		if rows++; rows%1000 != 0 {
			return nil
		}
		at, err := micros(occurred)
		if err != nil {
			return err
		}
		f := (float64(i) + min(max(time.UnixMicro(at).Sub(p.FromTime).Seconds()/length, 0), 1)) / float64(len(r.parts))
		a.deps.Report(Progress{Step: "export", Rows: rows, Fraction: f})
		if time.Since(said) < time.Second {
			return nil
		}
		said = time.Now()
		return processordb.New(a.deps.Pool).ReportExport(ctx, processordb.ReportExportParams{Progress: float32(f), Rows: rows, ExportID: r.ExportID})
	}
}

func (r *request) manifest() *Manifest {
	return &Manifest{Format: manifestFormat, Kind: "request", ExportID: &r.ExportID, TenantID: &r.TenantID, From: r.FromTime.UTC(), To: r.ToTime.UTC(),
		DataFormat: r.Format, Compression: Compression(r.Compression), CreatedAt: time.Now().UTC(), Objects: []Object{}}
}

// finish writes the manifest, removes what killed attempts left and calls the
// export done.
func (a *Archive) finish(ctx context.Context, r *request) (*Finished, error) {
	m := r.manifest()
	for _, p := range r.parts {
		if p.Made == "" {
			continue
		}
		var o Object
		if err := json.Unmarshal([]byte(p.Made), &o); err != nil {
			return nil, fmt.Errorf("read a part of an export: %w", err)
		}
		m.Objects = append(m.Objects, o)
	}
	if err := m.total(); err != nil {
		return nil, err
	}
	a.deps.At(PointObjects)
	name := path.Join(r.dir(), manifestName)
	m, err := createManifest(ctx, a.deps.Storage, name, m)
	if err != nil {
		return nil, err
	}
	a.deps.At(PointManifest)
	if err := a.sweep(ctx, r.dir(), m.named(name)); err != nil {
		return nil, err
	}
	err = processordb.New(a.deps.Pool).FinishExport(ctx, processordb.FinishExportParams{Manifest: &name, Rows: m.Rows, Bytes: m.Bytes, Keep: keep, ExportID: r.ExportID})
	if err != nil {
		return nil, fmt.Errorf("finish an export: %w", err)
	}
	r.Manifest = &name
	return a.finished(ctx, r, false)
}

func (a *Archive) finished(ctx context.Context, r *request, before bool) (*Finished, error) {
	m, err := ReadManifest(ctx, a.deps.Storage, *r.Manifest)
	if err != nil {
		return nil, err
	}
	return &Finished{ExportID: r.ExportID, Storage: a.deps.Storage.String(), Manifest: *r.Manifest, Rows: m.Rows, Bytes: m.Bytes, Objects: len(m.Objects), AlreadyDone: before}, nil
}
