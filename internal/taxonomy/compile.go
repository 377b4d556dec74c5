package taxonomy

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"regexp/syntax"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

// Limits of a schema.
const (
	MaxBytes    = 32 << 10 // of its text
	MaxDepth    = 32       // levels of its text
	MaxNodes    = 2_000    // values in its text
	MaxCost     = 250      // what one value may cost; see cost
	MaxPattern  = 512      // bytes of a regular expression
	MaxPatterns = 2_000    // instructions of all compiled regular expressions together
)

// Draft is the one dialect that is taken; $schema may name it or be absent.
const Draft = "https://json-schema.org/draft/2020-12/schema"

// What is wrong with a schema.
const (
	CodeInvalid    = "invalid_schema"
	CodeTooLarge   = "schema_too_large"
	CodeTooComplex = "schema_too_complex"
)

// Invalid is a schema that is not taken. Its texts name keywords and limits.
type Invalid struct {
	Code    string
	Pointer string // into the schema; empty: as a whole
	Detail  string
}

func (e *Invalid) Error() string { return "taxonomy: " + e.Code + " at " + e.Pointer + ": " + e.Detail }

// location is the address that a schema has for itself; it is never fetched.
const location = "urn:carril:taxonomy"

// program is a compiled schema.
type program struct {
	schema *jsonschema.Schema
	cost   int
}

// Check says whether a text is a schema that is taken; the error is an *Invalid.
func Check(text []byte) error {
	_, err := compile(text)
	return err
}

func compile(text []byte) (*program, error) {
	if len(text) > MaxBytes {
		return nil, &Invalid{CodeTooLarge, "", fmt.Sprintf("A schema has at most %d bytes; this one has %d.", MaxBytes, len(text))}
	}
	doc, err := decode(text)
	if err != nil {
		return nil, &Invalid{CodeInvalid, "", "It is not JSON."}
	}
	if _, ok := doc.(map[string]any); !ok {
		return nil, &Invalid{CodeInvalid, "", "A schema is an object."}
	}
	nodes := 0
	if err := inspect(doc, nil, &nodes); err != nil {
		return nil, err
	}
	c := jsonschema.NewCompiler()
	c.DefaultDraft(jsonschema.Draft2020)
	c.UseLoader(noLoader{})
	known := patterns{}
	c.UseRegexpEngine(known.compile)
	if err := c.AddResource(location, doc); err != nil {
		return nil, &Invalid{CodeInvalid, "", "It cannot be read as a schema."}
	}
	schema, err := c.Compile(location)
	if err != nil {
		return nil, refusalOf(err)
	}
	cost, err := costOf(schema)
	if err != nil {
		return nil, err
	}
	return &program{schema, cost}, nil
}

// decode reads JSON whose numbers keep their digits.
func decode(text []byte) (any, error) {
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	var v any
	err := d.Decode(&v)
	return v, err
}

// inspect walks the text of a schema before it is compiled: how large and deep
// it is, and that it names nothing outside itself.
func inspect(v any, path []string, nodes *int) error {
	if *nodes++; *nodes > MaxNodes {
		return &Invalid{CodeTooComplex, "", fmt.Sprintf("A schema has at most %d values.", MaxNodes)}
	}
	if len(path) > MaxDepth {
		return &Invalid{CodeTooComplex, pointer(path), fmt.Sprintf("A schema has at most %d levels.", MaxDepth)}
	}
	switch v := v.(type) {
	case map[string]any:
		for name, member := range v {
			at := append(path[:len(path):len(path)], name)
			if err := keyword(name, member, at); err != nil {
				return err
			}
			if err := inspect(member, at, nodes); err != nil {
				return err
			}
		}
	case []any:
		for i, item := range v {
			if err := inspect(item, append(path[:len(path):len(path)], fmt.Sprint(i)), nodes); err != nil {
				return err
			}
		}
	}
	return nil
}

// keyword refuses the keywords that reach beyond the schema. A property of such
// a name has a schema for its value, no string.
func keyword(name string, value any, at []string) error {
	text, ok := value.(string)
	if !ok {
		return nil
	}
	switch name {
	case "$id", "$dynamicRef", "$dynamicAnchor", "$recursiveRef":
		return &Invalid{CodeInvalid, pointer(at), name + " is not taken."}
	case "$ref":
		if !strings.HasPrefix(text, "#") {
			return &Invalid{CodeInvalid, pointer(at), "A $ref stays within the schema: it begins with #."}
		}
	case "$schema":
		if len(at) > 1 || strings.TrimSuffix(text, "#") != Draft {
			return &Invalid{CodeInvalid, pointer(at), "The one dialect that is taken is " + Draft + "."}
		}
	}
	return nil
}

// noLoader refuses to fetch.
type noLoader struct{}

func (noLoader) Load(string) (any, error) { return nil, errors.New("nothing is fetched") }

// patterns are the regular expressions of a schema, each compiled once. RE2
// takes time linear in the text; how much of it is the size of the program.
type patterns map[string]sized

func (p patterns) compile(s string) (jsonschema.Regexp, error) {
	if re, ok := p[s]; ok {
		return re, nil
	}
	if len(s) > MaxPattern {
		return nil, fmt.Errorf("longer than %d bytes", MaxPattern)
	}
	parsed, err := syntax.Parse(s, syntax.Perl)
	if err != nil {
		return nil, err
	}
	prog, err := syntax.Compile(parsed.Simplify())
	if err != nil {
		return nil, err
	}
	total := len(prog.Inst)
	for _, re := range p {
		total += re.size
	}
	if total > MaxPatterns {
		return nil, errors.New("the patterns are too large together")
	}
	re, err := regexp.Compile(s)
	if err != nil {
		return nil, err
	}
	p[s] = sized{re, len(prog.Inst)}
	return p[s], nil
}

// sized is a regular expression that knows its size.
type sized struct {
	*regexp.Regexp
	size int
}

// refusalOf says where a schema is wrong.
func refusalOf(err error) error {
	var invalid *jsonschema.SchemaValidationError
	var cause *jsonschema.ValidationError
	if errors.As(err, &invalid) && errors.As(invalid.Err, &cause) {
		for len(cause.Causes) > 0 {
			cause = cause.Causes[0]
		}
		return &Invalid{CodeInvalid, pointer(cause.InstanceLocation), "This keyword has a value that the draft does not allow."}
	}
	var regex *jsonschema.InvalidRegexError
	if errors.As(err, &regex) {
		return &Invalid{CodeInvalid, fragment(regex.URL), "A pattern is not taken: it is no RE2, or too large."}
	}
	return &Invalid{CodeInvalid, "", "It does not compile; a $ref may lead nowhere."}
}

// fragment is the JSON pointer at the end of a schema's address.
func fragment(url string) string {
	_, after, _ := strings.Cut(url, "#")
	return after
}

var escaper = strings.NewReplacer("~", "~0", "/", "~1")

// pointer renders a path as RFC 6901 does.
func pointer(path []string) string {
	var b strings.Builder
	for _, p := range path {
		b.WriteByte('/')
		_, _ = escaper.WriteString(&b, p) // a builder takes everything
	}
	return b.String()
}
