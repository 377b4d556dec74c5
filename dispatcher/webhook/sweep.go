package webhook

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// mendEvery is how often the table is looked over for what no lane would find.
const mendEvery = 10 * time.Minute

// lookEvery is how often the oldest day that has pending rows is looked for.
const lookEvery = time.Minute

// sweep looks for what is due until ctx ends: retries whose time has come, rows
// whose process died, and rows of endpoints that are no more.
func (d *Dispatcher) sweep(ctx context.Context) {
	var looked time.Time
	mended := time.Now()
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(d.jitter(d.cfg.Sweep)):
		}
		err := d.sweepOnce(ctx)
		if err == nil && time.Since(looked) > lookEvery {
			looked = time.Now()
			d.lanes.tidy(looked)
			err = d.lookBack(ctx)
		}
		if err == nil && time.Since(mended) > mendEvery {
			mended = time.Now()
			err = d.mend(ctx)
		}
		if err != nil && ctx.Err() == nil {
			d.log.Warn("webhook sweep failed and is tried again", "error", err)
		}
	}
}

// sweepOnce steps from endpoint to endpoint through the index of pending rows:
// its cost is the number of endpoints that have any, not of rows.
func (d *Dispatcher) sweepOnce(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	const sql = `WITH RECURSIVE waiting AS (
    (SELECT d.endpoint_id FROM core.webhook_deliveries d WHERE d.created_at >= $1 AND d.state = 'pending' ORDER BY d.endpoint_id LIMIT 1)
    UNION ALL
    SELECT (SELECT d.endpoint_id FROM core.webhook_deliveries d WHERE d.created_at >= $1 AND d.state = 'pending' AND d.endpoint_id > w.endpoint_id
        ORDER BY d.endpoint_id LIMIT 1)
    FROM waiting w WHERE w.endpoint_id IS NOT NULL)
SELECT w.endpoint_id, e.endpoint_id IS NOT NULL AND e.disabled_at IS NULL,
    EXISTS (SELECT FROM core.webhook_deliveries d WHERE d.created_at >= $1 AND d.endpoint_id = w.endpoint_id AND d.state = 'pending'
        AND d.next_attempt <= statement_timestamp() AND (d.lease_until IS NULL OR d.lease_until <= statement_timestamp()))
FROM waiting w LEFT JOIN core.webhook_endpoints e USING (endpoint_id) WHERE w.endpoint_id IS NOT NULL`
	var due, ended []uuid.UUID
	err := pgx.BeginFunc(ctx, d.deps.Pool, func(tx pgx.Tx) error {
		if err := byIndex(ctx, tx); err != nil {
			return err
		}
		rows, err := tx.Query(ctx, sql, d.since(time.Now()))
		if err != nil {
			return err
		}
		var id uuid.UUID
		var usable, ready bool
		_, err = pgx.ForEachRow(rows, []any{&id, &usable, &ready}, func() error {
			switch {
			case !usable:
				ended = append(ended, id)
			case ready:
				due = append(due, id)
			}
			return nil
		})
		return err
	})
	if err != nil {
		return fmt.Errorf("look for webhooks that are due: %w", err)
	}
	d.lanes.poke(due)
	return d.cancel(ctx, ended)
}

// page bounds one statement of the sweep.
const page = 1000

// cancel ends what waits for endpoints that are disabled or gone.
func (d *Dispatcher) cancel(ctx context.Context, endpoints []uuid.UUID) error {
	const sql = `INSERT INTO core.webhook_deliveries AS d (` + rowColumns + `)
SELECT ` + sameRow + `, 'cancelled' FROM (SELECT * FROM core.webhook_deliveries w
    WHERE w.created_at >= $1 AND w.endpoint_id = $2 AND w.state = 'pending' LIMIT $3) x
ON CONFLICT (created_at, delivery_id) DO UPDATE SET state = 'cancelled', lease = NULL, lease_until = NULL, next_attempt = statement_timestamp()
WHERE d.state = 'pending'`
	for _, id := range endpoints {
		for n := int64(page); n == page; {
			tag, err := d.deps.Pool.Exec(ctx, sql, d.since(time.Now()), id, page)
			if err != nil {
				return fmt.Errorf("cancel webhooks of an endpoint that ended: %w", err)
			}
			n = tag.RowsAffected()
			d.metrics.deliveries.WithLabelValues("cancelled").Add(float64(n))
		}
	}
	return nil
}

// mend repairs what a rare race or a dropped partition leaves: rows that wait
// for a turn behind nobody, and rows that are too old to be looked for.
func (d *Dispatcher) mend(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	const orphans = `UPDATE core.webhook_deliveries d SET next_attempt = statement_timestamp()
WHERE d.created_at >= $1 AND d.state = 'pending' AND d.next_attempt IS NULL
    AND NOT EXISTS (SELECT FROM core.webhook_deliveries e WHERE e.created_at >= $1 AND e.order_key = d.order_key AND e.state = 'pending' AND e.seq < d.seq)`
	since := d.horizon(time.Now())
	tag, err := d.deps.Pool.Exec(ctx, orphans, since)
	if err != nil {
		return fmt.Errorf("mend webhooks that wait behind nobody: %w", err)
	}
	if n := tag.RowsAffected(); n > 0 {
		d.log.Warn("webhooks waited behind nobody", "count", n)
	}
	const old = `UPDATE core.webhook_deliveries SET state = 'failed', last_error = 'too_old', lease = NULL, lease_until = NULL, next_attempt = statement_timestamp()
WHERE created_at >= $1 AND created_at < $2 AND state = 'pending'`
	tag, err = d.deps.Pool.Exec(ctx, old, since, since.Add(time.Hour))
	if err != nil {
		return fmt.Errorf("end webhooks that are too old: %w", err)
	}
	d.metrics.deliveries.WithLabelValues("failed").Add(float64(tag.RowsAffected()))
	return nil
}
