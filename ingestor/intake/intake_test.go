package intake

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/softcrum/carril/internal/ids"
	"github.com/softcrum/carril/schemas"
)

var (
	tenant = uuid.MustParse("0190aaaa-0000-7000-8000-000000000001")
	now    = time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)
)

func caller() *Caller {
	earliest, latest := Window(now, 13, 15*time.Minute)
	return &Caller{TenantID: tenant, CellID: "c1", ReceivedAt: now, Earliest: earliest, Latest: latest, RequestID: "req-1"}
}

func TestOne(t *testing.T) {
	t.Parallel()
	for _, tc := range refusals {
		t.Run("Refuses"+tc.name, func(t *testing.T) {
			t.Parallel()
			ev, err := NewParser().One(Track, []byte(tc.body), caller())
			require.NotNil(t, err)
			require.Nil(t, ev)
			require.Equal(t, Code(tc.code), err.Code)
			require.Equal(t, tc.pointer, err.Pointer)
			require.NotEmpty(t, err.Code.Title())
		})
	}
	t.Run("SaysOurTimeWhereTheirsIsOff", func(t *testing.T) {
		t.Parallel()
		_, err := NewParser().One(Track, []byte(track("occurred_at", `"2026-11-11T00:00:00Z"`)), caller())
		require.Equal(t, now, err.ServerTime)
		require.Equal(t, 422, err.Code.Status())
	})
}

func mustOne(t testing.TB, kind, body string, c *Caller) *schemas.Event {
	t.Helper()
	ev, err := NewParser().One(kind, []byte(body), c)
	require.Nil(t, err, "%+v", err)
	return ev
}

func TestAccepted(t *testing.T) {
	t.Parallel()
	t.Run("CarriesEverything", func(t *testing.T) {
		t.Parallel()
		body := ` { "event_name" : "Order Completed", "occurred_at":"2026-11-01T01:30:00.123456789-05:00","idempotency_key":"clé-1",
			"identifiers":{ "external_id":"c-1", "email":null },"properties": {"a" : [1, 2]} , "correlation_id":"corr\u002d1","historical":true }` + "\n"
		ev := mustOne(t, Track, body, caller())
		id := ids.Event(tenant, "clé-1")
		require.Len(t, ev.BodyHash, 32)
		ev.BodyHash = nil
		requestID := "req-1"
		require.Equal(t, &schemas.Event{
			Kind: "track", EventID: id, TenantID: tenant, CellID: "c1", EventName: "Order Completed", IdempotencyKey: "clé-1",
			OccurredAt: time.Date(2026, 11, 1, 6, 30, 0, 123456000, time.UTC), OccurredOffset: -5 * 3600, ReceivedAt: now,
			CorrelationID: "corr-1", Identifiers: `{ "external_id":"c-1", "email":null }`, Payload: `{"a" : [1, 2]}`,
			Historical: true, RequestID: &requestID,
		}, ev)
	})
	t.Run("IdentifyHasTraitsAndTheReservedName", func(t *testing.T) {
		t.Parallel()
		ev := mustOne(t, Identify, track("event_name", "", "properties", "", "traits", `{"name":"Ana"}`), caller())
		require.Equal(t, IdentifiedName, ev.EventName)
		require.Equal(t, "identify", ev.Kind)
		require.Equal(t, `{"name":"Ana"}`, ev.Payload)
		require.Equal(t, ev.EventID.String(), ev.CorrelationID, "none given: the event id")
		for _, extra := range []string{`"event_name":"a"`, `"properties":{}`, `"type":"identify"`} {
			_, err := NewParser().One(Identify, []byte(track("event_name", "", "properties", "", "traits", "{},"+extra)), caller())
			require.Equal(t, UnknownField, err.Code, extra)
		}
		_, err := NewParser().One(Identify, []byte(track("event_name", "", "properties", "")), caller())
		require.Equal(t, Error{Code: MissingField, Pointer: "/traits", Detail: "traits is required."}, *err)
	})
	t.Run("KeepsTheText", func(t *testing.T) {
		t.Parallel()
		for _, v := range []string{
			`{"n":9007199254740993}`, `{"n":[-0,1.0,1E2,1e+2,0.10]}`, // rows 14, 17
			`{"n":18446744073709551616}`,                 // field report 5
			`{"s":"\ud83d\ude00 😀 \uD83D\uDE00"}`,        // row 12
			`{"a":"\\u0000"}`, `{"\\u0000":"\\\\u0000"}`, // field report 3
			`{"n":[5e-324,1.7976931348623157e308,-2.2250738585072014e-308,0e0,0.0,1e-400]}`,
			`{"n":` + strings.Repeat("9", 64) + `}`,
			nested(32, `{"a":`, "}"), `{}`, "{ }", "{\"x\":[\n]}",
			`{"a":1,"A":1,"á":1,"\u00c1":1,"aa":[{"a":1},{"a":1}]}`, // exact inside properties
			`{"` + strings.Repeat("k", 512) + `":"\"\\\/\b\f\n\r\t\u007f"}`,
			manyKeys(200),
		} {
			require.Equal(t, v, mustOne(t, Track, properties(v), caller()).Payload)
		}
	})
	t.Run("CountsBytes", func(t *testing.T) { // field report 12
		t.Parallel()
		mustOne(t, Track, track("identifiers", strings.ReplaceAll(manyKeys(32), ":1", `:"a"`)), caller())
		mustOne(t, Track, "  "+padded(MaxEventBytes)+"  ", caller())
	})
	t.Run("TakesTheEdges", func(t *testing.T) {
		t.Parallel()
		for _, body := range []string{
			track("event_name", `"`+strings.Repeat("a", 200)+`"`), track("event_name", `"0:a-b_c.d"`), track("event_name", `"\u0061"`), track("event_name", `"corex"`),
			track("idempotency_key", `"`+strings.Repeat("a", 255)+`"`), track("idempotency_key", `"a b\u00e9😀\ufffd"`),
			track("identifiers", `{"loyalty_card2":"`+strings.Repeat("9", 512)+`"}`), track("identifiers", "{\n\"email\" : \"a\\\"@example.com\" , \"phone\":null}"),
			track("correlation_id", "null"), track("historical", "null"), track("historical", "false"),
			track("occurred_at", `"2026-11-01T12:15:00Z"`), track("occurred_at", `"2025-10-01T12:00:00Z"`), track("occurred_at", `"2026-11-01T00:00:00-00:00"`),
			track("occurred_at", `"2026-02-28T23:59:59.9999999999999+23:59"`),
		} {
			mustOne(t, Track, body, caller())
		}
	})
	t.Run("TwoInstantsOfTheHourThatRepeats", func(t *testing.T) { // field report 10
		t.Parallel()
		first := mustOne(t, Track, track("occurred_at", `"2026-11-01T01:30:00-04:00"`), caller())
		second := mustOne(t, Track, track("occurred_at", `"2026-11-01T01:30:00-05:00"`), caller())
		require.Equal(t, time.Hour, second.OccurredAt.Sub(first.OccurredAt))
		require.Equal(t, []int32{-4 * 3600, -5 * 3600}, []int32{first.OccurredOffset, second.OccurredOffset})
	})
	t.Run("StampsReceivedAtToTheMicrosecond", func(t *testing.T) {
		t.Parallel()
		c := caller()
		c.ReceivedAt = now.Add(1234 * time.Nanosecond)
		require.Equal(t, now.Add(time.Microsecond), mustOne(t, Track, track(), c).ReceivedAt)
	})
	t.Run("TheSameKeyOfTwoTenantsIsTwoEvents", func(t *testing.T) { // field report 7
		t.Parallel()
		other := caller()
		other.TenantID = uuid.MustParse("0190aaaa-0000-7000-8000-000000000002")
		require.NotEqual(t, mustOne(t, Track, track(), caller()).EventID, mustOne(t, Track, track(), other).EventID)
	})
}

func TestIdempotencyKeyHeader(t *testing.T) {
	t.Parallel()
	with := func(key string) *Caller { c := caller(); c.IdempotencyKey = key; return c }
	require.Equal(t, "h-1", mustOne(t, Track, track("idempotency_key", ""), with("h-1")).IdempotencyKey)
	require.Equal(t, "invoice-889", mustOne(t, Track, track(), with("invoice-889")).IdempotencyKey)
	_, err := NewParser().One(Track, []byte(track()), with("h-1"))
	require.Equal(t, Error{Code: IdempotencyKeyMismatch, Pointer: "/idempotency_key"}, *err)
	for _, bad := range []string{"a\x01", "\xff", strings.Repeat("a", 256)} {
		_, err = NewParser().One(Track, []byte(track("idempotency_key", "")), with(bad))
		require.Equal(t, InvalidIdempotencyKey, err.Code)
		require.Empty(t, err.Pointer, "it is not in the body")
	}
}

func TestClamp(t *testing.T) {
	t.Parallel()
	c := caller()
	c.Clamp = true
	for _, tc := range []struct{ name, at, want string }{
		{"AheadHappenedNoLaterThanWeReceivedIt", "2026-11-11T00:00:00Z", "2026-11-01T12:00:00Z"},
		{"BehindGoesToTheBeginningOfTheWindow", "2001-01-01T00:00:00Z", "2025-10-01T12:00:00Z"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			ev := mustOne(t, Track, track("occurred_at", `"`+tc.at+`"`), c)
			require.Equal(t, tc.want, ev.OccurredAt.Format(time.RFC3339Nano))
			require.Equal(t, tc.at, ev.OccurredClaimed.Format(time.RFC3339Nano))
		})
	}
	t.Run("InsideStaysAsItIs", func(t *testing.T) {
		ev := mustOne(t, Track, track("occurred_at", `"2026-11-01T12:14:00Z"`), c)
		require.Nil(t, ev.OccurredClaimed)
		require.Equal(t, "2026-11-01T12:14:00Z", ev.OccurredAt.Format(time.RFC3339Nano))
	})
	t.Run("ARetryHasTheSameHash", func(t *testing.T) {
		body := track("occurred_at", `"2026-11-11T00:00:00Z"`)
		later := *c
		later.ReceivedAt = now.Add(time.Second)
		require.Equal(t, mustOne(t, Track, body, c).BodyHash, mustOne(t, Track, body, &later).BodyHash)
	})
}

func TestBodyHash(t *testing.T) {
	t.Parallel()
	hash := func(body string) string { return string(mustOne(t, Track, body, caller()).BodyHash) }
	base := hash(track())
	for name, body := range map[string]string{
		"Resent":           track(),
		"Spaced":           track("properties", "{ \"total\" :\t12.50\n}", "identifiers", `{ "external_id": "c-1"}`),
		"OtherCorrelation": track("correlation_id", `"x"`),
		"FieldsInTurn":     track("properties", "", "event_name", `"invoice.paid","properties":{"total":12.50}`),
		"NotHistorical":    track("historical", "false"),
	} {
		require.Equal(t, base, hash(body), name)
	}
	for name, body := range map[string]string{
		"OtherDigits":     properties(`{"total":12.5}`),
		"OtherSpaceText":  properties(`{"to tal":12.50}`),
		"OtherOffset":     track("occurred_at", `"2026-11-01T06:30:00Z"`),
		"OtherTime":       track("occurred_at", `"2026-11-01T01:30:00.000001-05:00"`),
		"OtherName":       track("event_name", `"invoice.paid2"`),
		"OtherIdentifier": track("identifiers", `{"external_id":"c-2"}`),
		"Historical":      track("historical", "true"),
		"Shifted":         track("identifiers", `{"external_id":"c-1","a":"b"}`),
	} {
		require.NotEqual(t, base, hash(body), name)
	}
}

func TestWindow(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		now    string
		months int
		want   string
	}{
		{"2026-11-01T12:00:00Z", 13, "2025-10-01T12:00:00Z"},
		{"2026-03-31T12:00:00Z", 13, "2025-02-28T12:00:00Z"},
		{"2024-03-31T12:00:00Z", 1, "2024-02-29T12:00:00Z"},
		{"2026-01-15T12:00:00Z", 25, "2023-12-15T12:00:00Z"},
		{"2026-10-31T22:00:00-05:00", 1, "2026-10-01T03:00:00Z"},
	} {
		at, err := time.Parse(time.RFC3339, tc.now)
		require.NoError(t, err)
		earliest, latest := Window(at, tc.months, 15*time.Minute)
		require.Equal(t, tc.want, earliest.Format(time.RFC3339))
		require.True(t, latest.Equal(at.Add(15*time.Minute)))
	}
}

// The library is the oracle, but for what it takes and we do not.
func TestParseTimeAgreesWithTheLibrary(t *testing.T) {
	t.Parallel()
	check := func(t require.TestingT, text string) {
		at, offset, ok := parseTime([]byte(text))
		want, err := time.Parse(time.RFC3339, text)
		require.Equal(t, err == nil, ok, text)
		if ok {
			_, wantOffset := want.Zone()
			require.Equal(t, want.UTC().Truncate(time.Microsecond), at, text)
			require.Equal(t, wantOffset, int(offset), text)
		}
	}
	for year := 1; year < 10_000; year += 3 {
		for _, day := range []string{"01-01", "02-28", "02-29", "03-01", "12-31"} {
			check(t, fmt.Sprintf("%04d-%sT23:59:59Z", year, day))
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		check(t, fmt.Sprintf("%04d-%02d-%02dT%02d:%02d:%02d%s%s", rapid.IntRange(1, 9999).Draw(t, "year"), rapid.IntRange(0, 13).Draw(t, "month"),
			rapid.IntRange(0, 32).Draw(t, "day"), rapid.IntRange(0, 25).Draw(t, "hour"), rapid.IntRange(0, 61).Draw(t, "minute"), rapid.IntRange(0, 61).Draw(t, "second"),
			rapid.StringMatching(`(\.[0-9]{1,12})?`).Draw(t, "fraction"), rapid.StringMatching(`Z|[+-](0[0-9]|1[0-9]|2[0-3]):([0-5][0-9])`).Draw(t, "offset")))
	})
}

func TestCodes(t *testing.T) {
	t.Parallel()
	seen := map[Code]bool{}
	for _, c := range Codes() {
		require.False(t, seen[c], c)
		seen[c] = true
		require.NotEmpty(t, c.Title(), c)
		require.Contains(t, []int{400, 413, 422}, c.Status())
	}
	for _, tc := range refusals {
		require.True(t, seen[Code(tc.code)], tc.code)
	}
	require.Equal(t, "intake: missing_field at /a", (&Error{Code: MissingField, Pointer: "/a"}).Error())
}

// Errors go to logs: they must not carry what the caller sent.
func TestErrorsNameNoValues(t *testing.T) {
	t.Parallel()
	const canary = "canary7788"
	for _, body := range []string{
		track("event_name", `"`+canary+`/"`), track("occurred_at", `"`+canary+`"`), track("idempotency_key", `"`+canary+`\n"`),
		track("identifiers", `{"email":"`+canary+strings.Repeat("a", 600)+`"}`), properties(`{"a":"` + canary + `\u0000"}`), canary,
	} {
		_, err := NewParser().One(Track, []byte(body), caller())
		require.NotNil(t, err)
		text, _ := json.Marshal(err)
		require.NotContains(t, string(text)+err.Error(), canary)
	}
}
