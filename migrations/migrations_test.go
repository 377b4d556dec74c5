package migrations_test

import (
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/softcrum/carril/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

func list(t *testing.T, sql string) []string {
	t.Helper()
	rows, err := testkit.Pool(t).Query(t.Context(), sql)
	require.NoError(t, err)
	got, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(t, err)
	return got
}

func TestEveryTableSaysWhatItIs(t *testing.T) {
	require.Empty(t, list(t, `SELECT c.oid::regclass::text FROM pg_class c WHERE c.relnamespace IN ('core'::regnamespace, 'messaging'::regnamespace)
		AND c.relkind IN ('r', 'p') AND NOT c.relispartition AND obj_description(c.oid) IS NULL`))
}

func TestInvariantsStandInTheTables(t *testing.T) {
	t.Run("EverySendHasItsCause", func(t *testing.T) { // FS-MSG-0003 AC2
		require.ElementsMatch(t, []string{"correlation_id", "origin_event_id"}, list(t, `SELECT column_name::text FROM information_schema.columns
			WHERE table_schema = 'messaging' AND table_name = 'sends' AND column_name IN ('correlation_id', 'origin_event_id') AND is_nullable = 'NO'`))
	})
	t.Run("NoStatusColumnOnSends", func(t *testing.T) { // FS-MSG-0003 AC9
		require.Empty(t, list(t, `SELECT column_name::text FROM information_schema.columns
			WHERE table_schema = 'messaging' AND table_name = 'sends' AND column_name ~ 'status|state'`))
	})
	t.Run("AppendOnlyTablesRefuseChanges", func(t *testing.T) {
		require.Subset(t, list(t, `SELECT DISTINCT tgrelid::regclass::text FROM pg_trigger WHERE tgname = 'append_only'`),
			[]string{"core.tracked_events", "core.points_ledger", "messaging.sends", "messaging.send_status_history", "messaging.gate_events"})
	})
	t.Run("NoRoleOfOursIsSuperuser", func(t *testing.T) {
		require.Len(t, list(t, `SELECT rolname::text FROM pg_roles WHERE rolname IN ('carril_app', 'carril_eraser', 'carril_readonly') AND NOT rolsuper AND NOT rolcreaterole`), 3)
	})
	t.Run("CellIsStamped", func(t *testing.T) {
		require.Empty(t, list(t, `SELECT c.oid::regclass::text FROM pg_class c WHERE c.oid IN ('core.tenants'::regclass, 'core.tracked_events'::regclass,
			'core.contacts'::regclass, 'messaging.sends'::regclass) AND NOT EXISTS (SELECT FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attname = 'cell_id' AND a.attnotnull)`))
	})
}

func TestPartitions(t *testing.T) {
	t.Run("StandReadyAroundNowInUTC", func(t *testing.T) {
		require.Equal(t, []string{"5"}, list(t, `SELECT count(*)::text FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
			WHERE i.inhparent = 'core.tracked_events'::regclass AND c.relname <> 'tracked_events_default'`))
		require.Equal(t, []string{"true"}, list(t, `SELECT bool_and(pg_get_expr(c.relpartbound, c.oid) ~ '-01 00:00:00\+00')::text FROM pg_inherits i
			JOIN pg_class c ON c.oid = i.inhrelid WHERE i.inhparent = 'core.tracked_events'::regclass AND c.relname <> 'tracked_events_default'`))
	})
	t.Run("AreMadeOnceAndWithEveryClass", func(t *testing.T) {
		pool := testkit.Pool(t)
		var first, again bool
		require.NoError(t, pool.QueryRow(t.Context(), `SELECT core.ensure_partition('core.tracked_events', '2024-02-29T23:59:59Z')`).Scan(&first))
		require.NoError(t, pool.QueryRow(t.Context(), `SELECT core.ensure_partition('core.tracked_events', '2024-02-01T00:00:00Z')`).Scan(&again))
		require.True(t, first)
		require.False(t, again)
		var leaves, triggers, indexes int
		require.NoError(t, pool.QueryRow(t.Context(), `SELECT count(*), count(*) FILTER (WHERE EXISTS (SELECT FROM pg_trigger g WHERE g.tgrelid = i.inhrelid AND g.tgname = 'append_only')),
			min((SELECT count(*) FROM pg_index x WHERE x.indrelid = i.inhrelid)) FROM pg_inherits i WHERE i.inhparent = 'core.tracked_events_202402'::regclass`).Scan(&leaves, &triggers, &indexes))
		require.Equal(t, []int{3, 3, 2}, []int{leaves, triggers, indexes}, "faults P14")
	})
}
