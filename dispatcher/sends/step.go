package sends

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/softcrum/carril/internal/ids"
	"github.com/softcrum/carril/internal/outbox"
	"github.com/softcrum/carril/schemas"
)

// Ids of our own rows in the history, before their generation.
const (
	eventQueued = "carril:queued:"
	eventSent   = "carril:sent:"
	eventFailed = "carril:failed:"  // for good: the message is not tried again
	eventGaveUp = "carril:gave_up:" // the job is a dead letter, and may be replayed
)

// Outcome is what became of one message. Exactly one field beside SendID is set.
type Outcome struct {
	SendID uuid.UUID
	Taken  string // the provider's id of it
	Failed string // why it failed for good
	GaveUp string // why it was given up
}

// Step is what becomes of a claimed job.
type Step struct {
	State     string        // one of the states
	Reason    string        // of a closed set, without personal data
	Counted   bool          // an attempt that uses up the retries
	Delay     time.Duration // StateParked: until it may go again
	Settled   string        // of the request: "taken", "refused" (known not taken), or "" where nobody knows
	Uncertain bool          // the request may have been taken
	Outcomes  []Outcome
	DeadClass string // StateDead and StateNeedsReview: the dead letter's class
	PauseSend string // pause the tenant's sender, for this reason
}

// Apply writes a step of a job that the caller claimed, in one transaction with
// all that follows from it: history, provider ids, the final state, credits
// given back, status changes. It gives ErrLeaseLost where the job has another
// lease by now; its new holder sends the same bytes under the same key. Steps
// that come while a transaction is under way share the next one: they would
// wait for each other's locks anyway, on the tenant's rail and on the lane.
func (s *Store) Apply(ctx context.Context, c Claimed, step Step) error {
	if err := s.steps.do(ctx, finished{&c, step}); err != nil {
		return fmt.Errorf("finish job %s: %w", c.JobID, err)
	}
	return nil
}

// finished is a claimed job and what becomes of it.
type finished struct {
	c    *Claimed
	step Step
}

// applyAll writes steps in one transaction, and gives each its error. Where one
// of them is refused, each is tried by itself.
func (s *Store) applyAll(ctx context.Context, fs []finished) []error {
	errs := make([]error, len(fs))
	err := pgx.BeginFunc(ctx, s.deps.Pool, func(tx pgx.Tx) error {
		held, err := s.stillOurs(ctx, tx, fs)
		if err != nil {
			return err
		}
		mine := fs[:0:0]
		for i, f := range fs {
			if !held[f.c.JobID] {
				errs[i] = ErrLeaseLost
				continue
			}
			mine = append(mine, f)
		}
		return s.transitionAll(ctx, tx, mine)
	})
	switch {
	case err == nil:
		return errs
	case len(fs) == 1:
		return []error{err}
	}
	for i := range fs {
		errs[i] = s.applyAll(ctx, fs[i:i+1])[0]
	}
	return errs
}

// stillOurs locks the jobs, in one order, and says which have our lease.
func (s *Store) stillOurs(ctx context.Context, tx pgx.Tx, fs []finished) (map[uuid.UUID]bool, error) {
	n := len(fs)
	times, jobs, turns, leases := make([]time.Time, n), make([]uuid.UUID, n), make([]int32, n), make([]uuid.UUID, n)
	first, last := fs[0].c.job.at, fs[0].c.job.at
	for i, f := range fs {
		times[i], jobs[i], turns[i], leases[i] = f.c.job.at, f.c.JobID, f.c.Turn, f.c.Lease
		if f.c.job.at.Before(first) {
			first = f.c.job.at
		}
		if f.c.job.at.After(last) {
			last = f.c.job.at
		}
	}
	const sql = `SELECT j.job_id FROM core.processed_jobs j
JOIN unnest($4::timestamptz[], $5::uuid[], $6::int[], $7::uuid[]) AS u(at, job, turn, lease) ON j.id_time = u.at AND j.job_id = u.job
WHERE j.id_time BETWEEN $1 AND $2 AND j.worker = $3 AND j.turn = u.turn AND j.lease = u.lease AND j.state = 'claimed'
ORDER BY j.id_time, j.job_id FOR UPDATE OF j`
	rows, err := tx.Query(ctx, sql, first, last, s.worker, times, jobs, turns, leases)
	if err != nil {
		return nil, fmt.Errorf("lock claimed jobs: %w", err)
	}
	ours, err := pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
	if err != nil {
		return nil, fmt.Errorf("lock claimed jobs: %w", err)
	}
	held := make(map[uuid.UUID]bool, len(ours))
	for _, id := range ours {
		held[id] = true
	}
	return held, nil
}

// transition writes a step inside tx, which holds the job's row.
func (s *Store) transition(ctx context.Context, tx pgx.Tx, c *Claimed, step Step) error {
	return s.transitionAll(ctx, tx, []finished{{c, step}})
}

// transitionAll writes steps inside tx, which holds the jobs' rows, then gives
// each tenant its credits back, and publishes last. All of them are of one
// process and so of one lane; where a slot changed in between, of two.
func (s *Store) transitionAll(ctx context.Context, tx pgx.Tx, fs []finished) error {
	var b pgx.Batch
	byLane := map[outbox.Lane][]outbox.Message{}
	tenants := map[uuid.UUID]outbox.Lane{}
	for _, f := range fs {
		s.queueStep(&b, f.c, f.step)
		changes, err := s.queueOutcomes(ctx, &b, f.c, f.step.Outcomes)
		if err != nil {
			return err
		}
		byLane[f.c.slot.Lane] = append(byLane[f.c.slot.Lane], changes...)
		tenants[f.c.TenantID] = f.c.slot.Lane
	}
	if err := flush(ctx, tx, &b, "write the steps"); err != nil {
		return err
	}
	for _, tenant := range sorted(tenants) {
		jobs, err := s.refill(ctx, tx, tenant)
		if err != nil {
			return err
		}
		byLane[tenants[tenant]] = append(byLane[tenants[tenant]], jobs...)
	}
	lanes := slices.SortedFunc(maps.Keys(byLane), func(a, b outbox.Lane) int { return cmp.Compare(a.ID, b.ID) })
	for _, lane := range lanes {
		if err := s.publish(ctx, tx, lane, byLane[lane]); err != nil {
			return err
		}
	}
	return nil
}

// sorted gives tenants in the order in which their rails are locked.
func sorted(tenants map[uuid.UUID]outbox.Lane) []uuid.UUID {
	ids := slices.Collect(maps.Keys(tenants))
	slices.SortFunc(ids, func(a, b uuid.UUID) int { return bytes.Compare(a[:], b[:]) })
	return ids
}

// queueStep writes the job's new state and what hangs on it.
func (s *Store) queueStep(b *pgx.Batch, c *Claimed, step Step) {
	const sql = `UPDATE core.processed_jobs SET state = $4, reason = nullif($5, ''), lease = NULL, lease_until = NULL,
    attempts = attempts + $6::int, first_attempt = CASE WHEN $6::int > 0 THEN coalesce(first_attempt, now()) ELSE first_attempt END,
    not_before = CASE WHEN $4 = 'parked' THEN clock_timestamp() + $7::interval END,
    waited = CASE WHEN state = 'claimed' THEN waited ELSE ` + waitedSoFar + ` END, updated_at = now(),
    payload = CASE WHEN $8 THEN jsonb_set(payload, '{uncertain}', to_jsonb(generation)) ELSE payload END
WHERE id_time = $1 AND worker = $2 AND job_id = $3`
	counted := 0
	if step.Counted {
		counted = 1
	}
	b.Queue(sql, c.job.at, s.worker, c.JobID, step.State, step.Reason, counted, step.Delay, step.Uncertain && c.frozen.generation > 0)
	if c.frozen.generation > 0 {
		s.queueSettled(b, c, step)
	}
	if step.PauseSend != "" {
		const pause = `UPDATE messaging.senders SET paused_at = now(), pause_reason = $3 WHERE tenant_id = $1 AND channel = $2 AND paused_at IS NULL`
		b.Queue(pause, c.TenantID, s.cfg.Channel, step.PauseSend)
	}
	if step.DeadClass != "" {
		s.queueDeadLetters(b, c, step)
	}
	if step.State == StateCancelled || step.State == StateNeedsReview {
		s.queueBlastRest(b, c, step.State)
	}
}

func (s *Store) queueSettled(b *pgx.Batch, c *Claimed, step Step) {
	const sql = `UPDATE messaging.send_requests SET settled = nullif($4, ''), uncertain = uncertain OR $5
WHERE created_at = $1 AND job_id = $2 AND generation = $3`
	b.Queue(sql, c.frozen.createdAt, c.JobID, c.frozen.generation, step.Settled, step.Uncertain)
}

// queueDeadLetters keeps one dead letter a message, with its send id
// (FS-MSG-0005 §7).
func (s *Store) queueDeadLetters(b *pgx.Batch, c *Claimed, step Step) {
	const sql = `INSERT INTO core.dead_letters (dead_letter_id, stage, class, reason, tenant_id, event_id, send_id)
SELECT gen_random_uuid(), $1, $2, $3, $4, e, i FROM unnest($5::uuid[], $6::uuid[]) AS u(e, i)`
	ms := c.Messages
	if len(ms) == 0 {
		ms = c.job.payload.Messages
	}
	origins, sends := make([]uuid.UUID, len(ms)), make([]uuid.UUID, len(ms))
	for i, m := range ms {
		origins[i], sends[i] = m.OriginEventID, m.SendID
	}
	b.Queue(sql, s.worker, step.DeadClass, step.Reason, c.TenantID, origins, sends)
}

// review ends a job whose outcome nobody can find out without a person: its
// bytes may have been taken and may not be sent again.
func (s *Store) review(ctx context.Context, tx pgx.Tx, c *Claimed, old *frozen) error {
	if old != nil {
		c.frozen, c.Messages = *old, pick(c.job.payload.Messages, old.sendIDs)
	}
	return s.transition(ctx, tx, c, Step{State: StateNeedsReview, Reason: "outcome_unknown", DeadClass: "outcome_unknown", Uncertain: true})
}

// queueOutcomes writes the history of the outcomes and the provider's ids, and
// gives the status changes that follow.
func (s *Store) queueOutcomes(ctx context.Context, b *pgx.Batch, c *Claimed, outcomes []Outcome) (changes []outbox.Message, err error) {
	if len(outcomes) == 0 {
		return nil, nil
	}
	by := make(map[uuid.UUID]schemas.JobMessage, len(c.job.payload.Messages))
	for _, m := range c.job.payload.Messages {
		by[m.SendID] = m
	}
	generation := max(c.frozen.generation, c.job.generation, 1)
	name := s.cfg.Provider
	if c.frozen.provider != "" {
		name = c.frozen.provider
	}
	for _, o := range outcomes {
		m, ok := by[o.SendID]
		if !ok {
			return nil, errors.New("an outcome of a message that is not the job's")
		}
		status, event, why := "sent", eventSent, ""
		switch {
		case o.Failed != "":
			status, event, why = "failed", eventFailed, o.Failed
		case o.GaveUp != "":
			status, event, why = "failed", eventGaveUp, o.GaveUp
		}
		if o.Taken != "" {
			s.queueProviderMessage(b, c, m, name, generation, o.Taken)
		}
		queueBlastOutcome(b, m, o.blastOutcome())
		event = fmt.Sprintf("%s%d", event, generation)
		const sql = `INSERT INTO messaging.send_status_history (requested_at, retention_months, tenant_id, send_id, status, provider, provider_event_id, generation, occurred_at, reason)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, now(), nullif($9, '')) ON CONFLICT DO NOTHING`
		b.Queue(sql, m.RequestedAt, m.RetentionMonths, c.TenantID, m.SendID, status, name, event, generation, why)
		msg, err := statusChange(ctx, s.deps.Codec, change{
			id: ids.StatusChange(m.SendID, status, name, event), send: m.SendID, tenant: c.TenantID, cell: c.job.payload.CellID, contact: m.ContactID,
			channel: s.cfg.Channel, category: m.Category, status: status, occurred: c.job.now, recorded: c.job.now,
			correlation: m.CorrelationID, origin: m.OriginEventID, reason: why,
		})
		if err != nil {
			return nil, err
		}
		changes = append(changes, msg)
	}
	return changes, nil
}

// queueProviderMessage keeps the provider's id, and wakes the events that came
// before it (F34).
func (s *Store) queueProviderMessage(b *pgx.Batch, c *Claimed, m schemas.JobMessage, name string, generation int, id string) {
	const insert = `INSERT INTO messaging.provider_messages (sent_at, provider, provider_message_id, send_id, tenant_id, retention_months, generation)
VALUES (now(), $1, $2, $3, $4, $5, $6) ON CONFLICT DO NOTHING`
	b.Queue(insert, name, id, m.SendID, c.TenantID, m.RetentionMonths, generation)
	b.Queue(`UPDATE messaging.unmatched_events SET next_try = now() WHERE provider = $1 AND provider_message_id = $2`, name, id)
}

// publish appends messages to the lane, once and last in a transaction: the
// lane's row stays locked until its end, and who holds it must want no other lock.
func (s *Store) publish(ctx context.Context, tx pgx.Tx, lane outbox.Lane, msgs []outbox.Message) error {
	_, err := lane.Append(ctx, tx, msgs)
	return err
}
