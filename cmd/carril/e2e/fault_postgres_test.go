//go:build faults

package e2e

import (
	"context"
	"net/url"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/softcrum/carril/internal/testkit"
)

// TestFaultCommitCut is F17: the connection that carries a COMMIT is cut, before
// or after the server has it, twenty times under load.
func TestFaultCommitCut(t *testing.T) {
	f := newFaultRun(t, "F17")
	f.ingest(0)
	f.stages("p0")
	l := f.load(1, 8, 5*time.Millisecond)
	f.awaitAcked(100)
	cuts := map[testkit.When]int{}
	for i := range 20 {
		when := []testkit.When{testkit.Before, testkit.After}[i%2]
		select {
		case <-f.proxy.CutOnPattern(testkit.Prepared("commit"), when):
			cuts[when]++
		case <-time.After(time.Minute):
			require.Fail(t, "no commit came by")
		}
		time.Sleep(time.Duration(f.rng.IntN(100)) * time.Millisecond)
	}
	f.heal()
	l.stop()
	f.book.Promise("commits cut before", 10, cuts[testkit.Before])
	f.book.Promise("commits cut after", 10, cuts[testkit.After])
	f.figure("%d cut before, %d after", cuts[testkit.Before], cuts[testkit.After])
	f.judge()
}

// TestFaultPostgresRestarts is F18: fast and immediate restarts, one backend
// killed, all sessions ended. The front door goes on with the keys that it knows;
// nothing is committed to Kafka meanwhile that is not persisted (L9).
func TestFaultPostgresRestarts(t *testing.T) {
	f := newFaultRun(t, "F18")
	f.ingest(0)
	f.stages("p0")
	l := f.load(1, 8, 5*time.Millisecond)
	f.awaitAcked(100)
	faults := 0
	for _, how := range []string{"fast", "immediate", "backend", "sessions", "immediate", "sessions"} {
		switch how {
		case "fast":
			f.parts.end("postgres", syscall.SIGINT)
		case "immediate":
			f.parts.end("postgres", syscall.SIGQUIT)
		case "backend": // the server ends every session over it
			require.NoError(t, syscall.Kill(f.db.count(`SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() LIMIT 1`), syscall.SIGKILL))
		case "sessions":
			require.Positive(t, f.db.count(`SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()`))
		}
		faults++
		before := f.acked.Load()
		time.Sleep(time.Second)
		if how == "fast" || how == "immediate" {
			f.book.Promise("202s while PostgreSQL is away", 1, int(f.acked.Load()-before))
		}
		f.parts.up()
		f.heal()
		f.awaitAcked(100)
	}
	l.stop()
	f.book.Promise("faults of PostgreSQL", 6, faults)
	f.figure("%d faults", faults)
	f.judge()
}

// TestFaultReadOnly is F19's first half: the primary becomes read-only under its
// sessions (25006), as after a failover, for ten seconds.
func TestFaultReadOnly(t *testing.T) {
	f := newFaultRun(t, "F19 read-only")
	f.ingest(0)
	stages := f.stages("p0")
	l := f.load(1, 8, 5*time.Millisecond)
	f.awaitAcked(100)
	set := func(v string) {
		c := &cluster{t: t, db: database{t, f.db.url + "&default_transaction_read_only=off"}}
		c.exec(`ALTER DATABASE ` + dbName(t, f.db.url) + ` SET default_transaction_read_only = ` + v)
		c.exec(`SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()`)
	}
	set("on")
	f.awaitAcked(100)
	time.Sleep(10 * time.Second)
	refused := strings.Count(stages.log.String(), "25006")
	// The sessions of then are left alone: they are the old primary's.
	c := &cluster{t: t, db: database{t, f.db.url + "&default_transaction_read_only=off"}}
	c.exec(`ALTER DATABASE ` + dbName(t, f.db.url) + ` RESET default_transaction_read_only`)
	f.heal()
	f.awaitAcked(100)
	l.stop()
	f.book.Promise("statements refused with 25006", 1, refused)
	f.figure("%d refusals", refused)
	f.judge()
}

func dbName(t *testing.T, raw string) string {
	t.Helper()
	u, err := url.Parse(raw)
	require.NoError(t, err)
	return strings.TrimPrefix(u.Path, "/")
}

// TestFaultSlow is F20: PostgreSQL answers late, then a lock on the hottest table
// is held for twenty seconds. The stages wait and keep their partitions; the
// front door does not notice.
func TestFaultSlow(t *testing.T) {
	f := newFaultRun(t, "F20")
	f.ingest(0)
	f.stages("p0")
	l := f.load(1, 8, 5*time.Millisecond)
	f.awaitAcked(200)
	quiet := time.Duration(l.slowest.Swap(0))
	epochs := `SELECT sum(epoch)::int FROM core.stream_positions WHERE stage = 'append'`
	before := f.db.count(epochs)
	f.proxy.Delay(time.Second) // each chunk of bytes, each way
	time.Sleep(15 * time.Second)
	f.proxy.Pass()
	conn, err := pgx.Connect(t.Context(), f.db.url)
	require.NoError(t, err)
	defer conn.Close(context.WithoutCancel(t.Context()))
	tx, err := conn.Begin(t.Context())
	require.NoError(t, err)
	_, err = tx.Exec(t.Context(), `LOCK TABLE core.event_keys IN ACCESS EXCLUSIVE MODE`)
	require.NoError(t, err)
	time.Sleep(20 * time.Second)
	stuck := f.behind("append")
	require.NoError(t, tx.Rollback(t.Context()))
	f.heal()
	f.awaitAcked(100)
	require.Equal(t, before, f.db.count(epochs), "nobody was taken for dead")
	l.stop()
	f.book.Promise("records that waited for the lock", 1, int(stuck))
	f.figure("%d waited behind the lock; the slowest answer %.0f ms before, %.0f ms meanwhile", stuck, quiet.Seconds()*1000, time.Duration(l.slowest.Load()).Seconds()*1000)
	f.judge()
}

// TestFaultConnectionsExhausted is F20's last part: others have taken every
// connection that the server gives (53300), past the sessions of every group. The
// stages wait and keep their partitions; the front door does not notice.
func TestFaultConnectionsExhausted(t *testing.T) {
	f := newFaultRun(t, "F20 connections")
	c := f.copyPostgres()
	c.start("max_connections=100")
	f.moveTo(c)
	f.ingest(0)
	stages := f.stages("p0")
	l := f.load(1, 8, 5*time.Millisecond)
	f.awaitAcked(200)
	epochs := `SELECT sum(epoch)::int FROM core.stream_positions WHERE stage = 'append'`
	before := f.db.count(epochs)
	g := f.grabConnections()
	g.all()
	// The sampler of the places cannot look either; what is held can.
	rows := `SELECT count(*)::int FROM core.tracked_events WHERE occurred_at > '-infinity'`
	stood := g.count(rows)
	f.awaitAcked(200)
	time.Sleep(10 * time.Second) // past every session
	require.Equal(t, stood, g.count(rows), "nobody else had a connection: else the run is void")
	require.Equal(t, before, g.count(epochs), "nobody was taken for dead")
	g.release()
	f.heal()
	f.awaitAcked(100)
	l.stop()
	refused := strings.Count(stages.log.String(), "53300")
	f.book.Promise("connections refused with 53300", 1, refused)
	f.figure("%d connections held, %d refusals with 53300", len(g.held), refused)
	f.judge()
	require.Equal(t, before, f.db.count(epochs), "nobody was taken for dead afterwards")
	require.Zero(t, f.db.count(`SELECT count(*) FROM core.dead_letters`))
}

// grabbed are connections that the test keeps from everybody else.
type grabbed struct {
	t    *testing.T
	url  string
	held []*pgx.Conn
}

func (f *faultRun) grabConnections() *grabbed {
	g := &grabbed{t: f.t, url: f.db.url}
	f.t.Cleanup(g.release)
	return g
}

// all takes every connection there is: what is free first, then what others have,
// whose sessions it ends until none is left.
func (g *grabbed) all() {
	g.t.Helper()
	const others = `FROM pg_stat_activity WHERE backend_type = 'client backend' AND NOT pid = ANY($1)`
	eventually(g.t, time.Minute, func() bool {
		for {
			conn, err := pgx.Connect(g.t.Context(), g.url)
			if err != nil {
				require.ErrorContains(g.t, err, "53300")
				break
			}
			g.held = append(g.held, conn)
		}
		pids := make([]int32, len(g.held))
		for i, conn := range g.held {
			pids[i] = int32(conn.PgConn().PID()) //nolint:gosec // a process id
		}
		left := 0
		require.NoError(g.t, g.held[0].QueryRow(g.t.Context(), `SELECT count(pg_terminate_backend(pid)) `+others, pids).Scan(&left))
		return left == 0
	}, func() string { return "nobody else has a connection" })
}

func (g *grabbed) count(sql string) (n int) {
	g.t.Helper()
	require.NoError(g.t, g.held[0].QueryRow(g.t.Context(), sql).Scan(&n))
	return n
}

func (g *grabbed) release() {
	for _, conn := range g.held {
		_ = conn.Close(context.Background()) // its server may be gone
	}
}

// TestFaultLateStatement is F21: the server's processes are stopped in the middle
// of what they do, their clients give up and try again, and then they wake and
// apply it all the same.
func TestFaultLateStatement(t *testing.T) {
	f := newFaultRun(t, "F21")
	f.ingest(0)
	f.stages("p0")
	l := f.load(1, 8, 2*time.Millisecond)
	f.awaitAcked(100)
	stopped := 0
	for range 6 {
		conn, err := pgx.Connect(t.Context(), f.db.url)
		require.NoError(t, err)
		rows, err := conn.Query(t.Context(), `SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() AND state <> 'idle'`)
		require.NoError(t, err)
		pids, err := pgx.CollectRows(rows, pgx.RowTo[int])
		require.NoError(t, err)
		require.NoError(t, conn.Close(t.Context()))
		for _, pid := range pids {
			_ = syscall.Kill(pid, syscall.SIGSTOP) // it may have ended
		}
		time.Sleep(300 * time.Millisecond)
		f.proxy.Reset()
		time.Sleep(time.Duration(500+f.rng.IntN(1500)) * time.Millisecond)
		for _, pid := range pids {
			_ = syscall.Kill(pid, syscall.SIGCONT)
			stopped++
		}
		f.awaitAcked(50)
	}
	f.heal()
	l.stop()
	f.book.Promise("sessions stopped in the middle", 1, stopped)
	f.figure("%d sessions stopped", stopped)
	f.judge()
}

// TestFaultFailover is F19's second half: the primary dies, its asynchronous
// replica is promoted. What the replica had not got yet is read again from Kafka,
// for the positions went back with the rows.
func TestFaultFailover(t *testing.T) {
	f := newFaultRun(t, "F19 failover")
	replica := f.copyPostgres("-R")
	replica.start()
	second := replica.db
	f.ingest(0) // its keys are in its memory; the primary's address stays its own
	f.stages("p0")
	l := f.load(1, 8, 5*time.Millisecond)
	f.awaitAcked(300)
	// What sends to the replica sleeps while events are appended; then the primary
	// is gone for good.
	sender := f.db.count(`SELECT pid FROM pg_stat_replication`)
	require.NoError(t, syscall.Kill(sender, syscall.SIGSTOP))
	t.Cleanup(func() { _ = syscall.Kill(sender, syscall.SIGCONT) })
	f.awaitAcked(300)
	f.proxy.Refuse()
	const rows = `SELECT count(*) FROM core.tracked_events WHERE occurred_at > '-infinity'`
	lost := f.db.count(rows) - second.count(rows)
	f.endLooks() // positions go back: that is the point
	(&cluster{t: t, db: second}).exec(`SELECT pg_promote()`)
	f.proxy.Retarget(replica.addr)
	f.proxy.Pass()
	f.db = second
	f.heal()
	eventually(t, 2*time.Minute, func() bool { n := f.behind("append"); return n >= 0 && n < 100 }, func() string { return "the stages go on at the new primary" })
	l.stop()
	f.book.Promise("rows that the promoted replica had not got", 1, lost)
	f.figure("%d rows were lost with the primary, and read again", lost)
	f.since = f.healed
	f.judge()
}
