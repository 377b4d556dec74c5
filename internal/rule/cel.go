package rule

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"cel.dev/cel-go/cel"

	"github.com/softcrum/carril/schemas"
)

// Limits of a condition: what one may be, and what one evaluation may cost, in
// CEL's units (about one a step).
const (
	MaxCondition = 4 << 10 // bytes
	CostLimit    = 100_000
)

// Why a condition gave no answer for an event. They are said to tenants, so they
// carry nothing of the event.
var (
	ErrCost    = errors.New("cost_limit")    // it took more than CostLimit
	ErrAbsent  = errors.New("no_such_key")   // it reads a property that the event has not
	ErrNotBool = errors.New("not_a_bool")    // it gave something else than a truth value
	ErrFailed  = errors.New("runtime_error") // a division by zero, a comparison of unlike things
)

// program is a compiled condition; nil is "always".
type program struct{ cel.Program }

// compile makes a CEL condition over event (id, name, kind, occurred_at,
// received_at, contact_id) and properties ready to run.
func compile(condition string, more ...cel.EnvOption) (*program, error) {
	if condition == "" || condition == "true" {
		return nil, nil
	}
	if len(condition) > MaxCondition {
		return nil, fmt.Errorf("longer than %d bytes", MaxCondition)
	}
	env, err := cel.NewEnv(append(more,
		cel.Variable("event", cel.MapType(cel.StringType, cel.DynType)),
		cel.Variable("properties", cel.MapType(cel.StringType, cel.DynType)),
	)...)
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
	p, err := env.Program(ast, cel.CostLimit(CostLimit), cel.InterruptCheckFrequency(100))
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
	out, _, err := p.Program.Eval(map[string]any{
		"properties": props,
		"event": map[string]any{"id": e.EventID.String(), "name": e.EventName, "kind": e.Kind, "contact_id": e.ContactID.String(),
			"occurred_at": e.OccurredAt.In(time.UTC), "received_at": e.ReceivedAt.In(time.UTC)},
	})
	if err != nil {
		return false, classify(err)
	}
	ok, isBool := out.Value().(bool)
	if !isBool {
		return false, ErrNotBool
	}
	return ok, nil
}

// classify tells a tenant's mistakes apart; the library has no types for them.
func classify(err error) error {
	switch text := err.Error(); {
	case strings.Contains(text, "cost limit"):
		return ErrCost
	case strings.Contains(text, "no such key"):
		return ErrAbsent
	}
	return ErrFailed
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
