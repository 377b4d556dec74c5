package bucket

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/softcrum/carril/internal/ratelimit"
)

// Scopes of a bucket, as messaging.rate_limit_buckets names them.
const (
	ScopeGlobal = "global" // the provider's own
	ScopeTenant = "tenant"
)

// MaxRate is the highest rate and burst that a row may have: far beyond any
// provider, and within what the script's microseconds can tell apart.
const MaxRate = 1e6

// Place says whose bucket a row is.
type Place struct {
	Scope    string // ScopeGlobal or ScopeTenant
	Provider string
	Tenant   *uuid.UUID // of ScopeTenant; nil: every tenant without a row of its own
	Rail     string     // of ScopeTenant; empty: each of both
}

// Row is a bucket as it is configured. The quotas and the reserve are nil where
// the settings say them, and always on a tenant's.
type Row struct {
	Place
	ratelimit.Bucket
	DayQuota   *int
	MonthQuota *int
	Reserve    *float64
	UpdatedAt  time.Time // zero of a default
	Slug       string    // of the tenant, from List; empty of one that is gone
}

// Change is what becomes different of a row: nil leaves a field as it is.
type Change struct {
	Rate       *float64 // tokens a second; required of a tenant's new row
	Capacity   *float64 // at least 1; 1 of a new row
	DayQuota   *int     // 0: none
	MonthQuota *int     // 0: none
	Reserve    *float64 // 0 to below 1
	Force      bool     // a rate above the one that the provider states
}

// RefusedError is a change that cannot be, and why.
type RefusedError struct{ why string }

func (e *RefusedError) Error() string { return e.why }

func refuse(format string, args ...any) error {
	return &RefusedError{fmt.Sprintf(format, args...)}
}

// Default is the bucket of a provider without a row.
func Default(provider string, s Stated) Row {
	rate := s.RatePerSecond
	if rate <= 0 {
		rate = 1 // a provider that nobody described is treated gently
	}
	return Row{Place: Place{Scope: ScopeGlobal, Provider: provider}, Bucket: ratelimit.Bucket{Capacity: 1, Rate: share * rate}}
}

const rowColumns = `b.scope, b.provider, b.tenant_id, coalesce(b.rail, ''), b.capacity, b.refill_per_second, b.day_quota, b.month_quota, b.reserve, b.updated_at`

func (r *Row) fields() []any {
	return []any{&r.Scope, &r.Provider, &r.Tenant, &r.Rail, &r.Capacity, &r.Rate, &r.DayQuota, &r.MonthQuota, &r.Reserve, &r.UpdatedAt}
}

// List reads every row, the providers' own first.
func List(ctx context.Context, pool *pgxpool.Pool) ([]Row, error) {
	const sql = `SELECT ` + rowColumns + `, coalesce(t.slug, '') FROM messaging.rate_limit_buckets b LEFT JOIN core.tenants t USING (tenant_id)
ORDER BY b.scope, b.provider, t.slug NULLS FIRST, b.tenant_id NULLS FIRST, b.rail NULLS FIRST`
	rows, err := pool.Query(ctx, sql)
	if err != nil {
		return nil, fmt.Errorf("list the buckets: %w", err)
	}
	list, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (r Row, err error) {
		err = row.Scan(append(r.fields(), &r.Slug)...)
		return r, err
	})
	if err != nil {
		return nil, fmt.Errorf("list the buckets: %w", err)
	}
	return list, nil
}

// Set changes one row, or makes it. before is what held until now; its UpdatedAt
// is zero where that was no row, and its Rate where a tenant had no bucket. The
// error is a *RefusedError where the change cannot be. Every limiter hears of it.
func Set(ctx context.Context, pool *pgxpool.Pool, at Place, s Stated, c Change) (before, after Row, err error) {
	err = pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		if before, err = held(ctx, tx, at, s); err != nil {
			return err
		}
		if after, err = before.with(c, s); err != nil {
			return err
		}
		const sql = `INSERT INTO messaging.rate_limit_buckets (scope, provider, tenant_id, rail, capacity, refill_per_second, day_quota, month_quota, reserve)
VALUES ($1, $2, $3, nullif($4, ''), $5, $6, $7, $8, $9)
ON CONFLICT (scope, provider, tenant_id, rail) DO UPDATE SET capacity = EXCLUDED.capacity, refill_per_second = EXCLUDED.refill_per_second,
    day_quota = EXCLUDED.day_quota, month_quota = EXCLUDED.month_quota, reserve = EXCLUDED.reserve, updated_at = now()
RETURNING updated_at`
		return tx.QueryRow(ctx, sql, at.Scope, at.Provider, at.Tenant, at.Rail, after.Capacity, after.Rate, after.DayQuota, after.MonthQuota, after.Reserve).
			Scan(&after.UpdatedAt)
	})
	return before, after, said("set a bucket", err)
}

// Reset removes a row, so that what holds without it is in force again: the
// answer is as Set's. Where there was none, before and after are the same.
func Reset(ctx context.Context, pool *pgxpool.Pool, at Place, s Stated) (before, after Row, err error) {
	err = pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		if before, err = held(ctx, tx, at, s); err != nil {
			return err
		}
		const sql = `DELETE FROM messaging.rate_limit_buckets b WHERE ` + isAt
		_, err = tx.Exec(ctx, sql, at.Scope, at.Provider, at.Tenant, at.Rail)
		return err
	})
	return before, without(at, s), said("reset a bucket", err)
}

func said(what string, err error) error {
	var refused *RefusedError
	if err == nil || errors.As(err, &refused) {
		return err
	}
	return fmt.Errorf("%s: %w", what, err)
}

const isAt = `b.scope = $1 AND b.provider = $2 AND b.tenant_id IS NOT DISTINCT FROM $3 AND coalesce(b.rail, '') = $4`

// held gives what holds at a place, and keeps other writers of rows away until
// the transaction ends: two changes of different fields must both land.
func held(ctx context.Context, tx pgx.Tx, at Place, s Stated) (Row, error) {
	if _, err := tx.Exec(ctx, `LOCK TABLE messaging.rate_limit_buckets IN SHARE ROW EXCLUSIVE MODE`); err != nil {
		return Row{}, err
	}
	r := without(at, s)
	err := tx.QueryRow(ctx, `SELECT `+rowColumns+` FROM messaging.rate_limit_buckets b WHERE `+isAt, at.Scope, at.Provider, at.Tenant, at.Rail).Scan(r.fields()...)
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return Row{}, err
	}
	return r, nil
}

// without is what holds at a place that has no row: the provider's default, and
// of a tenant no bucket.
func without(at Place, s Stated) Row {
	if at.Scope == ScopeGlobal {
		return Default(at.Provider, s)
	}
	return Row{Place: at}
}

// with is a row as a change leaves it.
func (r Row) with(c Change, s Stated) (Row, error) {
	if c.Rate == nil && r.Rate == 0 {
		return r, refuse("rate: a tenant's bucket has none by default, so its first row must say it")
	}
	if r.Scope != ScopeGlobal && (c.DayQuota != nil || c.MonthQuota != nil || c.Reserve != nil) {
		return r, refuse("quotas and the reserve are of the provider's account, and so of its own bucket alone: leave the tenant out")
	}
	r.Capacity = max(r.Capacity, 1)
	for _, f := range []struct {
		name     string
		from, to *float64
		least    float64
	}{{"rate", c.Rate, &r.Rate, math.SmallestNonzeroFloat64}, {"capacity", c.Capacity, &r.Capacity, 1}} {
		if f.from == nil {
			continue
		}
		if !(*f.from >= f.least && *f.from <= MaxRate) { // NaN is neither
			return r, refuse("%s: %v is not between %s and %.0f", f.name, *f.from, map[bool]string{true: "1", false: "above 0"}[f.least == 1], MaxRate)
		}
		*f.to = *f.from
	}
	if r.Scope == ScopeGlobal && c.Rate != nil && s.RatePerSecond > 0 && *c.Rate > s.RatePerSecond && !c.Force {
		return r, refuse("rate: %v a second is above the %v that %s is said to allow, and everybody would pay for it with 429s; "+
			"raise the setting if the provider has raised its limit, or say --force", *c.Rate, s.RatePerSecond, r.Provider)
	}
	for _, f := range []struct {
		name string
		from *int
		to   **int
	}{{"day-quota", c.DayQuota, &r.DayQuota}, {"month-quota", c.MonthQuota, &r.MonthQuota}} {
		if f.from == nil {
			continue
		}
		if *f.from < 0 || *f.from > math.MaxInt32 {
			return r, refuse("%s: %d is not between 0 and %d", f.name, *f.from, math.MaxInt32)
		}
		*f.to = f.from
	}
	if c.Reserve != nil {
		if !(*c.Reserve >= 0 && *c.Reserve < 1) {
			return r, refuse("reserve: %v is not between 0 and below 1", *c.Reserve)
		}
		r.Reserve = c.Reserve
	}
	return r, nil
}
