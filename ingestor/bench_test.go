package ingestor

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/softcrum/carril/ingestor/apikey"
	"github.com/softcrum/carril/ingestor/limit"
	"github.com/softcrum/carril/internal/httpserver"
	"github.com/softcrum/carril/internal/kafka"
	"github.com/softcrum/carril/internal/ratelimit"
	"github.com/softcrum/carril/internal/testkit"
	"github.com/softcrum/carril/schemas"
)

// quiet is an answer that nobody reads.
type quiet struct {
	h      http.Header
	status int
}

func (q *quiet) Header() http.Header         { return q.h }
func (q *quiet) WriteHeader(status int)      { q.status = status }
func (q *quiet) Write(b []byte) (int, error) { return len(b), nil }

// bottomless takes everything at once.
type bottomless struct{}

func (bottomless) Enqueue(context.Context, []Record) error { return nil }

func BenchmarkHandler(b *testing.B) { benchHandler(b, principal(apikey.ScopeEventsWrite), nil) }

func benchHandler(b *testing.B, p *apikey.Principal, limits Limiter) {
	b.Helper()
	api, err := New(Config{}, Deps{Keys: keyring{goodKey: p}, Limits: limits, Queue: bottomless{}, Metrics: prometheus.NewRegistry(), Now: func() time.Time { return now }})
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
}

// BenchmarkLoad is what the queue's client is given for one event: Avro, key
// and headers.
func BenchmarkLoad(b *testing.B) {
	k := NewKafka(kafka.Config{Prefix: "t."}, nil, newCodec(b, ""))
	f := newFlight(&k.flights)
	id := "req-1"
	records := []Record{{Event: &schemas.Event{Kind: "track", EventID: tenantID, TenantID: tenantID, CellID: "c1", EventName: "invoice.paid", IdempotencyKey: "pos-17/invoice-000889",
		BodyHash: make([]byte, 32), OccurredAt: now, ReceivedAt: now, CorrelationID: "checkout-5512af", Identifiers: `{"external_id":"c-102938"}`,
		Payload: `{"invoice_id":"889","total":182500.50,"currency":"COP","items":[{"sku":"A-1","qty":2,"price":41250.25}]}`, RequestID: &id}}}
	b.ReportAllocs()
	for b.Loop() {
		if err := k.load(b.Context(), f, records); err != nil {
			b.Fatal(err)
		}
		f.records, f.headers, f.bytes = f.records[:0], f.headers[:0], f.bytes[:0]
	}
}

// BenchmarkHandlerLimited is BenchmarkHandler under a real limiter: the
// difference is what limits cost a request.
func BenchmarkHandlerLimited(b *testing.B) {
	url, prefix := testkit.Redis(b)
	rdb, err := ratelimit.Open(url)
	require.NoError(b, err)
	defer rdb.Close()
	l, err := limit.New(limit.Config{Prefix: prefix, Budget: time.Second}, limit.Deps{Redis: rdb, Metrics: prometheus.NewRegistry()})
	require.NoError(b, err)
	defer l.Stop()
	p := principal(apikey.ScopeEventsWrite)
	p.Tenant.EventsPerSecond, p.Tenant.EventsBurst = 100_000_000, 200_000_000
	benchHandler(b, p, l)
}
