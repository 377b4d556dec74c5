package manage

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"mime"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/google/uuid"

	"github.com/softcrum/carril/ingestor/apikey"
	"github.com/softcrum/carril/internal/httpserver"
)

// How long an upload may stand still, and take as a whole. Its connection's
// deadlines move on with what arrives: a file of a million rows takes longer
// than any request beside it, and one that is not sent holds nothing but itself.
const (
	uploadIdle = 30 * time.Second
	uploadMost = 4 * time.Hour
)

// uploadRecipients answers POST /v1/messaging/blasts/{blast_id}/recipients.
func (m *Routes) uploadRecipients(w http.ResponseWriter, r *http.Request) {
	p, problem := apikey.AuthorizeTenant(m.deps.Keys, r, ScopeBlasts)
	var upload uuid.UUID
	var f BlastFile
	if problem == nil {
		upload, f, problem = readUpload(r)
	}
	if problem != nil {
		problem.Write(w, r)
		return
	}
	id, ok := parseID(chi.URLParam(r, "blast_id"))
	if !ok {
		httpserver.NotFound(w, r)
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), uploadMost)
	defer cancel()
	f.Body = &arriving{body: r.Body, conn: http.NewResponseController(w)}
	u, err := m.deps.Blasts.Upload(ctx, p.TenantID, id, upload, f)
	if err == nil && u.Failed == "" {
		m.reply(w, r, u.Upload, nil)
		return
	}
	w.Header().Set("Connection", "close") // what is left of the body is not a request
	if err == nil {
		problem = unprocessable(u.Failed, "", u.Detail)
		problem.Title, problem.Extra = "The file is not taken beyond a row", map[string]any{"row": u.Row, "upload": u.Upload}
	} else {
		problem = uploadProblem(err)
	}
	if problem != nil {
		problem.Write(w, r)
		return
	}
	m.reply(w, r, nil, err)
}

// uploadProblem is the answer to a refusal, or to a file that stopped coming;
// nil for anything else.
func uploadProblem(err error) *httpserver.Problem {
	if p := blastProblem(err); p != nil {
		return p
	}
	var timeout net.Error
	switch {
	case errors.As(err, &timeout) && timeout.Timeout():
		return &httpserver.Problem{Status: http.StatusRequestTimeout, Code: "request_timeout", Title: "The file stopped arriving",
			Detail: "Send it again under the same upload_id: it goes on behind what was taken."}
	case errors.Is(err, io.ErrUnexpectedEOF):
		return &httpserver.Problem{Status: http.StatusBadRequest, Code: "unreadable_body", Title: "The file could not be read to its end",
			Detail: "Send it again under the same upload_id: it goes on behind what was taken."}
	}
	return nil
}

// arriving moves the connection's deadlines on with each read.
type arriving struct {
	body io.Reader
	conn *http.ResponseController
}

func (a *arriving) Read(p []byte) (int, error) {
	// A writer without a connection, as in a test, has no deadlines.
	_ = a.conn.SetReadDeadline(time.Now().Add(uploadIdle))
	_ = a.conn.SetWriteDeadline(time.Now().Add(2 * uploadIdle))
	return a.body.Read(p)
}

// readUpload reads what a file of recipients is, without the file.
func readUpload(r *http.Request) (upload uuid.UUID, f BlastFile, problem *httpserver.Problem) {
	v, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return upload, f, badParameter("The query cannot be read.")
	}
	for name, values := range v {
		if len(values) != 1 || name != "upload_id" && name != "delimiter" && name != "columns" {
			return upload, f, badParameter("Known are upload_id, delimiter, columns, each once.")
		}
		if values[0] == "" {
			return upload, f, badParameter(name + " is empty: leave it out, or say what it is.")
		}
	}
	upload, ok := parseID(v.Get("upload_id"))
	if !ok {
		return upload, f, badParameter("upload_id is a UUID of your choice, the same for every try of one file.")
	}
	unsupported := func(detail string) *httpserver.Problem {
		return &httpserver.Problem{Status: http.StatusUnsupportedMediaType, Code: "unsupported_media_type", Title: "The file must be CSV or NDJSON", Detail: detail}
	}
	kind, params, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if charset, given := params["charset"]; err != nil || given && !strings.EqualFold(charset, "utf-8") {
		return upload, f, unsupported("UTF-8 is the only charset: save the file as “CSV UTF-8”.")
	}
	switch kind {
	case "text/csv":
		f.Format = "csv"
	case "application/x-ndjson", "application/ndjson", "application/jsonl":
		f.Format = "ndjson"
	default:
		return upload, f, unsupported("Send Content-Type: text/csv or application/x-ndjson.")
	}
	if e := r.Header.Get("Content-Encoding"); e != "" && e != "identity" && e != "gzip" {
		return upload, f, &httpserver.Problem{Status: http.StatusUnsupportedMediaType, Code: "unsupported_encoding", Title: "The body has an encoding that is not taken",
			Detail: "Send it with gzip or without one."}
	}
	switch d := v.Get("delimiter"); d {
	case "", ",", ";", "\t":
		f.Delimiter = d
	case "comma", "semicolon", "tab":
		f.Delimiter = map[string]string{"comma": ",", "semicolon": ";", "tab": "\t"}[d]
	default:
		return upload, f, badParameter("delimiter is comma, semicolon or tab.")
	}
	if c := v.Get("columns"); c != "" {
		if len(c) > 16<<10 || json.Unmarshal([]byte(c), &f.Columns) != nil || f.Columns == nil {
			return upload, f, badParameter(`columns is a JSON object of text: {"Correo": "address"}.`)
		}
	}
	return upload, f, nil
}

// uploaded answers GET /v1/messaging/blasts/{blast_id}/uploads/{upload_id}: the
// upload with a page of its bad rows.
func (m *Routes) uploaded(w http.ResponseWriter, r *http.Request) {
	tenant, problem := m.readsBlasts(r)
	var q *listQuery
	if problem == nil {
		q, problem = parsePage(r, "rows")
	}
	id, ok := parseID(chi.URLParam(r, "blast_id"))
	upload, ok2 := parseID(chi.URLParam(r, "upload_id"))
	if problem == nil && (!ok || !ok2) {
		httpserver.NotFound(w, r)
		return
	}
	of := "bad_rows\x00" + tenant.String() + "\x00" + id.String() + "\x00" + upload.String()
	behind := position{time.UnixMicro(0).UTC(), uuid.Nil}
	if problem == nil {
		behind, problem = m.behind(q, of, behind)
	}
	if problem != nil {
		problem.Write(w, r)
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), readTimeout)
	defer cancel()
	// The place in this list is a row's number, which takes the place of a time.
	u, rows, err := m.deps.Blasts.Uploaded(ctx, tenant, id, upload, behind.at.UnixMicro(), q.limit+1)
	answer := map[string]any{"upload": u, "bad_rows": rows}
	if len(rows) > q.limit {
		rows = rows[:q.limit]
		answer["bad_rows"] = rows
		answer["next_cursor"] = signer{m.deps.CursorKey}.sign(position{time.UnixMicro(rows[q.limit-1].Row), uuid.Nil}, of)
	}
	m.reply(w, r, answer, err)
}
