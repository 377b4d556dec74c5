package taxonomy

import (
	"fmt"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

// What a payload may be: the scanner at the front door lets no deeper one pass.
const maxPayloadDepth = 33

// costOf gives how much one value of a payload can meet at most, on its way down
// from the root to its deepest level: subschemas, and what they carry. A schema
// that doubles itself, by references to references or at each level of a tree,
// is seen here and not when an event comes.
func costOf(s *jsonschema.Schema) (int, error) {
	m := meter{known: map[visit]int{}, open: map[visit]bool{}}
	c := m.cost(s, maxPayloadDepth)
	switch {
	case m.ring:
		return 0, &Invalid{CodeTooComplex, "", "References lead in a ring."}
	case c > MaxCost:
		return 0, &Invalid{CodeTooComplex, "", fmt.Sprintf(
			"One value can meet more than %d subschemas, enumerated values and parts of patterns on its way down.", MaxCost)}
	}
	return c, nil
}

type visit struct {
	schema *jsonschema.Schema
	depth  int
}

type meter struct {
	known map[visit]int
	open  map[visit]bool
	ring  bool
}

// cost is bounded: beyond MaxCost it stops counting, not walking, and each
// schema is walked once a depth.
func (m *meter) cost(s *jsonschema.Schema, depth int) int {
	if s == nil {
		return 0
	}
	at := visit{s, depth}
	if m.open[at] {
		m.ring = true
		return MaxCost + 1
	}
	if c, ok := m.known[at]; ok {
		return c
	}
	m.open[at] = true
	c := 1 + own(s) + m.here(s, depth)
	if depth > 0 {
		c += m.below(s, depth-1)
	}
	delete(m.open, at)
	c = min(c, MaxCost+1)
	m.known[at] = c
	return c
}

// own is what a subschema compares a value with by itself.
func own(s *jsonschema.Schema) int {
	c := 0
	if re, ok := s.Pattern.(sized); ok {
		c += re.size / 5
	}
	for re := range s.PatternProperties {
		if re, ok := re.(sized); ok {
			c += re.size / 5
		}
	}
	if s.Enum != nil {
		for _, v := range s.Enum.Values {
			c += comparison(v)
		}
		c /= 10
	}
	if s.Const != nil {
		c += comparison(*s.Const) / 10
	}
	return c
}

// comparison is the price of comparing with a value, a tenth of a subschema for
// text; numbers are compared as fractions.
func comparison(v any) int {
	switch v := v.(type) {
	case map[string]any:
		c := 1
		for _, member := range v {
			c += comparison(member)
		}
		return c
	case []any:
		c := 1
		for _, item := range v {
			c += comparison(item)
		}
		return c
	case string, bool, nil:
		return 1
	}
	return 50
}

// here adds up what applies to the same value.
func (m *meter) here(s *jsonschema.Schema, depth int) int {
	c := m.cost(s.Ref, depth) + m.cost(s.Not, depth) + m.cost(s.If, depth) + m.cost(s.Then, depth) + m.cost(s.Else, depth)
	for _, list := range [][]*jsonschema.Schema{s.AllOf, s.AnyOf, s.OneOf} {
		for _, sub := range list {
			c += m.cost(sub, depth)
		}
	}
	for _, sub := range s.DependentSchemas {
		c += m.cost(sub, depth)
	}
	return c
}

// below adds up what applies to one value beneath: one of the properties, all of
// the patterns.
func (m *meter) below(s *jsonschema.Schema, depth int) int {
	c, most := 0, 0
	for _, sub := range s.Properties {
		most = max(most, m.cost(sub, depth))
	}
	for _, sub := range s.PrefixItems {
		most = max(most, m.cost(sub, depth))
	}
	for _, sub := range s.PatternProperties {
		c += m.cost(sub, depth)
	}
	if sub, ok := s.AdditionalProperties.(*jsonschema.Schema); ok {
		c += m.cost(sub, depth)
	}
	for _, sub := range []*jsonschema.Schema{s.PropertyNames, s.UnevaluatedProperties, s.Items2020, s.Contains, s.UnevaluatedItems} {
		c += m.cost(sub, depth)
	}
	return c + most
}
