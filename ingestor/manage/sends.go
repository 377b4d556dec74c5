package manage

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/softcrum/carril/ingestor/apikey"
	"github.com/softcrum/carril/internal/httpserver"
	"github.com/softcrum/carril/internal/ids"
	"github.com/softcrum/carril/internal/sendstatus"
)

// Send is one message to one recipient (FS-MSG-0003). Its status is derived
// from the history at each read. What it said is not shown: it may be a code.
type Send struct {
	SendID          uuid.UUID  `json:"send_id"`
	RequestID       uuid.UUID  `json:"request_id"`
	RecipientIndex  int        `json:"recipient_index"`
	ContactID       uuid.UUID  `json:"contact_id"` // as it was then; merges are not followed
	Channel         string     `json:"channel"`
	Category        string     `json:"category"`
	Status          string     `json:"status"`
	Address         *string    `json:"address,omitempty"` // none once the person is erased
	TemplateID      *string    `json:"template_id,omitempty"`
	TemplateVersion *int       `json:"template_version,omitempty"`
	CorrelationID   string     `json:"correlation_id"`
	OriginEventID   uuid.UUID  `json:"origin_event_id"`
	RuleID          *uuid.UUID `json:"rule_id,omitempty"`
	BlastID         *uuid.UUID `json:"blast_id,omitempty"`
	RequestedAt     time.Time  `json:"requested_at"`
	History         []Change   `json:"history,omitempty"` // in the order of arrival; of a single send
}

// Change is a status as it arrived.
type Change struct {
	Status     string    `json:"status"`
	OccurredAt time.Time `json:"occurred_at"` // by the clock of whoever reported it
	RecordedAt time.Time `json:"recorded_at"` // by ours
	Provider   string    `json:"provider"`
	Reason     string    `json:"reason,omitempty"`
}

// queued is the status of a send whose history says nothing yet.
const queued = "queued"

const sendColumns = `s.send_id, s.request_id, s.recipient_index, s.contact_id, s.channel, s.category, s.address, s.content ->> 'template_id',
    (s.content ->> 'template_version')::int, s.correlation_id, s.origin_event_id, s.rule_id, s.blast_id, s.requested_at`

func (s *Send) scan(row pgx.Row) error {
	err := row.Scan(&s.SendID, &s.RequestID, &s.RecipientIndex, &s.ContactID, &s.Channel, &s.Category, &s.Address, &s.TemplateID,
		&s.TemplateVersion, &s.CorrelationID, &s.OriginEventID, &s.RuleID, &s.BlastID, &s.RequestedAt)
	s.RequestedAt, s.Status = s.RequestedAt.UTC(), queued
	return err
}

// FindSend reads a send with its history. tenant uuid.Nil is an operator, who
// may see any. The error is ErrNotFound for another tenant's, too.
func FindSend(ctx context.Context, db Querier, tenant, id uuid.UUID) (*Send, error) {
	const sql = `SELECT ` + sendColumns + ` FROM messaging.sends s WHERE s.requested_at = $1 AND s.send_id = $2 AND ($3 OR s.tenant_id = $4)`
	var s Send
	err := s.scan(db.QueryRow(ctx, sql, ids.Time(id), id, tenant == uuid.Nil, tenant))
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, ErrNotFound
	}
	if err != nil {
		return nil, fmt.Errorf("read a send: %w", err)
	}
	if s.History, err = history(ctx, db, id); err != nil {
		return nil, err
	}
	err = derive(ctx, db, []*Send{&s})
	return &s, err
}

func history(ctx context.Context, db Querier, id uuid.UUID) ([]Change, error) {
	const sql = `SELECT status, occurred_at, recorded_at, provider, coalesce(reason, '') FROM messaging.send_status_history
WHERE requested_at = $1 AND send_id = $2 ORDER BY arrival`
	rows, err := db.Query(ctx, sql, ids.Time(id), id)
	if err != nil {
		return nil, fmt.Errorf("read a send's history: %w", err)
	}
	changes, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (Change, error) {
		var c Change
		err := row.Scan(&c.Status, &c.OccurredAt, &c.RecordedAt, &c.Provider, &c.Reason)
		c.OccurredAt, c.RecordedAt = c.OccurredAt.UTC(), c.RecordedAt.UTC()
		return c, err
	})
	if err != nil {
		return nil, fmt.Errorf("read a send's history: %w", err)
	}
	return changes, nil
}

// derive gives sends their current status.
func derive(ctx context.Context, db Querier, sends []*Send) error {
	refs := make([]sendstatus.Ref, len(sends))
	for i, s := range sends {
		refs[i] = sendstatus.Ref{SendID: s.SendID, RequestedAt: s.RequestedAt}
	}
	now, err := sendstatus.Of(ctx, db, refs)
	if err != nil {
		return err
	}
	for _, s := range sends {
		if c, ok := now[s.SendID]; ok {
			s.Status = c.Status
		}
	}
	return nil
}

// merged gives a contact and all that were merged into it.
const merged = `WITH RECURSIVE who AS (
    SELECT $5::uuid AS contact_id
    UNION
    SELECT m.from_contact FROM who JOIN core.contact_merges m ON m.tenant_id = $3 AND m.into_contact = who.contact_id AND m.undone_at IS NULL
)
`

// listSends gives a page. A contact's sends are also those of the contacts that
// were merged into it.
func listSends(ctx context.Context, db Querier, tenant uuid.UUID, q *listQuery, behind position) ([]*Send, error) {
	const sql = merged + `SELECT ` + sendColumns + ` FROM messaging.sends s
WHERE s.requested_at >= $1 AND s.requested_at < $2 AND s.tenant_id = $3 AND ($4 = '' OR s.channel = $4)
    AND ($5::uuid IS NULL OR s.contact_id IN (SELECT contact_id FROM who))
    AND (s.requested_at, s.send_id) < ($6, $7)
ORDER BY s.requested_at DESC, s.send_id DESC LIMIT $8`
	rows, err := db.Query(ctx, sql, q.from, q.before(behind), tenant, q.get("channel"), q.contact, behind.at, behind.id, q.limit+1)
	if err != nil {
		return nil, fmt.Errorf("list sends: %w", err)
	}
	page, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (*Send, error) {
		var s Send
		return &s, s.scan(row)
	})
	if err != nil {
		return nil, fmt.Errorf("list sends: %w", err)
	}
	return page, derive(ctx, db, page)
}

// sends is the list GET /v1/messaging/sends?from&to.
func sends() listing[*Send] {
	return listing[*Send]{name: "sends", scope: ScopeSendsRead, filters: []string{"contact_id", "channel"}, read: listSends,
		at: func(s *Send) position { return position{s.RequestedAt, s.SendID} }}
}

// send answers GET /v1/messaging/sends/{id}.
func (m *Routes) send(w http.ResponseWriter, r *http.Request) {
	p, problem := apikey.Authorize(m.deps.Keys, r, ScopeSendsRead)
	if problem != nil {
		problem.Write(w, r)
		return
	}
	id, ok := parseID(chi.URLParam(r, "id"))
	if !ok {
		httpserver.NotFound(w, r)
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), readTimeout)
	defer cancel()
	s, err := FindSend(ctx, m.deps.DB, p.TenantID, id)
	m.reply(w, r, s, err)
}
