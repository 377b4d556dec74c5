package retention

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// The catalog is read by hand: sqlc does not know functions that give tables.

// due is a leaf whose whole range is older than its class.
type due struct {
	Parent          string
	OID             uint32
	Name            string
	From, To        time.Time
	RetentionMonths int16
	Empty           bool
}

// dueLeaves gives the oldest first, and of one month and class sends before
// their history.
func dueLeaves(ctx context.Context, pool *pgxpool.Pool, at time.Time) ([]due, error) {
	const sql = `SELECT d.parent, d.leaf, d.name, d.lower_bound, d.upper_bound, d.retention_months, core.is_empty(d.leaf::regclass)
FROM core.due_leaves($1) d ORDER BY d.lower_bound, d.retention_months, d.parent = 'messaging.send_status_history', d.parent`
	rows, err := pool.Query(ctx, sql, at)
	if err != nil {
		return nil, fmt.Errorf("look for due leaves: %w", err)
	}
	out, err := pgx.CollectRows(rows, pgx.RowToStructByPos[due])
	if err != nil {
		return nil, fmt.Errorf("look for due leaves: %w", err)
	}
	return out, nil
}

// unpublished names a lane that has not published what it wrote into a range
// (I23); empty: all have.
func unpublished(ctx context.Context, pool *pgxpool.Pool, from, to time.Time) (string, error) {
	rows, err := pool.Query(ctx, `SELECT producer, relay, last_seq FROM core.unpublished_lanes($1, $2)`, from, to)
	if err != nil {
		return "", fmt.Errorf("look for unpublished events: %w", err)
	}
	type lane struct {
		Producer    string
		Relay, Last int64
	}
	lanes, err := pgx.CollectRows(rows, pgx.RowToStructByPos[lane])
	if err != nil {
		return "", fmt.Errorf("look for unpublished events: %w", err)
	}
	if len(lanes) == 0 {
		return "", nil
	}
	return fmt.Sprintf("%d lanes have not published what lies in it, the first %s: its relay is at %d of %d",
		len(lanes), lanes[0].Producer, lanes[0].Relay, lanes[0].Last), nil
}

func sendsOpen(ctx context.Context, pool *pgxpool.Pool, from time.Time, class int16) (open bool, err error) {
	const sql = `SELECT EXISTS (SELECT FROM core.retention_ledger l WHERE l.parent = 'messaging.sends' AND l.state <> 'dropped'
        AND l.lower_bound = $1 AND l.retention_months = $2)
    OR EXISTS (SELECT FROM core.partition_tree('messaging.sends') t WHERE t.is_leaf AND t.lower_bound = $1 AND t.retention_months = $2
        AND NOT core.is_empty(t.part::regclass))`
	if err := pool.QueryRow(ctx, sql, from, class).Scan(&open); err != nil {
		return false, fmt.Errorf("look for the sends of a history: %w", err)
	}
	return open, nil
}
