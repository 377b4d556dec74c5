package pg

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// ErrLeafMoved says that a leaf was dropped or renamed while a reader was about
// to hold it: begin the transaction anew.
var ErrLeafMoved = errors.New("a leaf of the range is not what it was")

// LockLeaves gives the quoted names of the tables that hold a partitioned
// table's rows of a range, those that retention has detached and not dropped
// among them, and keeps each what it is until the transaction ends. In a
// REPEATABLE READ transaction a reader of all of them sees each row once,
// whatever is detached or moved meanwhile; the parent is not held, so that a
// detach elsewhere does not wait for a long read.
func LockLeaves(ctx context.Context, tx pgx.Tx, parent string, from, to time.Time) ([]string, error) {
	rows, err := tx.Query(ctx, `SELECT leaf, name FROM core.leaves($1, $2, $3)`, parent, from, to)
	if err != nil {
		return nil, fmt.Errorf("find the leaves of %s: %w", parent, err)
	}
	var oids []uint32
	var names []string
	var oid uint32
	var name string
	_, err = pgx.ForEachRow(rows, []any{&oid, &name}, func() error {
		oids, names = append(oids, oid), append(names, name)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("find the leaves of %s: %w", parent, err)
	}
	if len(names) == 0 {
		return nil, nil
	}
	if _, err := tx.Exec(ctx, `LOCK TABLE ONLY `+strings.Join(names, `, ONLY `)+` IN ACCESS SHARE MODE`); err != nil {
		if FaultOf(err) == FaultStatement { // it is gone
			err = errors.Join(ErrLeafMoved, err)
		}
		return nil, fmt.Errorf("hold the leaves of %s: %w", parent, err)
	}
	// A name can have become another table's between the look and the lock.
	var same bool
	err = tx.QueryRow(ctx, `SELECT coalesce(bool_and(to_regclass(n)::oid = o), true) FROM unnest($1::text[], $2::oid[]) AS u (n, o)`, names, oids).Scan(&same)
	if err != nil {
		return nil, fmt.Errorf("hold the leaves of %s: %w", parent, err)
	}
	if !same {
		return nil, ErrLeafMoved
	}
	return names, nil
}
