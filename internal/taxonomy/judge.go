package taxonomy

import (
	"errors"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/santhosh-tekuri/jsonschema/v6/kind"
)

// MaxViolations is how many places of a payload are named.
const MaxViolations = 20

// maxPointer bounds a pointer in bytes; one that would be longer stops at the
// last parent that fits.
const maxPointer = 512

// budget is how much one payload may cost: its size times the schema's cost.
// A unit is 0.1 to 0.3 µs.
const budget = 500_000

// Violation is one place where a payload does not match. It names the keyword,
// never the value that was sent.
type Violation struct {
	Pointer string `json:"pointer"` // into the payload
	Keyword string `json:"keyword"` // false: a schema that allows nothing; complexity: the payload is too large for the schema's cost
	Schema  string `json:"schema"`  // pointer into the schema
}

// judge gives what does not match, at most MaxViolations; nil: all does.
func (p *program) judge(payload string) []Violation {
	v, err := decode([]byte(payload))
	if err != nil { // no scanner let it pass; it is not ours to say what it is
		return []Violation{{Keyword: "type"}}
	}
	if (size(v)+len(payload)/16)*p.cost > budget {
		return []Violation{{Keyword: "complexity"}}
	}
	var failed *jsonschema.ValidationError
	switch err := p.schema.Validate(v); {
	case err == nil:
		return nil
	case errors.As(err, &failed):
		return collect(nil, failed)
	}
	return []Violation{{Keyword: "type"}}
}

// size counts the values of a payload.
func size(v any) int {
	n := 1
	switch v := v.(type) {
	case map[string]any:
		for _, member := range v {
			n += 1 + size(member)
		}
	case []any:
		for _, item := range v {
			n += size(item)
		}
	}
	return n
}

// collect gathers the leaves of a failure. What no branch of an alternative
// fits fails as a whole: which branch was meant is nobody's to guess.
func collect(out []Violation, e *jsonschema.ValidationError) []Violation {
	if len(out) == MaxViolations {
		return out
	}
	switch e.ErrorKind.(type) {
	case *kind.AnyOf, *kind.OneOf, *kind.Not, *kind.Contains, *kind.MinContains, *kind.MaxContains, *kind.PropertyNames:
		return append(out, violation(e, ""))
	}
	if len(e.Causes) > 0 {
		for _, cause := range e.Causes {
			out = collect(out, cause)
		}
		return out
	}
	for _, name := range properties(e.ErrorKind) {
		if len(out) < MaxViolations {
			out = append(out, violation(e, name))
		}
	}
	return out
}

// properties are the names of those that an error is about, rather than about
// their object; one empty name for the value itself.
func properties(k jsonschema.ErrorKind) []string {
	switch k := k.(type) {
	case *kind.Required:
		return k.Missing
	case *kind.DependentRequired:
		return k.Missing
	case *kind.AdditionalProperties:
		return k.Properties
	}
	return []string{""}
}

func violation(e *jsonschema.ValidationError, property string) Violation {
	path := e.InstanceLocation
	if property != "" {
		path = append(path[:len(path):len(path)], property)
	}
	for len(pointer(path)) > maxPointer {
		path = path[:len(path)-1]
	}
	keywords := e.ErrorKind.KeywordPath()
	at, name := fragment(e.SchemaURL), "false"
	if len(keywords) > 0 {
		at, name = at+pointer(keywords[:1]), keywords[0]
	}
	if _, ok := e.ErrorKind.(*kind.Not); ok {
		at, name = at+"/not", "not"
	}
	return Violation{Pointer: pointer(path), Keyword: name, Schema: strings.ToValidUTF8(at, "\uFFFD")}
}
