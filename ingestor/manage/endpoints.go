package manage

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"

	"github.com/go-chi/chi/v5"
	"github.com/google/uuid"

	"github.com/softcrum/carril/ingestor/intake"
	"github.com/softcrum/carril/internal/httpserver"
)

// ScopeWebhooks lets a tenant say where it hears of its events.
const ScopeWebhooks = "webhooks.manage"

// Endpoint is where a tenant hears of its events, as the owner of endpoints
// shows it; its secrets and the values of its headers are no part of it.
type Endpoint any

// EndpointDraft is an endpoint to be, or what becomes different of one: nil
// leaves a field as it is.
type EndpointDraft struct {
	URL         *string           `json:"url"`
	Description *string           `json:"description"`
	EventTypes  []string          `json:"event_types"`
	Delivery    *string           `json:"delivery"`
	Headers     map[string]string `json:"headers"` // all of them; empty: none
}

// Endpoints keeps tenants' webhook endpoints. ErrNotFound says that the tenant
// has no such endpoint; an error with Problem is a refusal of what it asked for.
type Endpoints interface {
	Create(ctx context.Context, tenant uuid.UUID, d EndpointDraft) (e Endpoint, secret string, err error)
	Update(ctx context.Context, tenant, id uuid.UUID, d EndpointDraft) (Endpoint, error)
	Get(ctx context.Context, tenant, id uuid.UUID) (Endpoint, error)
	List(ctx context.Context, tenant uuid.UUID) ([]Endpoint, error)
	Delete(ctx context.Context, tenant, id uuid.UUID) error
	Enable(ctx context.Context, tenant, id uuid.UUID) (Endpoint, error)
	Disable(ctx context.Context, tenant, id uuid.UUID) (Endpoint, error)
	Rotate(ctx context.Context, tenant, id uuid.UUID) (NewSecret, error)
}

// NewSecret signs from now on; the older ones sign beside it until their time is
// over (Standard Webhooks).
type NewSecret struct {
	Secret        string `json:"secret"`
	PreviousUntil string `json:"previous_until"`
}

// refusal is an error that says what was wrong with a request.
type refusal interface {
	Problem() (code, pointer, detail string)
}

func (m *Routes) mountEndpoints(r chi.Router) {
	const one = "/v1/webhooks/endpoints/{endpoint_id}"
	r.Get("/v1/webhooks/endpoints", m.endpoints(m.listEndpoints, http.StatusOK))
	r.Post("/v1/webhooks/endpoints", m.endpoints(m.createEndpoint, http.StatusCreated))
	r.Get(one, m.endpoints(endpoint(m.deps.Endpoints.Get), http.StatusOK))
	r.Patch(one, m.endpoints(m.updateEndpoint, http.StatusOK))
	r.Delete(one, m.endpoints(m.deleteEndpoint, http.StatusNoContent))
	r.Post(one+"/enable", m.endpoints(endpoint(m.deps.Endpoints.Enable), http.StatusOK))
	r.Post(one+"/disable", m.endpoints(endpoint(m.deps.Endpoints.Disable), http.StatusOK))
	r.Post(one+"/rotate-secret", m.endpoints(m.rotateSecret, http.StatusOK))
}

// endpoints is a route on a tenant's endpoints.
func (m *Routes) endpoints(f work, success int) http.HandlerFunc {
	return m.tenant(ScopeWebhooks, success, func(ctx context.Context, r *http.Request, tenant uuid.UUID) (any, *httpserver.Problem, error) {
		answer, problem, err := f(ctx, r, tenant)
		var refused refusal
		if errors.As(err, &refused) {
			code, pointer, detail := refused.Problem()
			return nil, &httpserver.Problem{Status: http.StatusUnprocessableEntity, Code: code, Title: "The endpoint is not taken", Pointer: pointer, Detail: detail}, nil
		}
		return answer, problem, err
	})
}

// endpoint does something with the endpoint that the path names.
func endpoint[T any](f func(ctx context.Context, tenant, id uuid.UUID) (T, error)) work {
	return func(ctx context.Context, r *http.Request, tenant uuid.UUID) (any, *httpserver.Problem, error) {
		id, ok := parseID(chi.URLParam(r, "endpoint_id"))
		if !ok {
			return nil, nil, ErrNotFound
		}
		e, err := f(ctx, tenant, id)
		return e, nil, err
	}
}

func (m *Routes) listEndpoints(ctx context.Context, _ *http.Request, tenant uuid.UUID) (any, *httpserver.Problem, error) {
	list, err := m.deps.Endpoints.List(ctx, tenant)
	if list == nil {
		list = []Endpoint{}
	}
	return map[string]any{"endpoints": list}, nil, err
}

// created is a new endpoint with its secret, which is shown this once.
type created struct {
	Endpoint Endpoint `json:"endpoint"`
	Secret   string   `json:"secret"`
}

func (m *Routes) createEndpoint(ctx context.Context, r *http.Request, tenant uuid.UUID) (any, *httpserver.Problem, error) {
	d, problem := readDraft(r)
	if problem != nil {
		return nil, problem, nil
	}
	if d.URL == nil {
		return nil, refuse(&intake.Error{Code: intake.MissingField, Pointer: "/url", Detail: "url is required."}), nil
	}
	e, secret, err := m.deps.Endpoints.Create(ctx, tenant, d)
	return created{e, secret}, nil, err
}

func (m *Routes) updateEndpoint(ctx context.Context, r *http.Request, tenant uuid.UUID) (any, *httpserver.Problem, error) {
	d, problem := readDraft(r)
	if problem != nil {
		return nil, problem, nil
	}
	if d.Delivery != nil {
		return nil, refuse(&intake.Error{Code: intake.InvalidField, Pointer: "/delivery", Detail: "The delivery of an endpoint stays as it was made."}), nil
	}
	return endpoint(func(ctx context.Context, tenant, id uuid.UUID) (Endpoint, error) {
		return m.deps.Endpoints.Update(ctx, tenant, id, d)
	})(ctx, r, tenant)
}

func (m *Routes) deleteEndpoint(ctx context.Context, r *http.Request, tenant uuid.UUID) (any, *httpserver.Problem, error) {
	return endpoint(func(ctx context.Context, tenant, id uuid.UUID) (any, error) {
		return nil, m.deps.Endpoints.Delete(ctx, tenant, id)
	})(ctx, r, tenant)
}

func (m *Routes) rotateSecret(ctx context.Context, r *http.Request, tenant uuid.UUID) (any, *httpserver.Problem, error) {
	return endpoint(m.deps.Endpoints.Rotate)(ctx, r, tenant)
}

// readDraft reads the fields of an endpoint. null counts as a value of the
// wrong type: what is to stay is left out.
func readDraft(r *http.Request) (d EndpointDraft, problem *httpserver.Problem) {
	body, problem := readObject(r)
	if problem != nil {
		return d, problem
	}
	var headers map[string]*string // a null among them is no empty text
	var types []*string
	into := map[string]any{"url": &d.URL, "description": &d.Description, "event_types": &types, "delivery": &d.Delivery, "headers": &headers}
	if problem := fields(body, "", into); problem != nil {
		return d, problem
	}
	if types != nil {
		d.EventTypes = []string{}
	}
	for i, v := range types {
		if v == nil {
			return d, refuse(&intake.Error{Code: intake.InvalidField, Pointer: fmt.Sprintf("/event_types/%d", i), Detail: "An event type is text."})
		}
		d.EventTypes = append(d.EventTypes, *v)
	}
	if headers != nil {
		d.Headers = map[string]string{}
	}
	for name, v := range headers {
		if v == nil {
			return d, refuse(&intake.Error{Code: intake.InvalidField, Pointer: "/headers", Detail: "The values of headers are text."})
		}
		d.Headers[name] = *v
	}
	return d, nil
}

// readObject reads a body that is a JSON object.
func readObject(r *http.Request) ([]byte, *httpserver.Problem) { return readObjectOf(r, maxSchemaBody) }

func readObjectOf(r *http.Request, most int64) ([]byte, *httpserver.Problem) {
	body, problem := readBodyOf(r, most)
	if problem != nil {
		return nil, problem
	}
	if err := intake.NewParser().Object(body); err != nil {
		return nil, refuse(err)
	}
	return body, nil
}

// fields reads the fields of an object to where into says; a name that is not
// there is refused, and null as a value of the wrong type.
func fields(object []byte, pointer string, into map[string]any) *httpserver.Problem {
	var given map[string]json.RawMessage
	if err := json.Unmarshal(object, &given); err != nil || given == nil {
		return refuse(&intake.Error{Code: intake.InvalidField, Pointer: pointer, Detail: "This is an object."})
	}
	for _, name := range slices.Sorted(maps.Keys(given)) {
		at := pointer + "/" + pointerEscapes.Replace(name)
		to, ok := into[name]
		if !ok {
			return refuse(&intake.Error{Code: intake.UnknownField, Pointer: at, Detail: "Known are " + strings.Join(slices.Sorted(maps.Keys(into)), ", ") + "."})
		}
		if string(given[name]) == "null" || json.Unmarshal(given[name], to) != nil {
			return refuse(&intake.Error{Code: intake.InvalidField, Pointer: at, Detail: name + " is of another type."})
		}
	}
	return nil
}

var pointerEscapes = strings.NewReplacer("~", "~0", "/", "~1")
