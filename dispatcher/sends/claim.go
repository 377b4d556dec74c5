package sends

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/softcrum/carril/dispatcher/provider"
	"github.com/softcrum/carril/internal/gates"
	"github.com/softcrum/carril/internal/pg"
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
// limit bounds the messages of one request; 0 is all. via is the provider that a
// new generation goes to, one of Providers; empty is the preferred one. A job
// whose bytes may have left under an earlier lease gives those bytes again, and
// its provider whatever via says: see GivenBack. Claims that come while a
// transaction is under way share the next one.
//
// An error may hide a commit that landed: the caller claims again with the same
// lease, and gets what that commit froze.
func (s *Store) Claim(ctx context.Context, slot Slot, ref Ref, lease uuid.UUID, limit int, via string) (Claimed, Verdict, error) {
	if via == "" {
		via = s.cfg.Provider
	}
	q := &claiming{slot: slot, ref: ref, lease: lease, limit: limit, via: via}
	if err := s.claims.do(ctx, q); err != nil {
		return Claimed{}, "", fmt.Errorf("claim job %s: %w", ref.JobID, err)
	}
	return q.Claimed, q.verdict, nil
}

// claiming is one caller's claim, and what came of it.
type claiming struct {
	Claimed
	slot    Slot
	ref     Ref
	lease   uuid.UUID
	limit   int
	via     string
	verdict Verdict
	rare    bool // has a transaction of its own: its way depends on what its last request did
}

// claimAll claims in one transaction, and gives each its error. Where the data
// of one of them is refused, each is tried by itself.
func (s *Store) claimAll(ctx context.Context, qs []*claiming) []error {
	errs := make([]error, len(qs))
	err := pgx.BeginFunc(ctx, s.deps.Pool, func(tx pgx.Tx) error { return s.claimPlain(ctx, tx, qs) })
	switch {
	case err == nil:
	case len(qs) == 1 || !alone(err):
		for i := range errs {
			errs[i] = err
		}
		return errs
	default:
		for i := range qs {
			errs[i] = s.claimAll(ctx, qs[i:i+1])[0]
		}
		return errs
	}
	var closed []finished
	for i, q := range qs {
		if q.rare {
			errs[i] = s.claimRare(ctx, q)
		}
		if errs[i] == nil && q.verdict == Closed {
			closed = append(closed, finished{c: &q.Claimed})
		}
	}
	s.refillSoon(closed)
	return errs
}

// alone says that an error of a shared transaction may be one member's own.
func alone(err error) bool {
	f := pg.FaultOf(err)
	return f != pg.FaultWait && f != pg.FaultStatement
}

// claimPlain locks all the jobs, in one order, and claims those that nothing
// was ever sent of.
func (s *Store) claimPlain(ctx context.Context, tx pgx.Tx, qs []*claiming) error {
	jobs, err := s.lock(ctx, tx, qs)
	if err != nil {
		return err
	}
	seen := make(map[uuid.UUID]bool, len(qs))
	var plain []*claiming
	for _, q := range qs {
		j, ok := jobs[q.ref.JobID]
		q.Claimed, q.verdict, q.rare = Claimed{}, "", seen[q.ref.JobID]
		seen[q.ref.JobID] = true
		switch {
		case q.rare: // a claim of a caller that went away stands before it
		case !ok || !q.takes(j):
			q.verdict = Gone
		case q.holds(j) || j.state == StateClaimed && !j.alive || j.generation > 0:
			q.rare = true
		case j.alive:
			q.verdict = Busy
		default:
			q.begin(j)
			plain = append(plain, q)
		}
	}
	return s.freshClaims(ctx, tx, plain)
}

// takes says that a record of this turn may still have something to do.
func (q *claiming) takes(j job) bool {
	return j.Turn == q.ref.Turn && (j.state == StateInTopic || j.state == StateClaimed)
}

// holds says that the job is claimed under this very lease.
func (q *claiming) holds(j job) bool {
	return j.state == StateClaimed && j.lease != nil && *j.lease == q.lease
}

func (q *claiming) begin(j job) {
	q.Claimed = Claimed{Ref: j.Ref, slot: q.slot, job: j, Lease: q.lease}
}

// claimRare claims one job that was claimed before, whatever it went through.
func (s *Store) claimRare(ctx context.Context, q *claiming) error {
	return pgx.BeginFunc(ctx, s.deps.Pool, func(tx pgx.Tx) error {
		jobs, err := s.lock(ctx, tx, []*claiming{q})
		if err != nil {
			return err
		}
		j, ok := jobs[q.ref.JobID]
		if !ok || !q.takes(j) {
			q.verdict = Gone
			return nil
		}
		q.begin(j)
		switch {
		case q.holds(j):
			q.verdict, err = s.resume(ctx, tx, &q.Claimed)
		case j.alive:
			q.verdict = Busy
		default:
			err = s.claim(ctx, tx, q)
		}
		return err
	})
}

func (s *Store) claim(ctx context.Context, tx pgx.Tx, q *claiming) error {
	c := &q.Claimed
	old, ok, err := s.lastRequest(ctx, tx, c.job)
	if err != nil {
		return err
	}
	// Claimed means that the bytes may have left; a live claim was dealt with.
	if ok && old.settled == "" && (old.uncertain || c.job.state == StateClaimed) {
		q.verdict, err = s.reclaim(ctx, tx, c, old)
		return err
	}
	if c.job.generation > 0 && !ok && (c.job.state == StateClaimed || c.job.uncertain == c.job.generation) {
		q.verdict = Closed
		return s.review(ctx, tx, c, nil) // its bytes were dropped with their day, and they may have been taken
	}
	return s.freshClaims(ctx, tx, []*claiming{q})
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

// queueLease makes a job ours whose bytes stand already.
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

// GivenBack is the step of a claim whose bytes did not leave, as when its request
// belongs to another provider than the caller had a token for.
func (c Claimed) GivenBack() Step {
	if c.Resend {
		return Step{State: StateInTopic, Unspent: true, Uncertain: true}
	}
	return Step{State: StateInTopic, Unspent: true, Settled: "refused"}
}

// Remains says that a limit kept messages of the job back.
func (c Claimed) Remains() bool { return c.more > 0 }

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
