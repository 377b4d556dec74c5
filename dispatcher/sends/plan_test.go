package sends_test

import (
	"fmt"
	"slices"
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
// are looked at: neither may read what is done or what waits, by a plan that is made
// now, without statistics, or by one that was made and kept when there was nothing.
func TestSweepsDoNotReadTheBacklog(t *testing.T) { // F37
	t.Parallel()
	pool, err := pg.Open(t.Context(), pg.Config{URL: testkit.Postgres(t), ByKey: true, MaxConns: 1})
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	const (
		worker  = "'rail:email.transactional'"
		tenants = "ARRAY['7b1c1f0e-93d5-4f0e-9d0c-51f4a1b20001', '7b1c1f0e-93d5-4f0e-9d0c-51f4a1b20002']::uuid[]"
	)
	statements := map[string]struct{ sql, args string }{
		"waits":     {sends.WaitsSQL, worker + ", " + tenants},
		"credits":   {sends.CreditsSQL, worker + ", " + tenants},
		"waiting":   {sends.WaitingSQL, worker + ", " + tenants + ", '{10,10}', 'transactional'"},
		"recover":   {sends.RecoverSQL, worker + ", " + tenants + ", 500"},
		"due":       {sends.DueSQL, worker + ", " + tenants + ", 500, false"},
		"unpark":    {sends.UnparkSQL, worker + ", " + tenants + ", 500"},
		"unhold":    {sends.UnholdSQL, worker + ", " + tenants + ", 500, 'email', 'transactional'"},
		"reconcile": {sends.ReconcileSQL, worker + ", " + tenants + ", 500, now()"},
	}
	do := func(sql string) {
		_, err := pool.Exec(t.Context(), sql, pgx.QueryExecModeSimpleProtocol)
		require.NoError(t, err, sql)
	}
	do("SET plan_cache_mode = force_generic_plan")
	for name, q := range statements { // its plan is made by its first use
		do("PREPARE " + name + " AS " + q.sql)
		do("EXECUTE " + name + " (" + q.args + ")")
	}
	for state, n := range map[string]int{"sent": 20_000, "waiting": 20_000, "in_topic": 5, "claimed": 5, "parked": 5, "held": 5} {
		do(fmt.Sprintf(`INSERT INTO core.processed_jobs (id_time, worker, job_id, state, tenant_id, category, payload, reason, not_before)
SELECT at, %s, gen_random_uuid(), '%s', (%s)[1], 'transactional', '{}', CASE WHEN '%[2]s' = 'held' THEN 'replayed' END, CASE WHEN '%[2]s' IN ('waiting', 'parked') THEN at END
FROM generate_series(1, %[4]d) i, LATERAL (SELECT date_trunc('milliseconds', now() - i / 4 * interval '1 millisecond') AS at) a`, worker, state, tenants, n))
	}
	for _, made := range []string{"before", "now"} {
		if made == "now" {
			do("DISCARD PLANS")
		}
		for name, q := range statements {
			require.ErrorIs(t, pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
				pages := testkit.Pages(t, tx, "EXECUTE "+name+" ("+q.args+")")
				t.Logf("%s, planned %s: %d pages", name, made, pages)
				require.Less(t, pages, 800, "%s, planned %s", name, made) // all of it is 5,000 and more
				return pgx.ErrTxCommitRollback
			}), pgx.ErrTxCommitRollback)
		}
	}
}

// Outcomes and reports come by the thousand while a blast runs: each costs the same
// however many share a statement, by plans that were made for few.
func TestOutcomesAndReportsCostEachMessageTheSame(t *testing.T) {
	t.Parallel()
	pool, err := pg.Open(t.Context(), pg.Config{URL: testkit.Postgres(t), ByKey: true, MaxConns: 1})
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	tenant, blast, at := uuid.New(), uuid.New(), time.Now().UTC().Truncate(time.Millisecond)
	_, err = pool.Exec(t.Context(), `INSERT INTO core.tenants (tenant_id, slug, name, plan_id) VALUES ($1, 'acme', 'Acme', 'starter')`, tenant)
	require.NoError(t, err)
	_, err = pool.Exec(t.Context(), `INSERT INTO messaging.blasts (blast_id, tenant_id, channel, name, template_id, template_version, state, recipients, origin_event_id, correlation_id)
VALUES ($1, $2, 'email', 'x', 'x', 1, 'running', 5000, $1, 'x')`, blast, tenant)
	require.NoError(t, err)
	_, err = pool.Exec(t.Context(), `INSERT INTO messaging.blast_recipients (blast_id, position, address) SELECT $1, n, n || '@example.com' FROM generate_series(0, 4999) n`, blast)
	require.NoError(t, err)
	const n = 800
	// A join with the list of them is cheap by the plan that the planner would like,
	// and that is not the one that it keeps. With loops alone and nothing to look up by,
	// whoever joins handles pairs.
	for name, mode := range map[string]string{"Custom": "plan_cache_mode = force_custom_plan", "Generic": "plan_cache_mode = force_generic_plan",
		"LoopsAlone": "plan_cache_mode = force_generic_plan; SET LOCAL enable_hashjoin = off; SET LOCAL enable_mergejoin = off; SET LOCAL enable_memoize = off; " +
			"SET LOCAL enable_indexscan = off; SET LOCAL enable_indexonlyscan = off; SET LOCAL enable_bitmapscan = off"} {
		t.Run(name, func(t *testing.T) {
			var (
				positions              = make([]int64, n)
				times                  = make([]time.Time, n)
				class                  = make([]int16, n)
				tenants, sent          = make([]uuid.UUID, n), make([]uuid.UUID, n)
				names, events, nothing = make([]string, n), make([]string, n), make([]string, n)
				generations            = make([]int32, n)
			)
			for i := range n {
				positions[i], times[i], class[i], tenants[i], sent[i] = int64(i), at, 13, tenant, uuid.New()
				names[i], events[i], generations[i] = "fake", uuid.NewString(), 1
			}
			states := slices.Repeat([]string{"delivered"}, n)
			for name, q := range map[string]struct {
				sql  string
				args []any
			}{
				"outcome": {sends.BlastOutcomeSQL, []any{blast, positions, "sent", "", uuid.New()}},
				"marks":   {sends.BlastMarkSQL, []any{blast, positions, int16(65)}},
				"lock":    {sends.BlastLockSQL, []any{blast, positions}},
				"record":  {sends.RecordSQL, []any{times, class, tenants, sent, states, names, events, generations, times, nothing}},
				"settle":  {sends.SettleSQL, []any{times, sent}},
			} {
				require.ErrorIs(t, pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
					if _, err := tx.Exec(t.Context(), "SET LOCAL "+mode, pgx.QueryExecModeSimpleProtocol); err != nil {
						return err
					}
					// Each message a few times; and the blast read whole, a few times over.
					most := 5 * n
					if name != "record" && name != "settle" {
						most += 4 * 5_000
					}
					handled := testkit.Handled(t, tx, q.sql, q.args...)
					t.Logf("%s handles %d rows", name, handled)
					require.Less(t, handled, most, name) // pairs of them are 640,000
					return pgx.ErrTxCommitRollback
				}), pgx.ErrTxCommitRollback, name)
			}
		})
	}
}
