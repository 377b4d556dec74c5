package pg

import (
	"context"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// Captured takes a statement from generated code, which runs what it is asked at
// once, for Queue. It does nothing and answers with nothing.
type Captured struct {
	SQL  string
	Args []any
}

// Exec keeps the statement.
func (c *Captured) Exec(_ context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	c.SQL, c.Args = sql, args
	return pgconn.CommandTag{}, nil
}

// Query keeps nothing: there is no use for it.
func (c *Captured) Query(context.Context, string, ...any) (pgx.Rows, error) {
	return nil, pgx.ErrNoRows
}

// QueryRow keeps the statement.
func (c *Captured) QueryRow(_ context.Context, sql string, args ...any) pgx.Row {
	c.SQL, c.Args = sql, args
	return noRow{}
}

type noRow struct{}

// Scan implements pgx.Row.
func (noRow) Scan(...any) error { return nil }
