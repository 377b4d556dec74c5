package sends

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
		in         Content
		want       Content
		wantReason string
	}{
		{"EscapesInHTMLAloneBadInput54", Content{Subject: "{{name}}", HTML: "<p>{{ name }}</p>", Text: "{{name}}"},
			Content{Subject: "<img src=x onerror=alert(1)>", HTML: "<p>&lt;img src=x onerror=alert(1)&gt;</p>", Text: "<img src=x onerror=alert(1)>"}, ""},
		{"NeutralisesAScriptLinkBadInput55", Content{HTML: `<a href="{{ url }}">x</a><a href="{{ok}}">`}, Content{HTML: `<a href="#">x</a><a href="https://example.com/?a=1&amp;b=2">`}, ""},
		{"FailsWithoutAVariableBadInput56", Content{Text: "hi {{ missing }}"}, Content{}, ReasonMissingVariable},
		{"FailsWithoutANestedVariable", Content{HTML: "hi {{ nested.y }}"}, Content{}, ReasonMissingVariable},
		{"FailsOnANullVariable", Content{HTML: "{{ none }}"}, Content{}, ReasonMissingVariable},
		{"TakesADefault", Content{HTML: `{{ missing | default: "<you>" }}`}, Content{HTML: "&lt;you&gt;"}, ""},
		{"KeepsTheSubjectOneLineBadInput49", Content{Subject: "{{ evil }}"}, Content{Subject: "hi  Bcc: x@y"}, ""},
		{"KeepsDigits", Content{Text: "{{ n }} {{ price }}", HTML: "{{n}}"}, Content{Text: "9007199254740993 12.5", HTML: "9007199254740993"}, ""},
		{"LoopsAndFilters", Content{HTML: `{% for i in items %}<li>{{ i.t | upcase }}</li>{% endfor %}`}, Content{HTML: "<li>A&amp;B</li><li>C</li>"}, ""},
		{"EscapesACaptureOnce", Content{HTML: `{% capture c %}<b>{{ name | slice: 0 }}</b>{% endcapture %}{{ c }}`}, Content{HTML: "<b>&lt;</b>"}, ""},
		{"TrustsNoCaptureThatIsAssigned", Content{HTML: `{% capture c %}x{% endcapture %}{% assign c = name %}{{ c }}`}, Content{HTML: "&lt;img src=x onerror=alert(1)&gt;"}, ""},
		{"LeavesRawAlone", Content{HTML: `{% raw %}{{ name }}{% endraw %}`}, Content{HTML: "{{ name }}"}, ""},
		{"ReadsNoFile", Content{Text: `{% include "/etc/hostname" %}`}, Content{}, ReasonTemplateInvalid},
		{"FailsOnBrokenLiquid", Content{Text: `{% if x %}`}, Content{}, ReasonTemplateInvalid},
		{"FailsOnAnUnknownFilter", Content{Text: `{{ name | nonsense }}`}, Content{}, ReasonTemplateInvalid},
		{"EndsWhatWritesForEver", Content{Text: `{% for i in (1..100000000) %}` + strings.Repeat("x", 1000) + `{% endfor %}`}, Content{}, ReasonTooLarge},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			got, err := renderOnce(c.in, vars)
			if c.wantReason != "" {
				var re *RenderError
				require.ErrorAs(t, err, &re)
				require.Equal(t, c.wantReason, re.Reason)
				return
			}
			require.NoError(t, err)
			require.Equal(t, c.want, got)
		})
	}
}

func renderOnce(c Content, vars json.RawMessage) (Content, error) {
	tpl, err := compile(c)
	if err != nil {
		return Content{}, err
	}
	return tpl.render(vars)
}
