package sends

import (
	"context"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// Reasons of held jobs that a person's hand ends.
const (
	reasonBlastPaused = "blast_paused"
	reasonRailPaused  = "rail_paused"
)

// askPauses gives the jobs whose tenant nobody has stopped on this rail, nor
// their blast, and ends the others: a pause or a cancel acts at once, on what is
// in the topic too.
func (s *Store) askPauses(ctx context.Context, tx pgx.Tx, fs []*fresh) (on []*fresh, stopped []finished, err error) {
	if len(fs) == 0 {
		return nil, nil, nil
	}
	tenants, blasts := make([]uuid.UUID, len(fs)), make([]*uuid.UUID, len(fs))
	for i, f := range fs {
		tenants[i], blasts[i] = f.TenantID, f.job.payload.Messages[0].BlastID
	}
	const sql = `SELECT EXISTS (SELECT FROM messaging.tenant_rails r WHERE r.tenant_id = u.tenant AND r.channel = $3 AND r.rail = $4 AND r.paused_at IS NOT NULL),
    coalesce((SELECT b.state FROM messaging.blasts b WHERE b.blast_id = u.blast), '')
FROM unnest($1::uuid[], $2::uuid[]) WITH ORDINALITY AS u(tenant, blast, n) ORDER BY u.n`
	rows, err := tx.Query(ctx, sql, tenants, blasts, s.cfg.Channel, s.cfg.Rail)
	if err != nil {
		return nil, nil, fmt.Errorf("ask for pauses: %w", err)
	}
	var paused bool
	var blast string
	i := 0
	_, err = pgx.ForEachRow(rows, []any{&paused, &blast}, func() error {
		if step := pauseStep(paused, blast); step.State != "" {
			stopped = append(stopped, finished{&fs[i].Claimed, step})
		} else {
			on = append(on, fs[i])
		}
		i++
		return nil
	})
	if err != nil {
		return nil, nil, fmt.Errorf("ask for pauses: %w", err)
	}
	return on, stopped, nil
}

// pauseStep is what a stopped job becomes; its state is empty where nobody has
// stopped it.
func pauseStep(railPaused bool, blast string) Step {
	switch {
	case blast == "cancelled":
		return Step{State: StateCancelled, Reason: "blast_cancelled"}
	case blast == "paused":
		return Step{State: StateHeld, Reason: reasonBlastPaused}
	case railPaused:
		return Step{State: StateHeld, Reason: reasonRailPaused}
	}
	return Step{}
}
