package pg

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// ErrRolledBack marks a commit that is known not to have happened: a statement
// that was sent with it was refused before it.
var ErrRolledBack = errors.New("refused before the commit")

// Tx is a transaction that saves round trips: BEGIN travels with the first
// statement, what Queue is given with the next one, and COMMIT with what is
// queued last. Where a process has many transactions to make, the time between
// its statements costs it more than the statements.
//
// Its zero value is of no use; Begin makes one. It belongs to one goroutine.
type Tx struct {
	conn  *pgxpool.Conn // nil: ended
	queue *pgx.Batch    // not sent yet
	saves int           // savepoints made, which names them
}

const (
	begin  = "begin"
	commit = "commit"
)

// Begin takes a connection for a transaction. Nothing is sent before the first
// statement.
func Begin(ctx context.Context, pool *pgxpool.Pool) (*Tx, error) {
	conn, err := pool.Acquire(ctx)
	if err != nil {
		return nil, err
	}
	t := &Tx{conn: conn, queue: &pgx.Batch{}}
	t.queue.Queue(begin)
	return t, nil
}

// Queue lets a statement travel with the next one. Its result goes to what is
// set on the value returned; its error comes from the next call.
func (t *Tx) Queue(sql string, args ...any) *pgx.QueuedQuery { return t.queue.Queue(sql, args...) }

// Queue lets a statement travel with the next one of tx where tx is a Tx, and
// runs it at once elsewhere. read gets its only row.
func Queue(ctx context.Context, tx pgx.Tx, read func(pgx.Row) error, sql string, args ...any) error {
	if t, ok := tx.(*Tx); ok {
		t.Queue(sql, args...).QueryRow(read)
		return nil
	}
	return read(tx.QueryRow(ctx, sql, args...))
}

// QueueExec is Queue of a statement without rows.
func QueueExec(ctx context.Context, tx pgx.Tx, sql string, args ...any) error {
	if t, ok := tx.(*Tx); ok {
		t.Queue(sql, args...)
		return nil
	}
	_, err := tx.Exec(ctx, sql, args...)
	return err
}

// Flush sends what is queued and waits for it.
func (t *Tx) Flush(ctx context.Context) error {
	b := t.take()
	if b == nil {
		return nil
	}
	if t.conn == nil {
		return pgx.ErrTxClosed
	}
	return t.conn.SendBatch(ctx, b).Close()
}

// Flush sends what was queued on tx, where it is a Tx.
func Flush(ctx context.Context, tx pgx.Tx) error {
	if t, ok := tx.(*Tx); ok {
		return t.Flush(ctx)
	}
	return nil
}

// take empties the queue; nil: it was empty.
func (t *Tx) take() *pgx.Batch {
	if t.queue.Len() == 0 {
		return nil
	}
	b := t.queue
	t.queue = &pgx.Batch{}
	return b
}

// ahead sends the queue with a further statement and reads all results before
// that one's.
func (t *Tx) ahead(ctx context.Context, sql string, args []any) (pgx.BatchResults, error) {
	b := t.take()
	if t.conn == nil {
		return nil, pgx.ErrTxClosed
	}
	before := b.QueuedQueries
	b.Queue(sql, args...)
	res := t.conn.SendBatch(ctx, b)
	for _, q := range before {
		if err := readQueued(res, q); err != nil {
			_ = res.Close() // says the same
			return nil, err
		}
	}
	return res, nil
}

// readQueued gives one result to whoever queued its statement.
func readQueued(res pgx.BatchResults, q *pgx.QueuedQuery) error {
	if q.Fn != nil {
		return q.Fn(res)
	}
	_, err := res.Exec()
	return err
}

// Exec implements pgx.Tx.
func (t *Tx) Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	if t.conn == nil {
		return pgconn.CommandTag{}, pgx.ErrTxClosed
	}
	if t.queue.Len() == 0 {
		return t.conn.Exec(ctx, sql, args...)
	}
	res, err := t.ahead(ctx, sql, args)
	if err != nil {
		return pgconn.CommandTag{}, err
	}
	tag, err := res.Exec()
	return tag, errors.Join(err, closed(res, err))
}

// closed ends a batch; an error that was already seen is not said twice.
func closed(res pgx.BatchResults, seen error) error {
	if err := res.Close(); seen == nil {
		return err
	}
	return nil
}

// Query implements pgx.Tx.
func (t *Tx) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	if t.conn == nil {
		return nil, pgx.ErrTxClosed
	}
	if t.queue.Len() == 0 {
		return t.conn.Query(ctx, sql, args...)
	}
	res, err := t.ahead(ctx, sql, args)
	if err != nil {
		return nil, err
	}
	rows, err := res.Query()
	if err != nil {
		return nil, errors.Join(err, closed(res, err))
	}
	return &batchRows{Rows: rows, res: res}, nil
}

// QueryRow implements pgx.Tx.
func (t *Tx) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	rows, err := t.Query(ctx, sql, args...)
	return onlyRow{rows, err}
}

// SendBatch implements pgx.Tx. What is queued goes ahead on its own.
func (t *Tx) SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults {
	if err := t.Flush(ctx); err != nil {
		return pgx.FailedBatchResults(b, err)
	}
	if t.conn == nil {
		return pgx.FailedBatchResults(b, pgx.ErrTxClosed)
	}
	return t.conn.SendBatch(ctx, b)
}

// CopyFrom implements pgx.Tx.
func (t *Tx) CopyFrom(ctx context.Context, table pgx.Identifier, columns []string, rows pgx.CopyFromSource) (int64, error) {
	if err := t.Flush(ctx); err != nil {
		return 0, err
	}
	if t.conn == nil {
		return 0, pgx.ErrTxClosed
	}
	return t.conn.CopyFrom(ctx, table, columns, rows)
}

// Prepare implements pgx.Tx.
func (t *Tx) Prepare(ctx context.Context, name, sql string) (*pgconn.StatementDescription, error) {
	if err := t.Flush(ctx); err != nil {
		return nil, err
	}
	return t.conn.Conn().Prepare(ctx, name, sql)
}

// LargeObjects implements pgx.Tx; there are none.
func (*Tx) LargeObjects() pgx.LargeObjects { panic("large objects are not used") }

// Conn implements pgx.Tx. What is queued has not gone out: Flush first.
func (t *Tx) Conn() *pgx.Conn { return t.conn.Conn() }

// Commit sends what is queued and COMMIT. An error that wraps ErrRolledBack is
// that of a queued statement; after any other the outcome is unknown.
func (t *Tx) Commit(ctx context.Context) error {
	if t.conn == nil {
		return pgx.ErrTxClosed
	}
	b := t.take()
	if b == nil {
		tag, err := t.conn.Exec(ctx, commit)
		return t.committed(tag, err)
	}
	queued := b.QueuedQueries
	b.Queue(commit)
	res := t.conn.SendBatch(ctx, b)
	for _, q := range queued {
		if err := readQueued(res, q); err != nil {
			_ = res.Close() // says the same
			if refused(err) {
				return fmt.Errorf("%w: %w", ErrRolledBack, err)
			}
			t.end()
			return err
		}
	}
	tag, err := res.Exec()
	return t.committed(tag, errors.Join(err, closed(res, err)))
}

// committed ends the transaction by what became of its commit.
func (t *Tx) committed(tag pgconn.CommandTag, err error) error {
	t.end()
	if err == nil && tag.String() == "ROLLBACK" {
		return pgx.ErrTxCommitRollback
	}
	return err
}

// refused says that the server answered, and goes on: it passes over whatever
// was sent behind the statement.
func refused(err error) bool {
	var pe *pgconn.PgError
	return errors.As(err, &pe) && pe.SeverityUnlocalized == "ERROR"
}

// Rollback implements pgx.Tx. A connection that cannot be brought back is
// thrown away.
func (t *Tx) Rollback(ctx context.Context) error {
	if t.conn == nil {
		return pgx.ErrTxClosed
	}
	t.queue = &pgx.Batch{}
	_, err := t.conn.Exec(ctx, "rollback") // no more than a warning where begin was never sent
	if err != nil {
		_ = t.conn.Conn().Close(ctx)
	}
	t.end()
	return err
}

// end gives the connection back; the pool throws it away where it is closed or
// still in a transaction.
func (t *Tx) end() {
	t.conn.Release()
	t.conn = nil
}

// Begin implements pgx.Tx by a savepoint.
func (t *Tx) Begin(ctx context.Context) (pgx.Tx, error) {
	t.saves++
	name := fmt.Sprintf("sp_%d", t.saves)
	if _, err := t.Exec(ctx, "SAVEPOINT "+name); err != nil {
		return nil, err
	}
	return &savepoint{Tx: t, name: name}, nil
}

// savepoint is a transaction within a Tx.
type savepoint struct {
	*Tx
	name string
	over bool
}

// Commit implements pgx.Tx.
func (s *savepoint) Commit(ctx context.Context) error {
	return s.finish(ctx, "RELEASE SAVEPOINT "+s.name)
}

// Rollback implements pgx.Tx.
func (s *savepoint) Rollback(ctx context.Context) error {
	return s.finish(ctx, "ROLLBACK TO SAVEPOINT "+s.name)
}

func (s *savepoint) finish(ctx context.Context, sql string) error {
	if s.over {
		return pgx.ErrTxClosed
	}
	s.over = true
	_, err := s.Exec(ctx, sql)
	return err
}

// batchRows are the last result of a batch, and end it.
type batchRows struct {
	pgx.Rows
	res pgx.BatchResults
	err error
}

// Close implements pgx.Rows.
func (r *batchRows) Close() {
	r.Rows.Close()
	if err := r.res.Close(); r.err == nil {
		r.err = err
	}
}

// Next implements pgx.Rows; after the last row it closes, as pgx's own do.
func (r *batchRows) Next() bool {
	if r.Rows.Next() {
		return true
	}
	r.Close()
	return false
}

// Err implements pgx.Rows.
func (r *batchRows) Err() error {
	if err := r.Rows.Err(); err != nil {
		return err
	}
	return r.err
}

// onlyRow reads the first row of a result.
type onlyRow struct {
	rows pgx.Rows
	err  error
}

// Scan implements pgx.Row.
func (r onlyRow) Scan(dest ...any) error {
	if r.err != nil {
		return r.err
	}
	defer r.rows.Close()
	if !r.rows.Next() {
		if err := r.rows.Err(); err != nil {
			return err
		}
		return pgx.ErrNoRows
	}
	err := r.rows.Scan(dest...)
	r.rows.Close()
	return errors.Join(err, r.rows.Err())
}
