package rules

import (
	"bytes"
	"encoding/json"
	"fmt"
	"time"

	"cel.dev/cel-go/cel"

	"github.com/softcrum/carril/schemas"
)

// Limits of a condition: what one may be, and what one evaluation may cost.
const (
	maxConditionBytes = 4 << 10
	costLimit         = 100_000
)

// program is a compiled condition; nil is "always".
type program struct{ p cel.Program }

// compile makes a CEL condition over event (id, name, kind, occurred_at,
// received_at, contact_id) and properties ready to run.
func compile(condition string) (*program, error) {
	if condition == "" || condition == "true" {
		return nil, nil
	}
	if len(condition) > maxConditionBytes {
		return nil, fmt.Errorf("longer than %d bytes", maxConditionBytes)
	}
	env, err := cel.NewEnv(
		cel.Variable("event", cel.MapType(cel.StringType, cel.DynType)),
		cel.Variable("properties", cel.MapType(cel.StringType, cel.DynType)),
	)
	if err != nil {
		return nil, fmt.Errorf("make the CEL environment: %w", err)
	}
	ast, issues := env.Compile(condition)
	if issues.Err() != nil {
		return nil, issues.Err()
	}
	if t := ast.OutputType(); t != cel.BoolType && t != cel.DynType {
		return nil, fmt.Errorf("gives %s, not a truth value", t)
	}
	p, err := env.Program(ast, cel.CostLimit(costLimit), cel.InterruptCheckFrequency(100))
	if err != nil {
		return nil, err
	}
	return &program{p}, nil
}

func (p *program) eval(e *schemas.EventTracked) (bool, error) {
	if p == nil {
		return true, nil
	}
	props, err := properties(e.Payload)
	if err != nil {
		return false, err
	}
	out, _, err := p.p.Eval(map[string]any{
		"properties": props,
		"event": map[string]any{"id": e.EventID.String(), "name": e.EventName, "kind": e.Kind, "contact_id": e.ContactID.String(),
			"occurred_at": e.OccurredAt.In(time.UTC), "received_at": e.ReceivedAt.In(time.UTC)},
	})
	if err != nil {
		return false, err
	}
	ok, isBool := out.Value().(bool)
	if !isBool {
		return false, fmt.Errorf("condition gave %T, not a truth value", out.Value())
	}
	return ok, nil
}

// properties reads a payload with whole numbers as integers, so that
// properties.total > 100 and properties.count == 3 both mean what they say.
func properties(payload string) (map[string]any, error) {
	d := json.NewDecoder(bytes.NewReader([]byte(payload)))
	d.UseNumber()
	var m map[string]any
	if err := d.Decode(&m); err != nil {
		return nil, fmt.Errorf("read properties: %w", err)
	}
	return numbers(m).(map[string]any), nil
}

func numbers(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for k, x := range v {
			v[k] = numbers(x)
		}
	case []any:
		for i, x := range v {
			v[i] = numbers(x)
		}
	case json.Number:
		if n, err := v.Int64(); err == nil {
			return n
		}
		f, _ := v.Float64() // out of range gives an infinity, which compares as such
		return f
	case nil:
	}
	return v
}
