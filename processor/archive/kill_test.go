package archive_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/softcrum/carril/internal/storage"
	"github.com/softcrum/carril/processor/archive"
)

// envChild makes the test binary an exporter that kills itself.
const envChild = "CARRIL_ARCHIVE_TEST_CHILD"

// child is what an exporter of the test is told.
type child struct {
	Postgres string
	Storage  storage.Config
	Config   archive.Config
	Do       string // export, rewrite, run
	Leaf     archive.Leaf
	Manifest string
	Erase    string // rewrite: rows that hold it go
	Request  archive.Request
	Point    archive.Point // where it dies
	Nth      int32         // at its n-th arrival there
}

func exportUntilKilled(raw string) {
	var c child
	must(json.Unmarshal([]byte(raw), &c))
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, c.Postgres)
	must(err)
	s, err := storage.Open(c.Storage)
	must(err)
	var arrived atomic.Int32
	a, err := archive.New(c.Config, archive.Deps{Pool: pool, Storage: s, At: func(p archive.Point) {
		if p == c.Point && arrived.Add(1) == c.Nth {
			must(syscall.Kill(os.Getpid(), syscall.SIGKILL))
			select {}
		}
	}})
	must(err)
	switch c.Do {
	case "export":
		_, _, err = a.Export(ctx, c.Leaf)
	case "rewrite":
		err = a.Rewrite(ctx, c.Manifest, uuid.Nil, without(c.Erase))
	case "run":
		_, err = a.Run(ctx, c.Request, false)
	}
	must(err)
	os.Exit(3) // it was to be killed
}

func without(text string) archive.Keep {
	return func(_ uuid.UUID, row []byte) ([]byte, bool, error) {
		return row, !bytes.Contains(row, []byte(text)), nil
	}
}

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(4)
	}
}

// kill runs a process of its own until it has killed itself.
func (s *shop) kill(c child) {
	s.t.Helper()
	c.Postgres, c.Storage = s.pool.Config().ConnString(), s.cfg
	c.Nth = max(c.Nth, 1)
	raw, err := json.Marshal(c)
	require.NoError(s.t, err)
	exe, err := os.Executable()
	require.NoError(s.t, err)
	cmd := exec.CommandContext(s.t.Context(), exe)
	cmd.Env, cmd.Stderr = append(os.Environ(), envChild+"="+string(raw)), os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	err = cmd.Run()
	var exit *exec.ExitError
	require.ErrorAs(s.t, err, &exit)
	require.Equal(s.t, syscall.SIGKILL, exit.Sys().(syscall.WaitStatus).Signal(), "it died of something else")
}

// TestKill (F5: X1; P15) kills a process at every step and runs another: an
// export is whole and verified, or it is not there.
func TestKill(t *testing.T) {
	t.Parallel()
	cfg := archive.Config{ObjectBytes: 500_000}
	t.Run("Export", func(t *testing.T) {
		t.Parallel()
		s := newShop(t)
		for _, tenant := range s.tenants {
			s.fill(tenant, month, 10)
		}
		l, a := s.detach(), s.archive(cfg)
		want := s.digest(a, l.Table)
		for _, c := range []child{{Point: archive.PointObject, Nth: 2}, {Point: archive.PointObjects}, {Point: archive.PointManifest}} {
			c.Do, c.Config, c.Leaf = "export", cfg, l
			c.Leaf.Run = uuid.New()
			s.kill(c)
			left := s.objects("retention/")
			require.Equal(t, c.Point == archive.PointManifest, strings.Contains(fmt.Sprint(left), c.Leaf.Run.String()+"/manifest.json"))
			name, d, err := a.Export(t.Context(), c.Leaf)
			require.NoError(t, err)
			require.Equal(t, want, d)
			verified, err := a.Verify(t.Context(), name)
			require.NoError(t, err)
			require.Equal(t, want, verified)
			require.Len(t, s.objects(path.Dir(name)+"/"), len(s.manifest(name).Objects)+1, "no leftovers of the killed one")
		}
	})
	t.Run("Rewrite", func(t *testing.T) {
		t.Parallel()
		s := newShop(t)
		for _, tenant := range s.tenants {
			s.fill(tenant, month, 10)
		}
		l, a := s.detach(), s.archive(cfg)
		for _, c := range []child{{Point: archive.PointObject}, {Point: archive.PointRewrite, Nth: 2}, {Point: archive.PointReplaced}, {Point: archive.PointReplaced, Nth: 2}} {
			c.Do, c.Config, c.Erase = "rewrite", cfg, `"key-4-`
			l.Run = uuid.New()
			var err error
			c.Manifest, _, err = a.Export(t.Context(), l)
			require.NoError(t, err)
			s.kill(c)
			_, err = a.Verify(t.Context(), c.Manifest)
			require.NoError(t, err, "whole at any moment")
			require.NoError(t, a.Rewrite(t.Context(), c.Manifest, uuid.Nil, without(c.Erase)))
			verified, err := a.Verify(t.Context(), c.Manifest)
			require.NoError(t, err)
			require.Equal(t, int64(27), verified.Rows)
			require.Equal(t, 3, s.manifest(c.Manifest).Rewrites)
			for _, o := range s.objects(path.Dir(c.Manifest) + "/tenant-") {
				require.NotContains(t, strings.Join(s.lines(o), "\n"), c.Erase, "also in what nothing names")
			}
		}
	})
	t.Run("Run", func(t *testing.T) {
		t.Parallel()
		s := newShop(t)
		tenant := s.tenants[0]
		for i := range 3 {
			at := month.AddDate(0, i, 0)
			s.exec(`SELECT core.ensure_partition('core.tracked_events', $1)`, at)
			s.fill(tenant, at, 5)
			s.fill(s.tenants[1], at, 5)
		}
		s.detach()
		for i, c := range []child{{Point: archive.PointObject, Nth: 2}, {Point: archive.PointRecorded, Nth: 2}, {Point: archive.PointObjects}, {Point: archive.PointManifest}} {
			c.Do, c.Config = "run", cfg
			// Each of its own minute, so that none is the other's.
			c.Request = archive.Request{TenantID: tenant, From: month.AddDate(0, 0, -1).UTC(), To: month.AddDate(0, 3, i).UTC(), Format: archive.FormatNDJSON, Compression: archive.Zstd}
			s.kill(c)
			made := 0
			a, err := archive.New(cfg, archive.Deps{Pool: s.pool, Storage: s.storage, At: func(p archive.Point) {
				if p == archive.PointObject {
					made++
				}
			}})
			require.NoError(t, err)
			done, err := a.Run(t.Context(), c.Request, false)
			require.NoError(t, err)
			require.Equal(t, int64(15), done.Rows)
			require.Equal(t, map[archive.Point]int{archive.PointObject: 2, archive.PointRecorded: 2, archive.PointObjects: 0, archive.PointManifest: 0}[c.Point], made,
				"goes on where it stopped after %s", c.Point)
			require.Len(t, s.objects(path.Dir(done.Manifest)+"/"), done.Objects+1)
			_, err = a.Verify(t.Context(), done.Manifest)
			require.NoError(t, err)
		}
	})
}
