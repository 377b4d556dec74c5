package ingestor

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/getkin/kin-openapi/routers"
	"github.com/go-chi/chi/v5"
	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/softcrum/carril/ingestor/apikey"
	"github.com/softcrum/carril/internal/httpserver"
	"github.com/softcrum/carril/internal/testkit"
	"github.com/softcrum/carril/schemas"
	"github.com/softcrum/carril/schemas/openapi"
)

func TestMain(m *testing.M) {
	testkit.Main(m, func() error { return goleak.Find() })
}

var (
	tenantID = uuid.MustParse("0190aaaa-0000-7000-8000-000000000001")
	now      = time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)
)

const goodKey = "ck_live_good"

// keyring knows the keys of the tests by their text.
type keyring map[string]any // *apikey.Principal or error

func (k keyring) Verify(_ context.Context, text string) (*apikey.Principal, error) {
	switch v := k[text].(type) {
	case *apikey.Principal:
		return v, nil
	case error:
		return nil, v
	}
	return nil, apikey.ErrInvalid
}

func principal(scopes ...string) *apikey.Principal {
	return &apikey.Principal{KeyID: "k1", Env: "live", TenantID: tenantID, Scopes: scopes, Tenant: apikey.Tenant{CellID: "c1", RetentionMonths: 13}}
}

// memoryQueue keeps what it was given, as copies.
type memoryQueue struct {
	mu     sync.Mutex
	events []schemas.Event
	traces []string
	asked  []schemas.NotificationRequested
	fail   func(ctx context.Context) error
}

func (q *memoryQueue) Enqueue(ctx context.Context, records []Record) error {
	q.mu.Lock()
	fail := q.fail
	q.mu.Unlock()
	if fail != nil {
		if err := fail(ctx); err != nil {
			return err
		}
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, r := range records {
		q.events = append(q.events, clone(r.Event))
		q.traces = append(q.traces, r.Traceparent)
	}
	return nil
}

func (q *memoryQueue) Request(ctx context.Context, n *schemas.NotificationRequested, _ string) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.fail != nil {
		if err := q.fail(ctx); err != nil {
			return err
		}
	}
	q.asked = append(q.asked, *n)
	return nil
}

func (q *memoryQueue) taken() []schemas.Event {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.events
}

// clone copies an event that points into a request's memory.
func clone(ev *schemas.Event) schemas.Event {
	c := *ev
	for _, s := range []*string{&c.Kind, &c.CellID, &c.EventName, &c.IdempotencyKey, &c.CorrelationID, &c.Identifiers, &c.Payload} {
		*s = strings.Clone(*s)
	}
	c.BodyHash = bytes.Clone(ev.BodyHash)
	if ev.RequestID != nil {
		id := strings.Clone(*ev.RequestID)
		c.RequestID = &id
	}
	return c
}

// front is an API on a server of its own.
type front struct {
	addr  string
	queue *memoryQueue
	keys  keyring
	reg   *prometheus.Registry
	logs  *lines
	api   *API

	router chi.Router
}

type lines struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func newFront(t testing.TB, cfg Config, server httpserver.Config, change func(*Deps)) *front {
	t.Helper()
	f := &front{queue: &memoryQueue{}, reg: prometheus.NewRegistry(), logs: &lines{}, keys: keyring{
		goodKey:             principal(apikey.ScopeEventsWrite, apikey.ScopeMessagesWrite),
		"ck_live_reader":    principal("core.events.read"),
		"ck_live_operator":  &apikey.Principal{Scopes: []string{apikey.ScopeEventsWrite, apikey.ScopeMessagesWrite}},
		"ck_live_disabled":  apikey.ErrTenantDisabled,
		"ck_live_storeaway": fmt.Errorf("%w: %w", apikey.ErrUnavailable, io.EOF),
	}}
	log := slog.New(slog.NewTextHandler(f.logs, nil))
	deps := Deps{Keys: f.keys, Queue: f.queue, Requests: f.queue, Channels: []string{"email"}, Log: log, Metrics: f.reg, Now: func() time.Time { return now }}
	if change != nil {
		change(&deps)
	}
	var err error
	f.api, err = New(cfg, deps)
	require.NoError(t, err)
	r := httpserver.NewRouter()
	m, err := httpserver.NewMetrics(f.reg)
	require.NoError(t, err)
	r.Use(m.Observe)
	f.api.Mount(r)
	f.router = r
	server.Addr = "127.0.0.1:0"
	s, err := httpserver.New(server, r, log)
	require.NoError(t, err)
	f.addr, err = s.Start(context.Background())
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Stop(context.Background())) })
	return f
}

// call is a request and what changes on it: headers by name; "" takes one away.
type call struct {
	path    string
	body    []byte
	headers map[string]string
}

func (f *front) post(t *testing.T, path, body string, headers ...string) (*http.Response, string) {
	t.Helper()
	c := call{path: path, body: []byte(body), headers: map[string]string{}}
	for i := 0; i < len(headers); i += 2 {
		c.headers[headers[i]] = headers[i+1]
	}
	return f.do(t, c)
}

// do sends a request over a connection of its own and holds it and the answer
// against the contract.
func (f *front) do(t *testing.T, c call) (*http.Response, string) {
	t.Helper()
	req, err := http.NewRequest(http.MethodPost, "http://"+f.addr+c.path, bytes.NewReader(c.body))
	require.NoError(t, err)
	req.Header.Set("Authorization", "Bearer "+goodKey)
	req.Header.Set("Content-Type", "application/json")
	for name, v := range c.headers {
		if req.Header.Set(name, v); v == "" {
			req.Header.Del(name)
		}
	}
	tr := &http.Transport{DisableCompression: true}
	defer tr.CloseIdleConnections()
	resp, err := (&http.Client{Transport: tr}).Do(req)
	require.NoError(t, err)
	body, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	requireContract(t, req, c.body, resp, body)
	return resp, string(body)
}

// status posts a body and gives the answer's status, or 0 for none; unlike
// post it may run beside the test.
func (f *front) status(path, body string) int {
	req, err := http.NewRequest(http.MethodPost, "http://"+f.addr+path, strings.NewReader(body))
	if err != nil {
		return 0
	}
	req.Header.Set("Authorization", "Bearer "+goodKey)
	req.Header.Set("Content-Type", "application/json")
	tr := &http.Transport{}
	defer tr.CloseIdleConnections()
	resp, err := (&http.Client{Transport: tr}).Do(req)
	if err != nil {
		return 0
	}
	defer resp.Body.Close()
	_, _ = io.Copy(io.Discard, resp.Body)
	return resp.StatusCode
}

// How long a test waits for what must come, and how often it looks.
const waitFor, tick = 30 * time.Second, 10 * time.Millisecond

// document loads the contract once.
var document = sync.OnceValues(func() (*openapi3.T, error) {
	return openapi3.NewLoader().LoadFromData(openapi.YAML)
})

// requireContract checks an answer against the document, and, where it says
// 202, that the document allows the request.
func requireContract(t *testing.T, req *http.Request, sent []byte, resp *http.Response, body []byte) {
	t.Helper()
	doc, err := document()
	require.NoError(t, err)
	item := doc.Paths.Value(req.URL.Path)
	if item == nil || item.GetOperation(req.Method) == nil {
		return
	}
	options := &openapi3filter.Options{IncludeResponseStatus: true, AuthenticationFunc: openapi3filter.NoopAuthenticationFunc, SkipSettingDefaults: true}
	in := &openapi3filter.RequestValidationInput{Request: req.Clone(t.Context()), Options: options,
		Route: &routers.Route{Spec: doc, Path: req.URL.Path, PathItem: item, Method: req.Method, Operation: item.GetOperation(req.Method)}}
	if resp.StatusCode == http.StatusAccepted && req.Header.Get("Content-Encoding") == "" && !bytes.Contains(body, []byte(`"rejected"`)) {
		in.Request.Body = io.NopCloser(bytes.NewReader(sent))
		require.NoError(t, openapi3filter.ValidateRequest(t.Context(), in))
	}
	out := &openapi3filter.ResponseValidationInput{RequestValidationInput: in, Status: resp.StatusCode, Header: resp.Header,
		Body: io.NopCloser(bytes.NewReader(body)), Options: options}
	require.NoError(t, openapi3filter.ValidateResponse(t.Context(), out), string(body))
}

// raw sends bytes over a fresh connection and reads one answer.
func (f *front) raw(t *testing.T, request string) (*http.Response, string) {
	t.Helper()
	c, err := net.Dial("tcp", f.addr)
	require.NoError(t, err)
	defer c.Close()
	require.NoError(t, c.SetDeadline(time.Now().Add(waitFor)))
	_, err = io.WriteString(c, request)
	require.NoError(t, err)
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	require.NoError(t, err)
	body, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	return resp, string(body)
}

func requireProblem(t *testing.T, resp *http.Response, body string, status int, code string) map[string]any {
	t.Helper()
	require.Equal(t, status, resp.StatusCode, body)
	require.Equal(t, httpserver.ProblemType, resp.Header.Get("Content-Type"))
	var p map[string]any
	require.NoError(t, json.Unmarshal([]byte(body), &p), body)
	require.Equal(t, code, p["code"], body)
	require.Equal(t, resp.Header.Get(httpserver.RequestIDHeader), p["instance"])
	return p
}

// track is a good event with a key.
func track(key string) string {
	return `{"event_name":"invoice.paid","idempotency_key":"` + key + `","occurred_at":"2026-11-01T01:30:00.5-05:00","identifiers":{"external_id":"c-1"},"properties":{"total":12.50}}`
}

// item is one of a batch.
func item(key string) string { return `{"type":"track",` + track(key)[1:] }

func batchOf(items ...string) string { return `{"events":[` + strings.Join(items, ",") + `]}` }

func items(n int) []string {
	out := make([]string, n)
	for i := range out {
		out[i] = item(fmt.Sprintf("k-%d", i))
	}
	return out
}
