package manage

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/softcrum/carril/internal/pg"
)

// Snapshots begins transactions, as a pool does.
type Snapshots interface {
	BeginTx(ctx context.Context, opts pgx.TxOptions) (pgx.Tx, error)
}

// snapshot reads in one transaction that sees one moment. A leaf that goes away
// just then costs another try.
func (m *Routes) snapshot(ctx context.Context, read func(tx pgx.Tx) error) error {
	for try := 0; ; try++ {
		err := pgx.BeginTxFunc(ctx, m.deps.Snapshots, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}, read)
		if !errors.Is(err, pg.ErrLeafMoved) || try == 2 {
			return err
		}
	}
}

// eventLeaves gives the quoted names of the tables that hold events of a range,
// to excluded, for the rest of the transaction.
func eventLeaves(ctx context.Context, tx pgx.Tx, from, to time.Time) ([]string, error) {
	return pg.LockLeaves(ctx, tx, "core.tracked_events", from, to)
}
