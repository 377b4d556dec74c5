package pg

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Config of a pool.
type Config struct {
	URL      string
	MaxConns int32           // default 8
	Acquire  time.Duration   // longest wait for a new connection; default 5 s
	Tracer   pgx.QueryTracer // hears of every statement; nil: nobody does
	// ByKey says that whoever uses the pool finds rows by their keys and reads no
	// table whole.
	ByKey bool
}

// What PostgreSQL keeps a plan for was small when it was planned, in a new
// installation and in each day's new partitions: a plan that reads all of a table
// of three pages is kept, by foreign keys' own checks too, while the table grows a
// thousand times larger, until its statistics are taken (docs/decisions/plans.md).
const (
	settings      = "SET random_page_cost = 1.1; SET jit = off"
	settingsByKey = settings + "; SET enable_seqscan = off"
)

// Open makes a pool; it does not wait for the database to be there.
func Open(ctx context.Context, c Config) (*pgxpool.Pool, error) {
	pc, err := pgxpool.ParseConfig(c.URL)
	if err != nil {
		return nil, fmt.Errorf("parse the PostgreSQL URL: %w", err)
	}
	if c.MaxConns == 0 {
		c.MaxConns = 8
	}
	if c.Acquire == 0 {
		c.Acquire = 5 * time.Second
	}
	pc.MaxConns = c.MaxConns
	pc.MinConns = 0
	pc.MaxConnLifetime = 30 * time.Minute
	pc.HealthCheckPeriod = 15 * time.Second
	pc.ConnConfig.ConnectTimeout = c.Acquire
	pc.ConnConfig.Tracer = c.Tracer
	pc.ConnConfig.OnPgError = keepConnection
	set := settings
	if c.ByKey {
		set = settingsByKey
	}
	pc.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error {
		registerUUID(conn.TypeMap())
		// Not at the connection's start: a pooler refuses parameters that it does not know.
		return conn.PgConn().Exec(ctx, set).Close()
	}
	p, err := pgxpool.NewWithConfig(ctx, pc)
	if err != nil {
		return nil, fmt.Errorf("open the PostgreSQL pool: %w", err)
	}
	return p, nil
}

// keepConnection closes what is of no more use after an error: a session that the
// server ends, and one whose server has become a standby. That one would answer
// for ever, and nobody would ever look for the new primary.
func keepConnection(_ *pgconn.PgConn, e *pgconn.PgError) bool {
	return e.SeverityUnlocalized != "FATAL" && e.SeverityUnlocalized != "PANIC" && e.Severity != "FATAL" && e.Code != "25006"
}

// EnsurePartitions makes what every time-partitioned table should have around
// an instant.
func EnsurePartitions(ctx context.Context, db interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}, at time.Time) error {
	var n int
	if err := db.QueryRow(ctx, "SELECT core.ensure_partitions($1)", at).Scan(&n); err != nil {
		return fmt.Errorf("make partitions around %s: %w", at.UTC().Format(time.DateOnly), err)
	}
	return nil
}
