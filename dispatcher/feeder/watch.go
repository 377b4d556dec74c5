package feeder

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// fewOutcomes is below what a share says nothing.
const fewOutcomes = 50

// watch ends blasts that are done, and pauses those whose outcomes would cost
// everybody the account: all tenants share one at the provider. A paused
// blast's batches that are in the topic already are held by their claim.
func (f *Feeder) watch(ctx context.Context) error {
	wctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	const done = `UPDATE messaging.blasts b SET state = 'done', updated_at = now()
WHERE b.channel = $1 AND b.state = 'running' AND b.fed >= b.recipients
    AND NOT EXISTS (SELECT FROM messaging.blast_recipients r WHERE r.blast_id = b.blast_id AND r.outcome IS NULL)`
	if _, err := f.deps.Pool.Exec(wctx, done, f.cfg.Channel); err != nil {
		return fmt.Errorf("end finished blasts: %w", err)
	}
	rows, err := f.deps.Pool.Query(wctx, `SELECT blast_id, tenant_id, created_at FROM messaging.blasts WHERE channel = $1 AND state = 'running' AND fed > 0`, f.cfg.Channel)
	if err != nil {
		return fmt.Errorf("list running blasts: %w", err)
	}
	type running struct {
		ID, Tenant uuid.UUID
		CreatedAt  time.Time
	}
	blasts, err := pgx.CollectRows(rows, pgx.RowToStructByPos[running])
	if err != nil {
		return fmt.Errorf("list running blasts: %w", err)
	}
	for _, b := range blasts {
		if err := f.judge(wctx, b.ID, b.Tenant, b.CreatedAt.UTC().Truncate(time.Millisecond)); err != nil {
			return err
		}
	}
	return nil
}

// judge pauses a blast by the outcomes that its sends had lately; a blast's
// sends all carry the blast's own time.
func (f *Feeder) judge(ctx context.Context, blast, tenant uuid.UUID, at time.Time) error {
	const sql = `SELECT count(DISTINCT h.send_id), count(DISTINCT h.send_id) FILTER (WHERE h.status = 'bounced'), count(DISTINCT h.send_id) FILTER (WHERE h.status = 'complained')
FROM messaging.send_status_history h JOIN messaging.sends s ON s.requested_at = $1 AND s.send_id = h.send_id
WHERE h.requested_at = $1 AND s.blast_id = $2 AND h.status IN ('delivered', 'opened', 'clicked', 'bounced', 'complained') AND h.recorded_at > now() - interval '1 hour'`
	var all, bounced, complained float64
	if err := f.deps.Pool.QueryRow(ctx, sql, at, blast).Scan(&all, &bounced, &complained); err != nil {
		return fmt.Errorf("count a blast's outcomes: %w", err)
	}
	reason := ""
	switch {
	case all < fewOutcomes:
	case bounced > f.cfg.Bounces*all:
		reason = "bounces"
	case complained >= 2 && complained > f.cfg.Complaints*all: // one alone is nobody's trend
		reason = "complaints"
	}
	if reason == "" {
		return nil
	}
	const pause = `UPDATE messaging.blasts SET state = 'paused', state_reason = $2, updated_at = now() WHERE blast_id = $1 AND state = 'running'`
	tag, err := f.deps.Pool.Exec(ctx, pause, blast, reason)
	if err != nil {
		return fmt.Errorf("pause a blast: %w", err)
	}
	if tag.RowsAffected() > 0 {
		f.deps.Log.Error("blast is paused for its outcomes", "blast_id", blast, "tenant_id", tenant, "reason", reason,
			"outcomes", all, "bounced", bounced, "complained", complained)
	}
	return nil
}
