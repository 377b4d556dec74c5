package app

import (
	"bytes"
	"context"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/klauspost/compress/zstd"
	"github.com/stretchr/testify/require"

	"github.com/softcrum/carril/internal/storage"
	"github.com/softcrum/carril/internal/testkit"
	"github.com/softcrum/carril/processor/archive"
	"github.com/softcrum/carril/processor/retention"
)

// stored gives what a folder of exports holds, decompressed.
func stored(t *testing.T, dir string) string {
	t.Helper()
	var all bytes.Buffer
	require.NoError(t, filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		raw, err := os.ReadFile(path)
		require.NoError(t, err)
		if !strings.HasSuffix(path, ".zst") {
			all.Write(raw)
			return nil
		}
		r, err := zstd.NewReader(bytes.NewReader(raw))
		require.NoError(t, err)
		defer r.Close()
		_, err = io.Copy(&all, r)
		return err
	}))
	return all.String()
}

// FS-CORE-0006 AC7 and FS-MSG-0003 AC8, retention and archive together: a leaf
// goes once its export is read back, and an erased person leaves the export.
func TestLeavesGoToStorageAndForgetPeople(t *testing.T) {
	t.Parallel()
	pool, dir := testkit.Pool(t), t.TempDir()
	ctx := t.Context()
	exec := func(sql string, args ...any) {
		t.Helper()
		_, err := pool.Exec(ctx, sql, args...)
		require.NoError(t, err)
	}
	tenant, other, ana := uuid.New(), uuid.New(), uuid.New()
	old := time.Date(2025, 3, 5, 10, 0, 0, 0, time.UTC)
	exec(`INSERT INTO core.outbox_lanes (producer, store) VALUES ('test', 'events')`)
	exec(`INSERT INTO core.outbox_cursors (lane, consumer, cursor) SELECT lane, 'relay', 1000 FROM core.outbox_lanes`)
	exec(`SELECT core.ensure_partition('core.tracked_events', $1)`, old)
	for i, tenant := range []uuid.UUID{tenant, other} {
		exec(`INSERT INTO core.tenants (tenant_id, slug, name, plan_id) VALUES ($1, $2, 'T', 'starter')`, tenant, []string{"a", "b"}[i])
		exec(`INSERT INTO core.tracked_events (tenant_id, event_id, cell_id, contact_id, kind, event_name, properties, occurred_at, occurred_offset, received_at,
    idempotency_key, correlation_id, retention_months, lane, lane_seq)
SELECT $1, gen_random_uuid(), 'cell-1', CASE WHEN n <= 3 THEN $2::uuid ELSE gen_random_uuid() END, 'track', 'invoice.paid',
    CASE WHEN n <= 3 THEN '{"name":"canary-ana","total":12345678901234567890.10}' ELSE '{"name":"somebody","total":1.50}' END::jsonb,
    $3, 0, $3, CASE WHEN n <= 3 THEN 'canary-key-' ELSE 'key-' END || n, 'c', 13, lane, n FROM generate_series(1, 10) n, core.outbox_lanes WHERE producer = 'test'`,
			tenant, ana, old)
	}
	store, err := storage.Open(storage.Config{URL: "file://" + dir})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, store.Close()) })
	arch, err := archive.New(archive.Config{}, archive.Deps{Pool: pool, Storage: store, Log: testkit.Logger(t)})
	require.NoError(t, err)
	job := retention.NewJob(retention.Config{}, retention.Deps{Pool: pool, Exporter: leaves{arch}, Log: testkit.Logger(t),
		Now: func() time.Time { return time.Date(2026, 11, 15, 0, 0, 0, 0, time.UTC) }})
	res, err := job.RunOnce(ctx)
	require.NoError(t, err)
	require.Len(t, res.Dropped, 1)
	require.Equal(t, 20, strings.Count(stored(t, dir), `"event_name"`))
	require.Equal(t, 6, strings.Count(stored(t, dir), "canary-ana"))

	var counted int
	require.NoError(t, pool.QueryRow(ctx, `SELECT sum(count) FROM core.monthly_counts WHERE tenant_id = ANY($1)`, []uuid.UUID{tenant, other}).Scan(&counted))
	require.Equal(t, 20, counted)

	for range 2 { // a repeat finds nothing to do
		open, err := arch.Erase(context.WithoutCancel(ctx), tenant, []uuid.UUID{ana})
		require.NoError(t, err)
		require.Zero(t, open)
	}
	after := stored(t, dir)
	require.Equal(t, 3, strings.Count(after, "canary-ana"), "another tenant's contact of the same id is not hers")
	require.Equal(t, 3, strings.Count(after, "canary-key-"))
	require.Equal(t, 20, strings.Count(after, `"event_name"`), "the rows stay as counts")
	require.Equal(t, 14, strings.Count(after, `"total": 1.50`), "digits stand as they stood")
	require.Equal(t, 3, strings.Count(after, "12345678901234567890.10"))
	var manifest string
	require.NoError(t, pool.QueryRow(ctx, `SELECT object FROM core.retention_ledger`).Scan(&manifest))
	d, err := arch.Verify(ctx, manifest)
	require.NoError(t, err)
	require.EqualValues(t, 20, d.Rows)
}
