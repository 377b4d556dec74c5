package retention_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/softcrum/carril/internal/ids"
	"github.com/softcrum/carril/internal/testkit"
	"github.com/softcrum/carril/processor/partition"
	"github.com/softcrum/carril/processor/retention"
)

func TestRetention(t *testing.T) {
	t.Run("ExportsVerifiesAndDropsWhatIsDueAndNothingElse", func(t *testing.T) { // FS-CORE-0006 AC7, §9
		t.Parallel()
		b := newBench(t)
		b.event("due-1", due, 13, true)
		b.event("due-2", due.Add(-time.Hour), 13, true)
		b.event("next-month", due.Add(time.Millisecond), 13, true) // 2025-10-01: its class ends on 2026-12-01 at the earliest
		b.event("longer", due, 25, true)
		b.event("today", now, 13, true)
		res := b.run()
		require.Len(t, res.Dropped, 1)
		require.Zero(t, res.Due+res.Open)
		require.Equal(t, 3, b.count(attached))
		exported := b.exports(retention.Events)
		require.Len(t, exported, 1)
		require.Equal(t, 2, strings.Count(exported[0], `"retention_months": 13`))
		require.Contains(t, exported[0], `"due-1"`)
		require.Contains(t, exported[0], `"due-2"`)
		require.Equal(t, 2, b.count(monthlyCount))
		require.Equal(t, 1, b.count(`SELECT count(*) FROM core.retention_ledger WHERE state = 'dropped' AND rows = 2 AND trouble IS NULL AND dropped_at = $1
			AND lower_bound = '2025-09-01T00:00:00Z' AND upper_bound = '2025-10-01T00:00:00Z'`, now))
		again := b.run()
		require.Empty(t, again.Dropped, "a month whose leaf is gone is gone once")
		require.Equal(t, 2, b.count(monthlyCount))
	})

	t.Run("NeverDropsWithoutStorageAndSaysSo", func(t *testing.T) {
		t.Parallel()
		b := newBench(t)
		b.event("due", due, 13, true)
		job := retention.NewJob(retention.Config{}, retention.Deps{Pool: b.pool, Log: testkit.Logger(t), Now: func() time.Time { return now }})
		res, err := job.RunOnce(t.Context())
		require.NoError(t, err)
		require.Equal(t, 1, res.Due)
		require.Len(t, res.Held, 1)
		require.Contains(t, res.Held[0].Reason, "CARRIL_STORAGE_URL")
		status, err := job.Status(t.Context(), 5)
		require.NoError(t, err)
		require.False(t, status.Storage)
		require.Equal(t, retention.ErrNoStorage.Error(), status.Due[0].Waits)
		require.Equal(t, 1, b.count(attached))
		require.Zero(t, b.count(`SELECT count(*) FROM core.retention_ledger`))
	})

	t.Run("KeepsALeafUntilItsEventsArePublished", func(t *testing.T) { // I23
		t.Parallel()
		b := newBench(t)
		b.event("first", due, 13, true)
		b.event("owner died before publishing", due, 13, false)
		res := b.run()
		require.Empty(t, res.Dropped)
		require.Contains(t, res.Held[0].Reason, "its relay is at 1 of 2")
		require.Equal(t, 2, b.count(attached), "not even detached")
		b.publish()
		require.Len(t, b.run().Dropped, 1)
	})

	t.Run("IsNotDroppedWhileItHoldsUnpublishedEvents", func(t *testing.T) { // I34
		t.Parallel()
		b := newBench(t)
		b.event("first", due, 13, true)
		b.event("committed after the look", due, 13, false)
		b.exec(`SELECT core.detach_leaf('core.tracked_events', 'core.tracked_events_202509_r13', gen_random_uuid())`)
		res := b.run()
		require.Empty(t, res.Dropped)
		require.Equal(t, "1 of its events are not published yet", res.Held[0].Reason)
		require.Equal(t, 2, b.count(everywhere))
		require.Equal(t, 1, b.count(`SELECT count(*) FROM core.retention_ledger WHERE state = 'verified'`))
		b.publish()
		require.Len(t, b.run().Dropped, 1)
	})

	t.Run("ALateRecordOfADroppedMonthIsExportedUnderAnotherName", func(t *testing.T) { // I24
		t.Parallel()
		b := newBench(t)
		b.event("in time", due, 13, true)
		b.run()
		first := b.exports(retention.Events)
		b.event("late", due, 13, true)
		b.run()
		both := b.exports(retention.Events)
		require.Len(t, both, 2)
		require.Equal(t, first[0], both[0], "the first object is untouched")
		require.Contains(t, both[1], `"late"`)
		require.Len(t, b.store.objects, 2)
		require.Equal(t, 2, b.count(monthlyCount))
	})

	t.Run("ALateRecordOfADetachedMonthLandsInItsSuccessor", func(t *testing.T) { // I35, maintain died in the middle
		t.Parallel()
		b := newBench(t)
		b.event("in time", due, 13, true)
		b.dies("detached")
		b.event("late", due, 13, true)
		require.Equal(t, 1, b.count(attached))
		require.Equal(t, 2, b.count(everywhere))
		require.Equal(t, b.text(`SELECT successor FROM core.retention_ledger`),
			b.text(`SELECT tableoid::regclass::text FROM core.tracked_events WHERE occurred_at > '-infinity'`))
		b.restart()
		require.Len(t, b.run().Dropped, 2)
		require.Equal(t, 2, b.count(monthlyCount))
	})

	t.Run("AnEraserStillReachesADetachedRowAndTheExportForgetsIt", func(t *testing.T) { // I36
		t.Parallel()
		b := newBench(t)
		b.event("ana", due, 13, true)
		b.dies("verified")
		void := b.text(`SELECT object FROM core.retention_ledger`)
		require.Contains(t, b.store.objects[void], "Ana")
		leaf := b.text(`SELECT name FROM core.leaves('core.tracked_events', '-infinity', 'infinity') WHERE detached`)
		require.NoError(t, pgx.BeginFunc(t.Context(), b.pool, func(tx pgx.Tx) error {
			_, err := tx.Exec(t.Context(), `SET LOCAL ROLE carril_eraser`)
			require.NoError(t, err)
			_, err = tx.Exec(t.Context(), `UPDATE `+leaf+` SET properties = '{}'`)
			return err
		}))
		b.restart()
		require.Len(t, b.run().Dropped, 1)
		exported := b.exports(retention.Events)
		require.Contains(t, exported[0], `"ana"`)
		require.NotContains(t, exported[0], "Ana")
		require.Equal(t, 0, b.count(`SELECT cardinality(superseded) FROM core.retention_ledger`))
		require.NotContains(t, b.store.objects, void, "what stands for nothing is gone")
	})

	t.Run("ADetachedTableStaysAppendOnlyAndReadable", func(t *testing.T) {
		t.Parallel()
		b := newBench(t)
		b.event("k", due, 13, true)
		b.dies("detached")
		leaf := b.text(`SELECT name FROM core.leaves('core.tracked_events', '-infinity', 'infinity') WHERE detached`)
		for _, sql := range []string{`DELETE FROM ` + leaf, `UPDATE ` + leaf + ` SET event_name = 'x'`} {
			_, err := b.pool.Exec(t.Context(), sql)
			require.ErrorContains(t, err, "append-only", sql)
		}
		require.Equal(t, 1, b.count(`SELECT count(*) FROM pg_class WHERE oid = $1::regclass AND has_table_privilege('carril_app', oid, 'SELECT')
			AND NOT has_table_privilege('carril_app', oid, 'DELETE') AND NOT has_table_privilege('carril_app', oid, 'UPDATE') AND has_table_privilege('carril_readonly', oid, 'SELECT')`, leaf))
	})

	t.Run("AGrownPlanKeepsItsRowsInTheLongerClass", func(t *testing.T) {
		t.Parallel()
		b := newBench(t)
		other := ids.New()
		b.exec(`INSERT INTO core.tenants (tenant_id, slug, name, plan_id) VALUES ($1, 'other', 'Other', 'starter')`, other)
		b.event("grows", due, 13, true)
		b.eventOf(other, "stays small", due, due, 13, true)
		b.exec(`UPDATE core.tenants SET plan_id = 'growth' WHERE tenant_id = $1`, b.tenant)
		res := b.run()
		require.EqualValues(t, 1, res.Moved)
		require.Len(t, res.Dropped, 1)
		require.Equal(t, 1, b.count(attached+` AND idempotency_key = 'grows' AND retention_months = 25 AND lane_seq = 1`))
		require.Contains(t, b.exports(retention.Events)[0], "stays small")
		require.NotContains(t, b.exports(retention.Events)[0], "grows")
		require.Equal(t, 1, b.count(monthlyCount))
	})

	t.Run("APlanThatGrowsAfterTheExportKeepsItsRowsToo", func(t *testing.T) {
		t.Parallel()
		b := newBench(t)
		b.event("grows", due, 13, true)
		b.dies("verified")
		b.exec(`INSERT INTO core.plans (plan_id, retention_months, events_per_second, events_burst) VALUES ('archive', 120, 1, 1)`)
		b.exec(`UPDATE core.tenants SET plan_id = 'archive'`)
		b.restart()
		res := b.run()
		require.EqualValues(t, 1, res.Moved)
		require.Equal(t, 1, b.count(attached+` AND retention_months = 120`))
		require.NotContains(t, strings.Join(b.exports(retention.Events), ""), "grows")
		require.Zero(t, b.count(monthlyCount))
	})

	t.Run("CursorsOtherThanTheRelaysHoldNothing", func(t *testing.T) { // I41: a mirror, a disabled endpoint, an old feed cursor
		t.Parallel()
		b := newBench(t)
		b.exec(`INSERT INTO core.outbox_cursors (lane, consumer, cursor) SELECT lane, 'mirror:quiet', 0 FROM core.outbox_lanes`)
		b.event("k", due, 13, true)
		require.Len(t, b.run().Dropped, 1)
		require.Equal(t, 1, b.count(`SELECT count(*) FROM core.outbox_cursors WHERE consumer = 'mirror:quiet'`))
	})

	t.Run("FenceRowsOutliveTheirLeafUntilTheirOwnTimeIsOver", func(t *testing.T) { // I22
		t.Parallel()
		b := newBench(t)
		received := now.AddDate(0, 0, -3) // nearly 14 months late
		b.eventOf(b.tenant, "late", due, received, 13, true)
		b.event("in time", due, 13, true)
		b.run()
		const key = `SELECT count(*) FROM core.event_keys WHERE event_id = $1`
		require.Equal(t, 1, b.count(key, ids.Event(b.tenant, "late")), "the key sent again is no second event")
		require.Zero(t, b.count(key, ids.Event(b.tenant, "in time")), "received as long ago as it occurred")
		b.clock = received.AddDate(0, 13, 0).Add(-time.Minute)
		b.run()
		require.Equal(t, 1, b.count(key, ids.Event(b.tenant, "late")))
		b.clock = received.AddDate(0, 13, 0)
		b.run()
		require.Zero(t, b.count(key, ids.Event(b.tenant, "late")))
		require.Zero(t, b.count(`SELECT count(*) FROM core.expired_keys`))
	})

	t.Run("AShortClassKeepsKeysAsLongAsTheTopicKeepsRecords", func(t *testing.T) { // I22
		t.Parallel()
		b := newBench(t)
		b.cfg.TopicRetention = 60 * 24 * time.Hour
		b.restart()
		b.exec(`INSERT INTO core.plans (plan_id, retention_months, events_per_second, events_burst) VALUES ('short', 1, 1, 1)`)
		b.exec(`UPDATE core.tenants SET plan_id = 'short'`)
		at := now.AddDate(0, 0, -50) // September 2026, class 1: due since November 1
		b.event("k", at, 1, true)
		b.run()
		require.Zero(t, b.count(attached))
		require.Equal(t, 1, b.count(`SELECT count(*) FROM core.event_keys`))
		b.clock = at.Add(61 * 24 * time.Hour)
		b.run()
		require.Zero(t, b.count(`SELECT count(*) FROM core.event_keys`))
	})

	t.Run("NeedsNoMoreThanTheApplicationsRole", func(t *testing.T) {
		t.Parallel()
		b := newBench(t)
		b.event("due", due, 13, true)
		b.event("grows", due, 13, true)
		b.send(due, 13, "queued", 1, "sent", 1)
		b.clock = now
		owner := b.pool
		app := b.asApplication()
		require.Len(t, b.run().Dropped, 3)
		b.pool = owner
		require.Equal(t, 2, b.count(monthlyCount))
		_, err := app.Exec(t.Context(), `DELETE FROM core.tracked_events WHERE occurred_at > '-infinity'`)
		require.ErrorContains(t, err, "permission denied")
		made, err := partition.Make(t.Context(), app, retention.Events, now.AddDate(9, 0, 0), 0)
		require.NoError(t, err)
		require.True(t, made)
	})

	t.Run("WorksWhateverTheServersTimeZone", func(t *testing.T) {
		t.Parallel()
		b := newBench(t)
		b.exec(`DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET timezone = %L', current_database(), 'America/Argentina/Buenos_Aires'); END $$`)
		b.exec(`DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET datestyle = %L', current_database(), 'SQL, DMY'); END $$`)
		b.pool.Reset()
		require.Equal(t, "America/Argentina/Buenos_Aires", b.text(`SHOW timezone`))
		b.event("due", due, 13, true)                                            // 2025-09-30 20:59 there
		b.event("not due", due.Add(time.Millisecond), 13, true)                  // still September there
		b.event("august", time.Date(2025, 9, 1, 0, 0, 0, 0, time.UTC), 13, true) // August 31 there
		b.dies("detached")
		require.Equal(t, 3, b.count(everywhere))
		b.restart()
		require.Len(t, b.run().Dropped, 1)
		require.Equal(t, 1, b.count(attached+` AND idempotency_key = 'not due'`))
		require.Equal(t, 2, b.count(monthlyCount))
		require.Zero(t, b.count(`SELECT count(*) FROM core.tracked_events_default`))
	})

	t.Run("EmptyLeavesAndMonthsGoOnceNoLateRecordCanCome", func(t *testing.T) {
		t.Parallel()
		b := newBench(t)
		b.event("due", due, 13, true)
		b.run()
		const leaves = `SELECT count(*) FROM core.partition_tree('core.tracked_events') WHERE lower_bound = '2025-09-01T00:00:00Z' AND retention_months = 13`
		require.Equal(t, 1, b.count(leaves), "the successor waits for late records")
		b.clock = now.AddDate(0, 2, 0)
		require.Positive(t, b.run().Empty)
		require.Zero(t, b.count(leaves))
		b.clock = now.AddDate(3, 0, 0)
		b.run()
		require.Zero(t, b.count(`SELECT count(*) FROM core.partition_tree('core.tracked_events') WHERE lower_bound = '2025-09-01T00:00:00Z'`))
		b.event("very late", due, 13, true) // and all is made again when it is needed
	})
}

// dies runs the job until it dies at a point.
func (b *bench) dies(point string) {
	b.Helper()
	died := errors.New("killed")
	b.job.DieAt(func(at string) error {
		if at == point {
			return died
		}
		return nil
	})
	_, err := b.job.RunOnce(context.Background())
	require.ErrorIs(b.T, err, died)
}

// TestCrash kills the job at every point, and has every call of the storage fail
// before and after its work; then another process runs.
func TestCrash(t *testing.T) { // faults F5 M2, P15
	t.Parallel()
	rows := func(b *bench) {
		b.event("one", due, 13, true)
		b.event("two", due, 13, true)
		b.event("stays", due, 25, true)
	}
	check := func(t *testing.T, b *bench) {
		b.restart()
		require.Equal(t, 3, b.count(everywhere)+b.count(`SELECT count(*) FROM core.retention_ledger WHERE state = 'dropped'`)*2, "no row is unreachable")
		b.run()
		b.run()
		exported := b.exports(retention.Events)
		require.Len(t, exported, 1)
		require.Contains(t, exported[0], `"one"`)
		require.Contains(t, exported[0], `"two"`)
		require.Equal(t, 1, b.count(attached))
		require.Equal(t, 1, b.count(everywhere))
		require.Equal(t, 2, b.count(monthlyCount), "counts are added once")
		require.Zero(t, b.count(`SELECT count(*) FROM core.retention_ledger WHERE state <> 'dropped' OR trouble IS NOT NULL`))
		require.Equal(t, 1, b.count(`SELECT count(*) FROM core.event_keys`))
	}
	for _, point := range retention.Points {
		t.Run("At "+point, func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			rows(b)
			b.dies(point)
			check(t, b)
		})
	}
	for _, call := range []string{"export", "verify", "digest"} {
		for _, when := range []string{"before", "after"} {
			t.Run(fmt.Sprintf("Storage %s %s", when, call), func(t *testing.T) {
				t.Parallel()
				b := newBench(t)
				rows(b)
				away, ok := errors.New("storage is away"), func(string) error { return nil }
				fail := func(c string) error {
					if c == call {
						return away
					}
					return nil
				}
				if when == "before" {
					b.store.before = fail
				} else {
					b.store.after = fail
				}
				for range 3 { // and stays away for a while
					_, err := b.job.RunOnce(t.Context())
					require.ErrorIs(t, err, away)
					require.Equal(t, 1, b.count(`SELECT count(*) FROM core.retention_ledger WHERE trouble LIKE '%storage is away%'`))
				}
				b.store.before, b.store.after = ok, ok
				check(t, b)
			})
		}
	}
	t.Run("AnObjectThatRottedIsWrittenAnew", func(t *testing.T) {
		t.Parallel()
		b := newBench(t)
		rows(b)
		b.dies("exported")
		first := b.text(`SELECT object FROM core.retention_ledger`)
		b.store.objects[first] = strings.Replace(b.store.objects[first], "Ana", "Eva", 1)
		b.restart()
		_, err := b.job.RunOnce(t.Context())
		require.ErrorContains(t, err, "digests differ")
		check(t, b)
		require.NotEqual(t, first, b.text(`SELECT object FROM core.retention_ledger`))
	})
}
