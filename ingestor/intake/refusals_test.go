package intake

import (
	"fmt"
	"strings"
)

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
