package webhook_test

import (
	"context"
	"net/netip"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/softcrum/carril/dispatcher/webhook"
	"github.com/softcrum/carril/dispatcher/webhook/guard"
	"github.com/softcrum/carril/dispatcher/webhook/seal"
	"github.com/softcrum/carril/internal/ids"
	"github.com/softcrum/carril/internal/testkit"
)

func TestMain(m *testing.M) {
	testkit.Main(m, func() error { return goleak.Find() })
}

// bench is a test's own database with one tenant, and what reaches loopback.
type bench struct {
	t      testing.TB
	pool   *pgxpool.Pool
	keys   *seal.Keys
	guard  *guard.Guard
	store  *webhook.Store
	tenant uuid.UUID
}

func newBench(t testing.TB) *bench {
	return newBenchWith(t, guard.Config{}, nil)
}

func newBenchWith(t testing.TB, cfg guard.Config, r guard.Resolver) *bench {
	t.Helper()
	b := &bench{t: t, pool: testkit.Pool(t)}
	var err error
	b.keys, err = seal.Parse(seal.NewKey())
	require.NoError(t, err)
	cfg.AnyPort, cfg.AllowHTTP = true, true
	cfg.Private = append(cfg.Private, netip.MustParsePrefix("127.0.0.0/8"))
	b.guard, err = guard.New(cfg, r)
	require.NoError(t, err)
	b.store = webhook.NewStore(webhook.StoreConfig{}, webhook.StoreDeps{Pool: b.pool, Guard: b.guard, Keys: b.keys})
	b.tenant = b.addTenant("acme")
	return b
}

func (b *bench) addTenant(slug string) uuid.UUID {
	b.t.Helper()
	id := ids.New()
	b.exec(`INSERT INTO core.tenants (tenant_id, slug, name, plan_id) VALUES ($1, $2, $2, 'starter')`, id, slug)
	return id
}

func (b *bench) exec(sql string, args ...any) {
	b.t.Helper()
	_, err := b.pool.Exec(context.Background(), sql, args...)
	require.NoError(b.t, err)
}

// value runs a query that gives one value.
func value[T any](b *bench, sql string, args ...any) T {
	b.t.Helper()
	var v T
	require.NoError(b.t, b.pool.QueryRow(context.Background(), sql, args...).Scan(&v), sql)
	return v
}

func (b *bench) count(sql string, args ...any) int { b.t.Helper(); return value[int](b, sql, args...) }

// eventually waits for something, for at most a minute.
func (b *bench) eventually(what string, ok func() bool) {
	b.t.Helper()
	deadline := time.Now().Add(time.Minute)
	for !ok() {
		require.True(b.t, time.Now().Before(deadline), "not in time: "+what)
		time.Sleep(5 * time.Millisecond)
	}
}

// await waits until a query gives n, and not more.
func (b *bench) await(n int, sql string, args ...any) {
	b.t.Helper()
	b.eventually(sql, func() bool { return b.count(sql, args...) >= n })
	require.Equal(b.t, n, b.count(sql, args...), sql)
}
