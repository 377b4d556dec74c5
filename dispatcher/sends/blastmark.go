package sends

import (
	"context"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// What a provider has ever reported of a blast's message: bits of
// messaging.blast_recipients.marks, named by messaging.blast_marks.
const (
	markDelivered  = 1
	markOpened     = 2
	markClicked    = 4
	markBounced    = 8
	markComplained = 16
	markRefused    = 32
	markReported   = 64 // any of these
)

// markOf gives the bits of a status; 0: it is no outcome yet.
func markOf(status string) int16 {
	switch status {
	case "delivered":
		return markDelivered | markReported
	case "opened":
		return markOpened | markReported
	case "clicked":
		return markClicked | markReported
	case "bounced":
		return markBounced | markReported
	case "complained":
		return markComplained | markReported
	case "failed":
		return markRefused | markReported
	}
	return 0
}

// blastMarks are reports about blasts' messages. A bit is set once, whatever
// the order and the number of the reports, and so is counted once.
type blastMarks struct {
	blasts    []uuid.UUID
	positions []int64
	marks     []int16
}

func (m *blastMarks) add(r *report, f found) {
	status, _ := statusOf(r.event.Status)
	if bits := markOf(status); f.blast != nil && bits != 0 {
		m.blasts, m.positions, m.marks = append(m.blasts, *f.blast), append(m.positions, f.position), append(m.marks, bits)
	}
}

// The rows are locked in one order: a rail worker may be writing the outcomes
// of the same batch.
const blastMarkSQL = `WITH u AS (
    SELECT b, p, bit_or(m) AS m FROM unnest($1::uuid[], $2::bigint[], $3::smallint[]) AS v(b, p, m) GROUP BY b, p
), l AS MATERIALIZED (
    SELECT r.blast_id, r.position, u.m FROM u JOIN messaging.blast_recipients r ON r.blast_id = u.b AND r.position = u.p
    WHERE r.blast_id = ANY($1) AND r.position = ANY($2) AND (r.marks & u.m) <> u.m
    ORDER BY r.blast_id, r.position FOR NO KEY UPDATE OF r
)
UPDATE messaging.blast_recipients r SET marks = r.marks | l.m FROM l
WHERE r.blast_id = ANY($1) AND r.position = ANY($2) AND r.blast_id = l.blast_id AND r.position = l.position`

func (m *blastMarks) write(ctx context.Context, tx pgx.Tx) error {
	if len(m.blasts) == 0 {
		return nil
	}
	if _, err := tx.Exec(ctx, blastMarkSQL, m.blasts, m.positions, m.marks); err != nil {
		return fmt.Errorf("mark a blast's recipients: %w", err)
	}
	return nil
}
