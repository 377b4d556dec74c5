package blast

import (
	"context"
	"fmt"
)

// Held is what Overview calls a running blast that may not be fed now: its
// tenant's marketing is stopped, or its sender is paused or not verified.
const Held = "held"

// Standing is how the blasts of one state stand, taken together, in recipients.
type Standing struct {
	Blasts     int64
	Pending    int64
	Reported   int64   // sent, with an outcome of the provider's
	Unreported int64   // sent, without one so far
	PerSecond  float64 // that got an outcome of ours, over the last five minutes
}

// Overview is how a channel's blasts stand that are not drafts and not over, by
// state, and Held beside them.
type Overview struct {
	States  map[string]Standing
	Stopped int64 // tenants whose marketing the outcomes of their blasts have stopped
}

// Standings lists the states of an Overview, for metrics that name them before
// there is a blast.
func Standings() []string { return []string{Scheduled, Preparing, Running, Held, Paused} }

// heldSQL says that a blast b, if it runs, may not be fed now.
const heldSQL = `(
        EXISTS (SELECT FROM messaging.tenant_rails r WHERE r.tenant_id = b.tenant_id AND r.channel = b.channel AND r.rail = 'marketing' AND r.paused_at IS NOT NULL)
        OR EXISTS (SELECT FROM messaging.senders k WHERE k.tenant_id = b.tenant_id AND k.channel = b.channel AND (k.paused_at IS NOT NULL OR NOT k.verified)))`

const overviewSQL = `SELECT s.standing, count(*), coalesce(sum(c.pending), 0)::bigint, coalesce(sum(c.reported), 0)::bigint, coalesce(sum(greatest(c.sent - c.reported, 0)), 0)::bigint,
    coalesce(sum(CASE WHEN s.started_at IS NULL THEN 0 ELSE c.lately / greatest(extract(epoch FROM least(now() - s.started_at, interval '5 minutes')), 1) END), 0)::float8
FROM (SELECT b.blast_id, b.started_at, CASE WHEN b.state = 'running' AND ` + heldSQL + ` THEN 'held' ELSE b.state END AS standing
    FROM messaging.blasts b WHERE b.channel = $1 AND b.state IN ('scheduled', 'preparing', 'running', 'paused')) s
CROSS JOIN LATERAL (SELECT sum(n) FILTER (WHERE what = 'pending') AS pending, coalesce(sum(n) FILTER (WHERE what = 'reported'), 0) AS reported,
    coalesce(sum(n) FILTER (WHERE what = 'sent'), 0) AS sent,
    coalesce(sum(n) FILTER (WHERE at > now() - interval '5 minutes' AND what IN ('sent', 'failed', 'expired', 'blocked', 'needs_review', 'dead')), 0) AS lately
    FROM messaging.blast_counts k WHERE k.blast_id = s.blast_id) c
GROUP BY 1`

// Overview reads how a channel's blasts stand. It adds up counts, never
// recipients.
func (s *Store) Overview(ctx context.Context, channel string) (Overview, error) {
	o := Overview{States: map[string]Standing{}}
	rows, err := s.pool.Query(ctx, overviewSQL, channel)
	if err != nil {
		return o, fmt.Errorf("look over the blasts: %w", err)
	}
	defer rows.Close()
	for rows.Next() {
		var state string
		var v Standing
		if err := rows.Scan(&state, &v.Blasts, &v.Pending, &v.Reported, &v.Unreported, &v.PerSecond); err != nil {
			return o, fmt.Errorf("look over the blasts: %w", err)
		}
		o.States[state] = v
	}
	if err := rows.Err(); err != nil {
		return o, fmt.Errorf("look over the blasts: %w", err)
	}
	const stopped = `SELECT count(*) FROM messaging.tenant_rails WHERE channel = $1 AND rail = 'marketing' AND paused_at IS NOT NULL AND paused_by = 'breaker'`
	if err := s.pool.QueryRow(ctx, stopped, channel).Scan(&o.Stopped); err != nil {
		return o, fmt.Errorf("count whose marketing is stopped: %w", err)
	}
	return o, nil
}
