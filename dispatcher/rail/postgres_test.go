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
			b.fake.latency = 5 * time.Millisecond
			all := b.enqueue(make([]job, 60)...)
			b.start(setup{pool: pool, cfg: func(c *rail.Config) { c.Concurrency = 3 }})
			cuts := 0
			for cuts < 8 {
				cut := proxy.CutOnPattern([]byte("commit"), when)
				select {
				case <-cut:
					cuts++
				case <-time.After(5 * time.Second):
					require.NotZero(t, cuts, "nothing was cut: the run is void")
					cuts = 8
				}
			}
			b.await(60, "sent")
			for _, id := range all {
				require.Equal(t, 1, b.fake.delivered(id))
				require.Equal(t, 1, b.fake.keysOf(id))
				require.Equal(t, map[string]int{"queued": 1, "sent": 1}, b.history(id))
			}
			requests, _ := b.fake.count()
			require.Equal(t, 60, requests, "a commit of unknown outcome is settled by the row, not by a repeat")
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
		b.start(setup{pool: pool, rate: 20})
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
