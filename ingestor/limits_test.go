package ingestor

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/softcrum/carril/ingestor/apikey"
	"github.com/softcrum/carril/ingestor/limit"
	"github.com/softcrum/carril/internal/httpserver"
	"github.com/softcrum/carril/internal/ratelimit"
	"github.com/softcrum/carril/internal/testkit"
)

// limited is a front whose tenant may send burst events and one a second.
func limited(t *testing.T, burst int, own apikey.Rate) *front {
	t.Helper()
	url, prefix := testkit.Redis(t)
	rdb, err := ratelimit.Open(url)
	require.NoError(t, err)
	t.Cleanup(func() { _ = rdb.Close() })
	l, err := limit.New(limit.Config{Prefix: prefix, Budget: 10 * time.Second}, limit.Deps{Redis: rdb, Metrics: prometheus.NewRegistry()})
	require.NoError(t, err)
	t.Cleanup(l.Stop)
	f := newFront(t, Config{}, httpserver.Config{}, func(d *Deps) { d.Limits = l })
	p := principal(apikey.ScopeEventsWrite, apikey.ScopeMessagesWrite)
	p.Tenant.PlanID, p.Tenant.EventsPerSecond, p.Tenant.EventsBurst, p.Rate = "starter", 1, burst, own
	f.keys[goodKey] = p
	reader := *p
	reader.Scopes = []string{apikey.ScopeEventsRead}
	f.keys["ck_live_reader"] = &reader
	return f
}

var rateHeaders = []string{"RateLimit-Limit", "RateLimit-Remaining", "RateLimit-Reset", "RateLimit-Policy", "RateLimit"}

func TestRateLimits(t *testing.T) { // FS-CORE-0006 §1, §10
	t.Parallel()
	t.Run("StandOnEveryAnswerThatKnowsItsTenant", func(t *testing.T) {
		t.Parallel()
		f := limited(t, 1_000, apikey.Rate{})
		for name, tc := range map[string]struct {
			path, body string
			headers    []string
			status     int
		}{
			"Track":      {trackPath, track("a"), nil, 202},
			"Identify":   {identifyPath, `{"idempotency_key":"i","occurred_at":"2026-11-01T06:30:00Z","identifiers":{"email":"ana@example.com"},"traits":{}}`, nil, 202},
			"Batch":      {batchPath, batchOf(items(3)...), nil, 202},
			"NoJSON":     {trackPath, "{", nil, 400},
			"NoScope":    {trackPath, track("b"), []string{"Authorization", "Bearer ck_live_reader"}, 403},
			"TooLarge":   {batchPath, batchOf(items(501)...), nil, 413},
			"NoType":     {trackPath, track("c"), []string{"Content-Type", "text/plain"}, 415},
			"NoneTaken":  {batchPath, batchOf("{}"), nil, 422},
			"NotOurTime": {trackPath, `{"event_name":"x","idempotency_key":"k","occurred_at":"1999-11-01T06:30:00Z","identifiers":{"email":"a@example.com"},"properties":{}}`, nil, 422},
			"Message": {"/v1/messaging/messages", `{"idempotency_key":"m","channel":"email","category":"transactional",
				"recipients":[{"external_id":"c"}],"template_id":"x"}`, nil, 202},
		} {
			resp, body := f.post(t, tc.path, tc.body, tc.headers...)
			require.Equal(t, tc.status, resp.StatusCode, name+": "+body)
			for _, h := range rateHeaders {
				require.Len(t, resp.Header.Values(h), 1, name+" "+h)
			}
			require.Equal(t, `"plan";q=1000;w=1000`, resp.Header.Get("RateLimit-Policy"))
		}
		f.queue.fail = func(context.Context) error { return &EnqueueError{EnqueueAway, io.EOF} }
		resp, _ := f.post(t, trackPath, track("z"))
		require.Equal(t, 503, resp.StatusCode)
		require.NotEmpty(t, resp.Header.Get("RateLimit"))
		resp, _ = f.post(t, trackPath, track("z"), "Authorization", "Bearer nobody")
		require.Equal(t, 401, resp.StatusCode)
		require.Empty(t, resp.Header.Get("RateLimit"))
	})
	t.Run("ChargeEventsAndRecipientsAlike", func(t *testing.T) {
		t.Parallel()
		f := limited(t, 1_000, apikey.Rate{})
		resp, _ := f.post(t, batchPath, batchOf(items(500)...))
		require.Equal(t, 202, resp.StatusCode)
		require.Regexp(t, `^50\d$`, resp.Header.Get("RateLimit-Remaining"))
		resp, body := f.post(t, "/v1/messaging/messages", `{"idempotency_key":"m","channel":"email","category":"transactional","template_id":"x",
			"recipients":[{"external_id":"a"},{"external_id":"b"},{"external_id":"c"},{"external_id":"d"}]}`)
		require.Equal(t, 202, resp.StatusCode, body)
		require.Regexp(t, `^(49[6-9]|50\d)$`, resp.Header.Get("RateLimit-Remaining"))
	})
	t.Run("Answer429WithTheTimeToWait", func(t *testing.T) {
		t.Parallel()
		f := limited(t, 400, apikey.Rate{})
		resp, _ := f.post(t, batchPath, batchOf(items(500)...))
		require.Equal(t, 202, resp.StatusCode, "a batch above the burst is taken and paid off")
		for _, body := range []string{batchOf(items(100)...), batchOf(items(1)...)} {
			resp, text := f.post(t, batchPath, body)
			requireProblem(t, resp, text, 429, "rate_limited")
			require.Equal(t, resp.Header.Get("Retry-After"), resp.Header.Get("RateLimit-Reset"))
			require.Equal(t, "0", resp.Header.Get("RateLimit-Remaining"))
			require.Regexp(t, `^(1\d\d|20\d)$`, resp.Header.Get("Retry-After"))
		}
		require.Len(t, f.queue.taken(), 500)
	})
	t.Run("OfAKeyAreItsOwn", func(t *testing.T) {
		t.Parallel()
		f := limited(t, 1_000, apikey.Rate{PerSecond: 1, Burst: 5})
		resp, _ := f.post(t, batchPath, batchOf(items(5)...))
		require.Equal(t, 202, resp.StatusCode)
		require.Equal(t, `"plan";q=1000;w=1000, "key";q=5;w=5`, resp.Header.Get("RateLimit-Policy"))
		resp, text := f.post(t, batchPath, batchOf(items(5)...))
		requireProblem(t, resp, text, 429, "rate_limited")
		require.Equal(t, "5", resp.Header.Get("RateLimit-Limit"))
	})
}

func TestReadLimits(t *testing.T) { // FS-CORE-0006 §10
	t.Parallel()
	f := limited(t, 400, apikey.Rate{PerSecond: 2, Burst: 8})
	get := func(key string) (*http.Response, string) {
		req, err := http.NewRequest(http.MethodGet, "http://"+f.addr+"/v1/core/limits", nil)
		require.NoError(t, err)
		req.Header.Set("Authorization", "Bearer "+key)
		resp, err := http.DefaultClient.Do(req)
		require.NoError(t, err)
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		require.NoError(t, err)
		requireContract(t, req, nil, resp, body)
		return resp, string(body)
	}
	resp, body := get("ck_live_reader")
	require.Equal(t, http.StatusOK, resp.StatusCode, body)
	require.JSONEq(t, `{"plan":{"id":"starter","events_per_second":1,"events_burst":400,"retention_months":13},
		"key":{"events_per_second":2,"events_burst":8},
		"event":{"bytes":32768,"body_bytes":1048576,"depth":32,"members":10000,"key_bytes":512},
		"batch":{"events":500,"body_bytes":5242880},"message":{"recipients":500,"body_bytes":524288},
		"occurred_at":{"earliest":"2025-10-01T12:00:00Z","latest":"2026-11-01T12:15:00Z","policy":"reject","server_time":"2026-11-01T12:00:00Z"}}`, body)
	for _, h := range rateHeaders {
		require.NotEmpty(t, resp.Header.Get(h), h)
	}
	resp, body = get(goodKey)
	requireProblem(t, resp, body, http.StatusForbidden, "missing_permission")
	require.Contains(t, body, "core.events.read")
	plain := *f.keys["ck_live_reader"].(*apikey.Principal)
	plain.Rate, plain.Tenant.Clamp = apikey.Rate{}, true
	f.keys["ck_live_plain"] = &plain
	_, body = get("ck_live_plain")
	var got struct {
		Key        any
		OccurredAt struct{ Policy string } `json:"occurred_at"`
	}
	require.NoError(t, json.Unmarshal([]byte(body), &got))
	require.Nil(t, got.Key)
	require.Equal(t, "clamp", got.OccurredAt.Policy)
}
