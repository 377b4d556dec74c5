package manage

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/go-chi/chi/v5"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/softcrum/carril/ingestor/apikey"
	"github.com/softcrum/carril/internal/httpserver"
	"github.com/softcrum/carril/internal/identifier"
)

// Scopes of contacts.
const (
	ScopeContactsRead  = "core.contacts.read"
	ScopeContactsErase = "core.contacts.erase"
)

// Contact is a person, known or anonymous, as merges left it.
type Contact struct {
	ContactID   uuid.UUID       `json:"contact_id"`            // as it was asked for
	MergedInto  *uuid.UUID      `json:"merged_into,omitempty"` // whom it became; all that follows is theirs
	MergedFrom  []uuid.UUID     `json:"merged_from,omitempty"` // who became this contact
	Known       bool            `json:"known"`
	Identifiers []Identifier    `json:"identifiers"`
	Traits      json.RawMessage `json:"traits"`
	CreatedAt   time.Time       `json:"created_at"`
	UpdatedAt   time.Time       `json:"updated_at"`
	ErasedAt    *time.Time      `json:"erased_at,omitempty"`
	ErasureID   *uuid.UUID      `json:"erasure_id,omitempty"`
}

// Identifier is one that leads to a contact, in its normalised form.
type Identifier struct {
	Kind       string    `json:"kind"`
	Value      string    `json:"value"`
	AttachedAt time.Time `json:"attached_at"`
}

// person is a contact's root with everybody who was merged into it.
type person struct {
	asked, root uuid.UUID
	family      []uuid.UUID // root included
}

// maxMerges bounds a chain of merges, should they ever form a ring.
const maxMerges = 32

// findPerson resolves a contact. The error is ErrNotFound for another tenant's,
// too.
func findPerson(ctx context.Context, db Querier, tenant, id uuid.UUID) (p person, err error) {
	const up = `WITH RECURSIVE up AS (
    SELECT c.contact_id AS at, 0 AS depth FROM core.contacts c WHERE c.tenant_id = $1 AND c.contact_id = $2
    UNION
    SELECT m.into_contact, up.depth + 1 FROM up JOIN core.contact_merges m ON m.tenant_id = $1 AND m.from_contact = up.at AND m.undone_at IS NULL
    WHERE up.depth < $3
)
SELECT at FROM up ORDER BY depth DESC LIMIT 1`
	p.asked = id
	err = db.QueryRow(ctx, up, tenant, id, maxMerges).Scan(&p.root)
	if errors.Is(err, pgx.ErrNoRows) {
		return p, ErrNotFound
	}
	if err != nil {
		return p, fmt.Errorf("resolve a contact: %w", err)
	}
	const down = `WITH RECURSIVE who AS (
    SELECT $2::uuid AS contact_id
    UNION
    SELECT m.from_contact FROM who JOIN core.contact_merges m ON m.tenant_id = $1 AND m.into_contact = who.contact_id AND m.undone_at IS NULL
)
SELECT contact_id FROM who ORDER BY contact_id`
	rows, err := db.Query(ctx, down, tenant, p.root)
	if err != nil {
		return p, fmt.Errorf("read a contact's merges: %w", err)
	}
	if p.family, err = pgx.CollectRows(rows, pgx.RowTo[uuid.UUID]); err != nil {
		return p, fmt.Errorf("read a contact's merges: %w", err)
	}
	return p, nil
}

// FindContact reads a contact of a tenant. The error is ErrNotFound for another
// tenant's, too.
func FindContact(ctx context.Context, db Querier, tenant, id uuid.UUID) (*Contact, error) {
	p, err := findPerson(ctx, db, tenant, id)
	if err != nil {
		return nil, err
	}
	c := &Contact{ContactID: id, Identifiers: []Identifier{}}
	for _, other := range p.family {
		if other != p.root {
			c.MergedFrom = append(c.MergedFrom, other)
		}
	}
	if p.root != id {
		c.MergedInto, c.MergedFrom = &p.root, nil
	}
	const sql = `SELECT c.known, c.traits::text, c.created_at, c.updated_at, c.erased_at,
    (SELECT e.erasure_id FROM core.erasures e WHERE c.erased_at IS NOT NULL AND e.tenant_id = c.tenant_id AND c.contact_id = ANY(e.contacts) ORDER BY e.erased_at DESC LIMIT 1)
FROM core.contacts c WHERE c.tenant_id = $1 AND c.contact_id = $2`
	var traits string
	if err := db.QueryRow(ctx, sql, tenant, p.root).Scan(&c.Known, &traits, &c.CreatedAt, &c.UpdatedAt, &c.ErasedAt, &c.ErasureID); err != nil {
		return nil, fmt.Errorf("read a contact: %w", err)
	}
	c.Traits, c.CreatedAt, c.UpdatedAt = json.RawMessage(traits), c.CreatedAt.UTC(), c.UpdatedAt.UTC()
	if c.ErasedAt != nil {
		c.ErasedAt = new(c.ErasedAt.UTC())
	}
	const ids = `SELECT kind, value, created_at FROM core.contact_identifiers WHERE tenant_id = $1 AND contact_id = $2 ORDER BY kind, created_at, value`
	rows, err := db.Query(ctx, ids, tenant, p.root)
	if err != nil {
		return nil, fmt.Errorf("read a contact's identifiers: %w", err)
	}
	c.Identifiers, err = pgx.AppendRows(c.Identifiers, rows, func(row pgx.CollectableRow) (i Identifier, err error) {
		err = row.Scan(&i.Kind, &i.Value, &i.AttachedAt)
		i.AttachedAt = i.AttachedAt.UTC()
		return i, err
	})
	if err != nil {
		return nil, fmt.Errorf("read a contact's identifiers: %w", err)
	}
	return c, nil
}

func (m *Routes) mountContacts(r chi.Router) {
	const one = "/v1/core/contacts/{contact_id}"
	r.Get("/v1/core/contacts", m.tenant(ScopeContactsRead, http.StatusOK, m.searchContacts))
	r.Get(one, m.contact(ScopeContactsRead, http.StatusOK, func(ctx context.Context, _ *http.Request, tenant, id uuid.UUID) (any, *httpserver.Problem, error) {
		c, err := FindContact(ctx, m.deps.DB, tenant, id)
		return c, nil, err
	}))
	r.Get(one+"/timeline", m.timeline)
	r.Get(one+"/points", m.contact(ScopeContactsRead, http.StatusOK, m.points))
	if m.deps.Erasures == nil {
		return
	}
	r.Delete(one, m.contact(ScopeContactsErase, http.StatusAccepted, m.eraseContact))
	r.Get("/v1/core/erasures/{erasure_id}", m.tenant(ScopeContactsErase, http.StatusOK, m.erasure))
}

// contact is a route on one contact of a tenant; an id that is none is not there.
func (m *Routes) contact(scope string, success int, f func(ctx context.Context, r *http.Request, tenant, id uuid.UUID) (any, *httpserver.Problem, error)) http.HandlerFunc {
	return m.tenant(scope, success, func(ctx context.Context, r *http.Request, tenant uuid.UUID) (any, *httpserver.Problem, error) {
		id, ok := parseID(chi.URLParam(r, "contact_id"))
		if !ok {
			return nil, nil, ErrNotFound
		}
		return f(ctx, r, tenant, id)
	})
}

// searchContacts answers GET /v1/core/contacts with the contact of an identifier,
// or none.
func (m *Routes) searchContacts(ctx context.Context, r *http.Request, tenant uuid.UUID) (any, *httpserver.Problem, error) {
	kind, value, problem := parseIdentifier(r)
	if problem != nil {
		return nil, problem, nil
	}
	found := []*Contact{}
	var id uuid.UUID
	const sql = `SELECT contact_id FROM core.contact_identifiers WHERE tenant_id = $1 AND kind = $2 AND value = $3`
	err := m.deps.DB.QueryRow(ctx, sql, tenant, kind, value).Scan(&id)
	if errors.Is(err, pgx.ErrNoRows) {
		return map[string]any{"contacts": found}, nil, nil
	}
	if err != nil {
		return nil, nil, fmt.Errorf("find a contact: %w", err)
	}
	c, err := FindContact(ctx, m.deps.DB, tenant, id)
	return map[string]any{"contacts": append(found, c)}, nil, err
}

// parseIdentifier reads the one identifier that a search names, in its normal
// form.
func parseIdentifier(r *http.Request) (kind, value string, problem *httpserver.Problem) {
	const want = "One of external_id, email, phone and anonymous_id, or kind and value; once. A + in a phone number is written %2B."
	known := []string{identifier.ExternalID, identifier.Email, identifier.Phone, identifier.Anonymous}
	v, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return "", "", badParameter("The query cannot be read.")
	}
	for name, values := range v {
		if len(values) != 1 || !slices.Contains(known, name) && name != "kind" && name != "value" {
			return "", "", badParameter(want)
		}
	}
	switch {
	case len(v) == 2 && v.Has("kind") && v.Has("value"):
		kind, value = v.Get("kind"), v.Get("value")
	case len(v) == 1 && !v.Has("kind") && !v.Has("value"):
		for kind = range v {
			value = v.Get(kind)
		}
	default:
		return "", "", badParameter(want)
	}
	if !utf8.ValidString(kind) || strings.ContainsRune(kind, 0) || kind == "" || len(kind) > 128 {
		return "", "", badParameter(want)
	}
	if value, err = identifier.Normalize(kind, value); err != nil {
		detail := kind + ": " + err.Error() + "."
		if strings.Contains(r.URL.RawQuery, "+") { // read as a space
			detail += " A + is written %2B."
		}
		return "", "", &httpserver.Problem{Status: http.StatusBadRequest, Code: "invalid_identifier", Title: "Nobody can have this identifier", Detail: detail}
	}
	return kind, value, nil
}

// Points are a person's, over all contacts that were merged into one.
type Points struct {
	ContactID  uuid.UUID     `json:"contact_id"`
	Balance    int64         `json:"balance"`
	Entries    []PointsEntry `json:"entries"` // newest first
	NextCursor string        `json:"next_cursor,omitempty"`
}

// PointsEntry is what a rule gave for an event.
type PointsEntry struct {
	EventID       uuid.UUID `json:"event_id"`
	RuleID        uuid.UUID `json:"rule_id"`
	ContactID     uuid.UUID `json:"contact_id"` // as it was then
	Points        int64     `json:"points"`
	CorrelationID string    `json:"correlation_id"`
	OccurredAt    time.Time `json:"occurred_at"`
	EnteredAt     time.Time `json:"entered_at"`

	place uuid.UUID // orders the entries of one instant
}

// points answers GET /v1/core/contacts/{contact_id}/points. Each contact keeps its
// own balance, so that the sum over a person's contacts counts nothing twice, and
// an undone merge parts it again.
func (m *Routes) points(ctx context.Context, r *http.Request, tenant, id uuid.UUID) (any, *httpserver.Problem, error) {
	q, problem := parsePage(r, "points")
	if problem != nil {
		return nil, problem, nil
	}
	s, of := signer{m.deps.CursorKey}, "points\x00"+tenant.String()+"\x00"+id.String()
	behind := position{time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC), uuid.Max}
	if q.cursor != "" {
		at, ok := s.open(q.cursor, of)
		if !ok {
			return nil, badCursor(), nil
		}
		behind = at
	}
	p, err := findPerson(ctx, m.deps.DB, tenant, id)
	if err != nil {
		return nil, nil, err
	}
	out := &Points{ContactID: id}
	const sum = `SELECT coalesce(sum(balance), 0)::bigint FROM core.points_balances WHERE tenant_id = $1 AND contact_id = ANY($2)`
	if err := m.deps.DB.QueryRow(ctx, sum, tenant, p.family).Scan(&out.Balance); err != nil {
		return nil, nil, fmt.Errorf("read a balance: %w", err)
	}
	if out.Entries, err = listPoints(ctx, m.deps.DB, tenant, p.family, behind, q.limit+1); err != nil {
		return nil, nil, err
	}
	if len(out.Entries) > q.limit {
		out.Entries = out.Entries[:q.limit]
		last := out.Entries[q.limit-1]
		out.NextCursor = s.sign(position{last.EnteredAt, last.place}, of)
	}
	return out, nil, nil
}

func listPoints(ctx context.Context, db Querier, tenant uuid.UUID, family []uuid.UUID, behind position, limit int) ([]PointsEntry, error) {
	const sql = `SELECT event_id, rule_id, contact_id, points, correlation_id, occurred_at, entered_at, place FROM (
    SELECT l.*, md5(l.event_id::text || l.rule_id::text)::uuid AS place FROM core.points_ledger l
    WHERE l.tenant_id = $1 AND l.contact_id = ANY($2) AND l.entered_at <= $3 AND l.points <> 0) l
WHERE (entered_at, place) < ($3, $4) ORDER BY entered_at DESC, place DESC LIMIT $5`
	rows, err := db.Query(ctx, sql, tenant, family, behind.at, behind.id, limit)
	if err != nil {
		return nil, fmt.Errorf("list points: %w", err)
	}
	page, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (e PointsEntry, err error) {
		err = row.Scan(&e.EventID, &e.RuleID, &e.ContactID, &e.Points, &e.CorrelationID, &e.OccurredAt, &e.EnteredAt, &e.place)
		e.OccurredAt, e.EnteredAt = e.OccurredAt.UTC(), e.EnteredAt.UTC()
		return e, err
	})
	if err != nil {
		return nil, fmt.Errorf("list points: %w", err)
	}
	return page, nil
}

// Moment is one thing that happened to a person: an event, or a message to them.
type Moment struct {
	Kind  string    `json:"kind"` // event or send
	At    time.Time `json:"at"`
	Event *Event    `json:"event,omitempty"`
	Send  *Send     `json:"send,omitempty"`
}

func (m *Moment) id() uuid.UUID {
	if m.Event != nil {
		return m.Event.EventID
	}
	return m.Send.SendID
}

// timeline answers GET /v1/core/contacts/{contact_id}/timeline?from&to.
func (m *Routes) timeline(w http.ResponseWriter, r *http.Request) {
	p, problem := apikey.AuthorizeTenant(m.deps.Keys, r, ScopeContactsRead)
	if problem != nil {
		problem.Write(w, r)
		return
	}
	id, ok := parseID(chi.URLParam(r, "contact_id"))
	if !ok {
		httpserver.NotFound(w, r)
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), readTimeout)
	defer cancel()
	who, err := findPerson(ctx, m.deps.DB, p.TenantID, id)
	if err != nil {
		m.reply(w, r, nil, err)
		return
	}
	serve(m, moments(who))(w, r)
}

// moments is a person's list of what happened.
func moments(who person) listing[*Moment] {
	return listing[*Moment]{name: "timeline", of: who.asked.String(), scope: ScopeContactsRead,
		at: func(m *Moment) position { return position{m.At.UTC(), m.id()} },
		read: func(ctx context.Context, db Querier, tenant uuid.UUID, q *listQuery, behind position) ([]*Moment, error) {
			q.contact = &who.root
			events, err := listEvents(ctx, db, tenant, q, behind)
			if err != nil {
				return nil, err
			}
			sends, err := listSends(ctx, db, tenant, q, behind)
			if err != nil {
				return nil, err
			}
			page := make([]*Moment, 0, len(events)+len(sends))
			for _, e := range events {
				page = append(page, &Moment{Kind: "event", At: e.OccurredAt.UTC(), Event: e})
			}
			for _, s := range sends {
				page = append(page, &Moment{Kind: "send", At: s.RequestedAt, Send: s})
			}
			slices.SortFunc(page, func(a, b *Moment) int {
				if c := b.At.Compare(a.At); c != 0 {
					return c
				}
				x, y := a.id(), b.id()
				return slices.Compare(y[:], x[:])
			})
			return page[:min(len(page), q.limit+1)], nil
		}}
}
