//go:build kafka

package archive_test

import (
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/softcrum/carril/internal/storage"
	"github.com/softcrum/carril/processor/archive"
)

// duckdb gives an interpreter that has DuckDB: made once, in the project's
// ignored folder.
func duckdb(t *testing.T) string {
	t.Helper()
	venv, err := filepath.Abs("../../.carril/venv-duckdb")
	require.NoError(t, err)
	interpreter := filepath.Join(venv, "bin", "python")
	if exec.Command(interpreter, "-c", "import duckdb").Run() == nil {
		return interpreter
	}
	out, err := exec.Command("python3", "-m", "venv", venv).CombinedOutput()
	require.NoError(t, err, "python3 -m venv: %s", out)
	out, err = exec.Command(interpreter, "-m", "pip", "install", "--quiet", "duckdb==2.0.1").CombinedOutput()
	require.NoError(t, err, "install DuckDB: %s", out)
	return interpreter
}

// TestDuckDB (FS-CORE-0006 AC7) reads exports with DuckDB as docs/analysts.md
// says: the same count, and every line byte for byte.
func TestDuckDB(t *testing.T) {
	python := duckdb(t)
	s := newShop(t)
	for _, tenant := range s.tenants[:2] {
		s.fill(tenant, month, 4*len(properties))
	}
	s.exec(`INSERT INTO core.tracked_events (tenant_id, event_id, cell_id, contact_id, kind, event_name, properties, occurred_at, occurred_offset,
		received_at, idempotency_key, correlation_id, retention_months, lane, lane_seq)
		SELECT tenant_id, gen_random_uuid(), 'c1', gen_random_uuid(), 'track', 'total.given', '{"total": 12345678901234567890.123456789}', occurred_at, 0, now(), 'k', 'c', 13, 1, 1
		FROM core.tracked_events WHERE occurred_at >= '2023-03-01Z' AND occurred_at < '2023-04-01Z' AND lane_seq = 1`)
	l := s.detach()
	blocks := snippets(t, "### With DuckDB", "python")
	require.Len(t, blocks, 3)
	sums := func(out string) {
		require.Contains(t, out, `('invoice.paid', 32, `)
		require.Contains(t, out, `('total.given', 2, Decimal('24691357802469135780.246913578')`, "two times, with every digit")
		require.Contains(t, out, `2023-03-01 00:00:01.000001+00`)
	}
	for i, c := range []archive.Compression{archive.Zstd, archive.Gzip} {
		l.RetentionMonths += i
		name, _, err := s.archive(archive.Config{Compression: c, ObjectBytes: 500_000}).Export(t.Context(), l)
		require.NoError(t, err)
		sums(runIn(t, s.folder(name), python, "-c", blocks[0]))
		require.Equal(t, "34", runIn(t, s.folder(name), python, "-c", blocks[1]))
	}
	done, err := s.archive(archive.Config{}).Run(t.Context(), archive.Request{TenantID: s.tenants[0], From: month, To: month.AddDate(0, 1, 0),
		Format: archive.FormatParquet, Compression: archive.Zstd}, false)
	require.NoError(t, err)
	out := runIn(t, s.folder(done.Manifest), python, "-c", blocks[2])
	require.Contains(t, out, `('invoice.paid', 16, `)
	require.Contains(t, out, `('total.given', 1, Decimal('12345678901234567890.123456789')`)
	require.Contains(t, out, `'UUID'`)
}

// TestOnS3 exports to a real server, verifies, rewrites and reads back.
func TestOnS3(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	s.cfg = storage.Config{URL: os.Getenv("CARRIL_TEST_STORAGE_URL"), AccessKey: os.Getenv("CARRIL_TEST_STORAGE_ACCESS_KEY"),
		SecretKey: os.Getenv("CARRIL_TEST_STORAGE_SECRET_KEY"), PartBytes: 5 << 20}
	require.NotEmpty(t, s.cfg.URL, "CARRIL_TEST_STORAGE_URL names no server: see `make test-kafka`")
	var err error
	s.storage, err = storage.Open(s.cfg)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.storage.Close()) })
	for _, tenant := range s.tenants {
		s.fill(tenant, month, 60)
	}
	l, a := s.detach(), s.archive(archive.Config{})
	s.kill(child{Do: "export", Leaf: l, Point: archive.PointObjects})
	name, d, err := a.Export(t.Context(), l)
	require.NoError(t, err)
	require.Equal(t, d, s.digest(a, l.Table))
	verified, err := a.Verify(t.Context(), name)
	require.NoError(t, err)
	require.Equal(t, d, verified)
	for _, o := range s.manifest(name).Objects {
		require.True(t, strings.HasPrefix(o.StorageDigest, "etag:"))
	}
	s.kill(child{Do: "rewrite", Manifest: name, Erase: `"key-4-`, Point: archive.PointReplaced, Nth: 2})
	require.NoError(t, a.Rewrite(t.Context(), name, uuid.Nil, without(`"key-4-`)))
	verified, err = a.Verify(t.Context(), name)
	require.NoError(t, err)
	require.Equal(t, d.Rows-3, verified.Rows)
	require.NoError(t, a.Discard(t.Context(), name))
	require.Empty(t, s.objects(path.Dir(name)+"/"))
}
