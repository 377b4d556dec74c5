package providerhook_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/iotest"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/softcrum/carril/ingestor/providerhook"
	"github.com/softcrum/carril/internal/httpserver"
	"github.com/softcrum/carril/internal/signature"
	"github.com/softcrum/carril/internal/testkit/contract"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// queue keeps what was enqueued, or fails.
type queue struct {
	mu     sync.Mutex
	events []providerhook.Event
	err    error
	block  bool // until the context ends
}

func (q *queue) Enqueue(ctx context.Context, e providerhook.Event) error {
	if q.block {
		<-ctx.Done()
		return ctx.Err()
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.err == nil {
		q.events = append(q.events, e)
	}
	return q.err
}

func (q *queue) all() []providerhook.Event {
	q.mu.Lock()
	defer q.mu.Unlock()
	return append([]providerhook.Event(nil), q.events...)
}

// bundle is a handler with all that it stands on.
type bundle struct {
	*providerhook.Handler
	t        *testing.T
	secret   signature.Secret
	queue    *queue
	registry *prometheus.Registry
	now      time.Time
	router   http.Handler
}

func newBundle(t *testing.T, change func(*providerhook.Config)) *bundle {
	t.Helper()
	b := &bundle{
		t: t, secret: signature.NewSecret(), queue: &queue{}, registry: prometheus.NewRegistry(),
		now: time.Date(2026, 11, 22, 10, 0, 0, 0, time.UTC),
	}
	cfg := providerhook.Config{Sources: []providerhook.Source{{
		Provider: "resend", Verifier: providerhook.Svix, Secrets: []providerhook.Secret{{Secret: b.secret}},
	}}}
	if change != nil {
		change(&cfg)
	}
	h, err := providerhook.New(cfg, providerhook.Deps{
		Queue: b.queue, Registerer: b.registry, Now: func() time.Time { return b.now },
	})
	require.NoError(t, err)
	b.Handler = h
	router := chi.NewRouter()
	router.Handle(providerhook.Route, h)
	b.router = router
	return b
}

// signed is a request as the provider would make it.
func (b *bundle) signed(body string, secrets ...signature.Secret) *http.Request {
	if len(secrets) == 0 {
		secrets = []signature.Secret{b.secret}
	}
	r := httptest.NewRequest(http.MethodPost, "/v1/providers/resend/webhooks", strings.NewReader(body))
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("svix-id", "msg_1")
	r.Header.Set("svix-timestamp", strconv.FormatInt(b.now.Unix(), 10))
	r.Header.Set("svix-signature", signature.SignAll(secrets, "msg_1", b.now, []byte(body)))
	return r
}

// do sends a request as the server does, and holds the answer to a POST against
// the contract.
func (b *bundle) do(r *http.Request) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	httpserver.Identify(b.router, slog.New(slog.DiscardHandler)).ServeHTTP(w, r)
	if r.Method == http.MethodPost {
		contract.Require(b.t, contract.Exchange{Route: providerhook.Route, Params: map[string]string{"provider": "resend"}, Request: r, Sent: "{}",
			Status: w.Code, Header: w.Header(), Answered: w.Body.Bytes()})
	}
	return w
}

// refused wants a problem and nothing enqueued.
func (b *bundle) refused(r *http.Request, status int, code string) *httptest.ResponseRecorder {
	b.t.Helper()
	w := b.do(r)
	require.Equal(b.t, status, w.Code, w.Body.String())
	require.Equal(b.t, "application/problem+json", w.Header().Get("Content-Type"))
	var p struct {
		Type, Title, Code, Detail string
		Status                    int
	}
	require.NoError(b.t, json.Unmarshal(w.Body.Bytes(), &p))
	require.Equal(b.t, code, p.Code)
	require.Equal(b.t, status, p.Status)
	require.NotEmpty(b.t, p.Type)
	require.NotEmpty(b.t, p.Title)
	require.NotEmpty(b.t, p.Detail)
	require.Empty(b.t, b.queue.all())
	return w
}

func (b *bundle) counted(outcome string) float64 {
	b.t.Helper()
	families, err := b.registry.Gather()
	require.NoError(b.t, err)
	total := 0.0
	for _, f := range families {
		for _, m := range f.GetMetric() {
			for _, l := range m.GetLabel() {
				if l.GetName() == "outcome" && l.GetValue() == outcome {
					total += m.GetCounter().GetValue()
				}
			}
		}
	}
	return total
}

const body = `{"type":"email.bounced", "data":{"n":1.0}}`

func TestHandler(t *testing.T) {
	t.Parallel()

	t.Run("EnqueuesAVerifiedEventAsItCame", func(t *testing.T) {
		t.Parallel()
		want := providerhook.Reference{SendID: uuid.New(), TenantID: uuid.New(), ProviderMessageID: "em_1"}
		b := newBundle(t, func(c *providerhook.Config) {
			c.Sources[0].Refer = func(raw []byte) providerhook.Reference {
				require.Equal(t, body, string(raw))
				return want
			}
		})
		w := b.do(b.signed(body))
		require.Equal(t, http.StatusOK, w.Code)
		require.JSONEq(t, `{"status":"accepted"}`, w.Body.String())
		require.Equal(t, []providerhook.Event{{
			Provider: "resend", ProviderEventID: "msg_1", ReceivedAt: b.now, RawBody: []byte(body), Reference: want,
		}}, b.queue.all())
		require.Equal(t, 1.0, b.counted("accepted"))
	})

	t.Run("IsFoundByTheStandardMuxToo", func(t *testing.T) {
		t.Parallel()
		b := newBundle(t, nil)
		mux := http.NewServeMux()
		mux.Handle(providerhook.Route, b.Handler)
		b.router = mux
		require.Equal(t, http.StatusOK, b.do(b.signed(body)).Code)
	})

	t.Run("AnswersUnknownProvidersWith404", func(t *testing.T) {
		t.Parallel()
		b := newBundle(t, nil)
		r := b.signed(body)
		r.URL.Path = "/v1/providers/other/webhooks"
		b.refused(r, http.StatusNotFound, "unknown_provider")
		require.Equal(t, 1.0, b.counted("unknown_provider"))
	})

	t.Run("AnswersOtherMethodsWith405", func(t *testing.T) {
		t.Parallel()
		b := newBundle(t, nil)
		r := b.signed(body)
		r.Method = http.MethodPut
		require.Equal(t, "POST", b.refused(r, http.StatusMethodNotAllowed, "method_not_allowed").Header().Get("Allow"))
	})

	t.Run("NamesTheRequestInAProblem", func(t *testing.T) {
		t.Parallel()
		b := newBundle(t, nil)
		w := httptest.NewRecorder()
		httpserver.Identify(b.router, slog.New(slog.DiscardHandler)).ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/v1/providers/resend/webhooks", nil))
		require.Contains(t, w.Body.String(), `"instance":"`+w.Header().Get(httpserver.RequestIDHeader)+`"`)
		require.Contains(t, w.Body.String(), `"type":"urn:carril:problem:`)
	})
}

func TestSignature(t *testing.T) {
	t.Parallel()

	// FS-MSG-0003 AC5; bad-inputs row 71.
	t.Run("IsRefusedWithoutAWriteWhereItDoesNotVerify", func(t *testing.T) {
		t.Parallel()
		var first string
		for name, change := range map[string]func(r *http.Request){
			"none":             func(r *http.Request) { r.Header.Del("svix-signature") },
			"empty":            func(r *http.Request) { r.Header.Set("svix-signature", "") },
			"v1 alone":         func(r *http.Request) { r.Header.Set("svix-signature", "v1,") },
			"odd Base64":       func(r *http.Request) { r.Header.Set("svix-signature", "v1,abc") },
			"not Base64":       func(r *http.Request) { r.Header.Set("svix-signature", "v1,"+strings.Repeat("\xff", 44)) },
			"1,000 of them":    func(r *http.Request) { r.Header.Set("svix-signature", strings.Repeat("v1,x ", 1000)) },
			"no id":            func(r *http.Request) { r.Header.Del("svix-id") },
			"another id":       func(r *http.Request) { r.Header.Set("svix-id", "msg_2") },
			"no timestamp":     func(r *http.Request) { r.Header.Del("svix-timestamp") },
			"a word of a time": func(r *http.Request) { r.Header.Set("svix-timestamp", "now") },
			"nothing at all":   func(r *http.Request) { r.Header = http.Header{} },
		} {
			b := newBundle(t, nil)
			r := b.signed(body)
			change(r)
			w := b.refused(r, http.StatusUnauthorized, "invalid_signature")
			require.NotEmpty(t, w.Header().Get("WWW-Authenticate"))
			answer := strings.Replace(w.Body.String(), w.Header().Get(httpserver.RequestIDHeader), "-", 1) // each request has its own
			if first == "" {
				first = answer
			}
			require.Equal(t, first, answer, "%s: the answer says no more than another one's", name)
			require.Zero(t, b.counted("accepted"))
		}
	})

	t.Run("CoversTheRawBytes", func(t *testing.T) {
		t.Parallel() // bad-inputs row 72
		b := newBundle(t, nil)
		r := b.signed(body)
		var v any
		require.NoError(t, json.Unmarshal([]byte(body), &v))
		again, err := json.Marshal(v)
		require.NoError(t, err)
		r.Body, r.ContentLength = io.NopCloser(strings.NewReader(string(again))), int64(len(again))
		b.refused(r, http.StatusUnauthorized, "invalid_signature")
		require.Equal(t, 1.0, b.counted(string(signature.ErrMismatch)))
	})

	t.Run("HoldsFiveMinutesAndRepeatsAreTakenWithTheSameId", func(t *testing.T) {
		t.Parallel() // bad-inputs row 74: the status worker dedupes on the id
		b := newBundle(t, nil)
		sent := b.now
		for _, off := range []time.Duration{0, time.Second, 5 * time.Minute} {
			r := b.signed(body)
			b.now = sent.Add(off)
			require.Equal(t, http.StatusOK, b.do(r).Code)
			b.now = sent
		}
		events := b.queue.all()
		require.Len(t, events, 3)
		for _, e := range events {
			require.Equal(t, "msg_1", e.ProviderEventID)
			require.Equal(t, body, string(e.RawBody))
		}
		late := newBundle(t, nil)
		r := late.signed(body)
		late.now = late.now.Add(5*time.Minute + time.Second)
		late.refused(r, http.StatusUnauthorized, "invalid_signature")
	})

	t.Run("IsTakenFromAnOldSecretUntilItEnds", func(t *testing.T) {
		t.Parallel() // bad-inputs row 75
		old := signature.NewSecret()
		var ends time.Time
		b := newBundle(t, nil)
		ends = b.now.Add(24 * time.Hour)
		require.NoError(t, b.SetSecrets("resend", []providerhook.Secret{{Secret: b.secret}, {Secret: old, Until: ends}}))
		b.now = ends.Add(-time.Second)
		require.Equal(t, http.StatusOK, b.do(b.signed(body, old)).Code)
		require.Equal(t, http.StatusOK, b.do(b.signed(body)).Code)
		b.now = ends
		b.queue.events = nil
		b.refused(b.signed(body, old), http.StatusUnauthorized, "invalid_signature")
		require.Equal(t, http.StatusOK, b.do(b.signed(body)).Code)
		require.Equal(t, http.StatusOK, b.do(b.signed(body, old, b.secret)).Code) // signed with both
	})

	t.Run("OfOneProviderDoesNotOpenAnother", func(t *testing.T) {
		t.Parallel()
		b := newBundle(t, func(c *providerhook.Config) {
			c.Sources = append(c.Sources, providerhook.Source{
				Provider: "other", Verifier: providerhook.StandardWebhooks, Secrets: []providerhook.Secret{{Secret: signature.NewSecret()}},
			})
		})
		r := b.signed(body)
		r.URL.Path = "/v1/providers/other/webhooks"
		b.refused(r, http.StatusUnauthorized, "invalid_signature")
	})

	t.Run("IsWantedForAForgedBounce", func(t *testing.T) {
		t.Parallel() // bad-inputs row 80
		b := newBundle(t, nil)
		r := httptest.NewRequest(http.MethodPost, "/v1/providers/resend/webhooks",
			strings.NewReader(`{"type":"email.bounced","data":{"to":["victim@example.com"],"bounce":{"type":"Permanent"}}}`))
		b.refused(r, http.StatusUnauthorized, "invalid_signature")
	})
}

func TestBody(t *testing.T) {
	t.Parallel()

	t.Run("IsBounded", func(t *testing.T) {
		t.Parallel()
		small := func(c *providerhook.Config) { c.MaxBody = 64 }
		b := newBundle(t, small)
		require.Equal(t, http.StatusOK, b.do(b.signed(strings.Repeat("a", 64))).Code)
		b = newBundle(t, small)
		b.refused(b.signed(strings.Repeat("a", 65)), http.StatusRequestEntityTooLarge, "body_too_large")
		r := b.signed(strings.Repeat("a", 65))
		r.ContentLength = -1 // chunked
		b.refused(r, http.StatusRequestEntityTooLarge, "body_too_large")
		require.Equal(t, 2.0, b.counted("body_too_large"))
	})

	t.Run("IsRefusedByItsAnnouncedLengthUnread", func(t *testing.T) {
		t.Parallel()
		b := newBundle(t, nil)
		r := b.signed("abc")
		r.ContentLength = 9_999_999_999
		r.Body = io.NopCloser(iotest.ErrReader(errors.New("it was read")))
		w := b.refused(r, http.StatusRequestEntityTooLarge, "body_too_large")
		require.Equal(t, "close", w.Header().Get("Connection"))
	})

	t.Run("IsRefusedWhereItEndsEarly", func(t *testing.T) {
		t.Parallel()
		b := newBundle(t, nil)
		r := b.signed(body)
		r.Body = io.NopCloser(iotest.ErrReader(io.ErrUnexpectedEOF))
		b.refused(r, http.StatusBadRequest, "unreadable_body")
	})

	t.Run("IsTakenPlainOnly", func(t *testing.T) {
		t.Parallel()
		b := newBundle(t, nil)
		r := b.signed(body)
		r.Header.Set("Content-Encoding", "gzip")
		b.refused(r, http.StatusUnsupportedMediaType, "unsupported_encoding")
	})

	t.Run("IsNotJudged", func(t *testing.T) {
		t.Parallel() // bad-inputs row 81: what is unknown, extra or bad is for who reads the queue
		item := `{"event":"bounce","sg_event_id":"x"}`
		for _, text := range []string{
			``, `x`, `null`, `{"type":"email.something_new","extra":{"deep":[1,2]}}`,
			`[` + strings.Repeat(item+`,`, 9_999) + `"a bad one"]`,
		} {
			b := newBundle(t, nil)
			require.Equal(t, http.StatusOK, b.do(b.signed(text)).Code, len(text))
			require.Len(t, b.queue.all(), 1)
			require.Equal(t, text, string(b.queue.all()[0].RawBody))
		}
	})

	t.Run("MakesNobodyFetchAnything", func(t *testing.T) {
		t.Parallel() // bad-inputs row 78
		l, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		dialed := make(chan struct{})
		done := make(chan struct{})
		go func() {
			defer close(done)
			if c, err := l.Accept(); err == nil {
				_ = c.Close()
				close(dialed)
			}
		}()
		b := newBundle(t, nil)
		w := b.do(b.signed(fmt.Sprintf(`{"Type":"SubscriptionConfirmation","SubscribeURL":"http://%s/"}`, l.Addr())))
		require.Equal(t, http.StatusOK, w.Code)
		require.NoError(t, l.Close())
		<-done
		select {
		case <-dialed:
			t.Fatal("the URL was fetched")
		default:
		}
	})
}

func TestQueue(t *testing.T) {
	t.Parallel()

	t.Run("ThatFailsMakesTheProviderComeAgain", func(t *testing.T) {
		t.Parallel()
		b := newBundle(t, nil)
		b.queue.err = errors.New("kafka is away")
		w := b.refused(b.signed(body), http.StatusServiceUnavailable, "queue_unavailable")
		require.Equal(t, "5", w.Header().Get("Retry-After"))
		require.NotContains(t, w.Body.String(), "kafka")
		b.queue.err = nil
		require.Equal(t, http.StatusOK, b.do(b.signed(body)).Code)
	})

	t.Run("ThatHangsIsWaitedForWithinTheTimeout", func(t *testing.T) {
		t.Parallel()
		b := newBundle(t, func(c *providerhook.Config) { c.Timeout = time.Millisecond })
		b.queue.block = true
		b.refused(b.signed(body), http.StatusServiceUnavailable, "queue_unavailable")
		require.Equal(t, 1.0, b.counted("queue_unavailable"))
	})
}

func TestConfig(t *testing.T) {
	t.Parallel()
	secret := signature.NewSecret()
	good := func() providerhook.Config {
		return providerhook.Config{Sources: []providerhook.Source{{
			Provider: "resend", Verifier: providerhook.StandardWebhooks, Secrets: []providerhook.Secret{{Secret: secret}},
		}}}
	}

	t.Run("IsRefusedWhereItVerifiesNothing", func(t *testing.T) {
		t.Parallel() // bad-inputs rows 76 and 82
		for want, change := range map[string]func(*providerhook.Config){
			`unknown verifier "noop"`:  func(c *providerhook.Config) { c.Sources[0].Verifier = "noop" },
			`unknown verifier ""`:      func(c *providerhook.Config) { c.Sources[0].Verifier = "" },
			"no secret holds":          func(c *providerhook.Config) { c.Sources[0].Secrets = nil },
			"an empty one":             func(c *providerhook.Config) { c.Sources[0].Secrets = []providerhook.Secret{{}} },
			`"resend": no secret`:      func(c *providerhook.Config) { c.Sources[0].Secrets[0].Until = time.Unix(1, 0) },
			"more than 8 secrets":      func(c *providerhook.Config) { c.Sources[0].Secrets = make9(secret) },
			"there twice":              func(c *providerhook.Config) { c.Sources = append(c.Sources, c.Sources[0]) },
			"provider is no name":      func(c *providerhook.Config) { c.Sources[0].Provider = "../x" },
			"or it is taken":           func(c *providerhook.Config) { c.Sources[0].Provider = "unknown" },
			"there is no source":       func(c *providerhook.Config) { c.Sources = nil },
			"max_body is negative":     func(c *providerhook.Config) { c.MaxBody = -1 },
			"timeout is negative":      func(c *providerhook.Config) { c.Timeout = -1 },
			"retry_after is below 1 s": func(c *providerhook.Config) { c.RetryAfter = time.Millisecond },
		} {
			cfg := good()
			change(&cfg)
			_, err := providerhook.New(cfg, providerhook.Deps{Queue: &queue{}})
			require.ErrorContains(t, err, want)
			require.NotContains(t, fmt.Sprintf("%v %+v", err, cfg), secret.Reveal()[6:])
		}
		_, err := providerhook.New(good(), providerhook.Deps{})
		require.ErrorContains(t, err, "no queue")
	})

	t.Run("KeepsItsSecretsWhereNewOnesAreNone", func(t *testing.T) {
		t.Parallel()
		b := newBundle(t, nil)
		require.Error(t, b.SetSecrets("resend", nil))
		require.Error(t, b.SetSecrets("other", []providerhook.Secret{{Secret: secret}}))
		require.Equal(t, http.StatusOK, b.do(b.signed(body)).Code)
	})

	t.Run("RegistersItsMetricsOnceWithEveryOutcome", func(t *testing.T) {
		t.Parallel()
		b := newBundle(t, nil)
		families, err := b.registry.Gather()
		require.NoError(t, err)
		require.Len(t, families, 1)
		require.Len(t, families[0].GetMetric(), 7+len(signature.Errors()))
		_, err = providerhook.New(good(), providerhook.Deps{Queue: &queue{}, Registerer: b.registry})
		require.ErrorContains(t, err, "register")
	})
}

func make9(s signature.Secret) []providerhook.Secret {
	out := make([]providerhook.Secret, 9)
	for i := range out {
		out[i].Secret = s
	}
	return out
}
