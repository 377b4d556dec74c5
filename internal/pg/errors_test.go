package pg

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"github.com/softcrum/carril/internal/testkit"
)

func TestFaultOf(t *testing.T) {
	t.Parallel()
	url := testkit.Postgres(t)
	cfg, err := pgx.ParseConfig(url)
	require.NoError(t, err)
	cfg.Database += "_absent"
	_, err = pgx.ConnectConfig(t.Context(), cfg)
	var ce *pgconn.ConnectError
	require.ErrorAs(t, err, &ce)
	require.Equal(t, FaultWait, FaultOf(err), "a connection that is refused says nothing of the data")
	for code, want := range map[string]Fault{
		"08006": FaultWait, "40001": FaultWait, "53100": FaultWait, "53300": FaultWait, "55P03": FaultWait, "57014": FaultWait, "57P01": FaultWait,
		"57P03": FaultWait, "58030": FaultWait, "25006": FaultWait, "25P03": FaultWait, "28P01": FaultWait, "3D000": FaultWait, "XX000": FaultWait,
		"23505": FaultRace, "21000": FaultRace, "23514": FaultPartition,
		"22021": FaultData, "22P05": FaultData, "23502": FaultData, "54000": FaultData,
		"42P01": FaultStatement, "42703": FaultStatement, "0A000": FaultStatement, "26000": FaultStatement,
	} {
		require.Equal(t, want, FaultOf(&pgconn.PgError{Code: code}), code)
	}
	require.Equal(t, FaultData, FaultOf(&pgconn.PgError{Code: "23514", ConstraintName: "c"}))
	require.Equal(t, FaultWait, FaultOf(context.DeadlineExceeded))
}

// TestPoolAfterAFailover (faults F19): a session of what became a standby is not
// kept; the next one finds the new primary.
func TestPoolAfterAFailover(t *testing.T) {
	t.Parallel()
	pool, err := Open(t.Context(), Config{URL: testkit.Postgres(t), MaxConns: 1})
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	_, err = pool.Exec(t.Context(), `CREATE TABLE t (v int)`)
	require.NoError(t, err)
	_, err = pool.Exec(t.Context(), `SET default_transaction_read_only = on`) // of this session, which is the old primary's
	require.NoError(t, err)
	_, err = pool.Exec(t.Context(), `INSERT INTO t VALUES (1)`)
	require.ErrorContains(t, err, "25006")
	require.Equal(t, FaultWait, FaultOf(err))
	_, err = pool.Exec(t.Context(), `INSERT INTO t VALUES (1)`)
	require.NoError(t, err)
}
