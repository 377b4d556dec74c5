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

// track builds a good event whose parts can be replaced; "" leaves one out.
func track(parts ...string) string {
	fields := map[string]string{
		"event_name": `"invoice.paid"`, "idempotency_key": `"invoice-889"`, "occurred_at": `"2026-11-01T01:30:00-05:00"`,
		"identifiers": `{"external_id":"c-1"}`, "properties": `{"total":12.50}`,
	}
	order := []string{"event_name", "idempotency_key", "occurred_at", "identifiers", "properties"}
	for i := 0; i < len(parts); i += 2 {
		if _, known := fields[parts[i]]; !known {
			order = append(order, parts[i])
		}
		fields[parts[i]] = parts[i+1]
	}
	var out []string
	for _, k := range order {
		if fields[k] != "" {
			out = append(out, `"`+k+`":`+fields[k])
		}
	}
	return "{" + strings.Join(out, ",") + "}"
}

func properties(v string) string { return track("properties", v) }

func nested(n int, open, closing string) string {
	return strings.Repeat(open, n) + "1" + strings.Repeat(closing, n)
}

func manyKeys(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, `,"k%d":1`, i)
	}
	return "{" + b.String()[1:] + "}"
}

// refusals are the rows 1 to 28 of the bad inputs, the field reports on ingest
// and more of their kinds: body, code, and the JSON pointer.
var refusals = []struct{ name, body, code, pointer string }{
	{"Empty", "", "empty_body", ""}, // row 1
	{"OnlySpace", " \n\t\r ", "empty_body", ""},
	{"Null", "null", "not_an_object", ""}, // row 2
	{"Array", "[]", "not_an_object", ""},
	{"String", `"x"`, "not_an_object", ""},
	{"Number", "1", "not_an_object", ""},
	{"True", "true", "not_an_object", ""},
	{"TwoObjects", track() + track(), "trailing_data", ""}, // row 3
	{"TrailingLetter", track() + "x", "trailing_data", ""},
	{"TrailingNUL", track() + "\x00", "trailing_data", ""},
	{"ByteOrderMark", "\ufeff" + track(), "invalid_json", ""}, // row 4
	{"UTF16", "\xff\xfe{\x00}\x00", "invalid_json", ""},
	{"Word", "x", "invalid_json", ""},
	{"BrokenArray", "[1", "invalid_json", ""},
	{"OpenObject", `{"event_name"`, "invalid_json", ""},
	{"TrailingComma", `{"event_name":"a",}`, "invalid_json", ""},
	{"LeadingComma", `{,}`, "invalid_json", ""},
	{"BareKey", `{event_name:"a"}`, "invalid_json", ""},
	{"SingleQuotes", `{'event_name':'a'}`, "invalid_json", ""},
	{"NoColon", `{"event_name" "a"}`, "invalid_json", ""},
	{"Comment", properties(`{/* no */}`), "invalid_json", ""},
	{"VerticalTab", "\v" + track(), "invalid_json", ""},
	{"NoBreakSpace", "\u00a0" + track(), "invalid_json", ""},
	{"LeadingZero", properties(`{"n":01}`), "invalid_json", ""},
	{"PlusSign", properties(`{"n":+1}`), "invalid_json", ""},
	{"LonePoint", properties(`{"n":1.}`), "invalid_json", ""},
	{"NoWhole", properties(`{"n":.5}`), "invalid_json", ""},
	{"LoneMinus", properties(`{"n":-}`), "invalid_json", ""},
	{"NoExponent", properties(`{"n":1e}`), "invalid_json", ""},
	{"Hexadecimal", properties(`{"n":0x10}`), "invalid_json", ""},
	{"NaN", properties(`{"n":NaN}`), "invalid_json", ""},
	{"Infinity", properties(`{"n":-Infinity}`), "invalid_json", ""},
	{"Literal", properties(`{"n":nul}`), "invalid_json", ""},
	{"LongLiteral", properties(`{"n":nulll}`), "invalid_json", ""},
	{"NewlineInString", properties("{\"s\":\"a\nb\"}"), "invalid_json", ""},
	{"UnitSeparator", properties("{\"s\":\"a\x1fb\"}"), "invalid_json", ""},
	{"UnknownEscape", properties(`{"s":"\x41"}`), "invalid_json", ""},
	{"CapitalU", properties(`{"s":"\U0001f64f"}`), "invalid_json", ""},    // field report 2
	{"ShortEscape", properties(`{"s":"\uD83D\u00"}`), "invalid_json", ""}, // field report 2
	{"OpenString", properties(`{"s":"abc}`), "invalid_json", ""},
	{"BracketForBrace", properties(`{"s":[1}`), "invalid_json", ""},

	{"KeyTwice", track("event_name", `"a","event_name":"a"`), "duplicate_key", "/event_name"}, // row 5
	{"KeyTwiceByCase", track("event_name", `"a","Event_Name":"b"`), "duplicate_key", "/Event_Name"},
	{"KeyTwiceByCaseFirst", `{"EVENT_NAME":"b",` + track()[1:], "duplicate_key", "/event_name"},
	{"KeyTwiceByEscape", track("event_name", `"a","event\u005fname":"b"`), "duplicate_key", "/event_name"},
	{"KeyTwiceInProperties", properties(`{"a":1,"a":1}`), "duplicate_key", "/properties/a"},
	{"KeyTwiceDeep", properties(`{"x":[{},{"~/":1,"~\/":1}]}`), "duplicate_key", "/properties/x/1/~0~1"},
	{"KeyTwiceByEscapeInProperties", properties(`{"a":1,"\u0061":1}`), "duplicate_key", "/properties/a"},
	{"KeyTwiceAmongMany", properties(strings.Replace(manyKeys(40), `"k17":1`, `"k3":1`, 1)), "duplicate_key", "/properties/k3"},
	{"KeyTwiceInIdentifiers", track("identifiers", `{"email":"a@example.com","email":"b@example.com"}`), "duplicate_key", "/identifiers/email"},
	{"Tenant", track("tenant_id", `"other"`), "unknown_field", "/tenant_id"}, // row 7
	{"Type", track("type", `"track"`), "unknown_field", "/type"},
	{"Traits", track("traits", `{}`), "unknown_field", "/traits"},
	{"OtherCase", track("Historical", `true`), "unknown_field", "/Historical"},
	{"Byte255", properties("{\"s\":\"a\xffb\"}"), "invalid_utf8", "/properties/s"}, // row 8
	{"Byte255InKey", properties("{\"a\xff\":1}"), "invalid_utf8", "/properties/a\xff"},
	{"Overlong", properties("{\"s\":\"\xc0\xaf\"}"), "invalid_utf8", "/properties/s"}, // field report 2
	{"EncodedSurrogate", properties("{\"s\":\"\xed\xa0\x80\"}"), "invalid_utf8", "/properties/s"},
	{"CutRune", properties("{\"s\":\"\xc3\"}"), "invalid_utf8", "/properties/s"},
	{"NUL", properties(`{"s":"\u0000"}`), "nul_character", "/properties/s"}, // row 9, field report 1
	{"NULInKey", properties(`{"a\u0000b":1}`), "nul_character", "/properties/a\x00b"},
	{"NULDeep", properties(`{"x":[1,{"y":"abc\u0000"}]}`), "nul_character", "/properties/x/1/y"},
	{"NULAfterBackslash", properties(`{"s":"\\\u0000"}`), "nul_character", "/properties/s"},
	{"NULInIdentifier", track("identifiers", `{"external_id":"\u0000"}`), "nul_character", "/identifiers/external_id"},
	{"NULInIdempotencyKey", track("idempotency_key", `"a\u0000"`), "nul_character", "/idempotency_key"},
	{"RawNUL", properties("{\"s\":\"a\x00\"}"), "nul_character", "/properties/s"},
	{"HighSurrogate", properties(`{"s":"\ud83d"}`), "lone_surrogate", "/properties/s"}, // row 11, field report 2
	{"LowSurrogate", properties(`{"s":"\ude00"}`), "lone_surrogate", "/properties/s"},
	{"TurnedSurrogates", properties(`{"s":"\ude00\ud83d"}`), "lone_surrogate", "/properties/s"},
	{"SurrogateBeforeOther", properties(`{"s":"\uD83D\ub000"}`), "lone_surrogate", "/properties/s"},
	{"SurrogateInKey", properties(`{"\ud83d":1}`), "lone_surrogate", "/properties/\ufffd"},
	{"Deep33", properties(nested(33, `{"a":`, "}")), "too_deep", "/properties" + strings.Repeat("/a", 32)}, // row 13
	{"DeepArrays", properties(`{"x":` + nested(32, "[", "]") + "}"), "too_deep", "/properties/x" + strings.Repeat("/0", 31)},
	{"Deep10001", properties(`{"x":` + nested(10_001, "[", "]") + "}"), "too_deep", "/properties/x" + strings.Repeat("/0", 31)},
	{"DeepBrackets", properties(`{"x":` + strings.Repeat("[", 500_000)), "invalid_json", ""},
	{"DeepAndBroken", properties(`{"x":` + strings.Repeat("[", 40) + "A" + strings.Repeat("]", 40) + "}"), "invalid_json", ""},
	{"DeepAndMismatched", properties(`{"x":` + strings.Repeat("[", 40) + strings.Repeat("}", 40) + "}"), "invalid_json", ""},
	{"DeepObjects", properties(`{"x":` + nested(100, `{"a":[{},[],`, "]}") + "}"), "too_deep", "/properties/x" + strings.Repeat("/a/2", 15) + "/a"},
	{"1e400", properties(`{"n":1e400}`), "number_out_of_range", "/properties/n"}, // row 15
	{"-1e400", properties(`{"n":-1E+400}`), "number_out_of_range", "/properties/n"},
	{"2e308", properties(`{"n":2e308}`), "number_out_of_range", "/properties/n"},
	{"1e131071", properties(`{"n":[0,1e131071]}`), "number_out_of_range", "/properties/n/1"}, // row 16, field report 14
	{"TenThousandOfThem", properties(`{"n":[` + strings.Repeat("1e131071,", 9_000) + `1]}`), "number_out_of_range", "/properties/n/0"},
	{"ManyThatGrow", properties(`{"n":[` + strings.Repeat("1e300,", 1_000) + `1]}`), "number_out_of_range", "/properties/n/108"},
	{"1e-131071", properties(`{"n":1e-131071}`), "number_out_of_range", "/properties/n"},
	{"ZeroWithExponent", properties(`{"n":0e999999999999999999999}`), "number_out_of_range", "/properties/n"},
	{"ZeroWithExponent401", properties(`{"n":0e401}`), "number_out_of_range", "/properties/n"},
	{"65Digits", properties(`{"n":1` + strings.Repeat("0", 64) + `}`), "number_out_of_range", "/properties/n"},
	{"LongFraction", properties(`{"n":0.` + strings.Repeat("0", 400) + `1}`), "number_out_of_range", "/properties/n"},
	{"LongZero", properties(`{"n":0.` + strings.Repeat("0", 64) + `}`), "number_out_of_range", "/properties/n"},
	{"KeyOf70000", properties(`{"` + strings.Repeat("k", 70_000) + `":1}`), "key_too_long", "/properties"}, // row 19
	{"KeyOf513", properties(`{"` + strings.Repeat("k", 513) + `":1}`), "key_too_long", "/properties"},
	{"Keys10001", properties(manyKeys(10_001)), "too_many_keys", "/properties/k9994"},
	{"ArrayOfMany", properties(`{"x":[` + strings.Repeat("1,", 400_000) + `1]}`), "too_many_keys", "/properties/x/9993"},
	{"32769Bytes", padded(MaxEventBytes + 1), "event_too_large", ""}, // field report 12

	{"LeapSecond", track("occurred_at", `"2016-12-31T23:59:60Z"`), "invalid_time", "/occurred_at"}, // row 21
	{"February30", track("occurred_at", `"2026-02-30T00:00:00Z"`), "invalid_time", "/occurred_at"},
	{"February29", track("occurred_at", `"2025-02-29T00:00:00Z"`), "invalid_time", "/occurred_at"},
	{"Offset24", track("occurred_at", `"2026-11-01T00:00:00+24:00"`), "invalid_time", "/occurred_at"},
	{"OffsetMinute60", track("occurred_at", `"2026-11-01T00:00:00+01:60"`), "invalid_time", "/occurred_at"},
	{"LowerCaseT", track("occurred_at", `"2026-11-01t00:00:00Z"`), "invalid_time", "/occurred_at"},
	{"LowerCaseZ", track("occurred_at", `"2026-11-01T00:00:00z"`), "invalid_time", "/occurred_at"},
	{"Year0", track("occurred_at", `"0000-11-01T00:00:00Z"`), "invalid_time", "/occurred_at"},
	{"Space", track("occurred_at", `"2026-11-01 00:00:00Z"`), "invalid_time", "/occurred_at"},
	{"NoZone", track("occurred_at", `"2026-11-01T00:00:00"`), "invalid_time", "/occurred_at"},
	{"NoSeconds", track("occurred_at", `"2026-11-01T00:00Z"`), "invalid_time", "/occurred_at"},
	{"LonePointTime", track("occurred_at", `"2026-11-01T00:00:00.Z"`), "invalid_time", "/occurred_at"},
	{"Hour24", track("occurred_at", `"2026-11-01T24:00:00Z"`), "invalid_time", "/occurred_at"},
	{"Month13", track("occurred_at", `"2026-13-01T00:00:00Z"`), "invalid_time", "/occurred_at"},
	{"EpochMillis", track("occurred_at", `1793534400000`), "invalid_time", "/occurred_at"},
	{"EmptyTime", track("occurred_at", `""`), "invalid_time", "/occurred_at"},
	{"NotDigits", track("occurred_at", `"2O26-11-01T00:00:00Z"`), "invalid_time", "/occurred_at"},
	{"TimeBehind", track("occurred_at", `"2023-11-01T00:00:00Z"`), "occurred_at_out_of_range", "/occurred_at"}, // row 22
	{"TimeAhead", track("occurred_at", `"2026-11-11T00:00:00Z"`), "occurred_at_out_of_range", "/occurred_at"},
	{"TimeAheadByAMicrosecond", track("occurred_at", `"2026-11-01T12:15:00.000001Z"`), "occurred_at_out_of_range", "/occurred_at"},
	{"Year1", track("occurred_at", `"0001-01-01T00:00:00+23:59"`), "occurred_at_out_of_range", "/occurred_at"},

	{"LineSeparator", track("event_name", `"a\u2028b"`), "invalid_event_name", "/event_name"}, // row 23
	{"Name300", track("event_name", `"`+strings.Repeat("a", 300)+`"`), "invalid_event_name", "/event_name"},
	{"Name201", track("event_name", `"`+strings.Repeat("a", 201)+`"`), "invalid_event_name", "/event_name"},
	{"Path", track("event_name", `"../x"`), "invalid_event_name", "/event_name"},
	{"Slash", track("event_name", `"a/b"`), "invalid_event_name", "/event_name"},
	{"EmptyName", track("event_name", `""`), "invalid_event_name", "/event_name"},
	{"Emoji", track("event_name", `"😀"`), "invalid_event_name", "/event_name"},
	{"TwoSpaces", track("event_name", `"a  b"`), "invalid_event_name", "/event_name"},
	{"SpaceAtEnd", track("event_name", `"a "`), "invalid_event_name", "/event_name"},
	{"NameIsNumber", track("event_name", `7`), "invalid_event_name", "/event_name"},
	{"CoreName", track("event_name", `"core.contact.identified"`), "reserved_event_name", "/event_name"},
	{"MessagingName", track("event_name", `"Messaging.x"`), "reserved_event_name", "/event_name"},

	{"NoName", track("event_name", ""), "missing_field", "/event_name"},
	{"NoKey", track("idempotency_key", ""), "missing_field", "/idempotency_key"},
	{"NullKey", track("idempotency_key", "null"), "missing_field", "/idempotency_key"},
	{"NoTime", track("occurred_at", ""), "missing_field", "/occurred_at"},
	{"NoIdentifiers", track("identifiers", ""), "missing_field", "/identifiers"},
	{"NoProperties", track("properties", ""), "missing_field", "/properties"}, // row 28
	{"NullProperties", properties("null"), "missing_field", "/properties"},
	{"Nothing", "{}", "missing_field", "/event_name"},
	{"PropertiesArray", properties("[]"), "invalid_field", "/properties"},
	{"PropertiesText", properties(`"{}"`), "invalid_field", "/properties"},
	{"IdentifiersArray", track("identifiers", `["a"]`), "invalid_field", "/identifiers"},
	{"HistoricalText", track("historical", `"true"`), "invalid_field", "/historical"},
	{"NoIdentifier", track("identifiers", `{}`), "missing_identifier", "/identifiers"},
	{"OnlyNullIdentifiers", track("identifiers", `{"email":null,"phone":""}`), "missing_identifier", "/identifiers"},
	{"NumberIdentifier", track("identifiers", `{"email":"a@example.com","external_id":3146}`), "invalid_identifier", "/identifiers/external_id"}, // field report 11
	{"ObjectIdentifier", track("identifiers", `{"external_id":{"a":"b"}}`), "invalid_identifier", "/identifiers/external_id"},
	{"LongIdentifier", track("identifiers", `{"external_id":"`+strings.Repeat("a", 513)+`"}`), "invalid_identifier", "/identifiers/external_id"},
	{"OtherCaseIdentifier", track("identifiers", `{"Email":"a@example.com"}`), "invalid_identifier", "/identifiers"},
	{"Identifiers33", track("identifiers", strings.ReplaceAll(manyKeys(33), ":1", `:"a"`)), "invalid_identifier", "/identifiers"},
	{"EmptyKind", track("identifiers", `{"":"a"}`), "invalid_identifier", "/identifiers"},
	{"EmptyKey", track("idempotency_key", `""`), "invalid_idempotency_key", "/idempotency_key"},
	{"Key256", track("idempotency_key", `"`+strings.Repeat("a", 256)+`"`), "invalid_idempotency_key", "/idempotency_key"},
	{"Key256Bytes", track("idempotency_key", `"`+strings.Repeat("é", 128)+`"`), "invalid_idempotency_key", "/idempotency_key"},
	{"KeyWithNewline", track("idempotency_key", `"a\nb"`), "invalid_idempotency_key", "/idempotency_key"},
	{"KeyWithC1", track("idempotency_key", `"a\u0085b"`), "invalid_idempotency_key", "/idempotency_key"},
	{"KeyWithSpace", track("idempotency_key", `" a"`), "invalid_idempotency_key", "/idempotency_key"},
	{"NumberKey", track("idempotency_key", `889`), "invalid_idempotency_key", "/idempotency_key"},
	{"NumberCorrelation", track("correlation_id", `889`), "invalid_correlation_id", "/correlation_id"},
	{"EmptyCorrelation", track("correlation_id", `""`), "invalid_correlation_id", "/correlation_id"},
	{"CorrelationWithNewline", track("correlation_id", `"a\r\nX: y"`), "invalid_correlation_id", "/correlation_id"},
}

// padded is a good event of exactly n bytes, most of them two to a character.
func padded(n int) string {
	body := properties(`{"s":""}`)
	room := n - len(body)
	return properties(`{"s":"` + strings.Repeat("é", room/2) + strings.Repeat("e", room%2) + `"}`)
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
