package rules

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/softcrum/carril/internal/db/processordb"
	"github.com/softcrum/carril/internal/rule"
)

// Times that stand for no bound.
var (
	always = time.Date(1, 1, 1, 0, 0, 0, 0, time.UTC)
	never  = time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC)
)

// within gives the open range around a time in which firings count against one
// at that time: a window either way, so that no window that holds it holds more
// than the cap, in whatever order events come.
func within(c *rule.Cap, at time.Time) (after, before time.Time) {
	w := c.Within()
	if w == 0 {
		return always, never
	}
	return at.Add(-w), at.Add(w)
}

// counted is whose firings count together: those of one rule for one person.
type counted struct{ rule, person uuid.UUID }

// tally knows what capped rules have fired.
type tally map[counted]map[uuid.UUID]time.Time // by event

// full says whether a rule has fired for a person as often as it may around a
// time, the event itself not counted.
func (t tally) full(r *rule.Rule, person, event uuid.UUID, at time.Time) bool {
	after, before := within(r.Cap, at)
	n := 0
	for id, fired := range t[counted{r.ID, person}] {
		if id != event && fired.After(after) && fired.Before(before) {
			n++
		}
	}
	return n >= r.Cap.Count
}

func (t tally) add(k counted, event uuid.UUID, at time.Time) {
	if t[k] == nil {
		t[k] = map[uuid.UUID]time.Time{}
	}
	t[k][event] = at
}

// hold marks the firings that the caps of their rules hold back. A tenant's
// events come to one owner in one transaction at a time, so what the ledger says
// is all there is.
func hold(ctx context.Context, tx pgx.Tx, fired []firing) error {
	var ask processordb.ResolveMergesParams
	for _, f := range fired {
		if f.rule.Cap != nil {
			ask.Tenants, ask.Contacts = append(ask.Tenants, f.event.TenantID), append(ask.Contacts, f.event.ContactID)
		}
	}
	if len(ask.Tenants) == 0 {
		return nil
	}
	heads, err := processordb.New(tx).ResolveMerges(ctx, ask)
	if err != nil {
		return fmt.Errorf("resolve %d contacts of capped rules: %w", len(ask.Tenants), err)
	}
	person := map[uuid.UUID]uuid.UUID{}
	for _, h := range heads {
		person[h.Asked] = h.At
	}
	seen, err := before(ctx, tx, fired, person)
	if err != nil {
		return err
	}
	for i := range fired {
		f := &fired[i]
		if f.rule.Cap == nil {
			continue
		}
		who := head(person, f.event.ContactID)
		if f.capped = seen.full(f.rule, who, f.event.EventID, f.event.OccurredAt); !f.capped {
			seen.add(counted{f.rule.ID, who}, f.event.EventID, f.event.OccurredAt)
		}
	}
	return nil
}

func head(person map[uuid.UUID]uuid.UUID, contact uuid.UUID) uuid.UUID {
	if h, ok := person[contact]; ok {
		return h
	}
	return contact
}

// before reads what the capped rules have fired for the batch's people.
func before(ctx context.Context, tx pgx.Tx, fired []firing, person map[uuid.UUID]uuid.UUID) (tally, error) {
	var ask processordb.FiredForParams
	asked := map[counted]int{}
	for _, f := range fired {
		if f.rule.Cap == nil {
			continue
		}
		after, until := within(f.rule.Cap, f.event.OccurredAt)
		k := counted{f.rule.ID, head(person, f.event.ContactID)}
		i, again := asked[k]
		if !again {
			asked[k] = len(ask.Tenants)
			ask.Tenants, ask.Rules, ask.Contacts = append(ask.Tenants, f.event.TenantID), append(ask.Rules, k.rule), append(ask.Contacts, k.person)
			ask.After, ask.Before = append(ask.After, after), append(ask.Before, until)
			continue
		}
		if after.Before(ask.After[i]) {
			ask.After[i] = after
		}
		if until.After(ask.Before[i]) {
			ask.Before[i] = until
		}
	}
	rows, err := processordb.New(tx).FiredFor(ctx, ask)
	if err != nil {
		return nil, fmt.Errorf("read what %d capped rules have fired: %w", len(ask.Tenants), err)
	}
	seen := tally{}
	for _, r := range rows {
		seen.add(counted{r.RuleID, r.ContactID}, r.EventID, r.OccurredAt)
	}
	return seen, nil
}
