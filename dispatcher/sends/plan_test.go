package sends_test

import (
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/softcrum/carril/dispatcher/sends"
	"github.com/softcrum/carril/internal/pg"
	"github.com/softcrum/carril/internal/testkit"
)

// A day's partition is written and read before it has statistics, and a backlog
// is deep: neither may make a claim or an outcome read what it does not need.
// Pages read are compared, not times.
func TestPlansDoNotReadTheBacklog(t *testing.T) { // F37
	t.Parallel()
	pool := testkit.Pool(t)
	const worker = "rail:email.transactional"
	read := map[string]map[int]int{}
	const state = "in_topic" // the statements look at it afterwards
	for _, depth := range []int{500, 20_000} {
		_, err := pool.Exec(t.Context(), `DELETE FROM core.processed_jobs WHERE id_time > now() - interval '2 days'`)
		require.NoError(t, err)
		_, err = pool.Exec(t.Context(), `INSERT INTO core.processed_jobs (id_time, worker, job_id, state, tenant_id, category, payload, lease)
SELECT date_trunc('milliseconds', now() - i / 4 * interval '1 millisecond'), $1, gen_random_uuid(), $3, gen_random_uuid(), 'transactional', '{}', gen_random_uuid()
FROM generate_series(1, $2::int) i`, worker, depth, state)
		require.NoError(t, err)
		rows, err := pool.Query(t.Context(), `SELECT id_time, job_id FROM core.processed_jobs WHERE id_time > now() - interval '2 days' ORDER BY md5(job_id::text) LIMIT 50`)
		require.NoError(t, err)
		var times []time.Time
		var jobs []uuid.UUID
		var at time.Time
		var job uuid.UUID
		_, err = pgx.ForEachRow(rows, []any{&at, &job}, func() error { times, jobs = append(times, at), append(jobs, job); return nil })
		require.NoError(t, err)
		n := len(jobs)
		states, none := make([]string, n), make([]string, n)
		ones := make([]int32, n)
		for i := range states {
			states[i], ones[i] = "sent", 1
		}
		for name, q := range map[string]struct {
			sql  string
			args []any
		}{
			"lock":  {sends.LockSQL, []any{times, worker, jobs}},
			"claim": {sends.ClaimSQL, []any{times, jobs, jobs, make([]int32, n), time.Minute, worker}},
			"ours":  {sends.OursSQL, []any{times, worker, jobs}},
			"step":  {sends.StepSQL, []any{times, jobs, states, none, make([]int32, n), make([]time.Duration, n), make([]bool, n), worker}},
			"park":  {sends.ParkSQL, []any{times, jobs, ones, make([]time.Duration, n), worker, "tenant_bucket", false}},
		} {
			if read[name] == nil {
				read[name] = map[int]int{}
			}
			require.NoError(t, pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
				read[name][depth] = testkit.Pages(t, tx, q.sql, q.args...)
				return nil
			}))
		}
	}
	for name, at := range read { // an index walk and a row each, and a new row's index entries
		require.Less(t, at[20_000], 50*40, "%s: %v", name, at)
		t.Logf("%s: pages by depth: %v", name, at)
	}
}

// Four times a second a rail is swept, and with every answer of a provider credits
// are looked at: neither may read what is done or what waits, in partitions without
// statistics.
func TestSweepsDoNotReadTheBacklog(t *testing.T) { // F37
	t.Parallel()
	pool, err := pg.Open(t.Context(), pg.Config{URL: testkit.Postgres(t), ByKey: true})
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	const worker = "rail:email.transactional"
	tenants := []uuid.UUID{uuid.New(), uuid.New(), uuid.New()}
	fill := func(state string, n int, reason any) {
		_, err := pool.Exec(t.Context(), `INSERT INTO core.processed_jobs (id_time, worker, job_id, state, tenant_id, category, payload, reason, not_before)
SELECT at, $1, gen_random_uuid(), $2, $3::uuid, 'transactional', '{}', $5, CASE WHEN $2 IN ('waiting', 'parked') THEN at END
FROM generate_series(1, $4::int) i, LATERAL (SELECT date_trunc('milliseconds', now() - i / 4 * interval '1 millisecond') AS at) a`, worker, state, tenants[0], n, reason)
		require.NoError(t, err)
	}
	fill("sent", 20_000, nil)
	fill("waiting", 20_000, nil)
	for _, state := range []string{"in_topic", "claimed", "parked", "held"} {
		fill(state, 5, map[bool]any{true: "replayed"}[state == "held"])
	}
	free := []int64{10, 10, 10}
	for name, q := range map[string]struct {
		sql  string
		args []any
	}{
		"waits":     {sends.WaitsSQL, []any{worker, tenants}},
		"credits":   {sends.CreditsSQL, []any{worker, tenants}},
		"waiting":   {sends.WaitingSQL, []any{worker, tenants, free, "transactional"}},
		"recover":   {sends.RecoverSQL, []any{worker, tenants, 500}},
		"due":       {sends.DueSQL, []any{worker, tenants, 500, false}},
		"unpark":    {sends.UnparkSQL, []any{worker, tenants, 500}},
		"unhold":    {sends.UnholdSQL, []any{worker, tenants, 500, "email", "transactional"}},
		"reconcile": {sends.ReconcileSQL, []any{worker, tenants, 500, time.Now()}},
	} {
		for _, mode := range []string{"force_custom_plan", "force_generic_plan"} {
			require.NoError(t, pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
				_, err := tx.Exec(t.Context(), "SET LOCAL plan_cache_mode = "+mode)
				require.NoError(t, err)
				pages := testkit.Pages(t, tx, q.sql, q.args...)
				t.Logf("%s, %s: %d pages", name, mode, pages)
				require.Less(t, pages, 800, "%s, %s", name, mode) // all of it is 5,000 and more
				return nil
			}))
		}
	}
}
