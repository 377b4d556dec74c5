//go:build faults

package e2e

import (
	"fmt"
	"os"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/softcrum/carril/internal/testkit"
)

// TestFaultIngestKilled is F1: the front door is killed under load, again and
// again, and once with a produce on its way that nobody can answer. A key that
// is repeated gets the same id (L1), and is one row.
func TestFaultIngestKilled(t *testing.T) {
	f := newFaultRun(t, "F1")
	f.stages("p0")
	door := f.ingest(0)
	l := f.load(1, 16, 2*time.Millisecond)
	kills := 0
	for range 10 {
		time.Sleep(time.Duration(200+f.rng.IntN(500)) * time.Millisecond)
		door.kill()
		kills++
		door = f.ingest(0)
	}
	f.parts.signal("kafka", syscall.SIGSTOP) // K2: produced, and not acknowledged
	time.Sleep(time.Second)
	door.kill()
	kills++
	f.parts.signal("kafka", syscall.SIGCONT)
	f.ingest(0)
	f.awaitAcked(300)
	l.stop()
	f.book.Promise("kills of the front door", 11, kills)
	f.book.Promise("requests of unknown outcome", 1, int(f.unknown.Load()))
	f.figure("%d kills", kills)
	f.judge()
}

// TestFaultProcessKilledAtEveryStep is F2: the append is killed at each step of a
// batch under load, and another process goes on.
func TestFaultProcessKilledAtEveryStep(t *testing.T) {
	f := newFaultRun(t, "F2")
	f.ingest(0)
	l := f.load(1, 8, 5*time.Millisecond)
	for i, point := range []string{"polled", "applied", "committing", "committed", "offsets"} {
		// It may die before all of its stages are ready.
		p := launch(t, f.stagesEnv("p0", fmt.Sprintf("FAILPOINT=append:%s:%d", point, 1+f.rng.IntN(5))), "process")
		f.kept(p)
		f.awaitKilled(p)
		f.figure("P:%s", point)
		if i%2 == 0 {
			next := f.stages("p0")
			f.awaitAcked(100)
			next.kill()
		}
	}
	// P4: COMMIT is sent, and its process dies before the answer.
	p := f.stages("p0")
	f.awaitAcked(50)
	cut := f.proxy.CutOnPattern(testkit.Prepared("commit"), testkit.After)
	<-cut
	p.kill()
	f.figure("P:commit sent")
	// P7: inside the callback that gives a partition to another.
	p = f.stages("p0", "FAILPOINT=append:ended:1")
	f.awaitAcked(50)
	other := launch(t, f.stagesEnv("p1"), "process")
	f.kept(other)
	f.awaitKilled(p)
	other.awaitReady(90 * time.Second)
	f.figure("P:revoked")
	f.awaitAcked(100)
	l.stop()
	f.book.Promise("cut commits", 1, f.proxy.Counts().Cuts)
	f.book.Promise("steps at which it died", 7, 7) // awaitKilled and the cut have seen to it
	f.judge()
}

// TestFaultKillLoop is F6: a random role is killed every second or two.
func TestFaultKillLoop(t *testing.T) {
	f := newFaultRun(t, "F6")
	seconds := 40
	if s, err := strconv.Atoi(os.Getenv("CARRIL_TEST_KILL_SECONDS")); err == nil {
		seconds = s
	}
	run := []func() *process{func() *process { return f.stages("p0") }, func() *process { return f.stages("p1") },
		func() *process { return f.ingest(0) }, func() *process { return f.ingest(1) }}
	live := make([]*process, len(run))
	for i := range run {
		live[i] = run[i]()
	}
	l := f.load(2, 12, 5*time.Millisecond)
	kills := 0
	for end := time.Now().Add(time.Duration(seconds) * time.Second); time.Now().Before(end); kills++ {
		time.Sleep(time.Duration(1000+f.rng.IntN(1000)) * time.Millisecond)
		i := f.rng.IntN(len(run))
		live[i].kill()
		live[i] = run[i]()
	}
	l.stop()
	f.book.Promise("kills", 5, kills)
	f.figure("%d kills", kills)
	f.judge()
}

// TestFaultMembersComeAndGo is F12: one to four members of the group, one more
// or one less every three seconds.
func TestFaultMembersComeAndGo(t *testing.T) {
	f := newFaultRun(t, "F12")
	f.ingest(0)
	var live []*process
	next := 0
	add := func() {
		next++
		p := launch(t, f.stagesEnv(fmt.Sprintf("m%d", next)), "process")
		live = append(live, f.kept(p))
	}
	add()
	live[0].awaitReady(90 * time.Second)
	l := f.load(1, 12, 5*time.Millisecond)
	changes := 0
	for range 10 {
		time.Sleep(3 * time.Second)
		if n := len(live); n == 1 || n < 4 && f.rng.IntN(2) == 0 {
			add()
		} else {
			i := f.rng.IntN(n)
			gone := live[i]
			live = append(live[:i], live[i+1:]...)
			if f.rng.IntN(2) == 0 {
				gone.kill()
			} else {
				gone.stop()
			}
		}
		changes++
	}
	for _, p := range live {
		p.awaitReady(2 * time.Minute)
	}
	f.awaitAcked(200)
	l.stop()
	f.book.Promise("changes of the group", 10, changes)
	f.judge()
}

// TestFaultReplicaStoppedAndKilled: two replicas share the partitions; one is
// stopped as a long pause does, killed, and started again, ten times under load.
// What it wakes to is no longer its own; nothing is lost or done twice, and the
// backlog goes after each.
func TestFaultReplicaStoppedAndKilled(t *testing.T) {
	f := newFaultRun(t, "two replicas")
	f.ingest(0)
	f.stages("p0")
	second := f.stages("p1")
	l := f.load(1, 8, 5*time.Millisecond)
	f.awaitAcked(100)
	var worst time.Duration
	var times string
	for i := range 10 {
		require.NoError(t, second.cmd.Process.Signal(syscall.SIGSTOP))
		pause := time.Duration(f.rng.IntN(3000)) * time.Millisecond
		if i%4 == 3 {
			pause = 8 * time.Second // past its session: it wakes as a zombie
		}
		time.Sleep(pause)
		if i%4 == 3 {
			require.NoError(t, second.cmd.Process.Signal(syscall.SIGCONT))
			time.Sleep(time.Duration(f.rng.IntN(500)) * time.Millisecond)
		}
		second.kill()
		at := time.Now()
		second = f.stages("p1")
		eventually(t, 60*time.Second, func() bool { n := f.behind("append"); return n >= 0 && n < 100 }, // the load goes on
			func() string { return fmt.Sprintf("the lag goes after kill %d: %d", i, f.behind("append")) })
		took := time.Since(at)
		worst = max(worst, took)
		times += fmt.Sprintf(" %.1f", took.Seconds())
	}
	l.stop()
	f.book.Promise("replicas that were stopped and killed", 10, 10)
	f.book.Recovered("the worst time until the lag was gone", worst.Seconds(), 60, "s")
	f.figure("lag gone after each kill in%s s", times)
	f.judge()
}
