package sends

import (
	"bytes"
	"context"
	"maps"
	"slices"

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

// blastMarks are reports about blasts' messages, by blast and position. A bit is set
// once, whatever the order and the number of the reports, and so is counted once.
type blastMarks map[uuid.UUID]map[int64]int16

func (m blastMarks) add(r *report, f found) {
	status, _ := statusOf(r.event.Status)
	bits := markOf(status)
	if f.blast == nil || bits == 0 {
		return
	}
	if m[*f.blast] == nil {
		m[*f.blast] = map[int64]int16{}
	}
	m[*f.blast][f.position] |= bits
}

const blastMarkSQL = `UPDATE messaging.blast_recipients r SET marks = r.marks | $3::smallint FROM` + ofBlast + ` AND (r.marks & $3::smallint) <> $3::smallint`

// write sets the bits, a statement for each set of them. The rows are locked in one
// order: a rail worker may be writing the outcomes of the same batch.
func (m blastMarks) write(ctx context.Context, tx pgx.Tx) error {
	var b pgx.Batch
	for _, blast := range slices.SortedFunc(maps.Keys(m), func(x, y uuid.UUID) int { return bytes.Compare(x[:], y[:]) }) {
		by := map[int16][]int64{}
		for _, position := range slices.Sorted(maps.Keys(m[blast])) {
			bits := m[blast][position]
			by[bits] = append(by[bits], position)
		}
		if len(by) > 1 {
			b.Queue(blastLockSQL, blast, slices.Sorted(maps.Keys(m[blast])))
		}
		for bits, positions := range by {
			b.Queue(blastMarkSQL, blast, positions, bits)
		}
	}
	return flush(ctx, tx, &b, "mark a blast's recipients")
}
