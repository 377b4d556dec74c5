package webhook

import (
	"context"
	"fmt"
	"time"
)

// horizon is how far back a pending row can lie.
func (d *Dispatcher) horizon(now time.Time) time.Time { return now.Add(-d.cfg.Keep) }

// since is the partition predicate of looks at what waits: no row older than it
// is pending, as far as this process knows. Each day that it leaves out is a
// partition less to plan and to probe. It is never less than a day back; what
// another process writes beyond it (a stage that catches up does) is seen after
// the next look, a minute later.
func (d *Dispatcher) since(now time.Time) time.Time {
	horizon := d.horizon(now)
	if known := time.Unix(d.oldest.Load(), 0); known.After(horizon) {
		return known
	}
	return horizon
}

// sinceFor is since for a batch. One that brings old records follows others that
// did: it looks all the way back, and what it writes is known from then on.
func (d *Dispatcher) sinceFor(now time.Time, ds []*delivery) time.Time {
	first := now
	for _, it := range ds {
		if it.createdAt.Before(first) {
			first = it.createdAt
		}
	}
	if first.After(now.Add(-lagging)) {
		return d.since(now)
	}
	for {
		known := d.oldest.Load()
		if known <= first.Unix() || d.oldest.CompareAndSwap(known, first.Unix()) {
			return d.horizon(now)
		}
	}
}

// lagging is how old a record is that a stage takes in only while it catches up.
const lagging = 20 * time.Hour

// lookBack finds the oldest day that has pending rows.
func (d *Dispatcher) lookBack(ctx context.Context) error {
	const sql = `-- all partitions: a day at a time, each ruled in when it is executed
SELECT extract(epoch FROM min(day))::bigint FROM generate_series(date_trunc('day', $1::timestamptz, 'UTC'), $2::timestamptz, interval '1 day') day
CROSS JOIN LATERAL (SELECT FROM core.webhook_deliveries d
    WHERE d.created_at >= day AND d.created_at < day + interval '1 day' AND d.state = 'pending' LIMIT 1) one`
	known := d.oldest.Load()
	latest := time.Now().Add(-24 * time.Hour).UTC().Truncate(24 * time.Hour)
	var found *int64
	if err := d.deps.Pool.QueryRow(ctx, sql, d.horizon(time.Now()), latest).Scan(&found); err != nil {
		return fmt.Errorf("look for the oldest webhook that waits: %w", err)
	}
	oldest := latest.Unix()
	if found != nil {
		oldest = min(oldest, *found)
	}
	d.oldest.CompareAndSwap(known, oldest) // unless a batch has lowered it meanwhile
	return nil
}
