package sends

import (
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
	Unspent   bool          // this attempt at the request reached nobody, whatever an earlier one did: it uses up no repeat
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
	var mine []finished
	err := pgx.BeginFunc(ctx, s.deps.Pool, func(tx pgx.Tx) error {
		held, err := s.stillOurs(ctx, tx, fs)
		if err != nil {
			return err
		}
		mine = nil
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
		s.refillSoon(mine)
		return errs
	case len(fs) == 1 || !alone(err):
		for i := range errs {
			errs[i] = err
		}
		return errs
	}
	for i := range fs {
		errs[i] = s.applyAll(ctx, fs[i:i+1])[0]
	}
	return errs
}

// The state is looked at afterwards: asked for here, it would lead a planner
// without statistics to the index of all open jobs.
const oursSQL = `SELECT j.job_id, j.turn, CASE WHEN j.state = 'claimed' THEN j.lease END FROM core.processed_jobs j
WHERE j.id_time = ANY($1) AND j.worker = $2 AND j.job_id = ANY($3)
ORDER BY j.id_time, j.job_id FOR UPDATE OF j`

// stillOurs locks the jobs, in one order, and says which have our lease.
func (s *Store) stillOurs(ctx context.Context, tx pgx.Tx, fs []finished) (map[uuid.UUID]bool, error) {
	times, jobs := make([]time.Time, len(fs)), make([]uuid.UUID, len(fs))
	for i, f := range fs {
		times[i], jobs[i] = f.c.job.at, f.c.JobID
	}
	rows, err := tx.Query(ctx, oursSQL, times, s.worker, jobs)
	if err != nil {
		return nil, fmt.Errorf("lock claimed jobs: %w", err)
	}
	type grip struct {
		turn  int32
		lease uuid.NullUUID
	}
	is := make(map[uuid.UUID]grip, len(fs))
	var id uuid.UUID
	var g grip
	_, err = pgx.ForEachRow(rows, []any{&id, &g.turn, &g.lease}, func() error {
		is[id] = g
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("lock claimed jobs: %w", err)
	}
	held := make(map[uuid.UUID]bool, len(is))
	for _, f := range fs {
		held[f.c.JobID] = is[f.c.JobID] == grip{f.c.Turn, uuid.NullUUID{UUID: f.c.Lease, Valid: true}}
	}
	return held, nil
}

// transition writes a step inside tx, which holds the job's row.
func (s *Store) transition(ctx context.Context, tx pgx.Tx, c *Claimed, step Step) error {
	return s.transitionAll(ctx, tx, []finished{{c, step}})
}

// transitionAll writes steps inside tx, which holds the jobs' rows.
func (s *Store) transitionAll(ctx context.Context, tx pgx.Tx, fs []finished) error {
	return s.finishAll(ctx, tx, fs, map[outbox.Lane][]outbox.Message{})
}

// finishAll writes steps inside tx, which holds the jobs' rows, and publishes
// last, with them what the caller has to publish. All of them are of one process and so of one lane; where a slot
// changed in between, of two.
func (s *Store) finishAll(ctx context.Context, tx pgx.Tx, fs []finished, byLane map[outbox.Lane][]outbox.Message) error {
	var b pgx.Batch
	var rows outcomeRows
	s.queueSteps(&b, fs)
	for _, f := range fs {
		s.queueAftermath(&b, f.c, f.step)
		rows.blasts.end(f.c, f.step)
		changes, err := s.outcomes(ctx, &rows, f.c, f.step.Outcomes)
		if err != nil {
			return err
		}
		byLane[f.c.slot.Lane] = append(byLane[f.c.slot.Lane], changes...)
	}
	rows.queue(&b)
	if err := flush(ctx, tx, &b, "write the steps"); err != nil {
		return err
	}
	lanes := slices.SortedFunc(maps.Keys(byLane), func(a, b outbox.Lane) int { return cmp.Compare(a.ID, b.ID) })
	for _, lane := range lanes {
		if err := s.publish(ctx, tx, lane, byLane[lane]); err != nil {
			return err
		}
	}
	return nil
}

const stepSQL = `UPDATE core.processed_jobs j SET state = u.state, reason = nullif(u.reason, ''), lease = NULL, lease_until = NULL,
    attempts = attempts + u.counted, first_attempt = CASE WHEN u.counted > 0 THEN coalesce(first_attempt, now()) ELSE first_attempt END,
    not_before = CASE WHEN u.state = 'parked' THEN clock_timestamp() + u.delay END,
    waited = CASE WHEN j.state = 'claimed' THEN waited ELSE ` + waitedSoFar + ` END, updated_at = now(),
    payload = CASE WHEN u.uncertain THEN jsonb_set(payload, '{uncertain}', to_jsonb(generation)) ELSE payload END
FROM unnest($1::timestamptz[], $2::uuid[], $3::text[], $4::text[], $5::int[], $6::interval[], $7::bool[]) AS u(at, job, state, reason, counted, delay, uncertain)
WHERE j.id_time = ANY($1) AND j.worker = $8 AND j.id_time = u.at AND j.job_id = u.job`

// queueSteps writes the jobs' new states, and what their requests came to. The
// list of times bounds what an UPDATE reads: over a range, a planner without
// statistics of the day reads all that waits in it (16 rows of 20,000: 93 ms
// instead of 1).
func (s *Store) queueSteps(b *pgx.Batch, fs []finished) {
	n := len(fs)
	if n == 0 {
		return
	}
	var (
		times, jobs     = make([]time.Time, n), make([]uuid.UUID, n)
		states, reasons = make([]string, n), make([]string, n)
		counted         = make([]int32, n)
		delays          = make([]time.Duration, n)
		uncertain       = make([]bool, n)
		created         []time.Time
		requests        []uuid.UUID
		generations     []int32
		settled         []string
		unsure          []bool
		unspent         []int32
	)
	for i, f := range fs {
		times[i], jobs[i], states[i], reasons[i], delays[i] = f.c.job.at, f.c.JobID, f.step.State, f.step.Reason, f.step.Delay
		if f.step.Counted {
			counted[i] = 1
		}
		if f.c.frozen.generation > 0 {
			uncertain[i] = f.step.Uncertain
			created, requests, generations = append(created, f.c.frozen.createdAt), append(requests, f.c.JobID), append(generations, int32(f.c.frozen.generation))
			settled, unsure = append(settled, f.step.Settled), append(unsure, f.step.Uncertain)
			back := int32(0)
			if f.step.Unspent {
				back = 1
			}
			unspent = append(unspent, back)
		}
	}
	b.Queue(stepSQL, times, jobs, states, reasons, counted, delays, uncertain, s.worker)
	if len(requests) == 0 {
		return
	}
	const settle = `UPDATE messaging.send_requests r SET settled = nullif(u.settled, ''), uncertain = r.uncertain OR u.uncertain, attempts = r.attempts - u.unspent
FROM unnest($1::timestamptz[], $2::uuid[], $3::int[], $4::text[], $5::bool[], $6::int[]) AS u(at, job, generation, settled, uncertain, unspent)
WHERE r.created_at = ANY($1) AND r.created_at = u.at AND r.job_id = u.job AND r.generation = u.generation`
	b.Queue(settle, created, requests, generations, settled, unsure, unspent)
}

// queueAftermath writes what else hangs on a step: seldom anything.
func (s *Store) queueAftermath(b *pgx.Batch, c *Claimed, step Step) {
	if step.PauseSend != "" {
		const pause = `UPDATE messaging.senders SET paused_at = now(), pause_reason = $3 WHERE tenant_id = $1 AND channel = $2 AND paused_at IS NULL`
		b.Queue(pause, c.TenantID, s.cfg.Channel, step.PauseSend)
	}
	if step.DeadClass != "" {
		s.queueDeadLetters(b, c, step)
	}
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

// outcomeRows are outcomes on their way into the database: the history's rows
// and the provider's ids.
type outcomeRows struct {
	requested                    []time.Time
	class                        []int16
	tenants, sends               []uuid.UUID
	statuses, names, events, why []string
	generations                  []int32

	taken  outcomeIDs
	blasts blastRows
}

type outcomeIDs struct {
	names, ids     []string
	sends, tenants []uuid.UUID
	class          []int16
	generations    []int32
}

// outcomes collects the rows of a job's outcomes, and gives the status changes
// that follow.
func (s *Store) outcomes(ctx context.Context, rows *outcomeRows, c *Claimed, outcomes []Outcome) (changes []outbox.Message, err error) {
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
		status, event, why := o.status()
		if o.Taken != "" {
			rows.took(c, m, name, generation, o.Taken)
		}
		outcome, reason := o.blastOutcome()
		rows.blasts.add(c.JobID, m, outcome, reason)
		event = fmt.Sprintf("%s%d", event, generation)
		rows.happened(c, m, status, name, event, why, generation)
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

// status names an outcome in the history.
func (o Outcome) status() (status, event, why string) {
	switch {
	case o.Failed != "":
		return "failed", eventFailed, o.Failed
	case o.GaveUp != "":
		return "failed", eventGaveUp, o.GaveUp
	}
	return "sent", eventSent, ""
}

func (r *outcomeRows) happened(c *Claimed, m schemas.JobMessage, status, name, event, why string, generation int) {
	r.requested, r.class = append(r.requested, m.RequestedAt), append(r.class, m.RetentionMonths)
	r.tenants, r.sends = append(r.tenants, c.TenantID), append(r.sends, m.SendID)
	r.statuses, r.names, r.events, r.why = append(r.statuses, status), append(r.names, name), append(r.events, event), append(r.why, why)
	r.generations = append(r.generations, int32(generation))
}

func (r *outcomeRows) took(c *Claimed, m schemas.JobMessage, name string, generation int, id string) {
	t := &r.taken
	t.names, t.ids, t.sends, t.tenants = append(t.names, name), append(t.ids, id), append(t.sends, m.SendID), append(t.tenants, c.TenantID)
	t.class, t.generations = append(t.class, m.RetentionMonths), append(t.generations, int32(generation))
}

// queue writes the rows. The provider's ids wake the events that came before
// them (F34).
func (r *outcomeRows) queue(b *pgx.Batch) {
	r.blasts.queue(b)
	if len(r.sends) == 0 {
		return
	}
	if t := r.taken; len(t.ids) > 0 {
		const insert = `INSERT INTO messaging.provider_messages (sent_at, provider, provider_message_id, send_id, tenant_id, retention_months, generation)
SELECT now(), * FROM unnest($1::text[], $2::text[], $3::uuid[], $4::uuid[], $5::smallint[], $6::int[]) ON CONFLICT DO NOTHING`
		b.Queue(insert, t.names, t.ids, t.sends, t.tenants, t.class, t.generations)
		const wake = `UPDATE messaging.unmatched_events e SET next_try = now() FROM unnest($1::text[], $2::text[]) AS u(name, id)
WHERE e.provider = u.name AND e.provider_message_id = u.id`
		b.Queue(wake, t.names, t.ids)
	}
	const history = `INSERT INTO messaging.send_status_history (requested_at, retention_months, tenant_id, send_id, status, provider, provider_event_id, generation, occurred_at, reason)
SELECT r, k, t, i, s, p, e, g, now(), nullif(w, '')
FROM unnest($1::timestamptz[], $2::smallint[], $3::uuid[], $4::uuid[], $5::text[], $6::text[], $7::text[], $8::int[], $9::text[])
    WITH ORDINALITY AS v(r, k, t, i, s, p, e, g, w, n) ORDER BY n ON CONFLICT DO NOTHING`
	b.Queue(history, r.requested, r.class, r.tenants, r.sends, r.statuses, r.names, r.events, r.generations, r.why)
}

// publish appends messages to the lane, once and last in a transaction: the
// lane's row stays locked until its end, and who holds it must want no other lock.
func (s *Store) publish(ctx context.Context, tx pgx.Tx, lane outbox.Lane, msgs []outbox.Message) error {
	_, err := lane.Append(ctx, tx, msgs)
	return err
}
