package main

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/softcrum/carril/internal/testkit"
	"github.com/softcrum/carril/processor/archive"
)

func TestExport(t *testing.T) {
	url := testkit.Postgres(t)
	t.Setenv("CARRIL_POSTGRES_URL", url)
	conn, err := pgx.Connect(t.Context(), url)
	require.NoError(t, err)
	defer func() { require.NoError(t, conn.Close(context.WithoutCancel(t.Context()))) }()
	exec := func(sql string, args ...any) {
		_, err := conn.Exec(t.Context(), sql, args...)
		require.NoError(t, err)
	}
	tenant := uuid.New()
	exec(`INSERT INTO core.tenants (tenant_id, slug, name, plan_id, cell_id) VALUES ($1, 'acme', 'x', 'starter', 'c1')`, tenant)
	exec(`SELECT core.ensure_partition('core.tracked_events', '2023-03-01Z')`)
	exec(`INSERT INTO core.tracked_events (tenant_id, event_id, cell_id, contact_id, kind, event_name, properties, occurred_at, occurred_offset,
		received_at, idempotency_key, correlation_id, retention_months, lane, lane_seq)
		SELECT $1, gen_random_uuid(), 'c1', gen_random_uuid(), 'track', 'x', '{}', '2023-03-01Z'::timestamptz + i * interval '1 hour', 0, now(), 'k', 'c', 13, 1, i
		FROM generate_series(1, 50) i`, tenant)
	folder := filepath.Join(t.TempDir(), "with space")
	args := []string{"export", "--tenant", "acme", "--from", "2023-03-01", "--to", "2023-03-02T00:00:00Z", "--out", folder}

	code, out, errs := try(args...)
	require.Equal(t, 0, code, errs)
	require.Empty(t, errs, "no progress where there is no terminal")
	manifest := strings.TrimSpace(out)
	b, err := os.ReadFile(manifest)
	require.NoError(t, err, "standard output is the manifest's path")
	var m archive.Manifest
	require.NoError(t, json.Unmarshal(b, &m))
	require.Equal(t, int64(23), m.Rows)
	require.Len(t, m.Objects, 1)
	require.FileExists(t, filepath.Join(filepath.Dir(manifest), m.Objects[0].Name))

	code, again, errs := try(args...)
	require.Equal(t, 0, code, errs)
	require.Equal(t, out, again)
	require.Contains(t, errs, "made before")
	code, out, errs = try(append(args, "--fresh", "--json", "--format", "parquet")...)
	require.Equal(t, 0, code, errs)
	var done archive.Finished
	require.NoError(t, json.Unmarshal([]byte(out), &done))
	require.Equal(t, int64(23), done.Rows)
	require.False(t, done.AlreadyDone)

	t.Run("GoesToTheStorageOfTheSettings", func(t *testing.T) {
		dir := t.TempDir()
		t.Setenv("CARRIL_STORAGE_URL", "file://"+dir)
		code, out, errs := try(args[:len(args)-2]...)
		require.Equal(t, 0, code, errs)
		require.True(t, strings.HasPrefix(out, dir+"/exports/tenant-"), out)
	})
	for name, wrong := range map[string][]string{
		"Tenant": {"--tenant", "nobody"}, "From": {"--from", "yesterday"}, "Range": {"--to", "2023-03-01"}, "Format": {"--format", "csv"},
		"Compression": {"--compress", "lz4"}, "Out": {"--out", "ftp://example.com/x"}, "OutWithCredentials": {"--out", "s3://a:hunter2@b"},
	} {
		t.Run("Refuses"+name, func(t *testing.T) {
			code, _, errs := try(append(args, wrong...)...)
			require.Equal(t, exitUsage, code, errs)
			require.NotContains(t, errs, "hunter2")
			require.NotContains(t, errs, "storage-url", "the flag is at fault")
		})
	}
	t.Run("RefusesNowhere", func(t *testing.T) {
		code, _, errs := try(args[:len(args)-2]...)
		require.Equal(t, exitUsage, code)
		require.Contains(t, errs, "CARRIL_STORAGE_URL")
	})
}

func TestStorageSettings(t *testing.T) {
	t.Setenv("CARRIL_STORAGE_URL", "s3://bucket/p?endpoint=https://s3.example.com&region=eu-west-1")
	t.Setenv("CARRIL_STORAGE_ACCESS_KEY", "AKIACANARY7")
	secret := filepath.Join(t.TempDir(), "secret")
	require.NoError(t, os.WriteFile(secret, []byte("canary-8\n"), 0o600))
	t.Setenv("CARRIL_STORAGE_SECRET_KEY_FILE", secret)
	code, out, errs := try("config")
	require.Equal(t, 0, code, errs)
	require.Contains(t, out, "storage-url: s3://bucket/p?endpoint=https://s3.example.com&region=eu-west-1\n")
	require.Contains(t, out, "storage-secret-key: ****\n")
	require.NotContains(t, out+errs, "canary")
	require.NotContains(t, out+errs, "CANARY")
	for _, bad := range []string{"/var/lib/x", "s3://u:canary-9@b", "s3://b?endpoint=nowhere", "gs://b"} {
		t.Setenv("CARRIL_STORAGE_URL", bad)
		code, _, errs := try("config")
		require.Equal(t, exitUsage, code, bad)
		require.Contains(t, errs, "storage-url")
		require.NotContains(t, errs, "canary")
	}
}
