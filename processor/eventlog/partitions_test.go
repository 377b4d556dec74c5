package eventlog_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/softcrum/carril/internal/testkit"
	"github.com/softcrum/carril/processor/partition"
	"github.com/softcrum/carril/processor/stagetest"
	"github.com/softcrum/carril/schemas"
)

// keepPartitions runs the partition job by a clock that the test sets.
func keepPartitions(b *stagetest.Bench, clock *atomic.Pointer[time.Time]) {
	b.T.Helper()
	j := partition.NewJob(partition.JobConfig{Every: 50 * time.Millisecond, ListenURL: b.Side.Config().ConnString()}, b.Side, testkit.Logger(b.T),
		prometheus.NewRegistry(), func() time.Time { return *clock.Load() })
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { _ = j.Run(ctx) })
	b.T.Cleanup(func() { cancel(); running.Wait() })
}

// A month changes under load: the clock goes over the edge while events of both
// sides come in, each key on both of them.
func TestMonthChange(t *testing.T) { // FS-CORE-0006 AC6, faults F24
	for name, edge := range map[string]time.Time{
		"OfNovember":  time.Date(2026, 12, 1, 0, 0, 0, 0, time.UTC),
		"OfALeapYear": time.Date(2028, 3, 1, 0, 0, 0, 0, time.UTC), // February has a 29th
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := stagetest.New(t)
			last := edge.Add(-time.Millisecond) // 23:59:59.999
			for _, at := range []time.Time{last, edge} {
				b.Exec(`DROP TABLE IF EXISTS core.tracked_events_` + at.Format("200601")) // whatever month the test runs in
			}
			var clock atomic.Pointer[time.Time]
			clock.Store(new(last))
			keepPartitions(b, &clock)
			run(b)
			const n = 150
			for i := range n {
				if i == n/2 {
					clock.Store(new(edge))
				}
				key := fmt.Sprintf("k-%d", i)
				before, after := b.Event(key, "a.b", last, anybody, `{}`), b.Event(key, "a.b", edge, anybody, `{}`)
				if i%2 == 0 {
					before, after = after, before
				}
				b.SendEvents(before, after, before)
			}
			b.Await(n, eventCount)
			b.Await(n/2, eventCount+` AND occurred_at = $1 AND tableoid::regclass::text = $2`, last, "core.tracked_events_"+last.Format("200601")+"_r13")
			b.Await(n/2, eventCount+` AND occurred_at = $1 AND tableoid::regclass::text = $2`, edge, "core.tracked_events_"+edge.Format("200601")+"_r13")
			require.Equal(t, n, b.Count(`SELECT count(DISTINCT event_id) FROM core.tracked_events WHERE occurred_at > '-infinity'`))
			require.Zero(t, b.Count(`SELECT count(*) FROM core.tracked_events_default`))
			require.Zero(t, b.Count(`SELECT count(*) FROM core.dead_letters`))
			b.Eventually("months ahead", func() bool {
				return b.Count(`SELECT count(*) FROM core.missing_partitions($1) WHERE steps >= 0`, edge) == 0
			})
		})
	}
}

// A partition goes under load, and again while DEFAULT holds rows of it.
func TestMissingPartition(t *testing.T) { // faults F25
	t.Parallel()
	b := stagetest.New(t)
	var clock atomic.Pointer[time.Time]
	clock.Store(new(time.Now()))
	keepPartitions(b, &clock)
	run(b)
	at := time.Date(2025, 7, 31, 23, 59, 59, 0, time.UTC)
	sent := 0
	send := func(n int) {
		for range n {
			b.SendEvents(b.Event(fmt.Sprintf("k-%d", sent), "a.b", at, anybody, `{}`))
			sent++
		}
	}
	b.SendEvents(b.Event("first", "a.b", at.AddDate(0, 0, -40), anybody, `{}`)) // the stage runs
	b.Await(1, eventCount)

	_, err := partition.Make(t.Context(), b.Side, "core.tracked_events", at, 0)
	require.NoError(t, err)
	b.SendEvents(b.Event("seen", "a.b", at, anybody, `{}`)) // the stage remembers the month
	b.Await(2, eventCount)
	b.Exec(`DROP TABLE core.tracked_events_202507`) // with the row "seen"
	send(60)                                        // land in DEFAULT, and are moved
	b.Await(sent+1, eventCount)
	empty := func() bool { return b.Count(`SELECT count(*) FROM core.tracked_events_default`) == 0 }
	b.Eventually("DEFAULT is empty", empty)
	b.Exec(`ALTER TABLE core.tracked_events_202507 DETACH PARTITION core.tracked_events_202507_r13`) // one class alone: 23514
	send(60)
	b.Await(sent+1, `SELECT (SELECT count(*) FROM core.tracked_events WHERE occurred_at > '-infinity') + (SELECT count(*) FROM core.tracked_events_202507_r13)`)

	stray := time.Date(2025, 5, 2, 0, 0, 0, 0, time.UTC) // DEFAULT holds a row of the month that an event needs
	b.Exec(`INSERT INTO core.tracked_events (tenant_id, event_id, cell_id, contact_id, kind, event_name, properties, occurred_at, occurred_offset, received_at,
    idempotency_key, correlation_id, retention_months, lane, lane_seq) VALUES ($1, $1, 'c', $1, 'track', 'a.b', '{}', $2, 0, $2, 'k', 'c', 13, 1, 1)`, uuid.New(), stray)
	b.SendEvents(b.Event("beside a stray", "a.b", stray, anybody, `{}`))
	b.Await(2, eventCount+` AND tableoid::regclass::text = 'core.tracked_events_202505_r13'`)

	b.Eventually("DEFAULT is empty", empty)
	require.Equal(t, sent+3, b.Count(`SELECT count(*) FROM core.event_keys`), "each key once")
	require.Zero(t, b.Count(`SELECT count(*) FROM core.dead_letters`), "never poison")
}

const allEvents = `SELECT count(*) FROM (SELECT event_id FROM core.tracked_events WHERE occurred_at > '-infinity'
    UNION ALL SELECT event_id FROM core.detached(NULL::core.tracked_events, '-infinity', 'infinity', NULL)) e`

// detach is retention's first step, with nobody to go on after it.
func detach(b *stagetest.Bench, month time.Time) {
	b.T.Helper()
	require.NoError(b.T, partition.Retry(b.T.Context(), 20, func() error {
		_, err := b.Side.Exec(b.T.Context(), `SELECT core.detach_leaf('core.tracked_events', (SELECT part::regclass FROM core.partition_tree('core.tracked_events')
			WHERE lower_bound <= $1 AND upper_bound > $1 AND retention_months = 13), gen_random_uuid())`, month)
		return err
	}))
}

func TestDetachedLeaf(t *testing.T) {
	at := time.Date(2025, 8, 31, 23, 0, 0, 0, time.UTC)

	t.Run("TakesLateRecordsInItsSuccessorWhileItGoes", func(t *testing.T) { // I35
		t.Parallel()
		b := stagetest.New(t)
		run(b)
		const n = 300
		var sender sync.WaitGroup
		var events []schemas.Event
		for i := range n {
			events = append(events, b.Event(fmt.Sprintf("k-%d", i), "a.b", at, anybody, `{}`))
		}
		b.SendEvents(events[0])
		b.Await(1, eventCount)
		sender.Go(func() { b.SendEvents(events[1:]...) })
		for range 5 { // and nobody finishes: maintain died each time
			detach(b, at)
		}
		sender.Wait()
		b.Await(n, allEvents)
		require.Equal(t, 5, b.Count(`SELECT count(*) FROM core.retention_ledger WHERE state = 'detached'`))
		require.Zero(t, b.Count(`SELECT count(*) FROM core.dead_letters`))
		require.Zero(t, b.Count(`SELECT count(*) FROM core.tracked_events_default`))
		got := stagetest.Read[schemas.EventTracked](b, schemas.TopicEventTracked, n)
		for i, e := range got {
			require.EqualValues(t, i+1, e.LaneSeq)
		}
	})

	t.Run("IsPublishedByTheNextOwnerOfTheLane", func(t *testing.T) { // I34
		t.Parallel()
		b := stagetest.New(t)
		for i := range 20 { // late ones among others
			b.SendEvents(b.Event(fmt.Sprintf("k-%02d", i), "a.b", []time.Time{at, time.Now()}[i%2], anybody, `{"i":`+fmt.Sprint(i)+`}`))
		}
		stop := run(b)
		b.Await(20, eventCount)
		stop()
		// The owner died after its commits, before it published anything; then the leaf was detached.
		b.Exec(`UPDATE core.outbox_cursors SET cursor = 0`)
		detach(b, at)
		require.Equal(t, 10, b.Count(eventCount))
		b.Exec(`ALTER TABLE core.tracked_events ADD COLUMN since text`) // by a later version
		run(b)
		b.Eventually("cursor at the counter", func() bool {
			return b.Count(`SELECT count(*) FROM core.outbox_cursors c JOIN core.outbox_lanes l USING (lane) WHERE l.store = 'events' AND c.cursor < l.counter`) == 0
		})
		got := stagetest.Read[schemas.EventTracked](b, schemas.TopicEventTracked, 20)
		for i, e := range got {
			require.Equal(t, fmt.Sprintf("k-%02d", i), e.IdempotencyKey)
		}
	})
}
