package sends

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/softcrum/carril/internal/gates"
	"github.com/softcrum/carril/internal/outbox"
	"github.com/softcrum/carril/schemas"
)

// Swept is what one sweep of a rail did, in jobs.
type Swept struct {
	Expired   int // their message was worth nothing any more
	Recovered int // their worker died or hangs
	Unparked  int // their time has come
	Unheld    int // what held them is over
	Filled    int // waited for a credit
}

// Any says that the sweep changed something.
func (s Swept) Any() bool { return s != Swept{} }

// maxSweep bounds the rows of one transaction of a sweep.
const maxSweep = 500

// Sweep repairs and moves what no worker moves: it expires messages, frees jobs
// whose worker died, unparks what is due, lets go what is held no more, and
// gives free credits to what waits. Each is a transaction of its own. One
// process sweeps a rail at a time; two that did would only wait for each other.
func (s *Store) Sweep(ctx context.Context, lane outbox.Lane) (res Swept, err error) {
	tenants, err := s.openTenants(ctx)
	if err != nil || len(tenants) == 0 {
		return res, err
	}
	for _, part := range []struct {
		n  *int
		do func(context.Context, pgx.Tx, []uuid.UUID) (int, []outbox.Message, error)
	}{
		{&res.Expired, s.expire}, {&res.Recovered, s.recover}, {&res.Unparked, s.unpark}, {&res.Unheld, s.unhold}, {&res.Filled, s.fillAll},
	} {
		err := pgx.BeginFunc(ctx, s.deps.Pool, func(tx pgx.Tx) error {
			n, msgs, err := part.do(ctx, tx, tenants)
			if err != nil {
				return err
			}
			*part.n = n
			return s.publish(ctx, tx, lane, msgs)
		})
		if err != nil {
			return res, fmt.Errorf("sweep %s: %w", s.worker, err)
		}
	}
	return res, nil
}

// openTenants lists the tenants with open jobs, one index probe each: a million
// waiting jobs of one tenant must not be walked through four times a second.
func (s *Store) openTenants(ctx context.Context) ([]uuid.UUID, error) {
	const sql = `WITH RECURSIVE t AS (
    (SELECT tenant_id FROM core.processed_jobs WHERE id_time > now() - interval '40 days' AND worker = $1
        AND state IN ('waiting', 'in_topic', 'claimed', 'parked', 'held') ORDER BY tenant_id LIMIT 1)
    UNION ALL
    SELECT (SELECT j.tenant_id FROM core.processed_jobs j WHERE j.id_time > now() - interval '40 days' AND j.worker = $1 AND j.tenant_id > t.tenant_id
        AND j.state IN ('waiting', 'in_topic', 'claimed', 'parked', 'held') ORDER BY j.tenant_id LIMIT 1)
    FROM t WHERE t.tenant_id IS NOT NULL
)
SELECT tenant_id FROM t WHERE tenant_id IS NOT NULL`
	rows, err := s.deps.Pool.Query(ctx, sql, s.worker)
	if err != nil {
		return nil, fmt.Errorf("list tenants with open jobs: %w", err)
	}
	tenants, err := pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
	if err != nil {
		return nil, fmt.Errorf("list tenants with open jobs: %w", err)
	}
	return tenants, nil
}

// expire ends jobs whose message came too late while nobody worked on them.
// What is in the topic finds that out at its claim.
func (s *Store) expire(ctx context.Context, tx pgx.Tx, _ []uuid.UUID) (int, []outbox.Message, error) {
	const sql = `SELECT id_time, job_id, turn, tenant_id, generation, payload, now() FROM core.processed_jobs
WHERE id_time > now() - interval '40 days' AND worker = $1 AND state IN ('waiting', 'parked', 'held') AND expires_at <= now()
ORDER BY expires_at LIMIT $2 FOR UPDATE SKIP LOCKED`
	rows, err := tx.Query(ctx, sql, s.worker, maxSweep)
	if err != nil {
		return 0, nil, fmt.Errorf("find expired jobs: %w", err)
	}
	jobs, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (j job, err error) {
		var payload []byte
		if err := row.Scan(&j.at, &j.JobID, &j.Turn, &j.TenantID, &j.generation, &payload, &j.now); err != nil {
			return j, err
		}
		return j, json.Unmarshal(payload, &j.payload)
	})
	if err != nil {
		return 0, nil, fmt.Errorf("find expired jobs: %w", err)
	}
	var msgs []outbox.Message
	for _, j := range jobs {
		c := &Claimed{Ref: j.Ref, job: j}
		changes, err := s.shut(ctx, tx, c, gates.Verdict{Gate: gates.GateExpiry, Reason: gates.Expired})
		if err != nil {
			return 0, nil, err
		}
		msgs = append(msgs, changes...)
		const end = `UPDATE core.processed_jobs SET state = 'expired', reason = 'expired', lease = NULL, not_before = NULL, updated_at = now()
WHERE id_time = $1 AND worker = $2 AND job_id = $3`
		if _, err := tx.Exec(ctx, end, j.at, s.worker, j.JobID); err != nil {
			return 0, nil, fmt.Errorf("expire a job: %w", err)
		}
	}
	return len(jobs), msgs, nil
}

// shut records that a job's messages will not be sent: as decisions where there
// never was a send, as failures where there was.
func (s *Store) shut(ctx context.Context, tx pgx.Tx, c *Claimed, v gates.Verdict) ([]outbox.Message, error) {
	left, err := s.pending(ctx, tx, c.job)
	if err != nil {
		return nil, err
	}
	var b pgx.Batch
	var outcomes []Outcome
	var rows outcomeRows
	for _, m := range left {
		if c.job.generation > 0 {
			outcomes = append(outcomes, Outcome{SendID: m.SendID, Failed: string(v.Reason)})
		} else {
			s.queueBlocked(&b, &rows.blasts, c, m, v)
		}
	}
	changes, err := s.outcomes(ctx, &rows, c, outcomes)
	if err != nil {
		return nil, err
	}
	rows.queue(&b)
	return changes, flush(ctx, tx, &b, "record shut gates")
}

// recover brings jobs back whose holder died, or outlived its lease. Their
// bytes may have left: the request counts as uncertain from here on.
func (s *Store) recover(ctx context.Context, tx pgx.Tx, tenants []uuid.UUID) (int, []outbox.Message, error) {
	times, jobs, err := s.keys(ctx, tx, recoverSQL, tenants)
	if err != nil || len(jobs) == 0 {
		return 0, nil, err
	}
	const uncertain = `UPDATE messaging.send_requests q SET uncertain = true FROM core.processed_jobs j
WHERE q.created_at > now() - interval '4 days' AND q.job_id = ANY($2) AND q.settled IS NULL
    AND j.id_time = ANY($3) AND j.worker = $1 AND j.job_id = q.job_id AND j.generation = q.generation`
	if _, err := tx.Exec(ctx, uncertain, s.worker, jobs, times); err != nil {
		return 0, nil, fmt.Errorf("mark requests of dead workers: %w", err)
	}
	const remember = `UPDATE core.processed_jobs SET payload = jsonb_set(payload, '{uncertain}', to_jsonb(generation))
WHERE id_time = ANY($3) AND worker = $1 AND job_id = ANY($2) AND generation > 0`
	if _, err := tx.Exec(ctx, remember, s.worker, jobs, times); err != nil {
		return 0, nil, fmt.Errorf("mark jobs of dead workers: %w", err)
	}
	msgs, err := s.enqueue(ctx, tx, times, jobs)
	return len(jobs), msgs, err
}

// A sweep asks for open jobs tenant by tenant, each in the index of open jobs, which
// alone knows how few they are: asked for all tenants at once, or in the order of
// their time, a planner without statistics walks through every job of forty days.
const (
	each = `SELECT d.id_time, d.job_id FROM unnest($2::uuid[]) AS u(t) CROSS JOIN LATERAL (
    SELECT j.id_time, j.job_id `
	open   = `FROM core.processed_jobs j WHERE j.id_time > now() - interval '40 days' AND j.worker = $1 AND j.tenant_id = u.t AND `
	locked = ` LIMIT $3 FOR UPDATE OF j SKIP LOCKED) d LIMIT $3`

	recoverSQL = each + open + `j.state = 'claimed' AND (j.lease_until < clock_timestamp() OR NOT ` + holderAlive + `)` + locked

	dueSQL    = each + open + `j.state = 'parked' AND j.not_before <= clock_timestamp() AND ($4 OR j.reason = '` + ReasonTenantBucket + `') ORDER BY j.not_before` + locked
	unparkSQL = `WITH due AS (` + each + open + `j.state = 'parked' AND j.not_before <= clock_timestamp() AND j.reason IS DISTINCT FROM '` + ReasonTenantBucket + `'
    ORDER BY j.not_before` + locked + `)
UPDATE core.processed_jobs j SET state = 'waiting', reason = NULL, waited = ` + waitedSoFar + `, not_before = j.id_time, updated_at = now()
FROM due WHERE j.id_time = ANY(ARRAY(SELECT id_time FROM due)) AND j.worker = $1 AND j.id_time = due.id_time AND j.job_id = due.job_id`

	unholdSQL = each + open + `j.state = 'held' AND (
        j.reason IN ('sender_paused', 'sender_unverified') AND EXISTS (SELECT FROM messaging.senders d
            WHERE d.tenant_id = j.tenant_id AND d.channel = $4 AND d.paused_at IS NULL AND d.verified)
        OR j.reason = '` + reasonReplayed + `'
        OR j.reason = '` + reasonBlastPaused + `' AND EXISTS (SELECT FROM messaging.blasts b
            WHERE b.blast_id = (j.payload->'messages'->0->>'blast_id')::uuid AND b.state NOT IN ('paused'))
        OR j.reason = '` + reasonRailPaused + `' AND NOT EXISTS (SELECT FROM messaging.tenant_rails r
            WHERE r.tenant_id = j.tenant_id AND r.channel = $4 AND r.rail = $5 AND r.paused_at IS NOT NULL))` + locked

	reconcileSQL = each + open + `j.state = 'in_topic' AND j.updated_at < $4` + locked
)

// keys asks for a tenant's open jobs after the other's, in another order each time:
// none comes last for ever.
func (s *Store) keys(ctx context.Context, tx pgx.Tx, sql string, tenants []uuid.UUID, more ...any) (times []time.Time, jobs []uuid.UUID, err error) {
	rows, err := tx.Query(ctx, sql, append([]any{s.worker, shuffled(tenants), maxSweep}, more...)...)
	if err != nil {
		return nil, nil, fmt.Errorf("find jobs: %w", err)
	}
	var at time.Time
	var id uuid.UUID
	_, err = pgx.ForEachRow(rows, []any{&at, &id}, func() error {
		times, jobs = append(times, at), append(jobs, id)
		return nil
	})
	if err != nil {
		return nil, nil, fmt.Errorf("find jobs: %w", err)
	}
	return times, jobs, nil
}

func shuffled(tenants []uuid.UUID) []uuid.UUID {
	out := slices.Clone(tenants)
	rand.Shuffle(len(out), func(i, j int) { out[i], out[j] = out[j], out[i] })
	return out
}

// unpark moves what is due: on the transactional rail it joins what waits, like
// any other, except what its tenant's bucket had parked, which kept its credit;
// on the marketing rail, which the feeder meters, it goes into the topic.
func (s *Store) unpark(ctx context.Context, tx pgx.Tx, tenants []uuid.UUID) (int, []outbox.Message, error) {
	n := 0
	direct := s.cfg.Rail == schemas.RailMarketing
	if !direct {
		tag, err := tx.Exec(ctx, unparkSQL, s.worker, shuffled(tenants), maxSweep)
		if err != nil {
			return 0, nil, fmt.Errorf("unpark jobs: %w", err)
		}
		n = int(tag.RowsAffected())
	}
	times, jobs, err := s.keys(ctx, tx, dueSQL, tenants, direct)
	if err != nil {
		return 0, nil, err
	}
	msgs, err := s.enqueue(ctx, tx, times, jobs)
	return n + len(jobs), msgs, err
}

// unhold lets go what a paused sender or blast held, once it is resumed, and what
// a person has replayed; what belongs to a cancelled blast ends.
func (s *Store) unhold(ctx context.Context, tx pgx.Tx, tenants []uuid.UUID) (int, []outbox.Message, error) {
	times, jobs, err := s.keys(ctx, tx, unholdSQL, tenants, s.cfg.Channel, s.cfg.Rail)
	if err != nil || len(jobs) == 0 {
		return 0, nil, err
	}
	if s.cfg.Rail == schemas.RailMarketing {
		msgs, err := s.enqueue(ctx, tx, times, jobs)
		return len(jobs), msgs, err
	}
	const wait = `UPDATE core.processed_jobs j SET state = 'waiting', reason = NULL, waited = ` + waitedSoFar + `, not_before = j.id_time, updated_at = now()
FROM unnest($2::timestamptz[], $3::uuid[]) AS u(t, i)
WHERE j.id_time = ANY($2) AND j.worker = $1 AND j.id_time = u.t AND j.job_id = u.i`
	if _, err := tx.Exec(ctx, wait, s.worker, times, jobs); err != nil {
		return 0, nil, fmt.Errorf("let held jobs go: %w", err)
	}
	return len(jobs), nil, nil
}

// fillAll gives every tenant's free credits to what waits.
func (s *Store) fillAll(ctx context.Context, tx pgx.Tx, tenants []uuid.UUID) (n int, msgs []outbox.Message, err error) {
	if s.cfg.Rail == schemas.RailMarketing {
		return 0, nil, nil
	}
	for chunk := range slices.Chunk(tenants, max(1, maxSweep/s.cfg.Credits)) { // sorted by openTenants: the rails' rows are locked in one order
		more, err := s.fill(ctx, tx, chunk)
		if err != nil {
			return 0, nil, err
		}
		if msgs = append(msgs, more...); len(msgs) >= maxSweep {
			break
		}
	}
	return len(msgs), msgs, nil
}

// Reconcile enqueues again what has stood in the topic since before a time by
// which every record was finished: its record was lost with the log, or with a
// database that was restored. A record that turns up after all is of another
// turn and is skipped.
func (s *Store) Reconcile(ctx context.Context, lane outbox.Lane, before time.Time) (n int, err error) {
	tenants, err := s.openTenants(ctx)
	if err != nil || len(tenants) == 0 {
		return 0, err
	}
	err = pgx.BeginFunc(ctx, s.deps.Pool, func(tx pgx.Tx) error {
		times, jobs, err := s.keys(ctx, tx, reconcileSQL, tenants, before)
		if err != nil {
			return err
		}
		msgs, err := s.enqueue(ctx, tx, times, jobs)
		if err != nil {
			return err
		}
		n = len(jobs)
		return s.publish(ctx, tx, lane, msgs)
	})
	if err != nil {
		return 0, errors.Join(fmt.Errorf("reconcile %s", s.worker), err)
	}
	return n, nil
}
