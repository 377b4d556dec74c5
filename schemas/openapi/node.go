package openapi

import (
	"encoding/json"
	"strings"

	"go.yaml.in/yaml/v3"
)

// node reads YAML in the order in which it is written. What is not there reads
// as empty.
type node struct{ *yaml.Node }

func (n node) exists() bool { return n.Node != nil }

// get gives a member of a mapping.
func (n node) get(name string) node {
	if n.Node == nil || n.Kind != yaml.MappingNode {
		return node{}
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		if n.Content[i].Value == name {
			return node{n.Content[i+1]}
		}
	}
	return node{}
}

// text gives a member that is a scalar.
func (n node) text(name string) string {
	if v := n.get(name); v.Node != nil && v.Kind == yaml.ScalarNode {
		return v.Value
	}
	return ""
}

// each calls f for the members of a mapping.
func (n node) each(f func(name string, value node)) {
	if n.Node == nil || n.Kind != yaml.MappingNode {
		return
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		f(n.Content[i].Value, node{n.Content[i+1]})
	}
}

// items gives the elements of a sequence.
func (n node) items() []node {
	if n.Node == nil || n.Kind != yaml.SequenceNode {
		return nil
	}
	out := make([]node, len(n.Content))
	for i, c := range n.Content {
		out[i] = node{c}
	}
	return out
}

// first gives the text of a sequence's first element.
func (n node) first() string {
	if all := n.items(); len(all) > 0 {
		return all[0].Value
	}
	return ""
}

// json renders a value as indented JSON; numbers keep their digits.
func (n node) json(indent string) string {
	inner := indent + "  "
	var parts []string
	switch n.Kind {
	case yaml.MappingNode:
		n.each(func(name string, v node) { parts = append(parts, inner+quoted(name)+": "+v.json(inner)) })
		return enclose("{", parts, indent, "}")
	case yaml.SequenceNode:
		for _, v := range n.items() {
			parts = append(parts, inner+v.json(inner))
		}
		return enclose("[", parts, indent, "]")
	}
	switch n.Tag {
	case "!!int", "!!float", "!!bool", "!!null":
		return n.Value
	}
	return quoted(n.Value)
}

func enclose(open string, parts []string, indent, closing string) string {
	if len(parts) == 0 {
		return open + closing
	}
	return open + "\n" + strings.Join(parts, ",\n") + "\n" + indent + closing
}

func quoted(s string) string {
	var b strings.Builder
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(s) // a string always encodes
	return strings.TrimSuffix(b.String(), "\n")
}
