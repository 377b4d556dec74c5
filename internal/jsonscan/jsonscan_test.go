package jsonscan_test

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/softcrum/carril/internal/jsonscan"
	"github.com/softcrum/carril/internal/testkit"
)

// faults are texts, the first thing that is wrong with each, and where.
var faults = []struct {
	name, text string
	code       jsonscan.Code
	at         int
}{
	{"Object", ` {"a":[1,-0.5e3,"\ud83d\ude00 \\ud800",{"b":null}],"c":true} `, "", 0},
	{"Scalar", `7`, "", 0},
	{"NUL", `["a","\u0000"]`, jsonscan.NulCharacter, 6},
	{"RawNUL", "[\"a\x00\"]", jsonscan.NulCharacter, 3},
	{"NULInAKey", `{"\u0000":1}`, jsonscan.NulCharacter, 2},
	{"BackslashBeforeU", `"C:\\u0000"`, "", 0},
	{"HighAlone", `"\ud800"`, jsonscan.LoneSurrogate, 1},
	{"LowFirst", `"\udc00\ud800"`, jsonscan.LoneSurrogate, 1},
	{"HighTwice", `"\ud800\ud800\udc00"`, jsonscan.LoneSurrogate, 1},
	{"BrokenUTF8", "\"\xff\"", jsonscan.InvalidUTF8, 1},
	{"EncodedSurrogate", "\"\xed\xa0\x80\"", jsonscan.InvalidUTF8, 1},
	{"32Levels", strings.Repeat("[", 32) + strings.Repeat("]", 32), "", 0},
	{"33Levels", strings.Repeat("[", 33) + strings.Repeat("]", 33), jsonscan.TooDeep, 32},
	{"AMillionLevels", strings.Repeat(`[`, 1e6) + strings.Repeat("]", 1e6), jsonscan.TooDeep, 32},
	{"64Digits", strings.Repeat("9", 64), "", 0},
	{"65Digits", strings.Repeat("9", 65), jsonscan.NumberOutOfRange, 0},
	{"400Places", "0." + strings.Repeat("0", 399) + "1", "", 0},
	{"401Places", "0." + strings.Repeat("0", 400) + "1", jsonscan.NumberOutOfRange, 0},
	{"Largest", "1.7976931348623157e308", "", 0},
	{"BeyondTheLargest", "1.7976931348623159e308", jsonscan.NumberOutOfRange, 0},
	{"MonstrousExponent", "1e99999999999999999999", jsonscan.NumberOutOfRange, 0},
	{"MonstrousNegativeExponent", "[-1e-999999]", jsonscan.NumberOutOfRange, 1},
	{"ExponentInText", `"1e999999"`, "", 0},
	{"ManyLongNumbers", "[" + strings.Repeat("1e308,", 120) + "1]", jsonscan.NumberOutOfRange, 1 + 105*6},
	{"FirstOfTwo", `["\ud800","\u0000"]`, jsonscan.LoneSurrogate, 2},
	{"OpenString", `"a`, jsonscan.Broken, 2},
	{"BadEscape", `"\x"`, jsonscan.Broken, 1},
	{"LeadingZero", `[01]`, jsonscan.Broken, 2},
	{"NoValue", `[1,]`, jsonscan.Broken, 3},
	{"TwoValues", `1 2`, jsonscan.Broken, 2},
	{"DeepAndBroken", strings.Repeat("[", 40) + "}", jsonscan.Broken, 40},
	{"Empty", ``, jsonscan.Broken, 0},
	{"Twice", `{"a":1,"a":2}`, "", 0},
	{"TwiceBeforeNUL", `{"x":{"a":1,"a":2},"b":"\u0000"}`, jsonscan.NulCharacter, 24},
	{"LongKey", `{"` + strings.Repeat("k", 600) + `":1}`, "", 0},
	{"ManyElements", `[` + strings.Repeat("1,", 20_000) + `"\u0000"]`, jsonscan.NulCharacter, 40_002},
}

func TestStorable(t *testing.T) {
	t.Parallel()
	var again jsonscan.Scanner // of all: nothing of one text stays for the next
	for _, c := range faults {
		require.Equal(t, jsonscan.Fault{Code: c.code, At: c.at}, new(jsonscan.Scanner).Storable([]byte(c.text)), c.name)
		require.Equal(t, c.code, again.Storable([]byte(c.text)).Code, c.name)
	}
}

// What is said to be storable, jsonb takes; and what each code refuses, but for
// what it would blow up or deny to other readers, jsonb refuses too.
func TestStorableIsWhatPostgreSQLStores(t *testing.T) {
	t.Parallel()
	pool := testkit.Pool(t)
	for _, c := range faults {
		_, err := pool.Exec(t.Context(), `SELECT $1::text::jsonb`, c.text)
		switch c.code {
		case "":
			require.NoError(t, err, c.name)
		case jsonscan.NulCharacter, jsonscan.LoneSurrogate, jsonscan.InvalidUTF8, jsonscan.Broken:
			require.Error(t, err, c.name)
		}
	}
}

// A walk by the Scanner itself, as the intake has it, refuses keys as well.
func TestKeys(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		text string
		want jsonscan.Fault
	}{
		"Twice":          {`{"a":1,"a":2}`, jsonscan.Fault{Code: jsonscan.DuplicateKey, At: 7}},
		"TwiceByEscapes": {`{"a":1,"\u0061":2}`, jsonscan.Fault{Code: jsonscan.DuplicateKey, At: 7}},
		"InTwoObjects":   {`[{"a":1},{"a":2,"b":{"a":1}}]`, jsonscan.Fault{}},
		"Long":           {`{"` + strings.Repeat("k", 513) + `":1}`, jsonscan.Fault{Code: jsonscan.KeyTooLong, At: 1}},
		"AsLongAsMayBe":  {`{"` + strings.Repeat("k", 512) + `":1}`, jsonscan.Fault{}},
		"Many":           {`[` + strings.Repeat("1,", 10_000) + `1]`, jsonscan.Fault{Code: jsonscan.TooManyKeys, At: 20_001}},
	} {
		var s jsonscan.Scanner
		s.Storable([]byte(`{}`)) // leaves no looseness behind
		s.Reset([]byte(c.text))
		require.Equal(t, len(c.text), s.Value(0, 1), name)
		require.Equal(t, c.want, s.Soft, name)
	}
}

func TestPlain(t *testing.T) {
	t.Parallel()
	for s, want := range map[string][2]string{`"a b~":1`: {"a b~", ":1"}, `""`: {"", ""}, `"a""b"`: {"a", `"b"`}} {
		content, rest, ok := jsonscan.Plain(s)
		require.True(t, ok, s)
		require.Equal(t, want, [2]string{content, rest})
	}
	for _, s := range []string{``, `a"`, `"a`, `"a\"b"`, "\"a\n\"", `"ñ"`, "\"\x7f\""} {
		_, rest, ok := jsonscan.Plain(s)
		require.False(t, ok, s)
		require.Equal(t, s, rest)
	}
}

func TestTexts(t *testing.T) {
	t.Parallel()
	text := []byte(`{"p\u00e1":"\ud83d\ude00\n"}`)
	var s jsonscan.Scanner
	s.Reset(text)
	name, kept, next := s.Key(1)
	require.True(t, kept)
	require.Equal(t, "pá", string(name))
	ref, end := s.String(next)
	require.Equal(t, "😀\n", string(s.Text(ref)))
	require.Equal(t, byte('}'), s.At(end))
	require.Equal(t, byte(0), s.At(len(text)))
	require.Equal(t, "a/b", string(s.Decode([]byte(`a\/b`))))
	require.Equal(t, "/x~1/1", jsonscan.Pointer([]byte(`{"x/":[1,2]}`), 9))
}

// FuzzScan holds the scanner against encoding/json: what it calls broken is, what
// it does not is JSON, and what it calls storable keeps its text.
func FuzzScan(f *testing.F) {
	for _, c := range faults {
		if len(c.text) < 2_000 {
			f.Add([]byte(c.text))
		}
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		var s jsonscan.Scanner
		fault := s.Storable(text)
		require.Equal(t, fault, s.Storable(text), "asked again")
		rawNUL := bytes.IndexByte(text, 0) >= 0 // called by its name, which the library does not know
		if !rawNUL {
			require.Equal(t, json.Valid(text), fault.Code != jsonscan.Broken)
		}
		if fault.Code != "" {
			return
		}
		require.True(t, utf8.Valid(text))
		var v any
		require.NoError(t, json.Unmarshal(text, &v), "every number is a float64")
		again, err := json.Marshal(v)
		require.NoError(t, err)
		require.NotContains(t, strings.ReplaceAll(string(again), `\\`, ""), `\u0000`)
		if !bytes.Contains(text, []byte("\ufffd")) && !bytes.Contains(bytes.ToLower(text), []byte(`\ufffd`)) {
			require.NotContains(t, string(again), "\ufffd")
		}
	})
}
