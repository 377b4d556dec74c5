//go:build faults

package e2e

import (
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/softcrum/carril/internal/testkit"
)

// postgresCopy is a server of the test's own that begins with all that the
// services' server holds: it may be filled, starved and lost, and nobody else
// notices.
type postgresCopy struct {
	t    *testing.T
	f    *faultRun
	db   database // the run's, on this server
	addr string
	dir  string
	wal  string // pg_wal
	bin  string
	as   *syscall.SysProcAttr // PostgreSQL refuses to run as root
	cmd  *exec.Cmd
	done chan struct{} // of cmd
	log  *syncBuffer
}

// copyPostgres copies the server, with more arguments to pg_basebackup; start
// starts it.
func (f *faultRun) copyPostgres(args ...string) *postgresCopy {
	f.t.Helper()
	c := newPostgresCopy(f)
	c.take(args...)
	return c
}

func newPostgresCopy(f *faultRun) *postgresCopy {
	f.t.Helper()
	dir, err := os.MkdirTemp("/var/tmp", "carril-postgres-") // PostgreSQL's user must reach it
	require.NoError(f.t, err)
	f.t.Cleanup(func() { _ = os.RemoveAll(dir) })
	uid, gid := f.parts.owner("postgres")
	require.NoError(f.t, os.Chown(dir, uid, gid))
	addr := testkit.Addr(f.t)
	u, err := url.Parse(f.db.url)
	require.NoError(f.t, err)
	c := &postgresCopy{t: f.t, f: f, addr: addr, dir: dir, wal: filepath.Join(dir, "wal"), bin: filepath.Dir(f.parts.binary("postgres")), log: &syncBuffer{},
		db: database{f.t, strings.Replace(f.db.url, u.Host, addr, 1)},
		as: &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, Pdeathsig: syscall.SIGINT}}
	return c
}

func (c *postgresCopy) take(args ...string) {
	c.t.Helper()
	u, err := url.Parse(c.f.db.url)
	require.NoError(c.t, err)
	base := exec.Command(filepath.Join(c.bin, "pg_basebackup"), append([]string{"-h", u.Hostname(), "-p", u.Port(), "-U", "postgres", "-D", c.dir + "/data",
		"--waldir", c.wal, "-X", "stream", "-c", "fast", "--no-sync"}, args...)...)
	base.SysProcAttr, base.Dir = c.as, "/"
	out, err := base.CombinedOutput()
	require.NoError(c.t, err, string(out))
}

// start starts the server, with more settings, and waits until it answers.
func (c *postgresCopy) start(settings ...string) {
	c.t.Helper()
	args := []string{"-D", c.dir + "/data", "-p", c.addr[strings.LastIndexByte(c.addr, ':')+1:]}
	for _, s := range append([]string{"listen_addresses=127.0.0.1", "unix_socket_directories=", "max_connections=300", "max_locks_per_transaction=128", "shared_buffers=128MB", "jit=off"}, settings...) {
		args = append(args, "-c", s)
	}
	cmd := exec.Command(filepath.Join(c.bin, "postgres"), args...)
	cmd.SysProcAttr, cmd.Dir, cmd.Stderr = c.as, "/", c.log
	require.NoError(c.t, cmd.Start())
	done := make(chan struct{})
	go func() { defer close(done); _ = cmd.Wait() }()
	c.cmd, c.done = cmd, done
	c.t.Cleanup(func() { c.end(syscall.SIGINT) }) // before the disk that it works on goes
	eventually(c.t, time.Minute, func() bool { n, err := c.db.tryCount(`SELECT 1`); return err == nil && n == 1 },
		func() string { return "the copy of PostgreSQL answers: " + tail(c.log.String(), 20) })
}

// ended says that the server is gone.
func (c *postgresCopy) ended() bool {
	select {
	case <-c.done:
		return true
	default:
		return false
	}
}

// end asks the server to end, and waits until it is gone.
func (c *postgresCopy) end(how syscall.Signal) {
	_ = c.cmd.Process.Signal(how) // it may have ended
	<-c.done
}

// moveTo has the rest of the run on a copy: the front door, the stages behind
// their proxy, and the test's own look-ups.
func (f *faultRun) moveTo(c *postgresCopy) {
	f.env = append(f.env, "CARRIL_POSTGRES_URL="+c.db.url) // the last one holds
	f.db = c.db
	f.proxy.Retarget(c.addr)
}

// owner is whose process a part is.
func (p parts) owner(part string) (uid, gid int) {
	p.t.Helper()
	info, err := os.Stat(fmt.Sprintf("/proc/%d", p.pid(part)))
	require.NoError(p.t, err)
	s := info.Sys().(*syscall.Stat_t)
	return int(s.Uid), int(s.Gid)
}

// binary is a part's own program.
func (p parts) binary(part string) string {
	p.t.Helper()
	exe, err := os.Readlink("/proc/" + strconv.Itoa(p.pid(part)) + "/exe")
	require.NoError(p.t, err)
	return exe
}

// smallDisk is a folder on a disk of its own, of so many MiB, which belongs to
// PostgreSQL's user; the row is skipped where nobody may mount one.
func (f *faultRun) smallDisk(row, path string, mib int) {
	f.t.Helper()
	require.NoError(f.t, os.Mkdir(path, 0o755))
	if out, err := exec.Command("mount", "-t", "tmpfs", "-o", fmt.Sprintf("size=%dm", mib), "tmpfs", path).CombinedOutput(); err != nil {
		skip(f.t, row, fmt.Sprintf("no tmpfs may be mounted here: %s", strings.TrimSpace(string(out))))
	}
	f.t.Cleanup(func() {
		if out, err := exec.Command("umount", path).CombinedOutput(); err != nil {
			f.t.Errorf("umount: %s", out)
		}
	})
	uid, gid := f.parts.owner("postgres")
	require.NoError(f.t, os.Chown(path, uid, gid))
}

// resize gives a small disk another size.
func (f *faultRun) resize(path string, mib int) {
	f.t.Helper()
	out, err := exec.Command("mount", "-o", fmt.Sprintf("remount,size=%dm", mib), path).CombinedOutput()
	require.NoError(f.t, err, string(out))
}

// used is what lies on a small disk, in MiB.
func used(t *testing.T, path string) int {
	t.Helper()
	var s syscall.Statfs_t
	require.NoError(t, syscall.Statfs(path, &s))
	return int((int64(s.Blocks) - int64(s.Bfree)) * s.Bsize >> 20) //nolint:gosec // a disk of some MiB
}
