package taxonomy

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/softcrum/carril/internal/testkit"
)

func TestMain(m *testing.M) {
	testkit.Main(m, func() error { return goleak.Find() })
}

const invoice = `{"$schema":"https://json-schema.org/draft/2020-12/schema","type":"object","required":["invoice","total"],"additionalProperties":false,
	"properties":{"invoice":{"type":"string","pattern":"^[0-9]+$"},"total":{"type":"number","exclusiveMinimum":0,"multipleOf":0.01},
	"lines":{"type":"array","items":{"$ref":"#/$defs/line"}},"pay":{"oneOf":[{"const":"cash"},{"const":"card"}]}},
	"$defs":{"line":{"type":"object","required":["sku"],"properties":{"sku":{"enum":["a","b"]}}}}}`

// doubled makes a schema that doubles at each of n references.
func doubled(n int) string {
	var b strings.Builder
	b.WriteString(`{"$ref":"#/$defs/d0","$defs":{`)
	for i := range n {
		fmt.Fprintf(&b, `"d%d":{"allOf":[{"$ref":"#/$defs/d%d"},{"$ref":"#/$defs/d%d"}]},`, i, i+1, i+1)
	}
	fmt.Fprintf(&b, `"d%d":{"type":"object"}}}`, n)
	return b.String()
}

func TestCheck(t *testing.T) {
	t.Parallel()
	t.Run("TakesOrdinarySchemas", func(t *testing.T) {
		t.Parallel()
		for name, text := range map[string]string{
			"Invoice": invoice, "Empty": `{}`, "Nested": `{"$defs":{"a":{"type":"string"}},"properties":{"a":{"$ref":"#/$defs/a"}}}`,
			"Anchor":             `{"$defs":{"a":{"$anchor":"x","type":"string"}},"properties":{"a":{"$ref":"#x"}}}`,
			"Tree":               `{"type":"object","properties":{"children":{"type":"array","items":{"$ref":"#"}}}}`,
			"IfThen":             `{"if":{"required":["a"]},"then":{"required":["b"]},"else":{"minProperties":1}}`,
			"APropertyCalledRef": `{"properties":{"$ref":{"type":"string"},"$id":{"type":"integer"}}}`,
			"Countries":          `{"properties":{"c":{"enum":["` + strings.Repeat(`XX","`, 248) + `ZZ"]}}}`,
		} {
			require.NoError(t, Check([]byte(text)), name)
		}
	})
	for name, tc := range map[string]struct{ text, code, pointer string }{
		"NoJSON":              {`{`, CodeInvalid, ""},
		"NoObject":            {`true`, CodeInvalid, ""},
		"WrongKeyword":        {`{"properties":{"a":{"type":"strin"}}}`, CodeInvalid, "/properties/a/type"},
		"NegativeLength":      {`{"minLength":-1}`, CodeInvalid, "/minLength"},
		"RemoteReference":     {`{"properties":{"a":{"$ref":"https://example.com/a.json"}}}`, CodeInvalid, "/properties/a/$ref"},
		"FileReference":       {`{"$ref":"file:///etc/passwd"}`, CodeInvalid, "/$ref"},
		"RelativeReference":   {`{"allOf":[{"$ref":"a.json"}]}`, CodeInvalid, "/allOf/0/$ref"},
		"LostReference":       {`{"$ref":"#/$defs/none"}`, CodeInvalid, ""},
		"LostAnchor":          {`{"$ref":"#none"}`, CodeInvalid, ""},
		"Identifier":          {`{"$id":"https://example.com/s"}`, CodeInvalid, "/$id"},
		"DynamicReference":    {`{"$dynamicRef":"#a"}`, CodeInvalid, "/$dynamicRef"},
		"OtherDraft":          {`{"$schema":"http://json-schema.org/draft-07/schema#"}`, CodeInvalid, "/$schema"},
		"OwnMetaSchema":       {`{"$schema":"https://example.com/meta"}`, CodeInvalid, "/$schema"},
		"DraftWithin":         {`{"properties":{"a":{"$schema":"https://json-schema.org/draft/2020-12/schema"}}}`, CodeInvalid, "/properties/a/$schema"},
		"LookAhead":           {`{"pattern":"(?=a)"}`, CodeInvalid, "/pattern"},
		"LargePattern":        {`{"pattern":"` + strings.Repeat("a", MaxPattern+1) + `"}`, CodeInvalid, "/pattern"},
		"PatternThatExplodes": {`{"pattern":"((a{100}){9}(b{100}){9})"}`, CodeTooComplex, ""},
		"ManyPatterns":        {`{"patternProperties":{"a{600}":{},"b{600}":{},"c{600}":{},"d{600}":{}}}`, CodeInvalid, ""},
		"TooLarge":            {`{"title":"` + strings.Repeat("x", MaxBytes) + `"}`, CodeTooLarge, ""},
		"TooDeep":             {strings.Repeat(`{"not":`, MaxDepth+1) + `{}` + strings.Repeat(`}`, MaxDepth+1), CodeTooComplex, strings.Repeat("/not", MaxDepth+1)},
		"TooManyValues":       {`{"examples":[` + strings.Repeat("1,", MaxNodes) + `1]}`, CodeTooComplex, ""},
		"Doubling":            {doubled(12), CodeTooComplex, ""},
		"DoublingTree":        {`{"items":{"allOf":[{"$ref":"#"},{"$ref":"#"}]}}`, CodeTooComplex, ""},
		"Ring":                {`{"$ref":"#/$defs/a","$defs":{"a":{"$ref":"#/$defs/b"},"b":{"$ref":"#/$defs/a"}}}`, CodeTooComplex, ""},
		"RingOfItself":        {`{"allOf":[{"$ref":"#"}]}`, CodeTooComplex, ""},
		"ManyNumbers":         {`{"items":{"enum":[` + strings.Repeat("1,", 100) + `2]}}`, CodeTooComplex, ""},
	} {
		t.Run("Refuses/"+name, func(t *testing.T) {
			t.Parallel()
			err := Check([]byte(tc.text))
			var invalid *Invalid
			require.ErrorAs(t, err, &invalid)
			require.Equal(t, tc.code, invalid.Code, invalid.Detail)
			if tc.pointer != "" {
				require.Equal(t, tc.pointer, invalid.Pointer)
			}
			require.NotEmpty(t, invalid.Detail)
		})
	}
}

func TestJudge(t *testing.T) {
	t.Parallel()
	s := NewSchema(1, Enforce, invoice)
	judge := func(t *testing.T, payload string) string {
		t.Helper()
		var out []string
		for _, v := range s.Judge(payload) {
			require.NotEmpty(t, v.Schema)
			out = append(out, v.Pointer+" "+v.Keyword)
		}
		return strings.Join(out, ", ")
	}
	t.Run("SaysNothingOfWhatMatches", func(t *testing.T) {
		for _, payload := range []string{`{"invoice":"889","total":182500.50}`, `{"invoice":"1","total":1,"lines":[{"sku":"a"},{"sku":"b"}],"pay":"card"}`} {
			require.Nil(t, s.Judge(payload))
		}
	})
	t.Run("NamesEachPlaceAndKeyword", func(t *testing.T) {
		require.Equal(t, "/total required", judge(t, `{"invoice":"889"}`))
		require.Equal(t, "/invoice pattern", judge(t, `{"invoice":"secret","total":1}`))
		require.Equal(t, "/a~1b additionalProperties", judge(t, `{"invoice":"1","total":1,"a/b":1}`))
		require.Equal(t, "/lines/1/sku enum", judge(t, `{"invoice":"1","total":1,"lines":[{"sku":"a"},{"sku":"c"}]}`))
		require.Equal(t, "/pay oneOf", judge(t, `{"invoice":"1","total":1,"pay":"shells"}`))
		require.Equal(t, "/lines/0/sku required", judge(t, `{"invoice":"1","total":1,"lines":[{}]}`))
	})
	t.Run("KeepsTheDigitsOfNumbers", func(t *testing.T) {
		s := NewSchema(1, Enforce, `{"properties":{"n":{"const":9007199254740993},"m":{"maximum":0.1},"i":{"type":"integer"}}}`)
		require.Nil(t, s.Judge(`{"n":9007199254740993,"m":0.1,"i":1.0}`))
		require.Len(t, s.Judge(`{"n":9007199254740992}`), 1)
		require.Len(t, s.Judge(`{"m":0.10000000000000000001}`), 1)
		require.Nil(t, s.Judge(`{"n":9007199254740993.0,"i":1e3}`))
	})
	t.Run("NamesAtMostTwenty", func(t *testing.T) {
		require.Len(t, s.Judge(`{"invoice":"1","total":1,"lines":[`+strings.Repeat(`{},`, 50)+`{}]}`), MaxViolations)
	})
	t.Run("DoesNotSayWhatWasSent", func(t *testing.T) {
		require.NotContains(t, fmt.Sprint(s.Judge(`{"invoice":"secret","total":-7781}`)), "secret")
		require.NotContains(t, fmt.Sprint(s.Judge(`{"invoice":"secret","total":-7781}`)), "7781")
	})
	t.Run("JudgesManyAtOnce", func(t *testing.T) { // under the race detector, from the first use on
		s := NewSchema(1, Enforce, strings.Replace(invoice, `"type":"string","pattern"`, `"type":"string","format":"regex","pattern"`, 1))
		var wg sync.WaitGroup
		wrong := make([]int, 8)
		for i := range wrong {
			wg.Go(func() {
				for range 50 {
					wrong[i] += len(s.Judge(`{"invoice":"889","total":1}`)) + len(s.Judge(`{"invoice":"x","total":1}`)) - 1
				}
			})
		}
		wg.Wait()
		require.Equal(t, make([]int, 8), wrong)
	})
	t.Run("LeavesFormatsAlone", func(t *testing.T) {
		require.Nil(t, NewSchema(1, Enforce, `{"properties":{"e":{"format":"email"}}}`).Judge(`{"e":"none"}`))
	})
	t.Run("DoesNotWalkWhatIsTooLargeForTheSchema", func(t *testing.T) {
		dear := NewSchema(1, Enforce, `{"properties":{"n":{"items":{"enum":[`+strings.Repeat("7,", 40)+`8]}}}}`)
		require.NotNil(t, dear.program())
		require.Nil(t, dear.Judge(`{"n":[8,7]}`))
		require.Equal(t, "complexity", dear.Judge(`{"n":[` + strings.Repeat("7,", 9_000) + `8]}`)[0].Keyword)
	})
	t.Run("JudgesNothingByWhatDoesNotCompile", func(t *testing.T) {
		require.Nil(t, NewSchema(1, Enforce, `{"type":"nonsense"}`).Judge(`{}`))
	})
}

// FuzzCheck holds that whatever is a schema judges whatever is JSON without a
// panic.
func FuzzCheck(f *testing.F) {
	f.Add(invoice, `{"invoice":"1","total":1,"lines":[{"sku":"a"}]}`)
	f.Add(doubled(3), `{"a":[1,{"b":null}]}`)
	f.Add(`{"unevaluatedProperties":false,"anyOf":[{"properties":{"a":true}},{"properties":{"b":true}}]}`, `{"a":1,"c":2}`)
	f.Add(`{"contains":{"type":"number"},"minContains":2,"uniqueItems":true,"prefixItems":[true]}`, `[1,1.0,"a"]`)
	f.Add(`{"dependentRequired":{"a":["b"]},"propertyNames":{"maxLength":1},"dependentSchemas":{"a":false}}`, `{"a":1,"cc":2}`)
	f.Fuzz(func(t *testing.T, schema, payload string) {
		if err := Check([]byte(schema)); err != nil {
			var invalid *Invalid
			require.ErrorAs(t, err, &invalid)
			return
		}
		for _, v := range NewSchema(1, Observe, schema).Judge(payload) {
			require.NotEmpty(t, v.Keyword)
			require.LessOrEqual(t, len(v.Pointer), maxPointer)
		}
	})
}
