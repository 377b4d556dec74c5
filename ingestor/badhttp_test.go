package ingestor

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/softcrum/carril/ingestor/apikey"
	"github.com/softcrum/carril/ingestor/manage"
	"github.com/softcrum/carril/internal/httpserver"
	"github.com/softcrum/carril/internal/testkit"
)

// badRow is one input of the HTTP level and the answer that it must get.
type badRow struct {
	row    int // of the catalogue of bad inputs
	what   string
	send   []byte
	status int    // 0: closed without an answer
	code   string // "": no problem
	closed bool   // and the connection is closed
	taken  int    // events that reach the queue
}

// seen is what came of a row.
type seen struct {
	badRow
	gotStatus int
	gotCode   string
	gotClosed bool
	gotTaken  int
	body      []byte
	requestID string
	took      time.Duration
}

// post is a POST of track with headers of its own, line by line.
func rawPost(target, key string, body []byte, headers ...string) []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, "POST %s HTTP/1.1\r\nHost: api.example.com\r\n", target)
	if key != "" {
		fmt.Fprintf(&b, "Authorization: Bearer %s\r\n", key)
	}
	sized, typed := false, false
	for _, h := range headers {
		name := strings.ToLower(h)
		sized = sized || strings.HasPrefix(name, "content-length") || strings.HasPrefix(name, "transfer-encoding")
		if strings.HasPrefix(name, "content-type") {
			typed = true
			if name == "content-type:" { // leave it out
				continue
			}
		}
		b.WriteString(h + "\r\n")
	}
	if !typed {
		b.WriteString("Content-Type: application/json\r\n")
	}
	if !sized {
		fmt.Fprintf(&b, "Content-Length: %d\r\n", len(body))
	}
	b.WriteString("\r\n")
	b.Write(body)
	return b.Bytes()
}

func chunked(body string) []byte {
	return fmt.Appendf(nil, "%x\r\n%s\r\n0\r\n\r\n", len(body), body)
}

// realKeys is a verifier over a store in memory, with keys in each state.
type realKeys struct {
	records map[string]apikey.Record
	text    map[string]string // by state
}

func (k *realKeys) Lookup(_ context.Context, id string) (apikey.Record, error) {
	if r, ok := k.records[id]; ok {
		return r, nil
	}
	return apikey.Record{}, apikey.ErrNoKey
}

func (*realKeys) Touch(context.Context, map[string]time.Time) error { return nil }

func newRealKeys(t *testing.T) *realKeys {
	t.Helper()
	k := &realKeys{records: map[string]apikey.Record{}, text: map[string]string{}}
	for state, change := range map[string]func(*apikey.Record){
		"good": func(*apikey.Record) {}, "unscoped": func(r *apikey.Record) { r.Scopes = []string{apikey.ScopeMessagesWrite} },
		"reader":  func(r *apikey.Record) { r.Scopes = []string{manage.ScopeEventsRead, manage.ScopeSendsRead} },
		"revoked": func(r *apikey.Record) { r.RevokedAt = now.Add(-time.Minute) }, "expired": func(r *apikey.Record) { r.ExpiresAt = now.Add(-time.Minute) },
		"unknown": nil,
	} {
		text, key, err := apikey.Generate("live")
		require.NoError(t, err)
		k.text[state] = text
		if change != nil {
			r := apikey.Record{Principal: *principal(apikey.ScopeEventsWrite), Hash: key.Hash}
			r.KeyID = key.ID
			change(&r)
			k.records[key.ID] = r
		}
	}
	good := k.text["good"]
	k.text["mistyped"] = good[:len(good)-1] + map[bool]string{true: "0", false: "1"}[good[len(good)-1] != '0']
	return k
}

// newBadFront is a front with real keys, a guard that is far away, and the
// management reads beside it.
func newBadFront(t *testing.T, keys *realKeys, guard apikey.GuardConfig) *front {
	t.Helper()
	v, err := apikey.NewVerifier(apikey.Config{}, apikey.Deps{Store: keys, Now: func() time.Time { return now }})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, v.Stop(context.Background())) })
	g, err := apikey.NewGuard(guard, v, prometheus.NewRegistry())
	require.NoError(t, err)
	f := newFront(t, Config{}, httpserver.Config{ReadHeaderTimeout: 3 * time.Second, ReadTimeout: 3 * time.Second}, func(d *Deps) { d.Keys = g })
	manage.New(manage.Deps{Keys: g, DB: testkit.Pool(t), CursorKey: []byte("k")}).Mount(f.router)
	return f
}

// badRows are rows 29 to 47.
func badRows(t *testing.T, keys *realKeys) []badRow {
	t.Helper()
	good := keys.text["good"]
	body := func(key string) []byte { return []byte(track(key)) }
	bomb := gzipOf(t, make([]byte, 64<<20))
	tenth := gzipOf(t, body("cut"))
	const absent = "0190bbbb-0000-7000-8000-00000000beef"
	post := func(b []byte, headers ...string) []byte { return rawPost(trackPath, good, b, headers...) }
	rows := []badRow{
		{row: 29, what: "64 MiB of zeros in gzip", send: rawPost(batchPath, good, bomb, "Content-Encoding: gzip"), status: 413, code: "inflated_too_large", closed: true},
		{row: 29, what: "the same in zstd", send: rawPost(batchPath, good, zstdOf(t, make([]byte, 64<<20)), "Content-Encoding: zstd"), status: 413, code: "inflated_too_large", closed: true},
	}
	for _, enc := range []string{"snappy", "br", "deflate", "gzip, gzip", "gzip;q=1"} {
		rows = append(rows, badRow{row: 31, what: "Content-Encoding " + enc, send: post(body("e"), "Content-Encoding: "+enc), status: 415, code: "unsupported_encoding"})
	}
	rows = append(rows,
		badRow{row: 31, what: "two Content-Encoding lines", send: post(body("e"), "Content-Encoding: gzip", "Content-Encoding: gzip"), status: 415, code: "unsupported_encoding"},
		badRow{row: 31, what: "unknown encoding, and no body to wait for", send: post(nil, "Content-Encoding: lzma", "Content-Length: 90000"), status: 415, code: "unsupported_encoding"},
		badRow{row: 32, what: "gzip cut in half", send: post(tenth[:len(tenth)/2], "Content-Encoding: gzip"), status: 400, code: "invalid_encoding"},
		badRow{row: 32, what: "gzip said of plain JSON", send: post(body("p"), "Content-Encoding: gzip"), status: 400, code: "invalid_encoding"},
		badRow{row: 32, what: "zstd said of gzip", send: post(tenth, "Content-Encoding: zstd"), status: 400, code: "invalid_encoding"},
		badRow{row: 32, what: "gzip with a broken checksum", send: post(append(slices.Clone(tenth[:len(tenth)-8]), make([]byte, 8)...), "Content-Encoding: gzip"), status: 400, code: "invalid_encoding"},
		badRow{row: 33, what: "Content-Length 5 and chunked: chunked counts", send: post(chunked(track("both")), "Content-Length: 5", "Transfer-Encoding: chunked"), status: 202, taken: 1},
		badRow{row: 34, what: "two Content-Length that differ", send: post(body("l"), "Content-Length: 4", "Content-Length: 9"), status: 400, code: "malformed_request", closed: true},
		badRow{row: 34, what: "signed Content-Length", send: post([]byte("hello"), "Content-Length: +5"), status: 400, code: "malformed_request", closed: true},
		badRow{row: 34, what: "hexadecimal Content-Length", send: post([]byte("hello"), "Content-Length: 0x5"), status: 400, code: "malformed_request", closed: true},
		badRow{row: 34, what: "space before a colon", send: post(body("s"), "Idempotency-Key : s"), status: 400, code: "malformed_request", closed: true},
		badRow{row: 34, what: "second Host", send: post(body("h"), "Host: other.example.com"), status: 400, code: "malformed_request", closed: true},
		badRow{row: 34, what: "NUL in a header", send: post(body("n"), "X-Note: a\x00b"), status: 400, code: "malformed_request", closed: true},
		badRow{row: 34, what: "a header name with a bracket", send: post(body("b"), "X(Note): a"), status: 400, code: "malformed_request", closed: true},
		badRow{row: 36, what: "Transfer-Encoding xchunked", send: post(chunked("{}"), "Transfer-Encoding: xchunked"), status: 501, code: "unsupported_transfer_encoding", closed: true},
		badRow{row: 36, what: "Transfer-Encoding gzip, chunked", send: post(chunked("{}"), "Transfer-Encoding: gzip, chunked"), status: 501, code: "unsupported_transfer_encoding", closed: true},
		badRow{row: 37, what: "one header of a megabyte", send: post(body("m"), "X-Note: "+strings.Repeat("m", 1<<20)), status: 431, code: "headers_too_large", closed: true},
		badRow{row: 37, what: "2,000 headers", send: post(body("m"), slices.Repeat([]string{"X-Note: 0123456789"}, 2000)...), status: 431, code: "headers_too_large", closed: true},
		badRow{row: 37, what: "a path of 64 kB", send: rawPost("/"+strings.Repeat("p", 64<<10), good, nil), status: 431, code: "headers_too_large", closed: true},
		badRow{row: 38, what: "half a header line, then silence", send: []byte("POST /v1/core/track HTTP/1.1\r\nAuthoriz"), status: 400, code: "malformed_request", closed: true},
		badRow{row: 38, what: "half a body, then silence", send: post(body("half")[:20], "Content-Length: 400"), status: 408, code: "request_timeout", closed: true},
		badRow{row: 38, what: "a chunk that never ends", send: post([]byte("ff\r\n{"), "Transfer-Encoding: chunked"), status: 408, code: "request_timeout", closed: true},
	)
	for _, kind := range []string{"text/plain", "application/json; charset=latin1", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", ""} {
		rows = append(rows, badRow{row: 41, what: "Content-Type " + cmp.Or(kind, "missing"), send: post(body("t"), strings.TrimSpace("Content-Type: "+kind)), status: 415, code: "unsupported_media_type"})
	}
	for _, target := range []string{"/v1/core/track/../keys", "/v1/core/../core/track", "/a%2f..%2fb", "//v1//events", "/v1/core%2ftrack", "/v1/core/track/", "/v1/core/TRACK", "/v1/core/track%00"} {
		rows = append(rows, badRow{row: 42, what: "POST " + target, send: rawPost(target, good, body("r")), status: 404, code: "not_found"})
	}
	for _, method := range []string{"TRACE", "GET", "DELETE", "PROPFIND"} {
		rows = append(rows, badRow{row: 42, what: method + " track", status: 405, code: "method_not_allowed",
			send: []byte(method + " " + trackPath + " HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer " + good + "\r\n\r\n")})
	}
	rows = append(rows, badRow{row: 43, what: "X-Forwarded-For from a stranger", send: post(body("xff"), "X-Forwarded-For: 203.0.113.77"), status: 202, taken: 1})
	auth := func(lines ...string) []byte { return rawPost(trackPath, "", body("k"), lines...) }
	for what, lines := range map[string][]string{
		"no Authorization": nil, "Bearer alone": {"Authorization: Bearer"}, "two headers": {"Authorization: Bearer " + good, "Authorization: Bearer " + good},
		"10 kB of key": {"Authorization: Bearer ck_live_" + strings.Repeat("k", 10_000)}, "a bad checksum": {"Authorization: Bearer " + keys.text["mistyped"]},
		"a revoked key": {"Authorization: Bearer " + keys.text["revoked"]}, "an expired key": {"Authorization: Bearer " + keys.text["expired"]},
		"an unknown key": {"Authorization: Bearer " + keys.text["unknown"]}, "Basic": {"Authorization: Basic " + good},
	} {
		rows = append(rows, badRow{row: 45, what: what, send: auth(lines...), status: 401, code: "invalid_key"})
	}
	for _, q := range []string{"?key=" + good, "?api_key=x", "?next=" + good, "?TOKEN=abc"} {
		rows = append(rows, badRow{row: 45, what: "a key in the query: " + q[:5] + "…", send: rawPost(trackPath+q, good, body("q")), status: 400, code: "key_in_query"})
	}
	rows = append(rows, badRow{row: 46, what: "a key without the scope", send: rawPost(trackPath, keys.text["unscoped"], body("s")), status: 403, code: "missing_permission"})
	for _, path := range []string{"/v1/core/events/", "/v1/messaging/sends/"} {
		for _, id := range []string{absent, "not-an-id", "0190aaaa-0000-7000-8000-000000000001%00"} {
			rows = append(rows, badRow{row: 47, what: "GET " + path + id, status: 404, code: "not_found",
				send: []byte("GET " + path + id + " HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer " + keys.text["reader"] + "\r\n\r\n")})
		}
	}
	return rows
}

// run sends a row over a connection of its own and sees what comes of it.
func (f *front) run(t *testing.T, r badRow) seen {
	t.Helper()
	s := seen{badRow: r}
	before := len(f.queue.taken())
	c, err := net.Dial("tcp", f.addr)
	require.NoError(t, err)
	defer c.Close()
	require.NoError(t, c.SetDeadline(time.Now().Add(waitFor)))
	begin := time.Now()
	sent := make(chan struct{})
	go func() { // the server may answer and close before it has all
		defer close(sent)
		_, _ = c.Write(r.send)
	}()
	in := bufio.NewReader(c)
	resp, err := http.ReadResponse(in, nil)
	if err == nil {
		s.body, err = io.ReadAll(resp.Body)
		require.NoError(t, err, r.what)
		s.took, s.gotStatus, s.requestID = time.Since(begin), resp.StatusCode, resp.Header.Get(httpserver.RequestIDHeader)
		var p struct{ Code, Instance string }
		if resp.Header.Get("Content-Type") == httpserver.ProblemType && json.Unmarshal(s.body, &p) == nil && p.Instance == s.requestID {
			s.gotCode = p.Code
		}
	}
	s.gotClosed = f.closes(c, in, r.closed)
	_ = c.Close()
	<-sent
	s.gotTaken = len(f.queue.taken()) - before
	return s
}

// closes says whether the server ends the connection: at once where it must,
// and not where a further request is answered.
func (f *front) closes(c net.Conn, in *bufio.Reader, must bool) bool {
	if !must {
		if _, err := io.WriteString(c, "GET /nowhere HTTP/1.1\r\nHost: h\r\n\r\n"); err != nil {
			return true
		}
		resp, err := http.ReadResponse(in, nil)
		if err == nil {
			_ = resp.Body.Close()
		}
		return err != nil
	}
	_, err := io.Copy(io.Discard, in)
	var timeout net.Error
	return !errors.As(err, &timeout) || !timeout.Timeout()
}

func TestBadHTTP(t *testing.T) { // bad inputs rows 29 to 47
	t.Parallel()
	keys := newRealKeys(t)
	f := newBadFront(t, keys, apikey.GuardConfig{Failures: 1_000})
	rows := badRows(t, keys)
	var all []seen
	unauthorized := map[string]bool{}
	for _, r := range rows {
		s := f.run(t, r)
		all = append(all, s)
		if s.gotStatus == http.StatusUnauthorized {
			unauthorized[strings.ReplaceAll(string(s.body), s.requestID, "")] = true
		}
	}
	report := reportOf(all)
	t.Log("\n" + report)
	if path := os.Getenv("CARRIL_TEST_REPORT"); path != "" {
		require.NoError(t, os.WriteFile(path, []byte(report), 0o600))
	}
	for _, s := range all {
		require.Equal(t, s.status, s.gotStatus, "row %d, %s: %s", s.row, s.what, s.body)
		require.Equal(t, s.code, s.gotCode, "row %d, %s: %s", s.row, s.what, s.body)
		require.Equal(t, s.taken, s.gotTaken, "row %d, %s: events in the queue", s.row, s.what)
		if s.closed {
			require.True(t, s.gotClosed, "row %d, %s: the connection is still open", s.row, s.what)
		}
	}
	require.Len(t, unauthorized, 1, "row 45: one body for every reason")
	require.Contains(t, string(findRow(all, 46).body), apikey.ScopeEventsWrite, "row 46 names the scope")
	for _, text := range keys.text {
		require.NotContains(t, f.logs.String(), text, "row 45: never logged")
	}
	require.Equal(t, http.StatusAccepted, f.run(t, badRow{send: rawPost(trackPath, keys.text["good"], []byte(track("after")))}).gotStatus, "and the door is open")
}

func findRow(all []seen, row int) seen {
	return all[slices.IndexFunc(all, func(s seen) bool { return s.row == row })]
}

func reportOf(all []seen) string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 4, 2, ' ', 0)
	fmt.Fprintln(w, "ROW\tWHAT\tSTATUS\tCODE\tCLOSED\tENQUEUED\tMS\tAS WANTED")
	for _, s := range all {
		ok := s.status == s.gotStatus && s.code == s.gotCode && s.taken == s.gotTaken && (s.gotClosed || !s.closed)
		what := s.what
		if len(what) > 60 {
			what = what[:60] + "…"
		}
		fmt.Fprintf(w, "%d\t%s\t%d\t%s\t%t\t%d\t%.1f\t%t\n", s.row, what, s.gotStatus, s.gotCode, s.gotClosed, s.gotTaken, s.took.Seconds()*1e3, ok)
	}
	_ = w.Flush()
	return b.String()
}

func TestStrangersCannotNameTheirAddress(t *testing.T) { // bad inputs row 43
	t.Parallel()
	keys := newRealKeys(t)
	f := newBadFront(t, keys, apikey.GuardConfig{Failures: 5, Every: time.Hour})
	for i := range 5 {
		s := f.run(t, badRow{send: rawPost(trackPath, keys.text["unknown"], nil, fmt.Sprintf("X-Forwarded-For: 203.0.113.%d", i))})
		require.Equal(t, http.StatusUnauthorized, s.gotStatus)
	}
	s := f.run(t, badRow{send: rawPost(trackPath, keys.text["mistyped"], nil, "X-Forwarded-For: 203.0.113.99")})
	require.Equal(t, http.StatusTooManyRequests, s.gotStatus)
	require.Equal(t, "too_many_failures", s.gotCode)
}

func TestStalledClients(t *testing.T) { // bad inputs row 40
	t.Parallel()
	f := newFront(t, Config{}, httpserver.Config{ReadHeaderTimeout: time.Minute, ReadTimeout: time.Minute}, nil)
	var stalled []net.Conn
	defer func() {
		for _, c := range stalled {
			_ = c.Close()
		}
	}()
	whole := rawPost(trackPath, goodKey, []byte(track("stalled")))
	for i := range 500 {
		c, err := net.Dial("tcp", f.addr)
		require.NoError(t, err)
		stalled = append(stalled, c)
		part := whole[:len(whole)-1] // all of the body but a byte
		if i%2 == 0 {
			part = whole[:40] // half of the headers
		}
		_, err = c.Write(part)
		require.NoError(t, err)
	}
	require.Eventually(t, func() bool { return f.api.held.Load() > 0 }, waitFor, tick, "bodies are being waited for")
	var wg sync.WaitGroup
	answers := make(chan int, 400)
	for range 4 {
		wg.Go(func() {
			for range 100 {
				answers <- f.status(trackPath, track("lively"))
			}
		})
	}
	wg.Wait()
	close(answers)
	for status := range answers {
		require.Equal(t, http.StatusAccepted, status)
	}
	require.Less(t, f.api.held.Load(), int64(500*firstBytes+1), "a stalled body holds its first bytes and no more")
}
