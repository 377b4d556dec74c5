package blast

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// Due begins the scheduled blasts of a channel whose time has come.
func (s *Store) Due(ctx context.Context, channel string) (int64, error) {
	const sql = `UPDATE messaging.blasts SET started_at = date_trunc('milliseconds', now()), updated_at = now(),
    state = CASE WHEN audience ->> 'type' = 'contacts' AND prepared_at IS NULL THEN 'preparing' ELSE 'running' END
WHERE channel = $1 AND state = 'scheduled' AND start_at <= now()`
	tag, err := s.pool.Exec(ctx, sql, channel)
	if err != nil {
		return 0, fmt.Errorf("begin scheduled blasts: %w", err)
	}
	return tag.RowsAffected(), nil
}

// Finish ends the running blasts of a channel whose recipients all have their
// outcome. The counts are read once the row is locked: a replay that makes some
// pending again holds it too.
func (s *Store) Finish(ctx context.Context, channel string) (done int64, err error) {
	err = pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		const look = `SELECT blast_id FROM messaging.blasts WHERE channel = $1 AND state = 'running' AND fed >= recipients ORDER BY blast_id FOR UPDATE SKIP LOCKED`
		rows, err := tx.Query(ctx, look, channel)
		if err != nil {
			return err
		}
		fed, err := pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
		if err != nil || len(fed) == 0 {
			return err
		}
		const end = `UPDATE messaging.blasts b SET state = 'done', state_reason = CASE WHEN recipients = 0 THEN 'no_recipients' END, finished_at = now(), updated_at = now()
WHERE b.blast_id = ANY($1) AND coalesce((SELECT sum(n) FROM messaging.blast_counts c WHERE c.blast_id = b.blast_id AND c.what = 'pending'), 0) = 0`
		tag, err := tx.Exec(ctx, end, fed)
		done = tag.RowsAffected()
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("end finished blasts: %w", err)
	}
	return done, nil
}

// Outcomes are what was reported lately of a blast's messages.
type Outcomes struct{ Reported, Bounced, Complained float64 }

// Trip says why these outcomes must pause a blast; empty: they need not. All
// tenants share one account at the provider.
func (c Breaker) Trip(o Outcomes) string {
	switch {
	case o.Reported < float64(c.Few):
	case o.Bounced > c.Bounces*o.Reported:
		return "bounces"
	case o.Complained >= 2 && o.Complained > c.Complaints*o.Reported: // one alone is nobody's trend
		return "complaints"
	}
	return ""
}

const outcomesSQL = `SELECT coalesce(sum(n) FILTER (WHERE what = 'reported'), 0)::float8, coalesce(sum(n) FILTER (WHERE what = 'bounced'), 0)::float8,
    coalesce(sum(n) FILTER (WHERE what = 'complained'), 0)::float8
FROM messaging.blast_counts c WHERE c.blast_id = $1 AND c.at >= now() - $2::interval
    AND c.at >= coalesce((SELECT judged_from FROM messaging.blasts b WHERE b.blast_id = $1), '-infinity')`

// Judge pauses a running blast by the outcomes that its sends had lately, and
// gives the reason, or "". Who resumes it starts a new window. A tenant whose
// blasts are paused like that again and again has its marketing stopped.
func (s *Store) Judge(ctx context.Context, tx pgx.Tx, tenant, id uuid.UUID, channel string) (string, Outcomes, error) {
	var o Outcomes
	if err := tx.QueryRow(ctx, outcomesSQL, id, s.cfg.Breaker.Window).Scan(&o.Reported, &o.Bounced, &o.Complained); err != nil {
		return "", o, fmt.Errorf("count a blast's outcomes: %w", err)
	}
	reason := s.cfg.Breaker.Trip(o)
	if reason == "" {
		return "", o, nil
	}
	const pause = `UPDATE messaging.blasts SET state = 'paused', state_reason = $2, tripped_at = now(), trips = trips + 1, updated_at = now() WHERE blast_id = $1 AND state = 'running'`
	tag, err := tx.Exec(ctx, pause, id, reason)
	if err != nil {
		return "", o, fmt.Errorf("pause a blast: %w", err)
	}
	if tag.RowsAffected() == 0 {
		return "", o, nil
	}
	if s.cfg.Breaker.Trips < 0 {
		return reason, o, nil
	}
	const stop = `INSERT INTO messaging.tenant_rails AS r (tenant_id, channel, rail, paused_at, paused_by)
SELECT $1, $2, 'marketing', now(), 'breaker' WHERE $3 <= (SELECT coalesce(sum(trips), 0) FROM messaging.blasts
    WHERE tenant_id = $1 AND channel = $2 AND tripped_at > now() - interval '7 days')
ON CONFLICT (tenant_id, channel, rail) DO UPDATE SET paused_at = coalesce(r.paused_at, now()), paused_by = coalesce(r.paused_by, 'breaker')`
	if _, err := tx.Exec(ctx, stop, tenant, channel, s.cfg.Breaker.Trips); err != nil {
		return "", o, fmt.Errorf("stop a tenant's marketing: %w", err)
	}
	return reason, o, nil
}

// PausedBlast is a blast that Watch has paused, and for what.
type PausedBlast struct {
	BlastID, TenantID uuid.UUID
	Reason            string
	Outcomes          Outcomes
}

// Watch judges every running blast of a channel.
func (s *Store) Watch(ctx context.Context, channel string) (paused []PausedBlast, err error) {
	rows, err := s.pool.Query(ctx, `SELECT blast_id, tenant_id FROM messaging.blasts WHERE channel = $1 AND state = 'running' AND fed > 0`, channel)
	if err != nil {
		return nil, fmt.Errorf("list running blasts: %w", err)
	}
	type running struct{ ID, Tenant uuid.UUID }
	list, err := pgx.CollectRows(rows, pgx.RowToStructByPos[running])
	if err != nil {
		return nil, fmt.Errorf("list running blasts: %w", err)
	}
	for _, b := range list {
		err := pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
			reason, o, err := s.Judge(ctx, tx, b.Tenant, b.ID, channel)
			if reason != "" {
				paused = append(paused, PausedBlast{b.ID, b.Tenant, reason, o})
			}
			return err
		})
		if err != nil {
			return paused, err
		}
	}
	return paused, nil
}

// Settled says how many of a blast's recipients have what the breaker waits
// for: a provider's report, or an end without one.
func (s *Store) Settled(ctx context.Context, tx pgx.Tx, id uuid.UUID) (reported, never int64, err error) {
	const sql = `SELECT coalesce(sum(n) FILTER (WHERE what = 'reported'), 0)::bigint,
    coalesce(sum(n) FILTER (WHERE what IN ('failed', 'expired', 'blocked', 'cancelled', 'dead', 'needs_review')), 0)::bigint
FROM messaging.blast_counts WHERE blast_id = $1`
	if err := tx.QueryRow(ctx, sql, id).Scan(&reported, &never); err != nil {
		return 0, 0, fmt.Errorf("look at a blast's first outcomes: %w", err)
	}
	return reported, never, nil
}

// foldAbove is how many rows of counts a blast may have before they are folded.
const foldAbove = 200

// foldKept is how long the time of a change is kept: a little more than the
// breaker's window.
const foldKept = 65 * time.Minute

const foldSQL = `WITH gone AS (DELETE FROM messaging.blast_counts WHERE blast_id = $1 RETURNING at, what, reason, n)
INSERT INTO messaging.blast_counts (blast_id, at, what, reason, n)
SELECT $1, CASE WHEN at > now() - $2::interval THEN at ELSE 'epoch' END, what, reason, sum(n) FROM gone GROUP BY 2, 3, 4 HAVING sum(n) <> 0`

// Fold adds up the counts of blasts that have many rows of them. Readers see
// the same sums before and after; writers only ever add rows and wait for
// nothing.
func (s *Store) Fold(ctx context.Context) (folded int, err error) {
	rows, err := s.pool.Query(ctx, `SELECT blast_id FROM messaging.blast_counts GROUP BY 1
HAVING count(*) > $1 AND count(*) > 1.5 * count(DISTINCT (CASE WHEN at > now() - $2::interval THEN at ELSE 'epoch' END, what, reason))`, foldAbove, foldKept)
	if err != nil {
		return 0, fmt.Errorf("list blasts to fold: %w", err)
	}
	blasts, err := pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
	if err != nil {
		return 0, fmt.Errorf("list blasts to fold: %w", err)
	}
	for _, id := range blasts {
		if _, err := s.pool.Exec(ctx, foldSQL, id, foldKept); err != nil {
			return folded, fmt.Errorf("fold a blast's counts: %w", err)
		}
		folded++
	}
	return folded, nil
}
