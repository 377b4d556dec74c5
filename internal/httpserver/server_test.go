package httpserver

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// serve starts a server for the test and gives its address.
func serve(t *testing.T, cfg Config, h http.Handler, log *slog.Logger) string {
	t.Helper()
	cfg.Addr = "127.0.0.1:0"
	s, err := New(cfg, h, log)
	require.NoError(t, err)
	addr, err := s.Start(t.Context())
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Stop(context.Background())) })
	return addr
}

// raw sends bytes over a fresh connection and reads one answer.
func raw(t *testing.T, addr, request string) (*http.Response, string, net.Conn) {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() })
	require.NoError(t, c.SetDeadline(time.Now().Add(30*time.Second)))
	_, err = io.WriteString(c, request)
	require.NoError(t, err)
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	require.NoError(t, err)
	body, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	return resp, string(body), c
}

// requireProblem checks the parts that every error answer has.
func requireProblem(t *testing.T, resp *http.Response, body string, status int, code string) map[string]any {
	t.Helper()
	require.Equal(t, status, resp.StatusCode, body)
	require.Equal(t, ProblemType, resp.Header.Get("Content-Type"))
	var p map[string]any
	require.NoError(t, json.Unmarshal([]byte(body), &p), body)
	require.Equal(t, code, p["code"])
	require.EqualValues(t, status, p["status"])
	require.Equal(t, typePrefix+code, p["type"])
	require.NotEmpty(t, p["title"])
	require.NotEmpty(t, p["instance"])
	require.Equal(t, resp.Header.Get(RequestIDHeader), p["instance"])
	return p
}

func requireClosed(t *testing.T, c net.Conn) {
	t.Helper()
	require.NoError(t, c.SetReadDeadline(time.Now().Add(30*time.Second)))
	_, err := c.Read(make([]byte, 1))
	require.Error(t, err)
	var timeout net.Error
	require.False(t, errors.As(err, &timeout) && timeout.Timeout(), "the connection is still open")
}

func routes() http.Handler {
	r := NewRouter()
	r.Post("/take", func(w http.ResponseWriter, r *http.Request) {
		b, err := io.ReadAll(r.Body)
		if err != nil {
			(&Problem{Status: http.StatusRequestTimeout, Code: "request_timeout"}).Write(w, r)
			return
		}
		w.WriteHeader(http.StatusAccepted)
		_, _ = w.Write(b)
	})
	r.Get("/panic", func(http.ResponseWriter, *http.Request) { panic("boom") })
	r.Get("/half", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write(make([]byte, 8192))
		panic("boom")
	})
	return r
}

// The rows of reference/bad-inputs.md that the server alone answers.
func TestServer(t *testing.T) {
	t.Parallel()
	addr := serve(t, Config{}, routes(), nil)
	for _, tc := range []struct{ name, request, code string }{
		{"TwoContentLengths", "POST /take HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabcd", "400 malformed_request"},
		{"SignedContentLength", "POST /take HTTP/1.1\r\nHost: h\r\nContent-Length: +5\r\n\r\nabcde", "400 malformed_request"},
		{"SpaceBeforeColon", "GET /take HTTP/1.1\r\nHost : h\r\n\r\n", "400 malformed_request"},
		{"TwoHosts", "GET /take HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", "400 malformed_request"},
		{"NoHost", "GET /take HTTP/1.1\r\n\r\n", "400 malformed_request"},
		{"NULInHeader", "GET /take HTTP/1.1\r\nHost: h\r\nX: a\x00b\r\n\r\n", "400 malformed_request"},
		{"Garbage", "\x16\x03\x01 not http\r\n\r\n", "400 malformed_request"},
		{"UnknownTransferEncoding", "POST /take HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: xchunked\r\n\r\n", "501 unsupported_transfer_encoding"},
		{"HeaderOfAMegabyte", "GET /take HTTP/1.1\r\nHost: h\r\nX: " + strings.Repeat("a", 1<<20) + "\r\n\r\n", "431 headers_too_large"},
		{"UnknownExpectation", "POST /take HTTP/1.1\r\nHost: h\r\nExpect: miracles\r\nContent-Length: 0\r\n\r\n", "417 expectation_failed"},
		{"HTTP3OverTCP", "GET /take HTTP/3.0\r\nHost: h\r\n\r\n", "505 http_version_not_supported"},
	} {
		t.Run("ClosesWithAProblemOn"+tc.name, func(t *testing.T) {
			t.Parallel()
			resp, body, c := raw(t, addr, tc.request)
			status, code, _ := strings.Cut(tc.code, " ")
			require.Equal(t, status, resp.Status[:3])
			requireProblem(t, resp, body, resp.StatusCode, code)
			requireClosed(t, c)
		})
	}
	for _, tc := range []struct{ name, line, allow string }{
		{"UnknownPath", "GET /nowhere", ""},
		{"DotSegments", "POST /take/../take", ""},
		{"EncodedSlash", "POST /a%2f..%2ftake", ""},
		{"DoubleSlash", "POST //take", ""},
		{"OptionsOfTheServer", "OPTIONS *", ""},
		{"TraceOfNothing", "TRACE /nowhere", ""},
		{"WrongMethod", "DELETE /take", "POST"},
		{"Trace", "TRACE /take", "POST"},
		{"MethodThatNobodyKnows", "BREW /take", "POST"},
	} {
		t.Run("RefusesInJSON"+tc.name, func(t *testing.T) { // row 42
			t.Parallel()
			resp, body, _ := raw(t, addr, tc.line+" HTTP/1.1\r\nHost: h\r\n\r\n")
			if tc.allow == "" {
				requireProblem(t, resp, body, http.StatusNotFound, "not_found")
				return
			}
			requireProblem(t, resp, body, http.StatusMethodNotAllowed, "method_not_allowed")
			require.Equal(t, tc.allow, resp.Header.Get("Allow"))
		})
	}
	t.Run("TakesChunkedOverContentLengthAndKeepsTheConnection", func(t *testing.T) { // row 33, pinned
		t.Parallel()
		resp, body, c := raw(t, addr, "POST /take HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n")
		require.Equal(t, http.StatusAccepted, resp.StatusCode)
		require.Equal(t, "abc", body)
		_, err := io.WriteString(c, "GET /nowhere HTTP/1.1\r\nHost: h\r\n\r\n")
		require.NoError(t, err)
		again, err := http.ReadResponse(bufio.NewReader(c), nil)
		require.NoError(t, err)
		require.NoError(t, again.Body.Close())
		require.Equal(t, http.StatusNotFound, again.StatusCode)
	})
	t.Run("LeavesAHandlersOwnTextAlone", func(t *testing.T) {
		t.Parallel()
		text := "HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n"
		_, body, _ := raw(t, addr, "POST /take HTTP/1.1\r\nHost: h\r\nContent-Length: "+itoa(len(text))+"\r\n\r\n"+text)
		require.Equal(t, text, body)
	})
}

func itoa(n int) string { b, _ := json.Marshal(n); return string(b) }

func TestPanic(t *testing.T) {
	t.Parallel()
	logs := &lines{}
	addr := serve(t, Config{}, routes(), slog.New(slog.NewJSONHandler(logs, nil)))

	t.Run("IsA500WithTheRequestIDOfTheLog", func(t *testing.T) {
		resp, body, _ := raw(t, addr, "GET /panic HTTP/1.1\r\nHost: h\r\n\r\n")
		p := requireProblem(t, resp, body, http.StatusInternalServerError, "internal")
		require.NotContains(t, body, "boom")
		require.Contains(t, logs.String(), p["instance"])
		require.Contains(t, logs.String(), "boom")
	})
	t.Run("CutsAnAnswerThatHadBegun", func(t *testing.T) {
		resp, err := http.Get("http://" + addr + "/half")
		require.NoError(t, err)
		_, err = io.ReadAll(resp.Body)
		require.ErrorIs(t, err, io.ErrUnexpectedEOF)
		require.NoError(t, resp.Body.Close())
		http.DefaultClient.CloseIdleConnections()
	})
}

// lines is a buffer that a server may write while the test reads.
type lines struct {
	mu sync.Mutex
	b  strings.Builder
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

func TestSlowClients(t *testing.T) {
	t.Parallel()
	t.Run("HalfAHeaderLineIsClosed", func(t *testing.T) { // row 38
		t.Parallel()
		addr := serve(t, Config{ReadHeaderTimeout: 2 * time.Second, ReadTimeout: time.Minute}, routes(), nil)
		c, err := net.Dial("tcp", addr)
		require.NoError(t, err)
		defer c.Close()
		_, err = io.WriteString(c, "POST /take HTTP/1.1\r\nHos")
		require.NoError(t, err)
		require.NoError(t, c.SetReadDeadline(time.Now().Add(30*time.Second)))
		_, err = io.ReadAll(c)
		require.NoError(t, err, "closed by the server, not by our deadline")
	})
	t.Run("ABodyThatNeverComesIs408AndClosed", func(t *testing.T) {
		t.Parallel()
		addr := serve(t, Config{ReadTimeout: 2 * time.Second}, routes(), nil)
		resp, body, c := raw(t, addr, "POST /take HTTP/1.1\r\nHost: h\r\nContent-Length: 100\r\n\r\nabc")
		requireProblem(t, resp, body, http.StatusRequestTimeout, "request_timeout")
		requireClosed(t, c)
	})
	t.Run("FiveHundredOfThemHinderNobody", func(t *testing.T) { // row 40
		t.Parallel()
		patient := serve(t, Config{ReadHeaderTimeout: 30 * time.Second}, routes(), nil)
		for range 500 {
			c, err := net.Dial("tcp", patient)
			require.NoError(t, err)
			defer c.Close()
			_, err = io.WriteString(c, "POST /take HTTP/1.1\r\nX")
			require.NoError(t, err)
		}
		for range 50 {
			resp, _, c := raw(t, patient, "POST /take HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\n\r\na")
			require.Equal(t, http.StatusAccepted, resp.StatusCode)
			_ = c.Close()
		}
	})
}

func TestTooManyConnectionsAreTurnedAwayInJSON(t *testing.T) { // faults F41
	t.Parallel()
	addr := serve(t, Config{MaxConns: 2}, routes(), nil)
	const request = "POST /take HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\n\r\na"
	_, _, first := raw(t, addr, request)
	raw(t, addr, request)

	c, err := net.Dial("tcp", addr)
	require.NoError(t, err)
	defer c.Close()
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	require.NoError(t, err)
	body, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	requireProblem(t, resp, string(body), http.StatusServiceUnavailable, "too_many_connections")
	require.Equal(t, "1", resp.Header.Get("Retry-After"))

	require.NoError(t, first.Close())
	require.Eventually(t, func() bool { // a freed place is given again
		c, err := net.Dial("tcp", addr)
		if err != nil {
			return false
		}
		defer c.Close()
		_, _ = io.WriteString(c, request)
		resp, err := http.ReadResponse(bufio.NewReader(c), nil)
		return err == nil && resp.Body.Close() == nil && resp.StatusCode == http.StatusAccepted
	}, 30*time.Second, 10*time.Millisecond)
}

func TestStop(t *testing.T) {
	t.Parallel()
	slow := func() (http.Handler, chan struct{}, chan struct{}) {
		in, out := make(chan struct{}), make(chan struct{})
		return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			close(in)
			<-out
			w.WriteHeader(http.StatusAccepted)
		}), in, out
	}
	start := func(t *testing.T, cfg Config, h http.Handler) (*Server, string) {
		cfg.Addr = "127.0.0.1:0"
		s, err := New(cfg, h, nil)
		require.NoError(t, err)
		addr, err := s.Start(t.Context())
		require.NoError(t, err)
		return s, addr
	}
	ask := func(addr string) chan int {
		got := make(chan int, 1)
		go func() {
			tr := &http.Transport{}
			defer tr.CloseIdleConnections()
			resp, err := (&http.Client{Transport: tr}).Get("http://" + addr)
			if err != nil {
				got <- 0
				return
			}
			_ = resp.Body.Close()
			got <- resp.StatusCode
		}()
		return got
	}
	t.Run("AnswersWhatIsInFlightAndTakesNothingNew", func(t *testing.T) { // faults P10
		t.Parallel()
		h, in, out := slow()
		s, addr := start(t, Config{}, h)
		got := ask(addr)
		<-in
		stopped := make(chan error, 1)
		go func() { stopped <- s.Stop(context.Background()) }()
		require.Eventually(t, func() bool {
			c, err := net.Dial("tcp", addr)
			if err == nil {
				_ = c.Close()
			}
			return err != nil
		}, 30*time.Second, time.Millisecond)
		close(out)
		require.Equal(t, http.StatusAccepted, <-got)
		require.NoError(t, <-stopped)
		require.NoError(t, s.Stop(context.Background()), "harmless twice")
	})
	t.Run("CutsWhatOutlivesTheDrainAndSaysSo", func(t *testing.T) {
		t.Parallel()
		h, in, out := slow()
		s, addr := start(t, Config{DrainTimeout: 50 * time.Millisecond}, h)
		got := ask(addr)
		<-in
		require.ErrorContains(t, s.Stop(context.Background()), "drain timeout")
		require.Zero(t, <-got)
		close(out)
	})
	t.Run("IsHarmlessBeforeStart", func(t *testing.T) {
		t.Parallel()
		s, err := New(Config{Addr: "127.0.0.1:0"}, routes(), nil)
		require.NoError(t, err)
		require.NoError(t, s.Stop(t.Context()))
	})
}

func TestStart(t *testing.T) {
	t.Parallel()
	t.Run("FailsAtOnceWhenTheAddressIsTaken", func(t *testing.T) {
		t.Parallel()
		l, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		defer l.Close()
		s, err := New(Config{Addr: l.Addr().String()}, routes(), nil)
		require.NoError(t, err)
		_, err = s.Start(t.Context())
		require.ErrorContains(t, err, "listen on")
	})
	t.Run("RefusesImpossibleSettings", func(t *testing.T) {
		t.Parallel()
		for _, cfg := range []Config{{}, {Addr: ":0", MaxConns: -1}, {Addr: ":0", ReadTimeout: -1}} {
			_, err := New(cfg, routes(), nil)
			require.Error(t, err)
		}
	})
}

func TestProblem(t *testing.T) {
	t.Parallel()
	t.Run("IsJSONWhateverStandsInIt", func(t *testing.T) {
		t.Parallel()
		p := Problem{Status: 422, Code: "x", Detail: "a\xffb\u2028\x00\"", Pointer: "/a~1b", ServerTime: time.Date(2026, 11, 1, 1, 2, 3, 0, time.FixedZone("", 3600)),
			Extra: map[string]any{"fine": 1, "broken": func() {}, "raw": json.RawMessage("{")}}
		var got map[string]any
		require.NoError(t, json.Unmarshal(p.JSON("id"), &got))
		require.Equal(t, map[string]any{"type": "urn:carril:problem:x", "title": "Unprocessable Entity", "status": 422.0, "code": "x",
			"detail": "a\ufffdb\u2028\x00\"", "pointer": "/a~1b", "instance": "id", "server_time": "2026-11-01T00:02:03Z", "fine": 1.0}, got)
	})
}

func TestTraceparent(t *testing.T) {
	t.Parallel()
	const good = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
	for value, want := range map[string]string{
		good:                                  good,
		good + "-x":                           "",
		"cc" + good[2:] + "-what-comes-later": "cc" + good[2:],
		"ff" + good[2:]:                       "",
		strings.ToUpper(good):                 "",
		"00-00000000000000000000000000000000-00f067aa0ba902b7-01": "",
		"00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01": "",
		good[:54]: "", "": "",
	} {
		require.Equal(t, want, validTraceparent([]string{value}), value)
	}
	require.Empty(t, validTraceparent([]string{good, good}), "two are none")

	h := Identify(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, Traceparent(r.Context())+" "+RequestID(r.Context()))
	}), slog.New(slog.DiscardHandler))
	addr := serve(t, Config{}, h, nil)
	resp, body, _ := raw(t, addr, "GET / HTTP/1.1\r\nHost: h\r\nTraceparent: "+good+"\r\nCarril-Request-Id: mine\r\n\r\n")
	require.Equal(t, good+" "+resp.Header.Get(RequestIDHeader), body)
	require.NotEqual(t, "mine", resp.Header.Get(RequestIDHeader))
}
