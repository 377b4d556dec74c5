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

// refilling is a tenant to which credits came back.
type refilling struct {
	tenant uuid.UUID
	slot   Slot
}

// refillSoon gives the free credits of tenants to what waits, in a transaction
// of its own that nobody waits for: whoever gives a credit back need not lock
// the tenant's rail for it. What a crash in between leaves, the sweep finds.
func (s *Store) refillSoon(fs []finished) {
	if s.cfg.Rail != schemas.RailTransactional { // the marketing rail's jobs are the feeder's to meter
		return
	}
	seen := map[uuid.UUID]bool{}
	var items []refilling
	for _, f := range fs {
		if !seen[f.c.TenantID] {
			seen[f.c.TenantID] = true
			items = append(items, refilling{f.c.TenantID, f.c.slot})
		}
	}
	s.refills.offer(items)
}

// refillAll fills up tenants, and publishes on the lane of the last of those
// who gave credits back: its slot is the process's.
func (s *Store) refillAll(ctx context.Context, items []refilling) []error {
	seen := map[uuid.UUID]bool{}
	var tenants []uuid.UUID
	for _, it := range items {
		if !seen[it.tenant] {
			seen[it.tenant] = true
			tenants = append(tenants, it.tenant)
		}
	}
	slot := items[len(items)-1].slot
	var msgs []outbox.Message
	err := pgx.BeginFunc(ctx, s.deps.Pool, func(tx pgx.Tx) (err error) {
		if msgs, err = s.fill(ctx, tx, tenants); err != nil {
			return err
		}
		return s.publish(ctx, tx, slot.Lane, msgs)
	})
	if err == nil && len(msgs) > 0 {
		if slot.Wake != nil {
			slot.Wake()
		}
		gather(ctx)
	}
	return make([]error, len(items)) // the sweep repairs what did not land
}

// gatherFor is how long credits gather before the next refill, while there is
// something to refill: looking for what waits costs the same for one as for fifty.
const gatherFor = 25 * time.Millisecond

func gather(ctx context.Context) {
	t := time.NewTimer(gatherFor)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}

// Tenant by tenant, and a state at a time, each a constant that the index of open
// jobs knows. LIMIT and OFFSET 0 keep the planner from joining first: what it takes
// for a handful of rows, as it does in the first hours of a day's partition, it
// would read whole, and a million may wait.
const (
	waitsSQL = `SELECT u.t FROM unnest($2::uuid[]) AS u(t) CROSS JOIN LATERAL (
    SELECT FROM core.processed_jobs j WHERE j.id_time > now() - interval '40 days' AND j.worker = $1 AND j.tenant_id = u.t AND j.state = 'waiting' LIMIT 1) w ORDER BY u.t`

	ofTenant   = `FROM core.processed_jobs c WHERE c.id_time > now() - interval '40 days' AND c.worker = $1 AND c.tenant_id = u.t AND c.state = `
	creditsSQL = `SELECT count(j.state), count(j.state) FILTER (WHERE j.category = 'product')
FROM unnest($2::uuid[]) WITH ORDINALITY AS u(t, n) LEFT JOIN LATERAL (
    SELECT q.state, q.category FROM (SELECT c.state, c.category ` + ofTenant + `'in_topic' UNION ALL SELECT c.state, c.category ` + ofTenant + `'claimed'
        UNION ALL SELECT c.state, c.category ` + ofTenant + `'parked' AND c.reason = '` + ReasonTenantBucket + `') q OFFSET 0) j ON true
GROUP BY u.n ORDER BY u.n`

	// What waits has its place in the line in not_before, which the index keeps.
	waitingSQL = `SELECT u.t, w.id_time, w.job_id FROM unnest($2::uuid[], $3::bigint[]) WITH ORDINALITY AS u(t, free, n), LATERAL (
    SELECT id_time, job_id, not_before FROM core.processed_jobs
    WHERE id_time > now() - interval '40 days' AND worker = $1 AND tenant_id = u.t AND state = 'waiting' AND category = $4
    ORDER BY not_before, id_time LIMIT greatest(u.free, 0) FOR UPDATE SKIP LOCKED) w
ORDER BY u.n, w.not_before, w.id_time`
)

// fill moves what may go from waiting to the topic, oldest first and
// transactional before product, under the locks of the tenants' rails.
func (s *Store) fill(ctx context.Context, tx pgx.Tx, tenants []uuid.UUID) ([]outbox.Message, error) {
	// Seldom does anything wait. What is missed by looking before the lock, the
	// sweep finds within its interval.
	rows, err := tx.Query(ctx, waitsSQL, s.worker, tenants)
	if err != nil {
		return nil, fmt.Errorf("look for waiting jobs: %w", err)
	}
	if tenants, err = pgx.CollectRows(rows, pgx.RowTo[uuid.UUID]); err != nil {
		return nil, fmt.Errorf("look for waiting jobs: %w", err)
	}
	if len(tenants) == 0 {
		return nil, nil
	}
	if tenants, err = s.lockRails(ctx, tx, tenants); err != nil || len(tenants) == 0 {
		return nil, err
	}
	free, product, err := s.freeCredits(ctx, tx, tenants)
	if err != nil {
		return nil, err
	}
	times, jobs, taken, err := s.waiting(ctx, tx, "transactional", tenants, free)
	if err != nil {
		return nil, err
	}
	for i, t := range tenants {
		product[i] = min(product[i], free[i]-taken[t])
	}
	moreTimes, moreJobs, _, err := s.waiting(ctx, tx, "product", tenants, product)
	if err != nil {
		return nil, err
	}
	return s.enqueue(ctx, tx, append(times, moreTimes...), append(jobs, moreJobs...))
}

// lockRails locks the rails of tenants and gives those that it got: one that is
// locked is being enqueued to or filled, and who waits for it would hold up the
// others. The next credit that comes back fills it, or the sweep.
func (s *Store) lockRails(ctx context.Context, tx pgx.Tx, tenants []uuid.UUID) ([]uuid.UUID, error) {
	const ensure = `INSERT INTO messaging.tenant_rails (tenant_id, channel, rail)
SELECT t, $2, $3 FROM unnest($1::uuid[]) AS u(t)
WHERE NOT EXISTS (SELECT FROM messaging.tenant_rails r WHERE r.tenant_id = t AND r.channel = $2 AND r.rail = $3) ON CONFLICT DO NOTHING`
	if _, err := tx.Exec(ctx, ensure, tenants, s.cfg.Channel, s.cfg.Rail); err != nil {
		return nil, fmt.Errorf("make tenants' rails: %w", err)
	}
	const lock = `SELECT tenant_id FROM messaging.tenant_rails WHERE tenant_id = ANY($1) AND channel = $2 AND rail = $3 FOR UPDATE SKIP LOCKED`
	rows, err := tx.Query(ctx, lock, tenants, s.cfg.Channel, s.cfg.Rail)
	if err != nil {
		return nil, fmt.Errorf("lock tenants' rails: %w", err)
	}
	got, err := pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
	if err != nil {
		return nil, fmt.Errorf("lock tenants' rails: %w", err)
	}
	return got, nil
}

// freeCredits gives each tenant's free credits, and how many of them product
// messages may have.
func (s *Store) freeCredits(ctx context.Context, tx pgx.Tx, tenants []uuid.UUID) (free, product []int, err error) {
	rows, err := tx.Query(ctx, creditsSQL, s.worker, tenants)
	if err != nil {
		return nil, nil, fmt.Errorf("count tenants' credits: %w", err)
	}
	var used, products int
	_, err = pgx.ForEachRow(rows, []any{&used, &products}, func() error {
		free, product = append(free, max(0, s.cfg.Credits-used)), append(product, max(0, max(1, s.cfg.Credits/2)-products))
		return nil
	})
	if err != nil {
		return nil, nil, fmt.Errorf("count tenants' credits: %w", err)
	}
	return free, product, nil
}

// waiting locks the oldest waiting jobs of a category, so many a tenant, and
// says how many it found of each.
func (s *Store) waiting(ctx context.Context, tx pgx.Tx, category string, tenants []uuid.UUID, limits []int) (times []time.Time, jobs []uuid.UUID, found map[uuid.UUID]int, err error) {
	free := make([]int64, len(limits))
	for i, l := range limits {
		free[i] = int64(l)
	}
	rows, err := tx.Query(ctx, waitingSQL, s.worker, tenants, free, category)
	if err != nil {
		return nil, nil, nil, fmt.Errorf("find waiting jobs: %w", err)
	}
	found = map[uuid.UUID]int{}
	var tenant, job uuid.UUID
	var at time.Time
	_, err = pgx.ForEachRow(rows, []any{&tenant, &at, &job}, func() error {
		times, jobs = append(times, at), append(jobs, job)
		found[tenant]++
		return nil
	})
	if err != nil {
		return nil, nil, nil, fmt.Errorf("find waiting jobs: %w", err)
	}
	return times, jobs, found, nil
}

// enqueue brings jobs whose rows the caller holds into the topic, and gives their
// records for the same transaction's outbox: neither is there without the other.
func (s *Store) enqueue(ctx context.Context, tx pgx.Tx, times []time.Time, jobs []uuid.UUID) ([]outbox.Message, error) {
	if len(jobs) == 0 {
		return nil, nil
	}
	const sql = `UPDATE core.processed_jobs j SET state = 'in_topic', turn = turn + 1, lease = NULL, lease_until = NULL, reason = NULL,
    waited = ` + waitedSoFar + `, not_before = NULL, updated_at = now()
FROM unnest($1::timestamptz[], $2::uuid[]) AS u(t, i)
WHERE j.id_time = ANY($1) AND j.id_time = u.t AND j.job_id = u.i AND j.worker = $3
RETURNING j.job_id, j.turn, j.tenant_id, coalesce(j.category, ''), j.payload, j.expires_at, now()`
	rows, err := tx.Query(ctx, sql, times, jobs, s.worker)
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
