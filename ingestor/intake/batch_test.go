package intake

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/softcrum/carril/internal/ids"
)

// item is a good event of a batch, with a key of its own.
func item(n int, parts ...string) string {
	return track(append([]string{"type", `"track"`, "idempotency_key", fmt.Sprintf(`"k-%d"`, n)}, parts...)...)
}

func batchOf(items ...string) string { return `{"events":[` + strings.Join(items, ",") + `]}` }

func items(n int) []string {
	out := make([]string, n)
	for i := range out {
		out[i] = item(i)
	}
	return out
}

func TestBatch(t *testing.T) {
	t.Parallel()
	t.Run("TakesFiveHundred", func(t *testing.T) { // FS-CORE-0006 AC4
		t.Parallel()
		got, err := NewParser().Batch([]byte(batchOf(items(500)...)), caller())
		require.Nil(t, err)
		require.Len(t, got, 500)
		for i, it := range got {
			require.Nil(t, it.Err)
			require.Equal(t, ids.Event(tenant, fmt.Sprintf("k-%d", i)), it.Event.EventID)
			require.Equal(t, fmt.Sprintf("k-%d", i), it.Event.IdempotencyKey)
			require.Equal(t, it.Event.EventID.String(), it.Event.CorrelationID)
			require.Len(t, it.Event.BodyHash, 32)
		}
	})
	t.Run("RefusesFiveHundredAndOne", func(t *testing.T) { // FS-CORE-0006 AC4
		t.Parallel()
		got, err := NewParser().Batch([]byte(batchOf(items(501)...)), caller())
		require.Nil(t, got)
		require.Equal(t, BatchTooLarge, err.Code)
		require.Equal(t, 413, err.Code.Status())
	})
	t.Run("LosesOnlyTheBadOne", func(t *testing.T) { // row 27, field reports 4 and 6
		t.Parallel()
		for _, tc := range refusals {
			code := Code(tc.code)
			if code == InvalidJSON || code == EmptyBody || code == TrailingData || tc.name == "Type" {
				continue // these break the batch itself, or mean nothing in one
			}
			bad := tc.body
			if strings.HasPrefix(bad, "{") {
				bad = `{"type":"track",` + bad[1:]
			}
			if tc.name == "Nothing" {
				bad = `{"type":"track"}`
			}
			all := items(5)
			all[2] = bad
			got, err := NewParser().Batch([]byte(batchOf(all...)), caller())
			require.Nil(t, err, tc.name)
			require.Len(t, got, 5)
			for i, it := range got {
				if i != 2 {
					require.Nil(t, it.Err, tc.name)
					continue
				}
				require.Nil(t, it.Event, tc.name)
				require.Equal(t, code, it.Err.Code, tc.name)
				if code != TooManyKeys && len(tc.pointer) < 400 { // type is a key more
					require.Equal(t, "/events/2"+tc.pointer, it.Err.Pointer, tc.name)
				}
			}
		}
	})
	t.Run("MixesKinds", func(t *testing.T) {
		t.Parallel()
		identify := track("type", `"identify"`, "event_name", "", "properties", "", "traits", `{"a":1}`)
		got, err := NewParser().Batch([]byte("\n"+batchOf(item(1), identify)+" "), caller())
		require.Nil(t, err)
		require.Equal(t, []string{Track, Identify}, []string{got[0].Event.Kind, got[1].Event.Kind})
	})
	t.Run("CountsForEachEventAlone", func(t *testing.T) {
		t.Parallel()
		growing := item(1, "properties", `{"n":[`+strings.Repeat("1e300,", 90)+strings.Repeat("1,", 4_000)+`1]}`)
		got, err := NewParser().Batch([]byte(batchOf(growing, growing, growing)), caller())
		require.Nil(t, err)
		for _, it := range got {
			require.Nil(t, it.Err)
		}
	})
	t.Run("IsHistoricalAsAWholeOrNotAtAll", func(t *testing.T) {
		t.Parallel()
		old := item(1, "historical", "true")
		got, err := NewParser().Batch([]byte(batchOf(old, item(2, "event_name", "7"), item(3, "historical", "true"))), caller())
		require.Nil(t, err)
		require.True(t, got[0].Event.Historical)
		_, err = NewParser().Batch([]byte(batchOf(old, item(2, "event_name", "7"), item(3))), caller())
		require.Equal(t, Error{Code: MixedHistorical, Pointer: "/events/2/historical"}, *err)
	})
	for _, tc := range []struct{ name, body, code, pointer string }{
		{"Empty", "", "empty_body", ""},
		{"Array", "[" + item(1) + "]", "not_an_object", ""},
		{"NoEvents", "{}", "missing_field", "/events"},
		{"NullEvents", `{"events":null}`, "missing_field", "/events"},
		{"EventsObject", `{"events":{}}`, "invalid_field", "/events"},
		{"NoneAtAll", `{"events":[]}`, "empty_batch", "/events"},
		{"UnknownField", `{"events":[` + item(1) + `],"tenant_id":"x"}`, "unknown_field", "/tenant_id"},
		{"OtherCase", `{"Events":[` + item(1) + `]}`, "unknown_field", "/Events"},
		{"Twice", `{"events":[` + item(1) + `],"events":[` + item(1) + `]}`, "duplicate_key", "/events"},
		{"TwiceByCase", `{"events":[` + item(1) + `],"EVENTS":[]}`, "duplicate_key", "/EVENTS"},
		{"Trailing", batchOf(item(1)) + "x", "trailing_data", ""},
		{"BrokenItem", batchOf(item(1), `{"a":}`), "invalid_json", ""},
		{"OpenEnd", `{"events":[` + item(1), "invalid_json", ""},
		{"TrailingComma", `{"events":[` + item(1) + `,]}`, "invalid_json", ""},
		{"ManyKeysThenAnother", `{"events":[` + item(1, "properties", manyKeys(10_001)) + `],"x":[` + strings.Repeat("1,", 10_001) + `1],"y":1}`, "too_many_keys", "/x/9999"},
	} {
		t.Run("RefusesTheWhole"+tc.name, func(t *testing.T) {
			t.Parallel()
			got, err := NewParser().Batch([]byte(tc.body), caller())
			require.NotNil(t, err)
			require.Nil(t, got)
			require.Equal(t, Code(tc.code), err.Code)
			require.Equal(t, tc.pointer, err.Pointer)
		})
	}
	for _, tc := range []struct{ name, item, code, pointer string }{
		{"NotAnObject", "[1]", "not_an_object", "/events/0"},
		{"NoType", track(), "missing_field", "/events/0/type"},
		{"OtherType", item(1, "type", `"alias"`), "invalid_type", "/events/0/type"},
		{"NumberType", item(1, "type", `1`), "invalid_type", "/events/0/type"},
		{"TraitsOfATrack", item(1, "traits", "{}"), "unknown_field", "/events/0/traits"},
	} {
		t.Run("RefusesTheItem"+tc.name, func(t *testing.T) {
			t.Parallel()
			got, err := NewParser().Batch([]byte(batchOf(tc.item)), caller())
			require.Nil(t, err)
			require.Equal(t, Code(tc.code), got[0].Err.Code)
			require.Equal(t, tc.pointer, got[0].Err.Pointer)
		})
	}
}

func TestParserIsUsedAgain(t *testing.T) {
	t.Parallel()
	p := NewParser()
	for range 3 {
		_, err := p.One(Track, []byte(properties(`{"a":"\ud83d","b":[`)), caller())
		require.Equal(t, InvalidJSON, err.Code)
		got, err := p.Batch([]byte(batchOf(item(1, "event_name", "7"), item(2))), caller())
		require.Nil(t, err)
		require.NotNil(t, got[0].Err)
		require.Nil(t, got[1].Err)
		_, err = p.Batch([]byte(batchOf(items(501)...)), caller())
		require.Equal(t, BatchTooLarge, err.Code)
		ev, err := p.One(Track, []byte(track()), caller())
		require.Nil(t, err)
		require.Equal(t, "invoice.paid", ev.EventName)
	}
}
