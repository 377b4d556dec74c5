package ingestor

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"

	"github.com/softcrum/carril/ingestor/apikey"
	"github.com/softcrum/carril/internal/httpserver"
	"github.com/softcrum/carril/internal/taxonomy"
)

// installed are schemas by event name, of the tests' tenant.
type installed map[string]*taxonomy.Schema

func (i installed) Find(tenant uuid.UUID, event string) *taxonomy.Schema {
	if tenant != tenantID {
		return nil
	}
	return i[event]
}

// TestTaxonomy is FS-CORE-0006 §8.
func TestTaxonomy(t *testing.T) {
	t.Parallel()
	const schema = `{"required":["total"],"properties":{"total":{"type":"number","maximum":9007199254740993}},"additionalProperties":false}`
	f := newFront(t, Config{}, httpserver.Config{}, func(d *Deps) {
		d.Taxonomy = installed{
			"invoice.paid":            taxonomy.NewSchema(3, taxonomy.Enforce, schema),
			"cart.opened":             taxonomy.NewSchema(1, taxonomy.Observe, schema),
			"core.contact.identified": taxonomy.NewSchema(1, taxonomy.Enforce, `{"properties":{"age":{"type":"integer"}}}`),
		}
	})
	with := func(key, name, properties string) string {
		return strings.NewReplacer("invoice.paid", name, `{"total":12.50}`, properties).Replace(track(key))
	}
	t.Run("TakesWhatMatches", func(t *testing.T) {
		resp, body := f.post(t, trackPath, with("ok", "invoice.paid", `{"total":9007199254740993}`))
		require.Equal(t, http.StatusAccepted, resp.StatusCode, body)
	})
	t.Run("RefusesWhatDoesNotWithPointersIntoTheBody", func(t *testing.T) {
		resp, body := f.post(t, trackPath, with("bad", "invoice.paid", `{"a/b":1,"total":9007199254740994}`))
		p := requireProblem(t, resp, body, http.StatusUnprocessableEntity, "taxonomy_violation")
		require.ElementsMatch(t, []any{
			map[string]any{"pointer": "/properties/a~1b", "keyword": "additionalProperties", "schema": "/additionalProperties"},
			map[string]any{"pointer": "/properties/total", "keyword": "maximum", "schema": "/properties/total/maximum"},
		}, p["violations"])
		require.Contains(t, p["detail"], "Version 3")
		require.InDelta(t, 1, testutil.ToFloat64(f.api.metrics.rejections.WithLabelValues("taxonomy_violation")), 0)
		resp, body = f.post(t, identifyPath, `{"idempotency_key":"i","occurred_at":"2026-11-01T06:30:00Z","identifiers":{"email":"ana@example.com"},"traits":{"age":"x"}}`)
		require.Equal(t, "/traits/age", requireProblem(t, resp, body, http.StatusUnprocessableEntity, "taxonomy_violation")["pointer"])
	})
	t.Run("TakesWhatIsOnlyObservedAndWhatHasNoSchema", func(t *testing.T) {
		for _, name := range []string{"cart.opened", "page.seen"} {
			resp, body := f.post(t, trackPath, with("free-"+name, name, `{"total":"x"}`))
			require.Equal(t, http.StatusAccepted, resp.StatusCode, body)
		}
	})
	t.Run("JudgesEachEventOfABatchByItself", func(t *testing.T) {
		bad := func(key string) string { return `{"type":"track",` + with(key, "invoice.paid", `{}`)[1:] }
		before := len(f.queue.taken())
		resp, body := f.post(t, batchPath, batchOf(item("b-0"), bad("b-1"), item("b-2")))
		require.Equal(t, http.StatusAccepted, resp.StatusCode, body)
		var got struct {
			Accepted, Rejected int
			Results            []struct {
				Error struct{ Code, Pointer string }
			}
		}
		require.NoError(t, json.Unmarshal([]byte(body), &got))
		require.Equal(t, 2, got.Accepted)
		require.Equal(t, "taxonomy_violation", got.Results[1].Error.Code)
		require.Equal(t, "/events/1/properties/total", got.Results[1].Error.Pointer)
		require.Len(t, f.queue.taken(), before+2)
		resp, body = f.post(t, batchPath, batchOf(bad("b-3")))
		requireProblem(t, resp, body, http.StatusUnprocessableEntity, "no_event_accepted")
		require.Len(t, f.queue.taken(), before+2)
	})
}

// BenchmarkTaxonomy is the handler's cost in turn: no taxonomy at all, a tenant
// without schemas beside one that has some, and an event that is judged.
func BenchmarkTaxonomy(b *testing.B) {
	schema := taxonomy.NewSchema(1, taxonomy.Enforce, `{"required":["total"],"properties":{"total":{"type":"number"}}}`)
	for _, c := range []struct {
		name string
		t    Taxonomy
	}{{"none", nil}, {"without", installed{"other.event": schema}}, {"judged", installed{"invoice.paid": schema}}} {
		b.Run(c.name, func(b *testing.B) {
			api, err := New(Config{}, Deps{Keys: keyring{goodKey: principal(apikey.ScopeEventsWrite)}, Queue: bottomless{}, Taxonomy: c.t,
				Metrics: prometheus.NewRegistry(), Now: func() time.Time { return now }})
			require.NoError(b, err)
			r := httpserver.NewRouter()
			api.Mount(r)
			body := strings.NewReader(track("x"))
			req := httptest.NewRequest(http.MethodPost, trackPath, nil)
			req.Header = http.Header{"Authorization": {"Bearer " + goodKey}, "Content-Type": {"application/json"}}
			req.Body, req.ContentLength = io.NopCloser(body), body.Size()
			w := &quiet{h: http.Header{}}
			b.ReportAllocs()
			for b.Loop() {
				_, _ = body.Seek(0, io.SeekStart)
				if r.ServeHTTP(w, req); w.status != http.StatusAccepted {
					b.Fatal(w.status)
				}
			}
		})
	}
}
