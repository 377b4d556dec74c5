package devstack

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
)

const (
	pgSuperuser = "postgres"
	pgDatabase  = "carril"
	// staleWait is how long a postmaster.pid of the previous life may stand
	// in the way: after kill -9 of the parent it did for 2 s.
	staleWait = 10 * time.Second
)

// cluster is the private PostgreSQL cluster of a stack.
type cluster struct {
	dir      string // its data folder
	owner    account
	binaries pgBinaries
	port     int
	aside    string // set when dir lies outside the stack's folder: why
}

// startPostgres makes the cluster when there is none, runs it and sees to its
// database.
func (s *Stack) startPostgres(ctx context.Context) error {
	if !s.wants(Postgres, s.PostgresURL != "") {
		return nil
	}
	c, err := s.prepareCluster(ctx)
	if err != nil {
		return fmt.Errorf("prepare the embedded PostgreSQL: %w", err)
	}
	start := time.Now()
	spec := processSpec{
		command: func() (*exec.Cmd, error) { return c.command(s.cfg.Ephemeral), nil },
		ready:   func(ctx context.Context) error { return pgReady(ctx, c.url("postgres")) },
		mended:  func(tail string) bool { return c.clearStale(tail) && time.Since(start) < staleWait },
		log:     filepath.Join(s.dir, "log", "postgres.log"),
		signal:  syscall.SIGINT, // a fast shutdown: sessions are ended, data is written
	}
	if s.cfg.Ephemeral {
		spec.signal = syscall.SIGQUIT // the data is thrown away
	}
	if err := s.launch(ctx, Postgres, spec); err != nil {
		return err
	}
	if err := createDatabase(ctx, c.url("postgres")); err != nil {
		return err
	}
	s.PostgresURL = c.url(pgDatabase)
	s.embed(Postgres, c.describe())
	return nil
}

// prepareCluster finds the folder, the binaries and the port, and runs initdb
// when the folder has no cluster yet.
func (s *Stack) prepareCluster(ctx context.Context) (*cluster, error) {
	owner, err := unprivileged()
	if err != nil {
		return nil, err
	}
	c := &cluster{owner: owner}
	if err := s.placeCluster(c); err != nil {
		return nil, err
	}
	if c.binaries, err = findBinaries(ctx, pinnedMajor(c.dir), owner, s.log); err != nil {
		return nil, err
	}
	if c.port, err = s.ports.get("postgres"); err != nil {
		return nil, err
	}
	return c, c.init(ctx)
}

// placeCluster puts the cluster into the stack's folder, or, where the
// unprivileged user cannot reach that, into a folder of its own whose name
// follows from the stack's.
func (s *Stack) placeCluster(c *cluster) error {
	home := s.dir
	if !c.owner.reaches(s.dir) {
		sum := sha256.Sum256([]byte(s.dir))
		home = filepath.Join(asideRoot(), "carril-"+hex.EncodeToString(sum[:6]))
		if err := os.MkdirAll(home, 0o755); err != nil {
			return fmt.Errorf("make a folder for the cluster: %w", err)
		}
		if !c.owner.reaches(home) {
			return fmt.Errorf("user %s, who must run PostgreSQL, can enter neither %s nor %s", c.owner.name, s.dir, home)
		}
		c.aside = fmt.Sprintf("user %s cannot enter %s", c.owner.name, s.dir)
		if s.cfg.Ephemeral {
			s.addRelease(func() { _ = os.RemoveAll(home) })
		}
	}
	c.dir = filepath.Join(home, "postgres")
	return nil
}

// asideRoot is where clusters go that cannot lie in their stack's folder.
func asideRoot() string {
	if info, err := os.Stat("/var/lib"); err == nil && info.IsDir() && os.Geteuid() == 0 {
		return "/var/lib"
	}
	return os.TempDir()
}

func (c *cluster) describe() string {
	d := fmt.Sprintf("PostgreSQL %s, private cluster in %s", c.binaries.version, c.dir)
	if c.aside != "" {
		d += " (" + c.aside + ")"
	}
	return d
}

func (c *cluster) url(database string) string {
	return fmt.Sprintf("postgres://%s@%s/%s?sslmode=disable", pgSuperuser, loopback(c.port), database)
}

// init makes the cluster under another name and renames it when it is whole,
// so that a kill in between leaves nothing that looks like one.
func (c *cluster) init(ctx context.Context) error {
	if _, err := os.Stat(filepath.Join(c.dir, "PG_VERSION")); err == nil {
		return nil
	}
	fresh := c.dir + ".new"
	if err := c.initdb(ctx, fresh, "C.UTF-8"); err != nil {
		// Not every system has that locale; every one has C.
		if c.initdb(ctx, fresh, "C") != nil {
			return err
		}
	}
	if err := os.Rename(fresh, c.dir); err != nil {
		return fmt.Errorf("put the new cluster in place: %w", err)
	}
	return nil
}

func (c *cluster) initdb(ctx context.Context, dir, locale string) error {
	if err := os.RemoveAll(dir); err != nil {
		return fmt.Errorf("remove an unfinished cluster: %w", err)
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		return fmt.Errorf("make the folder of the cluster: %w", err)
	}
	if err := c.owner.own(dir); err != nil {
		return fmt.Errorf("give the folder of the cluster to %s: %w", c.owner.name, err)
	}
	cmd := exec.CommandContext(ctx, c.binaries.initdb(),
		"--no-sync", "-A", "trust", "-U", pgSuperuser, "-E", "UTF8", "--locale="+locale, "-D", dir)
	cmd.Dir = "/"
	c.owner.apply(cmd)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("initdb: %w: %s", err, strings.TrimSpace(string(out)))
	}
	return nil
}

// command is the postgres process itself: loopback TCP only, no socket file.
func (c *cluster) command(ephemeral bool) *exec.Cmd {
	settings := []string{
		"listen_addresses=127.0.0.1", "port=" + strconv.Itoa(c.port), "unix_socket_directories=",
		"shared_buffers=256MB", "max_locks_per_transaction=128",
		"random_page_cost=1.1", "jit=off", "timezone=UTC", "log_timezone=UTC",
		// After a checkpoint every page that is touched goes whole into the log, and
		// the fence's random keys touch them all: seldom, then
		// (docs/decisions/append.md).
		"checkpoint_timeout=30min",
	}
	if ephemeral {
		settings = append(settings, "max_connections=400",
			"fsync=off", "synchronous_commit=off", "full_page_writes=off", "max_wal_size=4GB")
	} else {
		// An eighth of a server's, for a laptop's disk; not every build of PostgreSQL
		// knows lz4, so wal_compression stays as it is.
		settings = append(settings, "max_connections=200", "max_wal_size=2GB")
	}
	args := []string{"-D", c.dir}
	for _, setting := range settings {
		args = append(args, "-c", setting)
	}
	cmd := exec.Command(c.binaries.postgres(), args...)
	cmd.Dir = "/"
	c.owner.apply(cmd)
	tie(cmd, syscall.SIGINT)
	return cmd
}

// clearStale reports whether postgres did not start because of a
// postmaster.pid, and removes that file once no live process works in the
// folder: the id in it may by now belong to a zombie or to a stranger, which
// PostgreSQL takes for its predecessor.
func (c *cluster) clearStale(tail string) bool {
	if !strings.Contains(tail, "postmaster.pid") && !strings.Contains(tail, "shared memory block") &&
		!strings.Contains(tail, "could not bind") {
		return false
	}
	if !livesIn(c.dir) {
		_ = os.Remove(filepath.Join(c.dir, "postmaster.pid"))
	}
	return true
}

// livesIn reports whether a process that is no zombie has dir as its working
// folder, as every process of a running cluster has.
func livesIn(dir string) bool {
	links, err := filepath.Glob("/proc/[0-9]*/cwd")
	if err != nil || len(links) == 0 {
		return true // no way to tell: PostgreSQL's own check decides
	}
	for _, link := range links {
		// A zombie's link cannot be read.
		if target, err := os.Readlink(link); err == nil && target == dir {
			return true
		}
	}
	return false
}

func pgReady(ctx context.Context, url string) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return err
	}
	return conn.Close(ctx)
}

// createDatabase makes the database when it is absent.
func createDatabase(ctx context.Context, url string) error {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return fmt.Errorf("reach the embedded PostgreSQL: %w", err)
	}
	defer conn.Close(ctx)
	var there bool
	err = conn.QueryRow(ctx, "select exists (select from pg_database where datname = $1)", pgDatabase).Scan(&there)
	if err == nil && !there {
		_, err = conn.Exec(ctx, "create database "+pgDatabase)
	}
	if err != nil {
		return fmt.Errorf("create the database %s: %w", pgDatabase, err)
	}
	return nil
}

// pinnedMajor is the major version that made the cluster in dir, 0 when there
// is none: no other major can open it.
func pinnedMajor(dir string) int {
	b, err := os.ReadFile(filepath.Join(dir, "PG_VERSION"))
	if err != nil {
		return 0
	}
	major, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil {
		return 0
	}
	return major
}

var errNoBinaries = errors.New("no PostgreSQL binaries of a fitting version on this machine")
