package manage

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/go-chi/chi/v5"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/softcrum/carril/ingestor/apikey"
	"github.com/softcrum/carril/ingestor/intake"
	"github.com/softcrum/carril/internal/gates"
	"github.com/softcrum/carril/internal/httpserver"
	"github.com/softcrum/carril/internal/identifier"
	"github.com/softcrum/carril/internal/oneline"
)

// Scopes of what the gates go by.
const (
	ScopeConsents     = "messaging.consents.manage"
	ScopeSuppressions = "messaging.suppressions.manage"
	ScopeSenders      = "messaging.senders.manage"
)

// Permissions keeps consents, suppressions and senders; *gates.Store does it.
type Permissions interface {
	SetConsents(ctx context.Context, tenant uuid.UUID, said []gates.Said) ([]uuid.UUID, error)
	Consents(ctx context.Context, tenant, contact uuid.UUID) ([]gates.Consent, error)
	Suppress(ctx context.Context, tenant uuid.UUID, channel, address, reason string) (gates.Suppression, error)
	Lift(ctx context.Context, tenant uuid.UUID, channel, address, because, by string) error
	Senders(ctx context.Context, tenant uuid.UUID) ([]gates.Sender, error)
	PutSender(ctx context.Context, tenant uuid.UUID, channel, sender string, replyTo *string, domain string) (gates.Sender, error)
	ResumeSender(ctx context.Context, tenant uuid.UUID, channel string) (gates.Sender, error)
}

// maxConsents is how many consents one request takes, maxConsentBody its bytes.
const maxConsents, maxConsentBody = 500, 512 << 10

func (m *Routes) mountPermissions(r chi.Router) {
	r.Post("/v1/messaging/consents", m.tenant(ScopeConsents, http.StatusOK, m.setConsents))
	r.Get("/v1/messaging/consents", m.tenant(ScopeConsents, http.StatusOK, m.listConsents))
	r.Get("/v1/messaging/suppressions", serve(m, suppressions()))
	r.Post("/v1/messaging/suppressions", m.tenant(ScopeSuppressions, http.StatusOK, m.suppress))
	r.Post("/v1/messaging/suppressions/lift", m.caller(ScopeSuppressions, http.StatusNoContent, m.lift))
	r.Get("/v1/messaging/senders", m.tenant(ScopeSenders, http.StatusOK, func(ctx context.Context, _ *http.Request, tenant uuid.UUID) (any, *httpserver.Problem, error) {
		list, err := m.deps.Permissions.Senders(ctx, tenant)
		if list == nil {
			list = []gates.Sender{}
		}
		return map[string]any{"senders": list}, nil, err
	}))
	r.Put("/v1/messaging/senders/{channel}", m.tenant(ScopeSenders, http.StatusOK, m.putSender))
	r.Post("/v1/messaging/senders/{channel}/resume", m.tenant(ScopeSenders, http.StatusOK, func(ctx context.Context, r *http.Request, tenant uuid.UUID) (any, *httpserver.Problem, error) {
		s, err := m.deps.Permissions.ResumeSender(ctx, tenant, chi.URLParam(r, "channel"))
		return s, nil, absent(err)
	}))
}

// absent makes the gates' word for what is not there the API's.
func absent(err error) error {
	if errors.Is(err, gates.ErrNone) {
		return ErrNotFound
	}
	return err
}

// recorded is what became of one consent of a request.
type recorded struct {
	Status    string     `json:"status"` // recorded or unknown_contact
	ContactID *uuid.UUID `json:"contact_id,omitempty"`
}

func (m *Routes) setConsents(ctx context.Context, r *http.Request, tenant uuid.UUID) (any, *httpserver.Problem, error) {
	body, problem := readObjectOf(r, maxConsentBody)
	if problem != nil {
		return nil, problem, nil
	}
	var list []json.RawMessage
	if problem := fields(body, "", map[string]any{"consents": &list}); problem != nil {
		return nil, problem, nil
	}
	if len(list) == 0 || len(list) > maxConsents {
		return nil, refuse(&intake.Error{Code: intake.InvalidField, Pointer: "/consents", Detail: fmt.Sprintf("1 to %d consents.", maxConsents)}), nil
	}
	said := make([]gates.Said, len(list))
	for i, raw := range list {
		if said[i], problem = m.readConsent(raw, fmt.Sprintf("/consents/%d", i)); problem != nil {
			return nil, problem, nil
		}
	}
	found, err := m.deps.Permissions.SetConsents(ctx, tenant, said)
	results := make([]recorded, len(found))
	for i, id := range found {
		if results[i] = (recorded{"recorded", &id}); id == uuid.Nil {
			results[i] = recorded{Status: "unknown_contact"}
		}
	}
	return map[string]any{"results": results}, nil, err
}

func (m *Routes) readConsent(object []byte, at string) (s gates.Said, problem *httpserver.Problem) {
	var contact, external, address *string
	var granted *bool
	s.Channel, s.Purpose, s.Source = "email", "marketing", "api"
	problem = fields(object, at, map[string]any{"contact_id": &contact, "external_id": &external, "address": &address, "channel": &s.Channel,
		"purpose": &s.Purpose, "granted": &granted, "source": &s.Source})
	if problem != nil {
		return s, problem
	}
	if problem := m.channel(s.Channel); problem != nil {
		problem.Pointer = at + "/channel"
		return s, problem
	}
	wrong := func(field, detail string) (gates.Said, *httpserver.Problem) {
		return s, refuse(&intake.Error{Code: intake.InvalidField, Pointer: at + field, Detail: detail})
	}
	switch {
	case granted == nil:
		return wrong("/granted", "granted says true or false.")
	case s.Purpose != "marketing":
		return wrong("/purpose", "The one purpose that needs a consent is marketing.")
	case s.Source == "" || !oneline.Fits(s.Source, 200):
		return wrong("/source", "source says in one line of at most 200 bytes where the consent was given.")
	}
	s.Granted = *granted
	switch {
	case contact != nil && external == nil && address == nil:
		id, ok := parseID(*contact)
		if !ok {
			return wrong("/contact_id", "contact_id is a UUID.")
		}
		s.ContactID = id
	case external != nil && contact == nil && address == nil:
		var err error
		s.Kind = identifier.ExternalID
		if s.Value, err = identifier.Normalize(s.Kind, *external); err != nil {
			return wrong("/external_id", "external_id is "+err.Error()+".")
		}
	case address != nil && contact == nil && external == nil:
		var err error
		if s.Kind = identifier.OfChannel(s.Channel); s.Kind == "" {
			return wrong("/address", "A contact of this channel is not named by an address.")
		}
		if s.Value, err = identifier.Normalize(s.Kind, *address); err != nil {
			return wrong("/address", "This is no address of the channel.")
		}
	default:
		return wrong("", "A contact is named by one of contact_id, external_id and address.")
	}
	return s, nil
}

func (m *Routes) listConsents(ctx context.Context, r *http.Request, tenant uuid.UUID) (any, *httpserver.Problem, error) {
	q := r.URL.Query()
	id, ok := parseID(q.Get("contact_id"))
	if !ok || len(q) != 1 {
		return nil, badParameter("Known is contact_id, a UUID, which is required."), nil
	}
	list, err := m.deps.Permissions.Consents(ctx, tenant, id)
	if list == nil {
		list = []gates.Consent{}
	}
	return map[string]any{"consents": list}, nil, err
}

// readAddress reads a body with a channel and an address, and more.
func (m *Routes) readAddress(r *http.Request, more map[string]any) (channel, address string, problem *httpserver.Problem) {
	body, problem := readObject(r)
	if problem != nil {
		return "", "", problem
	}
	channel = "email"
	more["channel"], more["address"] = &channel, &address
	if problem := fields(body, "", more); problem != nil {
		return "", "", problem
	}
	if problem := m.channel(channel); problem != nil {
		return "", "", problem
	}
	normal, ok := gates.Normalize(channel, strings.TrimSpace(address))
	if !ok {
		return "", "", refuse(&intake.Error{Code: intake.InvalidField, Pointer: "/address", Detail: "This is no address of the channel."})
	}
	return channel, normal, nil
}

func (m *Routes) suppress(ctx context.Context, r *http.Request, tenant uuid.UUID) (any, *httpserver.Problem, error) {
	reason := "manual"
	channel, address, problem := m.readAddress(r, map[string]any{"reason": &reason})
	if problem != nil {
		return nil, problem, nil
	}
	if reason != "manual" && reason != "unsubscribe" {
		return nil, refuse(&intake.Error{Code: intake.InvalidField, Pointer: "/reason", Detail: "manual, which stops everything, or unsubscribe, which stops marketing."}), nil
	}
	s, err := m.deps.Permissions.Suppress(ctx, tenant, channel, address, reason)
	return s, nil, err
}

func (m *Routes) lift(ctx context.Context, r *http.Request, p *apikey.Principal) (any, *httpserver.Problem, error) {
	because := ""
	channel, address, problem := m.readAddress(r, map[string]any{"because": &because})
	if problem != nil {
		return nil, problem, nil
	}
	if !slices.Contains(gates.Because(), because) {
		return nil, refuse(&intake.Error{Code: intake.InvalidField, Pointer: "/because", Detail: "One of " + strings.Join(gates.Because(), ", ") + "."}), nil
	}
	return nil, nil, absent(m.deps.Permissions.Lift(ctx, p.TenantID, channel, address, because, p.KeyID))
}

// suppressed is a suppression with its place in the list.
type suppressed struct {
	gates.Suppression
	id uuid.UUID
}

// suppressions is the list GET /v1/messaging/suppressions?from&to.
func suppressions() listing[*suppressed] {
	return listing[*suppressed]{name: "suppressions", scope: ScopeSuppressions, filters: []string{"channel", "reason"}, read: listSuppressions,
		choices: map[string][]string{"reason": {"hard_bounce", "complaint", "unsubscribe", "manual"}},
		at:      func(s *suppressed) position { return position{s.CreatedAt, s.id} }}
}

func listSuppressions(ctx context.Context, db Querier, tenant uuid.UUID, q *listQuery, behind position) ([]*suppressed, error) {
	const sql = `SELECT channel, address, reason, send_id, created_at, md5(channel || ' ' || address)::uuid AS id FROM messaging.suppressions
WHERE tenant_id = $1 AND created_at >= $2 AND created_at < $3 AND (created_at, md5(channel || ' ' || address)::uuid) < ($4, $5)
    AND ($6 = '' OR channel = $6) AND ($7 = '' OR reason = $7)
ORDER BY created_at DESC, id DESC LIMIT $8`
	rows, err := db.Query(ctx, sql, tenant, q.from, q.before(behind), behind.at, behind.id, q.get("channel"), q.get("reason"), q.limit+1)
	if err != nil {
		return nil, fmt.Errorf("list suppressions: %w", err)
	}
	page, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (*suppressed, error) {
		var s suppressed
		err := row.Scan(&s.Channel, &s.Address, &s.Reason, &s.SendID, &s.CreatedAt, &s.id)
		s.CreatedAt = s.CreatedAt.UTC()
		return &s, err
	})
	if err != nil {
		return nil, fmt.Errorf("list suppressions: %w", err)
	}
	return page, nil
}

func (m *Routes) putSender(ctx context.Context, r *http.Request, tenant uuid.UUID) (any, *httpserver.Problem, error) {
	channel := chi.URLParam(r, "channel")
	if problem := m.channel(channel); problem != nil {
		problem.Pointer = ""
		return nil, problem, nil
	}
	body, problem := readObject(r)
	if problem != nil {
		return nil, problem, nil
	}
	var sender string
	var replyTo *string
	if problem := fields(body, "", map[string]any{"sender": &sender, "reply_to": &replyTo}); problem != nil {
		return nil, problem, nil
	}
	if channel != "email" {
		return nil, unprocessable("sender_is_the_platforms", "", "Senders of this channel are numbers of the platform's."), nil
	}
	domain, err := gates.CheckSender(sender, replyTo)
	if err != nil {
		return nil, unprocessable("invalid_sender", "/sender", err.Error()), nil
	}
	s, err := m.deps.Permissions.PutSender(ctx, tenant, channel, sender, replyTo, domain)
	return s, nil, err
}
