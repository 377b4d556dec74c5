package openapi

import (
	"bytes"
	_ "embed" // for the template
	"fmt"
	"html/template"
	"regexp"
	"strings"
	"sync"

	"go.yaml.in/yaml/v3"
)

//go:embed page.html
var pageHTML string

// Page gives the document as one HTML page that loads nothing: no script, no
// font, no request to anybody. It is made at the first call.
var Page = sync.OnceValues(func() ([]byte, error) {
	t, err := template.New("page").Funcs(template.FuncMap{"prose": prose}).Parse(pageHTML)
	if err != nil {
		return nil, fmt.Errorf("read the reference page's template: %w", err)
	}
	var root yaml.Node
	if err := yaml.Unmarshal(YAML, &root); err != nil {
		return nil, fmt.Errorf("read the OpenAPI document: %w", err)
	}
	var b bytes.Buffer
	if err := t.Execute(&b, reader{node{root.Content[0]}}.reference()); err != nil {
		return nil, fmt.Errorf("render the reference page: %w", err)
	}
	return b.Bytes(), nil
})

// reference is the document as the page shows it.
type reference struct {
	Title, Version, Description string
	Groups                      []group
	Schemas                     []schema
}

type group struct {
	Name, Description string
	Operations        []operation
}

type operation struct {
	ID, Method, Path, Summary, Description string
	Open                                   bool // no key is asked for
	Parameters                             []parameter
	Body                                   *schema
	Examples                               []example
	Answers                                []answer
}

type parameter struct {
	Name, In, Description string
	Required              bool
	Schema                schema
}

type example struct{ Title, Text string }

type answer struct {
	Status, Description string
	Codes               []string // of a problem
	Schema              schema
	Example             string
}

// schema is a shape of JSON: a named one, or what it is made of.
type schema struct {
	Name        string // of a component
	Kind        string
	Description string
	Required    bool
	Fields      []schema
}

// reader makes the reference of a document.
type reader struct{ root node }

func (r reader) reference() reference {
	info := r.root.get("info")
	ref := reference{Title: info.text("title"), Version: info.text("version"), Description: info.text("description")}
	for _, tag := range r.root.get("tags").items() {
		ref.Groups = append(ref.Groups, group{Name: tag.text("name"), Description: tag.text("description"), Operations: r.operations(tag.text("name"))})
	}
	ref.Groups = append(ref.Groups, group{Name: "this document", Operations: r.operations("")})
	r.root.get("components").get("schemas").each(func(name string, s node) {
		shape := r.schema(s, 0)
		shape.Name = name
		ref.Schemas = append(ref.Schemas, shape)
	})
	return ref
}

// operations gives those of a tag, in the order of the document.
func (r reader) operations(tag string) []operation {
	var ops []operation
	r.root.get("paths").each(func(path string, item node) {
		item.each(func(method string, op node) {
			if method != "parameters" && op.get("tags").first() == tag {
				ops = append(ops, r.operation(method, path, item, op))
			}
		})
	})
	return ops
}

func (r reader) operation(method, path string, item, op node) operation {
	o := operation{ID: op.text("operationId"), Method: strings.ToUpper(method), Path: path, Summary: op.text("summary"), Description: op.text("description")}
	o.Open = op.get("security").exists() && len(op.get("security").items()) == 0
	for _, p := range append(item.get("parameters").items(), op.get("parameters").items()...) {
		p = r.follow(p)
		o.Parameters = append(o.Parameters, parameter{Name: p.text("name"), In: p.text("in"), Description: p.text("description"),
			Required: p.text("required") == "true", Schema: r.schema(p.get("schema"), 0)})
	}
	op.get("requestBody").get("content").each(func(_ string, media node) {
		body := r.schema(media.get("schema"), 0)
		o.Body = &body
		media.get("examples").each(func(_ string, e node) {
			o.Examples = append(o.Examples, example{e.text("summary"), e.get("value").json("")})
		})
	})
	op.get("responses").each(func(status string, a node) { o.Answers = append(o.Answers, r.answer(status, r.follow(a))) })
	return o
}

func (r reader) answer(status string, a node) answer {
	out := answer{Status: status, Description: a.text("description")}
	a.get("content").each(func(_ string, media node) {
		s := media.get("schema")
		for _, part := range s.get("allOf").items() {
			for _, c := range part.get("properties").get("code").get("enum").items() {
				out.Codes = append(out.Codes, c.Value)
			}
		}
		if len(out.Codes) == 0 {
			out.Schema = r.schema(s, 0)
		}
		if e := media.get("example"); e.exists() {
			out.Example = e.json("")
		}
	})
	return out
}

// follow gives what a reference leads to.
func (r reader) follow(n node) node {
	ref := n.text("$ref")
	if ref == "" {
		return n
	}
	at := r.root
	for part := range strings.SplitSeq(strings.TrimPrefix(ref, "#/"), "/") {
		at = at.get(part)
	}
	return at
}

// deepest is how far shapes are shown within one another.
const deepest = 6

func (r reader) schema(n node, depth int) schema {
	if ref := n.text("$ref"); ref != "" {
		return schema{Name: ref[strings.LastIndexByte(ref, '/')+1:]}
	}
	s := schema{Kind: kind(n), Description: n.text("description")}
	if depth == deepest {
		return s
	}
	required := map[string]bool{}
	for _, name := range n.get("required").items() {
		required[name.Value] = true
	}
	n.get("properties").each(func(name string, p node) {
		field := r.schema(p, depth+1)
		if field.Name != "" {
			field.Kind = field.Name
		}
		field.Name, field.Required = name, required[name]
		s.Fields = append(s.Fields, field)
	})
	for _, list := range []string{"oneOf", "anyOf", "allOf"} {
		for _, part := range n.get(list).items() {
			sub := r.schema(part, depth+1)
			sub.Kind = strings.TrimSpace(map[string]string{"oneOf": "either", "anyOf": "either", "allOf": "with"}[list] + " " + sub.Name + " " + sub.Kind)
			sub.Name = ""
			s.Fields = append(s.Fields, sub)
		}
	}
	if items := n.get("items"); items.exists() {
		sub := r.schema(items, depth+1)
		sub.Kind = strings.TrimSpace("each " + sub.Name + " " + sub.Kind)
		sub.Name = ""
		s.Fields = append(s.Fields, sub)
	}
	return s
}

// kind says in a few words what a schema allows.
func kind(n node) string {
	var words []string
	if t := n.get("type"); t.exists() {
		if len(t.items()) > 0 {
			var all []string
			for _, one := range t.items() {
				all = append(all, one.Value)
			}
			words = append(words, strings.Join(all, " or "))
		} else {
			words = append(words, t.Value)
		}
	}
	for _, name := range []string{"format", "const", "pattern"} {
		if v := n.text(name); v != "" {
			words = append(words, map[string]string{"format": "", "const": "always ", "pattern": "matching "}[name]+v)
		}
	}
	for _, name := range []string{"minimum", "maximum", "minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties", "default"} {
		if v := n.text(name); v != "" {
			words = append(words, name+" "+v)
		}
	}
	var values []string
	for _, v := range n.get("enum").items() {
		values = append(values, v.Value)
	}
	if len(values) > 0 {
		words = append(words, "one of "+strings.Join(values, ", "))
	}
	return strings.Join(words, ", ")
}

var code = regexp.MustCompile("`([^`]+)`")

// prose shows a description: paragraphs, and code in backticks.
func prose(text string) template.HTML {
	var b strings.Builder
	for p := range strings.SplitSeq(strings.TrimSpace(text), "\n\n") {
		if p != "" {
			b.WriteString("<p>" + code.ReplaceAllString(template.HTMLEscapeString(p), "<code>$1</code>") + "</p>")
		}
	}
	return template.HTML(b.String()) //nolint:gosec // every part was escaped above
}
