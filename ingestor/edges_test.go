package ingestor

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/softcrum/carril/ingestor/apikey"
	"github.com/softcrum/carril/internal/httpserver"
	"github.com/softcrum/carril/internal/ids"
)

// identify is a good one with identifiers and traits.
func identify(key, identifiers, traits string) string {
	return fmt.Sprintf(`{"idempotency_key":%q,"occurred_at":"2026-11-01T06:30:00Z","identifiers":%s,"traits":%s}`, key, identifiers, traits)
}

func TestIdentify(t *testing.T) {
	t.Parallel()
	f := newFront(t, Config{}, httpserver.Config{}, nil)
	many := func(n int) string {
		var parts []string
		for i := range n {
			parts = append(parts, fmt.Sprintf(`"kind_%d":"v"`, i))
		}
		return "{" + strings.Join(parts, ",") + "}"
	}
	for name, tc := range map[string]struct{ identifiers, traits string }{
		"SeveralAtOnce":       {`{"external_id":"c-1","email":"Ana@Example.com","phone":"+573001234567","anonymous_id":"a-1","loyalty_card":"77"}`, `{"name":"Ana"}`},
		"OneIsNull":           {`{"external_id":"c-1","email":null}`, `{}`},
		"OneIsEmpty":          {`{"external_id":"c-1","email":""}`, `{}`},
		"NamesNobody":         {`{"external_id":"undefined","anonymous_id":"[object Object]"}`, `{}`}, // a warning, never the event
		"ThirtyTwoKinds":      {many(32), `{}`},
		"ATraitIsDeleted":     {`{"external_id":"c-1"}`, `{"city":null}`},
		"TraitsOfEveryKind":   {`{"external_id":"c-1"}`, `{"n":9007199254740993,"m":1.10,"b":true,"o":{"a":[1,{"b":null}]},"t":"\ud83d\ude00\u2028"}`},
		"TheKeyOfATraitIsAny": {`{"external_id":"c-1"}`, `{"":1,"a b":2,"~/":3,"__proto__":4}`},
		"LongIdentifier":      {`{"external_id":"` + strings.Repeat("é", 256) + `"}`, `{}`},
	} {
		t.Run("Takes/"+name, func(t *testing.T) {
			resp, body := f.post(t, identifyPath, identify(name, tc.identifiers, tc.traits))
			require.Equal(t, http.StatusAccepted, resp.StatusCode, body)
			taken := f.queue.taken()
			ev := taken[len(taken)-1]
			require.Equal(t, ids.Event(tenantID, name), ev.EventID)
			require.Equal(t, "core.contact.identified", ev.EventName)
			require.Equal(t, tc.identifiers, ev.Identifiers, "as it was sent")
			require.Equal(t, tc.traits, ev.Payload, "as it was sent")
		})
	}
	before := len(f.queue.taken())
	for name, tc := range map[string]struct {
		identifiers, traits, code, pointer string
		status                             int
	}{
		"NoIdentifier":       {`{}`, `{}`, "missing_identifier", "/identifiers", 422},
		"NullsAlone":         {`{"email":null,"phone":null}`, `{}`, "missing_identifier", "/identifiers", 422},
		"ANumber":            {`{"external_id":3146}`, `{}`, "invalid_identifier", "/identifiers/external_id", 422}, // field report 11
		"AnObject":           {`{"external_id":{"id":"c-1"}}`, `{}`, "invalid_identifier", "/identifiers/external_id", 422},
		"AKindTwice":         {`{"email":"a@example.com","email":"b@example.com"}`, `{}`, "duplicate_key", "/identifiers/email", 400},
		"AnUpperCaseKind":    {`{"Email":"a@example.com"}`, `{}`, "invalid_identifier", "/identifiers", 422},
		"ThirtyThreeKinds":   {many(33), `{}`, "invalid_identifier", "/identifiers", 422},
		"LongerThanAnIndex":  {`{"external_id":"` + strings.Repeat("x", 513) + `"}`, `{}`, "invalid_identifier", "/identifiers/external_id", 422},
		"NotAnObject":        {`["c-1"]`, `{}`, "invalid_field", "/identifiers", 422},
		"NoTraits":           {`{"external_id":"c-1"}`, `null`, "missing_field", "/traits", 422},
		"TraitsAreAList":     {`{"external_id":"c-1"}`, `[]`, "invalid_field", "/traits", 422},
		"ATraitTwice":        {`{"external_id":"c-1"}`, `{"a":1,"a":2}`, "duplicate_key", "/traits/a", 400},
		"NULInATrait":        {`{"external_id":"c-1"}`, `{"email":"\u0000"}`, "nul_character", "/traits/email", 400}, // field report 1
		"NULInAnIdentifier":  {`{"external_id":"c\u0000"}`, `{}`, "nul_character", "/identifiers/external_id", 400},
		"AnEventNameAsWell":  {`{"external_id":"c-1"}`, `{},"event_name":"a.b"`, "unknown_field", "/event_name", 400},
		"PropertiesAsWell":   {`{"external_id":"c-1"}`, `{},"properties":{}`, "unknown_field", "/properties", 400},
		"AContactOfSomebody": {`{"external_id":"c-1"}`, `{},"contact_id":"` + ids.New().String() + `"`, "unknown_field", "/contact_id", 400},
	} {
		t.Run("Refuses/"+name, func(t *testing.T) {
			resp, body := f.post(t, identifyPath, identify(name, tc.identifiers, tc.traits))
			require.Equal(t, tc.pointer, requireProblem(t, resp, body, tc.status, tc.code)["pointer"])
		})
	}
	require.Len(t, f.queue.taken(), before)
}

func TestClocks(t *testing.T) {
	t.Parallel()
	f := newFront(t, Config{}, httpserver.Config{}, nil)
	p := principal(apikey.ScopeEventsWrite)
	p.Tenant.Clamp = true
	f.keys["ck_live_clamp"] = p
	at := func(key, when string) string {
		return strings.Replace(track(key), "2026-11-01T01:30:00.5-05:00", when, 1)
	}
	for name, tc := range map[string]struct {
		when    string
		refused bool
		stored  time.Time
	}{
		"FifteenMinutesAhead": {"2026-11-01T12:15:00Z", false, now.Add(15 * time.Minute)},
		"AheadOfThat":         {"2026-11-01T12:15:00.000001Z", true, now},
		"TenDaysAhead":        {"2026-11-11T12:00:00+05:00", true, now}, // bad inputs 22
		"TheHorizon":          {"2025-10-01T12:00:00Z", false, now.AddDate(0, -13, 0)},
		"BeforeTheHorizon":    {"2025-10-01T11:59:59.999999Z", true, now.AddDate(0, -13, 0)},
		"ThreeYearsOld":       {"2023-11-01T12:00:00-05:00", true, now.AddDate(0, -13, 0)},
	} {
		t.Run(name, func(t *testing.T) {
			claimed, err := time.Parse(time.RFC3339Nano, tc.when)
			require.NoError(t, err)
			resp, body := f.post(t, trackPath, at("reject-"+name, tc.when))
			if tc.refused {
				problem := requireProblem(t, resp, body, http.StatusUnprocessableEntity, "occurred_at_out_of_range")
				require.Equal(t, "/occurred_at", problem["pointer"])
				require.Equal(t, "2026-11-01T12:00:00Z", problem["server_time"])
			} else {
				require.Equal(t, http.StatusAccepted, resp.StatusCode, body)
			}
			before := len(f.queue.taken())
			resp, body = f.post(t, trackPath, at("clamp-"+name, tc.when), "Authorization", "Bearer ck_live_clamp")
			require.Equal(t, http.StatusAccepted, resp.StatusCode, body)
			ev := f.queue.taken()[before]
			require.True(t, tc.stored.Equal(ev.OccurredAt), "%s", ev.OccurredAt)
			if tc.refused {
				require.True(t, claimed.Equal(*ev.OccurredClaimed), "what the caller said stays beside it")
			} else {
				require.Nil(t, ev.OccurredClaimed)
			}
		})
	}
}

func TestHistorical(t *testing.T) { // I31
	t.Parallel()
	f := newFront(t, Config{}, httpserver.Config{}, nil)
	old := func(key string) string { return `{"historical":true,` + item(key)[1:] }
	t.Run("IsForAWholeBatch", func(t *testing.T) {
		resp, body := f.post(t, batchPath, batchOf(old("h-0"), old("h-1")))
		require.Equal(t, http.StatusAccepted, resp.StatusCode, body)
		for _, ev := range f.queue.taken() {
			require.True(t, ev.Historical)
		}
	})
	t.Run("IsNothingForAPartOfOne", func(t *testing.T) {
		before := len(f.queue.taken())
		for _, batch := range []string{batchOf(old("h-2"), item("h-3")), batchOf(item("h-4"), old("h-5"))} {
			resp, body := f.post(t, batchPath, batch)
			p := requireProblem(t, resp, body, http.StatusUnprocessableEntity, "mixed_historical")
			require.Equal(t, "/events/1/historical", p["pointer"])
		}
		require.Len(t, f.queue.taken(), before, "nothing of it was taken")
	})
	t.Run("IsTrueOrFalse", func(t *testing.T) {
		resp, body := f.post(t, trackPath, `{"historical":"yes",`+track("h-6")[1:])
		requireProblem(t, resp, body, http.StatusUnprocessableEntity, "invalid_field")
	})
}

// TestRequestIDs asks for one id in the header, the problem and the logs.
func TestRequestIDs(t *testing.T) {
	t.Parallel()
	f := newFront(t, Config{}, httpserver.Config{}, nil)
	seen := map[string]bool{}
	for _, c := range []struct{ path, body, key string }{
		{trackPath, track("r"), goodKey}, {trackPath, "{", goodKey}, {trackPath, track("r"), "ck_live_none"}, {batchPath, batchOf(item("a"), "{}"), goodKey},
		{messagesPath, code("r", "product"), goodKey}, {messagesPath, "", goodKey}, {"/nowhere", "", goodKey},
	} {
		resp, body := f.post(t, c.path, c.body, "Authorization", "Bearer "+c.key, httpserver.RequestIDHeader, "chosen-by-the-caller")
		id := resp.Header.Get(httpserver.RequestIDHeader)
		require.Len(t, id, 36, c.path)
		require.False(t, seen[id])
		seen[id] = true
		if resp.StatusCode >= 400 {
			require.Contains(t, body, `"instance":"`+id+`"`)
		}
	}
	f.queue.mu.Lock()
	f.queue.fail = func(context.Context) error { return &EnqueueError{EnqueueAway, errors.New("no broker")} }
	f.queue.mu.Unlock()
	resp, _ := f.post(t, trackPath, track("r"))
	require.Contains(t, f.logs.String(), "request_id="+resp.Header.Get(httpserver.RequestIDHeader))
}
