package sends

import (
	"github.com/jackc/pgx/v5"

	"github.com/softcrum/carril/internal/gates"
	"github.com/softcrum/carril/schemas"
)

// blastOutcome names an outcome as a blast counts it: sent + failed + expired +
// blocked + cancelled + needs_review + dead + pending is its recipients, always.
func (o Outcome) blastOutcome() string {
	switch {
	case o.GaveUp != "":
		return StateDead
	case o.Failed == string(gates.Expired):
		return StateExpired
	case o.Failed != "":
		return StateFailed
	}
	return StateSent
}

// queueBlastOutcome counts a message to its blast, where it has one.
func queueBlastOutcome(b *pgx.Batch, m schemas.JobMessage, outcome string) {
	if m.BlastID == nil {
		return
	}
	const sql = `UPDATE messaging.blast_recipients SET outcome = $3 WHERE blast_id = $1 AND position = $2`
	b.Queue(sql, *m.BlastID, int64(m.RecipientIndex), outcome)
}

// queueBlastRest counts what a job that ends as a whole leaves without an
// outcome.
func (s *Store) queueBlastRest(b *pgx.Batch, c *Claimed, outcome string) {
	blast := c.job.payload.Messages[0].BlastID
	if blast == nil {
		return
	}
	const sql = `UPDATE messaging.blast_recipients SET outcome = $3 WHERE blast_id = $1 AND job_id = $2 AND outcome IS NULL`
	b.Queue(sql, *blast, c.JobID, outcome)
}
