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
		"n":9007199254740993,"price":12.50,"items":[{"t":"a&b"},{"t":"c"}],"nested":{"x":1},"evil":"hi\r\nBcc: x@y","none":null}`)
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
