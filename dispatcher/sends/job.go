package sends

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/softcrum/carril/internal/ids"
	"github.com/softcrum/carril/schemas"
)

// job is a row of core.processed_jobs under its lock.
type job struct {
	Ref
	at           time.Time // id_time
	state        string
	category     string
	alive        bool // claimed by a process that lives, inside its lease
	lease        *uuid.UUID
	uncertain    int // the last generation whose outcome was unknown; kept with the payload, since the bytes go after a day
	payload      schemas.JobPayload
	attempts     int
	firstAttempt *time.Time
	waited       time.Duration
	generation   int
	expired      bool
	now          time.Time // the transaction's, by the database's clock
}

// lock reads a job's row and keeps it; ok is false where there is none.
func (s *Store) lock(ctx context.Context, tx pgx.Tx, ref Ref) (j job, ok bool, err error) {
	const sql = `SELECT j.state, j.turn, coalesce(j.category, ''), j.state = 'claimed' AND j.lease_until > clock_timestamp() AND ` + holderAlive + `,
    j.payload, j.attempts, j.first_attempt, ` + waitedSoFar + `, j.generation, coalesce(j.expires_at <= clock_timestamp(), false), now(), j.tenant_id, j.lease
FROM core.processed_jobs j WHERE j.id_time = $1 AND j.worker = $2 AND j.job_id = $3 FOR UPDATE OF j`
	j.Ref, j.at = ref, ids.Time(ref.JobID)
	var payload []byte
	var turn int32
	var tenant *uuid.UUID
	err = tx.QueryRow(ctx, sql, j.at, s.worker, ref.JobID).Scan(&j.state, &turn, &j.category, &j.alive, &payload, &j.attempts,
		&j.firstAttempt, &j.waited, &j.generation, &j.expired, &j.now, &tenant, &j.lease)
	if errors.Is(err, pgx.ErrNoRows) {
		return j, false, nil
	}
	if err != nil {
		return j, false, fmt.Errorf("read job %s: %w", ref.JobID, err)
	}
	j.Turn = turn
	if tenant != nil {
		j.TenantID = *tenant
	}
	if len(payload) > 0 {
		p := struct {
			*schemas.JobPayload
			Uncertain *int `json:"uncertain"`
		}{&j.payload, &j.uncertain}
		if err := json.Unmarshal(payload, &p); err != nil {
			return j, false, fmt.Errorf("read the payload of job %s: %w", ref.JobID, err)
		}
	}
	return j, true, nil
}

// bounds gives the times between which the messages' sends lie: the predicate
// of every query over their partitions.
func bounds(ms []schemas.JobMessage) (first, last time.Time) {
	for i, m := range ms {
		if i == 0 || m.RequestedAt.Before(first) {
			first = m.RequestedAt
		}
		if i == 0 || m.RequestedAt.After(last) {
			last = m.RequestedAt
		}
	}
	return first, last
}

func sendIDs(ms []schemas.JobMessage) []uuid.UUID {
	out := make([]uuid.UUID, len(ms))
	for i, m := range ms {
		out[i] = m.SendID
	}
	return out
}

// pending gives the messages of a job that have no outcome yet: neither taken by
// a provider nor failed or blocked for good.
func (s *Store) pending(ctx context.Context, tx pgx.Tx, j job) ([]schemas.JobMessage, error) {
	if j.generation == 0 {
		return j.payload.Messages, nil
	}
	first, last := bounds(j.payload.Messages)
	const sql = `SELECT send_id FROM messaging.provider_messages WHERE send_id = ANY($1)
UNION SELECT send_id FROM messaging.send_status_history
WHERE send_id = ANY($1) AND requested_at >= $2 AND requested_at <= $3 AND starts_with(provider_event_id, '` + eventFailed + `')`
	rows, err := tx.Query(ctx, sql, sendIDs(j.payload.Messages), first, last)
	if err != nil {
		return nil, fmt.Errorf("find what is left of job %s: %w", j.JobID, err)
	}
	done, err := pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
	if err != nil {
		return nil, fmt.Errorf("find what is left of job %s: %w", j.JobID, err)
	}
	has := make(map[uuid.UUID]bool, len(done))
	for _, id := range done {
		has[id] = true
	}
	var left []schemas.JobMessage
	for _, m := range j.payload.Messages {
		if !has[m.SendID] {
			left = append(left, m)
		}
	}
	return left, nil
}
