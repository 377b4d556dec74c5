package eventlog_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/softcrum/carril/internal/testkit"
	"github.com/softcrum/carril/processor/eventlog"
)

// Over 37 months of three classes the append locks the leaf that it writes, and
// recovery reads those of its span's months.
func TestPlansOver37MonthsTouchTheLeavesOfTheirOwnMonth(t *testing.T) { // FS-CORE-0006 AC8
	t.Parallel()
	pool := testkit.Pool(t)
	now := time.Date(2026, 11, 15, 0, 0, 0, 0, time.UTC)
	_, err := pool.Exec(t.Context(), `SELECT core.ensure_partition('core.tracked_events', $1::timestamptz - i * interval '1 month') FROM generate_series(0, 36) i`, now)
	require.NoError(t, err)
	tx, err := pool.Begin(t.Context())
	require.NoError(t, err)
	defer func() { _ = tx.Rollback(t.Context()) }()
	rows, err := tx.Query(t.Context(), `EXPLAIN `+eventlog.EventsOfSpanSQL, now.Add(-time.Hour), now, []uuid.UUID{uuid.New()}, 1, 0, 100, 100)
	require.NoError(t, err)
	plan, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(t, err)
	require.Equal(t, 3, strings.Count(strings.Join(plan, "\n"), " on tracked_events_2026"), "%v", plan)
	require.NotContains(t, strings.Join(plan, "\n"), "tracked_events_default")
	require.NoError(t, tx.Rollback(t.Context()))

	tx, err = pool.Begin(t.Context())
	require.NoError(t, err)
	_, err = tx.CopyFrom(t.Context(), pgx.Identifier{"core", "tracked_events"}, []string{"tenant_id", "event_id", "cell_id", "contact_id", "kind", "event_name", "properties",
		"occurred_at", "occurred_offset", "received_at", "idempotency_key", "correlation_id", "retention_months", "lane", "lane_seq"},
		pgx.CopyFromRows([][]any{{uuid.New(), uuid.New(), "c", uuid.New(), "track", "a.b", "{}", now, 0, now, "k", "c", 13, 1, 1}}))
	require.NoError(t, err)
	var locked int
	require.NoError(t, tx.QueryRow(t.Context(), `SELECT count(DISTINCT l.relation) FROM pg_locks l JOIN pg_class c ON c.oid = l.relation
		WHERE l.pid = pg_backend_pid() AND c.relkind IN ('r', 'p') AND c.relname LIKE 'tracked_events%'`).Scan(&locked))
	require.Equal(t, 3, locked, "the table, the month and the leaf")
}
