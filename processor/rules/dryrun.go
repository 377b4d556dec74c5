package rules

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/softcrum/carril/internal/rule"
	"github.com/softcrum/carril/schemas"
)

// Report is what a rule would have done.
type Report struct {
	Seen     int            `json:"events_seen"` // of its name, in the range
	Skipped  int            `json:"skipped"`     // imports, and events of another time than the rule's own window
	Fired    int            `json:"fired"`
	Capped   int            `json:"capped"`
	Points   int64          `json:"points"`
	Messages map[string]int `json:"messages"` // by channel and category
	TooOld   int            `json:"too_old"`  // firings whose message would not have gone, the event being older than max_age when it came
	Failed   map[string]int `json:"failed"`   // conditions that had no answer, by cause
	Contacts int            `json:"contacts"` // that it fired for
	Samples  []Sample       `json:"samples"`  // the first events of each kind
}

// Sample is an event that shows an outcome: fired, capped or the cause of a
// failure.
type Sample struct {
	EventID    uuid.UUID `json:"event_id"`
	OccurredAt time.Time `json:"occurred_at"`
	Outcome    string    `json:"outcome"`
}

// samplesEach is how many events of each outcome a report names.
const samplesEach = 5

// DryRun runs a rule over the past events of a tenant, from included and to
// excluded, as if each came alone and in order of its time, and writes nothing.
// The cap counts from the range's start. Merges are those of today. seen hears
// after every page how far it has come.
func DryRun(ctx context.Context, pool *pgxpool.Pool, tenant uuid.UUID, r *rule.Rule, from, to time.Time, seen func(at time.Time, events int)) (*Report, error) {
	d := dryRun{rule: r, rep: &Report{Messages: map[string]int{}, Failed: map[string]int{}}, tally: tally{}, people: map[uuid.UUID]bool{}, shown: map[string]int{}}
	at, last := from, uuid.Nil
	for {
		page, err := past(ctx, pool, tenant, r.EventName, at, last, to)
		if err != nil {
			return nil, err
		}
		for i := range page {
			d.event(&page[i].EventTracked, page[i].person)
		}
		if len(page) < dryPage {
			d.rep.Contacts = len(d.people)
			return d.rep, nil
		}
		at, last = page[len(page)-1].OccurredAt, page[len(page)-1].EventID
		seen(at, d.rep.Seen)
	}
}

type dryRun struct {
	rule   *rule.Rule
	rep    *Report
	tally  tally
	people map[uuid.UUID]bool
	shown  map[string]int
}

func (d *dryRun) event(e *schemas.EventTracked, person uuid.UUID) {
	d.rep.Seen++
	if !fires(e) || !d.rule.Judges(e.OccurredAt) {
		d.rep.Skipped++
		return
	}
	ok, err := d.rule.Holds(e)
	switch {
	case err != nil:
		d.rep.Failed[err.Error()]++
		d.sample(e, err.Error())
	case !ok:
	case d.rule.Cap != nil && d.tally.full(d.rule, person, e.EventID, e.OccurredAt):
		d.rep.Capped++
		d.sample(e, "capped")
	default:
		d.fire(e, person)
		d.sample(e, "fired")
	}
}

func (d *dryRun) fire(e *schemas.EventTracked, person uuid.UUID) {
	if d.rule.Cap != nil {
		d.tally.add(counted{d.rule.ID, person}, e.EventID, e.OccurredAt)
	}
	d.rep.Fired++
	d.rep.Points += d.rule.Points()
	d.people[person] = true
	for _, a := range d.rule.Actions {
		if a.Type != "notify" {
			continue
		}
		if e.ReceivedAt.Sub(e.OccurredAt) > a.Age() {
			d.rep.TooOld++
			continue
		}
		d.rep.Messages[a.Channel+" "+a.Category]++
	}
}

func (d *dryRun) sample(e *schemas.EventTracked, outcome string) {
	if d.shown[outcome]++; d.shown[outcome] <= samplesEach {
		d.rep.Samples = append(d.rep.Samples, Sample{e.EventID, e.OccurredAt, outcome})
	}
}

type pastEvent struct {
	schemas.EventTracked
	person uuid.UUID
}

const dryPage = 2_000

// past reads a page of a tenant's events of one name, in order, behind an event.
func past(ctx context.Context, pool *pgxpool.Pool, tenant uuid.UUID, name string, at time.Time, last uuid.UUID, to time.Time) ([]pastEvent, error) {
	const sql = `SELECT e.event_id, e.contact_id, e.kind, e.event_name, e.properties::text, e.occurred_at, e.received_at, e.historical,
    coalesce((WITH RECURSIVE w AS (
        SELECT e.contact_id AS head, 0 AS depth
        UNION ALL
        SELECT m.into_contact, depth + 1 FROM w JOIN core.contact_merges m ON m.tenant_id = e.tenant_id AND m.from_contact = w.head AND m.undone_at IS NULL WHERE depth < 32
    ) SELECT head FROM w ORDER BY depth DESC LIMIT 1), e.contact_id)
FROM core.tracked_events e
WHERE e.tenant_id = $1 AND e.occurred_at >= $2 AND e.occurred_at < $3 AND (e.occurred_at, e.event_id) > ($2, $4) AND e.event_name = $5
ORDER BY e.occurred_at, e.event_id LIMIT $6`
	rows, err := pool.Query(ctx, sql, tenant, at, to, last, name, dryPage)
	if err != nil {
		return nil, fmt.Errorf("read past events: %w", err)
	}
	page, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (p pastEvent, err error) {
		p.TenantID = tenant
		err = row.Scan(&p.EventID, &p.ContactID, &p.Kind, &p.EventName, &p.Payload, &p.OccurredAt, &p.ReceivedAt, &p.Historical, &p.person)
		return p, err
	})
	if err != nil {
		return nil, fmt.Errorf("read past events: %w", err)
	}
	return page, nil
}
