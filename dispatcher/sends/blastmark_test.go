package sends

import (
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/softcrum/carril/internal/testkit"
)

// Reports with different marks of one blast are written by a statement for each
// mark, and an outcome of the same recipients may be on its way: whoever waits
// for a recipient holds those before it and none behind it. Otherwise one that
// holds 2 and waits for 1 meets one that holds 1 and waits for 2.
func TestMarksAreLockedInOneOrder(t *testing.T) {
	t.Parallel()
	pool := testkit.Pool(t)
	tenant, blast := uuid.New(), uuid.New()
	exec := func(sql string, args ...any) {
		_, err := pool.Exec(t.Context(), sql, args...)
		require.NoError(t, err)
	}
	exec(`INSERT INTO core.tenants (tenant_id, slug, name, plan_id) VALUES ($1, 'acme', 'Acme', 'starter')`, tenant)
	exec(`INSERT INTO messaging.blasts (blast_id, tenant_id, channel, name, template_id, template_version, state, recipients, origin_event_id, correlation_id)
VALUES ($1, $2, 'email', 'x', 'x', 1, 'running', 3, $1, 'x')`, blast, tenant)
	exec(`INSERT INTO messaging.blast_recipients (blast_id, position, address) SELECT $1, n, n || '@example.com' FROM generate_series(0, 2) n`, blast)

	outcome, err := pool.Begin(t.Context()) // of the one in the middle
	require.NoError(t, err)
	defer func() { _ = outcome.Rollback(t.Context()) }()
	_, err = outcome.Exec(t.Context(), blastOutcomeSQL, blast, []int64{1}, StateSent, "", uuid.New())
	require.NoError(t, err)

	reports, err := pool.Begin(t.Context())
	require.NoError(t, err)
	defer func() { _ = reports.Rollback(t.Context()) }()
	var pid int32
	require.NoError(t, reports.QueryRow(t.Context(), `SELECT pg_backend_pid()`).Scan(&pid))
	written := make(chan error, 1)
	go func() {
		marks := blastMarks{blast: {0: markDelivered | markReported, 1: markBounced | markReported, 2: markDelivered | markReported}}
		written <- marks.write(t.Context(), reports)
	}()
	waits := func() (yes bool) {
		require.NoError(t, pool.QueryRow(t.Context(), `SELECT cardinality(pg_blocking_pids($1)) > 0`, pid).Scan(&yes))
		return yes
	}
	for deadline := time.Now().Add(60 * time.Second); !waits(); time.Sleep(5 * time.Millisecond) {
		require.True(t, time.Now().Before(deadline), "the reports never came to wait for the outcome")
	}

	look, err := pool.Begin(t.Context())
	require.NoError(t, err)
	rows, err := look.Query(t.Context(), `SELECT position FROM messaging.blast_recipients WHERE blast_id = $1 ORDER BY position FOR NO KEY UPDATE SKIP LOCKED`, blast)
	require.NoError(t, err)
	free, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	require.NoError(t, err)
	require.NoError(t, look.Rollback(t.Context()))
	require.Equal(t, []int64{2}, free, "what is before the one that is waited for is held, and what is behind it is not")

	require.NoError(t, outcome.Commit(t.Context()))
	select {
	case err := <-written:
		require.NoError(t, err)
	case <-time.After(60 * time.Second):
		require.Fail(t, "the reports were never written")
	}
	require.NoError(t, reports.Commit(t.Context()))
	var marks []int16
	require.NoError(t, pool.QueryRow(t.Context(), `SELECT array_agg(marks ORDER BY position) FROM messaging.blast_recipients WHERE blast_id = $1`, blast).Scan(&marks))
	require.Equal(t, []int16{markDelivered | markReported, markBounced | markReported, markDelivered | markReported}, marks)
}
