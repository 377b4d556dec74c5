package stream

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/softcrum/carril/internal/pg"
	"github.com/softcrum/carril/internal/testkit"
)

func TestLoop(t *testing.T) {
	t.Run("AppliesAndPublishesEveryRecordOnceInOrder", func(t *testing.T) {
		t.Parallel()
		b := newBench(t, 1)
		in := values("a", 1200)
		b.send(0, in...)
		b.loop(nil)
		b.awaitEffects(1200)
		require.Equal(t, in, b.published(1200))
		b.eventually("position", 60*time.Second, func() bool {
			return b.count(`SELECT next_offset FROM core.stream_positions WHERE topic = 'in'`) == 1200
		})
		require.Positive(t, b.count(`SELECT count(*) FROM core.processed_jobs WHERE worker = 'stage:effects'`))
	})

	t.Run("KeepsOneEffectWhenAKeyComesTwiceInOnePollOrAtAnotherOffset", func(t *testing.T) { // I43
		t.Parallel()
		b := newBench(t, 1)
		b.send(0, "k1", "k1", "k2")
		b.loop(nil)
		b.awaitEffects(2)
		b.send(0, "k2", "k3")
		b.awaitEffects(3)
		require.Equal(t, []string{"k1", "k2", "k3"}, b.published(3))
	})

	t.Run("DeadLettersOnlyTheRecordThatIsBad", func(t *testing.T) { // field report 4, faults F14
		t.Parallel()
		b := newBench(t, 1)
		in := values("good", 100)
		in[50] = "refused-" + strings.Repeat("x", 100) // CHECK violation
		in[70] = "undecodable"
		b.send(0, in...)
		b.loop(nil)
		b.awaitEffects(98)
		require.Equal(t, 2, b.count(`SELECT count(*) FROM core.dead_letters`))
		require.Equal(t, 1, b.count(`SELECT count(*) FROM core.dead_letters WHERE class = 'refused_by_database' AND topic = 'in' AND topic_offset = 50
			AND record_value = convert_to($1, 'UTF8') AND content_hash = sha256(record_value) AND reason LIKE 'SQLSTATE 23514%'`, in[50]))
		require.Equal(t, 1, b.count(`SELECT count(*) FROM core.dead_letters WHERE class = 'undecodable' AND topic_offset = 70`))
	})

	t.Run("KeepsAPanicToItsRecord", func(t *testing.T) {
		t.Parallel()
		b := newBench(t, 1)
		b.stage.hook = func(_ context.Context, batch *Batch) error {
			for _, r := range batch.Records {
				if r.Value.(string) == "bomb" {
					panic("boom")
				}
			}
			return nil
		}
		b.send(0, "a", "bomb", "b")
		b.loop(nil)
		b.awaitEffects(2)
		require.Equal(t, 1, b.count(`SELECT count(*) FROM core.dead_letters WHERE class = 'poison'`))
	})

	t.Run("WaitsForADependencyInsteadOfDeadLettering", func(t *testing.T) { // P11
		t.Parallel()
		b := newBench(t, 1)
		var tries atomic.Int32
		b.stage.hook = func(context.Context, *Batch) error {
			if tries.Add(1) < 4 {
				return fmt.Errorf("%w: registry", ErrWait)
			}
			return nil
		}
		b.send(0, "a", "b")
		b.loop(nil)
		b.awaitEffects(2)
		require.Zero(t, b.count(`SELECT count(*) FROM core.dead_letters`))
		require.GreaterOrEqual(t, tries.Load(), int32(4))
	})
}

// TestPositionIsTheFence shows that a zombie's batch changes nothing: its
// owner hangs before the first statement, another applies the same records,
// and the first wakes.
func TestPositionIsTheFence(t *testing.T) {
	t.Parallel()
	b := newBench(t, 1)
	b.send(0, "a", "b", "c")
	zombie := b.loop(nil)
	b.awaitEffects(3)
	zombie.mu.Lock()
	old := zombie.workers[tp{"in", 0}]
	zombie.mu.Unlock()
	zombie.stop()
	w := &worker{l: old.l, tp: old.tp, claim: old.claim, pubs: old.pubs}

	b.send(0, "d", "e")
	b.loop(nil)
	b.awaitEffects(5)
	b.appliedOnce(5)

	late := func(off int64) Record {
		return Record{Record: &kgo.Record{Topic: b.kcfg.Topic("in"), Offset: off, Value: []byte("late")}, Value: "late"}
	}
	err := w.attempt(t.Context(), []Record{late(3), late(4)}, lead{}, nil, late(4).Record)
	require.ErrorIs(t, err, errFenced, "the same offsets under an old epoch")
	w.claim.next = 5
	err = w.attempt(t.Context(), []Record{late(5)}, lead{}, nil, late(5).Record)
	require.ErrorIs(t, err, errFenced, "the right offset under an old epoch")
	b.appliedOnce(5)
}

// TestAPausedOwnerLetsGo: an owner that is stopped in the middle of a batch
// (SIGSTOP, a long pause) holds the position's row, and its successor waits for
// it: the database ends such a transaction by itself.
func TestAPausedOwnerLetsGo(t *testing.T) {
	t.Parallel()
	b := newBench(t, 1)
	b.send(0, "a")
	b.loop(nil)
	b.awaitEffects(1)
	b.stage.mu.Lock()
	defer b.stage.mu.Unlock()
	require.Equal(t, "15s", b.stage.idle)
	var outside string
	require.NoError(t, b.pool.QueryRow(t.Context(), `SELECT current_setting('idle_in_transaction_session_timeout')`).Scan(&outside))
	require.Equal(t, "0", outside, "for the batch alone: a pooler's session keeps nothing")
}

// TestSleeperInsideAssignment is I8: a member that slept in its callback past
// its session wakes and takes an epoch; the rightful owner goes on at once.
func TestSleeperInsideAssignment(t *testing.T) {
	t.Parallel()
	b := newBench(t, 1)
	b.send(0, "a")
	owner := b.loop(nil)
	b.awaitEffects(1)
	sleeper, err := New(Config{Stage: "effects", Topics: []string{"in"}}, Deps{Kafka: b.kcfg, Pool: b.pool, Handler: b.stage, Log: testkit.Logger(t)})
	require.NoError(t, err)
	t.Cleanup(sleeper.cl.Close)
	_, err = sleeper.takeOver(t.Context(), []tp{{"in", 0}}) // what the waking callback does
	require.NoError(t, err)
	b.send(0, "b", "c")
	b.awaitEffects(3)
	b.appliedOnce(3)
	_ = owner
}

func TestCommitOfUnknownOutcome(t *testing.T) { // faults F17, F21
	for name, when := range map[string]testkit.When{"CutBeforeItArrives": testkit.Before, "CutAfterItLanded": testkit.After} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, 1)
			url := b.pool.Config().ConnConfig
			proxy := testkit.NewProxy(t, fmt.Sprintf("%s:%d", url.Host, url.Port))
			pool, err := pg.Open(t.Context(), pg.Config{URL: fmt.Sprintf("postgres://%s@%s/%s", url.User, proxy.Addr(), url.Database)})
			require.NoError(t, err)
			t.Cleanup(pool.Close)
			cut := proxy.CutOnPattern([]byte("commit"), when)
			b.stage.hook = nil
			b.send(0, values("a", 20)...)
			b.loop(func(_ *Config, d *Deps) { d.Pool = pool })
			<-cut
			b.awaitEffects(20)
			require.Len(t, b.published(20), 20)
			b.appliedOnce(20)
		})
	}
}

func TestLogThatDoesNotFitThePosition(t *testing.T) {
	t.Run("RecreatedWhileDown", func(t *testing.T) { // I4
		t.Parallel()
		b := newBench(t, 1)
		b.send(0, values("old", 1000)...)
		r := b.loop(nil)
		b.awaitEffects(1000)
		r.stop()
		adm := kadm.NewClient(b.prod)
		_, err := adm.DeleteTopic(t.Context(), b.kcfg.Topic("in"))
		require.NoError(t, err)
		b.eventually("topic gone", 60*time.Second, func() bool {
			d, err := adm.ListTopics(t.Context())
			return err == nil && !d.Has(b.kcfg.Topic("in"))
		})
		b.broker.CreateTopic("in", 1)
		again := newProducerBench(t, b)
		again.send(0, values("new", 1500)...)
		reg := newAlarmCounter()
		b.loop(func(_ *Config, d *Deps) { d.Metrics = reg.m })
		b.awaitEffects(2500)
		require.EqualValues(t, 1, reg.alarms(t, "recreated"))
	})

	t.Run("TrimmedPastThePosition", func(t *testing.T) { // I5
		t.Parallel()
		b := newBench(t, 1)
		b.send(0, values("a", 149)...)
		r := b.loop(nil)
		b.awaitEffects(149)
		r.stop()
		b.send(0, values("lost", 1251)...)
		b.send(0, values("kept", 100)...)
		adm := kadm.NewClient(b.prod)
		offsets := kadm.Offsets{}
		offsets.AddOffset(b.kcfg.Topic("in"), 0, 1400, -1)
		_, err := adm.DeleteRecords(t.Context(), offsets)
		require.NoError(t, err)
		reg := newAlarmCounter()
		b.loop(func(_ *Config, d *Deps) { d.Metrics = reg.m })
		b.eventually("stop", 60*time.Second, func() bool {
			return b.count(`SELECT count(*) FROM core.stream_positions WHERE stopped = 'log_start_passed' AND missed = 1251 AND next_offset = 149`) == 1
		})
		require.EqualValues(t, 1, reg.alarms(t, "missed"))
		require.Equal(t, 149, b.count(`SELECT count(*) FROM effects`), "no silent jump")
		_, err = b.pool.Exec(t.Context(), `UPDATE core.stream_positions SET stopped = NULL, next_offset = 1400`)
		require.NoError(t, err)
		b.awaitEffects(249)
	})
}

func TestDatabaseAwayDuringAssignment(t *testing.T) { // I9
	t.Parallel()
	b := newBench(t, 4)
	url := b.pool.Config().ConnConfig
	proxy := testkit.NewProxy(t, fmt.Sprintf("%s:%d", url.Host, url.Port))
	pool, err := pg.Open(t.Context(), pg.Config{URL: fmt.Sprintf("postgres://%s@%s/%s", url.User, proxy.Addr(), url.Database), Acquire: 500 * time.Millisecond})
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	proxy.Blackhole()
	for p := range int32(4) {
		b.send(p, values(fmt.Sprintf("p%d", p), 50)...)
	}
	b.loop(func(_ *Config, d *Deps) { d.Pool = pool })
	b.eventually("attempts that got no answer", 60*time.Second, func() bool { return proxy.Counts().Accepted >= 3 })
	proxy.Pass()
	b.awaitEffects(200)
}

// TestModelWithRandomCrashes runs the loop against a model: whatever is killed
// or cut, each key has one row, and the derived topic, read once a key, is
// exactly the rows, each lane in its own order.
func TestModelWithRandomCrashes(t *testing.T) {
	t.Run("KeysWithTheBatch", func(t *testing.T) {
		modelWithRandomCrashes(t, func(b *bench) Handler { return b.stage })
	})
	t.Run("KeysAhead", func(t *testing.T) {
		modelWithRandomCrashes(t, func(b *bench) Handler { return &fencing{effects: b.stage} })
	})
}

func modelWithRandomCrashes(t *testing.T, stage func(*bench) Handler) {
	t.Parallel()
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 1))
	b := newBench(t, 3)
	url := b.pool.Config().ConnConfig
	proxy := testkit.NewProxy(t, fmt.Sprintf("%s:%d", url.Host, url.Port))
	pool, err := pg.Open(t.Context(), pg.Config{URL: fmt.Sprintf("postgres://%s@%s/%s", url.User, proxy.Addr(), url.Database), MaxConns: 16})
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	handler := stage(b)
	member := func() *running {
		return b.loop(func(c *Config, d *Deps) { d.Pool, d.Handler = pool, handler; c.MaxRecords, c.CatchupRecords = 20, 40 })
	}
	live := []*running{member(), member()}
	want := map[string]bool{}
	n, sent := 0, 0
	for range 8 {
		for p := range int32(3) {
			var vs []string
			for range 60 {
				n++
				v := fmt.Sprintf("p%d-%06d", p, n)
				vs = append(vs, v)
				want[v] = true
				if rng.IntN(5) == 0 { // a repeat, of this or an earlier one
					vs = append(vs, v)
				}
			}
			b.send(p, vs...)
			sent += len(vs)
		}
		switch rng.IntN(4) {
		case 0:
			i := rng.IntN(len(live))
			live[i].crash()
			live[i] = member()
		case 1:
			i := rng.IntN(len(live))
			live[i].stop()
			live[i] = member()
		case 2:
			proxy.CutOnPattern([]byte("commit"), []testkit.When{testkit.Before, testkit.After}[rng.IntN(2)])
		case 3:
			proxy.Reset()
		}
		time.Sleep(time.Duration(rng.IntN(200)) * time.Millisecond)
	}
	b.awaitEffects(len(want))
	last := map[byte]string{}
	for _, v := range b.published(len(want)) {
		require.True(t, want[v], v)
		require.Less(t, last[v[1]], v, "order within a lane")
		last[v[1]] = v
	}
	b.eventually("all applied", 60*time.Second, func() bool { return b.count(`SELECT count(*) FROM applied`) >= sent })
	b.appliedOnce(sent)
	require.Zero(t, b.count(`SELECT count(*) FROM core.dead_letters`))
}

func TestRuleOfPositions(t *testing.T) {
	id, other := [16]byte{1}, [16]byte{2}
	log := standing{topicID: id, start: 100, end: 200}
	for name, tc := range map[string]struct {
		found stored
		want  ruling
	}{
		"New":       {stored{inserted: true}, ruling{next: 100}},
		"Inside":    {stored{topicID: id, next: 150}, ruling{next: 150}},
		"AtEnd":     {stored{topicID: id, next: 200}, ruling{next: 200}},
		"AtStart":   {stored{topicID: id, next: 100}, ruling{next: 100}},
		"Recreated": {stored{topicID: other, next: 150}, ruling{next: 100, alarm: "recreated"}},
		"Truncated": {stored{topicID: id, next: 201}, ruling{next: 100, alarm: "truncated"}},
		"Missed":    {stored{topicID: id, next: 40}, ruling{next: 40, stopped: "log_start_passed", missed: 60, alarm: "missed"}},
	} {
		t.Run(name, func(t *testing.T) { require.Equal(t, tc.want, rule(tc.found, log)) })
	}
}

func TestVerdict(t *testing.T) {
	raced := false
	require.Equal(t, giveUp, verdict(fmt.Errorf("x: %w", errFenced), &raced))
	require.Equal(t, wait, verdict(fmt.Errorf("x: %w", ErrWait), &raced))
	require.Equal(t, wait, verdict(context.DeadlineExceeded, &raced))
	require.Equal(t, bisect, verdict(errors.New("stage says no"), &raced))
}
