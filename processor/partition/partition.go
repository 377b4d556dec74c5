// Package partition keeps time-partitioned tables ahead of the clock: on
// demand for whoever writes a row, and as a job that makes the coming months
// and days and watches the DEFAULT partitions, which must stay empty. The one
// maker of a partition is the SQL function core.ensure_partition, which also
// moves rows out of DEFAULT into the partition that they lacked. What is old is
// left to processor/retention. The stages that append, `carril maintain` and
// `carril partitions` call it.
package partition

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/softcrum/carril/internal/db/processordb"
	"github.com/softcrum/carril/internal/pause"
)

// Maker makes partitions on demand and remembers which ones it has seen.
type Maker struct {
	pool *pgxpool.Pool
	mu   sync.Mutex
	seen map[seenKey]bool
}

type seenKey struct {
	parent string
	month  string
	class  int16
}

// NewMaker makes a Maker over pool.
func NewMaker(pool *pgxpool.Pool) *Maker { return &Maker{pool: pool, seen: map[seenKey]bool{}} }

// Ensure makes the month of a table that an instant falls into, with the leaf
// of a retention class, unless it is known to be there. It uses a connection
// of its own: no lock of a caller's transaction is held while it works.
func (m *Maker) Ensure(ctx context.Context, parent string, at time.Time, class int16) error {
	k := seenKey{parent, at.UTC().Format("200601"), class}
	m.mu.Lock()
	ok := m.seen[k]
	m.mu.Unlock()
	if ok {
		return nil
	}
	if _, err := Make(ctx, m.pool, parent, at, class); err != nil {
		return err
	}
	m.mu.Lock()
	m.seen[k] = true
	m.mu.Unlock()
	return nil
}

// Forget drops what is remembered, after the database contradicted it.
func (m *Maker) Forget() {
	m.mu.Lock()
	clear(m.seen)
	m.mu.Unlock()
}

// tries of a partition whose locks are not to be had: each waits a second at
// most, since what queues behind it waits too.
const tries = 5

// ErrNoTable says that there is no time-partitioned table of a name.
var ErrNoTable = errors.New("there is no such time-partitioned table")

const codeNoData = "P0002" // of a SELECT … INTO STRICT

// Make makes the partition of a table for an instant, in one transaction, with a
// leaf for every retention class and for class (0: no further one); made is
// false where nothing was missing. Rows of that time that lie in DEFAULT move
// into it. It tries again where a lock is not to be had within a second, or a
// stray row arrives in between. The error is ErrNoTable where there is no such table.
func Make(ctx context.Context, pool *pgxpool.Pool, parent string, at time.Time, class int16) (made bool, err error) {
	p := processordb.EnsurePartitionParams{ParentTable: parent, At: at}
	if class > 0 {
		p.Class = &class
	}
	err = Retry(ctx, tries, func() (err error) {
		made, err = processordb.New(pool).EnsurePartition(ctx, p)
		return err
	})
	var refused *pgconn.PgError
	if errors.As(err, &refused) && refused.Code == codeNoData {
		err = ErrNoTable
	}
	if err != nil {
		return false, fmt.Errorf("make the partition of %s for %s: %w", parent, at.UTC().Format(time.DateOnly), err)
	}
	return made, nil
}

// Retry calls do until it succeeds, fails for a reason of its own, or has been
// tried n times while others held the locks it wanted. Waits double from 50 ms
// to 1.6 s, with jitter.
func Retry(ctx context.Context, n int, do func() error) error {
	wait := 50 * time.Millisecond
	for {
		err := do()
		if n--; err == nil || n <= 0 || !contended(err) {
			return err
		}
		if !pause.For(ctx, wait/2+rand.N(wait)) {
			return errors.Join(ctx.Err(), err)
		}
		wait = min(2*wait, 1600*time.Millisecond)
	}
}

// contended says that another transaction was in the way: its lock, a deadlock
// with it, or a row of its that went into DEFAULT while its partition was made.
func contended(err error) bool {
	var pe *pgconn.PgError
	if !errors.As(err, &pe) {
		return false
	}
	switch pe.Code {
	case "55P03", "40P01", "40001":
		return true
	case "23514":
		return pe.ConstraintName == ""
	}
	return false
}
