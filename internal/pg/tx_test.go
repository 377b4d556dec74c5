package pg

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/softcrum/carril/internal/testkit"
)

// trips counts round trips.
type trips struct{ n int }

func (c *trips) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	c.n++
	return ctx
}
func (*trips) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}
func (c *trips) TraceBatchStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceBatchStartData) context.Context {
	c.n++
	return ctx
}
func (*trips) TraceBatchQuery(context.Context, *pgx.Conn, pgx.TraceBatchQueryData) {}
func (*trips) TraceBatchEnd(context.Context, *pgx.Conn, pgx.TraceBatchEndData)     {}

func TestTx(t *testing.T) {
	t.Parallel()
	open := func(t *testing.T) (*pgxpool.Pool, *trips) {
		t.Helper()
		seen := &trips{}
		pool, err := Open(t.Context(), Config{URL: testkit.Postgres(t), MaxConns: 1, Tracer: seen}) // one: what is not given back is missed
		require.NoError(t, err)
		t.Cleanup(pool.Close)
		_, err = pool.Exec(t.Context(), `CREATE TABLE kept (n int PRIMARY KEY, doc jsonb)`)
		require.NoError(t, err)
		seen.n = 0
		return pool, seen
	}
	kept := func(t *testing.T, pool *pgxpool.Pool) (ns []int32) {
		t.Helper()
		rows, err := pool.Query(t.Context(), `SELECT n FROM kept ORDER BY n`)
		require.NoError(t, err)
		ns, err = pgx.CollectRows(rows, pgx.RowTo[int32])
		require.NoError(t, err)
		return ns
	}
	const insert = `INSERT INTO kept (n) VALUES ($1)`
	begin := func(t *testing.T, pool *pgxpool.Pool) *Tx {
		t.Helper()
		tx, err := Begin(t.Context(), pool)
		require.NoError(t, err)
		return tx
	}

	t.Run("SendsWhatIsQueuedWithTheNextStatementInOrder", func(t *testing.T) {
		t.Parallel()
		pool, seen := open(t)
		tx := begin(t, pool)
		require.Zero(t, seen.n)
		tag, err := tx.Exec(t.Context(), insert, 1)
		require.NoError(t, err)
		require.EqualValues(t, 1, tag.RowsAffected())
		require.Equal(t, 1, seen.n, "BEGIN went along")

		var n, inside int
		require.NoError(t, Queue(t.Context(), tx, func(r pgx.Row) error { return r.Scan(&n) }, `SELECT count(*) FROM kept`))
		require.NoError(t, QueueExec(t.Context(), tx, insert, 2))
		require.NoError(t, tx.QueryRow(t.Context(), `SELECT count(*) FROM kept WHERE n > $1`, 0).Scan(&inside))
		require.Equal(t, [2]int{1, 2}, [2]int{n, inside})
		require.Equal(t, 2, seen.n)

		require.NoError(t, QueueExec(t.Context(), tx, insert, 3))
		rows, err := tx.Query(t.Context(), `SELECT n FROM kept ORDER BY n`)
		require.NoError(t, err)
		ns, err := pgx.CollectRows(rows, pgx.RowTo[int32])
		require.NoError(t, err)
		require.Equal(t, []int32{1, 2, 3}, ns)

		require.NoError(t, QueueExec(t.Context(), tx, insert, 4))
		require.NoError(t, Copy(t.Context(), tx, `COPY kept (n) FROM STDIN BINARY`, 1, func(b CopyRow, _ int) CopyRow { return b.Columns(1).Int32(5) }))
		b := &pgx.Batch{}
		b.Queue(insert, 6)
		require.NoError(t, QueueExec(t.Context(), tx, insert, 7))
		require.NoError(t, tx.SendBatch(t.Context(), b).Close())
		require.NoError(t, QueueExec(t.Context(), tx, insert, 8))
		before := seen.n
		require.NoError(t, tx.Commit(t.Context()))
		require.Equal(t, before+1, seen.n, "COMMIT went along")
		require.Equal(t, []int32{1, 2, 3, 4, 5, 6, 7, 8}, kept(t, pool))
		require.ErrorIs(t, tx.Commit(t.Context()), pgx.ErrTxClosed)
		_, err = tx.Exec(t.Context(), insert, 9)
		require.ErrorIs(t, err, pgx.ErrTxClosed)
	})

	t.Run("RunsAtOnceInAnotherTransaction", func(t *testing.T) {
		t.Parallel()
		pool, _ := open(t)
		require.NoError(t, pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
			var n int
			require.NoError(t, QueueExec(t.Context(), tx, insert, 1))
			require.NoError(t, Queue(t.Context(), tx, func(r pgx.Row) error { return r.Scan(&n) }, `SELECT count(*) FROM kept`))
			require.Equal(t, 1, n)
			return Flush(t.Context(), tx)
		}))
	})

	t.Run("GivesARefusalOfWhatWasQueuedFromTheNextStatement", func(t *testing.T) {
		t.Parallel()
		pool, _ := open(t)
		for name, next := range map[string]func(*Tx) error{
			"Exec": func(tx *Tx) error { _, err := tx.Exec(t.Context(), insert, 9); return err },
			"Query": func(tx *Tx) error {
				rows, err := tx.Query(t.Context(), `SELECT 1`)
				if err == nil {
					rows.Close()
				}
				return err
			},
			"QueryRow":  func(tx *Tx) error { var n int; return tx.QueryRow(t.Context(), `SELECT 1`).Scan(&n) },
			"Flush":     func(tx *Tx) error { return tx.Flush(t.Context()) },
			"SendBatch": func(tx *Tx) error { return tx.SendBatch(t.Context(), &pgx.Batch{}).Close() },
			"Copy": func(tx *Tx) error {
				return Copy(t.Context(), tx, `COPY kept (n) FROM STDIN BINARY`, 0, nil)
			},
		} {
			tx := begin(t, pool)
			require.NoError(t, QueueExec(t.Context(), tx, insert, 1))
			require.NoError(t, QueueExec(t.Context(), tx, insert, 1))
			require.Equal(t, FaultRace, FaultOf(next(tx)), name)
			require.NoError(t, tx.Rollback(t.Context()), name)
		}
		fenced := errors.New("no such row")
		tx := begin(t, pool)
		require.NoError(t, Queue(t.Context(), tx, func(pgx.Row) error { return fenced }, `SELECT 1`))
		_, err := tx.Exec(t.Context(), insert, 9)
		require.ErrorIs(t, err, fenced, "the reader's own error counts")
		require.NoError(t, tx.Rollback(t.Context()))
		require.Empty(t, kept(t, pool))
	})

	t.Run("SaysThatACommitDidNotHappenWhereAQueuedStatementWasRefused", func(t *testing.T) {
		t.Parallel()
		pool, _ := open(t)
		tx := begin(t, pool)
		_, err := tx.Exec(t.Context(), insert, 1)
		require.NoError(t, err)
		require.NoError(t, QueueExec(t.Context(), tx, `INSERT INTO kept (n, doc) VALUES (2, $1::text::jsonb)`, `{`))
		err = tx.Commit(t.Context())
		require.ErrorIs(t, err, ErrRolledBack)
		require.Equal(t, FaultData, FaultOf(err))
		require.NoError(t, tx.Rollback(t.Context()))
		require.Empty(t, kept(t, pool))
	})

	t.Run("ForgetsWhatWasQueuedInARollback", func(t *testing.T) {
		t.Parallel()
		pool, _ := open(t)
		tx := begin(t, pool)
		require.NoError(t, tx.Rollback(t.Context()), "of nothing")
		tx = begin(t, pool)
		require.NoError(t, QueueExec(t.Context(), tx, insert, 1))
		require.NoError(t, tx.Flush(t.Context()))
		require.NoError(t, QueueExec(t.Context(), tx, insert, 2))
		require.NoError(t, tx.Rollback(t.Context()))
		require.Empty(t, kept(t, pool))
	})

	t.Run("GoesBackToASavepoint", func(t *testing.T) {
		t.Parallel()
		pool, _ := open(t)
		tx := begin(t, pool)
		_, err := tx.Exec(t.Context(), insert, 1)
		require.NoError(t, err)
		sp, err := tx.Begin(t.Context())
		require.NoError(t, err)
		_, err = sp.Exec(t.Context(), insert, 1)
		require.Equal(t, FaultRace, FaultOf(err))
		require.NoError(t, sp.Rollback(t.Context()))
		require.ErrorIs(t, sp.Commit(t.Context()), pgx.ErrTxClosed)
		made := func(ns ...int32) CopyRow {
			b := Made(8)
			for _, n := range ns {
				b = b.Columns(1).Int32(n)
			}
			return b.End()
		}
		const sql = `COPY kept (n) FROM STDIN BINARY`
		require.NoError(t, CopyBlock(t.Context(), tx, sql, made(2, 3)))
		require.Equal(t, FaultRace, FaultOf(CopyBlock(t.Context(), tx, sql, made(4, 3))))
		require.NoError(t, UndoBlock(t.Context(), tx))
		require.NoError(t, CopyBlock(t.Context(), tx, sql, made(5)), "a block after one that failed")
		require.NoError(t, tx.Commit(t.Context()))
		require.Equal(t, []int32{1, 2, 3, 5}, kept(t, pool))
	})
}

// A commit whose answer is lost is of unknown outcome, whatever travelled with it.
func TestTxCommitOfUnknownOutcome(t *testing.T) { // faults F17
	for name, when := range map[string]testkit.When{"CutBeforeItArrives": testkit.Before, "CutAfterItLanded": testkit.After} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := testkit.Postgres(t)
			direct, err := Open(t.Context(), Config{URL: url})
			require.NoError(t, err)
			t.Cleanup(direct.Close)
			_, err = direct.Exec(t.Context(), `CREATE TABLE kept (n int PRIMARY KEY)`)
			require.NoError(t, err)
			at := direct.Config().ConnConfig
			proxy := testkit.NewProxy(t, fmt.Sprintf("%s:%d", at.Host, at.Port))
			pool, err := Open(t.Context(), Config{URL: fmt.Sprintf("postgres://%s@%s/%s", at.User, proxy.Addr(), at.Database), MaxConns: 1})
			require.NoError(t, err)
			t.Cleanup(pool.Close)
			write := func(n int) error {
				tx, err := Begin(t.Context(), pool)
				require.NoError(t, err)
				require.NoError(t, QueueExec(t.Context(), tx, `INSERT INTO kept VALUES ($1)`, n))
				return tx.Commit(t.Context())
			}
			require.NoError(t, write(1)) // its statements are prepared from here on
			cut := proxy.CutOnPattern(testkit.Prepared(commit), when)
			err = write(2)
			var pe *pgconn.PgError
			require.NotErrorAs(t, err, &pe, "the server answered nothing")
			require.Error(t, err)
			require.NotErrorIs(t, err, ErrRolledBack)
			<-cut
			landed := func() (n int) {
				require.NoError(t, direct.QueryRow(t.Context(), `SELECT count(*) FROM kept WHERE n = 2`).Scan(&n))
				return n
			}
			if when == testkit.After {
				require.Eventually(t, func() bool { return landed() == 1 }, 30*time.Second, 10*time.Millisecond)
			} else {
				require.Zero(t, landed())
			}
			require.NoError(t, write(3), "the pool has thrown the connection away")
		})
	}
}
