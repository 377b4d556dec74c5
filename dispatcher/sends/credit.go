package sends

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/softcrum/carril/internal/ids"
	"github.com/softcrum/carril/internal/kafka"
	"github.com/softcrum/carril/internal/outbox"
	"github.com/softcrum/carril/schemas"
)

// ReasonTenantBucket parks what a tenant's own bucket holds up. Such a row
// keeps its credit: the tenant's backlog would otherwise be carried through the
// topic only to be parked behind it.
const ReasonTenantBucket = "tenant_bucket"

// refill gives a tenant's free credits to what waits, oldest first and
// transactional before product, inside the transaction that freed one. The
// marketing rail's jobs are the feeder's to meter.
func (s *Store) refill(ctx context.Context, tx pgx.Tx, tenant uuid.UUID) ([]outbox.Message, error) {
	if s.cfg.Rail != schemas.RailTransactional {
		return nil, nil
	}
	// Seldom does anything wait. What is missed by looking before the lock, the
	// sweep finds within its interval.
	const look = `SELECT EXISTS (SELECT FROM core.processed_jobs WHERE id_time > now() - interval '40 days' AND worker = $1 AND tenant_id = $2 AND state = 'waiting')`
	var waits bool
	if err := tx.QueryRow(ctx, look, s.worker, tenant).Scan(&waits); err != nil {
		return nil, fmt.Errorf("look for waiting jobs: %w", err)
	}
	if !waits {
		return nil, nil
	}
	return s.fill(ctx, tx, tenant)
}

// fill moves what may go from waiting to the topic, under the lock of the
// tenant's rail.
func (s *Store) fill(ctx context.Context, tx pgx.Tx, tenant uuid.UUID) (msgs []outbox.Message, err error) {
	const lock = `INSERT INTO messaging.tenant_rails (tenant_id, channel, rail) VALUES ($1, $2, $3)
ON CONFLICT (tenant_id, channel, rail) DO UPDATE SET rail = EXCLUDED.rail`
	if _, err := tx.Exec(ctx, lock, tenant, s.cfg.Channel, s.cfg.Rail); err != nil {
		return nil, fmt.Errorf("lock a tenant's rail: %w", err)
	}
	const count = `SELECT count(*), count(*) FILTER (WHERE category = 'product') FROM core.processed_jobs
WHERE id_time > now() - interval '40 days' AND worker = $1 AND tenant_id = $2 AND state IN ('in_topic', 'claimed', 'parked')
    AND (state <> 'parked' OR reason = '` + ReasonTenantBucket + `')`
	var used, product int
	if err := tx.QueryRow(ctx, count, s.worker, tenant).Scan(&used, &product); err != nil {
		return nil, fmt.Errorf("count a tenant's credits: %w", err)
	}
	for _, part := range []struct {
		category string
		limit    int
	}{{"transactional", s.cfg.Credits - used}, {"product", min(s.cfg.Credits-used, max(1, s.cfg.Credits/2)-product)}} {
		more, err := s.enqueueWaiting(ctx, tx, tenant, part.category, min(part.limit, s.cfg.Credits-used-len(msgs)))
		if err != nil {
			return nil, err
		}
		msgs = append(msgs, more...)
	}
	return msgs, nil
}

func (s *Store) enqueueWaiting(ctx context.Context, tx pgx.Tx, tenant uuid.UUID, category string, limit int) ([]outbox.Message, error) {
	if limit <= 0 {
		return nil, nil
	}
	const sql = `SELECT id_time, job_id FROM core.processed_jobs
WHERE id_time > now() - interval '40 days' AND worker = $1 AND tenant_id = $2 AND state = 'waiting' AND category = $3
ORDER BY not_before, id_time LIMIT $4 FOR UPDATE SKIP LOCKED`
	rows, err := tx.Query(ctx, sql, s.worker, tenant, category, limit)
	if err != nil {
		return nil, fmt.Errorf("find waiting jobs: %w", err)
	}
	type key struct {
		At time.Time
		ID uuid.UUID
	}
	keys, err := pgx.CollectRows(rows, pgx.RowToStructByPos[key])
	if err != nil {
		return nil, fmt.Errorf("find waiting jobs: %w", err)
	}
	times, jobs := make([]time.Time, len(keys)), make([]uuid.UUID, len(keys))
	for i, k := range keys {
		times[i], jobs[i] = k.At, k.ID
	}
	return s.enqueue(ctx, tx, times, jobs)
}

// enqueue brings jobs whose rows the caller holds into the topic, and gives their
// records for the same transaction's outbox: neither is there without the other.
func (s *Store) enqueue(ctx context.Context, tx pgx.Tx, times []time.Time, jobs []uuid.UUID) ([]outbox.Message, error) {
	if len(jobs) == 0 {
		return nil, nil
	}
	first, last := times[0], times[0]
	for _, t := range times {
		if t.Before(first) {
			first = t
		}
		if t.After(last) {
			last = t
		}
	}
	const sql = `UPDATE core.processed_jobs j SET state = 'in_topic', turn = turn + 1, lease = NULL, lease_until = NULL, reason = NULL,
    waited = ` + waitedSoFar + `, not_before = NULL, updated_at = now()
FROM unnest($1::timestamptz[], $2::uuid[]) AS u(t, i)
WHERE j.id_time >= $4 AND j.id_time <= $5 AND j.id_time = u.t AND j.job_id = u.i AND j.worker = $3
RETURNING j.job_id, j.turn, j.tenant_id, coalesce(j.category, ''), j.payload, j.expires_at, now()`
	rows, err := tx.Query(ctx, sql, times, jobs, s.worker, first, last)
	if err != nil {
		return nil, fmt.Errorf("enqueue %d jobs: %w", len(jobs), err)
	}
	var r enqueued
	var payload []byte
	var msgs []outbox.Message
	_, err = pgx.ForEachRow(rows, []any{&r.job, &r.turn, &r.tenant, &r.category, &payload, &r.expires, &r.at}, func() error {
		r.payload = schemas.JobPayload{}
		if err := json.Unmarshal(payload, &r.payload); err != nil {
			return err
		}
		m, err := s.record(ctx, r)
		msgs = append(msgs, m)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("enqueue %d jobs: %w", len(jobs), err)
	}
	return msgs, nil
}

// enqueued is a job on its way into the topic.
type enqueued struct {
	job, tenant uuid.UUID
	turn        int32
	category    string
	payload     schemas.JobPayload
	expires     *time.Time
	at          time.Time
}

// record makes a job's record of its rail.
func (s *Store) record(ctx context.Context, r enqueued) (outbox.Message, error) {
	if len(r.payload.Messages) == 0 {
		return outbox.Message{}, fmt.Errorf("job %s holds no message", r.job)
	}
	m := r.payload.Messages[0]
	topic := schemas.RailTopic(s.cfg.Channel, s.cfg.Rail)
	key := r.tenant.String() + "/" + m.ContactID.String()
	var rec any = &schemas.SendJob{JobID: r.job, TenantID: r.tenant, CellID: r.payload.CellID, Channel: s.cfg.Channel, Category: r.category, Turn: r.turn,
		CorrelationID: m.CorrelationID, OriginEventID: m.OriginEventID, EnqueuedAt: r.at.UTC(), ExpiresAt: r.expires}
	if s.cfg.Rail == schemas.RailMarketing {
		key = ShardKey(r.tenant, r.job)
		rec = &schemas.SendBatch{JobID: r.job, TenantID: r.tenant, CellID: r.payload.CellID, Channel: s.cfg.Channel, Turn: r.turn, BlastID: m.BlastID,
			SendIDs: sendIDs(r.payload.Messages), CorrelationID: m.CorrelationID, EnqueuedAt: r.at.UTC()}
	}
	value, err := s.deps.Codec.Encode(ctx, nil, topic, rec)
	if err != nil {
		return outbox.Message{}, fmt.Errorf("encode job %s: %w", r.job, err)
	}
	return outbox.Message{Topic: topic, Key: []byte(key), Value: value, Headers: kafka.Event{ID: fmt.Sprintf("%s/%d", r.job, r.turn), Type: "notif.job",
		Source: kafka.Source(r.tenant), Subject: r.category, Time: r.at, CorrelationID: m.CorrelationID}.Headers()}, nil
}

// ShardKey keys a marketing batch: two shards a tenant, so that one tenant is
// not one partition.
func ShardKey(tenant, job uuid.UUID) string {
	return fmt.Sprintf("%s/%d", tenant, ids.Time(job).UnixMilli()%2)
}
