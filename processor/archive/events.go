package archive

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// eventColumns are what a tenant gets of its events: what the API says of them.
// Lanes, cells and classes are the platform's own.
const eventColumns = `event_id, kind, event_name, contact_id, occurred_at, occurred_offset, occurred_claimed, received_at,
    idempotency_key, correlation_id, historical, properties`

// readEvents gives a tenant's events of a range in order of time, all of one
// moment: occurred_at first, then what columns asks of the row u. Its leaves are
// read by themselves, those that retention has detached among them, so that no
// detach elsewhere waits for a long export.
func (a *Archive) readEvents(ctx context.Context, tenant uuid.UUID, from, to time.Time, columns string, row func(fields [][]byte) error) error {
	return pgx.BeginTxFunc(ctx, a.deps.Pool, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, settings); err != nil {
			return err
		}
		leaves, err := lockLeaves(ctx, tx, "core.tracked_events", from, to)
		if err != nil || len(leaves) == 0 {
			return err
		}
		// COPY takes no parameters: these are typed values in their own text.
		where := fmt.Sprintf(` WHERE occurred_at >= '%s' AND occurred_at < '%s' AND tenant_id = '%s'`,
			from.UTC().Format(time.RFC3339Nano), to.UTC().Format(time.RFC3339Nano), tenant)
		parts := make([]string, len(leaves))
		for i, leaf := range leaves {
			parts[i] = `SELECT ` + eventColumns + ` FROM ` + leaf + where
		}
		return copyRows(ctx, tx, `SELECT u.occurred_at, `+columns+` FROM (`+strings.Join(parts, " UNION ALL ")+`) u ORDER BY u.occurred_at, u.event_id`, row)
	})
}

// lockLeaves gives the quoted names of the tables that hold a range, as of the
// transaction's snapshot, and keeps them what they are until it ends.
func lockLeaves(ctx context.Context, tx pgx.Tx, parent string, from, to time.Time) ([]string, error) {
	rows, err := tx.Query(ctx, `SELECT leaf, name FROM core.leaves($1, $2, $3)`, parent, from, to)
	if err != nil {
		return nil, fmt.Errorf("find the leaves of a range: %w", err)
	}
	type leaf struct {
		OID  uint32
		Name string
	}
	leaves, err := pgx.CollectRows(rows, pgx.RowToStructByPos[leaf])
	if err != nil {
		return nil, fmt.Errorf("find the leaves of a range: %w", err)
	}
	names := make([]string, len(leaves))
	for i, l := range leaves {
		names[i] = l.Name
		if _, err := tx.Exec(ctx, `LOCK TABLE ONLY `+l.Name+` IN ACCESS SHARE MODE`); err != nil {
			return nil, fmt.Errorf("hold a leaf: %w", err)
		}
		if _, err := resolve(ctx, tx, l.Name, l.OID); err != nil { // the name became another's before the lock
			return nil, fmt.Errorf("hold leaf %s: %w", l.Name, err)
		}
	}
	return names, nil
}

var errColumn = errors.New("a column has another form than its type")

// pgEpoch is PostgreSQL's, in microseconds of ours.
var pgEpoch = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC).UnixMicro()

// micros reads a timestamptz of a binary copy.
func micros(b []byte) (int64, error) {
	if len(b) != 8 {
		return 0, errColumn
	}
	return int64(binary.BigEndian.Uint64(b)) + pgEpoch, nil
}
