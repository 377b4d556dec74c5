package manage

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"path"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/go-chi/chi/v5"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/softcrum/carril/ingestor/intake"
	"github.com/softcrum/carril/internal/httpserver"
	"github.com/softcrum/carril/internal/ids"
	"github.com/softcrum/carril/internal/storage"
)

// Files is the storage that exports lie in.
type Files interface {
	Open(ctx context.Context, name string) (io.ReadSeekCloser, error)
	Link(ctx context.Context, name string, ttl time.Duration) (string, error)
}

// maxOpenExports are those of a tenant that are not done; the job works on one at
// a time. maxExportMonths is how long a range may be.
const maxOpenExports, maxExportMonths = 3, 120

// linkLife is how long a link to a file holds; another answer has another.
const linkLife = time.Hour

// Export is an export of a tenant's events.
type Export struct {
	ExportID    uuid.UUID    `json:"export_id"`
	State       string       `json:"state"` // queued, running, done, failed, expired
	From        time.Time    `json:"from"`
	To          time.Time    `json:"to"`
	Format      string       `json:"format"`
	Compression string       `json:"compression"`
	Progress    float32      `json:"progress"` // 0 to 1
	Rows        int64        `json:"rows"`
	Bytes       int64        `json:"bytes"`
	Error       *string      `json:"error,omitempty"` // of the last step, while it is tried again, or for good
	CreatedAt   time.Time    `json:"created_at"`
	FinishedAt  *time.Time   `json:"finished_at,omitempty"`
	ExpiresAt   *time.Time   `json:"expires_at,omitempty"` // when its files are deleted
	Files       []ExportFile `json:"files,omitempty"`      // once it is done

	manifest *string
	hash     []byte
}

// ExportFile is a file of an export. The manifest says how to check the others.
type ExportFile struct {
	Name   string `json:"name"`
	Rows   *int64 `json:"rows,omitempty"`
	Bytes  *int64 `json:"bytes,omitempty"`
	SHA256 string `json:"sha256,omitempty"`
	URL    string `json:"url"` // of this API, or one that holds for an hour without a key
}

const exportColumns = `x.export_id, x.state, x.from_time, x.to_time, x.format, x.compression, x.progress, x.rows, x.bytes, x.error, x.created_at,
    x.finished_at, x.expires_at, x.manifest, x.request_hash`

func (e *Export) scan(row pgx.Row) error {
	err := row.Scan(&e.ExportID, &e.State, &e.From, &e.To, &e.Format, &e.Compression, &e.Progress, &e.Rows, &e.Bytes, &e.Error, &e.CreatedAt,
		&e.FinishedAt, &e.ExpiresAt, &e.manifest, &e.hash)
	e.From, e.To, e.CreatedAt = e.From.UTC(), e.To.UTC(), e.CreatedAt.UTC()
	for _, t := range []**time.Time{&e.FinishedAt, &e.ExpiresAt} {
		if *t != nil {
			*t = new((*t).UTC())
		}
	}
	return err
}

func (m *Routes) mountExports(r chi.Router) {
	r.Post("/v1/core/exports", m.tenant(ScopeEventsRead, http.StatusAccepted, m.createExport))
	r.Get("/v1/core/exports", serve(m, exports()))
	r.Get("/v1/core/exports/{export_id}", m.tenant(ScopeEventsRead, http.StatusOK, m.export))
	r.Get("/v1/core/exports/{export_id}/files/{name}", m.exportFile)
}

// exports is the list GET /v1/core/exports?from&to, by the time of the request.
func exports() listing[*Export] {
	return listing[*Export]{name: "exports", scope: ScopeEventsRead, read: listExports,
		at: func(e *Export) position { return position{e.CreatedAt, e.ExportID} }}
}

func listExports(ctx context.Context, db Querier, tenant uuid.UUID, q *listQuery, behind position) ([]*Export, error) {
	rows, err := db.Query(ctx, `SELECT `+exportColumns+` FROM core.exports x
WHERE x.tenant_id = $1 AND x.origin = 'api' AND x.created_at >= $2 AND x.created_at < $3 AND (x.created_at, x.export_id) < ($4, $5)
ORDER BY x.created_at DESC, x.export_id DESC LIMIT $6`, tenant, q.from, q.before(behind), behind.at, behind.id, q.limit+1)
	if err != nil {
		return nil, fmt.Errorf("list exports: %w", err)
	}
	page, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (*Export, error) {
		var e Export
		return &e, e.scan(row)
	})
	if err != nil {
		return nil, fmt.Errorf("list exports: %w", err)
	}
	return page, nil
}

// exportDraft is what a tenant asks for.
type exportDraft struct {
	from, to            time.Time
	format, compression string
}

func (d exportDraft) hash() []byte {
	s := sha256.Sum256(fmt.Appendf(nil, "%d\x00%d\x00%s\x00%s", d.from.UnixMicro(), d.to.UnixMicro(), d.format, d.compression))
	return s[:]
}

// createExport answers POST /v1/core/exports. The same key with the same body
// gives the same export.
func (m *Routes) createExport(ctx context.Context, r *http.Request, tenant uuid.UUID) (any, *httpserver.Problem, error) {
	key, problem := exportKey(r)
	if problem != nil {
		return nil, problem, nil
	}
	d, problem := readExportDraft(r)
	if problem != nil {
		return nil, problem, nil
	}
	e, err := m.findExport(ctx, `x.tenant_id = $1 AND x.origin = 'api' AND x.request_key = $2`, tenant, key)
	if errors.Is(err, ErrNotFound) {
		var made bool
		if made, err = m.insertExport(ctx, tenant, key, d); err == nil {
			e, err = m.findExport(ctx, `x.tenant_id = $1 AND x.origin = 'api' AND x.request_key = $2`, tenant, key)
		}
		if !made && errors.Is(err, ErrNotFound) {
			return nil, &httpserver.Problem{Status: http.StatusTooManyRequests, Code: "too_many_exports", Title: "Other exports are not done yet",
				Detail: fmt.Sprintf("A tenant has at most %d that are queued or running.", maxOpenExports), RetryAfter: 60}, nil
		}
	}
	if err == nil && !slices.Equal(e.hash, d.hash()) {
		return nil, &httpserver.Problem{Status: http.StatusUnprocessableEntity, Code: "idempotency_conflict", Title: "The key stands for another export",
			Detail: "Its Idempotency-Key came with another body before."}, nil
	}
	if err != nil {
		return nil, nil, err
	}
	return e, nil, m.addFiles(ctx, e)
}

// insertExport queues an export unless the key is taken or too many are open.
func (m *Routes) insertExport(ctx context.Context, tenant uuid.UUID, key string, d exportDraft) (made bool, err error) {
	const sql = `WITH made AS (
    INSERT INTO core.exports (export_id, tenant_id, origin, request_key, request_hash, from_time, to_time, format, compression)
    SELECT $1, $2, 'api', $3, $4, $5, $6, $7, $8
    WHERE (SELECT count(*) FROM core.exports o WHERE o.tenant_id = $2 AND o.origin = 'api' AND o.state IN ('queued', 'running')) < $9
    ON CONFLICT (tenant_id, origin, request_key) DO NOTHING RETURNING 1)
SELECT EXISTS (SELECT FROM made)`
	err = m.deps.DB.QueryRow(ctx, sql, ids.New(), tenant, key, d.hash(), d.from, d.to, d.format, d.compression, maxOpenExports).Scan(&made)
	if err != nil {
		return false, fmt.Errorf("queue an export: %w", err)
	}
	return made, nil
}

func (m *Routes) findExport(ctx context.Context, where string, args ...any) (*Export, error) {
	var e Export
	err := e.scan(m.deps.DB.QueryRow(ctx, `SELECT `+exportColumns+` FROM core.exports x WHERE `+where, args...))
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, ErrNotFound
	}
	if err != nil {
		return nil, fmt.Errorf("read an export: %w", err)
	}
	return &e, nil
}

func (m *Routes) exportOf(ctx context.Context, r *http.Request, tenant uuid.UUID) (*Export, error) {
	id, ok := parseID(chi.URLParam(r, "export_id"))
	if !ok {
		return nil, ErrNotFound
	}
	return m.findExport(ctx, `x.export_id = $1 AND x.tenant_id = $2 AND x.origin = 'api'`, id, tenant)
}

// export answers GET /v1/core/exports/{export_id}.
func (m *Routes) export(ctx context.Context, r *http.Request, tenant uuid.UUID) (any, *httpserver.Problem, error) {
	e, err := m.exportOf(ctx, r, tenant)
	if err != nil {
		return nil, nil, err
	}
	return e, nil, m.addFiles(ctx, e)
}

// addFiles gives an export that is done its files, each with a link of the
// storage, or of this API where the storage serves nothing itself.
func (m *Routes) addFiles(ctx context.Context, e *Export) error {
	if e.State != "done" || e.manifest == nil {
		return nil
	}
	rows, err := m.deps.DB.Query(ctx, `SELECT p.made->>'name', p.rows, p.bytes, p.made->>'sha256' FROM core.export_parts p
WHERE p.export_id = $1 AND p.made IS NOT NULL ORDER BY p.part`, e.ExportID)
	if err != nil {
		return fmt.Errorf("list an export's files: %w", err)
	}
	files, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (f ExportFile, err error) {
		return f, row.Scan(&f.Name, &f.Rows, &f.Bytes, &f.SHA256)
	})
	if err != nil {
		return fmt.Errorf("list an export's files: %w", err)
	}
	files = append([]ExportFile{{Name: path.Base(*e.manifest)}}, files...)
	for i := range files {
		f := &files[i]
		f.URL, err = m.deps.Files.Link(ctx, path.Join(path.Dir(*e.manifest), f.Name), linkLife)
		if errors.Is(err, storage.ErrNoLink) {
			f.URL, err = fmt.Sprintf("/v1/core/exports/%s/files/%s", e.ExportID, f.Name), nil
		}
		if err != nil {
			return err
		}
	}
	e.Files = files
	return nil
}

// exportKey reads the Idempotency-Key, which is required: a repeated request must
// not read two years of events twice.
func exportKey(r *http.Request) (string, *httpserver.Problem) {
	values := r.Header["Idempotency-Key"]
	if len(values) == 0 {
		return "", &httpserver.Problem{Status: http.StatusBadRequest, Code: "missing_idempotency_key", Title: "The request needs an Idempotency-Key",
			Detail: "Send a key of your choice as the header Idempotency-Key: the same key with the same body gives the same export."}
	}
	key := values[0]
	if n := len(key); n >= 2 && key[0] == '"' && key[n-1] == '"' {
		key = key[1 : n-1]
	}
	if len(values) > 1 || key == "" || len(key) > intake.MaxIdempotencyKey || !utf8.ValidString(key) || strings.ContainsFunc(key, func(c rune) bool { return c < ' ' || c == 0x7f }) {
		return "", &httpserver.Problem{Status: http.StatusBadRequest, Code: "invalid_idempotency_key", Title: "The Idempotency-Key cannot be used",
			Detail: fmt.Sprintf("One header with one key of 1 to %d bytes of text without control characters.", intake.MaxIdempotencyKey)}
	}
	return key, nil
}

func readExportDraft(r *http.Request) (d exportDraft, problem *httpserver.Problem) {
	body, problem := readBody(r)
	if problem != nil {
		return d, problem
	}
	if err := intake.NewParser().Object(body); err != nil {
		return d, refuse(err)
	}
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(body, &fields); err != nil {
		return d, refuse(&intake.Error{Code: intake.InvalidJSON})
	}
	texts := map[string]string{"format": "ndjson", "compression": "zstd"}
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		if !slices.Contains([]string{"from", "to", "format", "compression"}, name) {
			return d, refuse(&intake.Error{Code: intake.UnknownField, Pointer: "/" + name, Detail: "from, to, format and compression."})
		}
		var s *string
		if json.Unmarshal(fields[name], &s) != nil || s == nil {
			return d, refuse(&intake.Error{Code: intake.InvalidField, Pointer: "/" + name, Detail: name + " is text."})
		}
		texts[name] = *s
	}
	return parseExportDraft(texts)
}

func parseExportDraft(texts map[string]string) (d exportDraft, problem *httpserver.Problem) {
	for i, to := range []*time.Time{&d.from, &d.to} {
		name := []string{"from", "to"}[i]
		at, ok := intake.ParseTime(texts[name])
		switch {
		case texts[name] == "":
			return d, refuse(&intake.Error{Code: intake.MissingField, Pointer: "/" + name, Detail: name + " is required."})
		case !ok:
			return d, refuse(&intake.Error{Code: intake.InvalidField, Pointer: "/" + name, Detail: name + " is a time as 2026-11-01T00:00:00Z."})
		}
		*to = at
	}
	d.format, d.compression = texts["format"], texts["compression"]
	switch {
	case !d.from.Before(d.to) || d.from.AddDate(0, maxExportMonths, 0).Before(d.to):
		return d, refuse(&intake.Error{Code: intake.InvalidField, Pointer: "/to", Detail: fmt.Sprintf("to is after from, by at most %d months.", maxExportMonths)})
	case d.format != "ndjson" && d.format != "parquet":
		return d, refuse(&intake.Error{Code: intake.InvalidField, Pointer: "/format", Detail: "format is ndjson or parquet."})
	case d.compression != "zstd" && d.compression != "gzip":
		return d, refuse(&intake.Error{Code: intake.InvalidField, Pointer: "/compression", Detail: "compression is zstd or gzip."})
	}
	return d, nil
}
