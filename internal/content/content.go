// Package content is what a message says: a tenant's Liquid templates, checked,
// compiled and filled in, and where their versions are kept. The management API
// writes templates, the rails render them; whom a message goes to is theirs.
package content

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"html"
	"regexp"
	"strconv"
	"strings"
	"unicode"

	"github.com/osteele/liquid"
	"github.com/osteele/liquid/parser"
	"github.com/osteele/liquid/render"

	"github.com/softcrum/carril/internal/oneline"
)

// Reasons why a message cannot be rendered; part of the closed set of failures.
const (
	ReasonMissingVariable = "missing_variable"
	ReasonTemplateInvalid = "template_invalid"
	ReasonTemplateMissing = "template_missing"
	ReasonTooLarge        = "content_too_large"
	ReasonContentInvalid  = "content_invalid"
)

// MaxRendered bounds one part of one message, in bytes.
const MaxRendered = 2 << 20

// Error says why a message cannot be rendered. Reason is one of the
// reasons above. Output is the template's output at fault, for who writes it,
// where it is known; neither names anything of the message.
type Error struct{ Reason, Output string }

func (e *Error) Error() string { return "render message: " + e.Reason }

// Parts are the three parts of a message, as templates or rendered.
type Parts struct {
	Subject string `json:"subject"`
	HTML    string `json:"html"`
	Text    string `json:"text"`
}

// Template is a compiled version of a tenant's template.
type Template struct {
	subject, html, text part
}

type part struct {
	*liquid.Template
	tags int // bytes of its tags and outputs
}

// Compile reads a tenant's Liquid. What it puts out in the html part is
// escaped; a missing variable fails the message instead of leaving a hole in it.
func Compile(c Parts) (*Template, error) {
	engine := liquid.NewEngine()
	engine.StrictVariables()
	registerLimits(engine)
	engine.RegisterFilter(escapeFilter, escapeValue)
	// The library's include reads files of this machine.
	engine.RegisterTag("include", func(render.Context) (string, error) { return "", errors.New("include is not supported") })
	var t Template
	for _, p := range []struct {
		to     *part
		src    string
		escape bool
	}{{&t.subject, c.Subject, false}, {&t.html, c.HTML, true}, {&t.text, c.Text, false}} {
		src, tags, err := meter(p.src)
		if err != nil {
			return nil, err
		}
		if p.escape {
			src = escapeOutputs(src)
		}
		parsed, bad := engine.ParseString(src)
		if bad != nil {
			return nil, &Error{Reason: ReasonTemplateInvalid}
		}
		*p.to = part{parsed, tags}
	}
	return &t, nil
}

// Render fills the template in. Variables must be a JSON object or nothing.
func (t *Template) Render(variables json.RawMessage) (c Parts, err error) {
	vars, largest, err := bindings(variables)
	if err != nil {
		return c, err
	}
	for _, p := range []struct {
		to *string
		t  part
	}{{&c.Subject, t.subject}, {&c.HTML, t.html}, {&c.Text, t.text}} {
		if *p.to, err = run(p.t, vars, largest); err != nil {
			return Parts{}, err
		}
	}
	c.Subject = oneLine(c.Subject)
	return c, nil
}

func run(t part, vars map[string]any, largest int) (out string, err error) {
	w := &bounded{left: MaxRendered}
	todo := newWork(t.tags, largest)
	defer todo.end()
	vars[workKey] = todo
	defer func() { // a tenant's template must cost its message, never the worker
		thrown := recover()
		if thrown != nil {
			out, err = "", &Error{Reason: ReasonTemplateInvalid}
		}
		if _, much := thrown.(tooMuch); much || todo.over {
			out, err = "", &Error{Reason: ReasonTooLarge}
		}
	}()
	if todo.over {
		return "", nil
	}
	if e := t.FRender(w, vars); e != nil {
		if strings.Contains(e.Error(), "undefined variable") {
			return "", &Error{Reason: ReasonMissingVariable, Output: strings.ReplaceAll(output.FindString(e.Error()), " | "+escapeFilter, "")}
		}
		return "", &Error{Reason: ReasonTemplateInvalid}
	}
	return w.buf.String(), nil
}

// output finds the output that an error of the library's is about.
var output = regexp.MustCompile(`\{\{.*\}\}`)

// bounded ends a template that writes for ever, by throwing tooMuch: the library
// panics with an error of its own when a write fails.
type bounded struct {
	buf  bytes.Buffer
	left int
}

func (w *bounded) Write(p []byte) (int, error) {
	if w.left -= len(p); w.left < 0 {
		panic(tooMuch{})
	}
	return w.buf.Write(p)
}

// Inline reads content that was given with the message; it is no template.
func Inline(raw json.RawMessage) (Parts, error) {
	var c Parts
	if err := json.Unmarshal(raw, &c); err != nil {
		return c, &Error{Reason: ReasonContentInvalid}
	}
	if len(c.HTML) > MaxRendered || len(c.Text) > MaxRendered {
		return c, &Error{Reason: ReasonTooLarge}
	}
	c.Subject = oneLine(c.Subject)
	return c, nil
}

// oneLine keeps a subject from becoming a second header (bad input 49).
func oneLine(s string) string {
	return strings.TrimSpace(strings.Map(func(r rune) rune {
		if oneline.Breaks(r) {
			return ' '
		}
		return r
	}, s))
}

// bindings reads variables without losing digits: an amount of 2^53 and more
// stays what it was. largest are the bytes of the largest value among them.
func bindings(raw json.RawMessage) (vars map[string]any, largest int, err error) {
	vars = map[string]any{}
	if len(raw) == 0 {
		return vars, 0, nil
	}
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.UseNumber()
	if err := dec.Decode(&vars); err != nil {
		return nil, 0, &Error{Reason: ReasonContentInvalid}
	}
	for k, v := range vars {
		vars[k] = native(v, &largest)
	}
	return vars, largest, nil
}

func native(v any, largest *int) any {
	*largest = max(*largest, sizeOf(v))
	switch v := v.(type) {
	case json.Number:
		return number(v)
	case map[string]any:
		for k, e := range v {
			v[k] = native(e, largest)
		}
	case []any:
		for i, e := range v {
			v[i] = native(e, largest)
		}
	}
	return v
}

// number is an int where a template may count with it, a decimal, or else its text.
func number(n json.Number) any {
	if i, err := strconv.Atoi(n.String()); err == nil {
		return i
	}
	if f, err := n.Float64(); err == nil && strings.ContainsAny(n.String(), ".eE") {
		return decimal(f)
	}
	return n.String()
}

// escapeFilter is put behind every output of an html part.
const escapeFilter = "carril_html"

// escapeOutputs puts the escape behind every {{ output }}, as the library has
// none of its own. What a capture caught was escaped on its way in.
func escapeOutputs(src string) string {
	tokens := parser.Scan(src, parser.SourceLoc{}, nil)
	caught := captured(tokens)
	var b strings.Builder
	verbatim := "" // inside raw or comment: the tag that ends it
	for _, t := range tokens {
		switch {
		case t.Type == parser.TagTokenType && verbatim != "":
			if t.Name == verbatim {
				verbatim = ""
			}
		case t.Type == parser.TagTokenType && (t.Name == "raw" || t.Name == "comment"):
			verbatim = "end" + t.Name
		case t.Type == parser.ObjTokenType && verbatim == "" && !caught[t.Args]:
			i := strings.LastIndex(t.Source, t.Args) + len(t.Args)
			b.WriteString(t.Source[:i] + " | " + escapeFilter + t.Source[i:])
			continue
		}
		b.WriteString(t.Source)
	}
	return b.String()
}

// captured names the variables that only captures write.
func captured(tokens []parser.Token) map[string]bool {
	names, others := map[string]bool{}, map[string]bool{}
	for _, t := range tokens {
		if t.Type != parser.TagTokenType {
			continue
		}
		fields := strings.Fields(strings.ReplaceAll(t.Args, "=", " = "))
		if len(fields) == 0 {
			continue
		}
		if name := strings.Trim(fields[0], `"'`); t.Name == captureTag {
			names[name] = true
		} else {
			others[name] = true
		}
	}
	for name := range others {
		delete(names, name)
	}
	return names
}

// escapeValue makes a value harmless as HTML text, as a quoted attribute and as
// a link. nil stays nil, so that it still counts as missing.
func escapeValue(v any) any {
	switch v := v.(type) {
	case nil:
		return nil
	case string:
		return html.EscapeString(harmlessLink(v))
	case []any:
		var b strings.Builder
		for _, e := range v {
			fmt.Fprint(&b, escapeValue(e))
		}
		return b.String()
	case float64:
		return decimal(v)
	case int, int64, decimal, bool:
		return v
	}
	return html.EscapeString(harmlessLink(fmt.Sprint(v)))
}

// harmlessLink empties a value that a browser would run if it stood in an href
// (bad input 55). White space and control characters count for nothing there.
func harmlessLink(s string) string {
	const longest = len("javascript:")
	var scheme []byte
	for _, r := range s {
		if unicode.IsSpace(r) || unicode.IsControl(r) {
			continue
		}
		if len(scheme) == longest || r > unicode.MaxASCII {
			break
		}
		scheme = append(scheme, byte(unicode.ToLower(r)))
		if r == ':' {
			break
		}
	}
	switch string(scheme) {
	case "javascript:", "vbscript:", "data:":
		return "#"
	}
	return s
}
