package stream

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/softcrum/carril/internal/pg"
)

// TestDatabaseTrouble is F18, F19 and F20 in short: 500 records while the
// database ends every session, refuses to write, holds a lock, or has no
// connection left. The stage waits, keeps its partitions (their epoch is what it
// was), and puts nothing aside.
func TestDatabaseTrouble(t *testing.T) {
	for name, trouble := range map[string]func(t *testing.T, b *bench, admin *pgx.Conn, pool *pgxpool.Pool) (heal func()){
		"EverySessionEnds": func(t *testing.T, b *bench, admin *pgx.Conn, _ *pgxpool.Pool) func() {
			for range 5 {
				_, err := admin.Exec(t.Context(), `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()`)
				require.NoError(t, err)
				time.Sleep(20 * time.Millisecond)
			}
			return func() {}
		},
		"ReadOnlyAsAfterAFailover": func(t *testing.T, b *bench, admin *pgx.Conn, _ *pgxpool.Pool) func() {
			_, err := admin.Exec(t.Context(), fmt.Sprintf(`ALTER DATABASE %s SET default_transaction_read_only = on`, b.pool.Config().ConnConfig.Database))
			require.NoError(t, err)
			_, err = admin.Exec(t.Context(), `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()`)
			require.NoError(t, err)
			return func() { // and nobody ends the sessions of then
				_, err := admin.Exec(t.Context(), fmt.Sprintf(`ALTER DATABASE %s RESET default_transaction_read_only`, b.pool.Config().ConnConfig.Database))
				require.NoError(t, err)
			}
		},
		"ALockIsHeld": func(t *testing.T, b *bench, admin *pgx.Conn, _ *pgxpool.Pool) func() {
			tx, err := admin.Begin(t.Context())
			require.NoError(t, err)
			_, err = tx.Exec(t.Context(), `LOCK TABLE effects IN ACCESS EXCLUSIVE MODE`)
			require.NoError(t, err)
			return func() { require.NoError(t, tx.Rollback(t.Context())) }
		},
		// F20: others have every connection of the pool, for longer than a batch waits.
		"ThePoolIsExhausted": func(t *testing.T, b *bench, _ *pgx.Conn, pool *pgxpool.Pool) func() {
			held := make([]*pgxpool.Conn, pool.Config().MaxConns)
			for i := range held {
				var err error
				held[i], err = pool.Acquire(t.Context())
				require.NoError(t, err)
			}
			given := pool.Stat().CanceledAcquireCount()
			return func() {
				require.Eventually(t, func() bool { return pool.Stat().CanceledAcquireCount() > given+2 }, time.Minute, 10*time.Millisecond, "batches of both partitions gave up waiting")
				for _, c := range held {
					c.Release()
				}
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, 2)
			pool, err := pg.Open(t.Context(), pg.Config{URL: b.pool.Config().ConnString(), MaxConns: 12})
			require.NoError(t, err)
			t.Cleanup(pool.Close)
			admin, err := pgx.Connect(t.Context(), b.pool.Config().ConnString())
			require.NoError(t, err)
			t.Cleanup(func() { _ = admin.Close(context.Background()) })
			_, err = admin.Exec(t.Context(), `SET default_transaction_read_only = off`)
			require.NoError(t, err)
			b.send(0, values("a", 200)...)
			reg := newAlarmCounter()
			b.loop(func(c *Config, d *Deps) { d.Pool, d.Metrics, c.TxTimeout = pool, reg.m, 2*time.Second })
			b.awaitEffects(200)
			epochs := func() (n int) {
				require.NoError(t, admin.QueryRow(t.Context(), `SELECT sum(epoch)::int FROM core.stream_positions`).Scan(&n))
				return n
			}
			was := epochs()
			heal := trouble(t, b, admin, pool)
			b.send(0, values("b", 299)...)
			b.send(1, values("c", 1)...) // what is taken for bad is put aside at once where it stands alone
			if name != "EverySessionEnds" {
				time.Sleep(500 * time.Millisecond) // in which it tries
			}
			heal()
			b.pool.Reset() // the test's own sessions
			b.awaitEffects(500)
			b.appliedOnce(500)
			require.Len(t, b.published(500), 500)
			require.Equal(t, was, epochs(), "nobody was taken for dead")
			require.Zero(t, b.count(`SELECT count(*) FROM core.dead_letters`))
		})
	}
}

// TestLogRecreatedUnderARunningOwner: the topic is deleted and made again while
// the stage consumes it (I4, with the processors up).
func TestLogRecreatedUnderARunningOwner(t *testing.T) {
	t.Parallel()
	b := newBench(t, 1)
	b.send(0, values("old", 300)...)
	reg := newAlarmCounter()
	b.loop(func(_ *Config, d *Deps) { d.Metrics = reg.m })
	b.awaitEffects(300)
	adm := kadm.NewClient(b.prod)
	_, err := adm.DeleteTopic(t.Context(), b.kcfg.Topic("in"))
	require.NoError(t, err)
	b.eventually("topic gone", 60*time.Second, func() bool {
		d, err := adm.ListTopics(t.Context())
		return err == nil && !d.Has(b.kcfg.Topic("in"))
	})
	b.broker.CreateTopic("in", 1)
	newProducerBench(t, b).send(0, values("new", 500)...)
	b.eventually("all of the new log", 90*time.Second, func() bool { return b.count(`SELECT count(*) FROM effects`) == 800 })
	require.EqualValues(t, 1, reg.alarms(t, "recreated"))
}
