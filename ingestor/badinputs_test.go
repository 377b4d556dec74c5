package ingestor

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/softcrum/carril/ingestor/apikey"
	"github.com/softcrum/carril/internal/httpserver"
	"github.com/softcrum/carril/internal/ids"
	"github.com/softcrum/carril/schemas"
)

// bad is an input and the answer that it gets. A refused one, and only that, has
// a code and puts nothing in the queue.
type bad struct {
	row    string // of the bad inputs, or R and the number of a field report
	input  string // in short
	path   string // empty: track
	body   string
	status int
	code   string
	events int // that come into the queue
	check  func(evs []schemas.Event, answer map[string]any) error
	header []string
}

// with is a good event some of whose text is another.
func with(pairs ...string) string { return strings.NewReplacer(pairs...).Replace(track("bad-inputs")) }

// props is a good event with these properties.
func props(p string) string { return with(`{"total":12.50}`, p) }

// at is a good event that happened then.
func at(when string) string { return with("2026-11-01T01:30:00.5-05:00", when) }

// payload checks that an event's properties are kept to the byte.
func payload(want string) func([]schemas.Event, map[string]any) error {
	return func(evs []schemas.Event, _ map[string]any) error {
		if evs[0].Payload != want {
			return fmt.Errorf("kept as %s", evs[0].Payload)
		}
		return nil
	}
}

// results checks the code of each event of a batch; "" for an accepted one.
func results(want func(i int) string) func([]schemas.Event, map[string]any) error {
	return func(_ []schemas.Event, answer map[string]any) error {
		for i, r := range answer["results"].([]any) {
			code := ""
			if e, ok := r.(map[string]any)["error"].(map[string]any); ok {
				code = e["code"].(string)
			}
			if code != want(i) {
				return fmt.Errorf("event %d: %q", i, code)
			}
		}
		return nil
	}
}

// sized is a good event of so many bytes in two-byte characters.
func sized(bytes int) string {
	rest := bytes - len(props(`{"s":""}`))
	return props(`{"s":"` + strings.Repeat("é", rest/2) + strings.Repeat("x", rest%2) + `"}`)
}

func nest(n int, open, closing string) string {
	return strings.Repeat(open, n) + "1" + strings.Repeat(closing, n)
}

func keys(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, `,"k%d":1`, i)
	}
	return "{" + b.String()[1:] + "}"
}

// batchWith is a batch of n events of which one is another.
func batchWith(n, at int, other string) string {
	all := items(n)
	all[at] = other
	return batchOf(all...)
}

var badInputs = []bad{
	{row: "1", input: "empty body", body: "", status: 400, code: "empty_body"},
	{row: "1", input: "white space", body: " \r\n\t", status: 400, code: "empty_body"},
	{row: "2", input: "null", body: "null", status: 400, code: "not_an_object"},
	{row: "2", input: "[]", body: "[]", status: 400, code: "not_an_object"},
	{row: "2", input: `"x"`, body: `"x"`, status: 400, code: "not_an_object"},
	{row: "2", input: "1", body: "1", status: 400, code: "not_an_object"},
	{row: "2", input: "a batch of null", path: batchPath, body: "null", status: 400, code: "not_an_object"},
	{row: "3", input: "{…}{…}", body: track("a") + track("b"), status: 400, code: "trailing_data"},
	{row: "3", input: "{…}x", body: track("a") + "x", status: 400, code: "trailing_data"},
	{row: "4", input: "byte order mark", body: "\ufeff" + track("a"), status: 400, code: "invalid_json"},
	{row: "5", input: "a field twice", body: with(`"event_name"`, `"event_name":"a","event_name"`), status: 400, code: "duplicate_key"},
	{row: "5", input: "a property twice", body: props(`{"a":1,"\u0061":2}`), status: 400, code: "duplicate_key"},
	{row: "5", input: "events twice", path: batchPath, body: `{"events":[` + item("a") + `],"events":[]}`, status: 400, code: "duplicate_key"},
	{row: "7", input: "tenant_id in the body", body: with(`{"event_name"`, `{"tenant_id":"other","event_name"`), status: 400, code: "unknown_field"},
	{row: "7", input: "tenant_id in a batch", path: batchPath, body: `{"tenant_id":"other",` + batchOf(item("a"))[1:], status: 400, code: "unknown_field"},
	{row: "8", input: "byte FF in a string", body: props("{\"s\":\"a\xffb\"}"), status: 400, code: "invalid_utf8"},
	{row: "8", input: "byte FF in a key", body: props("{\"a\xff\":1}"), status: 400, code: "invalid_utf8"},
	{row: "9", input: `\u0000 in a value`, body: props(`{"s":"\u0000"}`), status: 400, code: "nul_character"},
	{row: "9", input: `\u0000 in a key`, body: props(`{"a\u0000":1}`), status: 400, code: "nul_character"},
	{row: "9", input: `\u0000 deep inside`, body: props(`{"x":[1,{"y":"abc\u0000"}]}`), status: 400, code: "nul_character"},
	{row: "11", input: `\ud83d`, body: props(`{"s":"\ud83d"}`), status: 400, code: "lone_surrogate"},
	{row: "11", input: `\ude00`, body: props(`{"s":"\ude00"}`), status: 400, code: "lone_surrogate"},
	{row: "11", input: `\ude00\ud83d`, body: props(`{"s":"\ude00\ud83d"}`), status: 400, code: "lone_surrogate"},
	{row: "12", input: `\ud83d\ude00`, body: props(`{"s":"\ud83d\ude00"}`), status: 202, events: 1, check: payload(`{"s":"\ud83d\ude00"}`)},
	{row: "13", input: "32 levels", body: props(nest(32, `{"a":`, "}")), status: 202, events: 1},
	{row: "13", input: "33 levels", body: props(nest(33, `{"a":`, "}")), status: 400, code: "too_deep"},
	{row: "13", input: "10,001 levels", body: props(`{"x":` + nest(10_001, "[", "]") + "}"), status: 400, code: "too_deep"},
	{row: "14", input: "9007199254740993", body: props(`{"n":9007199254740993}`), status: 202, events: 1, check: payload(`{"n":9007199254740993}`)},
	{row: "15", input: "1e400", body: props(`{"n":1e400}`), status: 400, code: "number_out_of_range"},
	{row: "16", input: "1e131071", body: props(`{"n":1e131071}`), status: 400, code: "number_out_of_range"},
	{row: "16", input: "10,000 of them", body: props(`{"n":[` + strings.Repeat("1e131071,", 9_999) + `1]}`), status: 400, code: "number_out_of_range"},
	{row: "17", input: "-0, 1.0, 1E2", body: props(`{"n":[-0,1.0,1E2]}`), status: 202, events: 1, check: payload(`{"n":[-0,1.0,1E2]}`)},
	{row: "18", input: "1 MiB + 1 byte", body: strings.Repeat(" ", 1<<20+1), status: 413, code: "body_too_large"},
	{row: "19", input: "key of 70,000", body: props(`{"` + strings.Repeat("k", 70_000) + `":1}`), status: 400, code: "key_too_long"},
	{row: "19", input: "10,001 keys", body: props(keys(10_001)), status: 400, code: "too_many_keys"},
	{row: "19", input: "array of 500,000", body: props(`{"x":[` + strings.Repeat("1,", 499_999) + `1]}`), status: 400, code: "too_many_keys"},
	{row: "21", input: "23:59:60", body: at("2016-12-31T23:59:60Z"), status: 400, code: "invalid_time"},
	{row: "21", input: "30 February", body: at("2026-02-30T00:00:00Z"), status: 400, code: "invalid_time"},
	{row: "21", input: "+24:00", body: at("2026-11-01T00:00:00+24:00"), status: 400, code: "invalid_time"},
	{row: "21", input: "lower-case t", body: at("2026-11-01t00:00:00Z"), status: 400, code: "invalid_time"},
	{row: "21", input: "lower-case z", body: at("2026-11-01T00:00:00z"), status: 400, code: "invalid_time"},
	{row: "21", input: "year 0000", body: at("0000-11-01T00:00:00Z"), status: 400, code: "invalid_time"},
	{row: "22", input: "3 years old", body: at("2023-11-01T00:00:00Z"), status: 422, code: "occurred_at_out_of_range"},
	{row: "22", input: "10 days ahead", body: at("2026-11-11T12:00:00Z"), status: 422, code: "occurred_at_out_of_range"},
	{row: "23", input: `name a\u2028b`, body: with("invoice.paid", `a\u2028b`), status: 400, code: "invalid_event_name"},
	{row: "23", input: "name of 300", body: with("invoice.paid", strings.Repeat("a", 300)), status: 400, code: "invalid_event_name"},
	{row: "23", input: "name ../x", body: with("invoice.paid", "../x"), status: 400, code: "invalid_event_name"},
	{row: "23", input: "empty name", body: with("invoice.paid", ""), status: 400, code: "invalid_event_name"},
	{row: "23", input: "name of an emoji", body: with("invoice.paid", "😀"), status: 400, code: "invalid_event_name"},
	{row: "27", input: "500, number 250 bad", path: batchPath, body: batchWith(500, 250, props(`{"s":"\u0000"}`)), status: 202, events: 499,
		check: results(func(i int) string { return map[int]string{250: "nul_character"}[i] })},
	{row: "28", input: "no properties", body: with(`,"properties":{"total":12.50}`, ""), status: 422, code: "missing_field"},
	{row: "28", input: "null properties", body: props("null"), status: 422, code: "missing_field"},

	{row: "R1", input: "email trait of NUL", path: identifyPath, body: identify("a", `{"external_id":"c"}`, `{"email":"\u0000"}`), status: 400, code: "nul_character"},
	{row: "R1", input: "NUL in a user id", body: with(`"c-1"`, `"c\u0000"`), status: 400, code: "nul_character"},
	{row: "R1", input: "NUL in a message id", body: with(`"bad-inputs"`, `"a\u0000"`), status: 400, code: "nul_character"},
	{row: "R2", input: `\ud800`, body: props(`{"s":"\ud800"}`), status: 400, code: "lone_surrogate"},
	{row: "R2", input: `\uD83D\ub000`, body: props(`{"s":"\uD83D\ub000"}`), status: 400, code: "lone_surrogate"},
	{row: "R2", input: "bytes C0 AF", body: props("{\"s\":\"\xc0\xaf\"}"), status: 400, code: "invalid_utf8"},
	{row: "R2", input: "bytes ED A0 80", body: props("{\"s\":\"\xed\xa0\x80\"}"), status: 400, code: "invalid_utf8"},
	{row: "R2", input: `\uD83D\u00`, body: props(`{"s":"\uD83D\u00"}`), status: 400, code: "invalid_json"},
	{row: "R2", input: `\U0001f64f`, body: props(`{"s":"\U0001f64f"}`), status: 400, code: "invalid_json"},
	{row: "R3", input: `\\u0000, legal`, body: props(`{"a":"\\u0000"}`), status: 202, events: 1, check: payload(`{"a":"\\u0000"}`)},
	{row: "R4", input: "100, NUL in number 50", path: batchPath, body: batchWith(100, 50, `{"type":"track",`+props(`{"s":"\u0000"}`)[1:]), status: 202, events: 99,
		check: results(func(i int) string { return map[int]string{50: "nul_character"}[i] })},
	{row: "R5", input: "18446744073709551616", body: props(`{"n":18446744073709551616}`), status: 202, events: 1, check: payload(`{"n":18446744073709551616}`)},
	{row: "R6", input: "good, without id, good", path: batchPath, body: batchOf(item("a"), strings.Replace(item("b"), `{"external_id":"c-1"}`, "{}", 1), item("c")), status: 202, events: 2,
		check: results(func(i int) string { return map[int]string{1: "missing_identifier"}[i] })},
	{row: "R11", input: "userId: 3146", body: with(`"c-1"`, "3146"), status: 422, code: "invalid_identifier"},
	{row: "R12", input: "32,768 bytes of é", body: sized(32_768), status: 202, events: 1},
	{row: "R12", input: "32,769 bytes of é", body: sized(32_769), status: 413, code: "event_too_large"},
	{row: "R14", input: "3,000 times 1e131071", body: props(`{"n":[` + strings.Repeat("1e131071,", 2_999) + `1e131071]}`), status: 400, code: "number_out_of_range"},
	{row: "R14", input: "300 times 1e300", body: props(`{"n":[` + strings.Repeat("1e300,", 299) + `1e300]}`), status: 400, code: "number_out_of_range"},
	{row: "R15", input: "EVENT_NAME beside event_name", body: with(`{"event_name"`, `{"EVENT_NAME":"a","event_name"`), status: 400, code: "duplicate_key"},
	{row: "R15", input: "USERID among identifiers", body: with(`{"external_id":"c-1"}`, `{"external_id":"c-1","EXTERNAL_ID":"c-2"}`), status: 422, code: "invalid_identifier"},
	{row: "R15", input: "USERID beside userId in properties", body: props(`{"userId":1,"USERID":2}`), status: 202, events: 1, check: payload(`{"userId":1,"USERID":2}`)},
}

// TestBadInputs sends rows 1 to 28 of the bad inputs and the field reports on
// ingest, and prints what became of each: -v shows the table.
func TestBadInputs(t *testing.T) {
	t.Parallel()
	f := newFront(t, Config{}, httpserver.Config{}, nil)
	var table strings.Builder
	w := tabwriter.NewWriter(&table, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "row\tinput\tstatus\tcode\tin the queue")
	for _, b := range badInputs {
		if b.path == "" {
			b.path = trackPath
		}
		before := len(f.queue.taken())
		resp, body := f.post(t, b.path, b.body, b.header...)
		taken := f.queue.taken()[before:]
		var answer map[string]any
		require.NoError(t, json.Unmarshal([]byte(body), &answer), "R13: every answer is JSON: %s", body)
		code, _ := answer["code"].(string)
		name := b.row + " " + b.input
		require.Equal(t, b.status, resp.StatusCode, "%s: %s", name, body)
		require.Equal(t, b.code, code, name)
		require.Len(t, taken, b.events, name)
		if b.code != "" {
			require.Equal(t, httpserver.ProblemType, resp.Header.Get("Content-Type"), name)
			require.Equal(t, resp.Header.Get(httpserver.RequestIDHeader), answer["instance"], name)
		}
		if b.check != nil {
			require.NoError(t, b.check(taken, answer), name)
		}
		fmt.Fprintf(w, "%s\t%s\t%d\t%s\t%d\n", b.row, b.input, resp.StatusCode, code, len(taken))
	}
	require.NoError(t, w.Flush())
	t.Logf("\n%s", table.String())

	t.Run("ALengthThatIsTooLargeIsRefusedUnread", func(t *testing.T) { // row 18; raw waits for less than the server would for the body
		resp, body := f.raw(t, "POST "+trackPath+" HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer "+goodKey+"\r\nContent-Type: application/json\r\nContent-Length: 9999999999\r\n\r\nabc")
		requireProblem(t, resp, body, http.StatusRequestEntityTooLarge, "body_too_large")
	})
	t.Run("OneKeyWithTwoBodiesIsOneID", func(t *testing.T) { // row 25; what becomes of the second is the append stage's
		_, first := f.post(t, trackPath, track("row-25"))
		_, second := f.post(t, trackPath, strings.Replace(track("row-25"), "12.50", "13", 1))
		require.Equal(t, first, second)
		_, first = f.post(t, messagesPath, code("row-25", "product"))
		_, second = f.post(t, messagesPath, code("row-25", "transactional"))
		require.Equal(t, first, second)
	})
	t.Run("OneKeyFiftyTimesAtOnceIsOneID", func(t *testing.T) { // row 26
		before := len(f.queue.taken())
		var wg sync.WaitGroup
		statuses := make([]int, 50)
		for i := range statuses {
			wg.Go(func() { statuses[i] = f.status(trackPath, track("row-26")) })
		}
		wg.Wait()
		for _, s := range statuses {
			require.Equal(t, http.StatusAccepted, s)
		}
		for _, ev := range f.queue.taken()[before:] {
			require.Equal(t, ids.Event(tenantID, "row-26"), ev.EventID)
		}
	})
	t.Run("OneKeyOfTwoTenantsIsTwoEvents", func(t *testing.T) { // report 7
		other := principal(apikey.ScopeEventsWrite)
		other.TenantID = uuid.New()
		f.keys["ck_live_other"] = other
		_, mine := f.post(t, trackPath, track("report-7"))
		_, theirs := f.post(t, trackPath, track("report-7"), "Authorization", "Bearer ck_live_other")
		require.NotEqual(t, mine, theirs)
	})
	t.Run("TheCallersTimesKeepTheirOrder", func(t *testing.T) { // report 9: B comes 32 s earlier, and stays behind A
		before := len(f.queue.taken())
		f.post(t, trackPath, at("2026-11-01T01:25:00Z"))
		f.post(t, trackPath, at("2026-11-01T01:24:42Z"))
		evs := f.queue.taken()[before:]
		require.True(t, evs[1].OccurredAt.Before(evs[0].OccurredAt))
	})
	t.Run("TheHourThatRepeatsIsTwoInstants", func(t *testing.T) { // report 10
		before := len(f.queue.taken())
		f.post(t, trackPath, at("2026-11-01T01:30:00-04:00"))
		f.post(t, trackPath, at("2026-11-01T01:30:00-05:00"))
		evs := f.queue.taken()[before:]
		require.Equal(t, time.Hour, evs[1].OccurredAt.Sub(evs[0].OccurredAt))
		require.EqualValues(t, -4*3600, evs[0].OccurredOffset)
	})
	t.Run("NothingIsAcceptedThatTheQueueDidNotTake", func(t *testing.T) { // report 8
		f := newFront(t, Config{}, httpserver.Config{}, func(d *Deps) { d.Queue = fullDisk{} })
		resp, body := f.post(t, trackPath, track("report-8"))
		requireProblem(t, resp, body, http.StatusServiceUnavailable, "queue_unavailable")
		require.NotEmpty(t, resp.Header.Get("Retry-After"))
	})
}

// fullDisk is a queue that can keep nothing.
type fullDisk struct{}

func (fullDisk) Enqueue(context.Context, []Record) error {
	return &EnqueueError{EnqueueAway, kerr.KafkaStorageError}
}
