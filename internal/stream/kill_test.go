package stream

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/softcrum/carril/internal/kafka"
	"github.com/softcrum/carril/internal/outbox"
	"github.com/softcrum/carril/internal/pg"
	"github.com/softcrum/carril/internal/testkit"
)

// envChild makes the test binary a stage that kills itself at a point.
const envChild = "CARRIL_STREAM_TEST_CHILD"

// child is what a stage's process is told.
type child struct {
	Brokers          []string
	Prefix, Postgres string
	Point            Point // where it dies; "": nowhere
	Nth              int32 // at its n-th arrival there
}

// TestKillAtEveryStep is F2 in short: a stage's process is killed at each step of
// a batch, and another goes on. Every record is applied once, every row has its
// message, and Kafka's offset never runs ahead of the database.
func TestKillAtEveryStep(t *testing.T) {
	const n = 500
	for _, point := range []Point{PointPolled, PointAhead, PointApplied, PointCommitting, "commit sent", PointCommitted, PointOffsets, PointEnded} {
		t.Run(string(point), func(t *testing.T) {
			t.Parallel()
			b := newBench(t, 2)
			c := child{Brokers: b.broker.Brokers, Prefix: b.broker.Prefix, Postgres: b.pool.Config().ConnString(), Point: point, Nth: 2}
			if point == PointPolled { // one answer may bring all there is
				c.Nth = 1
			}
			var cut <-chan struct{}
			if point == "commit sent" {
				db := b.pool.Config().ConnConfig
				proxy := testkit.NewProxy(t, fmt.Sprintf("%s:%d", db.Host, db.Port))
				c.Postgres = fmt.Sprintf("postgres://%s@%s/%s", db.User, proxy.Addr(), db.Database)
				cut = proxy.CutOnPattern([]byte("commit"), testkit.After)
			}
			for i := range 20 { // so that there are several batches
				b.send(int32(i%2), values(fmt.Sprintf("k%02d", i), n/20)...)
			}
			cmd := b.start(c)
			switch point {
			case "commit sent":
				<-cut
				require.NoError(t, cmd.Process.Kill())
			case PointEnded: // a second member takes one of the partitions
				b.awaitEffects(n)
				b.loop(nil)
			case PointOffsets:
				b.sendUntil(cmd, n)
			}
			requireKilled(t, cmd)
			b.loop(nil)
			b.send(0, "last-0")
			b.send(1, "last-1")
			b.eventually("all effects", 90*time.Second, func() bool { return b.count(`SELECT count(*) FROM effects WHERE key LIKE 'last%'`) == 2 })
			total := b.count(`SELECT count(*) FROM effects`)
			require.GreaterOrEqual(t, total, n+2)
			b.appliedOnce(total)
			require.Len(t, b.published(total), total)
			require.Zero(t, b.count(`SELECT count(*) FROM core.dead_letters`))
			b.committedIsPersisted()
		})
	}
}

// sendUntil sends one record after the other until the process has ended: offsets
// are committed now and then, and only while they move.
func (b *bench) sendUntil(cmd *exec.Cmd, from int) {
	for i := range 600 {
		if alive := cmd.Process.Signal(syscall.Signal(0)) == nil && !zombie(cmd.Process.Pid); !alive {
			return
		}
		b.send(0, fmt.Sprintf("more-%06d", from+i))
		time.Sleep(50 * time.Millisecond)
	}
}

// zombie says that a process has ended and nobody has asked for its end yet.
func zombie(pid int) bool {
	var stat [512]byte
	f, err := os.Open(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return true
	}
	defer f.Close()
	n, _ := f.Read(stat[:])
	for i := n - 1; i > 0; i-- {
		if stat[i] == ')' {
			return i+2 < n && stat[i+2] == 'Z'
		}
	}
	return false
}

// committedIsPersisted is L9: Kafka's offset is read first.
func (b *bench) committedIsPersisted() {
	b.t.Helper()
	committed, err := kadm.NewClient(b.prod).FetchOffsets(b.t.Context(), b.kcfg.Group("effects"))
	require.NoError(b.t, err)
	committed.Each(func(o kadm.OffsetResponse) {
		at := b.count(`SELECT next_offset FROM core.stream_positions WHERE topic = 'in' AND partition = $1`, o.Partition)
		require.LessOrEqual(b.t, o.At, int64(at))
	})
}

func (b *bench) start(c child) *exec.Cmd {
	b.t.Helper()
	raw, err := json.Marshal(c)
	require.NoError(b.t, err)
	exe, err := os.Executable()
	require.NoError(b.t, err)
	cmd := exec.Command(exe)
	cmd.Env = append(os.Environ(), envChild+"="+string(raw))
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	require.NoError(b.t, cmd.Start())
	b.t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	return cmd
}

// requireKilled waits until the process has killed itself; the run is void where
// it died of something else, or of nothing within a minute.
func requireKilled(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	late := time.AfterFunc(90*time.Second, func() { _ = cmd.Process.Signal(syscall.SIGTERM) })
	defer late.Stop()
	err := cmd.Wait()
	var exit *exec.ExitError
	require.ErrorAs(t, err, &exit)
	require.Equal(t, syscall.SIGKILL, exit.Sys().(syscall.WaitStatus).Signal(), "the point was not reached")
}

// runAsChild is a stage's process: it works until SIGTERM, or until it reaches
// the point where it dies.
func runAsChild(raw string) error {
	var c child
	if err := json.Unmarshal([]byte(raw), &c); err != nil {
		return err
	}
	ctx, cancel := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer cancel()
	pool, err := pg.Open(ctx, pg.Config{URL: c.Postgres, MaxConns: 12})
	if err != nil {
		return err
	}
	defer pool.Close()
	kc := kafka.Config{Brokers: c.Brokers, Prefix: c.Prefix, SingleNode: true}
	producer, err := kc.NewProducer()
	if err != nil {
		return err
	}
	defer producer.Close()
	var seen atomic.Int32
	hook := func(at Point) {
		if at == c.Point && (c.Point == PointEnded || seen.Add(1) == c.Nth) {
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {} // nothing more happens in this goroutine
		}
	}
	l, err := New(Config{Stage: "effects", Topics: []string{"in"}, MaxRecords: 20, CatchupRecords: 20, Backoff: 5 * time.Millisecond},
		Deps{Kafka: kc, Pool: pool, Sink: outbox.ClientSink{Client: producer}, Handler: &fencing{effects: &effects{}}, Hook: hook, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		return err
	}
	return l.Run(ctx)
}
