package content

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestRender(t *testing.T) {
	t.Parallel()
	vars := json.RawMessage(`{"name":"<img src=x onerror=alert(1)>","url":"java\tscript:alert(1)","ok":"https://example.com/?a=1&b=2",
		"n":9007199254740993,"price":12.50,"items":[{"t":"a&b"},{"t":"c"}],"nested":{"x":1},"evil":"hi\r\nBcc: x@y","none":null,
		"million":1234567.50,"small":0.00001,"big":12345678901234567890,"amounts":[2500000.5,"x"],"three":3,"two":2,"half":0.5,"words":"one  two three","twice":[1,"a",1,"a"]}`)
	for _, c := range []struct {
		name       string
		in         Parts
		want       Parts
		wantReason string
	}{
		{"EscapesInHTMLAloneBadInput54", Parts{Subject: "{{name}}", HTML: "<p>{{ name }}</p>", Text: "{{name}}"},
			Parts{Subject: "<img src=x onerror=alert(1)>", HTML: "<p>&lt;img src=x onerror=alert(1)&gt;</p>", Text: "<img src=x onerror=alert(1)>"}, ""},
		{"NeutralisesAScriptLinkBadInput55", Parts{HTML: `<a href="{{ url }}">x</a><a href="{{ok}}">`}, Parts{HTML: `<a href="#">x</a><a href="https://example.com/?a=1&amp;b=2">`}, ""},
		{"FailsWithoutAVariableBadInput56", Parts{Text: "hi {{ missing }}"}, Parts{}, ReasonMissingVariable},
		{"FailsWithoutANestedVariable", Parts{HTML: "hi {{ nested.y }}"}, Parts{}, ReasonMissingVariable},
		{"FailsOnANullVariable", Parts{HTML: "{{ none }}"}, Parts{}, ReasonMissingVariable},
		{"TakesADefault", Parts{HTML: `{{ missing | default: "<you>" }}`}, Parts{HTML: "&lt;you&gt;"}, ""},
		{"KeepsTheSubjectOneLineBadInput49", Parts{Subject: "{{ evil }}"}, Parts{Subject: "hi  Bcc: x@y"}, ""},
		{"KeepsDigits", Parts{Text: "{{ n }} {{ price }}", HTML: "{{n}}"}, Parts{Text: "9007199254740993 12.5", HTML: "9007199254740993"}, ""},
		{"LoopsAndFilters", Parts{HTML: `{% for i in items %}<li>{{ i.t | upcase }}</li>{% endfor %}`}, Parts{HTML: "<li>A&amp;B</li><li>C</li>"}, ""},
		{"EscapesACaptureOnce", Parts{HTML: `{% capture c %}<b>{{ name | slice: 0 }}</b>{% endcapture %}{{ c }}`}, Parts{HTML: "<b>&lt;</b>"}, ""},
		{"TrustsNoCaptureThatIsAssigned", Parts{HTML: `{% capture c %}x{% endcapture %}{% assign c = name %}{{ c }}`}, Parts{HTML: "&lt;img src=x onerror=alert(1)&gt;"}, ""},
		{"LeavesRawAlone", Parts{HTML: `{% raw %}{{ name }}{% endraw %}`}, Parts{HTML: "{{ name }}"}, ""},
		{"ReadsNoFile", Parts{Text: `{% include "/etc/hostname" %}`}, Parts{}, ReasonTemplateInvalid},
		{"FailsOnBrokenLiquid", Parts{Text: `{% if x %}`}, Parts{}, ReasonTemplateInvalid},
		{"FailsOnAnUnknownFilter", Parts{Text: `{{ name | nonsense }}`}, Parts{}, ReasonTemplateInvalid},
		{"WritesAmountsAsPeopleDo", Parts{Text: "{{ million }} {{ small }} {{ big }} {{ million | times: 2 }} {{ 1500000 | plus: 1 }} {{ amounts | join: ' ' }} {{ amounts }}", HTML: "{{ million }} {{ million | round: 1 }}"},
			Parts{Text: "1234567.5 0.00001 12345678901234567890 2469135 1500001 2500000.5 x 2500000.5x", HTML: "1234567.5 1234567.5"}, ""},
		{"CountsWithAVariable", Parts{Text: "{% for i in (1..three) limit: two %}{{ i }}{% endfor %}{% if million > 1000000 %}y{% endif %}{{ million | divided_by: half }}"}, Parts{Text: "12y2469135"}, ""},
		{"TrimsBesideItsOwnTags", Parts{Text: "a {%- assign x = 1 -%} b\n{%- for i in items -%} {{ i.t }} {%- endfor -%} {% capture y -%} z {%- endcapture %}{{ y }}"}, Parts{Text: "aba&bcz"}, ""},
		{"TruncatesWords", Parts{Text: `{{ words | truncatewords: 2 }}/{{ words | truncatewords: 3 }}/{{ words | truncatewords: 9, "" }}`}, Parts{Text: "one  two.../one  two three/one  two three"}, ""},
		{"ReplacesJoinsAndTellsApart", Parts{Text: `{{ words | replace: "o", "0" }} {{ twice | uniq | join: "," }}`}, Parts{Text: "0ne  tw0 three 1,a"}, ""},
		{"TakesNoTagOfOurs", Parts{Text: "{% carril_step 0 %}"}, Parts{}, ReasonTemplateInvalid},
		{"EndsWhatWritesForEver", Parts{Text: `{% for i in (1..100000000) %}` + strings.Repeat("x", 1000) + `{% endfor %}`}, Parts{}, ReasonTooLarge},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			got, err := renderOnce(c.in, vars)
			if c.wantReason != "" {
				var re *Error
				require.ErrorAs(t, err, &re)
				require.Equal(t, c.wantReason, re.Reason)
				return
			}
			require.NoError(t, err)
			require.Equal(t, c.want, got)
		})
	}
}

func renderOnce(c Parts, vars json.RawMessage) (Parts, error) {
	tpl, err := Compile(c)
	if err != nil {
		return Parts{}, err
	}
	return tpl.Render(vars)
}

// What a tenant writes into a template must end, in memory that is bounded too:
// it runs beside everybody's codes.
func TestRenderLimits(t *testing.T) {
	t.Parallel()
	vars, err := json.Marshal(map[string]any{"long": strings.Repeat("word ", 20_000), "list": make([]int, 5_000)})
	require.NoError(t, err)
	const double = `{% assign x = x | append: x %}`
	for name, src := range map[string]string{
		"EndsLoopsThatWriteNothing":     `{% for i in (1..100000) %}{% for j in (1..100000) %}{% endfor %}{% endfor %}`,
		"EndsATableThatWritesNothing":   `{% capture x %}{% tablerow i in (1..1000000000) %}{% endtablerow %}{% endcapture %}`,
		"EndsAnAssignThatDoubles":       `{% assign x = "aaaaaaaaaa" %}` + strings.Repeat(double, 40),
		"EndsACaptureThatDoubles":       `{% capture x %}aaaaaaaaaa{% endcapture %}` + strings.Repeat(`{% capture x %}{{ x }}{{ x }}{% endcapture %}`, 40),
		"EndsAListThatDoubles":          `{% assign x = "a,b,c,d" | split: "," %}` + strings.Repeat(`{% assign x = x | concat: x %}`, 40),
		"EndsManyVariables":             strings.Repeat(`{% for i in (1..100) %}{% assign y = long | upcase %}{% endfor %}`, 10),
		"MakesNoListOfALongRange":       `{{ (1..10000000000) | join: "" }}`,
		"MultipliesNoTextByReplace":     `{% assign x = long | replace: "", long %}`,
		"MultipliesNoTextByJoin":        `{{ list | join: long }}`,
		"PadsNoDate":                    `{{ "2026-11-01" | date: "%1000000000Y" }}`,
		"SplitsIntoNoMoreThanItMay":     `{{ long | split: "" | uniq | size }}`,
		"EndsWhatComparesLongTexts":     `{% for i in (1..100000) %}{% if long == long %}{% endif %}{% if long contains "x" %}{% endif %}{% endfor %}`,
		"EndsAnAssignInALoop":           `{% assign x = "a" %}{% for i in (1..64) %}` + double + `{% endfor %}`,
		"EndsFiltersInALoop":            `{% for i in (1..100000) %}{% assign y = long | escape | downcase | upcase | size %}{% endfor %}`,
		"EndsTooManyFiltersInOneOutput": strings.Repeat(`{% assign y = long `+strings.Repeat(`| escape | downcase `, 1_000)+`%}`, 12),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := renderOnce(Parts{Text: src}, vars)
			var re *Error
			require.ErrorAs(t, err, &re)
			require.Equal(t, ReasonTooLarge, re.Reason)
		})
	}
	t.Run("LetsALongInvoiceBe", func(t *testing.T) {
		t.Parallel()
		row := strings.Repeat(`<td>{{ i.name | upcase | truncate: 20 }}</td>`, 10)
		items := make([]map[string]any, 500)
		for i := range items {
			items[i] = map[string]any{"name": "a thing that somebody bought"}
		}
		raw, err := json.Marshal(map[string]any{"items": items})
		require.NoError(t, err)
		got, err := renderOnce(Parts{HTML: `{% for i in items %}{% assign n = i.name %}{% capture c %}<tr>` + row + `</tr>{% endcapture %}{% if n != "" %}{{ c }}{% endif %}{% endfor %}`}, raw)
		require.NoError(t, err)
		require.Equal(t, 5_000, strings.Count(got.HTML, "A THING THAT SOME..."))
	})
}

func TestError(t *testing.T) {
	t.Parallel()
	t.Run("NamesTheOutputWithoutAVariable", func(t *testing.T) {
		t.Parallel()
		_, err := renderOnce(Parts{HTML: "<p>{{ name }} {{ order.total }}</p>"}, json.RawMessage(`{"name":"x"}`))
		var re *Error
		require.ErrorAs(t, err, &re)
		require.Equal(t, Error{Reason: ReasonMissingVariable, Output: "{{ order.total }}"}, *re)
	})
}

func TestCheck(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		text, want string
	}{
		"NamesAFilterThatThereIsNot": {`{{ a | upcase | nonsense: 1 }}`, "There is no filter nonsense."},
		"LooksIntoTags":              {`{% if a %}{% assign b = a | raw %}{% endif %}`, "There is no filter raw."},
		"LeavesStringsBe":            {`{{ a | append: " | nonsense" | replace: '|x', "" }}`, ""},
		"LeavesRawBe":                {`{% raw %}{{ a | nonsense }}{% endraw %}{% comment %}{{ a | nonsense }}{% endcomment %}`, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			err := Check(Parts{Text: c.text})
			if c.want == "" {
				require.NoError(t, err)
				return
			}
			var invalid *Invalid
			require.ErrorAs(t, err, &invalid)
			require.Equal(t, Invalid{"text", ReasonTemplateInvalid, c.want}, *invalid)
		})
	}
}
