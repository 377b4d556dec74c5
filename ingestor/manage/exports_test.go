package manage

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/softcrum/carril/internal/ids"
	"github.com/softcrum/carril/internal/testkit/contract"
)

const exportsRoute = "/v1/core/exports"

// post asks for an export under a key of its own and holds the answer against
// the contract.
func (d *desk) postExport(key, idempotency, body string) (int, string, http.Header) {
	d.t.Helper()
	req := httptest.NewRequestWithContext(d.t.Context(), http.MethodPost, exportsRoute, strings.NewReader(body))
	req.Header.Set("Authorization", "Bearer "+key)
	req.Header.Set("Content-Type", "application/json")
	if idempotency != "" {
		req.Header.Set("Idempotency-Key", idempotency)
	}
	w := httptest.NewRecorder()
	d.routes.ServeHTTP(w, req)
	contract.Require(d.t, contract.Exchange{Route: exportsRoute, Request: req, Sent: body, Status: w.Code, Header: w.Header(), Answered: w.Body.Bytes()})
	return w.Code, w.Body.String(), w.Header()
}

func (d *desk) readExport(key string, id any) (int, string) {
	d.t.Helper()
	return d.get(key, exportsRoute+"/{export_id}", fmt.Sprintf("%s/%v", exportsRoute, id))
}

func (d *desk) asked(body string) Export {
	d.t.Helper()
	var e Export
	require.NoError(d.t, json.Unmarshal([]byte(body), &e))
	return e
}

// finish makes an export one that the job has made, of one file.
func (d *desk) finishExport(tenant, id uuid.UUID, content string) (file string) {
	d.t.Helper()
	dir := fmt.Sprintf("exports/tenant-%s/%s", tenant, id)
	file = "events-2026-11-abc.ndjson.zst"
	for name, text := range map[string]string{file: content, "manifest.json": `{"rows": 1}`} {
		require.NoError(d.t, d.files.Replace(d.t.Context(), dir+"/"+name, []byte(text)))
	}
	d.exec(`INSERT INTO core.export_parts (export_id, part, from_time, to_time, made, rows, bytes, finished_at)
		VALUES ($1, 1, '2026-11-01Z', '2026-12-01Z', jsonb_build_object('name', $2::text, 'sha256', repeat('ab', 32)), 1, $3, now()),
			($1, 2, '2026-12-01Z', '2027-01-01Z', NULL, 0, 0, now())`, id, file, len(content))
	d.exec(`UPDATE core.exports SET state = 'done', progress = 1, manifest = $2, finished_at = now(), expires_at = now() + interval '7 days' WHERE export_id = $1`, id, dir+"/manifest.json")
	return file
}

const november = `{"from":"2026-11-01T00:00:00Z","to":"2026-12-01T00:00:00Z"}`

func TestExports(t *testing.T) {
	t.Parallel()
	t.Run("AreQueuedOnceAKey", func(t *testing.T) {
		t.Parallel()
		d := newDesk(t)
		d.tenants()
		status, body, _ := d.postExport("acme", "k-1", november)
		require.Equal(t, http.StatusAccepted, status, body)
		e := d.asked(body)
		require.Equal(t, "queued", e.State)
		require.Equal(t, "ndjson", e.Format)
		require.Equal(t, "zstd", e.Compression)
		status, again, _ := d.postExport("acme", `"k-1"`, november)
		require.Equal(t, http.StatusAccepted, status)
		require.Equal(t, body, again)
		status, again, _ = d.postExport("acme", "k-1", strings.Replace(november, "}", `,"format":"parquet"}`, 1))
		require.Equal(t, http.StatusUnprocessableEntity, status)
		require.Contains(t, again, "idempotency_conflict")
		status, again, _ = d.postExport("other", "k-1", november)
		require.Equal(t, http.StatusAccepted, status)
		require.NotEqual(t, e.ExportID, d.asked(again).ExportID, "another tenant's key is another key")
	})
	t.Run("AreFewAtATime", func(t *testing.T) {
		t.Parallel()
		d := newDesk(t)
		d.tenants()
		for i := range maxOpenExports {
			status, body, _ := d.postExport("acme", fmt.Sprint("k-", i), november)
			require.Equal(t, http.StatusAccepted, status, body)
		}
		status, body, h := d.postExport("acme", "one-more", november)
		require.Equal(t, http.StatusTooManyRequests, status)
		require.Contains(t, body, "too_many_exports")
		require.Equal(t, "60", h.Get("Retry-After"))
		status, _, _ = d.postExport("acme", "k-1", november)
		require.Equal(t, http.StatusAccepted, status, "a retry is no more")
		status, _, _ = d.postExport("other", "k", november)
		require.Equal(t, http.StatusAccepted, status)
		d.exec(`UPDATE core.exports SET state = 'failed' WHERE tenant_id = $1`, d.acme)
		status, _, _ = d.postExport("acme", "one-more", november)
		require.Equal(t, http.StatusAccepted, status)
	})
	t.Run("AreRefusedWithAReason", func(t *testing.T) {
		t.Parallel()
		d := newDesk(t)
		for body, code := range map[string]string{
			``: "", `[]`: "", `{"from":1}`: "invalid_field", `{}`: "missing_field", `{"from":"2026-11-01T00:00:00Z"}`: "missing_field",
			`{"from":"2026-11-01","to":"2026-12-01T00:00:00Z"}`:                                       "invalid_field",
			`{"from":"2026-12-01T00:00:00Z","to":"2026-11-01T00:00:00Z"}`:                             "invalid_field",
			`{"from":"2006-12-01T00:00:00Z","to":"2026-11-01T00:00:00Z"}`:                             "invalid_field",
			strings.Replace(november, "}", `,"format":"csv"}`, 1):                                     "invalid_field",
			strings.Replace(november, "}", `,"compression":"lz4"}`, 1):                                "invalid_field",
			strings.Replace(november, "}", `,"tenant":"x"}`, 1):                                       "unknown_field",
			strings.Replace(november, "}", `,"format":null}`, 1):                                      "invalid_field",
			`{"from":"2026-11-01T00:00:00Z","to":"2026-12-01T00:00:00Z","to":"2027-01-01T00:00:00Z"}`: "",
		} {
			status, answer, _ := d.postExport("acme", "k", body)
			require.GreaterOrEqual(t, status, 400, body)
			require.Less(t, status, 500, body)
			require.Contains(t, answer, code, body)
		}
		for key, code := range map[string]string{"": "missing_idempotency_key", strings.Repeat("x", 256): "invalid_idempotency_key", "\"\"": "invalid_idempotency_key"} {
			status, answer, _ := d.postExport("acme", key, november)
			require.Equal(t, http.StatusBadRequest, status)
			require.Contains(t, answer, code)
			require.Contains(t, answer, `"detail":`, "what the header is and what it takes")
		}
		status, _, _ := d.postExport("writer", "k", november)
		require.Equal(t, http.StatusForbidden, status)
	})
	t.Run("AreReadWithTheirFiles", func(t *testing.T) {
		t.Parallel()
		d := newDesk(t)
		d.tenants()
		_, body, _ := d.postExport("acme", "k", november)
		id := d.asked(body).ExportID
		file := d.finishExport(d.acme, id, "0123456789")
		status, body := d.readExport("acme", id)
		require.Equal(t, http.StatusOK, status, body)
		e := d.asked(body)
		require.Equal(t, "done", e.State)
		require.Len(t, e.Files, 2, "an empty month has no file")
		require.Equal(t, fmt.Sprintf("/v1/core/exports/%s/files/%s", id, file), e.Files[1].URL)
		download := func(key, path string, headers ...string) *httptest.ResponseRecorder {
			req := httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, nil)
			req.Header.Set("Authorization", "Bearer "+key)
			for i := 0; i < len(headers); i += 2 {
				req.Header.Set(headers[i], headers[i+1])
			}
			w := httptest.NewRecorder()
			d.routes.ServeHTTP(w, req)
			contract.Require(t, contract.Exchange{Route: exportsRoute + "/{export_id}/files/{name}", Params: map[string]string{"export_id": "x", "name": "x"}, Request: req,
				Status: w.Code, Header: w.Header(), Answered: w.Body.Bytes()})
			return w
		}
		w := download("acme", e.Files[1].URL)
		require.Equal(t, http.StatusOK, w.Code)
		require.Equal(t, "0123456789", w.Body.String())
		require.Equal(t, "application/zstd", w.Header().Get("Content-Type"))
		require.Equal(t, "10", w.Header().Get("Content-Length"))
		tag := w.Header().Get("ETag")
		require.Equal(t, `"`+strings.Repeat("ab", 32)+`"`, tag)
		w = download("acme", e.Files[1].URL, "Range", "bytes=4-6", "If-Range", tag)
		require.Equal(t, http.StatusPartialContent, w.Code)
		require.Equal(t, "456", w.Body.String(), "a download that broke goes on")
		w = download("acme", e.Files[1].URL, "Range", "bytes=50-60")
		require.Equal(t, http.StatusRequestedRangeNotSatisfiable, w.Code)
		require.Contains(t, w.Body.String(), "invalid_range")
		w = download("acme", e.Files[1].URL, "If-None-Match", tag)
		require.Equal(t, http.StatusNotModified, w.Code)
		w = download("acme", e.Files[0].URL)
		require.Equal(t, `{"rows": 1}`, w.Body.String())

		// Another tenant's, an absent and a strange one are answered alike.
		_, absent := d.readExport("acme", ids.New())
		_, foreign := d.readExport("other", id)
		_, strange := d.readExport("acme", "nothing")
		same := []string{absent, foreign, strange}
		for _, path := range []string{e.Files[1].URL, e.Files[1].URL + "x", strings.Replace(e.Files[1].URL, id.String(), ids.New().String(), 1)} {
			key := "acme"
			if path == e.Files[1].URL {
				key = "other"
			}
			w := download(key, path)
			require.Equal(t, http.StatusNotFound, w.Code, path)
			same = append(same, w.Body.String())
		}
		requireSame(t, same...)

		require.NoError(t, d.files.Delete(t.Context(), fmt.Sprintf("exports/tenant-%s/%s/%s", d.acme, id, file)))
		require.Equal(t, http.StatusNotFound, download("acme", e.Files[1].URL).Code, "it expired just now")
		d.exec(`UPDATE core.exports SET state = 'expired'`)
		_, body = d.readExport("acme", id)
		require.Empty(t, d.asked(body).Files)
	})
	t.Run("AreListedPageByPage", func(t *testing.T) {
		t.Parallel()
		d := newDesk(t)
		d.tenants()
		for i := range 5 {
			d.exec(`INSERT INTO core.exports (export_id, tenant_id, origin, request_key, request_hash, from_time, to_time, format, compression, created_at)
				VALUES (gen_random_uuid(), $1, 'api', $2::text, 'x', '2026-11-01Z', '2026-12-01Z', 'ndjson', 'zstd', '2026-11-05Z')`, d.acme, fmt.Sprint(i))
		}
		d.exec(`INSERT INTO core.exports (export_id, tenant_id, origin, request_key, request_hash, from_time, to_time, format, compression, created_at)
			VALUES (gen_random_uuid(), $1, 'operator', 'o', 'x', '2026-11-01Z', '2026-12-01Z', 'ndjson', 'zstd', '2026-11-05Z')`, d.acme)
		seen, cursor := map[uuid.UUID]bool{}, ""
		for range 3 {
			params := []string{"from", "2026-11-01T00:00:00Z", "to", "2026-12-01T00:00:00Z", "limit", "2"}
			if cursor != "" {
				params = append(params, "cursor", cursor)
			}
			status, body := d.ask("acme", exportsRoute, params...)
			require.Equal(t, http.StatusOK, status, body)
			var page struct {
				Exports []Export `json:"exports"`
				Next    string   `json:"next_cursor"`
			}
			require.NoError(t, json.Unmarshal([]byte(body), &page))
			for _, e := range page.Exports {
				seen[e.ExportID] = true
			}
			cursor = page.Next
		}
		require.Len(t, seen, 5, "an operator's is not the tenant's")
		require.Empty(t, cursor)
		_, body := d.ask("other", exportsRoute, "from", "2026-11-01T00:00:00Z", "to", "2026-12-01T00:00:00Z")
		require.Contains(t, body, `"exports":[]`)
	})
}

// tenants makes the rows of the desk's tenants, which exports refer to.
func (d *desk) tenants() {
	for _, id := range []uuid.UUID{d.acme, d.other} {
		d.exec(`INSERT INTO core.tenants (tenant_id, slug, name, plan_id, cell_id) VALUES ($1, $2, 'x', 'starter', 'c1')`, id, "t-"+id.String()[24:])
	}
}
