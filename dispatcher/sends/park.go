package sends

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/softcrum/carril/internal/ids"
	"github.com/softcrum/carril/schemas"
)

// Parking is a queued job that cannot go for a while.
type Parking struct {
	Ref
	Delay time.Duration
}

// The state is asked for in a form that matches no index: see oursSQL.
const parkSQL = `WITH mine AS (
    SELECT j.id_time, j.job_id, u.d FROM unnest($1::timestamptz[], $2::uuid[], $3::int[], $4::interval[]) AS u(t, i, n, d)
    JOIN core.processed_jobs j ON j.id_time = u.t AND j.job_id = u.i AND j.turn = u.n
    WHERE j.id_time = ANY($1) AND j.worker = $5 AND (j.state = 'in_topic') IS TRUE
    ORDER BY j.id_time, j.job_id FOR UPDATE OF j SKIP LOCKED
)
UPDATE core.processed_jobs j SET state = 'parked', reason = $6, not_before = clock_timestamp() + mine.d,
    waited = ` + waitedSoFar + ` + CASE WHEN $7 THEN mine.d ELSE interval '0' END, updated_at = now()
FROM mine WHERE j.id_time = ANY($1) AND j.id_time = mine.id_time AND j.job_id = mine.job_id AND j.worker = $5`

// ReasonProvider parks what may have been taken by a provider that is out of
// order: it has no other, and its retry window stands still meanwhile.
const ReasonProvider = "provider_failing"

// Park puts jobs that wait in the topic aside until their time, in one
// transaction; what is not in the topic under its turn any more is left alone.
// Except behind a tenant's own bucket, the credits go to what waits.
func (s *Store) Park(ctx context.Context, slot Slot, jobs []Parking, reason string) error {
	if len(jobs) == 0 {
		return nil
	}
	n := len(jobs)
	times, refs, turns, delays := make([]time.Time, n), make([]uuid.UUID, n), make([]int32, n), make([]time.Duration, n)
	for i, j := range jobs {
		times[i], refs[i], turns[i], delays[i] = ids.Time(j.JobID), j.JobID, j.Turn, j.Delay
	}
	err := pgx.BeginFunc(ctx, s.deps.Pool, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, parkSQL, times, refs, turns, delays, s.worker, reason, reason == ReasonProvider)
		return err
	})
	if err != nil {
		return fmt.Errorf("park %d jobs: %w", n, err)
	}
	return nil
}

// Refusal is a record that a rail may not send or cannot read.
type Refusal struct {
	Class, Reason string
	JobID         uuid.UUID // uuid.Nil: unknown
	Topic         string    // logical
	TopicID       [16]byte
	Record        *kgo.Record
}

// Refuse makes a dead letter of a record, with its bytes, and of its job where
// it has one that still waits. Doing it twice changes nothing.
func (s *Store) Refuse(ctx context.Context, r Refusal) error {
	headers := make([][2]string, len(r.Record.Headers))
	for i, h := range r.Record.Headers {
		headers[i] = [2]string{h.Key, string(h.Value)}
	}
	hs, err := json.Marshal(headers)
	if err != nil {
		return fmt.Errorf("refuse a record: %w", err)
	}
	var send *uuid.UUID
	if r.JobID != uuid.Nil {
		send = &r.JobID
	}
	err = pgx.BeginFunc(ctx, s.deps.Pool, func(tx pgx.Tx) error {
		if send != nil {
			const dead = `UPDATE core.processed_jobs SET state = 'dead', reason = $4, updated_at = now()
WHERE id_time = $1 AND worker = $2 AND job_id = $3 AND state = 'in_topic'`
			tag, err := tx.Exec(ctx, dead, ids.Time(r.JobID), s.worker, r.JobID, r.Class)
			if err == nil && tag.RowsAffected() > 0 && s.cfg.Rail == schemas.RailMarketing {
				err = refuseBlast(ctx, tx, s.worker, r.JobID, r.Class)
			}
			if err != nil {
				return err
			}
		}
		const sql = `INSERT INTO core.dead_letters (dead_letter_id, stage, class, reason, tenant_id, send_id, topic, topic_id, topic_partition, topic_offset,
    record_key, record_value, record_headers, content_hash)
VALUES ($1, $2, $3, $4, (SELECT tenant_id FROM core.processed_jobs WHERE id_time = $13 AND worker = $2 AND job_id = $5), $5, $6, $7, $8, $9, $10, $11, $12, sha256($11))
ON CONFLICT DO NOTHING`
		id := ids.BatchOfOffsets("refused:"+s.worker, r.TopicID, r.Record.Partition, 0, r.Record.Offset)
		value := r.Record.Value
		if value == nil {
			value = []byte{}
		}
		_, err := tx.Exec(ctx, sql, id, s.worker, r.Class, r.Reason, send, r.Topic, r.TopicID, r.Record.Partition, r.Record.Offset,
			r.Record.Key, value, hs, ids.Time(r.JobID))
		return err
	})
	if err != nil {
		return fmt.Errorf("refuse a record: %w", err)
	}
	return nil
}

// EnsurePartitions makes the partitions that a job's sends and requests need.
func (s *Store) EnsurePartitions(ctx context.Context, ref Ref) error {
	at := ids.Time(ref.JobID)
	const sql = `SELECT core.ensure_partition('messaging.sends', $1), core.ensure_partition('messaging.send_status_history', $1),
    core.ensure_partition('messaging.decisions', $1), core.ensure_partition('messaging.send_requests', now())`
	var a, b, c, d bool
	if err := s.deps.Pool.QueryRow(ctx, sql, at).Scan(&a, &b, &c, &d); err != nil {
		return fmt.Errorf("make the partitions of job %s: %w", ref.JobID, err)
	}
	return nil
}
