package manage

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/softcrum/carril/internal/taxonomy"
	"github.com/softcrum/carril/internal/testkit/contract"
)

const schemaRoute = "/v1/core/taxonomy/{event_name}"

// call sends a request and holds it, where it is taken, and the answer against
// the contract.
func (d *desk) call(key, method, route, target, body string, headers ...string) (int, string) {
	d.t.Helper()
	req := httptest.NewRequestWithContext(d.t.Context(), method, target, strings.NewReader(body))
	req.Header.Set("Authorization", "Bearer "+key)
	req.Header.Set("Content-Type", "application/json")
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	w := httptest.NewRecorder()
	d.routes.ServeHTTP(w, req)
	contract.Require(d.t, contract.Exchange{Route: route, Params: map[string]string{"event_name": "x", "rule_id": uuid.NewString(), "template_id": "x", "channel": "email"}, Request: req, Sent: body,
		Status: w.Code, Header: w.Header(), Answered: w.Body.Bytes()})
	return w.Code, w.Body.String()
}

func (d *desk) addTenant(id uuid.UUID, slug string) {
	d.t.Helper()
	d.exec(`INSERT INTO core.tenants (tenant_id, slug, name, plan_id) VALUES ($1, $2, $2, 'starter')`, id, slug)
}

func TestTaxonomyRoutes(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	d.addTenant(d.acme, "acme")
	d.addTenant(d.other, "other")
	const invoice = "/v1/core/taxonomy/invoice.paid"
	put := func(target, body string, headers ...string) (int, string) {
		return d.call("acme", http.MethodPut, schemaRoute, target, body, headers...)
	}
	t.Run("InstallsReadsListsAndDeletes", func(t *testing.T) {
		status, body := put(invoice, `{"mode":"observe","schema":{"required":["total"],"properties":{"total":{"maximum":9007199254740993}}}}`)
		require.Equal(t, http.StatusOK, status, body)
		require.Contains(t, body, `"version":1`)
		require.Equal(t, d.acme, <-d.changed)
		status, body = put(invoice, `{"mode":"enforce","schema":{}}`)
		require.Equal(t, http.StatusOK, status, body)
		<-d.changed
		status, body = d.call("acme", http.MethodGet, schemaRoute, invoice, "")
		require.Equal(t, http.StatusOK, status)
		var got taxonomy.Installed
		require.NoError(t, json.Unmarshal([]byte(body), &got))
		require.Equal(t, 2, got.Version)
		require.Equal(t, taxonomy.Enforce, got.Mode)
		require.JSONEq(t, `{}`, string(got.Schema))
		status, body = put("/v1/core/taxonomy/order%20placed%3Aweb", `{"mode":"observe","schema":{}}`)
		require.Equal(t, http.StatusOK, status, body)
		<-d.changed
		require.Contains(t, body, `"event_name":"order placed:web"`)
		status, _ = put("/v1/core/taxonomy/core.contact.identified", `{"mode":"observe","schema":{}}`)
		require.Equal(t, http.StatusOK, status)
		<-d.changed
		_, body = d.call("acme", http.MethodGet, "/v1/core/taxonomy", "/v1/core/taxonomy", "")
		require.Equal(t, 3, strings.Count(body, `"version"`))
		_, body = d.call("other", http.MethodGet, "/v1/core/taxonomy", "/v1/core/taxonomy", "")
		require.JSONEq(t, `{"taxonomy":[]}`, body)
		status, _ = d.call("acme", http.MethodDelete, schemaRoute, invoice, "")
		require.Equal(t, http.StatusNoContent, status)
		<-d.changed
	})
	t.Run("AnswersAForeignNameLikeAnAbsentOne", func(t *testing.T) {
		status, body := put("/v1/core/taxonomy/mine", `{"mode":"observe","schema":{}}`)
		require.Equal(t, http.StatusOK, status, body)
		<-d.changed
		for _, method := range []string{http.MethodGet, http.MethodDelete} {
			var bodies []string
			for _, ask := range [][2]string{{"other", "mine"}, {"acme", "absent"}, {"acme", "core.own"}, {"acme", "%FF"}, {"acme", "a%00b"}, {"acme", "a%2Fb"}, {"acme", "a%25"}} {
				status, body := d.call(ask[0], method, schemaRoute, "/v1/core/taxonomy/"+ask[1], "")
				require.Equal(t, http.StatusNotFound, status, ask)
				bodies = append(bodies, body)
			}
			requireSame(t, bodies...)
		}
		status, _ = d.call("writer", http.MethodGet, schemaRoute, invoice, "")
		require.Equal(t, http.StatusForbidden, status)
		status, _ = d.call("operator", http.MethodGet, schemaRoute, invoice, "")
		require.Equal(t, http.StatusForbidden, status)
	})
	t.Run("RefusesWhatIsNoSchema", func(t *testing.T) {
		for name, tc := range map[string]struct {
			target, body, code string
			status             int
			pointer            string
		}{
			"Empty":      {invoice, ``, "empty_body", 400, ""},
			"NoObject":   {invoice, `[]`, "not_an_object", 400, ""},
			"Twice":      {invoice, `{"mode":"observe","schema":{"type":"object","type":"array"}}`, "duplicate_key", 400, "/schema/type"},
			"NUL":        {invoice, `{"mode":"observe","schema":{"title":"\u0000"}}`, "nul_character", 400, "/schema/title"},
			"Unknown":    {invoice, `{"mode":"observe","schema":{},"version":7}`, "unknown_field", 400, ""},
			"NoMode":     {invoice, `{"schema":{}}`, "missing_field", 422, "/mode"},
			"NoSchema":   {invoice, `{"mode":"observe","schema":null}`, "missing_field", 422, "/schema"},
			"OtherMode":  {invoice, `{"mode":"warn","schema":{}}`, "invalid_mode", 422, "/mode"},
			"ModeNumber": {invoice, `{"mode":1,"schema":{}}`, "invalid_mode", 422, "/mode"},
			"Boolean":    {invoice, `{"mode":"observe","schema":true}`, "invalid_field", 422, "/schema"},
			"Remote":     {invoice, `{"mode":"observe","schema":{"$ref":"https://example.com/s"}}`, "invalid_schema", 422, "/schema/$ref"},
			"Ring":       {invoice, `{"mode":"observe","schema":{"allOf":[{"$ref":"#"}]}}`, "schema_too_complex", 422, "/schema"},
			"Large":      {invoice, `{"mode":"observe","schema":{"title":"` + strings.Repeat("x", taxonomy.MaxBytes) + `"}}`, "schema_too_large", 422, "/schema"},
			"Larger":     {invoice, `{"mode":"observe","schema":{"title":"` + strings.Repeat("x", maxSchemaBody) + `"}}`, "body_too_large", 413, ""},
			"Reserved":   {"/v1/core/taxonomy/core.own", `{"mode":"observe","schema":{}}`, "invalid_event_name", 422, ""},
			"NotAName":   {"/v1/core/taxonomy/a%00b", `{"mode":"observe","schema":{}}`, "invalid_event_name", 422, ""},
		} {
			status, body := put(tc.target, tc.body)
			require.Equal(t, tc.status, status, name+": "+body)
			var p map[string]any
			require.NoError(t, json.Unmarshal([]byte(body), &p))
			require.Equal(t, tc.code, p["code"], name)
			if tc.pointer != "" {
				require.Equal(t, tc.pointer, p["pointer"], name)
			}
		}
		status, body := put(invoice, `{}`, "Content-Type", "text/plain")
		require.Equal(t, http.StatusUnsupportedMediaType, status, body)
		status, body = put(invoice, `{}`, "Content-Encoding", "gzip")
		require.Equal(t, http.StatusUnsupportedMediaType, status, body)
		require.Empty(t, d.changed)
	})
}

// noteChanges is what the desk's routes tell of changed schemas.
func (d *desk) noteChanges(_ context.Context, tenant uuid.UUID) error {
	d.changed <- tenant
	return nil
}
