package ingestor

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/softcrum/carril/ingestor/apikey"
	"github.com/softcrum/carril/internal/httpserver"
	"github.com/softcrum/carril/internal/testkit"
	"github.com/softcrum/carril/schemas"
)

// FuzzStored holds the promise of a 202 against PostgreSQL: what was accepted is
// stored, and the row as the export writes it (to_jsonb) gives the same digits
// and text back. What was not accepted gets a problem in JSON, and nothing
// panics.
func FuzzStored(f *testing.F) {
	pool := testkit.Pool(f)
	for _, sql := range []string{`INSERT INTO core.tenants (tenant_id, slug, name, plan_id) VALUES ($1, 'acme', 'acme', 'starter')`,
		`INSERT INTO core.contacts (tenant_id, contact_id, cell_id, known) VALUES ($1, $1, 'c1', true)`} {
		_, err := pool.Exec(context.Background(), sql, tenantID)
		require.NoError(f, err)
	}
	paths := []string{trackPath, identifyPath, batchPath, messagesPath}
	for _, b := range badInputs {
		if len(b.body) > 4_000 {
			continue
		}
		for i, p := range paths {
			if p == b.path || b.path == "" && i == 0 {
				f.Add(byte(i), []byte(b.body))
			}
		}
	}
	for _, p := range []string{`{"n":[0.10,-0.0,1e-7,1E+2,12.50e1,-0e-5,5e-324,123456789012345678901234567890.123456789]}`,
		`{"":{"a b":"\"\\\/\b\f\n\r\t","é":"\u2028\ufeff\uffff\ud83d\ude00"},"__proto__":[[],{},null,true]}`} {
		f.Add(byte(0), []byte(props(p)))
		f.Add(byte(1), []byte(identify("k \"\\", `{"external_id":"ñ\\ \"'","own_kind":"0"}`, p)))
	}
	f.Add(byte(2), []byte(batchOf(item("a"), `{"type":"identify",`+identify("b", `{"email":"a@example.com"}`, `{"x":1.0}`)[1:], "7")))
	f.Add(byte(3), []byte(code("k", "transactional")))
	f.Add(byte(3), []byte(`{"idempotency_key":"k","channel":"email","category":"marketing","recipients":[{"address":"a@example.com","variables":{"n":1.10}}],
		"content":{"subject":"s\n","text":"\u2028"},"correlation_id":"c\\"}`))

	f.Fuzz(func(t *testing.T, path byte, body []byte) {
		q := &memoryQueue{}
		w := httptest.NewRecorder()
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, paths[int(path)%len(paths)], strings.NewReader(string(body)))
		r.Header.Set("Authorization", "Bearer "+goodKey)
		r.Header.Set("Content-Type", "application/json")
		routesOver(t, q).ServeHTTP(w, r)

		require.True(t, json.Valid(w.Body.Bytes()), "an answer that is no JSON: %q", w.Body)
		if w.Code != http.StatusAccepted {
			require.GreaterOrEqual(t, w.Code, 400)
			require.Less(t, w.Code, 500, w.Body)
			require.Equal(t, httpserver.ProblemType, w.Header().Get("Content-Type"))
			require.Empty(t, q.events)
			require.Empty(t, q.asked)
			return
		}
		require.NotZero(t, len(q.events)+len(q.asked))
		for _, ev := range q.events {
			requireStored(t, pool, ev)
		}
		for _, n := range q.asked {
			requireKept(t, pool, n.Variables, n.Recipients, orEmpty(n.Content))
		}
	})
}

// routesOver is an API in this process whose queue is q.
func routesOver(t *testing.T, q *memoryQueue) http.Handler {
	api, err := New(Config{}, Deps{Keys: keyring{goodKey: principal(apikey.ScopeEventsWrite, apikey.ScopeMessagesWrite)}, Queue: q, Requests: q,
		Channels: []string{"email"}, Metrics: prometheus.NewRegistry(), Now: func() time.Time { return now }})
	require.NoError(t, err)
	router := httpserver.NewRouter()
	api.Mount(router)
	return httpserver.Identify(router, slog.New(slog.DiscardHandler))
}

// requireStored appends the event as the stage does, reads the row as the export
// does, and takes both back.
func requireStored(t *testing.T, pool *pgxpool.Pool, ev schemas.Event) {
	var row struct {
		EventName      string          `json:"event_name"`
		IdempotencyKey string          `json:"idempotency_key"`
		CorrelationID  string          `json:"correlation_id"`
		Properties     json.RawMessage `json:"properties"`
	}
	rollBack(t, pool, func(tx pgx.Tx) error {
		var text string
		err := tx.QueryRow(context.Background(), `INSERT INTO core.tracked_events (tenant_id, event_id, cell_id, contact_id, kind, event_name, properties, occurred_at,
			occurred_offset, occurred_claimed, received_at, idempotency_key, correlation_id, retention_months, historical, lane, lane_seq)
			VALUES ($1, $2, $3, $2, $4, $5, $6::text::jsonb, $7, $8, $9, $10, $11, $12, 13, $13, 1, 1) RETURNING to_jsonb(tracked_events)::text`,
			ev.TenantID, ev.EventID, ev.CellID, ev.Kind, ev.EventName, ev.Payload, ev.OccurredAt, ev.OccurredOffset, ev.OccurredClaimed, ev.ReceivedAt,
			ev.IdempotencyKey, ev.CorrelationID, ev.Historical).Scan(&text)
		if err != nil {
			return err
		}
		return json.Unmarshal([]byte(text), &row)
	})
	require.Equal(t, ev.EventName, row.EventName)
	require.Equal(t, ev.IdempotencyKey, row.IdempotencyKey)
	require.Equal(t, ev.CorrelationID, row.CorrelationID)
	requireSameJSON(t, ev.Payload, string(row.Properties))
	requireKept(t, pool, ev.Identifiers)
	requireAttached(t, pool, ev.Identifiers)
}

// requireKept stores JSON and reads it back.
func requireKept(t *testing.T, pool *pgxpool.Pool, texts ...string) {
	for _, sent := range texts {
		if sent == "" {
			continue
		}
		var got string
		require.NoError(t, pool.QueryRow(context.Background(), `SELECT to_jsonb(x)::text FROM (SELECT $1::text::jsonb AS kept) x`, sent).Scan(&got))
		requireSameJSON(t, `{"kept":`+sent+`}`, got)
	}
}

// requireAttached stores each identifier as the text that it is.
func requireAttached(t *testing.T, pool *pgxpool.Pool, identifiers string) {
	var kinds map[string]*string
	require.NoError(t, json.Unmarshal([]byte(identifiers), &kinds))
	for kind, value := range kinds {
		if value == nil {
			continue
		}
		rollBack(t, pool, func(tx pgx.Tx) error {
			_, err := tx.Exec(context.Background(), `INSERT INTO core.contact_identifiers (tenant_id, kind, value, contact_id) VALUES ($1, $2, $3, $1)`,
				tenantID, kind, *value)
			return err
		})
	}
}

func rollBack(t *testing.T, pool *pgxpool.Pool, f func(pgx.Tx) error) {
	tx, err := pool.Begin(context.Background())
	require.NoError(t, err)
	defer func() { require.NoError(t, tx.Rollback(context.Background())) }()
	require.NoError(t, f(tx))
}

// requireSameJSON asks for the same keys, text and digits; a number may be
// written without its exponent, and a zero has no sign.
func requireSameJSON(t *testing.T, sent, got string) {
	require.Equal(t, inPlain(t, sent), inPlain(t, got))
}

func inPlain(t *testing.T, text string) any {
	d := json.NewDecoder(strings.NewReader(text))
	d.UseNumber()
	var v any
	require.NoError(t, d.Decode(&v))
	return plainNumbers(v)
}

func plainNumbers(v any) any {
	switch v := v.(type) {
	case json.Number:
		return "number " + plainNumber(string(v))
	case map[string]any:
		for k := range v {
			v[k] = plainNumbers(v[k])
		}
	case []any:
		for i := range v {
			v[i] = plainNumbers(v[i])
		}
	}
	return v
}

// plainNumber writes a JSON number without an exponent, with all of its digits.
func plainNumber(s string) string {
	mantissa, exponent := s, 0
	if i := strings.IndexAny(s, "eE"); i >= 0 {
		mantissa = s[:i]
		if _, err := fmt.Sscanf(strings.TrimPrefix(s[i+1:], "+"), "%d", &exponent); err != nil {
			return s
		}
	}
	sign := ""
	if strings.HasPrefix(mantissa, "-") {
		sign, mantissa = "-", mantissa[1:]
	}
	whole, fraction, _ := strings.Cut(mantissa, ".")
	scale := max(0, len(fraction)-exponent)
	digits := whole + fraction
	if point := len(whole) + exponent; point > len(digits) {
		digits += strings.Repeat("0", point-len(digits))
	}
	if short := scale + 1 - len(digits); short > 0 {
		digits = strings.Repeat("0", short) + digits
	}
	whole, fraction = digits[:len(digits)-scale], digits[len(digits)-scale:]
	if whole = strings.TrimLeft(whole, "0"); whole == "" {
		whole = "0"
	}
	if strings.Trim(whole+fraction, "0") == "" {
		sign = ""
	}
	if fraction != "" {
		fraction = "." + fraction
	}
	return sign + whole + fraction
}

func TestPlainNumber(t *testing.T) {
	t.Parallel()
	for s, want := range map[string]string{"0": "0", "-0": "0", "-0.0": "0.0", "1E2": "100", "1.50e1": "15.0", "1e-7": "0.0000001", "-12.5e-1": "-1.25",
		"0e-3": "0.000", "9007199254740993": "9007199254740993", "0.10": "0.10", "1.5e+3": "1500"} {
		require.Equal(t, want, plainNumber(s), s)
	}
}

func orEmpty(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}
