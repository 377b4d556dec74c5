package devstack

import (
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestPorts(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "ports.json")
	open := func() *ports {
		p, err := openPorts(path)
		require.NoError(t, err)
		return p
	}
	first, err := open().get("kafka")
	require.NoError(t, err)
	again, err := open().get("kafka")
	require.NoError(t, err)
	require.Equal(t, first, again, "a port is kept")
	other, err := open().get("redis")
	require.NoError(t, err)
	require.NotEqual(t, first, other)

	l, err := net.Listen("tcp", loopback(first))
	require.NoError(t, err)
	defer l.Close()
	moved, err := open().get("kafka")
	require.NoError(t, err)
	require.NotEqual(t, first, moved, "a port that a stranger holds is given up")
}

func TestAccountReaches(t *testing.T) {
	t.Parallel()
	stranger := account{name: "stranger", uid: 4_000_000, gid: 4_000_000}
	open, err := os.MkdirTemp("", "carril-devstack-test-")
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(open) })
	inner := filepath.Join(open, "inner")
	require.NoError(t, os.Mkdir(inner, 0o755))

	require.NoError(t, os.Chmod(open, 0o711))
	require.True(t, stranger.reaches(inner))
	require.NoError(t, os.Chmod(open, 0o700))
	require.False(t, stranger.reaches(inner))
	require.True(t, account{}.reaches(inner), "this process's own user needs no check")
}

func TestPinnedMajor(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	require.Zero(t, pinnedMajor(dir))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "PG_VERSION"), []byte("16\n"), 0o600))
	require.Equal(t, 16, pinnedMajor(dir))
}

func TestClearStale(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	pid := filepath.Join(dir, "postmaster.pid")
	require.NoError(t, os.WriteFile(pid, []byte("1\n"), 0o600))
	c := &cluster{dir: dir}
	require.False(t, c.clearStale("out of memory"))
	require.FileExists(t, pid)
	require.True(t, c.clearStale(`FATAL: lock file "postmaster.pid" already exists`))
	require.NoFileExists(t, pid)
}
