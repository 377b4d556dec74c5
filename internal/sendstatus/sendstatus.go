// Package sendstatus derives a send's current status from its history: the
// highest rank there is, a pure maximum, so that any order of arrival and any
// repetition give the same answer (FS-MSG-0003 §4). It writes nothing; whoever
// shows or counts sends asks it.
package sendstatus

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// Row is what the derivation needs of a history row.
type Row struct {
	Status     string
	Rank       int
	Generation int
}

// Derive gives the current status; "" for an empty history. A failure of an
// earlier generation of the request does not count once there is a later one.
func Derive(rows []Row) string {
	latest := 0
	for _, r := range rows {
		latest = max(latest, r.Generation)
	}
	best := Row{Rank: -1}
	for _, r := range rows {
		if r.Status == "failed" && r.Generation < latest {
			continue
		}
		if r.Rank > best.Rank {
			best = r
		}
	}
	return best.Status
}

// Current is a send's status and the history row that it stands in.
type Current struct {
	Status     string
	Rank       int
	Terminal   bool
	OccurredAt time.Time // by whoever reported it
	Reason     string
}

// Ref names a send with its own time, which is its partition.
type Ref struct {
	SendID      uuid.UUID
	RequestedAt time.Time
}

// Querier is a pool or a transaction.
type Querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

// Of gives the current statuses of sends; one without history is absent.
func Of(ctx context.Context, q Querier, sends []Ref) (map[uuid.UUID]Current, error) {
	if len(sends) == 0 {
		return nil, nil
	}
	sendIDs, times := make([]uuid.UUID, len(sends)), make([]time.Time, len(sends))
	for i, s := range sends {
		sendIDs[i], times[i] = s.SendID, s.RequestedAt
	}
	const sql = `SELECT DISTINCT ON (h.send_id) h.send_id, h.status, s.rank, s.terminal, h.occurred_at, coalesce(h.reason, '')
FROM messaging.send_status_history h JOIN messaging.send_statuses s ON s.status = h.status
WHERE h.requested_at >= $2 AND h.requested_at <= $3 AND h.send_id = ANY($1)
    AND NOT (h.status = 'failed' AND EXISTS (SELECT FROM messaging.send_status_history l
        WHERE l.requested_at >= $2 AND l.requested_at <= $3 AND l.send_id = h.send_id AND l.generation > h.generation))
ORDER BY h.send_id, s.rank DESC, h.arrival`
	rows, err := q.Query(ctx, sql, sendIDs, slices.MinFunc(times, time.Time.Compare), slices.MaxFunc(times, time.Time.Compare))
	if err != nil {
		return nil, fmt.Errorf("derive the status of %d sends: %w", len(sends), err)
	}
	out := make(map[uuid.UUID]Current, len(sends))
	var id uuid.UUID
	var c Current
	_, err = pgx.ForEachRow(rows, []any{&id, &c.Status, &c.Rank, &c.Terminal, &c.OccurredAt, &c.Reason}, func() error {
		out[id] = c
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("derive the status of %d sends: %w", len(sends), err)
	}
	return out, nil
}
