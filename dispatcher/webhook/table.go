package webhook

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// table claims rows of core.webhook_deliveries for this process.
type table struct {
	pool  *pgxpool.Pool
	me    uuid.UUID
	lease time.Duration
	since func(now time.Time) time.Time
}

const (
	maxClaim = 128 // rows of one claim
	maxRun   = 16  // rows of one order key in a claim
	// lookAhead bounds how many due rows are looked at to find the heads. Few are
	// passed over: what stands behind a head has no time of its own, but for rows
	// that a killed process held in memory.
	lookAhead = 2048
)

// claim leases at most n of an endpoint's rows whose time has come: the head of
// each order key, and what may follow it at once. more says that there may be
// others. One claim of an endpoint runs at a time, in all processes: two at once
// could each take a part of one order key.
func (t *table) claim(ctx context.Context, endpoint uuid.UUID, n int) (ds []*delivery, more bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	began := time.Now()
	err = pgx.BeginFunc(ctx, t.pool, func(tx pgx.Tx) error {
		if err := byIndex(ctx, tx); err != nil {
			return err
		}
		var mine bool
		const lock = `SELECT pg_try_advisory_xact_lock(hashtextextended('carril.webhooks/' || $1::text, 0))`
		if err := tx.QueryRow(ctx, lock, endpoint.String()).Scan(&mine); err != nil || !mine {
			return err
		}
		due, full, err := t.due(ctx, tx, t.since(began), endpoint, n)
		if err != nil || len(due) == 0 {
			return err
		}
		more = full
		ds, err = t.take(ctx, tx, due)
		return err
	})
	if err != nil {
		return nil, false, fmt.Errorf("claim webhook deliveries: %w", err)
	}
	for _, d := range ds {
		d.claimed, d.leased, d.leaseEnd = true, true, began.Add(t.lease)
	}
	return ds, more, nil
}

type rowKey struct {
	createdAt time.Time
	id        uuid.UUID
}

const dueSQL = `WITH due AS MATERIALIZED (
    SELECT d.order_key, d.delivery_id, d.next_attempt FROM core.webhook_deliveries d
    WHERE d.created_at >= $1 AND d.endpoint_id = $2 AND d.state = 'pending' AND d.next_attempt <= statement_timestamp()
        AND (d.lease_until IS NULL OR d.lease_until <= statement_timestamp())
    ORDER BY d.next_attempt LIMIT $5),
heads AS MATERIALIZED (SELECT due.order_key FROM due
    CROSS JOIN LATERAL (SELECT e.delivery_id FROM core.webhook_deliveries e
        WHERE e.created_at >= $1 AND e.order_key = due.order_key AND e.state = 'pending' ORDER BY e.seq LIMIT 1) head
    WHERE head.delivery_id = due.delivery_id LIMIT $3)
SELECT heads.order_key, r.created_at, r.delivery_id, r.free FROM heads
CROSS JOIN LATERAL (SELECT e.created_at, e.delivery_id, (e.next_attempt IS NULL OR e.next_attempt <= statement_timestamp())
        AND (e.lease_until IS NULL OR e.lease_until <= statement_timestamp()) AS free
    FROM core.webhook_deliveries e
    WHERE e.created_at >= $1 AND e.order_key = heads.order_key AND e.state = 'pending' ORDER BY e.seq LIMIT $4) r`

// due finds what may be claimed: the heads that are due, soonest first, each
// with the rows behind it up to one that has a time of its own to wait for. A
// row that is due and not at the head of its key is passed over.
func (t *table) due(ctx context.Context, tx pgx.Tx, since time.Time, endpoint uuid.UUID, n int) (out []rowKey, full bool, err error) {
	rows, err := tx.Query(ctx, dueSQL, since, endpoint, n, min(n, maxRun), lookAhead)
	if err != nil {
		return nil, false, err
	}
	var key, stopped string
	var one rowKey
	var free bool
	_, err = pgx.ForEachRow(rows, []any{&key, &one.createdAt, &one.id, &free}, func() error {
		if !free {
			stopped = key
		}
		if stopped != key && len(out) < n {
			out = append(out, one)
		}
		return nil
	})
	return out, len(out) >= n, err
}

// take leases rows and reads them, in the order of each key.
func (t *table) take(ctx context.Context, tx pgx.Tx, due []rowKey) ([]*delivery, error) {
	const sql = `INSERT INTO core.webhook_deliveries AS d (` + rowColumns + `)
SELECT ` + sameRow + `, 'pending' FROM unnest($2::timestamptz[], $3::uuid[]) AS r(created_at, delivery_id)
CROSS JOIN LATERAL (SELECT * FROM core.webhook_deliveries w
    WHERE w.created_at >= $1 AND w.created_at = r.created_at AND w.delivery_id = r.delivery_id LIMIT 1) x
ON CONFLICT (created_at, delivery_id) DO UPDATE SET lease = $4, lease_until = statement_timestamp() + $5::interval,
    next_attempt = coalesce(d.next_attempt, statement_timestamp())
WHERE d.state = 'pending' AND (d.lease_until IS NULL OR d.lease_until <= statement_timestamp())
RETURNING d.created_at, d.delivery_id, d.endpoint_id, d.tenant_id, d.event_id, d.event_type, d.order_key, d.seq, d.body, d.attempts`
	created, id := make([]time.Time, len(due)), make([]uuid.UUID, len(due))
	for i, r := range due {
		created[i], id[i] = r.createdAt, r.id
	}
	rows, err := tx.Query(ctx, sql, slices.MinFunc(created, time.Time.Compare), created, id, t.me, t.lease)
	if err != nil {
		return nil, err
	}
	ds, err := pgx.CollectRows(rows, func(r pgx.CollectableRow) (*delivery, error) {
		d := new(delivery)
		err := r.Scan(&d.createdAt, &d.id, &d.endpoint, &d.tenant, &d.eventID, &d.eventType, &d.orderKey, &d.seq, &d.body, &d.attempts)
		return d, err
	})
	slices.SortFunc(ds, func(a, b *delivery) int {
		return cmp.Or(strings.Compare(a.orderKey, b.orderKey), cmp.Compare(a.seq, b.seq))
	})
	return ds, err
}

// Rows are updated by their keys through INSERT … ON CONFLICT DO UPDATE, of rows
// that were just found: it goes by the primary key whatever the planner thinks.
// An UPDATE that is joined with the list of keys does not: without statistics of
// the day it reads all that the day holds (500 rows of 20,000: 269 ms; this way
// 20). The body is not copied.
const (
	rowColumns = `created_at, delivery_id, endpoint_id, tenant_id, order_key, seq, event_type, event_id, body, state`
	sameRow    = `x.created_at, x.delivery_id, x.endpoint_id, x.tenant_id, x.order_key, x.seq, x.event_type, x.event_id, ''::bytea`
)

// byIndex makes the transaction's plans go through the indexes, row by row. A
// day's partition is written and read long before it has statistics; without
// them a few hundred rows are joined by reading all that wait.
func byIndex(ctx context.Context, tx pgx.Tx) error {
	const sql = `SELECT set_config('enable_hashjoin', 'off', true), set_config('enable_mergejoin', 'off', true), set_config('enable_sort', 'off', true),
    set_config('enable_bitmapscan', 'off', true), set_config('enable_seqscan', 'off', true)`
	_, err := tx.Exec(ctx, sql)
	return err
}
