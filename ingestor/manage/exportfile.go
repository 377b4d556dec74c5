package manage

import (
	"context"
	"errors"
	"net/http"
	"path"
	"strings"
	"time"

	"github.com/go-chi/chi/v5"

	"github.com/softcrum/carril/ingestor/apikey"
	"github.com/softcrum/carril/internal/httpserver"
	"github.com/softcrum/carril/internal/storage"
)

// exportFile answers GET /v1/core/exports/{export_id}/files/{name} with the file,
// or with the range of it that the client asks for: a download that broke goes on.
func (m *Routes) exportFile(w http.ResponseWriter, r *http.Request) {
	p, problem := apikey.AuthorizeTenant(m.deps.Keys, r, ScopeEventsRead)
	if problem != nil {
		problem.Write(w, r)
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), readTimeout)
	defer cancel()
	e, err := m.exportOf(ctx, r, p.TenantID)
	var file ExportFile
	if err == nil {
		file, err = m.fileOf(ctx, e, chi.URLParam(r, "name"))
	}
	if err != nil {
		m.reply(w, r, nil, err)
		return
	}
	body, err := m.deps.Files.Open(r.Context(), path.Join(path.Dir(*e.manifest), file.Name))
	if errors.Is(err, storage.ErrNotFound) { // it expired just now
		err = ErrNotFound
	}
	if err != nil {
		m.reply(w, r, nil, err)
		return
	}
	defer body.Close()
	h := w.Header()
	h.Set("Content-Type", mediaType(file.Name))
	h.Set("Content-Disposition", `attachment; filename="`+file.Name+`"`)
	h.Set("Cache-Control", "private, no-store")
	if file.SHA256 != "" {
		h.Set("ETag", `"`+file.SHA256+`"`)
	}
	http.ServeContent(&patientWriter{ResponseWriter: w, r: r, control: http.NewResponseController(w)}, r, "", time.Time{}, body)
}

// fileOf gives a file of an export by its name: no other object can be named.
func (m *Routes) fileOf(ctx context.Context, e *Export, name string) (ExportFile, error) {
	if err := m.addFiles(ctx, e); err != nil {
		return ExportFile{}, err
	}
	for _, f := range e.Files {
		if f.Name == name {
			return f, nil
		}
	}
	return ExportFile{}, ErrNotFound
}

func mediaType(name string) string {
	switch {
	case strings.HasSuffix(name, ".zst"):
		return "application/zstd"
	case strings.HasSuffix(name, ".gz"):
		return "application/gzip"
	case strings.HasSuffix(name, ".parquet"):
		return "application/vnd.apache.parquet"
	}
	return "application/json"
}

// writePatience is how long a client may take for a piece of a file: the server's
// own limit is on a whole answer, which a large file outlasts.
const writePatience = 30 * time.Second

// patientWriter moves the deadline with each piece that the client takes, and
// puts a problem in the place of the library's text.
type patientWriter struct {
	http.ResponseWriter
	r       *http.Request
	control *http.ResponseController
	refused bool
}

func (w *patientWriter) WriteHeader(status int) {
	if status != http.StatusRequestedRangeNotSatisfiable {
		w.ResponseWriter.WriteHeader(status)
		return
	}
	w.refused = true
	for _, name := range []string{"Content-Disposition", "ETag"} {
		w.Header().Del(name)
	}
	(&httpserver.Problem{Status: status, Code: "invalid_range", Title: "The file has no such range"}).Write(w.ResponseWriter, w.r)
}

func (w *patientWriter) Write(p []byte) (int, error) {
	if w.refused {
		return len(p), nil
	}
	_ = w.control.SetWriteDeadline(time.Now().Add(writePatience)) // without one the server's own stays
	return w.ResponseWriter.Write(p)
}
