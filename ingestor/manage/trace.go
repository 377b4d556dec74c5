// Package manage is the management side of the front door: what operators and
// tenants read about their contacts, events, sends and queues, the schemas that
// tenants install, and who is to be erased. It reads PostgreSQL and writes nothing
// but those schemas; a foreign id is answered like an absent one.
package manage

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/softcrum/carril/internal/ids"
	"github.com/softcrum/carril/internal/sendstatus"
)

// ErrNotFound says that there is nothing under an id, or nothing of this tenant.
var ErrNotFound = errors.New("not found")

// Querier is a pool, a connection or a transaction.
type Querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// Trace is everything that an event caused, in the order of time
// (FS-MSG-0003 AC7).
type Trace struct {
	EventID       uuid.UUID `json:"event_id"`
	TenantID      uuid.UUID `json:"tenant_id"`
	EventName     string    `json:"event_name,omitempty"`
	CorrelationID string    `json:"correlation_id"`
	Steps         []Step    `json:"steps"`
	Sends         []Outcome `json:"sends,omitempty"`
}

// Outcome is where a send has come to: the status that its history gives.
type Outcome struct {
	SendID uuid.UUID `json:"send_id"`
	Status string    `json:"status"`
}

// Step is one thing that happened. Step names are accepted, appended, points,
// requested, blocked, the statuses of a send (queued, sent, delivered, …),
// webhook_delivered, webhook_failed and dead_letter.
type Step struct {
	Step      string     `json:"step"`
	At        time.Time  `json:"at"`
	ContactID *uuid.UUID `json:"contact_id,omitempty"`
	RuleID    *uuid.UUID `json:"rule_id,omitempty"`
	RequestID *uuid.UUID `json:"request_id,omitempty"`
	SendID    *uuid.UUID `json:"send_id,omitempty"`
	Channel   string     `json:"channel,omitempty"`
	Points    *int64     `json:"points,omitempty"`
	Reason    string     `json:"reason,omitempty"`
	Endpoint  *uuid.UUID `json:"endpoint_id,omitempty"`
	EventType string     `json:"event_type,omitempty"`
	Attempts  int        `json:"attempts,omitempty"`
}

// Has says whether a step has happened.
func (t *Trace) Has(step string) bool {
	return slices.ContainsFunc(t.Steps, func(s Step) bool { return s.Step == step })
}

// tracer collects one trace. Every read of a partitioned table carries its
// range: the event's own time, or from when it was received.
type tracer struct {
	db       Querier
	t        Trace
	occurred time.Time
	received time.Time
	sends    []uuid.UUID
	changes  []uuid.UUID // status changes, which webhooks carry as their event
}

// TraceEvent follows an event. tenant uuid.Nil is an operator, who may see any.
func TraceEvent(ctx context.Context, db Querier, tenant, event uuid.UUID) (*Trace, error) {
	tr, err := follow(ctx, db, tenant, event)
	if err != nil {
		return nil, err
	}
	return &tr.t, nil
}

func follow(ctx context.Context, db Querier, tenant, event uuid.UUID) (*tracer, error) {
	tr := &tracer{db: db, t: Trace{EventID: event}}
	err := tr.accepted(ctx, tenant)
	if errors.Is(err, ErrNotFound) {
		return tr, tr.buried(ctx, tenant)
	}
	for _, step := range []func(context.Context) error{tr.appended, tr.points, tr.decided, tr.statuses, tr.outcomes, tr.webhooks, tr.deadLetters} {
		if err != nil {
			return nil, err
		}
		err = step(ctx)
	}
	if err != nil {
		return nil, err
	}
	slices.SortStableFunc(tr.t.Steps, func(a, b Step) int { return cmp.Compare(a.At.UnixMicro(), b.At.UnixMicro()) })
	return tr, nil
}

func (tr *tracer) add(s Step) { s.At = s.At.UTC(); tr.t.Steps = append(tr.t.Steps, s) }

func (tr *tracer) accepted(ctx context.Context, tenant uuid.UUID) error {
	const sql = `SELECT tenant_id, occurred_at, received_at FROM core.event_keys WHERE event_id = $1 AND ($2 OR tenant_id = $3)`
	err := tr.db.QueryRow(ctx, sql, tr.t.EventID, tenant == uuid.Nil, tenant).Scan(&tr.t.TenantID, &tr.occurred, &tr.received)
	if errors.Is(err, pgx.ErrNoRows) {
		return ErrNotFound
	}
	if err != nil {
		return fmt.Errorf("trace an event's key: %w", err)
	}
	tr.add(Step{Step: "accepted", At: tr.received})
	return nil
}

func (tr *tracer) appended(ctx context.Context) error {
	const sql = `SELECT e.event_name, e.correlation_id, e.contact_id, coalesce(s.written_at, e.received_at)
FROM ` + anEvent + ` e
LEFT JOIN LATERAL (SELECT written_at FROM core.event_spans s WHERE s.lane = e.lane AND s.first_seq <= e.lane_seq ORDER BY s.first_seq DESC LIMIT 1) s ON true`
	var contact uuid.UUID
	var at time.Time
	err := tr.db.QueryRow(ctx, sql, tr.occurred, tr.t.TenantID, tr.t.EventID).Scan(&tr.t.EventName, &tr.t.CorrelationID, &contact, &at)
	if errors.Is(err, pgx.ErrNoRows) { // its partition is gone; the fence still knows the key
		return nil
	}
	if err != nil {
		return fmt.Errorf("trace an event's row: %w", err)
	}
	tr.add(Step{Step: "appended", At: at, ContactID: &contact})
	return nil
}

func (tr *tracer) points(ctx context.Context) error {
	const sql = `SELECT rule_id, contact_id, points, outcome, entered_at FROM core.points_ledger
WHERE tenant_id = $1 AND event_id = $2 AND (points <> 0 OR outcome = 'capped')`
	rows, err := tr.db.Query(ctx, sql, tr.t.TenantID, tr.t.EventID)
	return each(rows, err, "points", func() error {
		var s Step
		var outcome string
		if err := rows.Scan(&s.RuleID, &s.ContactID, &s.Points, &outcome, &s.At); err != nil {
			return err
		}
		if s.Step = "points"; outcome == "capped" {
			s.Step, s.Points = outcome, nil
		}
		tr.add(s)
		return nil
	})
}

func (tr *tracer) decided(ctx context.Context) error {
	const sql = `SELECT request_id, rule_id, contact_id, channel, outcome, coalesce(reason, ''), send_id, received_at, decided_at
FROM messaging.decisions WHERE received_at >= $1::timestamptz - interval '1 hour' AND tenant_id = $2 AND origin_event_id = $3`
	rows, err := tr.db.Query(ctx, sql, tr.received, tr.t.TenantID, tr.t.EventID)
	return each(rows, err, "decisions", func() error {
		var s Step
		var outcome string
		var requested time.Time
		if err := rows.Scan(&s.RequestID, &s.RuleID, &s.ContactID, &s.Channel, &outcome, &s.Reason, &s.SendID, &requested, &s.At); err != nil {
			return err
		}
		tr.add(Step{Step: "requested", At: requested, RequestID: s.RequestID, RuleID: s.RuleID, Channel: s.Channel})
		if outcome == "blocked" {
			s.Step = "blocked"
			tr.add(s)
		} else {
			tr.sends = append(tr.sends, *s.SendID)
		}
		return nil
	})
}

func (tr *tracer) statuses(ctx context.Context) error {
	if len(tr.sends) == 0 {
		return nil
	}
	times := make([]time.Time, len(tr.sends))
	for i, id := range tr.sends {
		times[i] = ids.Time(id)
	}
	const sql = `SELECT h.send_id, h.status, h.provider, h.provider_event_id, h.recorded_at, coalesce(h.reason, '')
FROM messaging.send_status_history h
WHERE h.requested_at = ANY($1::timestamptz[]) AND h.send_id = ANY($2::uuid[]) ORDER BY h.arrival`
	rows, err := tr.db.Query(ctx, sql, times, tr.sends)
	return each(rows, err, "statuses", func() error {
		var s Step
		var send uuid.UUID
		var provider, source string
		if err := rows.Scan(&send, &s.Step, &provider, &source, &s.At, &s.Reason); err != nil {
			return err
		}
		s.SendID = &send
		tr.changes = append(tr.changes, ids.StatusChange(send, s.Step, provider, source))
		tr.add(s)
		return nil
	})
}

// outcomes derives where each send has come to.
func (tr *tracer) outcomes(ctx context.Context) error {
	refs := make([]sendstatus.Ref, len(tr.sends))
	for i, id := range tr.sends {
		refs[i] = sendstatus.Ref{SendID: id, RequestedAt: ids.Time(id)}
	}
	now, err := sendstatus.Of(ctx, tr.db, refs)
	if err != nil {
		return fmt.Errorf("trace outcomes: %w", err)
	}
	for _, id := range tr.sends {
		status := queued
		if c, ok := now[id]; ok {
			status = c.Status
		}
		tr.t.Sends = append(tr.t.Sends, Outcome{id, status})
	}
	return nil
}

func (tr *tracer) webhooks(ctx context.Context) error {
	const sql = `SELECT endpoint_id, event_type, state, attempts, coalesce(delivered_at, next_attempt, created_at), coalesce(last_error, '')
FROM core.webhook_deliveries
WHERE created_at >= $1::timestamptz - interval '1 hour' AND tenant_id = $2 AND event_id = ANY($3) AND state IN ('delivered', 'failed')`
	rows, err := tr.db.Query(ctx, sql, tr.received, tr.t.TenantID, append(tr.changes, tr.t.EventID))
	return each(rows, err, "webhook deliveries", func() error {
		var s Step
		var state string
		if err := rows.Scan(&s.Endpoint, &s.EventType, &state, &s.Attempts, &s.At, &s.Reason); err != nil {
			return err
		}
		s.Step = "webhook_" + state
		tr.add(s)
		return nil
	})
}

func (tr *tracer) deadLetters(ctx context.Context) error {
	const sql = `SELECT class, created_at, send_id FROM core.dead_letters WHERE event_id = $1 OR send_id = ANY($2)`
	rows, err := tr.db.Query(ctx, sql, tr.t.EventID, tr.sends)
	return each(rows, err, "dead letters", func() error {
		s := Step{Step: "dead_letter"}
		if err := rows.Scan(&s.Reason, &s.At, &s.SendID); err != nil {
			return err
		}
		tr.add(s)
		return nil
	})
}

// buried looks for an event that never became a row.
func (tr *tracer) buried(ctx context.Context, tenant uuid.UUID) error {
	const sql = `SELECT coalesce(tenant_id, $2), class, created_at FROM core.dead_letters WHERE event_id = $1 AND ($3 OR tenant_id = $2)`
	rows, err := tr.db.Query(ctx, sql, tr.t.EventID, tenant, tenant == uuid.Nil)
	err = each(rows, err, "dead letters", func() error {
		s := Step{Step: "dead_letter"}
		if err := rows.Scan(&tr.t.TenantID, &s.Reason, &s.At); err != nil {
			return err
		}
		tr.add(s)
		return nil
	})
	if err == nil && len(tr.t.Steps) == 0 {
		return ErrNotFound
	}
	return err
}

// each scans every row of a query.
func each(rows pgx.Rows, err error, what string, scan func() error) error {
	if err != nil {
		return fmt.Errorf("trace %s: %w", what, err)
	}
	defer rows.Close()
	for rows.Next() {
		if err := scan(); err != nil {
			return fmt.Errorf("trace %s: %w", what, err)
		}
	}
	if err := rows.Err(); err != nil {
		return fmt.Errorf("trace %s: %w", what, err)
	}
	return nil
}
