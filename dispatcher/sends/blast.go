package sends

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"

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
type blastRows struct {
	groups map[blastGroup][]int64 // positions
	rest   []blastRest
}

// blastGroup is what recipients share that one statement writes. A statement that
// looked each of them up in a list of outcomes would do so over and over again: a
// plan that was made for ten of them is kept for thousands.
type blastGroup struct {
	blast, job      uuid.UUID
	outcome, reason string
}

// blastRest is a job that ends as a whole: those of its recipients that have no
// outcome yet get its own.
type blastRest struct {
	blast           uuid.UUID
	positions       []int64
	outcome, reason string
}

// add counts a message of a job to its blast, where it has one.
func (r *blastRows) add(job uuid.UUID, m schemas.JobMessage, outcome, reason string) {
	if m.BlastID == nil {
		return
	}
	if r.groups == nil {
		r.groups = map[blastGroup][]int64{}
	}
	g := blastGroup{*m.BlastID, job, outcome, reason}
	r.groups[g] = append(r.groups[g], int64(m.RecipientIndex))
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

// Recipients are found one by one, by the whole key. A blast that was a constant would
// let the planner read all of its recipients by the index of their addresses, as it does
// without statistics, or by a plan that small blasts were the reason of: a million of
// them for each hundred outcomes.
const (
	ofBlast = ` (SELECT $1::uuid AS blast, unnest($2::bigint[]) AS place) u WHERE r.blast_id = u.blast AND r.position = u.place`

	blastOutcomeSQL = `UPDATE messaging.blast_recipients r SET outcome = $3, reason = nullif($4, ''), job_id = $5 FROM` + ofBlast

	blastRestSQL = `UPDATE messaging.blast_recipients r SET outcome = $3, reason = nullif($4, '') FROM` + ofBlast + ` AND r.outcome IS NULL`

	// blastLockSQL locks recipients in their order.
	blastLockSQL = `SELECT FROM messaging.blast_recipients r,` + ofBlast + ` ORDER BY r.position FOR NO KEY UPDATE OF r`
)

// queue writes the single outcomes first: the rest is what has none. Recipients are
// locked in one order, for providers' reports of the same ones may be written
// meanwhile: a job's positions follow each other, so that groups come in order
// unless one job has several.
func (r *blastRows) queue(b *pgx.Batch) {
	order := slices.Collect(maps.Keys(r.groups))
	for _, ps := range r.groups {
		slices.Sort(ps)
	}
	slices.SortFunc(order, func(x, y blastGroup) int {
		return cmp.Or(bytes.Compare(x.blast[:], y.blast[:]), cmp.Compare(r.groups[x][0], r.groups[y][0]))
	})
	for i := 0; i < len(order); {
		next := i + 1
		for next < len(order) && order[next].blast == order[i].blast {
			next++
		}
		r.queueBlast(b, order[i:next])
		i = next
	}
	for _, e := range r.rest {
		b.Queue(blastRestSQL, e.blast, e.positions, e.outcome, e.reason)
	}
}

// queueBlast writes the groups of one blast, sorted by their first positions.
func (r *blastRows) queueBlast(b *pgx.Batch, groups []blastGroup) {
	var all []int64
	mixed := false
	for _, g := range groups {
		mixed = mixed || len(all) > 0 && all[len(all)-1] > r.groups[g][0]
		all = append(all, r.groups[g]...)
	}
	if mixed {
		b.Queue(blastLockSQL, groups[0].blast, all)
	}
	for _, g := range groups {
		b.Queue(blastOutcomeSQL, g.blast, r.groups[g], g.outcome, g.reason, g.job)
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
