package manage

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/go-chi/chi/v5"
	"github.com/google/uuid"

	"github.com/softcrum/carril/ingestor/intake"
	"github.com/softcrum/carril/internal/content"
	"github.com/softcrum/carril/internal/httpserver"
)

// ScopeTemplates lets a tenant say what its messages look like.
const ScopeTemplates = "messaging.templates.manage"

// Templates keeps tenants' templates; *content.Store does it.
type Templates interface {
	Put(ctx context.Context, tenant uuid.UUID, id, channel string, p content.Parts) (*content.Version, error)
	Get(ctx context.Context, tenant uuid.UUID, id string, version int) (*content.Version, error)
	List(ctx context.Context, tenant uuid.UUID) ([]*content.Version, error)
}

// maxTemplateBody is a template with what stands around it, and room for escapes.
const maxTemplateBody = 3 * content.MaxBody

func (m *Routes) mountTemplates(r chi.Router) {
	const one = "/v1/messaging/templates/{template_id}"
	r.Get("/v1/messaging/templates", m.templates(func(ctx context.Context, _ *http.Request, tenant uuid.UUID) (any, *httpserver.Problem, error) {
		list, err := m.deps.Templates.List(ctx, tenant)
		if list == nil {
			list = []*content.Version{}
		}
		return map[string]any{"templates": list}, nil, err
	}))
	r.Get(one, m.templates(m.getTemplate))
	r.Put(one, m.templates(m.putTemplate))
	r.Post(one+"/preview", m.templates(m.previewTemplate))
}

// templates is a route on a tenant's templates.
func (m *Routes) templates(f work) http.HandlerFunc {
	return m.tenant(ScopeTemplates, http.StatusOK, func(ctx context.Context, r *http.Request, tenant uuid.UUID) (any, *httpserver.Problem, error) {
		answer, problem, err := f(ctx, r, tenant)
		var invalid *content.Invalid
		var unrendered *content.Error
		switch {
		case errors.Is(err, content.ErrNone):
			err = ErrNotFound
		case errors.Is(err, content.ErrTooMany):
			return nil, unprocessable("too_many_templates", "", fmt.Sprintf("At most %d.", content.MaxTemplates)), nil
		case errors.As(err, &invalid):
			return nil, unprocessable(invalid.Reason, "/"+invalid.Part, invalid.Detail), nil
		case errors.As(err, &unrendered):
			return nil, cannotRender(unrendered), nil
		}
		return answer, problem, err
	})
}

// cannotRender tells who writes a template why a message of it would fail.
func cannotRender(e *content.Error) *httpserver.Problem {
	detail := "The template cannot be filled in with these; a message would fail with this reason."
	switch {
	case e.Output != "":
		detail = fmt.Sprintf("There is nothing for %s; a message would fail with this reason.", e.Output)
	case e.Reason == content.ReasonTooLarge:
		detail = "The template writes, keeps or does more than one message may; a message would fail with this reason."
	}
	return unprocessable(e.Reason, "/variables", detail)
}

func unprocessable(code, pointer, detail string) *httpserver.Problem {
	return &httpserver.Problem{Status: http.StatusUnprocessableEntity, Code: code, Title: "This is not taken", Pointer: pointer, Detail: detail}
}

// templateID gives the id of the path; ok is false for what no template has.
func templateID(r *http.Request) (string, bool) {
	id := chi.URLParam(r, "template_id")
	if r.URL.RawPath != "" { // then the router has left it as it was written
		var err error
		if id, err = url.PathUnescape(id); err != nil {
			return "", false
		}
	}
	return id, content.ValidID(id)
}

func (m *Routes) getTemplate(ctx context.Context, r *http.Request, tenant uuid.UUID) (any, *httpserver.Problem, error) {
	version, problem := versionParameter(r)
	if problem != nil {
		return nil, problem, nil
	}
	id, ok := templateID(r)
	if !ok {
		return nil, nil, content.ErrNone
	}
	v, err := m.deps.Templates.Get(ctx, tenant, id, version)
	return v, nil, err
}

func versionParameter(r *http.Request) (int, *httpserver.Problem) {
	q, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return 0, badParameter("The query cannot be read.")
	}
	for name, values := range q {
		if name != "version" || len(values) != 1 {
			return 0, badParameter("Known is version, once.")
		}
	}
	if !q.Has("version") {
		return 0, nil
	}
	n, err := strconv.ParseInt(q.Get("version"), 10, 32)
	if err != nil || n < 1 {
		return 0, badParameter("version is 1 or more.")
	}
	return int(n), nil
}

func (m *Routes) putTemplate(ctx context.Context, r *http.Request, tenant uuid.UUID) (any, *httpserver.Problem, error) {
	id, ok := templateID(r)
	if !ok {
		return nil, unprocessable("invalid_template_id", "", fmt.Sprintf("A template_id is of letters, digits, dots, - and _, at most %d.", content.MaxID)), nil
	}
	body, problem := readObjectOf(r, maxTemplateBody)
	if problem != nil {
		return nil, problem, nil
	}
	var p content.Parts
	channel := "email"
	if problem := fields(body, "", map[string]any{"channel": &channel, "subject": &p.Subject, "html": &p.HTML, "text": &p.Text}); problem != nil {
		return nil, problem, nil
	}
	if problem := m.channel(channel); problem != nil {
		return nil, problem, nil
	}
	v, err := m.deps.Templates.Put(ctx, tenant, id, channel, p)
	return v, nil, err
}

// channel refuses a channel that the platform has not.
func (m *Routes) channel(name string) *httpserver.Problem {
	for _, c := range m.deps.Channels {
		if c == name {
			return nil
		}
	}
	return unprocessable("unknown_channel", "/channel", "Known are "+strings.Join(m.deps.Channels, ", ")+".")
}

// previewTemplate fills a version in with variables, as a message would be.
func (m *Routes) previewTemplate(ctx context.Context, r *http.Request, tenant uuid.UUID) (any, *httpserver.Problem, error) {
	body, problem := readObjectOf(r, maxTemplateBody)
	if problem != nil {
		return nil, problem, nil
	}
	var variables json.RawMessage
	version := 0
	if problem := fields(body, "", map[string]any{"variables": &variables, "version": &version}); problem != nil {
		return nil, problem, nil
	}
	if len(variables) > 0 && variables[0] != '{' {
		return nil, refuse(&intake.Error{Code: intake.InvalidField, Pointer: "/variables", Detail: "variables is an object."}), nil
	}
	if version < 0 || version > math.MaxInt32 {
		return nil, refuse(&intake.Error{Code: intake.InvalidField, Pointer: "/version", Detail: "A version is 1 or more; without it, or 0, it is the newest."}), nil
	}
	id, ok := templateID(r)
	if !ok {
		return nil, nil, content.ErrNone
	}
	v, err := m.deps.Templates.Get(ctx, tenant, id, version)
	if err != nil {
		return nil, nil, err
	}
	compiled, err := content.Compile(*v.Parts)
	if err != nil {
		return nil, nil, err
	}
	filled, err := compiled.Render(variables)
	return filled, nil, err
}
