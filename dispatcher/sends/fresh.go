package sends

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/softcrum/carril/internal/gates"
	"github.com/softcrum/carril/internal/outbox"
	"github.com/softcrum/carril/schemas"
)

// fresh is a claim on its way to a new generation.
type fresh struct {
	*claiming
	left []schemas.JobMessage // without an outcome
	open []schemas.JobMessage // whose gates are open
	step Step                 // what ends the job, and the outcomes found on the way
}

// freshClaims asks the gates and freezes a new generation of each job. What a
// job's claim ends instead of beginning is written with the others, and
// everything is published last.
func (s *Store) freshClaims(ctx context.Context, tx pgx.Tx, qs []*claiming) error {
	fs, closed, err := s.leftOf(ctx, tx, qs)
	if err != nil {
		return err
	}
	fs, stopped, err := s.askPauses(ctx, tx, fs)
	if err != nil {
		return err
	}
	var b pgx.Batch
	changes, rows := map[outbox.Lane][]outbox.Message{}, outcomeRows{}
	fs, held, err := s.askGates(ctx, tx, &b, &rows.blasts, fs)
	if err != nil {
		return err
	}
	senders, err := s.senders(ctx, tx, fs)
	if err != nil {
		return err
	}
	s.queueSends(&b, fs)
	closed = append(append(closed, stopped...), held...)
	var ready []*claiming
	for _, f := range fs {
		frozen, err := s.freezeFresh(ctx, tx, senders[f.TenantID], f)
		if err != nil {
			return err
		}
		if !frozen {
			closed = append(closed, finished{&f.Claimed, f.step})
			continue
		}
		more, err := s.outcomes(ctx, &rows, &f.Claimed, f.step.Outcomes)
		if err != nil {
			return err
		}
		changes[f.slot.Lane] = append(changes[f.slot.Lane], more...)
		ready = append(ready, f.claiming)
	}
	rows.queue(&b)
	s.queueRequests(&b, ready)
	if err := flush(ctx, tx, &b, "freeze requests"); err != nil {
		return err
	}
	for _, q := range qs {
		q.verdict = Closed
	}
	for _, q := range ready {
		q.verdict = Ready
	}
	return s.finishAll(ctx, tx, closed, changes)
}

// leftOf gives the jobs of which something is left to send; a job that never
// held a message has failed.
func (s *Store) leftOf(ctx context.Context, tx pgx.Tx, qs []*claiming) (fs []*fresh, empty []finished, err error) {
	for _, q := range qs {
		if len(q.job.payload.Messages) == 0 {
			empty = append(empty, finished{&q.Claimed, Step{State: StateFailed, Reason: "empty_job"}})
			continue
		}
		left, err := s.pending(ctx, tx, q.job)
		if err != nil {
			return nil, nil, err
		}
		q.before = len(q.job.payload.Messages) - len(left)
		fs = append(fs, &fresh{claiming: q, left: left})
	}
	return fs, empty, nil
}

// askGates gives the jobs that go on, each with the messages whose gates are
// open. A shut one is recorded as a decision where there is no send yet, else
// as the send's failure. A sender that is paused holds the whole job: all of it
// is one tenant's.
func (s *Store) askGates(ctx context.Context, tx pgx.Tx, b *pgx.Batch, rows *blastRows, fs []*fresh) (on []*fresh, held []finished, err error) {
	var subjects []gates.Subject
	for _, f := range fs {
		for _, m := range f.left {
			subjects = append(subjects, gates.Subject{TenantID: f.TenantID, ContactID: m.ContactID, Channel: s.cfg.Channel, Category: m.Category,
				Address: m.Address, ExpiresAt: m.ExpiresAt})
		}
	}
	verdicts, err := gates.Ask(ctx, tx, subjects)
	if err != nil {
		return nil, nil, err
	}
	for _, f := range fs {
		var mine []gates.Verdict
		mine, verdicts = verdicts[:len(f.left)], verdicts[len(f.left):]
		if why, waits := waitsFor(mine); waits {
			held = append(held, finished{&f.Claimed, Step{State: StateHeld, Reason: string(why)}})
			continue
		}
		s.judge(b, rows, f, mine)
		on = append(on, f)
	}
	return on, held, nil
}

func waitsFor(vs []gates.Verdict) (gates.Reason, bool) {
	for _, v := range vs {
		if !v.Open && v.Reason.Waits() {
			return v.Reason, true
		}
	}
	return "", false
}

func (s *Store) judge(b *pgx.Batch, rows *blastRows, f *fresh, verdicts []gates.Verdict) {
	for i, v := range verdicts {
		m := f.left[i]
		if v.Open {
			m.Address, _ = gates.Normalize(s.cfg.Channel, m.Address)
			f.open = append(f.open, m)
			continue
		}
		f.step.Reason = string(v.Reason)
		if f.job.generation > 0 {
			f.step.Outcomes = append(f.step.Outcomes, Outcome{SendID: m.SendID, Failed: string(v.Reason)})
			continue
		}
		s.queueBlocked(b, rows, &f.Claimed, m, v)
	}
}

// queueBlocked turns the decision for a message around: a gate shut between the
// channels stage and the claim leaves a reason and no send (FS-MSG-0003 §1).
func (s *Store) queueBlocked(b *pgx.Batch, rows *blastRows, c *Claimed, m schemas.JobMessage, v gates.Verdict) {
	const sql = `INSERT INTO messaging.decisions AS d (received_at, tenant_id, request_id, recipient_index, channel, contact_id,
    origin_event_id, rule_id, correlation_id, outcome, gate, reason)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, 'blocked', $10, $11)
ON CONFLICT (received_at, request_id, recipient_index, channel) DO UPDATE
SET outcome = 'blocked', gate = EXCLUDED.gate, reason = EXCLUDED.reason, send_id = NULL, decided_at = now()`
	b.Queue(sql, m.RequestedAt, c.TenantID, m.RequestID, m.RecipientIndex, s.cfg.Channel, m.ContactID, m.OriginEventID, m.RuleID,
		m.CorrelationID, string(v.Gate), string(v.Reason))
	outcome := StateBlocked
	if v.Reason == gates.Expired {
		outcome = StateExpired
	}
	rows.add(c.JobID, m, outcome, string(v.Reason))
}

// freezeFresh renders a job's messages and makes its bytes. It is false where
// nothing is left to send; then the step says what the job has become.
func (s *Store) freezeFresh(ctx context.Context, tx pgx.Tx, from sender, f *fresh) (bool, error) {
	rendered, kept, failed, err := s.renderAll(ctx, tx, from, f.TenantID, f.open)
	if err != nil {
		return false, err
	}
	f.step.Outcomes = append(f.step.Outcomes, failed...)
	if limit := s.limit(f.claiming); len(kept) > limit {
		f.more = len(kept) - limit
		kept, rendered = kept[:limit], rendered[:limit]
	}
	fr, kept, bad, err := s.freeze(f.job, f.via, kept, rendered)
	if err != nil {
		return false, err
	}
	f.step.Outcomes = append(f.step.Outcomes, bad...)
	if len(kept) == 0 {
		f.step.State = StateInTopic // what a limit kept back goes next
		if f.more == 0 {
			f.step.State, f.step.Reason = s.finalState(len(f.left), len(f.open), f.step)
		}
		return false, nil
	}
	f.frozen, f.Request, f.Messages, f.Provider = fr, fr.request, kept, s.deps.Providers[fr.provider]
	return true, nil
}

// limit is how many messages one request of a claim may hold.
func (s *Store) limit(q *claiming) int {
	most := s.deps.Providers[q.via].Capabilities().MaxBatch
	if q.limit > 0 && q.limit < most {
		return q.limit
	}
	return max(most, 1)
}

const claimSQL = `UPDATE core.processed_jobs j SET state = 'claimed', lease = u.lease, lease_until = clock_timestamp() + $5::interval,
    waited = ` + waitedSoFar + `, not_before = NULL, reason = NULL, generation = u.generation, updated_at = now()
FROM unnest($1::timestamptz[], $2::uuid[], $3::uuid[], $4::int[]) AS u(at, job, lease, generation)
WHERE j.id_time = ANY($1) AND j.worker = $6 AND j.id_time = u.at AND j.job_id = u.job`

// queueRequests keeps the generations' bytes before they leave, and makes the
// jobs ours.
func (s *Store) queueRequests(b *pgx.Batch, qs []*claiming) {
	n := len(qs)
	if n == 0 {
		return
	}
	var (
		created, times                 = make([]time.Time, n), make([]time.Time, n)
		jobs, leases                   = make([]uuid.UUID, n), make([]uuid.UUID, n)
		generations                    = make([]int32, n)
		providers, endpoints, keys, of = make([]string, n), make([]string, n), make([]string, n), make([]string, n)
		bodies                         = make([][]byte, n)
	)
	for i, q := range qs {
		f := q.frozen
		created[i], times[i], jobs[i], leases[i], generations[i] = f.createdAt, q.job.at, q.JobID, q.lease, int32(f.generation)
		providers[i], endpoints[i], keys[i], of[i] = f.provider, f.request.Endpoint, f.request.IdempotencyKey, literal(f.sendIDs)
		bodies[i] = s.zenc.EncodeAll(f.request.Body, nil)
	}
	b.Queue(claimSQL, times, jobs, leases, generations, s.cfg.Lease, s.worker)
	const store = `INSERT INTO messaging.send_requests (created_at, worker, job_id, id_time, generation, provider, endpoint, idempotency_key, body, send_ids, lease, attempts)
SELECT c, $1, j, t, g, p, e, k, b, o::uuid[], l, 1
FROM unnest($2::timestamptz[], $3::uuid[], $4::timestamptz[], $5::int[], $6::text[], $7::text[], $8::text[], $9::bytea[], $10::text[], $11::uuid[])
    AS v(c, j, t, g, p, e, k, b, o, l)`
	b.Queue(store, s.worker, created, jobs, times, generations, providers, endpoints, keys, bodies, of, leases)
}

// literal writes ids as PostgreSQL reads an array: an array of arrays of
// different lengths has no other form.
func literal(ids []uuid.UUID) string {
	out := make([]byte, 0, 2+37*len(ids))
	out = append(out, '{')
	for i, id := range ids {
		if i > 0 {
			out = append(out, ',')
		}
		out = append(out, id.String()...)
	}
	return string(append(out, '}'))
}

// sender is who a tenant's messages of the channel come from.
type sender struct{ from, replyTo string }

// senders reads the senders of the jobs' tenants.
func (s *Store) senders(ctx context.Context, tx pgx.Tx, fs []*fresh) (map[uuid.UUID]sender, error) {
	var tenants []uuid.UUID
	out := map[uuid.UUID]sender{}
	for _, f := range fs {
		if _, ok := out[f.TenantID]; !ok && len(f.open) > 0 {
			out[f.TenantID] = sender{}
			tenants = append(tenants, f.TenantID)
		}
	}
	if len(tenants) == 0 {
		return out, nil
	}
	const sql = `SELECT tenant_id, sender, coalesce(reply_to, '') FROM messaging.senders WHERE tenant_id = ANY($1) AND channel = $2`
	rows, err := tx.Query(ctx, sql, tenants, s.cfg.Channel)
	if err != nil {
		return nil, fmt.Errorf("read senders: %w", err)
	}
	var id uuid.UUID
	var one sender
	if _, err := pgx.ForEachRow(rows, []any{&id, &one.from, &one.replyTo}, func() error {
		out[id] = one
		return nil
	}); err != nil {
		return nil, fmt.Errorf("read senders: %w", err)
	}
	return out, nil
}
