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
	"github.com/jackc/pgx/v5"

	"github.com/softcrum/carril/ingestor/apikey"
	"github.com/softcrum/carril/internal/httpserver"
)

// Event is a stored event.
type Event struct {
	EventID         uuid.UUID       `json:"event_id"`
	Kind            string          `json:"kind"` // track, identify or platform
	EventName       string          `json:"event_name"`
	ContactID       uuid.UUID       `json:"contact_id"`                 // as it was then; merges are not followed
	OccurredAt      time.Time       `json:"occurred_at"`                // with the caller's offset
	OccurredClaimed *time.Time      `json:"occurred_claimed,omitempty"` // what the caller said, where its clock was clamped
	ReceivedAt      time.Time       `json:"received_at"`
	IdempotencyKey  string          `json:"idempotency_key,omitempty"` // none once the person is erased
	CorrelationID   string          `json:"correlation_id"`
	Historical      bool            `json:"historical"`
	Properties      json.RawMessage `json:"properties"` // an identify's traits
}

const eventColumns = `e.event_id, e.kind, e.event_name, e.contact_id, e.occurred_at, e.occurred_offset, e.occurred_claimed, e.received_at,
    e.idempotency_key, e.correlation_id, e.historical, e.properties::text`

// anEvent is one event by its time, tenant and id, also while retention has its
// leaf detached and is exporting it.
const anEvent = `(SELECT * FROM core.tracked_events WHERE occurred_at = $1 AND tenant_id = $2 AND event_id = $3
    UNION ALL SELECT * FROM core.detached(NULL::core.tracked_events, $1, $1, ARRAY[$2]::uuid[]) WHERE event_id = $3)`

func (e *Event) scan(row pgx.Row) error {
	var offset int
	var properties string
	err := row.Scan(&e.EventID, &e.Kind, &e.EventName, &e.ContactID, &e.OccurredAt, &offset, &e.OccurredClaimed, &e.ReceivedAt,
		&e.IdempotencyKey, &e.CorrelationID, &e.Historical, &properties)
	zone := time.UTC
	if offset != 0 {
		zone = time.FixedZone("", offset)
	}
	e.OccurredAt, e.ReceivedAt, e.Properties = e.OccurredAt.In(zone), e.ReceivedAt.UTC(), json.RawMessage(properties)
	if e.OccurredClaimed != nil {
		e.OccurredClaimed = new(e.OccurredClaimed.In(zone))
	}
	return err
}

// listEvents gives a page. A contact's events are also those of the contacts
// that were merged into it.
func listEvents(ctx context.Context, db Querier, tenant uuid.UUID, q *listQuery, behind position) ([]*Event, error) {
	const sql = merged + `SELECT ` + eventColumns + ` FROM core.tracked_events e
WHERE e.occurred_at >= $1 AND e.occurred_at < $2 AND e.tenant_id = $3 AND ($4 = '' OR e.event_name = $4)
    AND ($5::uuid IS NULL OR e.contact_id IN (SELECT contact_id FROM who))
    AND (e.occurred_at, e.event_id) < ($6, $7)
ORDER BY e.occurred_at DESC, e.event_id DESC LIMIT $8`
	rows, err := db.Query(ctx, sql, q.from, q.before(behind), tenant, q.get("event_name"), q.contact, behind.at, behind.id, q.limit+1)
	if err != nil {
		return nil, fmt.Errorf("list events: %w", err)
	}
	page, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (*Event, error) {
		var e Event
		return &e, e.scan(row)
	})
	if err != nil {
		return nil, fmt.Errorf("list events: %w", err)
	}
	return page, nil
}

// events is the list GET /v1/core/events?from&to.
func events() listing[*Event] {
	return listing[*Event]{name: "events", scope: ScopeEventsRead, filters: []string{"contact_id", "event_name"}, read: listEvents,
		at: func(e *Event) position { return position{e.OccurredAt.UTC(), e.EventID} }}
}

// What became of an accepted event.
const (
	stored     = "stored"
	deadLetter = "dead_letter" // put aside, with its reason in the steps
	expired    = "expired"     // its row left with the plan's retention; its key is still known
)

// Fate is what became of an accepted event: where it has come to, the event as
// it is stored, and everything that it caused.
type Fate struct {
	*Trace
	Status string `json:"status"`
	Event  *Event `json:"event,omitempty"`
}

// FindEvent says what became of an event. tenant uuid.Nil is an operator, who
// may see any. The error is ErrNotFound for an id that is not stored yet, for
// one that never was and for another tenant's: nobody can tell them apart, since
// an accepted event is in Kafka alone until it is appended.
func FindEvent(ctx context.Context, db Querier, tenant, id uuid.UUID) (*Fate, error) {
	tr, err := follow(ctx, db, tenant, id)
	if err != nil {
		return nil, err
	}
	f := &Fate{Trace: &tr.t, Status: deadLetter}
	if tr.occurred.IsZero() {
		return f, nil
	}
	var e Event
	err = e.scan(db.QueryRow(ctx, `SELECT `+eventColumns+` FROM `+anEvent+` e`, tr.occurred, tr.t.TenantID, id))
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		f.Status = expired
	case err != nil:
		return nil, fmt.Errorf("read an event: %w", err)
	default:
		f.Status, f.Event = stored, &e
	}
	return f, nil
}

// event answers GET /v1/core/events/{event_id}.
func (m *Routes) event(w http.ResponseWriter, r *http.Request) {
	p, problem := apikey.Authorize(m.deps.Keys, r, ScopeEventsRead)
	if problem != nil {
		problem.Write(w, r)
		return
	}
	id, ok := parseID(chi.URLParam(r, "event_id"))
	var f *Fate
	err := ErrNotFound
	if ok {
		ctx, cancel := context.WithTimeout(r.Context(), readTimeout)
		defer cancel()
		f, err = FindEvent(ctx, m.deps.DB, p.TenantID, id)
	}
	if errors.Is(err, ErrNotFound) {
		(&httpserver.Problem{Status: http.StatusNotFound, Code: "not_found", Title: "There is nothing here",
			Detail: "An event is found once it is stored, normally within a second of its 202."}).Write(w, r)
		return
	}
	m.reply(w, r, f, err)
}
