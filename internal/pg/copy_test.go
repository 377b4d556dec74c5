package pg

import (
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"github.com/softcrum/carril/internal/testkit"
)

func TestCopy(t *testing.T) {
	t.Parallel()
	pool, err := Open(t.Context(), Config{URL: testkit.Postgres(t), MaxConns: 1})
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	conn, err := pool.Acquire(t.Context())
	require.NoError(t, err)
	t.Cleanup(conn.Release)
	_, err = conn.Exec(t.Context(), `CREATE TEMP TABLE copied (id uuid, name text, raw bytea, doc jsonb CHECK (doc <> '[]'), yes bool, small smallint, mid int, big bigint,
		at timestamptz, maybe timestamptz)`)
	require.NoError(t, err)
	const sql = `COPY copied FROM STDIN BINARY`
	at := time.Date(1969, 7, 20, 20, 17, 40, 123_456_789, time.UTC)
	id := uuid.New()
	row := func(name, doc string, maybe *time.Time) func(CopyRow, int) CopyRow {
		return func(b CopyRow, i int) CopyRow {
			return b.Columns(10).UUID(id).Text(name).Bytes([]byte{0, 255}).JSONB(doc).Bool(i%2 == 0).Int16(-7).Int32(-70_000).Int64(int64(i)).
				Time(at).TimeOrNull(maybe)
		}
	}

	t.Run("BringsEveryKindOfValue", func(t *testing.T) {
		// The rows are longer than pgx's buffer, one by one and together.
		long := strings.Repeat("é", 50_000)
		require.NoError(t, Copy(t.Context(), conn, sql, 5, row(long, `{"n": 182500.50}`, &at)))
		require.NoError(t, Copy(t.Context(), conn, sql, 1, row("short", `{}`, nil)))
		var n int
		err := conn.QueryRow(t.Context(), `SELECT count(*) FROM copied WHERE id = $1 AND name = $2 AND raw = '\x00ff' AND doc::text = '{"n": 182500.50}'
			AND yes = (big % 2 = 0) AND small = -7 AND mid = -70000 AND big BETWEEN 0 AND 4 AND at = '1969-07-20 20:17:40.123456Z' AND maybe = at`, id, long).Scan(&n)
		require.NoError(t, err)
		require.Equal(t, 5, n)
		require.NoError(t, conn.QueryRow(t.Context(), `SELECT count(*) FROM copied WHERE maybe IS NULL`).Scan(&n))
		require.Equal(t, 1, n)
	})

	t.Run("GivesWhatPostgresRefuses", func(t *testing.T) {
		err := Copy(t.Context(), conn, sql, 3, row("x", `[]`, nil))
		var pe *pgconn.PgError
		require.ErrorAs(t, err, &pe)
		require.Equal(t, "23514", pe.Code)
		require.Equal(t, FaultData, FaultOf(err))
		err = Copy(t.Context(), conn, sql, 3, row("x", `{"a":`, nil))
		require.Equal(t, FaultData, FaultOf(err))
		var one int
		require.NoError(t, conn.QueryRow(t.Context(), `SELECT 1`).Scan(&one), "the connection goes on")
	})
}
