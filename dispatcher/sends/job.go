package sends

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/softcrum/carril/internal/deadletter"
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

const lockSQL = `SELECT j.job_id, j.id_time, j.state, j.turn, coalesce(j.category, ''), j.state = 'claimed' AND j.lease_until > clock_timestamp() AND ` + holderAlive + `,
    j.payload, j.attempts, j.first_attempt, ` + waitedSoFar + `, j.generation, coalesce(j.expires_at <= clock_timestamp(), false), now(), j.tenant_id, j.lease
FROM core.processed_jobs j WHERE j.id_time = ANY($1) AND j.worker = $2 AND j.job_id = ANY($3)
ORDER BY j.id_time, j.job_id FOR UPDATE OF j`

// lock reads the jobs' rows and keeps them, in the order in which everybody
// locks them; a job without a row is absent.
func (s *Store) lock(ctx context.Context, tx pgx.Tx, qs []*claiming) (map[uuid.UUID]job, error) {
	times, jobs := make([]time.Time, len(qs)), make([]uuid.UUID, len(qs))
	for i, q := range qs {
		times[i], jobs[i] = ids.Time(q.ref.JobID), q.ref.JobID
	}
	rows, err := tx.Query(ctx, lockSQL, times, s.worker, jobs)
	if err != nil {
		return nil, fmt.Errorf("read %d jobs: %w", len(qs), err)
	}
	out := make(map[uuid.UUID]job, len(qs))
	for rows.Next() {
		j, err := scanJob(rows)
		if err != nil {
			rows.Close()
			return nil, err
		}
		out[j.JobID] = j
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("read %d jobs: %w", len(qs), err)
	}
	return out, nil
}

func scanJob(row pgx.Row) (j job, err error) {
	var payload []byte
	var tenant *uuid.UUID
	if err := row.Scan(&j.JobID, &j.at, &j.state, &j.Turn, &j.category, &j.alive, &payload, &j.attempts,
		&j.firstAttempt, &j.waited, &j.generation, &j.expired, &j.now, &tenant, &j.lease); err != nil {
		return j, fmt.Errorf("read a job: %w", err)
	}
	if tenant != nil {
		j.TenantID = *tenant
	}
	if len(payload) > 0 {
		p := struct {
			*schemas.JobPayload
			Uncertain *int `json:"uncertain"`
		}{&j.payload, &j.uncertain}
		if err := json.Unmarshal(payload, &p); err != nil {
			return j, fmt.Errorf("read the payload of job %s: %w", j.JobID, err)
		}
	}
	return j, nil
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
UNION SELECT h.send_id FROM messaging.send_status_history h
WHERE h.send_id = ANY($1) AND h.requested_at >= $2 AND h.requested_at <= $3 AND starts_with(h.provider_event_id, '` + eventFailed + `')
    AND NOT EXISTS (SELECT FROM core.dead_letters d WHERE d.send_id = h.send_id AND d.status = '` + deadletter.StatusReplayed + `' AND d.status_at > h.recorded_at)`
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
