package manage

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/google/uuid"

	"github.com/softcrum/carril/ingestor/intake"
	"github.com/softcrum/carril/internal/httpserver"
	"github.com/softcrum/carril/internal/rule"
)

// ScopeRules lets a tenant say what its events cause.
const ScopeRules = "core.rules.manage"

// Rules keeps tenants' rules; *rule.Store does it.
type Rules interface {
	Put(ctx context.Context, tenant uuid.UUID, r rule.Rule) (*rule.Rule, error)
	Get(ctx context.Context, tenant, id uuid.UUID) (*rule.Rule, error)
	Versions(ctx context.Context, tenant, id uuid.UUID) ([]*rule.Rule, error)
	List(ctx context.Context, tenant uuid.UUID) ([]*rule.Rule, error)
}

func (m *Routes) mountRules(r chi.Router) {
	const one = "/v1/core/rules/{rule_id}"
	r.Get("/v1/core/rules", m.rules(m.listRules))
	r.Get(one, m.rules(ruled(func(ctx context.Context, _ *http.Request, tenant, id uuid.UUID) (any, *httpserver.Problem, error) {
		found, err := m.deps.Rules.Get(ctx, tenant, id)
		return found, nil, err
	})))
	r.Get(one+"/versions", m.rules(ruled(func(ctx context.Context, _ *http.Request, tenant, id uuid.UUID) (any, *httpserver.Problem, error) {
		list, err := m.deps.Rules.Versions(ctx, tenant, id)
		return map[string]any{"versions": list}, nil, err
	})))
	r.Put(one, m.rules(ruled(m.putRule)))
}

// rules is a route on a tenant's rules.
func (m *Routes) rules(f work) http.HandlerFunc {
	return m.tenant(ScopeRules, http.StatusOK, func(ctx context.Context, r *http.Request, tenant uuid.UUID) (any, *httpserver.Problem, error) {
		answer, problem, err := f(ctx, r, tenant)
		var invalid *rule.Invalid
		switch {
		case errors.Is(err, rule.ErrNone):
			err = ErrNotFound
		case errors.Is(err, rule.ErrTooMany):
			return nil, &httpserver.Problem{Status: http.StatusUnprocessableEntity, Code: "too_many_rules", Title: "There is no room for another rule",
				Detail: fmt.Sprintf("At most %d; one that is off may become another.", rule.MaxRules)}, nil
		case errors.As(err, &invalid):
			return nil, &httpserver.Problem{Status: http.StatusUnprocessableEntity, Code: "invalid_rule", Title: "The rule is not taken",
				Pointer: invalid.Pointer, Detail: invalid.Detail}, nil
		}
		return answer, problem, err
	})
}

// ruled gives the rule's id of the path to f.
func ruled(f func(ctx context.Context, r *http.Request, tenant, id uuid.UUID) (any, *httpserver.Problem, error)) work {
	return func(ctx context.Context, r *http.Request, tenant uuid.UUID) (any, *httpserver.Problem, error) {
		id, ok := parseID(chi.URLParam(r, "rule_id"))
		if !ok || id == uuid.Nil {
			if r.Method == http.MethodPut {
				return nil, nil, &rule.Invalid{Detail: "rule_id is a UUID of your choice."}
			}
			return nil, nil, ErrNotFound
		}
		return f(ctx, r, tenant, id)
	}
}

func (m *Routes) listRules(ctx context.Context, _ *http.Request, tenant uuid.UUID) (any, *httpserver.Problem, error) {
	list, err := m.deps.Rules.List(ctx, tenant)
	if list == nil {
		list = []*rule.Rule{}
	}
	return map[string]any{"rules": list}, nil, err
}

func (m *Routes) putRule(ctx context.Context, r *http.Request, tenant, id uuid.UUID) (any, *httpserver.Problem, error) {
	body, problem := readObject(r)
	if problem != nil {
		return nil, problem, nil
	}
	draft, problem := ReadRule(body)
	if problem != nil {
		return nil, problem, nil
	}
	for i, a := range draft.Actions {
		if a.Channel == "" { // what is missing, rule says
			continue
		}
		if problem := m.channel(a.Channel); problem != nil {
			problem.Pointer = fmt.Sprintf("/actions/%d/channel", i)
			return nil, problem, nil
		}
	}
	draft.ID = id
	written, err := m.deps.Rules.Put(ctx, tenant, draft)
	return written, nil, err
}

// ReadRule reads a rule as tenants write it, without its id and version; it is
// on, and its condition "true", where the text does not say otherwise.
func ReadRule(object []byte) (rule.Rule, *httpserver.Problem) {
	r := rule.Rule{Enabled: true, Condition: "true"}
	var actions []json.RawMessage
	var limit json.RawMessage
	var from, until *string
	problem := fields(object, "", map[string]any{"name": &r.Name, "event_name": &r.EventName, "condition": &r.Condition, "actions": &actions,
		"valid_from": &from, "valid_until": &until, "enabled": &r.Enabled, "cap": &limit})
	if problem != nil {
		return r, problem
	}
	if r.EventName != intake.IdentifiedName && !intake.TenantName(r.EventName) {
		return r, &httpserver.Problem{Status: http.StatusUnprocessableEntity, Code: string(intake.InvalidEventName), Title: intake.InvalidEventName.Title(),
			Pointer: "/event_name", Detail: "The name of an event of yours, or " + intake.IdentifiedName + "."}
	}
	for name, t := range map[string]struct {
		text *string
		to   **time.Time
	}{"valid_from": {from, &r.ValidFrom}, "valid_until": {until, &r.ValidUntil}} {
		if t.text == nil {
			continue
		}
		at, ok := intake.ParseTime(*t.text)
		if !ok {
			return r, refuse(&intake.Error{Code: intake.InvalidField, Pointer: "/" + name, Detail: "A time as 2026-11-01T00:00:00Z."})
		}
		*t.to = &at
	}
	if limit != nil {
		r.Cap = &rule.Cap{}
		if problem := fields(limit, "/cap", map[string]any{"count": &r.Cap.Count, "window": &r.Cap.Window}); problem != nil {
			return r, problem
		}
	}
	for i, raw := range actions {
		a, problem := readAction(raw, fmt.Sprintf("/actions/%d", i))
		if problem != nil {
			return r, problem
		}
		r.Actions = append(r.Actions, a)
	}
	return r, nil
}

func readAction(object []byte, pointer string) (a rule.Action, problem *httpserver.Problem) {
	var constants map[string]*string
	problem = fields(object, pointer, map[string]any{"type": &a.Type, "points": &a.Points, "channel": &a.Channel, "category": &a.Category,
		"template_id": &a.TemplateID, "template_version": &a.TemplateVersion, "max_age": &a.MaxAge, "expires_after": &a.ExpiresAfter, "variables": &constants})
	if problem != nil {
		return a, problem
	}
	for name, v := range constants {
		if v == nil {
			return a, refuse(&intake.Error{Code: intake.InvalidField, Pointer: pointer + "/variables/" + pointerEscapes.Replace(name), Detail: "A constant is text."})
		}
		if a.Variables == nil {
			a.Variables = map[string]string{}
		}
		a.Variables[name] = *v
	}
	return a, nil
}
