package rail_test

import (
	"context"
	"net"
	"net/url"
	"strconv"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/softcrum/carril/dispatcher/provider"
	"github.com/softcrum/carril/dispatcher/rail"
	"github.com/softcrum/carril/internal/testkit"
)

// F17, F18: connections that end in the middle of a transaction, and around its
// COMMIT on either side, cost no message and send none twice.
func TestLostConnections(t *testing.T) {
	t.Parallel()
	for name, when := range map[string]testkit.When{"BeforeACommit": testkit.Before, "AfterACommit": testkit.After} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			b.sweep()
			proxy, pool := b.proxied()
			all := b.enqueue(make([]job, 100)...)
			b.start(setup{pool: pool, rate: 50, cfg: func(c *rail.Config) { c.Concurrency = 3 }})
			b.eventually("the rail runs", func() bool { n, _ := b.fake.count(); return n > 3 }) // what is cut from here on are claims and outcomes
			for range 10 {
				n, _ := b.fake.count()
				<-proxy.CutOnPattern([]byte("commit"), when)
				b.eventually("some commits pass between the cuts", func() bool { m, _ := b.fake.count(); return m >= min(n+6, 98) })
			}
			b.await(100, "sent")
			for _, id := range all {
				require.Equal(t, 1, b.fake.delivered(id))
				require.Equal(t, 1, b.fake.keysOf(id))
				require.Equal(t, map[string]int{"queued": 1, "sent": 1}, b.history(id))
			}
			require.Equal(t, 1, b.count(`SELECT max(turn) FROM core.processed_jobs WHERE id_time > now() - interval '1 day' AND worker = 'rail:email.transactional'`), "nothing was left to the sweep")
			requests, _ := b.fake.count()
			require.Equal(t, 100, requests, "a commit of unknown outcome is settled by the row, not by a repeat")
		})
	}

	t.Run("WhileThrottled", func(t *testing.T) {
		t.Parallel()
		b := newBench(t)
		proxy, pool := b.proxied()
		id := b.enqueue(job{})[0]
		b.fake.next(func(r provider.Request) (provider.Result, error) {
			proxy.CutOnPattern([]byte("commit"), testkit.After) // the next commit is the step's
			return provider.Result{}, &provider.Error{Class: provider.ClassThrottled, Status: 429, Code: "rate_limit_exceeded", RetryAfter: time.Second}
		})
		b.start(setup{pool: pool})
		b.await(1, "sent") // without any sweep: the record in hand is the one that counts
		require.Equal(t, 1, b.fake.delivered(id))
	})

	t.Run("WhilePostgresIsAway", func(t *testing.T) {
		t.Parallel()
		b := newBench(t)
		b.sweep()
		proxy, pool := b.proxied()
		all := b.enqueue(make([]job, 20)...)
		b.start(setup{pool: pool, rate: 20, cfg: func(c *rail.Config) { c.SlotLife = 2 * time.Second }})
		b.eventually("some are sent", func() bool { n, _ := b.fake.count(); return n > 3 })
		proxy.Refuse()
		time.Sleep(2500 * time.Millisecond) // longer than the slot's life
		proxy.Pass()
		b.await(20, "sent")
		for _, id := range all {
			require.Equal(t, 1, b.fake.delivered(id))
			require.Equal(t, 1, b.fake.keysOf(id))
		}
	})
}

// proxied gives a proxy in front of PostgreSQL and a pool that goes through it.
func (b *bench) proxied() (*testkit.Proxy, *pgxpool.Pool) {
	b.t.Helper()
	cfg := b.pool.Config().Copy()
	target := net.JoinHostPort(cfg.ConnConfig.Host, strconv.Itoa(int(cfg.ConnConfig.Port)))
	proxy := testkit.NewProxy(b.t, target)
	u, err := url.Parse(cfg.ConnString())
	require.NoError(b.t, err)
	u.Host = proxy.Addr()
	pool, err := pgxpool.New(context.Background(), u.String())
	require.NoError(b.t, err)
	b.t.Cleanup(pool.Close)
	return proxy, pool
}
