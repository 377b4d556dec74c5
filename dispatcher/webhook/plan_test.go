package webhook_test

import (
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/softcrum/carril/dispatcher/webhook"
	"github.com/softcrum/carril/internal/ids"
	"github.com/softcrum/carril/internal/testkit"
)

// A day's partition is written and read before it has statistics, and a dead
// endpoint's backlog is deep: neither may make a claim or a result read what it
// does not need. Pages read are compared, not times.
func TestPlansDoNotReadTheBacklog(t *testing.T) { // F37
	t.Parallel()
	b := newBench(t)
	endpoint := ids.New()
	claims, results := map[int]int{}, map[int]int{}
	for _, depth := range []int{500, 20_000} {
		b.exec(`DELETE FROM core.webhook_deliveries WHERE created_at > now() - interval '2 days'`)
		b.exec(`INSERT INTO core.webhook_deliveries (created_at, delivery_id, endpoint_id, tenant_id, order_key, seq, event_type, event_id, body, state, next_attempt)
SELECT date_trunc('milliseconds', now() - i * interval '1 millisecond'), gen_random_uuid(), $1, $2, md5(i::text), i, 'core.event.tracked', gen_random_uuid(), '{}', 'pending', now()
FROM generate_series(1, $3::int) i`, endpoint, b.tenant, depth)
		var created []time.Time
		var id []uuid.UUID
		rows, err := b.pool.Query(t.Context(), `SELECT created_at, delivery_id FROM core.webhook_deliveries WHERE created_at > now() - interval '2 days' ORDER BY seq LIMIT 50`)
		require.NoError(t, err)
		var at time.Time
		var one uuid.UUID
		_, err = pgx.ForEachRow(rows, []any{&at, &one}, func() error { created, id = append(created, at), append(id, one); return nil })
		require.NoError(t, err)
		state, counted, wait := make([]string, 50), make([]int32, 50), make([]time.Duration, 50)
		for i := range state {
			state[i], counted[i] = "delivered", 1
		}
		require.NoError(t, pgx.BeginFunc(t.Context(), b.pool, func(tx pgx.Tx) error {
			if err := webhook.ByIndex(t.Context(), tx); err != nil {
				return err
			}
			claims[depth] = testkit.Pages(t, tx, webhook.DueSQL, time.Now().Add(-24*time.Hour), endpoint, 50, 16, 2048)
			return nil
		}))
		require.NoError(t, pgx.BeginFunc(t.Context(), b.pool, func(tx pgx.Tx) error {
			results[depth] = testkit.Pages(t, tx, webhook.UpdateSQL, time.Now().Add(-time.Hour), time.Now(), uuid.New(), created, id, state, counted, wait, make([]bool, 50), make([]string, 50))
			return nil
		}))
	}
	require.Less(t, claims[20_000], 3*claims[500], "%v", claims)
	require.Less(t, results[20_000], 3*results[500], "%v", results)
}
