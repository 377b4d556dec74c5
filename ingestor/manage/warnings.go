package manage

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// WarningKinds are what a tenant is warned of: what the stages noted of accepted
// events, keys that came with another body, and what was put aside.
func WarningKinds() []string {
	return []string{"refused_identifier", "identity_conflict", "traits_capped", "identifiers_capped", "refused_traits", "taxonomy_violation",
		"rule_failed", "idempotency_conflict", "dead_letter"}
}

// Warning is something that a tenant should know of what was accepted.
type Warning struct {
	WarningID  uuid.UUID       `json:"warning_id"`
	Kind       string          `json:"kind"`
	EventID    *uuid.UUID      `json:"event_id,omitempty"`
	RequestID  *uuid.UUID      `json:"request_id,omitempty"`
	SendID     *uuid.UUID      `json:"send_id,omitempty"`
	Detail     json.RawMessage `json:"detail"`
	RecordedAt time.Time       `json:"recorded_at"`
}

// listWarnings gives a page of all that a tenant is warned of. Each part is read
// to its own limit by its own index. What a dead letter says of its reason is
// its class: the rest is the operators'.
func listWarnings(ctx context.Context, db Querier, tenant uuid.UUID, q *listQuery, behind position) ([]*Warning, error) {
	const sql = `SELECT id, kind, event_id, request_id, send_id, detail::text, at FROM (
    (SELECT w.warning_id AS id, w.kind, w.event_id, NULL::uuid AS request_id, NULL::uuid AS send_id, w.detail, w.recorded_at AS at
     FROM core.warnings w
     WHERE w.tenant_id = $1 AND w.recorded_at >= $2 AND w.recorded_at < $3 AND (w.recorded_at, w.warning_id) < ($4, $5) AND ($6 = '' OR w.kind = $6)
     ORDER BY w.recorded_at DESC, w.warning_id DESC LIMIT $7)
    UNION ALL
    (SELECT c.conflict_id, 'idempotency_conflict', CASE c.kind WHEN 'event' THEN c.event_id END, CASE c.kind WHEN 'message' THEN c.event_id END,
        NULL, '{}', c.recorded_at
     FROM core.idempotency_conflicts c
     WHERE c.tenant_id = $1 AND c.recorded_at >= $2 AND c.recorded_at < $3 AND (c.recorded_at, c.conflict_id) < ($4, $5)
        AND $6 IN ('', 'idempotency_conflict')
     ORDER BY c.recorded_at DESC, c.conflict_id DESC LIMIT $7)
    UNION ALL
    (SELECT d.dead_letter_id, 'dead_letter', d.event_id, NULL, d.send_id,
        jsonb_build_object('stage', d.stage, 'class', d.class, 'status', d.status), d.created_at
     FROM core.dead_letters d
     WHERE d.tenant_id = $1 AND d.created_at >= $2 AND d.created_at < $3 AND (d.created_at, d.dead_letter_id) < ($4, $5)
        AND $6 IN ('', 'dead_letter')
     ORDER BY d.created_at DESC, d.dead_letter_id DESC LIMIT $7)
) u ORDER BY at DESC, id DESC LIMIT $7`
	rows, err := db.Query(ctx, sql, tenant, q.from, q.before(behind), behind.at, behind.id, q.get("kind"), q.limit+1)
	if err != nil {
		return nil, fmt.Errorf("list warnings: %w", err)
	}
	page, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (*Warning, error) {
		var w Warning
		var detail string
		err := row.Scan(&w.WarningID, &w.Kind, &w.EventID, &w.RequestID, &w.SendID, &detail, &w.RecordedAt)
		w.Detail, w.RecordedAt = json.RawMessage(detail), w.RecordedAt.UTC()
		return &w, err
	})
	if err != nil {
		return nil, fmt.Errorf("list warnings: %w", err)
	}
	return page, nil
}

// warnings is the list GET /v1/core/warnings?from&to.
func warnings() listing[*Warning] {
	return listing[*Warning]{name: "warnings", scope: ScopeEventsRead, filters: []string{"kind"}, read: listWarnings,
		choices: map[string][]string{"kind": WarningKinds()},
		at:      func(w *Warning) position { return position{w.RecordedAt, w.WarningID} }}
}

// Conflict is a key that came again with another body: it was answered with the
// id of the first, and had no effect.
type Conflict struct {
	ConflictID      uuid.UUID  `json:"conflict_id"`
	Kind            string     `json:"kind"` // event or message
	EventID         *uuid.UUID `json:"event_id,omitempty"`
	RequestID       *uuid.UUID `json:"request_id,omitempty"`
	IdempotencyKey  *string    `json:"idempotency_key,omitempty"` // of an event whose row still stands
	EventName       *string    `json:"event_name,omitempty"`      // the first's
	FirstReceivedAt *time.Time `json:"first_received_at,omitempty"`
	ReceivedAt      time.Time  `json:"received_at"` // the other body's
	RecordedAt      time.Time  `json:"recorded_at"`

	occurred *time.Time // of the first event
}

// listConflicts gives a page.
func listConflicts(ctx context.Context, db Querier, tenant uuid.UUID, q *listQuery, behind position) ([]*Conflict, error) {
	const sql = `SELECT c.conflict_id, c.kind, c.event_id, k.occurred_at, coalesce(k.received_at, r.received_at), c.received_at, c.recorded_at
FROM core.idempotency_conflicts c
LEFT JOIN core.event_keys k ON c.kind = 'event' AND k.event_id = c.event_id AND k.tenant_id = c.tenant_id
LEFT JOIN messaging.request_keys r ON c.kind = 'message' AND r.request_id = c.event_id AND r.tenant_id = c.tenant_id
WHERE c.tenant_id = $1 AND c.recorded_at >= $2 AND c.recorded_at < $3 AND (c.recorded_at, c.conflict_id) < ($4, $5)
ORDER BY c.recorded_at DESC, c.conflict_id DESC LIMIT $6`
	rows, err := db.Query(ctx, sql, tenant, q.from, q.before(behind), behind.at, behind.id, q.limit+1)
	if err != nil {
		return nil, fmt.Errorf("list key conflicts: %w", err)
	}
	page, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (*Conflict, error) {
		var c Conflict
		var id uuid.UUID
		err := row.Scan(&c.ConflictID, &c.Kind, &id, &c.occurred, &c.FirstReceivedAt, &c.ReceivedAt, &c.RecordedAt)
		if c.EventID = &id; c.Kind == "message" {
			c.EventID, c.RequestID = nil, &id
		}
		if c.FirstReceivedAt != nil {
			c.FirstReceivedAt = new(c.FirstReceivedAt.UTC())
		}
		c.ReceivedAt, c.RecordedAt = c.ReceivedAt.UTC(), c.RecordedAt.UTC()
		return &c, err
	})
	if err != nil {
		return nil, fmt.Errorf("list key conflicts: %w", err)
	}
	return page, nameFirsts(ctx, db, tenant, page)
}

// nameFirsts adds the key and the name of the first events, as far as their rows
// stand.
func nameFirsts(ctx context.Context, db Querier, tenant uuid.UUID, page []*Conflict) error {
	var times []time.Time
	var events []uuid.UUID
	for _, c := range page {
		if c.occurred != nil && c.EventID != nil {
			times, events = append(times, *c.occurred), append(events, *c.EventID)
		}
	}
	if len(events) == 0 {
		return nil
	}
	const sql = `SELECT t.event_id, nullif(t.idempotency_key, ''), t.event_name FROM core.tracked_events t
WHERE t.occurred_at = ANY($1::timestamptz[]) AND t.tenant_id = $2 AND t.event_id = ANY($3::uuid[])`
	rows, err := db.Query(ctx, sql, times, tenant, events)
	if err != nil {
		return fmt.Errorf("name the first events of conflicts: %w", err)
	}
	var id uuid.UUID
	var key, name *string
	_, err = pgx.ForEachRow(rows, []any{&id, &key, &name}, func() error {
		for _, c := range page {
			if c.EventID != nil && *c.EventID == id {
				c.IdempotencyKey, c.EventName = key, name
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("name the first events of conflicts: %w", err)
	}
	return nil
}

// conflicts is the list GET /v1/core/idempotency-conflicts?from&to.
func conflicts() listing[*Conflict] {
	return listing[*Conflict]{name: "conflicts", scope: ScopeEventsRead, read: listConflicts,
		at: func(c *Conflict) position { return position{c.RecordedAt, c.ConflictID} }}
}
