package sends

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/softcrum/carril/dispatcher/provider"
	"github.com/softcrum/carril/internal/gates"
	"github.com/softcrum/carril/schemas"
)

// Verdict is what a claim found.
type Verdict string

// The verdicts of a claim.
const (
	Ready  Verdict = "ready"  // the bytes are frozen under our lease; send them
	Gone   Verdict = "gone"   // finished, of another turn, or without a row: nothing to do
	Busy   Verdict = "busy"   // claimed by a process that lives; its row is safe with it
	Closed Verdict = "closed" // may not go now or ever; that is written
)

// Claimed is a job under our lease with the request that is to leave.
type Claimed struct {
	Ref
	Lease    uuid.UUID
	Provider provider.Provider
	Request  provider.Request
	Messages []schemas.JobMessage // of the request, in its order
	Resend   bool                 // the bytes may have left before: same key, same provider (FS-MSG-0005 §4)

	slot   Slot
	frozen frozen
	job    job
	more   int // messages that a limit kept back
	before int // messages with an outcome of earlier generations
}

// Generation numbers the request's bytes and key.
func (c Claimed) Generation() int { return c.frozen.generation }

// Attempts is how many counted attempts the job has behind it.
func (c Claimed) Attempts() int { return c.job.attempts }

// Spent is how much of its retry window a job has used: the time since its
// first counted attempt without what it stood still for.
func (c Claimed) Spent() time.Duration {
	if c.job.firstAttempt == nil {
		return 0
	}
	return c.job.now.Sub(*c.job.firstAttempt) - c.job.waited
}

// Claim takes a job and freezes what is to be sent, in one transaction: the
// gates asked a last time, the send rows, `queued`, the bytes and the lease.
// limit bounds the messages of one request; 0 is all. A job whose bytes may
// have left under an earlier lease gives those bytes again.
//
// An error may hide a commit that landed: the caller claims again with the same
// lease, and gets what that commit froze.
func (s *Store) Claim(ctx context.Context, slot Slot, ref Ref, lease uuid.UUID, limit int) (c Claimed, v Verdict, err error) {
	err = pgx.BeginFunc(ctx, s.deps.Pool, func(tx pgx.Tx) error {
		j, ok, err := s.lock(ctx, tx, ref)
		if err != nil {
			return err
		}
		switch {
		case !ok, j.Turn != ref.Turn, j.state != StateInTopic && j.state != StateClaimed:
			v = Gone
			return nil
		}
		c = Claimed{Ref: j.Ref, slot: slot, job: j, Lease: lease}
		switch {
		case j.state == StateClaimed && j.lease != nil && *j.lease == lease:
			v, err = s.resume(ctx, tx, &c)
		case j.alive:
			v = Busy
		default:
			v, err = s.claim(ctx, tx, &c, limit)
		}
		return err
	})
	if err != nil {
		return Claimed{}, "", fmt.Errorf("claim job %s: %w", ref.JobID, err)
	}
	return c, v, nil
}

func (s *Store) claim(ctx context.Context, tx pgx.Tx, c *Claimed, limit int) (Verdict, error) {
	if len(c.job.payload.Messages) == 0 {
		return Closed, s.transition(ctx, tx, c, Step{State: StateFailed, Reason: "empty_job"})
	}
	old, ok, err := s.lastRequest(ctx, tx, c.job)
	if err != nil {
		return "", err
	}
	// Claimed means that the bytes may have left; a live claim was dealt with.
	if ok && old.settled == "" && (old.uncertain || c.job.state == StateClaimed) {
		return s.reclaim(ctx, tx, c, old)
	}
	if c.job.generation > 0 && !ok && (c.job.state == StateClaimed || c.job.uncertain == c.job.generation) {
		return Closed, s.review(ctx, tx, c, nil) // its bytes were dropped with their day, and they may have been taken
	}
	return s.freshClaim(ctx, tx, c, limit)
}

// resume gives what a claim of ours froze whose commit we did not hear of.
// Nothing has left under it.
func (s *Store) resume(ctx context.Context, tx pgx.Tx, c *Claimed) (Verdict, error) {
	f, ok, err := s.lastRequest(ctx, tx, c.job)
	if err != nil {
		return "", err
	}
	p, known := s.deps.Providers[f.provider]
	if !ok || !known {
		return Busy, nil // the sweep finds it when its lease is over
	}
	c.frozen, c.Provider, c.Request, c.Resend = f, p, f.request, f.uncertain
	c.Messages = pick(c.job.payload.Messages, f.sendIDs)
	left, err := s.pending(ctx, tx, c.job)
	if err != nil {
		return "", err
	}
	c.before, c.more = len(c.job.payload.Messages)-len(left), len(left)-len(f.sendIDs)
	return Ready, nil
}

// reclaim takes a job whose request has an unknown outcome. Neither gates nor
// content are asked again: another payload under the same key is refused, and
// another key could reach somebody twice.
func (s *Store) reclaim(ctx context.Context, tx pgx.Tx, c *Claimed, old frozen) (Verdict, error) {
	p, ok := s.deps.Providers[old.provider]
	if !ok {
		return Closed, s.transition(ctx, tx, c, Step{State: StateHeld, Reason: "provider_missing"})
	}
	if len(old.sendIDs) == 1 && c.job.expired {
		return Closed, s.transition(ctx, tx, c, Step{State: StateExpired, Reason: string(gates.Expired),
			Outcomes: []Outcome{{SendID: old.sendIDs[0], Failed: string(gates.Expired)}}})
	}
	caps := p.Capabilities()
	remembered := caps.IdempotencyKeys && c.job.now.Sub(old.createdAt) < caps.KeyLife
	if !remembered && (caps.IdempotencyKeys || old.attempts >= 1+s.cfg.UncertainRepeats) {
		return Closed, s.review(ctx, tx, c, &old)
	}
	old.uncertain = true
	c.frozen, c.Provider, c.Request, c.Resend = old, p, old.request, true
	c.Messages = pick(c.job.payload.Messages, old.sendIDs)
	var b pgx.Batch
	s.queueLease(&b, c)
	const sql = `UPDATE messaging.send_requests SET lease = $4, uncertain = true, attempts = attempts + 1
WHERE created_at = $1 AND job_id = $2 AND generation = $3`
	b.Queue(sql, old.createdAt, c.JobID, old.generation, c.Lease)
	return Ready, flush(ctx, tx, &b, "take job over")
}

func pick(ms []schemas.JobMessage, order []uuid.UUID) []schemas.JobMessage {
	by := make(map[uuid.UUID]schemas.JobMessage, len(ms))
	for _, m := range ms {
		by[m.SendID] = m
	}
	out := make([]schemas.JobMessage, len(order))
	for i, id := range order {
		out[i] = by[id]
		out[i].SendID = id
	}
	return out
}

// freshClaim asks the gates and freezes a new generation.
func (s *Store) freshClaim(ctx context.Context, tx pgx.Tx, c *Claimed, limit int) (Verdict, error) {
	if step, err := s.askPauses(ctx, tx, c); err != nil || step.State != "" {
		if err != nil {
			return "", err
		}
		return Closed, s.transition(ctx, tx, c, step)
	}
	left, err := s.pending(ctx, tx, c.job)
	if err != nil {
		return "", err
	}
	open, step, err := s.askGates(ctx, tx, c, left)
	if err != nil {
		return "", err
	}
	if step.State == StateHeld {
		return Closed, s.transition(ctx, tx, c, step)
	}
	rendered, kept, failed, err := s.renderAll(ctx, tx, c.TenantID, open)
	if err != nil {
		return "", err
	}
	step.Outcomes = append(step.Outcomes, failed...)
	c.before = len(c.job.payload.Messages) - len(left)
	if limit > 0 && len(kept) > limit {
		c.more = len(kept) - limit
		kept, rendered = kept[:limit], rendered[:limit]
	}
	f, kept, bad, err := s.freeze(c.job, kept, rendered, c.job.now)
	if err != nil {
		return "", err
	}
	step.Outcomes = append(step.Outcomes, bad...)
	var b pgx.Batch
	s.queueSends(&b, c, open)
	if len(kept) == 0 {
		if err := flush(ctx, tx, &b, "write sends"); err != nil {
			return "", err
		}
		step.State = StateInTopic // what a limit kept back goes next
		if c.more == 0 {
			step.State, step.Reason = s.finalState(len(left), len(open), step)
		}
		return Closed, s.transition(ctx, tx, c, step)
	}
	c.frozen, c.Request, c.Messages, c.Provider = f, f.request, kept, s.deps.Providers[f.provider]
	s.queueLease(&b, c)
	s.storeRequest(&b, c.job, f, c.Lease)
	changes, err := s.queueOutcomes(ctx, &b, c, step.Outcomes)
	if err != nil {
		return "", err
	}
	if err := flush(ctx, tx, &b, "freeze request"); err != nil {
		return "", err
	}
	return Ready, s.publish(ctx, tx, c.slot.Lane, changes)
}

// finalState names the end of a job of which nothing is left to send.
func (s *Store) finalState(left, open int, step Step) (state, reason string) {
	switch {
	case left == 0:
		return StateSent, "" // every message has its outcome from earlier generations
	case open == 0 && step.Reason == string(gates.Expired):
		return StateExpired, step.Reason
	case open == 0:
		return StateBlocked, step.Reason
	}
	for _, o := range step.Outcomes {
		if o.Failed != "" {
			return StateFailed, o.Failed
		}
	}
	return StateFailed, step.Reason
}

// askGates gives the messages whose gates are open. A shut one is recorded as a
// decision where there is no send yet, else as the send's failure. A sender
// that is paused holds the whole job: all of it is one tenant's.
func (s *Store) askGates(ctx context.Context, tx pgx.Tx, c *Claimed, ms []schemas.JobMessage) (open []schemas.JobMessage, step Step, err error) {
	subjects := make([]gates.Subject, len(ms))
	for i, m := range ms {
		subjects[i] = gates.Subject{TenantID: c.TenantID, ContactID: m.ContactID, Channel: s.cfg.Channel, Category: m.Category,
			Address: m.Address, ExpiresAt: m.ExpiresAt}
	}
	verdicts, err := gates.Ask(ctx, tx, subjects)
	if err != nil {
		return nil, step, err
	}
	var b pgx.Batch
	for i, v := range verdicts {
		switch {
		case v.Open:
			m := ms[i]
			m.Address, _ = gates.Normalize(s.cfg.Channel, m.Address)
			open = append(open, m)
		case v.Reason.Waits():
			return nil, Step{State: StateHeld, Reason: string(v.Reason)}, nil
		default:
			step.Reason = string(v.Reason)
			if c.job.generation > 0 {
				step.Outcomes = append(step.Outcomes, Outcome{SendID: ms[i].SendID, Failed: string(v.Reason)})
				continue
			}
			s.queueBlocked(&b, c, ms[i], v)
		}
	}
	return open, step, flush(ctx, tx, &b, "record shut gates")
}

// queueBlocked turns the decision for a message around: a gate shut between the
// channels stage and the claim leaves a reason and no send (FS-MSG-0003 §1).
func (s *Store) queueBlocked(b *pgx.Batch, c *Claimed, m schemas.JobMessage, v gates.Verdict) {
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
	queueBlastOutcome(b, m, outcome)
}

// queueLease makes the job ours.
func (s *Store) queueLease(b *pgx.Batch, c *Claimed) {
	const sql = `UPDATE core.processed_jobs SET state = 'claimed', lease = $4, lease_until = clock_timestamp() + $5::interval,
    waited = ` + waitedSoFar + `, not_before = NULL, reason = NULL, generation = $6, updated_at = now()
WHERE id_time = $1 AND worker = $2 AND job_id = $3`
	b.Queue(sql, c.job.at, s.worker, c.JobID, c.Lease, s.cfg.Lease, c.frozen.generation)
}

// flush runs queued statements in one round trip.
func flush(ctx context.Context, tx pgx.Tx, b *pgx.Batch, what string) error {
	if b.Len() == 0 {
		return nil
	}
	if err := tx.SendBatch(ctx, b).Close(); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}

// WithSlot moves a claimed job to another slot of the same process, whose lane
// then takes what is published.
func (c Claimed) WithSlot(s Slot) Claimed {
	c.slot = s
	return c
}

// After names the job's state once these outcomes of its request are recorded:
// back in the topic while messages wait behind a limit, sent where any message
// ever was taken, else failed.
func (c Claimed) After(outcomes []Outcome) string {
	if c.more > 0 {
		return StateInTopic
	}
	for _, o := range outcomes {
		if o.Taken != "" {
			return StateSent
		}
	}
	if c.before > 0 {
		return StateSent
	}
	return StateFailed
}
