package manage

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net"
	"net/http"
	"net/url"

	"github.com/go-chi/chi/v5"
	"github.com/google/uuid"

	"github.com/softcrum/carril/ingestor/apikey"
	"github.com/softcrum/carril/ingestor/intake"
	"github.com/softcrum/carril/internal/httpserver"
	"github.com/softcrum/carril/internal/taxonomy"
)

// ScopeTaxonomy lets a tenant say what its events must look like.
const ScopeTaxonomy = "core.taxonomy.manage"

// Taxonomy keeps tenants' schemas; *taxonomy.Store does it.
type Taxonomy interface {
	Put(ctx context.Context, tenant uuid.UUID, event string, mode taxonomy.Mode, text string) (taxonomy.Installed, error)
	Get(ctx context.Context, tenant uuid.UUID, event string) (taxonomy.Installed, error)
	List(ctx context.Context, tenant uuid.UUID) ([]taxonomy.Installed, error)
	Delete(ctx context.Context, tenant uuid.UUID, event string) error
}

// maxSchemaBody is a schema and what stands around it.
const maxSchemaBody = 2 * taxonomy.MaxBytes

func (m *Routes) mountTaxonomy(r chi.Router) {
	const route = "/v1/core/taxonomy/{event_name}"
	r.Get("/v1/core/taxonomy", m.taxonomy(m.listTaxonomy))
	r.Get(route, m.taxonomy(named(m.getTaxonomy)))
	r.Put(route, m.taxonomy(named(m.putTaxonomy)))
	r.Delete(route, m.taxonomy(named(m.deleteTaxonomy)))
}

// work does what a request for a tenant asks; it gives the answer, nil for none.
type work func(ctx context.Context, r *http.Request, tenant uuid.UUID) (any, *httpserver.Problem, error)

// tenant authorizes a tenant's request and answers with what f gives, under the
// status that a success has here; 204 where f gives nothing.
func (m *Routes) tenant(scope string, success int, f work) http.HandlerFunc {
	return m.caller(scope, success, func(ctx context.Context, r *http.Request, p *apikey.Principal) (any, *httpserver.Problem, error) {
		return f(ctx, r, p.TenantID)
	})
}

// caller does the same for work that writes down who asked for it.
func (m *Routes) caller(scope string, success int, f func(ctx context.Context, r *http.Request, p *apikey.Principal) (any, *httpserver.Problem, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		p, problem := apikey.AuthorizeTenant(m.deps.Keys, r, scope)
		var answer any
		var err error
		if problem == nil {
			ctx, cancel := context.WithTimeout(r.Context(), readTimeout)
			defer cancel()
			answer, problem, err = f(ctx, r, p)
		}
		switch {
		case problem != nil:
			problem.Write(w, r)
		case err != nil:
			m.reply(w, r, nil, err)
		case answer == nil:
			w.WriteHeader(http.StatusNoContent)
		default:
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(success)
			writeJSON(w, answer)
		}
	}
}

// taxonomy is a route on a tenant's schemas.
func (m *Routes) taxonomy(f work) http.HandlerFunc {
	return m.tenant(ScopeTaxonomy, http.StatusOK, func(ctx context.Context, r *http.Request, tenant uuid.UUID) (any, *httpserver.Problem, error) {
		answer, problem, err := f(ctx, r, tenant)
		if errors.Is(err, taxonomy.ErrNone) {
			err = ErrNotFound
		}
		return answer, problem, err
	})
}

// named gives the event name of the path to f; a name that no event has is not
// there.
func named(f func(ctx context.Context, r *http.Request, tenant uuid.UUID, event string) (any, *httpserver.Problem, error)) work {
	return func(ctx context.Context, r *http.Request, tenant uuid.UUID) (any, *httpserver.Problem, error) {
		name := chi.URLParam(r, "event_name")
		if r.URL.RawPath != "" { // then the router has left it as it was written
			name, _ = url.PathUnescape(name) // what cannot be read is no name
		}
		if name != intake.IdentifiedName && !intake.TenantName(name) {
			if r.Method == http.MethodPut {
				return nil, &httpserver.Problem{Status: http.StatusUnprocessableEntity, Code: string(intake.InvalidEventName),
					Title: intake.InvalidEventName.Title(), Detail: "The name of an event of yours, or " + intake.IdentifiedName + "."}, nil
			}
			return nil, nil, taxonomy.ErrNone
		}
		return f(ctx, r, tenant, name)
	}
}

func (m *Routes) listTaxonomy(ctx context.Context, _ *http.Request, tenant uuid.UUID) (any, *httpserver.Problem, error) {
	list, err := m.deps.Taxonomy.List(ctx, tenant)
	return map[string]any{"taxonomy": list}, nil, err
}

func (m *Routes) getTaxonomy(ctx context.Context, _ *http.Request, tenant uuid.UUID, event string) (any, *httpserver.Problem, error) {
	s, err := m.deps.Taxonomy.Get(ctx, tenant, event)
	return s, nil, err
}

func (m *Routes) deleteTaxonomy(ctx context.Context, r *http.Request, tenant uuid.UUID, event string) (any, *httpserver.Problem, error) {
	err := m.deps.Taxonomy.Delete(ctx, tenant, event)
	if err == nil {
		m.changed(ctx, r, tenant)
	}
	return nil, nil, err
}

func (m *Routes) putTaxonomy(ctx context.Context, r *http.Request, tenant uuid.UUID, event string) (any, *httpserver.Problem, error) {
	mode, text, problem := readSchema(r)
	if problem != nil {
		return nil, problem, nil
	}
	if problem := checkSchema(text); problem != nil {
		return nil, problem, nil
	}
	s, err := m.deps.Taxonomy.Put(ctx, tenant, event, mode, text)
	if errors.Is(err, taxonomy.ErrTooMany) {
		return nil, &httpserver.Problem{Status: http.StatusUnprocessableEntity, Code: "too_many_schemas", Title: "There is no room for another schema",
			Detail: fmt.Sprintf("At most %d event names.", taxonomy.MaxSchemas)}, nil
	}
	if err == nil {
		m.changed(ctx, r, tenant)
	}
	return s, nil, err
}

// changed puts a change in force here, before the answer; the other replicas
// hear of it. Where that fails it comes with the next read.
func (m *Routes) changed(ctx context.Context, r *http.Request, tenant uuid.UUID) {
	if m.deps.SchemasChanged == nil {
		return
	}
	if err := m.deps.SchemasChanged(ctx, tenant); err != nil {
		m.deps.Log.Warn("a changed schema is not in force here yet", "request_id", httpserver.RequestID(r.Context()), "error", err)
	}
}

func checkSchema(text string) *httpserver.Problem {
	err := taxonomy.Check([]byte(text))
	if err == nil {
		return nil
	}
	p := &httpserver.Problem{Status: http.StatusUnprocessableEntity, Code: taxonomy.CodeInvalid, Title: "The schema is not taken", Pointer: "/schema"}
	var invalid *taxonomy.Invalid
	if errors.As(err, &invalid) {
		p.Code, p.Detail, p.Pointer = invalid.Code, invalid.Detail, "/schema"+invalid.Pointer
	}
	return p
}

// readSchema reads {"mode", "schema"}.
func readSchema(r *http.Request) (taxonomy.Mode, string, *httpserver.Problem) {
	body, problem := readBody(r)
	if problem != nil {
		return "", "", problem
	}
	if err := intake.NewParser().Object(body); err != nil {
		return "", "", refuse(err)
	}
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(body, &fields); err != nil {
		return "", "", refuse(&intake.Error{Code: intake.InvalidJSON})
	}
	for name := range fields {
		if name != "mode" && name != "schema" {
			return "", "", refuse(&intake.Error{Code: intake.UnknownField, Detail: "mode and schema."})
		}
	}
	for _, name := range []string{"mode", "schema"} {
		if raw := fields[name]; len(raw) == 0 || string(raw) == "null" {
			return "", "", refuse(&intake.Error{Code: intake.MissingField, Pointer: "/" + name, Detail: name + " is required."})
		}
	}
	var mode taxonomy.Mode
	if json.Unmarshal(fields["mode"], &mode) != nil || mode != taxonomy.Enforce && mode != taxonomy.Observe {
		return "", "", &httpserver.Problem{Status: http.StatusUnprocessableEntity, Code: "invalid_mode", Title: "mode is neither enforce nor observe", Pointer: "/mode"}
	}
	if fields["schema"][0] != '{' {
		return "", "", refuse(&intake.Error{Code: intake.InvalidField, Pointer: "/schema", Detail: "schema is an object."})
	}
	return mode, string(fields["schema"]), nil
}

func refuse(e *intake.Error) *httpserver.Problem {
	title := e.Code.Title()
	if e.Code == intake.NotAnObject {
		title = "The body is a JSON object"
	}
	return &httpserver.Problem{Status: e.Code.Status(), Code: string(e.Code), Title: title, Detail: e.Detail, Pointer: e.Pointer}
}

// readBody reads a small JSON body that has no encoding.
func readBody(r *http.Request) ([]byte, *httpserver.Problem) { return readBodyOf(r, maxSchemaBody) }

func readBodyOf(r *http.Request, most int64) ([]byte, *httpserver.Problem) {
	kind, params, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if charset, given := params["charset"]; err != nil || kind != "application/json" || given && charset != "utf-8" && charset != "UTF-8" {
		return nil, &httpserver.Problem{Status: http.StatusUnsupportedMediaType, Code: "unsupported_media_type", Title: "The body must be JSON",
			Detail: "Send Content-Type: application/json; UTF-8 is the only charset."}
	}
	if e := r.Header.Get("Content-Encoding"); e != "" && e != "identity" {
		return nil, &httpserver.Problem{Status: http.StatusUnsupportedMediaType, Code: "unsupported_encoding", Title: "The body has an encoding that is not taken",
			Detail: "Send it without one."}
	}
	tooLarge := &httpserver.Problem{Status: http.StatusRequestEntityTooLarge, Code: "body_too_large", Title: "The body is too large",
		Detail: fmt.Sprintf("At most %d bytes.", most)}
	if r.ContentLength > most {
		return nil, tooLarge
	}
	body, err := io.ReadAll(io.LimitReader(r.Body, most+1))
	var timeout net.Error
	switch {
	case errors.As(err, &timeout) && timeout.Timeout():
		return nil, &httpserver.Problem{Status: http.StatusRequestTimeout, Code: "request_timeout", Title: "The body did not arrive in time"}
	case err != nil:
		return nil, &httpserver.Problem{Status: http.StatusBadRequest, Code: "unreadable_body", Title: "The body could not be read to its end"}
	case int64(len(body)) > most:
		return nil, tooLarge
	}
	return body, nil
}
