package main

import (
	"context"
	"encoding/json"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/softcrum/carril/internal/testkit"
	"github.com/softcrum/carril/processor/partition"
	"github.com/softcrum/carril/processor/retention"
)

func TestPartitionsAndRetention(t *testing.T) {
	url := testkit.Postgres(t)
	ask := func(args ...string) (int, string, string) {
		t.Helper()
		return try(append(args, "--postgres-url="+url)...)
	}
	exec := func(sql string) {
		t.Helper()
		conn, err := pgx.Connect(t.Context(), url)
		require.NoError(t, err)
		defer conn.Close(context.WithoutCancel(t.Context()))
		_, err = conn.Exec(t.Context(), sql)
		require.NoError(t, err)
	}
	event := func(at string) {
		t.Helper()
		exec(`INSERT INTO core.tracked_events (tenant_id, event_id, cell_id, contact_id, kind, event_name, properties, occurred_at, occurred_offset, received_at,
			idempotency_key, correlation_id, retention_months, lane, lane_seq) VALUES (gen_random_uuid(), gen_random_uuid(), 'c', gen_random_uuid(), 'track', 'a.b', '{}',
			'` + at + `', 0, '` + at + `', 'k', 'c', 13, 1, 1)`)
	}

	t.Run("ListShowsBoundsClassesAndSizes", func(t *testing.T) {
		code, out, stderr := ask("partitions", "list", "core.tracked_events", "--json")
		require.Zero(t, code, stderr)
		var ps []partition.Partition
		require.NoError(t, json.Unmarshal([]byte(out), &ps))
		require.Len(t, ps, 5*3+1)
		code, out, _ = ask("partitions", "list")
		require.Zero(t, code)
		require.Contains(t, out, "MONTHS")
		require.Contains(t, out, "messaging.send_requests_")
		code, _, stderr = ask("partitions", "list", "core.nothing")
		require.Equal(t, exitFailed, code)
		require.Contains(t, stderr, "no time-partitioned table")
	})

	t.Run("EnsureMakesOneOrAll", func(t *testing.T) {
		code, _, stderr := ask("partitions", "ensure")
		require.Zero(t, code)
		require.Contains(t, stderr, "0 partitions made")
		code, _, stderr = ask("partitions", "ensure", "--table=messaging.sends", "--at=2040-02-29T23:59:59Z", "--class=60")
		require.Zero(t, code, stderr)
		_, out, _ := ask("partitions", "list", "messaging.sends")
		require.Contains(t, out, "messaging.sends_204002_r60")
		code, _, stderr = ask("partitions", "ensure", "--table=core.nothing", "--at=2040-02-29")
		require.Equal(t, exitFailed, code)
		require.Equal(t, "carril: core.nothing is no time-partitioned table\n", stderr)
		code, _, stderr = ask("partitions", "ensure", "--table=messaging.sends", "--at=soon")
		require.Equal(t, exitUsage, code)
		require.Contains(t, stderr, `--at "soon" is no time: 2026-11-01`)
		code, _, _ = ask("partitions", "ensure", "--class=60")
		require.Equal(t, exitUsage, code)
	})

	t.Run("RepairEmptiesDefault", func(t *testing.T) {
		event("2041-06-30T23:59:59Z")
		_, out, _ := ask("partitions", "list", "core.tracked_events")
		require.Contains(t, out, "must be empty")
		code, out, stderr := ask("partitions", "repair")
		require.Zero(t, code, stderr)
		require.Contains(t, out, "1 rows of 2041-06-01")
		require.Contains(t, stderr, "1 rows moved")
		_, _, stderr = ask("partitions", "repair")
		require.Contains(t, stderr, "all DEFAULT partitions are empty")
	})

	t.Run("RetentionSaysWhyALeafStays", func(t *testing.T) {
		exec(`SELECT core.ensure_partition('core.tracked_events', '2020-01-05T00:00:00Z')`)
		event("2020-01-05T00:00:00Z")
		code, out, stderr := ask("retention", "status", "--json")
		require.Zero(t, code, stderr)
		var s retention.Status
		require.NoError(t, json.Unmarshal([]byte(out), &s))
		require.False(t, s.Storage)
		require.Equal(t, "core.tracked_events_202001_r13", s.Due[0].Table)
		for _, args := range [][]string{{"retention", "run", "--dry-run"}, {"retention", "run"}, {"retention", "status"}} {
			code, out, stderr = ask(args...)
			require.Zero(t, code, stderr)
			require.Contains(t, out, "core.tracked_events_202001_r13")
			require.Contains(t, out, "CARRIL_STORAGE_URL")
		}
		exec(`INSERT INTO core.leases VALUES ('maintain:retention', 'another', 99, now() + interval '1 hour')
			ON CONFLICT (name) DO UPDATE SET until = EXCLUDED.until, epoch = 99`)
		code, _, stderr = ask("retention", "run")
		require.Equal(t, exitFailed, code)
		require.Contains(t, stderr, "another process is at it")
	})

	t.Run("HelpTeaches", func(t *testing.T) {
		for _, cmd := range []string{"list", "ensure", "repair"} {
			code, out, _ := try("partitions", cmd, "--help")
			require.Zero(t, code)
			require.Greater(t, len(out), 600, cmd)
		}
		_, out, _ := try("retention", "run", "--help")
		require.Contains(t, out, "lease")
	})
}
