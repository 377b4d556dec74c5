package manage

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/google/uuid"

	"github.com/softcrum/carril/ingestor/apikey"
	"github.com/softcrum/carril/internal/httpserver"
)

// Scopes of the management reads.
const (
	ScopeSendsRead  = "messaging.sends.read"
	ScopeEventsRead = "core.events.read"
	ScopeQueuesRead = "messaging.queues.read" // operators
)

// QueueHealth gives the health of both rails of every channel as JSON; it says
// what it cannot see instead of failing.
type QueueHealth func(ctx context.Context) any

// Deps of the routes.
type Deps struct {
	Keys apikey.Verify
	DB   Querier
	// CursorKey signs the cursors of lists, the same in every replica.
	CursorKey []byte
	Queues    QueueHealth // nil: this process knows of no rails, the route is absent
	Taxonomy  Taxonomy    // nil: the routes are absent
	// SchemasChanged puts a tenant's changed schemas in force in this process; nil:
	// they come by themselves.
	SchemasChanged func(ctx context.Context, tenant uuid.UUID) error
	Endpoints      Endpoints   // of webhooks; nil: the routes are absent
	Rules          Rules       // nil: the routes are absent
	Templates      Templates   // nil: the routes are absent
	Permissions    Permissions // nil: the routes are absent
	Blasts         Blasts      // nil: the routes are absent
	Channels       []string    // that the platform has
	Erasures       Erasures    // nil: nobody can be erased here, the routes are absent
	Snapshots      Snapshots   // of the same database; nil: feed, counts and exports are absent
	Files          Files       // what exports are made of; nil: the routes of exports are absent
	Log            *slog.Logger
}

// Routes are the management reads.
type Routes struct{ deps Deps }

// New makes the routes; a nil Log discards.
func New(deps Deps) *Routes {
	if deps.Log == nil {
		deps.Log = slog.New(slog.DiscardHandler)
	}
	return &Routes{deps}
}

// Mount puts the routes on a router.
func (m *Routes) Mount(r chi.Router) {
	r.Get("/v1/messaging/trace", m.trace)
	r.Get("/v1/messaging/sends", serve(m, sends()))
	r.Get("/v1/messaging/sends/{id}", m.send)
	r.Get("/v1/core/events", serve(m, events()))
	r.Get("/v1/core/events/{event_id}", m.event)
	r.Get("/v1/core/warnings", serve(m, warnings()))
	r.Get("/v1/core/idempotency-conflicts", serve(m, conflicts()))
	m.mountContacts(r)
	if m.deps.Taxonomy != nil {
		m.mountTaxonomy(r)
	}
	if m.deps.Endpoints != nil {
		m.mountEndpoints(r)
	}
	if m.deps.Rules != nil {
		m.mountRules(r)
	}
	if m.deps.Templates != nil {
		m.mountTemplates(r)
	}
	if m.deps.Permissions != nil {
		m.mountPermissions(r)
	}
	if m.deps.Snapshots != nil {
		r.Get("/v1/core/events/feed", m.tenant(ScopeEventsRead, http.StatusOK, m.feed))
		r.Get("/v1/core/counts", m.tenant(ScopeEventsRead, http.StatusOK, m.counts))
		if m.deps.Files != nil {
			m.mountExports(r)
		}
	}
	if m.deps.Blasts != nil {
		m.mountBlasts(r)
	}
	if m.deps.Queues != nil {
		r.Get("/v1/messaging/queues/health", m.queues)
	}
}

// trace answers GET /v1/messaging/trace?origin_event_id= (FS-MSG-0003 AC7).
func (m *Routes) trace(w http.ResponseWriter, r *http.Request) {
	p, problem := apikey.Authorize(m.deps.Keys, r, ScopeSendsRead)
	if problem != nil {
		problem.Write(w, r)
		return
	}
	id, ok := parseID(r.URL.Query().Get("origin_event_id"))
	if !ok {
		badParameter("origin_event_id must be the event_id of a 202, or the origin_event_id of a send.").Write(w, r)
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), readTimeout)
	defer cancel()
	t, err := TraceEvent(ctx, m.deps.DB, p.TenantID, id)
	m.reply(w, r, t, err)
}

// readTimeout is how long a read may take.
const readTimeout = 10 * time.Second

// reply answers with what was read, or why it was not.
func (m *Routes) reply(w http.ResponseWriter, r *http.Request, v any, err error) {
	switch {
	case errors.Is(err, ErrNotFound):
		httpserver.NotFound(w, r)
	case err != nil:
		m.deps.Log.Warn("a read failed", "request_id", httpserver.RequestID(r.Context()), "error", err)
		(&httpserver.Problem{Status: http.StatusServiceUnavailable, Code: "store_unavailable", Title: "The database does not answer",
			Detail: "Ask again after the time that Retry-After says.", RetryAfter: 2}).Write(w, r)
	default:
		writeJSON(w, v)
	}
}

// queues answers GET /v1/messaging/queues/health (FS-MSG-0005 API).
func (m *Routes) queues(w http.ResponseWriter, r *http.Request) {
	p, problem := apikey.Authorize(m.deps.Keys, r, ScopeQueuesRead)
	if problem == nil && p.TenantID != uuid.Nil { // a tenant does not tune our limits, nor see others' queues
		problem = &httpserver.Problem{Status: http.StatusForbidden, Code: "operator_required", Title: "This is for the platform's operators"}
	}
	if problem != nil {
		problem.Write(w, r)
		return
	}
	writeJSON(w, m.deps.Queues(r.Context()))
}

func writeJSON(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(v) // the client has left
}
