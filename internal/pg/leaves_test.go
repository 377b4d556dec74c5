package pg

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/softcrum/carril/internal/testkit"
)

func TestLockLeaves(t *testing.T) {
	t.Parallel()
	month := time.Date(2023, 3, 1, 0, 0, 0, 0, time.UTC)
	opts := pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}
	pool := testkit.Pool(t)
	exec := func(sql string, args ...any) {
		_, err := pool.Exec(t.Context(), sql, args...)
		require.NoError(t, err)
	}
	for i := range 2 {
		exec(`SELECT core.ensure_partition('core.tracked_events', $1)`, month.AddDate(0, i, 0))
	}
	leaves := func(from, to time.Time) (names []string) {
		require.NoError(t, pgx.BeginTxFunc(t.Context(), pool, opts, func(tx pgx.Tx) (err error) {
			names, err = LockLeaves(t.Context(), tx, "core.tracked_events", from, to)
			return err
		}))
		return names
	}
	march := []string{"core.tracked_events_202303_r13", "core.tracked_events_202303_r25", "core.tracked_events_202303_r37", "core.tracked_events_default"}
	require.Equal(t, march, leaves(month, month.AddDate(0, 1, 0)), "of the range alone, and DEFAULT")
	require.Len(t, leaves(month.AddDate(0, 1, -1), month.AddDate(0, 1, 1)), 7)
	require.Equal(t, march[3:], leaves(month.AddDate(-9, 0, 0), month.AddDate(-8, 0, 0)))
	// what retention has detached, and not what it has dropped
	exec(`INSERT INTO core.retention_ledger (run_id, parent, leaf, leaf_oid, lower_bound, upper_bound, retention_months, state)
		SELECT gen_random_uuid(), 'core.tracked_events', 'x', 'core.tracked_events_202303_r13'::regclass, '2023-03-01Z', '2023-04-01Z', 13, 'detached'`)
	exec(`ALTER TABLE core.tracked_events_202303 DETACH PARTITION core.tracked_events_202303_r13`)
	require.Equal(t, march, leaves(month, month.AddDate(0, 0, 1)))
	require.NotContains(t, leaves(month.AddDate(0, 1, 0), month.AddDate(0, 2, 0)), march[0])

	// A leaf goes, or gives its name away, behind the snapshot's back.
	for _, change := range []string{`DROP TABLE core.tracked_events_202303_r13`,
		`ALTER TABLE core.tracked_events_202303_r25 RENAME TO old; CREATE TABLE core.tracked_events_202303_r25 (LIKE core.tracked_events)`} {
		tx, err := pool.BeginTx(t.Context(), opts)
		require.NoError(t, err)
		_, err = tx.Exec(t.Context(), `SELECT count(*) FROM core.plans`) // takes the snapshot
		require.NoError(t, err)
		exec(change)
		_, err = LockLeaves(t.Context(), tx, "core.tracked_events", month, month.AddDate(0, 0, 1))
		require.NoError(t, tx.Rollback(t.Context())) // first: a pool waits for what is open
		require.ErrorIs(t, err, ErrLeafMoved, change)
	}
	// The parent is not held: a detach elsewhere goes on beside a long read.
	tx, err := pool.BeginTx(t.Context(), opts)
	require.NoError(t, err)
	_, err = LockLeaves(t.Context(), tx, "core.tracked_events", month.AddDate(0, 1, 0), month.AddDate(0, 2, 0))
	require.NoError(t, err)
	exec(`SET lock_timeout = '10s'; ALTER TABLE core.tracked_events_202303 DETACH PARTITION core.tracked_events_202303_r37; RESET lock_timeout`)
	require.NoError(t, tx.Rollback(t.Context()))
}
