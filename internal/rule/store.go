package rule

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// MaxRules is how many rules a tenant may have, switched off or not.
const MaxRules = 500

// JudgingVersions is how many of a rule's versions, the newest, judge events.
const JudgingVersions = 50

// Errors of a Store.
var (
	ErrNone    = errors.New("rule: there is no such rule")
	ErrTooMany = fmt.Errorf("rule: a tenant has at most %d rules", MaxRules)
)

// Querier is a pool or a transaction.
type Querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

// Store keeps rules in core.rules. A version is never changed.
type Store struct{ pool *pgxpool.Pool }

// NewStore makes a store over a pool.
func NewStore(pool *pgxpool.Pool) *Store { return &Store{pool} }

// Put writes the next version of a rule, the first where there is none, and
// gives it; where the newest says the same already it gives that one. A later
// version without ValidFrom judges what happens from now on. The errors are
// *Invalid and ErrTooMany.
func (s *Store) Put(ctx context.Context, tenant uuid.UUID, r Rule) (*Rule, error) {
	for _, t := range []**time.Time{&r.ValidFrom, &r.ValidUntil} {
		if *t != nil {
			*t = new((*t).UTC().Truncate(time.Microsecond)) // what the database keeps
		}
	}
	compiled, err := Check(r)
	if err != nil {
		return nil, err
	}
	err = pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `SELECT pg_advisory_xact_lock(hashtextextended('rules ' || $1::text, 0))`, tenant.String()); err != nil {
			return err
		}
		before, err := read(ctx, tx, `tenant_id = $1 AND rule_id = $2`, 1, tenant, r.ID)
		if err != nil {
			return err
		}
		if len(before) == 1 && same(before[0], compiled) {
			compiled = before[0]
			return nil
		}
		if len(before) == 0 {
			if err := room(ctx, tx, tenant); err != nil {
				return err
			}
		}
		return insert(ctx, tx, tenant, compiled, before)
	})
	if err != nil {
		var invalid *Invalid
		if errors.Is(err, ErrTooMany) || errors.As(err, &invalid) {
			return nil, err
		}
		return nil, fmt.Errorf("write a rule: %w", err)
	}
	return compiled, nil
}

// same says whether a rule says what its newest version says. A ValidFrom that
// is not given asks for no other.
func same(old, r *Rule) bool {
	a, b := *old, *r
	if b.ValidFrom == nil {
		b.ValidFrom = a.ValidFrom
	}
	b.Version, b.CreatedAt = a.Version, a.CreatedAt
	a.program, b.program = nil, nil
	one, err1 := json.Marshal(a)
	two, err2 := json.Marshal(b)
	return err1 == nil && err2 == nil && bytes.Equal(one, two)
}

func room(ctx context.Context, tx pgx.Tx, tenant uuid.UUID) error {
	var n int
	if err := tx.QueryRow(ctx, `SELECT count(DISTINCT rule_id) FROM core.rules WHERE tenant_id = $1`, tenant).Scan(&n); err != nil {
		return err
	}
	if n >= MaxRules {
		return ErrTooMany
	}
	return nil
}

func insert(ctx context.Context, tx pgx.Tx, tenant uuid.UUID, r *Rule, before []*Rule) error {
	r.Version = 1
	if len(before) == 1 {
		r.Version = before[0].Version + 1
	}
	actions, err := json.Marshal(r.Actions)
	if err != nil {
		return err
	}
	var count *int
	var window *string
	if r.Cap != nil {
		count = &r.Cap.Count
		if r.Cap.Window != "" {
			window = &r.Cap.Window
		}
	}
	const sql = `INSERT INTO core.rules (tenant_id, rule_id, version, name, event_name, condition, actions, valid_from, valid_until, enabled, cap_count, cap_window)
VALUES ($1, $2, $3, $4, $5, $6, $7, coalesce($8::timestamptz, CASE WHEN $3::integer = 1 THEN '-infinity'::timestamptz ELSE now() END), coalesce($9::timestamptz, 'infinity'), $10, $11, $12)
RETURNING created_at, CASE WHEN isfinite(valid_from) THEN valid_from END`
	err = tx.QueryRow(ctx, sql, tenant, r.ID, r.Version, r.Name, r.EventName, r.Condition, actions, r.ValidFrom, r.ValidUntil, r.Enabled, count, window).
		Scan(&r.CreatedAt, &r.ValidFrom)
	if err != nil {
		return err
	}
	r.utc()
	return r.window() // a later version begins now where it does not say when
}

// utc has times read as they are told: in UTC.
func (r *Rule) utc() {
	r.CreatedAt = r.CreatedAt.UTC()
	for _, t := range []**time.Time{&r.ValidFrom, &r.ValidUntil} {
		if *t != nil {
			*t = new((*t).UTC())
		}
	}
}

// List gives the newest version of each of a tenant's rules, by id.
func (s *Store) List(ctx context.Context, tenant uuid.UUID) ([]*Rule, error) {
	return read(ctx, s.pool, `tenant_id = $1`, 1, tenant)
}

// Get gives the newest version of a rule; ErrNone where there is none.
func (s *Store) Get(ctx context.Context, tenant, id uuid.UUID) (*Rule, error) {
	list, err := read(ctx, s.pool, `tenant_id = $1 AND rule_id = $2`, 1, tenant, id)
	if err == nil && len(list) == 0 {
		err = ErrNone
	}
	if err != nil {
		return nil, err
	}
	return list[0], nil
}

// Versions gives up to JudgingVersions of a rule, newest first; ErrNone where
// there is none.
func (s *Store) Versions(ctx context.Context, tenant, id uuid.UUID) ([]*Rule, error) {
	list, err := read(ctx, s.pool, `tenant_id = $1 AND rule_id = $2`, JudgingVersions, tenant, id)
	if err == nil && len(list) == 0 {
		err = ErrNone
	}
	return list, err
}

// Judging gives the versions that judge a tenant's events, uncompiled, a rule's
// together and newest first.
func Judging(ctx context.Context, db Querier, tenant uuid.UUID) ([]*Rule, error) {
	return read(ctx, db, `tenant_id = $1`, JudgingVersions, tenant)
}

// read gives the newest versions of each rule that where finds.
func read(ctx context.Context, db Querier, where string, versions int, args ...any) ([]*Rule, error) {
	sql := fmt.Sprintf(`SELECT rule_id, version, name, event_name, condition, actions, CASE WHEN isfinite(valid_from) THEN valid_from END,
    CASE WHEN isfinite(valid_until) THEN valid_until END, enabled, cap_count, coalesce(cap_window, ''), created_at
FROM (SELECT *, row_number() OVER (PARTITION BY rule_id ORDER BY version DESC) AS nth
      FROM core.rules WHERE %s) r
WHERE nth <= %d ORDER BY rule_id, version DESC`, where, versions)
	rows, err := db.Query(ctx, sql, args...)
	if err != nil {
		return nil, fmt.Errorf("read rules: %w", err)
	}
	list, err := pgx.CollectRows(rows, scan)
	if err != nil {
		return nil, fmt.Errorf("read rules: %w", err)
	}
	return list, nil
}

func scan(row pgx.CollectableRow) (*Rule, error) {
	var r Rule
	var actions []byte
	var count *int
	var window string
	if err := row.Scan(&r.ID, &r.Version, &r.Name, &r.EventName, &r.Condition, &actions, &r.ValidFrom, &r.ValidUntil, &r.Enabled, &count, &window, &r.CreatedAt); err != nil {
		return nil, err
	}
	if count != nil {
		r.Cap = &Cap{Count: *count, Window: window}
	}
	r.utc()
	if err := json.Unmarshal(actions, &r.Actions); err != nil {
		r.Actions = nil // written past the checks: it does not compile
	}
	return &r, nil
}
