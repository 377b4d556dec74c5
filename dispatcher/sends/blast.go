package sends

import (
	"context"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/softcrum/carril/internal/gates"
	"github.com/softcrum/carril/internal/ids"
	"github.com/softcrum/carril/schemas"
)

// blastOutcome names an outcome as a blast counts it: sent + failed + expired +
// blocked + cancelled + needs_review + dead + pending is its recipients, always.
func (o Outcome) blastOutcome() (outcome, reason string) {
	switch {
	case o.GaveUp != "":
		return StateDead, o.GaveUp
	case o.Failed == string(gates.Expired):
		return StateExpired, o.Failed
	case o.Failed != "":
		return StateFailed, o.Failed
	}
	return StateSent, ""
}

// blastRows are outcomes of blasts' recipients on their way into the database.
// They go in one statement: each counts what it changes (messaging.blast_counts).
type blastRows struct {
	blasts            []uuid.UUID
	positions         []int64
	outcomes, reasons []string
	rest              []blastRest
}

// blastRest is a job that ends as a whole: those of its recipients that have no
// outcome yet get its own.
type blastRest struct {
	blast           uuid.UUID
	positions       []int64
	outcome, reason string
}

// add counts a message to its blast, where it has one.
func (r *blastRows) add(m schemas.JobMessage, outcome, reason string) {
	if m.BlastID == nil {
		return
	}
	r.blasts, r.positions = append(r.blasts, *m.BlastID), append(r.positions, int64(m.RecipientIndex))
	r.outcomes, r.reasons = append(r.outcomes, outcome), append(r.reasons, reason)
}

// end counts what a job leaves that ends in a state which says nothing of its
// single messages.
func (r *blastRows) end(c *Claimed, step Step) {
	ms := c.job.payload.Messages
	switch step.State {
	case StateCancelled, StateNeedsReview, StateDead, StateFailed, StateExpired, StateBlocked:
	default:
		return
	}
	if len(ms) == 0 || ms[0].BlastID == nil {
		return
	}
	r.rest = append(r.rest, blastRest{*ms[0].BlastID, positions(ms), step.State, step.Reason})
}

func positions(ms []schemas.JobMessage) []int64 {
	out := make([]int64, len(ms))
	for i, m := range ms {
		out[i] = int64(m.RecipientIndex)
	}
	return out
}

const blastOutcomeSQL = `UPDATE messaging.blast_recipients r SET outcome = u.o, reason = nullif(u.w, '')
FROM unnest($1::uuid[], $2::bigint[], $3::text[], $4::text[]) AS u(b, p, o, w)
WHERE r.blast_id = ANY($1) AND r.position = ANY($2) AND r.blast_id = u.b AND r.position = u.p`

const blastRestSQL = `UPDATE messaging.blast_recipients SET outcome = $3, reason = nullif($4, '')
WHERE blast_id = $1 AND position = ANY($2) AND outcome IS NULL`

// queue writes the single outcomes first: the rest is what has none.
func (r *blastRows) queue(b *pgx.Batch) {
	if len(r.blasts) > 0 {
		b.Queue(blastOutcomeSQL, r.blasts, r.positions, r.outcomes, r.reasons)
	}
	for _, e := range r.rest {
		b.Queue(blastRestSQL, e.blast, e.positions, e.outcome, e.reason)
	}
}

// ReopenBlast counts what a replay sends again as pending: the recipient of a
// send, or all of a job (uuid.Nil) that were given up or needed a person. A blast
// that was done runs until they have their outcome. Whoever replays a dead letter
// calls it in the transaction that moves the job.
func ReopenBlast(ctx context.Context, tx pgx.Tx, worker string, job, send uuid.UUID) error {
	// The blast's row first: whoever ends it reads its counts under the same lock.
	const lock = `SELECT b.state FROM messaging.blasts b WHERE b.blast_id IN (SELECT (j.payload -> 'messages' -> 0 ->> 'blast_id')::uuid
    FROM core.processed_jobs j WHERE j.id_time = $1 AND j.worker = $2 AND j.job_id = $3) FOR NO KEY UPDATE OF b`
	if _, err := tx.Exec(ctx, lock, ids.Time(job), worker, job); err != nil {
		return fmt.Errorf("reopen a blast's recipients: %w", err)
	}
	const sql = `WITH back AS (
    UPDATE messaging.blast_recipients r SET outcome = NULL, reason = NULL
    FROM core.processed_jobs j, jsonb_array_elements(j.payload -> 'messages') AS m
    WHERE j.id_time = $1 AND j.worker = $2 AND j.job_id = $3 AND r.blast_id = (m ->> 'blast_id')::uuid
        AND r.position = (m ->> 'recipient_index')::bigint AND r.outcome IN ('dead', 'needs_review')
        AND ($4::uuid = '00000000-0000-0000-0000-000000000000' OR (m ->> 'send_id')::uuid = $4)
    RETURNING r.blast_id
)
UPDATE messaging.blasts b SET state = 'running', state_reason = NULL, finished_at = NULL, updated_at = now()
WHERE b.state = 'done' AND b.blast_id IN (SELECT blast_id FROM back)`
	if _, err := tx.Exec(ctx, sql, ids.Time(job), worker, job, send); err != nil {
		return fmt.Errorf("reopen a blast's recipients: %w", err)
	}
	return nil
}

// refuseBlast counts the recipients of a job whose record could not be read.
func refuseBlast(ctx context.Context, tx pgx.Tx, worker string, job uuid.UUID, reason string) error {
	const sql = `UPDATE messaging.blast_recipients r SET outcome = 'dead', reason = $4
FROM core.processed_jobs j, jsonb_array_elements(j.payload -> 'messages') AS m
WHERE j.id_time = $1 AND j.worker = $2 AND j.job_id = $3 AND r.blast_id = (m ->> 'blast_id')::uuid
    AND r.position = (m ->> 'recipient_index')::bigint AND r.outcome IS NULL`
	_, err := tx.Exec(ctx, sql, ids.Time(job), worker, job, reason)
	return err
}
