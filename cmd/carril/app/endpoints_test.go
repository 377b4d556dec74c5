package app

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/softcrum/carril/dispatcher/webhook"
	"github.com/softcrum/carril/dispatcher/webhook/guard"
	"github.com/softcrum/carril/dispatcher/webhook/seal"
	"github.com/softcrum/carril/ingestor/apikey"
	"github.com/softcrum/carril/ingestor/manage"
	"github.com/softcrum/carril/internal/httpserver"
	"github.com/softcrum/carril/internal/ids"
	"github.com/softcrum/carril/internal/signature"
	"github.com/softcrum/carril/internal/testkit"
	"github.com/softcrum/carril/internal/testkit/contract"
)

type keyring map[string]*apikey.Principal

func (k keyring) Verify(_ context.Context, text string) (*apikey.Principal, error) {
	if p, ok := k[text]; ok {
		return p, nil
	}
	return nil, apikey.ErrInvalid
}

// TestEndpoints makes, changes and removes webhook endpoints over HTTP, each
// request and answer held against the contract.
func TestEndpoints(t *testing.T) {
	t.Parallel()
	pool := testkit.Pool(t)
	acme, other := ids.New(), ids.New()
	for slug, id := range map[string]uuid.UUID{"acme": acme, "other": other} {
		_, err := pool.Exec(t.Context(), `INSERT INTO core.tenants (tenant_id, slug, name, plan_id) VALUES ($1, $2, $2, 'starter')`, id, slug)
		require.NoError(t, err)
	}
	g, err := guard.New(guard.Config{Private: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}, AnyPort: true, AllowHTTP: true}, nil)
	require.NoError(t, err)
	keys, err := seal.Parse("AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=")
	require.NoError(t, err)
	scopes := []string{manage.ScopeWebhooks}
	r := httpserver.NewRouter()
	manage.New(manage.Deps{DB: pool, CursorKey: []byte("k"), Keys: keyring{"acme": {TenantID: acme, Scopes: scopes}, "other": {TenantID: other, Scopes: scopes},
		"reader": {TenantID: acme, Scopes: []string{"core.events.read"}}},
		Endpoints: endpoints{webhook.NewStore(webhook.StoreConfig{}, webhook.StoreDeps{Pool: pool, Guard: g, Keys: keys})}}).Mount(r)
	front := httpserver.Identify(r, slog.New(slog.DiscardHandler))
	const all, one = "/v1/webhooks/endpoints", "/v1/webhooks/endpoints/{endpoint_id}"
	call := func(key, method, route, id, body string) (int, string) {
		t.Helper()
		req := httptest.NewRequestWithContext(t.Context(), method, strings.ReplaceAll(route, "{endpoint_id}", id), strings.NewReader(body))
		req.Header.Set("Authorization", "Bearer "+key)
		req.Header.Set("Content-Type", "application/json")
		w := httptest.NewRecorder()
		front.ServeHTTP(w, req)
		contract.Require(t, contract.Exchange{Route: route, Params: map[string]string{"endpoint_id": id}, Request: req, Sent: body,
			Status: w.Code, Header: w.Header(), Answered: w.Body.Bytes()})
		return w.Code, w.Body.String()
	}

	status, body := call("acme", http.MethodPost, all, "", `{"url":"http://127.0.0.1:9999/hook","description":"warehouse","event_types":["*"],"headers":{"X-Team":"data"}}`)
	require.Equal(t, http.StatusCreated, status, body)
	var made struct {
		Endpoint struct {
			ID      string   `json:"endpoint_id"`
			Headers []string `json:"header_names"`
		} `json:"endpoint"`
		Secret string `json:"secret"`
	}
	require.NoError(t, json.Unmarshal([]byte(body), &made))
	require.Equal(t, []string{"X-Team"}, made.Endpoint.Headers)
	_, err = signature.ParseSecret(made.Secret)
	require.NoError(t, err)
	id := made.Endpoint.ID

	t.Run("IsShownWithoutItsSecrets", func(t *testing.T) {
		status, body := call("acme", http.MethodGet, one, id, "")
		require.Equal(t, http.StatusOK, status)
		require.NotContains(t, body, made.Secret)
		require.NotContains(t, body, `"data"`)
		_, body = call("acme", http.MethodGet, all, "", "")
		require.Contains(t, body, id)
	})
	t.Run("IsAnotherTenantsNotFound", func(t *testing.T) { // bad input 47
		var absent, foreign string
		for _, at := range []struct{ method, route, body string }{{http.MethodGet, one, ""}, {http.MethodPatch, one, `{"description":"mine"}`}, {http.MethodDelete, one, ""},
			{http.MethodPost, one + "/enable", ""}, {http.MethodPost, one + "/disable", ""}, {http.MethodPost, one + "/rotate-secret", ""}} {
			var status int
			status, foreign = call("other", at.method, at.route, id, at.body)
			require.Equal(t, http.StatusNotFound, status, at.method+at.route)
			_, absent = call("other", at.method, at.route, ids.New().String(), at.body)
			require.Equal(t, same(absent), same(foreign))
		}
		_, body := call("other", http.MethodGet, all, "", "")
		require.JSONEq(t, `{"endpoints":[]}`, body)
	})
	t.Run("ChangesPausesAndRotates", func(t *testing.T) {
		status, body := call("acme", http.MethodPatch, one, id, `{"description":"new","event_types":["core.event.tracked"]}`)
		require.Equal(t, http.StatusOK, status, body)
		require.Contains(t, body, `"description":"new"`)
		require.Contains(t, body, "127.0.0.1:9999")
		_, body = call("acme", http.MethodPost, one+"/disable", id, "")
		require.Contains(t, body, `"disabled_reason":"by_tenant"`)
		_, body = call("acme", http.MethodPost, one+"/enable", id, "")
		require.Contains(t, body, `"disabled_at":null`)
		status, body = call("acme", http.MethodPost, one+"/rotate-secret", id, "")
		require.Equal(t, http.StatusOK, status, body)
		require.NotContains(t, body, made.Secret)
		require.Contains(t, body, "whsec_")
	})
	t.Run("RefusesWhatIsNoEndpoint", func(t *testing.T) {
		for _, c := range []struct {
			body, code string
			status     int
		}{
			{`{"url":"https://169.254.169.254/x","event_types":["*"]}`, "address_not_allowed", 422},
			{`{"url":"https://ana:pw@hooks.example.com/","event_types":["*"]}`, "userinfo_not_allowed", 422},
			{`{"url":"gopher://hooks.example.com/","event_types":["*"]}`, "invalid_url", 422},
			{`{"url":"http://127.0.0.1/","event_types":["*"],"headers":{"Host":"x"}}`, "header_not_allowed", 422},
			{`{"url":"http://127.0.0.1/","event_types":["nobody.knows"]}`, "unknown_event_type", 422},
			{`{"event_types":["*"]}`, "missing_field", 422},
			{`{"url":7,"event_types":["*"]}`, "invalid_field", 422},
			{`{"url":"http://127.0.0.1/","event_types":["*"],"headers":{"X-Team":null}}`, "invalid_field", 422},
			{`{"url":"http://127.0.0.1/","event_types":[null]}`, "invalid_field", 422},
			{`{"url":"http://127.0.0.1/","event_types":["*"],"description":null}`, "invalid_field", 422},
			{`{"url":"http://127.0.0.1/","event_types":["*"],"secret":"mine"}`, "unknown_field", 400},
			{`{"url":"http://127.0.0.1/","url":"http://127.0.0.2/","event_types":["*"]}`, "duplicate_key", 400},
			{`[]`, "not_an_object", 400},
		} {
			status, body := call("acme", http.MethodPost, all, "", c.body)
			require.Equal(t, fmt.Sprintf("%d %s", c.status, c.code), fmt.Sprintf("%d %s", status, codeOf(body)), c.body)
		}
		status, _ := call("reader", http.MethodGet, all, "", "")
		require.Equal(t, http.StatusForbidden, status)
	})
	status, _ = call("acme", http.MethodDelete, one, id, "")
	require.Equal(t, http.StatusNoContent, status)
	status, _ = call("acme", http.MethodGet, one, id, "")
	require.Equal(t, http.StatusNotFound, status)
}

func codeOf(problem string) string {
	var p struct {
		Code string `json:"code"`
	}
	_ = json.Unmarshal([]byte(problem), &p)
	return p.Code
}

// same is an answer without what names its request.
func same(problem string) string {
	var p map[string]any
	if json.Unmarshal([]byte(problem), &p) != nil {
		return problem
	}
	delete(p, "instance")
	out, _ := json.Marshal(p)
	return string(out)
}
