package gates_test

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/softcrum/carril/internal/gates"
	"github.com/softcrum/carril/internal/pg"
	"github.com/softcrum/carril/internal/testkit"
)

// explaining runs each statement under EXPLAIN and keeps how many rows its plan
// has gone through.
type explaining struct {
	pool *pgxpool.Pool
	rows float64
}

func (e *explaining) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	var raw []byte
	if err := e.pool.QueryRow(ctx, "EXPLAIN (ANALYZE, TIMING off, FORMAT JSON) "+sql, args...).Scan(&raw); err != nil {
		return nil, err
	}
	var plans []struct{ Plan any }
	if err := json.Unmarshal(raw, &plans); err != nil {
		return nil, err
	}
	e.add(plans[0].Plan)
	return e.pool.Query(ctx, sql, args...)
}

// add sums up what each node has given and thrown away, over all of its loops.
func (e *explaining) add(node any) {
	n := node.(map[string]any)
	number := func(name string) float64 { v, _ := n[name].(float64); return v }
	e.rows += number("Actual Loops") * (number("Actual Rows") + number("Rows Removed by Filter") + number("Rows Removed by Join Filter") + number("Rows Removed by Index Recheck"))
	children, _ := n["Plans"].([]any)
	for _, c := range children {
		e.add(c)
	}
}

// Ten times as many messages cost ten times as much, also before the database has
// statistics of anything: a dry run asks for a thousand at once.
func TestAskCostsByTheMessage(t *testing.T) {
	t.Parallel()
	pool, err := pg.Open(t.Context(), pg.Config{URL: testkit.Postgres(t), ByKey: true}) // as the product's are
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	tenant := newTenant(t, pool)
	for _, sql := range []string{
		`INSERT INTO core.contacts (tenant_id, contact_id, cell_id, known) SELECT $1, md5('k' || i)::uuid, 'c1', true FROM generate_series(1, 1500) i`,
		`INSERT INTO messaging.consents (tenant_id, contact_id, channel, granted, source) SELECT $1, md5('k' || i)::uuid, 'email', true, 'test' FROM generate_series(1, 1500) i`,
		`INSERT INTO core.contact_merges (tenant_id, from_contact, into_contact) SELECT $1, md5('k' || i)::uuid, md5('k' || i + 1)::uuid FROM generate_series(10, 1500, 10) i`,
	} {
		_, err := pool.Exec(t.Context(), sql, tenant)
		require.NoError(t, err)
	}
	var ids []uuid.UUID
	rows, err := pool.Query(t.Context(), `SELECT contact_id FROM core.contacts WHERE tenant_id = $1`, tenant)
	require.NoError(t, err)
	ids, err = pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
	require.NoError(t, err)
	cost := func(n int) float64 {
		subjects := make([]gates.Subject, n)
		for i := range subjects {
			subjects[i] = gates.Subject{TenantID: tenant, ContactID: ids[i], Channel: "email", Category: "marketing", Address: fmt.Sprintf("p%d@example.com", i)}
		}
		e := &explaining{pool: pool}
		_, err := gates.Ask(t.Context(), e, subjects)
		require.NoError(t, err)
		return e.rows / float64(n)
	}
	hundred, thousand := cost(100), cost(1000)
	t.Logf("rows a message: %.0f of a hundred, %.0f of a thousand", hundred, thousand)
	require.Less(t, thousand, 3*hundred)
	require.Less(t, thousand, 500.0, "none of a tenant's contacts and consents but the message's own")
}
