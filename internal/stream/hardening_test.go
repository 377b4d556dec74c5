package stream

import (
	"context"
	"encoding/hex"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"
)

func TestMemory(t *testing.T) {
	t.Parallel()
	m := NewMemory(1000)
	a, b := m.join(), m.join()
	a.take(900)
	require.False(t, a.tooMuch(), "one busy partition has the whole bound")
	b.take(200)
	require.True(t, a.tooMuch())
	require.False(t, b.tooMuch(), "it holds less than its share")
	a.give(500)
	require.False(t, a.tooMuch())
	a.take(600)
	a.give(700) // 300 of 500
	b.take(600) // 800 of 500
	require.True(t, a.stillMuch(), "more than half of its share, in a full process")
	require.True(t, b.tooMuch())
	b.leave()
	b.take(5000) // after its end
	b.leave()
	require.Equal(t, 300, m.Used())
	require.False(t, a.stillMuch())
	require.Equal(t, 2000, NewMemory(0).poll(400))
	require.Equal(t, 256, NewMemory(0).poll(32<<10))
	require.Equal(t, 20, m.poll(32<<10))
	var none *Memory
	none.join().take(1 << 40)
	require.False(t, none.join().tooMuch())
}

// TestMemoryOfAllPartitions: a stage that stands still holds no more than the
// process's bound, whatever each partition might, and goes on with all of it.
func TestMemoryOfAllPartitions(t *testing.T) {
	t.Parallel()
	const parts, each, size = 6, 400, 4000
	b := newBench(t, parts)
	_, err := b.pool.Exec(t.Context(), `ALTER TABLE effects DROP CONSTRAINT effects_size_check`)
	require.NoError(t, err)
	b.stage.decode = func(v string) string { return v[:12] }
	release := make(chan struct{})
	b.stage.hook = func(ctx context.Context, _ *Batch) error {
		select {
		case <-release:
		case <-ctx.Done():
		}
		return nil
	}
	pad := make([]byte, size/2) // nothing that compresses
	for i := range pad {
		pad[i] = byte(rand.IntN(256))
	}
	for p := range int32(parts) {
		vs := values("p"+string('0'+p)+"-", each)
		for i := range vs {
			vs[i] = (vs[i] + hex.EncodeToString(pad))[:size]
			pad[i%len(pad)]++
		}
		b.send(p, vs...)
	}
	m := NewMemory(1 << 20)
	b.loop(func(_ *Config, d *Deps) {
		d.Memory = m
		d.KgoExtra = []kgo.Opt{kgo.FetchMaxBytes(256 << 10), kgo.FetchMaxPartitionBytes(128 << 10)}
	})
	b.eventually("the bound is reached", 60*time.Second, func() bool { return m.Used() > 1<<20 })
	most := 0
	for range 100 {
		most = max(most, m.Used())
		time.Sleep(20 * time.Millisecond)
	}
	// Each partition may exceed its share by what one poll brings it.
	require.Less(t, most, 3<<20, "of %d bytes in all", parts*each*size)
	close(release)
	b.awaitEffects(parts * each)
	b.appliedOnce(parts * each)
	b.eventually("everything is given back", 60*time.Second, func() bool { return m.Used() == 0 })
}

func TestRejectThatTheDatabaseRefuses(t *testing.T) {
	t.Parallel()
	b := newBench(t, 1)
	_, err := b.pool.Exec(t.Context(), `ALTER TABLE core.dead_letters ADD CHECK (record_value IS NULL OR position('\x66617461'::bytea IN record_value) = 0)`)
	require.NoError(t, err)
	b.send(0, "a", "undecodable 1", "undecodable fatal", "undecodable 2", "b")
	b.loop(nil)
	b.awaitEffects(2)
	require.Equal(t, 3, b.count(`SELECT count(*) FROM core.dead_letters`))
	require.Equal(t, 1, b.count(`SELECT count(*) FROM core.dead_letters WHERE topic_offset = 2 AND record_value IS NULL
		AND reason LIKE '%its bytes were refused: SQLSTATE 23514%' AND content_hash = sha256('undecodable fatal')`))
	b.appliedOnce(2)
}

// TestHeadersOfADeadLetter: a replay must be able to give back every byte.
func TestHeadersOfADeadLetter(t *testing.T) {
	t.Parallel()
	b := newBench(t, 1)
	require.NoError(t, b.prod.ProduceSync(t.Context(), &kgo.Record{Topic: b.kcfg.Topic("in"), Value: []byte("undecodable"),
		Headers: []kgo.RecordHeader{{Key: "text", Value: []byte("é")}, {Key: "raw", Value: []byte{0, 255}}}}).FirstErr())
	b.loop(nil)
	b.eventually("a dead letter", 60*time.Second, func() bool { return b.count(`SELECT count(*) FROM core.dead_letters`) == 1 })
	require.Equal(t, 1, b.count(`SELECT count(*) FROM core.dead_letters WHERE record_headers = '[["text", "é"], ["raw", "AP8=", "base64"]]'`))
}

// TestStatementThatTheSchemaDoesNotKnow waits and pages; nothing is put aside.
func TestStatementThatTheSchemaDoesNotKnow(t *testing.T) {
	t.Parallel()
	b := newBench(t, 1)
	var tries atomic.Int32
	b.stage.hook = func(ctx context.Context, batch *Batch) error {
		if tries.Add(1) > 3 {
			return nil
		}
		_, err := batch.tx.Exec(ctx, `SELECT * FROM not_migrated_yet`)
		return err
	}
	reg := newAlarmCounter()
	b.send(0, "a")
	b.loop(func(_ *Config, d *Deps) { d.Metrics = reg.m })
	b.awaitEffects(1)
	require.EqualValues(t, 3, reg.alarms(t, "statement"))
	require.Zero(t, b.count(`SELECT count(*) FROM core.dead_letters`))
}

// TestGaugesOfARevokedPartition: who no longer owns a partition says nothing of it.
func TestGaugesOfARevokedPartition(t *testing.T) {
	t.Parallel()
	b := newBench(t, 2)
	b.send(0, "a")
	b.send(1, "b")
	reg := newAlarmCounter()
	first := b.loop(func(_ *Config, d *Deps) { d.Metrics = reg.m })
	b.awaitEffects(2)
	b.eventually("both are measured", 60*time.Second, func() bool { return testutil.CollectAndCount(reg.m.stopped) == 2 })
	b.loop(nil)
	b.eventually("one is left", 60*time.Second, func() bool {
		return len(first.all()) == 1 && testutil.CollectAndCount(reg.m.stopped) == 1 && testutil.CollectAndCount(reg.m.behind) == 1
	})
	first.stop()
	require.Zero(t, testutil.CollectAndCount(reg.m.stopped))
}
