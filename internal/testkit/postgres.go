package testkit

import (
	"context"
	"fmt"
	"hash/fnv"
	"net/url"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/softcrum/carril/migrations"
)

// Postgres returns the URL of a migrated database that belongs to the test
// alone. It is dropped when the test is over, with whoever is still connected.
func Postgres(t testing.TB) string {
	t.Helper()
	admin := postgresURL(t)
	template, err := shared.template.get(t.Context(), admin)
	if err != nil {
		t.Fatalf("make the migrated template: %v", err)
	}
	name := unique("carril_test_")
	clone := fmt.Sprintf("create database %s template %s strategy wal_log", name, template)
	if err := execute(t.Context(), admin, clone); err != nil {
		t.Fatalf("clone the migrated template: %v", err)
	}
	cleanup(t, "drop the database", func(ctx context.Context) error {
		return execute(ctx, admin, fmt.Sprintf("drop database if exists %s with (force)", name))
	})
	return withDatabase(admin, name)
}

// Pool returns a pool of connections to a database of the test's own.
func Pool(t testing.TB) *pgxpool.Pool {
	t.Helper()
	pool, err := pgxpool.New(t.Context(), Postgres(t))
	if err != nil {
		t.Fatalf("open a pool: %v", err)
	}
	t.Cleanup(func() { Ends(t, "somebody's use of a connection", pool.Close) })
	return pool
}

// lazyTemplate makes the template once per process; an advisory lock makes
// it once per server.
type lazyTemplate struct {
	mu   sync.Mutex
	name string
}

func (l *lazyTemplate) get(ctx context.Context, admin string) (string, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.name != "" {
		return l.name, nil
	}
	name := templateName(time.Now())
	if err := makeTemplate(ctx, admin, name); err != nil {
		return "", err
	}
	l.name = name
	return name, nil
}

// templateName follows the content of the migrations, and the month: the
// partitions made after the migrations do too.
func templateName(now time.Time) string {
	return fmt.Sprintf("carril_template_%s_%s", migrations.Fingerprint(), now.UTC().Format("200601"))
}

// makeTemplate makes the template unless it is there. It is migrated under
// another name: one that a killed run left unfinished never counts as made.
func makeTemplate(ctx context.Context, admin, name string) error {
	conn, err := pgx.Connect(ctx, admin)
	if err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	defer conn.Close(context.WithoutCancel(ctx))
	if _, err := conn.Exec(ctx, "select pg_advisory_lock($1)", lockKey(name)); err != nil {
		return fmt.Errorf("wait for another process's template: %w", err)
	}
	var there bool
	err = conn.QueryRow(ctx, "select exists (select from pg_database where datname = $1)", name).Scan(&there)
	if err != nil || there {
		return err
	}
	draft := name + "_draft"
	for _, sql := range []string{"drop database if exists " + draft + " with (force)", "create database " + draft} {
		if _, err := conn.Exec(ctx, sql); err != nil {
			return fmt.Errorf("make a database: %w", err)
		}
	}
	if err := migrate(ctx, withDatabase(admin, draft)); err != nil {
		return err
	}
	// Nobody may connect to a template that is being cloned, autovacuum included.
	for _, sql := range []string{
		"alter database " + draft + " with allow_connections false is_template true",
		"alter database " + draft + " rename to " + name,
	} {
		if _, err := conn.Exec(ctx, sql); err != nil {
			return fmt.Errorf("finish the template: %w", err)
		}
	}
	return nil
}

// migrate brings the template to what a fresh installation has.
func migrate(ctx context.Context, url string) error {
	return migrations.Up(ctx, url)
}

func lockKey(name string) int64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(name))
	return int64(h.Sum64())
}

// execute runs one statement on a connection of its own: creating and
// dropping databases needs one that is in no transaction.
func execute(ctx context.Context, url, sql string) error {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	defer conn.Close(context.WithoutCancel(ctx))
	_, err = conn.Exec(ctx, sql)
	return err
}

func withDatabase(rawURL, database string) string {
	u, err := url.Parse(rawURL)
	if err != nil {
		return rawURL
	}
	u.Path = "/" + database
	return u.String()
}
