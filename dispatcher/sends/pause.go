package sends

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// Reasons of held jobs that a person's hand ends.
const (
	reasonBlastPaused = "blast_paused"
	reasonRailPaused  = "rail_paused"
)

// askPauses asks whether somebody has stopped the job's tenant on this rail, or
// its blast: a pause or a cancel acts at once, on what is in the topic too. The
// step's state is empty where nobody has.
func (s *Store) askPauses(ctx context.Context, tx pgx.Tx, c *Claimed) (step Step, err error) {
	blast := c.job.payload.Messages[0].BlastID
	const sql = `SELECT EXISTS (SELECT FROM messaging.tenant_rails WHERE tenant_id = $1 AND channel = $2 AND rail = $3 AND paused_at IS NOT NULL),
    coalesce((SELECT state FROM messaging.blasts WHERE blast_id = $4), '')`
	var paused bool
	var state string
	if err := tx.QueryRow(ctx, sql, c.TenantID, s.cfg.Channel, s.cfg.Rail, blast).Scan(&paused, &state); err != nil {
		return step, fmt.Errorf("ask for pauses: %w", err)
	}
	switch {
	case state == "cancelled":
		return Step{State: StateCancelled, Reason: "blast_cancelled"}, nil
	case state == "paused":
		return Step{State: StateHeld, Reason: reasonBlastPaused}, nil
	case paused:
		return Step{State: StateHeld, Reason: reasonRailPaused}, nil
	}
	return step, nil
}
