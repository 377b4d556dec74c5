package partition_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/softcrum/carril/internal/testkit"
	"github.com/softcrum/carril/processor/partition"
	"github.com/softcrum/carril/processor/stagetest"
)

func TestMain(m *testing.M) { testkit.Main(m, func() error { return goleak.Find() }) }

func count(t *testing.T, db *pgxpool.Pool, sql string, args ...any) (n int) {
	t.Helper()
	require.NoError(t, db.QueryRow(context.Background(), sql, args...).Scan(&n))
	return n
}

func exec(t *testing.T, db *pgxpool.Pool, sql string, args ...any) {
	t.Helper()
	_, err := db.Exec(context.Background(), sql, args...)
	require.NoError(t, err)
}

// insert writes an event's row and nothing else.
func insert(t *testing.T, db *pgxpool.Pool, at time.Time, class int) {
	t.Helper()
	exec(t, db, insertSQL, uuid.New(), at, class)
}

const insertSQL = `INSERT INTO core.tracked_events (tenant_id, event_id, cell_id, contact_id, kind, event_name, properties, occurred_at, occurred_offset, received_at,
    idempotency_key, correlation_id, retention_months, lane, lane_seq) VALUES ($1, $1, 'c', $1, 'track', 'a.b', '{}', $2, 0, $2, 'k', 'c', $3, 1, 1)`

const (
	inDefault = `SELECT count(*) FROM core.tracked_events_default`
	leafCount = `SELECT count(*) FROM core.partition_tree('core.tracked_events') WHERE is_leaf AND NOT is_default AND lower_bound <= $1 AND upper_bound > $1`
)

func newJob(t *testing.T, db *pgxpool.Pool, now time.Time) (*partition.Job, *prometheus.Registry) {
	reg := prometheus.NewPedanticRegistry()
	return partition.NewJob(partition.JobConfig{}, db, testkit.Logger(t), reg, func() time.Time { return now }), reg
}

func TestJob(t *testing.T) {
	t.Run("HasThreeMonthsAheadOfItsClockAndMore", func(t *testing.T) { // FS-CORE-0006 AC6, faults F24
		t.Parallel()
		db := testkit.Pool(t)
		for _, now := range []time.Time{
			time.Date(2027, 11, 30, 23, 59, 59, 999_000_000, time.UTC),
			time.Date(2027, 12, 1, 0, 0, 0, 0, time.UTC),
			time.Date(2028, 2, 29, 23, 59, 59, 0, time.UTC),
			time.Date(2029, 1, 31, 12, 0, 0, 0, time.FixedZone("", -11*3600)),
		} {
			j, _ := newJob(t, db, now)
			res, err := j.RunOnce(t.Context())
			require.NoError(t, err)
			require.Empty(t, res.Stray)
			utc := now.UTC()
			for i := -1; i <= 3; i++ {
				at := time.Date(utc.Year(), utc.Month()+time.Month(i), 1, 0, 0, 0, 0, time.UTC)
				require.Equal(t, 3, count(t, db, leafCount, at), "%s of %s", at, now)
				require.Equal(t, 3, count(t, db, leafCount, at.AddDate(0, 1, 0).Add(-time.Microsecond)), "%s of %s", at, now)
			}
			again, err := j.RunOnce(t.Context())
			require.NoError(t, err)
			require.Zero(t, again.Made)
		}
	})

	t.Run("MovesStrayRowsIntoTheirMonthAndTheTableStaysAppendOnly", func(t *testing.T) { // faults F25
		t.Parallel()
		db := testkit.Pool(t)
		at := time.Date(2031, 2, 28, 23, 59, 59, 999_000_000, time.UTC)
		insert(t, db, at, 13)
		insert(t, db, at.Add(time.Millisecond), 25) // March
		insert(t, db, at, 48)                       // of a class that no plan has any more
		require.Equal(t, 3, count(t, db, inDefault))
		j, reg := newJob(t, db, time.Now())
		res, err := j.RunOnce(t.Context())
		require.NoError(t, err)
		require.Equal(t, map[string]int64{"core.tracked_events_default": 3}, res.Stray)
		require.EqualValues(t, 3, res.Moved)
		require.Zero(t, count(t, db, inDefault))
		require.Equal(t, 3, count(t, db, `SELECT count(*) FROM core.tracked_events WHERE occurred_at >= '2031-01-01' AND tableoid::regclass::text ~ '_2031(02_r13|03_r25|02_r48)$'`))
		require.EqualValues(t, 3, stagetest.Metric(t, reg, "carril_default_partition_strays_total"))
		require.Zero(t, stagetest.Metric(t, reg, "carril_default_partition_rows"))
		insert(t, db, at.AddDate(1, 0, 0), 13)
		for _, table := range []string{"core.tracked_events", "core.tracked_events_default", "core.tracked_events_203102_r13"} {
			_, err := db.Exec(t.Context(), `DELETE FROM `+table+` WHERE occurred_at > '2031-01-01'`)
			require.ErrorContains(t, err, "append-only", table)
		}
	})

	t.Run("HearsOfAStrayRowAtOnce", func(t *testing.T) {
		t.Parallel()
		url := testkit.Postgres(t)
		db, err := pgxpool.New(t.Context(), url)
		require.NoError(t, err)
		t.Cleanup(db.Close)
		j := partition.NewJob(partition.JobConfig{Every: time.Hour, ListenURL: url}, db, testkit.Logger(t), prometheus.NewRegistry(), time.Now)
		ctx, stop := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { _ = j.Run(ctx) })
		defer func() { stop(); running.Wait() }()
		for year := 2041; ; year++ { // until it listens
			insert(t, db, time.Date(year, 1, 1, 0, 0, 0, 0, time.UTC), 13)
			require.Less(t, year, 2100)
			if eventually(func() bool { return count(t, db, inDefault) == 0 }) {
				return
			}
		}
	})

	t.Run("GoesOnWhereAnEarlierOneLeftATable", func(t *testing.T) { // faults F5 M1: created, not attached
		t.Parallel()
		db := testkit.Pool(t)
		exec(t, db, `CREATE TABLE core.tracked_events_203503 (LIKE core.tracked_events) PARTITION BY LIST (retention_months)`)
		made, err := partition.Make(t.Context(), db, "core.tracked_events", time.Date(2035, 3, 5, 0, 0, 0, 0, time.UTC), 0)
		require.NoError(t, err)
		require.True(t, made)
		insert(t, db, time.Date(2035, 3, 31, 23, 59, 59, 0, time.UTC), 37)
		require.Zero(t, count(t, db, inDefault))
	})

	t.Run("GivesUpNothingWhenOneTableIsLocked", func(t *testing.T) {
		t.Parallel()
		db := testkit.Pool(t)
		tx, err := db.Begin(t.Context())
		require.NoError(t, err)
		defer func() { _ = tx.Rollback(context.Background()) }()
		_, err = tx.Exec(t.Context(), `LOCK TABLE ONLY core.outbox IN ACCESS EXCLUSIVE MODE`)
		require.NoError(t, err)
		j, _ := newJob(t, db, time.Date(2033, 6, 1, 0, 0, 0, 0, time.UTC))
		_, err = j.RunOnce(t.Context())
		require.ErrorContains(t, err, "core.outbox")
		require.Equal(t, 3, count(t, db, leafCount, time.Date(2033, 9, 1, 0, 0, 0, 0, time.UTC)))
		require.NoError(t, tx.Rollback(t.Context()))
		_, err = j.RunOnce(t.Context())
		require.NoError(t, err)
	})
}

func eventually(ok func() bool) bool {
	for range 300 {
		if ok() {
			return true
		}
		time.Sleep(10 * time.Millisecond)
	}
	return false
}

func TestClasses(t *testing.T) {
	t.Run("OfAPlanThatCameBetweenTwoRunsAreMadeAtTheFirstRow", func(t *testing.T) { // FS-CORE-0006 §9: 37+
		t.Parallel()
		db := testkit.Pool(t)
		now := time.Now()
		j, _ := newJob(t, db, now)
		_, err := j.RunOnce(t.Context())
		require.NoError(t, err)
		m := partition.NewMaker(db)
		require.NoError(t, m.Ensure(t.Context(), "core.tracked_events", now, 13))
		exec(t, db, `INSERT INTO core.plans (plan_id, retention_months, events_per_second, events_burst) VALUES ('archive', 84, 1, 1)`)
		require.NoError(t, m.Ensure(t.Context(), "core.tracked_events", now, 84))
		insert(t, db, now, 84)
		res, err := j.RunOnce(t.Context())
		require.NoError(t, err)
		require.Positive(t, res.Made, "the other months")
		require.Equal(t, 4, count(t, db, leafCount, now.AddDate(0, 2, 0)))
	})

	t.Run("OfAPlanThatIsGoneAreStillMadeForRowsStampedBefore", func(t *testing.T) {
		t.Parallel()
		db := testkit.Pool(t)
		exec(t, db, `INSERT INTO core.plans (plan_id, retention_months, events_per_second, events_burst) VALUES ('archive', 48, 1, 1)`)
		exec(t, db, `UPDATE core.plans SET retention_months = 60 WHERE plan_id = 'archive'`)
		at := time.Date(2036, 1, 1, 0, 0, 0, 0, time.UTC)
		_, err := partition.Make(t.Context(), db, "messaging.sends", at, 0)
		require.NoError(t, err)
		require.Equal(t, 5, count(t, db, `SELECT count(*) FROM core.partition_tree('messaging.sends') WHERE is_leaf AND lower_bound = $1`, at))
	})

	t.Run("AreAttachedWhileOthersWriteAndReadTheMonth", func(t *testing.T) {
		t.Parallel()
		db := testkit.Pool(t)
		now := time.Now()
		tx, err := db.Begin(t.Context())
		require.NoError(t, err)
		defer func() { _ = tx.Rollback(context.Background()) }()
		_, err = tx.Exec(t.Context(), insertSQL, uuid.New(), now, 13)
		require.NoError(t, err)
		_, err = tx.Exec(t.Context(), `SELECT count(*) FROM core.tracked_events WHERE occurred_at >= $1 AND occurred_at <= $1`, now)
		require.NoError(t, err)
		made, err := partition.Make(t.Context(), db, "core.tracked_events", now, 99)
		require.NoError(t, err)
		require.True(t, made)
		require.NoError(t, tx.Commit(t.Context()))
	})

	t.Run("HaveEveryColumnTriggerAndIndex", func(t *testing.T) { // faults P14
		t.Parallel()
		db := testkit.Pool(t)
		at := time.Now()
		for _, parent := range []string{"core.tracked_events", "messaging.sends", "messaging.send_status_history"} {
			_, err := partition.Make(t.Context(), db, parent, at, 77) // attached to a month that stands
			require.NoError(t, err)
			const like = `SELECT (SELECT count(*) FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0) * 10000
				+ (SELECT count(*) FROM pg_index i WHERE i.indrelid = c.oid AND i.indisvalid) * 100 + (SELECT count(*) FROM pg_trigger g WHERE g.tgrelid = c.oid AND NOT g.tgisinternal) * 10
				+ (SELECT count(*) FROM pg_constraint k WHERE k.conrelid = c.oid AND k.contype IN ('c', 'f')) FROM pg_class c WHERE c.oid = $1::regclass`
			var leaf string
			require.NoError(t, db.QueryRow(t.Context(), `SELECT name FROM core.partition_tree($1) WHERE retention_months = 77`, parent).Scan(&leaf))
			require.Equal(t, count(t, db, like, parent), count(t, db, like, leaf), leaf)
		}
	})
}

func TestTimeZone(t *testing.T) {
	t.Parallel()
	db := testkit.Pool(t)
	exec(t, db, `DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET timezone = %L', current_database(), 'America/Argentina/Buenos_Aires'); END $$`)
	exec(t, db, `DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET datestyle = %L', current_database(), 'German'); END $$`)
	db.Reset()
	j, _ := newJob(t, db, time.Date(2033, 12, 1, 1, 0, 0, 0, time.UTC)) // still November there
	_, err := j.RunOnce(t.Context())
	require.NoError(t, err)
	edge := time.Date(2033, 12, 1, 0, 0, 0, 0, time.UTC)
	insert(t, db, edge, 13)
	insert(t, db, edge.Add(-time.Microsecond), 13)
	insert(t, db, time.Date(2040, 3, 1, 2, 0, 0, 0, time.UTC), 13) // a stray of March: February there
	_, err = j.RunOnce(t.Context())
	require.NoError(t, err)
	rows, err := db.Query(t.Context(), `SELECT tableoid::regclass::text FROM core.tracked_events WHERE occurred_at > '2030-01-01T00:00:00Z' ORDER BY occurred_at`)
	require.NoError(t, err)
	got, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(t, err)
	require.Equal(t, []string{"core.tracked_events_203311_r13", "core.tracked_events_203312_r13", "core.tracked_events_204003_r13"}, got)
	gaps, err := partition.Missing(t.Context(), db, edge)
	require.NoError(t, err)
	require.Empty(t, gaps)
}

func TestAhead(t *testing.T) { // faults P14
	t.Parallel()
	db := testkit.Pool(t)
	now := time.Date(2034, 5, 31, 23, 0, 0, 0, time.UTC)
	check := func(at time.Time) error { return partition.NewAhead(db, func() time.Time { return at }).Err() }
	require.ErrorContains(t, check(now), "has none for 2034-05")
	_, err := partition.EnsureAhead(t.Context(), db, now)
	require.NoError(t, err)
	require.NoError(t, check(now))
	require.NoError(t, check(now.Add(2*time.Hour)), "a month has turned and the job has not run yet")
	require.ErrorContains(t, check(now.AddDate(0, 0, 40)), "carril partitions ensure")
	exec(t, db, `INSERT INTO core.plans (plan_id, retention_months, events_per_second, events_burst) VALUES ('archive', 84, 1, 1)`)
	require.NoError(t, check(now), "a new plan's leaves are made at their first row")
	exec(t, db, `DROP TABLE core.tracked_events_203406`)
	require.ErrorContains(t, check(now), fmt.Sprintf("core.tracked_events has none for %s", "2034-06-01"))
}

func TestList(t *testing.T) {
	t.Parallel()
	db := testkit.Pool(t)
	insert(t, db, time.Date(2031, 1, 1, 0, 0, 0, 0, time.UTC), 13)
	all, err := partition.List(t.Context(), db, "")
	require.NoError(t, err)
	events, err := partition.List(t.Context(), db, "core.tracked_events")
	require.NoError(t, err)
	require.Greater(t, len(all), len(events))
	last := events[len(events)-1]
	require.True(t, last.Default)
	require.EqualValues(t, 1, last.Rows)
	require.Len(t, events, 5*3+1)
	require.True(t, events[0].From.Before(*events[len(events)-2].From))
	require.EqualValues(t, 13, *events[0].RetentionMonths)
	require.Positive(t, events[0].Bytes)
}
