// Package migrations owns the shape of the database: the goose files, embedded,
// and Up, which brings a database to them. The SQL function
// core.ensure_partition, made here, is the one maker of time partitions.
package migrations

import (
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"io/fs"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/lock"
)

//go:embed sql/*.sql
var files embed.FS

// Up applies every migration that the database at url lacks and makes the
// partitions of the months and days around now, one session at a time: replicas that start together wait for each other on an advisory lock.
// The url must reach PostgreSQL directly, not through a transaction pooler.
func Up(ctx context.Context, url string) error {
	cfg, err := pgx.ParseConfig(url)
	if err != nil {
		return fmt.Errorf("parse the PostgreSQL URL: %w", err)
	}
	db := stdlib.OpenDB(*cfg)
	defer db.Close()
	p, err := newProvider(db)
	if err != nil {
		return err
	}
	if _, err := p.Up(ctx); err != nil {
		return fmt.Errorf("migrate: %w", err)
	}
	_, err = EnsurePartitions(ctx, url)
	return err
}

func newProvider(db *sql.DB) (*goose.Provider, error) {
	dir, err := fs.Sub(files, "sql")
	if err != nil {
		return nil, fmt.Errorf("open the embedded migrations: %w", err)
	}
	locker, err := lock.NewPostgresSessionLocker()
	if err != nil {
		return nil, fmt.Errorf("make the migration lock: %w", err)
	}
	p, err := goose.NewProvider(goose.DialectPostgres, db, dir, goose.WithSessionLocker(locker))
	if err != nil {
		return nil, fmt.Errorf("read the migrations: %w", err)
	}
	return p, nil
}

// lockTries of partitions whose locks others hold; each waits a second at most.
const lockTries = 10

// EnsurePartitions makes what every time-partitioned table should have around
// now; it gives the number of partitions made.
func EnsurePartitions(ctx context.Context, url string) (int, error) {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return 0, fmt.Errorf("connect to make partitions: %w", err)
	}
	defer conn.Close(ctx)
	for try := 1; ; try++ {
		var made int
		err := conn.QueryRow(ctx, "SELECT core.ensure_partitions(now())").Scan(&made)
		var pe *pgconn.PgError
		if errors.As(err, &pe) && pe.Code == "55P03" && try < lockTries {
			continue // it has waited a second already
		}
		if err != nil {
			return 0, fmt.Errorf("make partitions: %w", err)
		}
		return made, nil
	}
}
