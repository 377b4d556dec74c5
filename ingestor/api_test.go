package ingestor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"

	"github.com/softcrum/carril/ingestor/apikey"
	"github.com/softcrum/carril/ingestor/intake"
	"github.com/softcrum/carril/internal/httpserver"
	"github.com/softcrum/carril/internal/ids"
)

const trackPath, identifyPath, batchPath = "/v1/core/track", "/v1/core/identify", "/v1/core/batch"

func TestTrack(t *testing.T) {
	t.Parallel()
	f := newFront(t, Config{}, httpserver.Config{}, nil)
	t.Run("Answers202WithTheEventsID", func(t *testing.T) { // FS-CORE-0006 §1, §2
		resp, body := f.post(t, trackPath, track("invoice-889"), "traceparent", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")
		id := ids.Event(tenantID, "invoice-889")
		require.Equal(t, http.StatusAccepted, resp.StatusCode)
		require.Equal(t, "application/json", resp.Header.Get("Content-Type"))
		require.JSONEq(t, fmt.Sprintf(`{"event_id":"%s","correlation_id":"%s"}`, id, id), body)
		ev := f.queue.taken()[0]
		require.Equal(t, id, ev.EventID)
		require.Equal(t, "c1", ev.CellID)
		require.Equal(t, now, ev.ReceivedAt)
		require.Equal(t, `{"total":12.50}`, ev.Payload)
		require.Equal(t, resp.Header.Get(httpserver.RequestIDHeader), *ev.RequestID)
		require.Equal(t, "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", f.queue.traces[0])
	})
	t.Run("GivesTheSameIDEachTime", func(t *testing.T) { // FS-CORE-0006 §3
		_, first := f.post(t, trackPath, track("again"))
		_, second := f.post(t, trackPath, track("again"))
		require.Equal(t, first, second)
	})
	t.Run("SaysTheCallersCorrelation", func(t *testing.T) {
		_, body := f.post(t, trackPath, `{"correlation_id":"a\"\\ é",`+track("corr")[1:])
		var got map[string]string
		require.NoError(t, json.Unmarshal([]byte(body), &got))
		require.Equal(t, "a\"\\ é", got["correlation_id"])
	})
	t.Run("TakesTheKeyFromTheHeader", func(t *testing.T) {
		bare := strings.Replace(track("x"), `"idempotency_key":"x",`, "", 1)
		for header, key := range map[string]string{"h-1": "h-1", `"h-2"`: "h-2", `"h\"3\\"`: `h"3\`, `"`: `"`} {
			_, body := f.post(t, trackPath, bare, "Idempotency-Key", header)
			require.Contains(t, body, ids.Event(tenantID, key).String(), header)
		}
		resp, body := f.post(t, trackPath, track("other"), "Idempotency-Key", "h-1")
		requireProblem(t, resp, body, http.StatusUnprocessableEntity, "idempotency_key_mismatch")
		resp, body = f.raw(t, "POST "+trackPath+" HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer "+goodKey+"\r\nContent-Type: application/json\r\n"+
			"Idempotency-Key: a\r\nIdempotency-Key: a\r\nContent-Length: 2\r\n\r\n{}")
		requireProblem(t, resp, body, http.StatusUnprocessableEntity, "invalid_idempotency_key")
	})
	t.Run("TakesAnIdentify", func(t *testing.T) {
		resp, _ := f.post(t, identifyPath, `{"idempotency_key":"i-1","occurred_at":"2026-11-01T06:30:00Z","identifiers":{"email":"ana@example.com","phone":null},"traits":{"name":"Ana"}}`)
		require.Equal(t, http.StatusAccepted, resp.StatusCode)
		resp, body := f.post(t, identifyPath, track("i-2"))
		require.Equal(t, "/event_name", requireProblem(t, resp, body, http.StatusBadRequest, "unknown_field")["pointer"])
	})
	t.Run("ExplainsARefusal", func(t *testing.T) {
		resp, body := f.post(t, trackPath, strings.Replace(track("x"), "2026-11-01T01", "2026-12-01T01", 1))
		p := requireProblem(t, resp, body, http.StatusUnprocessableEntity, "occurred_at_out_of_range")
		require.Equal(t, "/occurred_at", p["pointer"])
		require.Equal(t, "2026-11-01T12:00:00Z", p["server_time"])
		require.NotEmpty(t, p["title"])
		require.NotEmpty(t, p["detail"])
		require.InDelta(t, 1, testutil.ToFloat64(f.api.metrics.rejections.WithLabelValues("occurred_at_out_of_range")), 0)
	})
	t.Run("HonoursTheTenantsClockPolicy", func(t *testing.T) {
		f := newFront(t, Config{}, httpserver.Config{}, nil)
		p := principal(apikey.ScopeEventsWrite)
		p.Tenant.Clamp = true
		f.keys["ck_live_clamp"] = p
		resp, _ := f.post(t, trackPath, strings.Replace(track("x"), "2026-11-01T01", "2026-12-01T01", 1), "Authorization", "Bearer ck_live_clamp")
		require.Equal(t, http.StatusAccepted, resp.StatusCode)
		require.Equal(t, now, f.queue.taken()[0].OccurredAt)
	})
	t.Run("IgnoresWhoAPeerSaysItIs", func(t *testing.T) { // bad inputs row 43
		resp, _ := f.post(t, trackPath, track("xff"), "X-Forwarded-For", "1.2.3.4", "X-Forwarded-Host", "evil.example.com")
		require.Equal(t, http.StatusAccepted, resp.StatusCode)
		require.NotContains(t, f.logs.String(), "1.2.3.4")
	})
}

func TestAuthentication(t *testing.T) { // bad inputs rows 45 and 46
	t.Parallel()
	f := newFront(t, Config{}, httpserver.Config{}, nil)
	const line = "POST " + trackPath + " HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\nContent-Length: 2\r\n"
	t.Run("Answers401ForEveryReason", func(t *testing.T) {
		bodies := map[string]bool{}
		for name, headers := range map[string]string{
			"None": "", "Empty": "Authorization: \r\n", "SchemeAlone": "Authorization: Bearer\r\n", "SchemeAndSpace": "Authorization: Bearer \r\n",
			"Two":          "Authorization: Bearer " + goodKey + "\r\nAuthorization: Bearer " + goodKey + "\r\n",
			"TenKilobytes": "Authorization: Bearer " + strings.Repeat("k", 10_000) + "\r\n",
			"OtherScheme":  "Authorization: Basic " + goodKey + "\r\n", "NoScheme": "Authorization: " + goodKey + "\r\n",
			"Unknown": "Authorization: Bearer ck_live_other\r\n", "Padded": "Authorization: Bearer  " + goodKey + "\r\n",
			"AnotherHeader": "X-Api-Key: " + goodKey + "\r\n",
		} {
			resp, body := f.raw(t, line+headers+"\r\n{}")
			p := requireProblem(t, resp, body, http.StatusUnauthorized, "invalid_key")
			require.Equal(t, `Bearer realm="carril"`, resp.Header.Get("WWW-Authenticate"), name)
			bodies[strings.Replace(body, p["instance"].(string), "", 1)] = true
		}
		require.Len(t, bodies, 1, "the same body for all")
	})
	t.Run("TakesTheSchemeInAnyCase", func(t *testing.T) {
		resp, _ := f.post(t, trackPath, track("x"), "Authorization", "bearer "+goodKey)
		require.Equal(t, http.StatusAccepted, resp.StatusCode)
	})
	for _, tc := range []struct {
		name, key, code string
		status          int
	}{
		{"WithoutTheScope", "ck_live_reader", "missing_permission", http.StatusForbidden},
		{"OfAnOperator", "ck_live_operator", "tenant_required", http.StatusForbidden},
		{"OfADisabledTenant", "ck_live_disabled", "tenant_disabled", http.StatusForbidden},
		{"ThatCannotBeVerified", "ck_live_storeaway", "key_store_unavailable", http.StatusServiceUnavailable}, // faults P8
	} {
		t.Run("RefusesAKey"+tc.name, func(t *testing.T) {
			resp, body := f.post(t, trackPath, track("x"), "Authorization", "Bearer "+tc.key)
			p := requireProblem(t, resp, body, tc.status, tc.code)
			if tc.code == "missing_permission" {
				require.Equal(t, "core.events.write", p["permission"])
				require.Contains(t, p["detail"], "core.events.write")
			}
			if tc.status == http.StatusServiceUnavailable {
				require.Equal(t, "2", resp.Header.Get("Retry-After"))
			}
		})
	}
	t.Run("RefusesAKeyInTheURL", func(t *testing.T) {
		for _, q := range []string{"?key=" + goodKey, "?x=" + goodKey, "?x=ck%5flive_a", "?API_KEY=secret", "?access_token=x"} {
			resp, body := f.post(t, trackPath+q, track("x"))
			requireProblem(t, resp, body, http.StatusBadRequest, "key_in_query")
			require.NotContains(t, body, "good")
		}
		resp, _ := f.post(t, trackPath+"?debug=1", track("x"))
		require.Equal(t, http.StatusAccepted, resp.StatusCode)
	})
	t.Run("LogsNoKey", func(t *testing.T) { // faults L12
		require.NotContains(t, f.logs.String(), "ck_live")
	})
}

type batchAnswer struct {
	Accepted, Rejected int
	Results            []struct {
		Status        string
		EventID       string `json:"event_id"`
		CorrelationID string `json:"correlation_id"`
		Error         struct{ Code, Pointer, Instance string }
	}
}

func TestBatch(t *testing.T) {
	t.Parallel()
	t.Run("TakesFiveHundred", func(t *testing.T) { // FS-CORE-0006 AC4
		t.Parallel()
		f := newFront(t, Config{}, httpserver.Config{}, nil)
		resp, body := f.post(t, batchPath, batchOf(items(500)...))
		require.Equal(t, http.StatusAccepted, resp.StatusCode)
		var got batchAnswer
		require.NoError(t, json.Unmarshal([]byte(body), &got))
		require.Equal(t, 500, got.Accepted)
		for i, r := range got.Results {
			require.Equal(t, "accepted", r.Status)
			require.Equal(t, ids.Event(tenantID, fmt.Sprintf("k-%d", i)).String(), r.EventID)
			require.Equal(t, r.EventID, r.CorrelationID)
		}
		require.Len(t, f.queue.taken(), 500)
		require.InDelta(t, 500, testutil.ToFloat64(f.api.metrics.accepted["track"]), 0)
	})
	t.Run("RefusesFiveHundredAndOneAsAWhole", func(t *testing.T) { // FS-CORE-0006 AC4
		t.Parallel()
		f := newFront(t, Config{}, httpserver.Config{}, nil)
		resp, body := f.post(t, batchPath, batchOf(items(501)...))
		requireProblem(t, resp, body, http.StatusRequestEntityTooLarge, "batch_too_large")
		require.Empty(t, f.queue.taken())
	})
	t.Run("TakesTheOther499", func(t *testing.T) { // bad inputs row 27
		t.Parallel()
		f := newFront(t, Config{}, httpserver.Config{}, nil)
		all := items(500)
		all[250] = strings.Replace(all[250], "12.50", `"\u0000"`, 1)
		resp, body := f.post(t, batchPath, batchOf(all...))
		require.Equal(t, http.StatusAccepted, resp.StatusCode)
		var got batchAnswer
		require.NoError(t, json.Unmarshal([]byte(body), &got))
		require.Equal(t, []int{499, 1}, []int{got.Accepted, got.Rejected})
		require.Equal(t, "rejected", got.Results[250].Status)
		require.Equal(t, "nul_character", got.Results[250].Error.Code)
		require.Equal(t, "/events/250/properties/total", got.Results[250].Error.Pointer)
		require.Empty(t, got.Results[250].Error.Instance)
		require.Equal(t, ids.Event(tenantID, "k-251").String(), got.Results[251].EventID)
		require.Len(t, f.queue.taken(), 499)
	})
	t.Run("RefusesABatchOfWhichNothingIsLeft", func(t *testing.T) {
		t.Parallel()
		f := newFront(t, Config{}, httpserver.Config{}, nil)
		resp, body := f.post(t, batchPath, batchOf("{}", "1"))
		requireProblem(t, resp, body, http.StatusUnprocessableEntity, "no_event_accepted")
		var got batchAnswer
		require.NoError(t, json.Unmarshal([]byte(body), &got))
		require.Equal(t, "missing_field", got.Results[0].Error.Code)
		require.Equal(t, "not_an_object", got.Results[1].Error.Code)
		require.Empty(t, f.queue.taken())
	})
	t.Run("IsA503AsAWholeWhenTheQueueRefusesAnyOfIt", func(t *testing.T) {
		t.Parallel()
		f := newFront(t, Config{}, httpserver.Config{}, nil)
		f.queue.fail = func(context.Context) error { return &EnqueueError{EnqueueFull, io.ErrShortBuffer} }
		resp, body := f.post(t, batchPath, batchOf(items(3)...))
		requireProblem(t, resp, body, http.StatusServiceUnavailable, "queue_unavailable")
	})
	t.Run("IgnoresTheIdempotencyKeyHeader", func(t *testing.T) {
		t.Parallel()
		f := newFront(t, Config{}, httpserver.Config{}, nil)
		resp, _ := f.post(t, batchPath, batchOf(items(2)...), "Idempotency-Key", "whole")
		require.Equal(t, http.StatusAccepted, resp.StatusCode)
		require.Equal(t, "k-1", f.queue.taken()[1].IdempotencyKey)
	})
}

func TestQueue(t *testing.T) {
	t.Parallel()
	t.Run("NeverAnswers202WithoutIt", func(t *testing.T) { // faults P1, P8
		t.Parallel()
		for _, class := range EnqueueClasses() {
			f := newFront(t, Config{}, httpserver.Config{}, nil)
			f.queue.fail = func(context.Context) error { return &EnqueueError{class, io.EOF} }
			resp, body := f.post(t, trackPath, track("x"))
			if class == EnqueueTooLarge {
				requireProblem(t, resp, body, http.StatusRequestEntityTooLarge, "event_too_large")
			} else {
				requireProblem(t, resp, body, http.StatusServiceUnavailable, "queue_unavailable")
				require.Regexp(t, "^[123]$", resp.Header.Get("Retry-After"))
			}
			require.InDelta(t, 1, testutil.ToFloat64(f.api.metrics.failures.WithLabelValues(string(class))), 0)
			require.InDelta(t, 0, testutil.ToFloat64(f.api.metrics.accepted["track"]), 0)
		}
	})
	t.Run("IsWaitedForUntilTheDeadline", func(t *testing.T) {
		t.Parallel()
		f := newFront(t, Config{EnqueueTimeout: 30 * time.Millisecond}, httpserver.Config{}, nil)
		f.queue.fail = func(ctx context.Context) error { <-ctx.Done(); return &EnqueueError{EnqueueDeadline, ctx.Err()} }
		resp, body := f.post(t, trackPath, track("x"))
		requireProblem(t, resp, body, http.StatusServiceUnavailable, "queue_unavailable")
	})
	t.Run("IsLoggedWhenItGoesAndWhenItComesBack", func(t *testing.T) {
		t.Parallel()
		f := newFront(t, Config{}, httpserver.Config{}, nil)
		f.queue.fail = func(context.Context) error { return &EnqueueError{EnqueueAway, errors.New("no route to broker")} }
		for range 5 {
			f.post(t, trackPath, track("x"))
		}
		require.Equal(t, 1, strings.Count(f.logs.String(), "takes no events"))
		require.Contains(t, f.logs.String(), "no route to broker")
		f.queue.fail = nil
		for range 5 {
			f.post(t, trackPath, track("x"))
		}
		require.Equal(t, 1, strings.Count(f.logs.String(), "takes events again"))
	})
	t.Run("ThatPanicsIsA500", func(t *testing.T) {
		t.Parallel()
		f := newFront(t, Config{}, httpserver.Config{}, nil)
		f.queue.fail = func(context.Context) error { panic("boom") }
		resp, body := f.post(t, trackPath, track("x"))
		p := requireProblem(t, resp, body, http.StatusInternalServerError, "internal")
		require.Contains(t, f.logs.String(), p["instance"])
		require.Zero(t, f.api.held.Load())
	})
}

// gate is a limiter that lets so many events pass.
type gate struct{ left int }

func (g *gate) Take(_ context.Context, p *apikey.Principal, events int, h http.Header) time.Duration {
	h.Set("RateLimit-Remaining", fmt.Sprint(g.left))
	if p.TenantID != tenantID || events > g.left {
		return 1500 * time.Millisecond
	}
	g.left -= events
	return 0
}

func (g *gate) Refused(*apikey.Principal, http.Header) time.Duration { return 0 }

func (g *gate) Show(_ *apikey.Principal, h http.Header) {
	h.Set("RateLimit-Remaining", fmt.Sprint(g.left))
}

func TestLimiter(t *testing.T) {
	t.Parallel()
	f := newFront(t, Config{}, httpserver.Config{}, func(d *Deps) { d.Limits = &gate{left: 4} })
	resp, _ := f.post(t, batchPath, batchOf(append(items(3), "{}")...))
	require.Equal(t, http.StatusAccepted, resp.StatusCode, "three events are charged, not four")
	require.Equal(t, "4", resp.Header.Get("RateLimit-Remaining"))
	resp, _ = f.post(t, trackPath, track("x"))
	require.Equal(t, http.StatusAccepted, resp.StatusCode)
	resp, body := f.post(t, trackPath, track("y"))
	requireProblem(t, resp, body, http.StatusTooManyRequests, "rate_limited")
	require.Equal(t, "2", resp.Header.Get("Retry-After"))
	require.Equal(t, "0", resp.Header.Get("RateLimit-Remaining"))
	require.Len(t, f.queue.taken(), 4)
}

func TestRoutes(t *testing.T) { // bad inputs row 42
	t.Parallel()
	f := newFront(t, Config{}, httpserver.Config{}, nil)
	for _, line := range []string{"POST /v1/core/track/../keys", "POST /a%2f..%2fb", "POST //v1//events", "POST /v1/core/track/", "POST /V1/core/track", "POST /v1/core%2ftrack"} {
		resp, body := f.raw(t, line+" HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\n\r\n")
		requireProblem(t, resp, body, http.StatusNotFound, "not_found")
	}
	for _, method := range []string{"GET", "TRACE", "PUT", "OPTIONS"} {
		resp, body := f.raw(t, method+" /v1/core/track HTTP/1.1\r\nHost: h\r\n\r\n")
		requireProblem(t, resp, body, http.StatusMethodNotAllowed, "method_not_allowed")
		require.Equal(t, "POST", resp.Header.Get("Allow"))
	}
	resp, body := f.raw(t, "GET /openapi.yaml HTTP/1.1\r\nHost: h\r\n\r\n")
	require.Equal(t, http.StatusOK, resp.StatusCode)
	require.Equal(t, "application/yaml", resp.Header.Get("Content-Type"))
	require.True(t, strings.HasPrefix(body, "openapi: 3.1.0"))
	t.Run("AreWhatIsCounted", func(t *testing.T) {
		f.post(t, trackPath, track("x"))
		expected := `
# HELP carril_http_requests_total HTTP requests by route and status code.
# TYPE carril_http_requests_total counter
carril_http_requests_total{code="200",route="/openapi.yaml"} 1
carril_http_requests_total{code="202",route="/v1/core/track"} 1
carril_http_requests_total{code="404",route="unmatched"} 6
carril_http_requests_total{code="405",route="unmatched"} 4
`
		require.Eventually(t, func() bool { // the count follows the answer
			return testutil.GatherAndCompare(f.reg, strings.NewReader(expected), "carril_http_requests_total") == nil
		}, waitFor, time.Millisecond)
	})
}

func TestNew(t *testing.T) {
	t.Parallel()
	good := Deps{Keys: keyring{}, Queue: &memoryQueue{}, Metrics: newFront(t, Config{}, httpserver.Config{}, nil).reg}
	for name, change := range map[string]func(*Config, *Deps){
		"NoKeys": func(_ *Config, d *Deps) { d.Keys = nil }, "NoQueue": func(_ *Config, d *Deps) { d.Queue = nil },
		"Negative": func(c *Config, _ *Deps) { c.EnqueueTimeout = -1 }, "TooLittle": func(c *Config, _ *Deps) { c.MaxHeldBytes = 100 },
		"MetricsTwice": func(*Config, *Deps) {},
	} {
		cfg, deps := Config{}, good
		change(&cfg, &deps)
		_, err := New(cfg, deps)
		require.Error(t, err, name)
	}
}

func TestContractNamesEveryCode(t *testing.T) {
	t.Parallel()
	doc, err := document()
	require.NoError(t, err)
	for _, path := range []string{trackPath, identifyPath, batchPath} {
		responses := doc.Paths.Value(path).Post.Responses
		for _, c := range intake.Codes() {
			r := responses.Status(c.Status())
			require.NotNil(t, r, "%s %d", path, c.Status())
			parts := r.Value.Content[httpserver.ProblemType].Schema.Value.AllOf
			require.Contains(t, parts[1].Value.Properties["code"].Value.Enum, any(string(c)), path)
		}
	}
}

func TestReferencePage(t *testing.T) {
	t.Parallel()
	f := newFront(t, Config{}, httpserver.Config{}, nil)
	resp, body := f.raw(t, "GET /docs HTTP/1.1\r\nHost: h\r\n\r\n")
	require.Equal(t, http.StatusOK, resp.StatusCode)
	require.Equal(t, "text/html; charset=utf-8", resp.Header.Get("Content-Type"))
	require.Contains(t, resp.Header.Get("Content-Security-Policy"), "default-src 'none'")
	require.NotEmpty(t, resp.Header.Get(httpserver.RequestIDHeader))
	require.Contains(t, body, "/v1/core/track")
}
