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

	"github.com/softcrum/carril/internal/pg"
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
		leaves, err := pg.LockLeaves(ctx, tx, "core.tracked_events", from, to)
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
