package partition

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// The catalog is read by hand: sqlc knows neither pg_class nor functions that
// give tables.

// Gap is a partition that should stand and does not.
type Gap struct {
	Parent          string
	From            time.Time
	RetentionMonths int16 // 0 where the table has no classes
	Steps           int   // months or days ahead of now; negative: behind
}

// Missing gives what should stand around now and does not.
func Missing(ctx context.Context, pool *pgxpool.Pool, now time.Time) ([]Gap, error) {
	rows, err := pool.Query(ctx, `SELECT parent, lower_bound, coalesce(retention_months, 0), steps FROM core.missing_partitions($1)`, now)
	if err != nil {
		return nil, fmt.Errorf("look for missing partitions: %w", err)
	}
	gaps, err := pgx.CollectRows(rows, pgx.RowToStructByPos[Gap])
	if err != nil {
		return nil, fmt.Errorf("look for missing partitions: %w", err)
	}
	return gaps, nil
}

// Stray is how many rows of a month, or a day, lie in a DEFAULT partition.
type Stray struct {
	Parent string
	Table  string // the DEFAULT partition
	From   time.Time
	Rows   int64
}

// Strays counts what lies in the DEFAULT partitions.
func Strays(ctx context.Context, pool *pgxpool.Pool) ([]Stray, error) {
	rows, err := pool.Query(ctx, `SELECT parent, default_table, lower_bound, rows FROM core.stray_months()`)
	if err != nil {
		return nil, fmt.Errorf("count rows of DEFAULT partitions: %w", err)
	}
	strays, err := pgx.CollectRows(rows, pgx.RowToStructByPos[Stray])
	if err != nil {
		return nil, fmt.Errorf("count rows of DEFAULT partitions: %w", err)
	}
	return strays, nil
}

func defaultTables(ctx context.Context, pool *pgxpool.Pool) ([]string, error) {
	rows, err := pool.Query(ctx, `SELECT t.name FROM core.partitioned_tables p CROSS JOIN LATERAL core.partition_tree(p.parent) t WHERE t.is_default ORDER BY 1`)
	if err != nil {
		return nil, fmt.Errorf("list the DEFAULT partitions: %w", err)
	}
	names, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return nil, fmt.Errorf("list the DEFAULT partitions: %w", err)
	}
	return names, nil
}

// Partition is one partition as the catalog has it.
type Partition struct {
	Parent          string     `json:"parent"`
	Name            string     `json:"name"`
	From            *time.Time `json:"from,omitempty"` // null: DEFAULT
	To              *time.Time `json:"to,omitempty"`
	RetentionMonths *int16     `json:"retention_months,omitempty"` // null where the table has no classes
	Rows            int64      `json:"rows"`                       // an estimate of the statistics; exact for DEFAULT
	Bytes           int64      `json:"bytes"`                      // with indexes
	Default         bool       `json:"default,omitempty"`
	Detached        bool       `json:"detached,omitempty"` // on its way out, see the retention ledger
}

// List gives the leaves of one table, or of all where parent is empty, oldest
// first, and what is detached from them.
func List(ctx context.Context, pool *pgxpool.Pool, parent string) ([]Partition, error) {
	const sql = `SELECT p.parent, t.name, t.lower_bound, t.upper_bound, t.retention_months,
    CASE WHEN t.is_default THEN coalesce((SELECT sum(s.rows)::bigint FROM core.stray_months() s WHERE s.default_table = t.name), 0) ELSE greatest(c.reltuples, 0)::bigint END,
    coalesce(pg_total_relation_size(c.oid), 0), t.is_default, false
FROM core.partitioned_tables p CROSS JOIN LATERAL core.partition_tree(p.parent) t LEFT JOIN pg_class c ON c.oid = t.part
WHERE t.is_leaf AND ($1 = '' OR p.parent = $1)
UNION ALL
SELECT l.parent, l.leaf, l.lower_bound, l.upper_bound, l.retention_months, greatest(c.reltuples, 0)::bigint, coalesce(pg_total_relation_size(c.oid), 0), false, true
FROM core.retention_ledger l JOIN pg_class c ON c.oid = l.leaf_oid WHERE l.state <> 'dropped' AND ($1 = '' OR l.parent = $1)
ORDER BY 1, 8, 3, 5`
	rows, err := pool.Query(ctx, sql, parent)
	if err != nil {
		return nil, fmt.Errorf("list partitions: %w", err)
	}
	ps, err := pgx.CollectRows(rows, pgx.RowToStructByPos[Partition])
	if err != nil {
		return nil, fmt.Errorf("list partitions: %w", err)
	}
	return ps, nil
}

// Ahead says whether the coming months and days stand, for readiness (faults
// P14). It looks at most every 15 s.
type Ahead struct {
	pool *pgxpool.Pool
	now  func() time.Time

	mu   sync.Mutex
	at   time.Time
	last error
}

// NewAhead makes the check; now is the clock, by which months turn.
func NewAhead(pool *pgxpool.Pool, now func() time.Time) *Ahead { return &Ahead{pool: pool, now: now} }

// Err is nil when every table has what it needs now and for the next steps but
// the last: that one is missing for a moment whenever a month or a day turns. A
// class that a plan has just brought is made at its first row and counts for
// nothing here. While PostgreSQL is away the last answer stands.
func (a *Ahead) Err() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.at.IsZero() && time.Since(a.at) < 15*time.Second {
		return a.last
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	const sql = `SELECT m.parent, m.lower_bound FROM core.missing_partitions($1) m JOIN core.partitioned_tables p USING (parent)
WHERE m.steps >= 0 AND m.steps < p.ahead GROUP BY m.parent, m.lower_bound
HAVING count(m.retention_months) IN (0, (SELECT count(*) FROM core.retention_classes)) ORDER BY m.lower_bound, m.parent LIMIT 1`
	var parent string
	var from time.Time
	err := a.pool.QueryRow(ctx, sql, a.now()).Scan(&parent, &from)
	switch {
	case err == nil:
		a.last = fmt.Errorf("%s has none for %s: run `carril maintain`, or `carril partitions ensure`", parent, from.UTC().Format(time.DateOnly))
	case errors.Is(err, pgx.ErrNoRows):
		a.last = nil
	default:
		return a.last
	}
	a.at = time.Now()
	return a.last
}
