//go:build faults

package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestFaultDiskFull is F23's first half: the database's table space is full
// (53100). The stages wait, put nothing aside, and go on where there is room
// again.
func TestFaultDiskFull(t *testing.T) {
	const row = "F23 table space"
	f := newFaultRun(t, row)
	dir, err := os.MkdirTemp("/var/tmp", "carril-space-") // PostgreSQL's user must reach it
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	require.NoError(t, os.Chmod(dir, 0o755))
	space := filepath.Join(dir, "space")
	need := f.db.count(`SELECT (pg_database_size(current_database()) >> 20)::int`) + 12
	f.smallDisk(row, space, need)
	name := dbName(t, f.db.url)
	admin := &cluster{t: t, db: database{t, strings.Replace(f.db.url, "/"+name, "/postgres", 1)}}
	t.Cleanup(func() {
		for _, p := range f.procs {
			p.kill()
		}
		admin.exec(`DROP DATABASE IF EXISTS ` + name + ` WITH (FORCE)`)
		admin.exec(`DROP TABLESPACE IF EXISTS ` + name + `_space`)
	})
	admin.exec(`CREATE TABLESPACE ` + name + `_space LOCATION '` + space + `'`)
	admin.exec(`ALTER DATABASE ` + name + ` SET TABLESPACE ` + name + `_space`)
	f.ingest(0)
	stages := f.stages("p0")
	l := f.load(1, 16, time.Millisecond)
	eventually(t, 2*time.Minute, func() bool { return strings.Contains(stages.log.String(), "53100") }, func() string { return "the table space is full" })
	f.awaitAcked(200) // the front door goes on
	require.Zero(t, f.db.count(`SELECT count(*) FROM core.dead_letters`))
	f.resize(space, need+400)
	f.heal()
	l.stop()
	f.book.Promise("refusals for a full disk", 1, strings.Count(stages.log.String(), "53100"))
	f.figure("%d refusals with 53100", strings.Count(stages.log.String(), "53100"))
	f.judge()
	require.Zero(t, f.db.count(`SELECT count(*) FROM core.dead_letters`))
}

// TestFaultWALFull is F23's second half: a replication slot that nobody reads keeps
// the write-ahead log until its disk is full. PostgreSQL panics at a write, finds no
// room for what its recovery writes either, and is gone. Until there is room and it
// is started again the front door goes on with the keys that it knows (P8), and the
// stages wait.
func TestFaultWALFull(t *testing.T) {
	const row = "F23 pg_wal"
	f := newFaultRun(t, row)
	c := newPostgresCopy(f)
	f.smallDisk(row, c.wal, 1024)
	c.take()
	c.start()
	(&cluster{t: t, db: c.db}).exec(`SELECT pg_create_physical_replication_slot('nobody', true)`)
	f.moveTo(c)
	f.ingest(0)
	stages := f.stages("p0")
	l := f.load(1, 16, 2*time.Millisecond)
	f.awaitAcked(200)
	size := used(t, c.wal) + 40
	f.resize(c.wal, size)
	eventually(t, 2*time.Minute, func() bool {
		_, _ = c.db.tryCount(`SELECT count(pg_switch_wal())::int`) // a segment is full sooner than its load makes it
		return c.ended()
	}, func() string { return "PostgreSQL has no room for its log: " + tail(c.log.String(), 20) })
	panics := strings.Count(c.log.String(), "PANIC:")
	require.Contains(t, c.log.String(), "No space left on device")
	before := f.acked.Load()
	f.awaitAcked(500)
	meanwhile := f.acked.Load() - before
	require.True(t, c.ended(), "nobody answered for PostgreSQL meanwhile")
	f.resize(c.wal, size+1024)
	c.start()
	f.heal()
	f.awaitAcked(100)
	l.stop()
	f.book.Promise("panics for a full pg_wal", 1, panics)
	f.book.Promise("202s while PostgreSQL is gone", 500, int(meanwhile))
	f.figure("%d panics; %d acknowledged while PostgreSQL was gone", panics, meanwhile)
	f.judge()
	require.Zero(t, f.db.count(`SELECT count(*) FROM core.dead_letters`))
	require.NotContains(t, stages.log.String(), "panic:")
}
