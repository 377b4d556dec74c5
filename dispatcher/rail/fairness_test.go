package rail_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/softcrum/carril/dispatcher/provider"
	"github.com/softcrum/carril/dispatcher/rail"
	"github.com/softcrum/carril/dispatcher/sends"
	"github.com/softcrum/carril/internal/ids"
	"github.com/softcrum/carril/schemas"
)

// behind sends a code of a tenant and gives how many other requests reached the
// provider between its enqueue and its own. Counting requests, not time, keeps
// the test's meaning on a slow machine.
func (b *bench) behind(tenant uuid.UUID) int {
	b.t.Helper()
	id := b.enqueue(job{tenant: tenant})[0]
	before, _ := b.fake.count() // what passed while it was still being written was not before it
	b.eventually("the code is there", func() bool { return b.fake.delivered(id) == 1 })
	b.fake.mu.Lock()
	defer b.fake.mu.Unlock()
	at := slices.IndexFunc(b.fake.requests, func(r receipt) bool { return slices.Contains(r.sends, id) })
	return at - before
}

// A code of a quiet tenant goes next, whoever has a backlog.
func TestFairness(t *testing.T) {
	t.Parallel()
	// 12 requests a second: a code that goes next has one before it and what a slow
	// machine lets pass meanwhile; one that waits behind a backlog has dozens.
	const rate = 12

	// I1, the rail's part, and I26
	t.Run("ToACodeBesideAHungryBlast", func(t *testing.T) {
		t.Parallel()
		b := newBench(t)
		other := b.addTenant("b")
		for range 60 {
			b.enqueueBatch(b.tenant, 2, nil)
		}
		codes, _ := b.start(setup{rate: rate})
		<-codes.Ready() // a code that waits for its worker to join waits behind nobody
		b.start(setup{rail: schemas.RailMarketing, rate: rate})
		b.eventually("the blast runs", func() bool { n, _ := b.fake.count(); return n > 5 })
		for range 4 {
			require.LessOrEqual(t, b.behind(other), 20)
		}
		require.Less(t, b.batches("sent"), 60, "the blast was hungry all the while")
	})

	// I50, whole: the partitions of a real broker, the slowest rate, and every backlog
	// as urgent as the code. A turn of all tenants is twenty requests.
	t.Run("ToACodeBesideTwentyBacklogsOfCodes", func(t *testing.T) {
		t.Parallel()
		b := newBenchOf(t, false)
		credits := func(c *sends.Config) { c.Credits = 8 }
		b.sweepWith(credits)
		var backlog []job
		for i := range 20 {
			tenant := b.addTenant(fmt.Sprintf("a%d", i))
			for j := range 10 {
				state := "waiting"
				if j < 8 {
					state = "in_topic"
				}
				backlog = append(backlog, job{tenant: tenant, contact: ids.New(), state: state})
			}
		}
		b.enqueue(backlog...)
		partitions := map[int32]bool{}
		for _, r := range b.readTopic(schemas.RailTopic("email", schemas.RailTransactional)) {
			partitions[r.Partition] = true
		}
		require.Len(t, partitions, 6)
		b.start(setup{rate: 5, store: credits})
		b.eventually("everybody has had a turn", func() bool { n, _ := b.fake.count(); return n > 20 })
		var before []int
		sum := 0
		for i := range 8 {
			n := b.behind(b.addTenant(fmt.Sprintf("quiet%d", i)))
			before, sum = append(before, n), sum+n
		}
		// Four are a second's, and the machine may be slow for half of one. Behind a turn
		// of all tenants, ten would be before each.
		require.LessOrEqual(t, sum, 8*6, "%v", before)
		done, _ := b.fake.count()
		require.Less(t, done, 180, "the backlogs were there all the while")
	})

	// I21, and more tenants than a turn should take
	for _, tenants := range []int{1, 20} {
		t.Run(fmt.Sprintf("ToACodeBeside%dTransactionalBacklogs", tenants), func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			b.sweepWith(func(c *sends.Config) { c.Credits = 8 })
			var backlog []job
			for i := range tenants {
				tenant := b.addTenant(fmt.Sprintf("a%d", i))
				for j := range 400 / tenants {
					state := "waiting"
					if j < 4 {
						state = "in_topic"
					}
					backlog = append(backlog, job{tenant: tenant, category: "product", state: state})
				}
			}
			b.enqueue(backlog...)
			b.start(setup{rate: rate, store: func(c *sends.Config) { c.Credits = 8 }})
			b.eventually("the backlog runs", func() bool { n, _ := b.fake.count(); return n > 25 })
			for i := range 3 { // each time another quiet tenant: who was just served waits for its share
				require.LessOrEqual(t, b.behind(b.addTenant(fmt.Sprintf("quiet%d", i))), 20)
			}
			done, _ := b.fake.count()
			require.Less(t, done, 350, "the backlog was there all the while")
		})
	}

	// I53, the rail's part: several processes of one rail
	t.Run("ToACodeBesideABacklogInSeveralProcesses", func(t *testing.T) {
		t.Parallel()
		b := newBench(t)
		other := b.addTenant("b")
		b.enqueue(make([]job, 120)...)
		b.start(setup{rate: rate, asker: "one"})
		b.start(setup{rate: rate, asker: "two"})
		b.eventually("the backlog runs", func() bool { n, _ := b.fake.count(); return n > 10 })
		b.settled(2)
		for range 3 {
			require.LessOrEqual(t, b.behind(other), 20)
		}
	})
}

// alarms counts those of a kind.
func alarms(t *testing.T, reg *prometheus.Registry, kind string) (n float64) {
	t.Helper()
	families, err := reg.Gather()
	require.NoError(t, err)
	for _, f := range families {
		for _, m := range f.GetMetric() {
			for _, l := range m.GetLabel() {
				if f.GetName() == "carril_rail_alarms_total" && l.GetName() == "kind" && l.GetValue() == kind {
					n += m.GetCounter().GetValue()
				}
			}
		}
	}
	return n
}

// F12: members come and go while jobs run; nothing is lost and nobody gets a
// message twice.
func TestRebalance(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.sweep()
	all := b.enqueue(make([]job, 150)...)
	b.fake.latency = 20 * time.Millisecond
	_, stop := b.start(setup{rate: 150, asker: "p0"})
	for i := range 4 {
		n, _ := b.fake.count()
		b.eventually("some more are sent", func() bool { m, _ := b.fake.count(); return m >= min(n+15, 140) })
		_, next := b.start(setup{rate: 150, asker: fmt.Sprint("p", i+1)})
		stop()
		stop = next
	}
	b.await(150, "sent")
	b.drained()
	for _, id := range all {
		require.Equal(t, 1, b.fake.delivered(id))
	}
	requests, _ := b.fake.count()
	require.Less(t, requests, 180, "what comes again was mostly known to be finished")
}

// I6, I40: the rows are what a rail owes; a record that is gone comes again.
func TestReconcile(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	lost := b.enqueue(job{state: "waiting"}, job{state: "waiting"})
	b.exec(`UPDATE core.processed_jobs SET state = 'in_topic', updated_at = now() - interval '10 minutes' WHERE id_time > now() - interval '1 day' AND job_id = ANY($1)`, lost)
	b.start(setup{})
	b.enqueue(job{})
	b.await(1, "sent")
	b.sweep()
	b.await(3, "sent")
	for _, id := range lost {
		require.Equal(t, 1, b.fake.delivered(id))
	}
}

// I6: a key is revoked for longer than anything of the broker's lives. The rails'
// records are kept for as long as it takes; the group's offsets are not; and where
// records are gone all the same, the rows still say what is owed.
func TestRevokedForLongerThanTheBrokerKeeps(t *testing.T) {
	t.Parallel()
	rails := []string{schemas.RailTransactional, schemas.RailMarketing}
	for name, gone := range map[string]bool{"TheGroups": false, "TheRecordsToo": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			b.sweep()
			for _, r := range rails {
				require.Equal(t, "-1", b.topicConfig(schemas.RailTopic("email", r), "retention.ms"), "no time is long enough")
			}
			refused := func(int, provider.Request) (provider.Result, error) {
				return provider.Result{}, &provider.Error{Class: provider.ClassConfiguration, Status: 401, Code: "invalid_api_key"}
			}
			b.fake.set(refused)
			codes := b.enqueue(make([]job, 12)...)
			var all []uuid.UUID
			for range 2 {
				_, in := b.enqueueBatch(b.tenant, 5, nil)
				all = append(all, in...)
			}
			all = append(all, codes...)
			reg := prometheus.NewRegistry()
			metrics := rail.NewMetrics(reg, []string{"email"})
			work := func() (stop func()) {
				var stops []func()
				for _, r := range rails {
					_, stop := b.start(setup{rail: r, metrics: metrics, cfg: func(c *rail.Config) { c.Recheck = 50 * time.Millisecond }})
					stops = append(stops, stop)
				}
				return func() {
					for _, stop := range stops {
						stop()
					}
				}
			}
			stop := work()
			before := 0
			refusedAgain := func() {
				b.eventually("the key is refused", func() bool { n, _ := b.fake.count(); return n >= before+6 })
				before, _ = b.fake.count()
			}
			refusedAgain()
			stop()
			for _, r := range rails {
				b.forgetGroup(r)
				if gone {
					b.deleteRecords(schemas.RailTopic("email", r))
				}
			}
			b.exec(`UPDATE core.processed_jobs SET updated_at = now() - interval '8 days' WHERE id_time > now() - interval '1 day' AND state = 'in_topic'`)
			stop = work()
			refusedAgain() // where the records are gone: of jobs that have come again
			b.fake.set(nil)
			b.await(14, "sent")
			for _, id := range all {
				require.Equal(t, 1, b.fake.delivered(id))
			}
			require.Zero(t, b.count(`SELECT count(*) FROM core.dead_letters`))
			require.Zero(t, b.count(`SELECT count(*) FROM core.processed_jobs WHERE id_time > now() - interval '1 day' AND attempts > 1`), "a refused key is no attempt of the message's")
			stop()
			require.Equal(t, gone, alarms(t, reg, "missed") > 0)
		})
	}
}

// I4, the rail's part: a recreated topic is read from its beginning.
func TestRecreatedTopic(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	_, stop := b.start(setup{})
	b.enqueue(make([]job, 30)...)
	b.await(30, "sent")
	b.drained()
	stop()
	b.recreate(schemas.RailTopic("email", schemas.RailTransactional))
	b.enqueue(make([]job, 60)...) // grown past the old positions
	b.start(setup{})
	b.await(90, "sent")
	require.Empty(t, b.fake.twice())
}

// A restart goes on where the last one stood, also when the broker has
// forgotten the group.
func TestRestart(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	_, stop := b.start(setup{})
	b.enqueue(make([]job, 20)...)
	b.await(20, "sent")
	b.drained()
	stop()
	require.Equal(t, 20, b.position())
	b.forgetGroup(schemas.RailTransactional)
	b.start(setup{})
	b.enqueue(job{})
	b.await(21, "sent")
	b.eventually("the position moved", func() bool { return b.position() == 21 })
	requests, _ := b.fake.count()
	require.Equal(t, 21, requests)
}

// F28: nothing but counters lives in Redis.
func TestFlushedRedis(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	rdb := b.redis()
	all := b.enqueue(make([]job, 60)...)
	b.start(setup{rate: 100})
	for range 5 {
		keys, err := rdb.Keys(t.Context(), b.prefix+"*").Result()
		require.NoError(t, err)
		if len(keys) > 0 {
			require.NoError(t, rdb.Del(t.Context(), keys...).Err())
		}
		time.Sleep(50 * time.Millisecond)
	}
	b.await(60, "sent")
	for _, id := range all {
		require.Equal(t, 1, b.fake.delivered(id))
	}
}

// What is finished leaves its topic after a while, and nothing else does.
func TestTrim(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.trimAfter = time.Millisecond
	_, stop := b.start(setup{})
	b.enqueue(make([]job, 20)...)
	b.await(20, "sent")
	b.drained()
	stop()
	b.enqueue(make([]job, 5)...)
	b.sweep()
	b.eventually("the finished ones are gone", func() bool { return b.standing("notif.email.transactional") == 5 })
	require.Len(t, b.readTopic("notif.email.transactional"), 5)
	b.start(setup{})
	b.await(25, "sent")
	require.Empty(t, b.fake.twice())
}
