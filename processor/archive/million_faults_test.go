//go:build faults

package archive_test

import (
	"path"
	"runtime"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/softcrum/carril/processor/archive"
)

// TestFaultMillion (FS-CORE-0006 AC7, F5) exports a million rows, killed at every
// step, and holds memory and work to what they should be. It prints what each
// step cost.
func TestFaultMillion(t *testing.T) {
	s := newShop(t)
	const rows = 1_000_000
	saved := properties
	t.Cleanup(func() { properties = saved })
	// About 800 bytes a row, as events are.
	properties = append([]string{}, saved[:3]...)
	properties = append(properties, `{"invoice": "2026-000889", "total": 182500.50, "currency": "COP", "lines": [{"sku": "A-1", "n": 2, "price": 41250.25}, {"sku": "B-7", "n": 1, "price": 100000.00}],
		"store": "pos-17", "cashier": "c-102938", "note": "paid in cash, receipt printed, customer asked for a copy by email"}`)
	for i, tenant := range s.tenants {
		s.fill(tenant, month, []int{600_000, 399_000, 1_000}[i])
	}
	s.exec(`ANALYZE core.tracked_events_202303_r13`)
	l := s.detach()
	cfg := archive.Config{ObjectBytes: 128 << 20}
	a := s.archive(cfg)
	step := func(name string, f func()) {
		runtime.GC()
		began := time.Now()
		f()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		t.Logf("%-8s %7.1fs %9.0f rows/s, heap in use %d MiB", name, time.Since(began).Seconds(), rows/time.Since(began).Seconds(), m.HeapInuse>>20)
		require.Less(t, m.HeapInuse, uint64(256<<20), "memory does not grow with the table")
	}
	var want archive.Digest
	step("digest", func() { want = s.digest(a, l.Table) })
	require.EqualValues(t, rows, want.Rows)
	for _, c := range []child{{Point: archive.PointObject, Nth: 3}, {Point: archive.PointObjects}, {Point: archive.PointManifest}} {
		c.Do, c.Config, c.Leaf = "export", cfg, l
		c.Leaf.Run = uuid.New()
		s.kill(c)
		var name string
		step("export", func() {
			var d archive.Digest
			var err error
			name, d, err = a.Export(t.Context(), c.Leaf)
			require.NoError(t, err)
			require.Equal(t, want, d)
		})
		step("verify", func() {
			d, err := a.Verify(t.Context(), name)
			require.NoError(t, err)
			require.Equal(t, want, d)
		})
		m := s.manifest(name)
		t.Logf("%d objects, %d MiB stored", len(m.Objects), m.Bytes>>20)
		require.Len(t, s.objects(path.Dir(name)+"/"), len(m.Objects)+1)
		require.NoError(t, a.Discard(t.Context(), name))
	}
	for _, c := range []archive.Compression{archive.Zstd, archive.Gzip} {
		l.Run = uuid.New()
		a := s.archive(archive.Config{Compression: c})
		var name string
		step(string(c), func() {
			var err error
			name, _, err = a.Export(t.Context(), l)
			require.NoError(t, err)
		})
		t.Logf("%s: %d MiB stored", c, s.manifest(name).Bytes>>20)
		if c == archive.Zstd {
			person := child{Do: "rewrite", Config: cfg, Manifest: name, Erase: `"key-777-`, Point: archive.PointReplaced}
			s.kill(person)
			step("rewrite", func() { require.NoError(t, a.Rewrite(t.Context(), name, uuid.Nil, without(person.Erase))) })
			d, err := a.Verify(t.Context(), name)
			require.NoError(t, err)
			require.Equal(t, int64(rows-3), d.Rows)
		}
	}
	r := archive.Request{TenantID: s.tenants[0], From: month.AddDate(0, -1, 0), To: month.AddDate(0, 2, 0), Format: archive.FormatParquet, Compression: archive.Zstd}
	s.kill(child{Do: "run", Config: cfg, Request: r, Point: archive.PointObject})
	step("parquet", func() {
		done, err := a.Run(t.Context(), r, false)
		require.NoError(t, err)
		require.Equal(t, int64(600_000), done.Rows)
	})
}
