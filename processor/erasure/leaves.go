package erasure

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/softcrum/carril/internal/db/processordb"
)

// place is where a walk through the leaves of a partitioned table stands: in a
// leaf, behind a row; a leaf that is not there any more stands for the next. Leaves go by oid, which a detached one keeps and a new one
// has higher: none is missed while retention moves them.
type place struct {
	Leaf uint32    `json:"leaf"`
	At   time.Time `json:"at"`
	ID   uuid.UUID `json:"id"`
}

// readPlace reads a cursor; none is the beginning.
func readPlace(raw json.RawMessage) (p place, err error) {
	if len(raw) == 0 {
		return place{}, nil
	}
	if err := json.Unmarshal(raw, &p); err != nil {
		return p, fmt.Errorf("read where the erasure stands: %w", err)
	}
	return p, nil
}

// The names of leaves are no query of sqlc's: they are the catalog's.
const (
	nextLeaf = `SELECT n.leaf, coalesce(core.open_leaf($1, n.leaf), '')
FROM (SELECT l.leaf FROM core.leaves($1, '-infinity', 'infinity') l WHERE l.leaf >= $2 ORDER BY l.leaf LIMIT 1) n`
	eraseEvents = `SELECT event_id, occurred_at, received_at, emptied FROM core.erase_events($1, $2, $3, $4, $5, $6)`
	eraseSends  = `SELECT send_id, requested_at, channel, coalesce(address, ''), emptied FROM core.erase_sends($1, $2, $3, $4, $5, $6)`
)

// longAgo is before any row, and a time that both sides can write.
var longAgo = time.Date(1, 1, 1, 0, 0, 0, 0, time.UTC)

// maxLeaves bounds the leaves of one page: most hold nothing of a person.
const maxLeaves = 64

// walk reads a page through a function that empties it, leaf by leaf, and gives
// where the next begins; nil: there is none.
func (j *Job) walk(ctx context.Context, tx pgx.Tx, e *erasure, parent, sql string, at json.RawMessage, each func(row pgx.CollectableRow) (time.Time, uuid.UUID, error)) (next *place, err error) {
	p, err := readPlace(at)
	if err != nil {
		return nil, err
	}
	room := j.cfg.Page
	for range maxLeaves {
		leaf, name, err := enter(ctx, tx, parent, p.Leaf)
		if err != nil || leaf == 0 {
			return nil, err
		}
		if leaf != p.Leaf {
			p = place{Leaf: leaf, At: longAgo}
		}
		n := 0
		if name != "" { // else it was dropped just now
			if n, err = inLeaf(ctx, tx, sql, []any{name, e.tenant, e.contacts, p.At, p.ID, room}, &p, each); err != nil {
				return nil, fmt.Errorf("empty rows of %s: %w", parent, err)
			}
		}
		if room -= n; room == 0 {
			return &p, nil
		}
		p = place{Leaf: leaf + 1, At: longAgo}
	}
	return &p, nil
}

// enter gives the first leaf from an oid on, open to the eraser; 0: there is none.
func enter(ctx context.Context, tx pgx.Tx, parent string, from uint32) (leaf uint32, name string, err error) {
	err = tx.QueryRow(ctx, nextLeaf, parent, from).Scan(&leaf, &name)
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return 0, "", fmt.Errorf("find the leaves of %s: %w", parent, err)
	}
	return leaf, name, nil
}

// inLeaf empties the rest of a page in one leaf and moves the place behind it.
func inLeaf(ctx context.Context, tx pgx.Tx, sql string, args []any, p *place, each func(row pgx.CollectableRow) (time.Time, uuid.UUID, error)) (n int, err error) {
	rows, err := tx.Query(ctx, sql, args...)
	if err != nil {
		return 0, err
	}
	_, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (struct{}, error) {
		n++
		var err error
		p.At, p.ID, err = each(row)
		return struct{}{}, err
	})
	return n, err
}

// events empties a page of the person's events, and what stands about them beside
// their rows: warnings, conflicts, webhooks, dead letters.
func (j *Job) events(ctx context.Context, tx pgx.Tx, e *erasure, at json.RawMessage) (page, error) {
	var ids []uuid.UUID
	var first, last time.Time
	var p page
	next, err := j.walk(ctx, tx, e, "core.tracked_events", eraseEvents, at, func(row pgx.CollectableRow) (at time.Time, id uuid.UUID, err error) {
		var received time.Time
		var emptied bool
		if err := row.Scan(&id, &at, &received, &emptied); err != nil {
			return at, id, err
		}
		if len(ids) == 0 || received.Before(first) {
			first = received
		}
		if received.After(last) {
			last = received
		}
		if emptied {
			p.rows++
		}
		ids = append(ids, id)
		return at, id, nil
	})
	if err != nil {
		return p, err
	}
	if next != nil {
		p.next = next
	}
	if len(ids) == 0 {
		return p, nil
	}
	n, err := besideEvents(ctx, processordb.New(tx), e.tenant, ids, first, last)
	p.rows += n
	return p, err
}

// besideEvents empties what hangs on events. A delivery's time is its event's
// received_at to the millisecond.
func besideEvents(ctx context.Context, db *processordb.Queries, tenant uuid.UUID, ids []uuid.UUID, first, last time.Time) (rows int, err error) {
	for _, s := range []struct {
		what string
		do   func() (int64, error)
	}{
		{"empty warnings", func() (int64, error) {
			return db.EmptyWarnings(ctx, processordb.EmptyWarningsParams{TenantID: tenant, Events: ids})
		}},
		{"drop key conflicts", func() (int64, error) {
			return db.DropKeyConflicts(ctx, processordb.DropKeyConflictsParams{TenantID: tenant, Events: ids})
		}},
		{"empty webhook deliveries", func() (int64, error) {
			return db.EmptyDeliveries(ctx, processordb.EmptyDeliveriesParams{First: first.Add(-time.Second), Last: last.Add(time.Second), TenantID: tenant, Events: ids})
		}},
		{"empty answers to webhooks", func() (int64, error) {
			return db.EmptyAnswers(ctx, processordb.EmptyAnswersParams{First: first.Add(-time.Second), TenantID: tenant, Events: ids})
		}},
		{"empty dead letters of events", func() (int64, error) {
			return db.EmptyDeadLetters(ctx, processordb.EmptyDeadLettersParams{Events: ids})
		}},
	} {
		n, err := s.do()
		if err != nil {
			return rows, fmt.Errorf("%s: %w", s.what, err)
		}
		rows += int(n)
	}
	return rows, nil
}

// sends empties a page of the person's sends: the rows stay as anonymous counts
// (FS-MSG-0003 AC8). Suppressions of the addresses go on under their hashes.
func (j *Job) sends(ctx context.Context, tx pgx.Tx, e *erasure, at json.RawMessage) (page, error) {
	var ids []uuid.UUID
	var addresses []string
	var p page
	next, err := j.walk(ctx, tx, e, "messaging.sends", eraseSends, at, func(row pgx.CollectableRow) (at time.Time, id uuid.UUID, err error) {
		var channel, address string
		var emptied bool
		if err := row.Scan(&id, &at, &channel, &address, &emptied); err != nil {
			return at, id, err
		}
		if address != "" && e.cause == causeRequest {
			addresses = append(addresses, address)
		}
		if emptied {
			p.rows++
		}
		ids = append(ids, id)
		return at, id, nil
	})
	if err != nil {
		return p, err
	}
	if next != nil {
		p.next = next
	}
	if len(ids) == 0 {
		return p, nil
	}
	n, err := j.besideSends(ctx, processordb.New(tx), e, ids, addresses)
	p.rows += n
	return p, err
}

func (j *Job) besideSends(ctx context.Context, db *processordb.Queries, e *erasure, ids []uuid.UUID, addresses []string) (rows int, err error) {
	n, err := j.hideUsed(ctx, db, e, addresses)
	if err != nil {
		return 0, err
	}
	rows += n
	letters, err := db.EmptyDeadLetters(ctx, processordb.EmptyDeadLettersParams{Sends: ids})
	if err != nil {
		return rows, fmt.Errorf("empty dead letters of sends: %w", err)
	}
	unmatched, err := db.DropUnmatched(ctx, ids)
	if err != nil {
		return rows, fmt.Errorf("drop unmatched reports: %w", err)
	}
	rows += int(letters + unmatched)
	if !e.last { // until no report is awaited any more, they find the send's row
		return rows, nil
	}
	known, err := db.DropProviderMessages(ctx, ids)
	if err != nil {
		return rows, fmt.Errorf("drop the provider's ids: %w", err)
	}
	return rows + int(known), nil
}

// hideUsed hides suppressions of addresses that messages went to, but for those
// which somebody has today.
func (j *Job) hideUsed(ctx context.Context, db *processordb.Queries, e *erasure, addresses []string) (int, error) {
	if len(addresses) == 0 {
		return 0, nil
	}
	n, err := db.HideSuppressionsOfNobody(ctx, processordb.HideSuppressionsOfNobodyParams{TenantID: e.tenant, Addresses: addresses})
	if err != nil {
		return 0, fmt.Errorf("hide suppressions: %w", err)
	}
	return int(n), nil
}
