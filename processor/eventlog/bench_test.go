package eventlog

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/softcrum/carril/internal/bench"
	"github.com/softcrum/carril/internal/ids"
	"github.com/softcrum/carril/internal/pg"
	"github.com/softcrum/carril/internal/testkit"
	"github.com/softcrum/carril/processor/identity"
	"github.com/softcrum/carril/schemas"
)

// BenchmarkAppend takes the append apart: what a row costs in each step, in a
// transaction of its own of so many rows. Where PostgreSQL runs on this Linux
// machine, its backend's CPU is reported too, which other load disturbs less
// than the time (docs/decisions/append.md).
func BenchmarkAppend(b *testing.B) {
	pool, err := pg.Open(b.Context(), pg.Config{URL: testkit.Postgres(b), MaxConns: 1})
	require.NoError(b, err)
	b.Cleanup(pool.Close)
	tenant, now, n := ids.New(), time.Now().UTC(), 0
	_, err = pool.Exec(b.Context(), `INSERT INTO core.tenants (tenant_id, slug, name, plan_id) VALUES ($1, 'acme', 'Acme', 'starter')`, tenant)
	require.NoError(b, err)
	payload := `{"invoice":"889","total":182500.50,"currency":"COP","paid":true,"note":"` + strings.Repeat("mesa silla ", 10) + `"}`
	rows := func(size int) []row {
		rs := make([]row, size)
		for i := range rs {
			n++
			key := strconv.Itoa(n)
			person := n * 7919 % 10_000
			e := &schemas.Event{Kind: "track", TenantID: tenant, CellID: "cell-1", EventID: ids.Event(tenant, key), EventName: "invoice.paid", IdempotencyKey: key,
				BodyHash: make([]byte, 32), OccurredAt: now, ReceivedAt: now, CorrelationID: key, Payload: payload,
				Identifiers: fmt.Sprintf(`{"external_id":"c-%d","email":"c-%d@example.com"}`, person, person)}
			rs[i] = row{Event: e, read: identity.Read(e.Identifiers), index: i, class: 13}
		}
		return rs
	}
	conn, err := pool.Acquire(b.Context()) // the only one
	require.NoError(b, err)
	backend := conn.Conn().PgConn().PID()
	conn.Release()
	places := identity.NewResolver(identity.NewPlaces(0))
	bare := identity.NewResolver(nil)
	resolve := func(r *identity.Resolver) func(pgx.Tx, []row) error {
		return func(tx pgx.Tx, rs []row) error {
			_, err := r.Resolve(b.Context(), tx, inputs(rs))
			return err
		}
	}
	for range 5 { // everybody is known
		require.NoError(b, pgx.BeginFunc(b.Context(), pool, func(tx pgx.Tx) error { return resolve(places)(tx, rows(2_000)) }))
	}
	for _, step := range []struct {
		name string
		do   func(pgx.Tx, []row) error
	}{
		{"FenceByInsert", func(tx pgx.Tx, rs []row) error {
			first, _ := firsts(rs)
			_, err := insertKeys(b.Context(), tx, rs, first)
			return err
		}},
		{"FenceByCopy", func(tx pgx.Tx, rs []row) error {
			_, err := copyKeys(b.Context(), tx, New(Deps{}).keysOf(rs))
			return err
		}},
		{"OwnersByKey", resolve(bare)},
		{"OwnersAtPlaces", resolve(places)},
		{"EventsByCopy", func(tx pgx.Tx, rs []row) error { return makeEvents(rs).copy(b.Context(), tx, rs, 1, int64(n)) }},
	} {
		for _, size := range []int{500, 2_000} {
			b.Run(fmt.Sprintf("%s/%d", step.name, size), func(b *testing.B) {
				var took, cpu time.Duration
				for b.Loop() {
					rs := rows(size)
					at, used := time.Now(), bench.CPUOf(int(backend))
					require.NoError(b, pgx.BeginFunc(b.Context(), pool, func(tx pgx.Tx) error { return step.do(tx, rs) }))
					took += time.Since(at)
					cpu += bench.CPUOf(int(backend)) - used
				}
				perRow := func(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e3 / float64(b.N*size) }
				b.ReportMetric(0, "ns/op")
				b.ReportMetric(perRow(took), "µs/row")
				if cpu > 0 {
					b.ReportMetric(perRow(cpu), "backend-µs/row")
				}
			})
		}
	}
}
