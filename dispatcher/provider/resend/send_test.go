package resend_test

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/softcrum/carril/dispatcher/provider"
	"github.com/softcrum/carril/dispatcher/provider/resend"
)

// carrier is a transport that answers by itself.
type carrier func(*http.Request) (*http.Response, error)

func (c carrier) RoundTrip(r *http.Request) (*http.Response, error) { return c(r) }

func answering(status int, body string, headers ...string) carrier {
	return func(r *http.Request) (*http.Response, error) {
		if _, err := io.Copy(io.Discard, r.Body); err != nil {
			return nil, err
		}
		h := http.Header{}
		for i := 0; i < len(headers); i += 2 {
			h.Set(headers[i], headers[i+1])
		}
		return &http.Response{StatusCode: status, Header: h, Body: io.NopCloser(strings.NewReader(body)), Request: r}, nil
	}
}

func over(t testing.TB, c carrier) *resend.Adapter {
	t.Helper()
	a, err := resend.New(resend.Config{APIKey: resend.NewKey(testKey)}, resend.Deps{Transport: c})
	require.NoError(t, err)
	return a
}

// attempt sends n messages through a transport; n above 1 is a batch.
func attempt(t testing.TB, c carrier, n int) (provider.Result, *provider.Error) {
	t.Helper()
	a := over(t, c)
	msgs := make([]provider.Message, n)
	for i := range msgs {
		msgs[i] = message()
	}
	f, err := a.Freeze(msgs, n > 1)
	require.NoError(t, err)
	res, err := a.Send(context.Background(), provider.Request{Frozen: f, IdempotencyKey: "key"})
	if err == nil {
		return res, nil
	}
	var perr *provider.Error
	require.ErrorAs(t, err, &perr)
	return res, perr
}

func TestClasses(t *testing.T) {
	t.Parallel()

	// The table of Resend's errors, row by row.
	t.Run("FollowResendsTable", func(t *testing.T) {
		t.Parallel()
		for _, row := range []struct {
			status int
			names  string
			want   provider.Class
		}{
			{400, "invalid_idempotency_key validation_error", provider.ClassPermanent},
			{401, "missing_api_key restricted_api_key", provider.ClassConfiguration},
			{403, "validation_error", provider.ClassSender},
			{403, "invalid_api_key suspended_api_key", provider.ClassConfiguration},
			{404, "not_found", provider.ClassPermanent},
			{405, "method_not_allowed", provider.ClassPermanent},
			{409, "invalid_idempotent_request", provider.ClassPermanent},
			{409, "concurrent_idempotent_requests", provider.ClassUncertain},
			{422, "invalid_attachment invalid_from_address invalid_access invalid_parameter invalid_region missing_required_field", provider.ClassPermanent},
			{429, "rate_limit_exceeded daily_quota_exceeded monthly_quota_exceeded", provider.ClassThrottled},
			{451, "security_error", provider.ClassPermanent},
			{500, "application_error internal_server_error", provider.ClassUncertain},
			{502, "application_error", provider.ClassUncertain},
		} {
			for _, name := range strings.Fields(row.names) {
				body := fmt.Sprintf(`{"statusCode":%d,"name":%q,"message":"m"}`, row.status, name)
				for _, n := range []int{1, 3} {
					_, err := attempt(t, answering(row.status, body), n)
					require.Equal(t, row.want, err.Class, "%d %s", row.status, name)
					require.Equal(t, name, err.Code)
					require.Equal(t, row.status, err.Status)
					require.Equal(t, strings.Contains(name, "quota"), err.Quota)
				}
			}
		}
	})

	t.Run("GoByTheStatusForAnUnknownName", func(t *testing.T) {
		t.Parallel()
		for status, want := range map[int]provider.Class{
			301: provider.ClassConfiguration, 307: provider.ClassConfiguration,
			400: provider.ClassPermanent, 401: provider.ClassConfiguration, 402: provider.ClassConfiguration,
			403: provider.ClassConfiguration, 404: provider.ClassPermanent, 405: provider.ClassPermanent,
			408: provider.ClassUncertain, 409: provider.ClassUncertain, 413: provider.ClassPermanent,
			418: provider.ClassPermanent, 422: provider.ClassPermanent, 425: provider.ClassUncertain,
			429: provider.ClassThrottled, 451: provider.ClassPermanent, 500: provider.ClassUncertain,
			503: provider.ClassUncertain, 599: provider.ClassUncertain,
		} {
			_, err := attempt(t, answering(status, `{"statusCode":1,"name":"new_name","message":"m"}`), 1)
			require.Equal(t, want, err.Class, status)
			require.Equal(t, "new_name", err.Code)
			_, err = attempt(t, answering(status, `error code: 1010`), 1) // what stands before the API answers so
			require.Equal(t, want, err.Class, status)
			require.Equal(t, fmt.Sprint("http_", status), err.Code)
		}
	})

	t.Run("KeepNoNameThatIsNone", func(t *testing.T) {
		t.Parallel()
		for _, name := range []string{"", "ana@example.com", "Two words", strings.Repeat("a", 65)} {
			body, err := json.Marshal(map[string]any{"name": name})
			require.NoError(t, err)
			_, perr := attempt(t, answering(422, string(body)), 1)
			require.Equal(t, "http_422", perr.Code)
		}
	})

	t.Run("SayWhereABatchMayBeHalved", func(t *testing.T) {
		t.Parallel()
		for body, want := range map[string]bool{
			`422 invalid_parameter`:              true,
			`422 something_new`:                  true,
			`400 validation_error`:               true,
			`413 too_large`:                      true,
			`451 security_error`:                 true,
			`400 invalid_idempotency_key`:        false,
			`409 invalid_idempotent_request`:     false,
			`404 not_found`:                      false,
			`500 application_error`:              false,
			`403 validation_error`:               false,
			`409 concurrent_idempotent_requests`: false,
		} {
			var status int
			var name string
			_, err := fmt.Sscan(body, &status, &name)
			require.NoError(t, err)
			_, perr := attempt(t, answering(status, fmt.Sprintf(`{"name":%q}`, name)), 2)
			require.Equal(t, want, perr.Divisible, body)
			_, perr = attempt(t, answering(status, fmt.Sprintf(`{"name":%q}`, name)), 1)
			require.False(t, perr.Divisible, body)
		}
	})

	t.Run("ReadAnErrorUnderASuccessByItsOwnStatusOrName", func(t *testing.T) {
		t.Parallel()
		for body, want := range map[string]provider.Class{
			`{"statusCode":422,"name":"x"}`:  provider.ClassPermanent,
			`{"statusCode":500}`:             provider.ClassUncertain,
			`{"name":"rate_limit_exceeded"}`: provider.ClassThrottled,
			`{"name":"validation_error"}`:    provider.ClassPermanent,
			`{"statusCode":200,"name":"x"}`:  provider.ClassUncertain,
			`{"name":"something_new"}`:       provider.ClassUncertain,
			`{"error":"x"}`:                  provider.ClassUncertain,
		} {
			_, err := attempt(t, answering(200, body), 1)
			require.Equal(t, want, err.Class, body)
		}
	})
}

func TestAnswers(t *testing.T) {
	t.Parallel()

	t.Run("AreMappedBackThroughTheirIndexes", func(t *testing.T) {
		t.Parallel()
		res, err := attempt(t, answering(200, `{"data":[{"id":"b"},{"id":"d"}],"errors":[
			{"index":2,"message":"Invalid to ana@example.com"},{"index":0,"message":"first"},{"index":2,"message":"again"}]}`), 4)
		require.Nil(t, err)
		require.Equal(t, "first", res.Items[0].Err.Detail)
		require.Equal(t, "b", res.Items[1].ProviderMessageID)
		require.Equal(t, "Invalid to [redacted]", res.Items[2].Err.Detail)
		require.Equal(t, provider.ClassPermanent, res.Items[2].Err.Class)
		require.Equal(t, "d", res.Items[3].ProviderMessageID)
	})

	t.Run("AreUncertainWhereTheyDoNotAccountForEveryMessage", func(t *testing.T) {
		t.Parallel()
		for _, body := range []string{
			``, `null`, `[]`, `"x"`, `{}`, `{"data":null}`, `{"data":{}}`, `{"data":[]}`, `{"data":[{"id":"a"}]}`,
			`{"data":[{"id":"a"},{"id":"b"},{"id":"c"}]}`, `{"data":[{"id":"a"},{"id":""}]}`, `{"data":[{"id":1},{"id":2}]}`,
			`{"data":[{"id":"a"}],"errors":[{"index":2}]}`, `{"data":[{"id":"a"}],"errors":[{"index":-1}]}`,
			`{"data":[{"id":"a"}],"errors":[{"message":"no index"}]}`, `{"data":[{"id":"a"},{"id":"b"}],"errors":[{"index":0}]}`,
			`{"data":[{"id":"a"},{"id":"b"}]`, `{"data":[{"id":"a"},{"id":"b"}]}x`, `{"id":"a"}`, strings.Repeat(`[`, 20000),
		} {
			res, err := attempt(t, answering(200, body), 2)
			require.NotNil(t, err, body)
			require.Equal(t, provider.ClassUncertain, err.Class, body)
			require.Equal(t, "unreadable_answer", err.Code, body)
			require.Nil(t, res.Items)
		}
		for _, body := range []string{``, `{}`, `{"id":""}`, `{"id":7}`, `{"data":[{"id":"a"}]}`} {
			_, err := attempt(t, answering(200, body), 1)
			require.Equal(t, provider.ClassUncertain, err.Class, body)
		}
	})

	t.Run("MayCarryMoreThanIsKnown", func(t *testing.T) {
		t.Parallel()
		res, err := attempt(t, answering(201, `{"id":"a","object":"email","data":{"x":1}}`), 1)
		require.Nil(t, err)
		require.Equal(t, "a", res.Items[0].ProviderMessageID)
	})
}

func TestLimits(t *testing.T) {
	t.Parallel()
	headers := []string{
		"ratelimit-limit", "5", "ratelimit-remaining", "0", "ratelimit-reset", "1",
		"x-resend-daily-quota", "77", "x-resend-monthly-quota", "2999",
	}
	want := provider.Limits{Limit: 5, Remaining: 0, Reset: time.Second, DailyUsed: 77, MonthlyUsed: 2999}

	t.Run("AreReadFromEveryAnswer", func(t *testing.T) {
		t.Parallel()
		res, _ := attempt(t, answering(200, `{"id":"a"}`, headers...), 1)
		require.Equal(t, want, res.Limits)
		res, err := attempt(t, answering(429, `{"name":"rate_limit_exceeded"}`, append(headers, "retry-after", "7")...), 1)
		require.Equal(t, want, res.Limits)
		require.Equal(t, 7*time.Second, err.RetryAfter)
	})

	t.Run("AreUnstatedWhereTheyAreAbsentOrNoCounts", func(t *testing.T) {
		t.Parallel()
		res, _ := attempt(t, answering(200, `{"id":"a"}`), 1)
		require.Equal(t, provider.NoLimits(), res.Limits)
		res, _ = attempt(t, answering(200, `{"id":"a"}`, "ratelimit-limit", "-5", "ratelimit-remaining", "x",
			"ratelimit-reset", "99999999999999999999", "x-resend-daily-quota", "1.5", "x-resend-monthly-quota", ""), 1)
		require.Equal(t, provider.NoLimits(), res.Limits)
	})
}

func TestSend(t *testing.T) {
	t.Parallel()

	t.Run("SetsWhatResendAsksFor", func(t *testing.T) {
		t.Parallel()
		var seen []*http.Request
		record := func(status int, body string) carrier {
			return func(r *http.Request) (*http.Response, error) {
				seen = append(seen, r)
				return answering(status, body)(r)
			}
		}
		_, err := attempt(t, record(200, `{"id":"a"}`), 1)
		require.Nil(t, err)
		_, err = attempt(t, record(200, `{"data":[{"id":"a"},{"id":"b"}]}`), 2)
		require.Nil(t, err)
		require.Equal(t, "https://api.resend.com/emails", seen[0].URL.String())
		require.Empty(t, seen[0].Header.Get("X-Batch-Validation"))
		require.Equal(t, "https://api.resend.com/emails/batch", seen[1].URL.String())
		require.Equal(t, "permissive", seen[1].Header.Get("X-Batch-Validation"))
		for _, r := range seen {
			require.Equal(t, "Bearer "+testKey, r.Header.Get("Authorization"))
			require.Equal(t, "carril", r.Header.Get("User-Agent"))
			require.Equal(t, "application/json", r.Header.Get("Content-Type"))
			require.Positive(t, r.ContentLength)
		}
	})

	t.Run("RefusesARequestThatIsNone", func(t *testing.T) {
		t.Parallel()
		a := over(t, func(*http.Request) (*http.Response, error) { panic("nothing may leave") })
		good := provider.Request{
			Frozen:         provider.Frozen{Endpoint: resend.EndpointSingle, Body: []byte("{}"), Count: 1},
			IdempotencyKey: strings.Repeat("k", 256),
		}
		for name, change := range map[string]func(*provider.Request){
			"no key":            func(r *provider.Request) { r.IdempotencyKey = "" },
			"a key of 257":      func(r *provider.Request) { r.IdempotencyKey += "k" },
			"a key of lines":    func(r *provider.Request) { r.IdempotencyKey = "a\r\nb" },
			"no body":           func(r *provider.Request) { r.Body = nil },
			"no message":        func(r *provider.Request) { r.Count = 0 },
			"another endpoint":  func(r *provider.Request) { r.Endpoint = "/contacts" },
			"a climbing path":   func(r *provider.Request) { r.Endpoint = "emails/../audiences" },
			"an empty endpoint": func(r *provider.Request) { r.Endpoint = "" },
		} {
			r := good
			change(&r)
			_, err := a.Send(context.Background(), r)
			require.Equal(t, provider.ClassPermanent, provider.ClassOf(err), name)
		}
	})

	t.Run("IsRetryableWhereNothingWasWritten", func(t *testing.T) {
		t.Parallel()
		// A connection that the server closed while it was idle: net/http takes
		// the body back, since nothing was written, and dials another, in vain.
		dialFailure := &net.OpError{Op: "dial", Err: errors.New("connection refused")}
		_, err := attempt(t, func(r *http.Request) (*http.Response, error) {
			_, _ = io.Copy(io.Discard, r.Body)
			_, gerr := r.GetBody()
			require.NoError(t, gerr)
			return nil, dialFailure
		}, 1)
		require.Equal(t, provider.ClassRetryable, err.Class)
		require.Equal(t, "connect", err.Code)
		require.ErrorIs(t, err, dialFailure)
	})

	t.Run("GivesTheSameBytesWhenTheyAreTakenBack", func(t *testing.T) {
		t.Parallel()
		var first, second []byte
		_, err := attempt(t, func(r *http.Request) (*http.Response, error) {
			first, _ = io.ReadAll(r.Body)
			again, _ := r.GetBody()
			second, _ = io.ReadAll(again)
			return nil, io.ErrUnexpectedEOF
		}, 1)
		require.NotEmpty(t, first)
		require.Equal(t, first, second)
		require.Equal(t, provider.ClassUncertain, err.Class)
	})

	t.Run("LetsNothingLeaveOnceItWasReportedAsNotSent", func(t *testing.T) {
		t.Parallel()
		var late io.Reader
		_, err := attempt(t, func(r *http.Request) (*http.Response, error) {
			late = r.Body
			return nil, errors.New("gave up")
		}, 1)
		require.Equal(t, provider.ClassRetryable, err.Class)
		n, rerr := late.Read(make([]byte, 16))
		require.Zero(t, n)
		require.Error(t, rerr)
	})

	t.Run("NamesTheKindOfFailure", func(t *testing.T) {
		t.Parallel()
		for code, failure := range map[string]error{
			"dns":     &net.OpError{Op: "dial", Err: &net.DNSError{Err: "no such host", Name: "api.resend.com"}},
			"connect": &net.OpError{Op: "dial", Err: errors.New("connection refused")},
			"tls":     &tls.CertificateVerificationError{Err: errors.New("expired")},
			"timeout": &net.OpError{Op: "dial", Err: context.DeadlineExceeded},
			"reset":   io.EOF,
		} {
			_, err := attempt(t, func(*http.Request) (*http.Response, error) { return nil, failure }, 1)
			require.Equal(t, provider.ClassRetryable, err.Class, code)
			require.Equal(t, code, err.Code)
		}
	})

	t.Run("HidesTheKeyEvenWhenATransportRepeatsIt", func(t *testing.T) {
		t.Parallel()
		_, err := attempt(t, func(r *http.Request) (*http.Response, error) {
			return nil, fmt.Errorf("bad header %v", r.Header)
		}, 1)
		require.NotContains(t, fmt.Sprintf("%v %v %#v", err, err.Err, err), testKey)
		require.Contains(t, err.Err.Error(), "re_[redacted]")
	})

	t.Run("FollowsNoRedirect", func(t *testing.T) {
		t.Parallel()
		hits := 0
		target := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			hits++
			http.Redirect(w, r, "/emails", http.StatusTemporaryRedirect)
		}))
		defer target.Close()
		a := newAdapter(t, target.URL)
		f, err := a.Freeze([]provider.Message{message()}, false)
		require.NoError(t, err)
		_, err = a.Send(context.Background(), provider.Request{Frozen: f, IdempotencyKey: "k"})
		require.Equal(t, provider.ClassConfiguration, provider.ClassOf(err))
		require.Equal(t, 1, hits)
	})

	t.Run("IsOneAttemptOverHTTP2Too", func(t *testing.T) {
		t.Parallel()
		var seen atomic.Int32
		var server *httptest.Server
		server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			switch seen.Add(1) {
			case 1:
				_, _ = io.WriteString(w, `{"id":"`+r.Proto+`"}`)
			case 2:
				panic(http.ErrAbortHandler) // the stream is reset
			default:
				server.CloseClientConnections()
			}
		}))
		server.EnableHTTP2 = true
		server.StartTLS()
		defer server.Close()
		a, err := resend.New(resend.Config{APIKey: resend.NewKey(testKey), BaseURL: server.URL}, resend.Deps{Transport: server.Client().Transport})
		require.NoError(t, err)
		f, err := a.Freeze([]provider.Message{message()}, false)
		require.NoError(t, err)
		r := provider.Request{Frozen: f, IdempotencyKey: "k"}
		res, err := a.Send(context.Background(), r)
		require.NoError(t, err)
		require.Equal(t, "HTTP/2.0", res.Items[0].ProviderMessageID)
		for i := range 2 {
			_, err = a.Send(context.Background(), r)
			require.Equal(t, provider.ClassUncertain, provider.ClassOf(err))
			require.EqualValues(t, i+2, seen.Load())
		}
	})

	t.Run("UsesAnotherKeyOnceItIsSet", func(t *testing.T) {
		t.Parallel()
		var keys []string
		a := over(t, func(r *http.Request) (*http.Response, error) {
			keys = append(keys, r.Header.Get("Authorization"))
			return answering(200, `{"id":"a"}`)(r)
		})
		f, err := a.Freeze([]provider.Message{message()}, false)
		require.NoError(t, err)
		r := provider.Request{Frozen: f, IdempotencyKey: "k"}
		_, err = a.Send(context.Background(), r)
		require.NoError(t, err)
		require.Error(t, a.SetAPIKey(resend.NewKey("")))
		require.NoError(t, a.SetAPIKey(resend.NewKey("re_another_one\n")))
		_, err = a.Send(context.Background(), r)
		require.NoError(t, err)
		require.Equal(t, []string{"Bearer " + testKey, "Bearer re_another_one"}, keys)
	})
}

func TestConfig(t *testing.T) {
	t.Parallel()

	t.Run("RefusesImpossibleValuesWithoutPrintingThem", func(t *testing.T) {
		t.Parallel() // bad-inputs row 82
		for name, change := range map[string]func(*resend.Config){
			"api_key is empty":          func(c *resend.Config) { c.APIKey = resend.NewKey("  ") },
			"api_key is no key":         func(c *resend.Config) { c.APIKey = resend.NewKey("canary-value") },
			"api_key has characters":    func(c *resend.Config) { c.APIKey = resend.NewKey("re_canary\r\nvalue") },
			"base_url must be https":    func(c *resend.Config) { c.BaseURL = "http://canary.example.com" },
			"base_url must be a":        func(c *resend.Config) { c.BaseURL = "https://canary:pass@example.com" },
			"base_url is not a URL":     func(c *resend.Config) { c.BaseURL = "https://canary:pass@exa mple.com" },
			"base_url must be a scheme": func(c *resend.Config) { c.BaseURL = "https://example.com/?canary=1" },
			"timeout is negative":       func(c *resend.Config) { c.Timeout = -1 },
			"max_conns is negative":     func(c *resend.Config) { c.MaxConns = -1 },
			"rate_per_second":           func(c *resend.Config) { c.RatePerSecond = nan() },
			"user_agent has":            func(c *resend.Config) { c.UserAgent = "a\r\nb" },
		} {
			cfg := resend.Config{APIKey: resend.NewKey(testKey)}
			change(&cfg)
			_, err := resend.New(cfg, resend.Deps{})
			require.ErrorContains(t, err, name)
			require.NotContains(t, err.Error(), "canary")
		}
	})

	t.Run("NeverPrintsTheKey", func(t *testing.T) {
		t.Parallel()
		cfg := resend.Config{APIKey: resend.NewKey(testKey)}
		var log strings.Builder
		slog.New(slog.NewJSONHandler(&log, nil)).Info("x", "config", cfg, "key", cfg.APIKey)
		inJSON, err := json.Marshal(cfg)
		require.NoError(t, err)
		a, err := resend.New(cfg, resend.Deps{})
		require.NoError(t, err)
		out := log.String() + string(inJSON) + fmt.Sprintf("%v %+v %#v %s", cfg, cfg, cfg, a.Name())
		for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x"} {
			out += fmt.Sprintf(verb, cfg.APIKey) + fmt.Sprintf(verb, &cfg.APIKey)
		}
		require.NotContains(t, out, "canary")
		require.NotContains(t, out, fmt.Sprintf("%x", "canary"))
		require.Contains(t, out, "re_[redacted]")
	})

	t.Run("ReadsAKeyFromText", func(t *testing.T) {
		t.Parallel()
		var cfg resend.Config
		require.NoError(t, json.Unmarshal([]byte(`{"APIKey":"re_from_a_file\n"}`), &cfg))
		require.Equal(t, resend.NewKey("re_from_a_file"), cfg.APIKey)
	})
}

func nan() float64 {
	zero := 0.0
	return zero / zero
}
