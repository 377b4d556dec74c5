package blast

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
)

// Progress is how far a blast has come, in recipients. The eight outcomes add
// up to Total at every moment.
type Progress struct {
	Total       int64 `json:"total"`
	Sent        int64 `json:"sent"`
	Failed      int64 `json:"failed"`
	Expired     int64 `json:"expired"`
	Blocked     int64 `json:"blocked"` // by a gate: no consent, suppressed, …
	Cancelled   int64 `json:"cancelled"`
	NeedsReview int64 `json:"needs_review"` // a person must look: nobody knows whether they were sent
	Dead        int64 `json:"dead"`         // given up; a replay makes them pending again
	Pending     int64 `json:"pending"`
	Queued      int64 `json:"queued"` // of the pending: handed to the rail already

	PerSecond    float64    `json:"per_second"`              // recipients that got an outcome, over the last five minutes
	EstimatedEnd *time.Time `json:"estimated_end,omitempty"` // at that pace, while it runs; nil where nobody knows
	HeldUp       string     `json:"-"`                       // why a running blast sends nothing more for now: Held or ForOutcomes; empty: it does

	reported int64 // of the sent, by the provider
	held     bool
}

// ForOutcomes is what holds a blast up that waits for the outcomes of its first
// sends.
const ForOutcomes = "first_outcomes"

// Sum adds the outcomes up: it is Total.
func (p *Progress) Sum() int64 {
	return p.Sent + p.Failed + p.Expired + p.Blocked + p.Cancelled + p.NeedsReview + p.Dead + p.Pending
}

const progressSums = `SELECT
    coalesce(sum(n) FILTER (WHERE what = 'sent'), 0)::bigint AS sent, coalesce(sum(n) FILTER (WHERE what = 'failed'), 0)::bigint AS failed,
    coalesce(sum(n) FILTER (WHERE what = 'expired'), 0)::bigint AS expired, coalesce(sum(n) FILTER (WHERE what = 'blocked'), 0)::bigint AS blocked,
    coalesce(sum(n) FILTER (WHERE what = 'cancelled'), 0)::bigint AS cancelled, coalesce(sum(n) FILTER (WHERE what = 'needs_review'), 0)::bigint AS needs_review,
    coalesce(sum(n) FILTER (WHERE what = 'dead'), 0)::bigint AS dead, coalesce(sum(n) FILTER (WHERE what = 'pending'), 0)::bigint AS pending,
    coalesce(sum(n) FILTER (WHERE at > now() - interval '5 minutes' AND what IN ('sent', 'failed', 'expired', 'blocked', 'needs_review', 'dead')), 0)::bigint AS lately,
    coalesce(sum(n) FILTER (WHERE what = 'reported'), 0)::bigint AS reported
FROM messaging.blast_counts k WHERE k.blast_id = b.blast_id`

const progressColumns = `c.sent, c.failed, c.expired, c.blocked, c.cancelled, c.needs_review, c.dead, c.pending,
    CASE WHEN b.started_at IS NULL THEN 0 ELSE c.lately / greatest(extract(epoch FROM least(now() - b.started_at, interval '5 minutes')), 1) END::float8,
    c.reported, b.state = 'running' AND ` + heldSQL

func (p *Progress) fields() []any {
	return []any{&p.Sent, &p.Failed, &p.Expired, &p.Blocked, &p.Cancelled, &p.NeedsReview, &p.Dead, &p.Pending, &p.PerSecond, &p.reported, &p.held}
}

// complete completes the progress of a blast.
func (s *Store) complete(p *Progress, b *Blast) *Progress {
	p.Total = b.Recipients
	if p.Queued = p.Pending - (b.Recipients - b.fed); p.Queued < 0 || b.State == Cancelled {
		p.Queued = p.Pending // what was never fed is cancelled
		if b.State != Cancelled {
			p.Queued = 0
		}
	}
	p.HeldUp = s.heldUp(p, b)
	if b.State == Running && p.PerSecond > 0 && p.HeldUp == "" && s.passed(b) {
		p.EstimatedEnd = new(time.Now().Add(time.Duration(float64(p.Pending) / p.PerSecond * float64(time.Second))).UTC().Truncate(time.Second))
	}
	return p
}

// heldUp says what a running blast waits for.
func (s *Store) heldUp(p *Progress, b *Blast) string {
	never := p.Failed + p.Expired + p.Blocked + p.Cancelled + p.NeedsReview + p.Dead
	switch {
	case b.State != Running:
		return ""
	case p.held:
		return Held
	case b.fed < b.Recipients && s.cfg.First.Reached(b.fed, Batch) && s.cfg.First.Waits(b.fed, time.Since(b.UpdatedAt), p.reported, never):
		return ForOutcomes
	}
	return ""
}

// passed says whether a blast has its wait for the first outcomes behind it, or
// will not have one. How long one that is still to come takes, nobody knows.
func (s *Store) passed(b *Blast) bool {
	after := int64(s.cfg.First.After)
	return after < 0 || b.fed >= after || b.Recipients <= after
}

// Report is what has come of a blast: what was reported of its messages, each
// recipient once for each step, and why others got none.
type Report struct {
	BlastID      uuid.UUID                   `json:"blast_id"`
	State        string                      `json:"state"`
	Recipients   int64                       `json:"recipients"`
	Sent         int64                       `json:"sent"`
	Delivered    int64                       `json:"delivered"`
	Opened       int64                       `json:"opened"`
	Clicked      int64                       `json:"clicked"`
	Bounced      int64                       `json:"bounced"`
	Complained   int64                       `json:"complained"`
	Unsubscribed int64                       `json:"unsubscribed"` // since it began, among its recipients
	Reasons      map[string]map[string]int64 `json:"reasons"`      // by outcome, then by reason
	StartedAt    *time.Time                  `json:"started_at,omitempty"`
	FinishedAt   *time.Time                  `json:"finished_at,omitempty"`
}

// Report reads what has come of a blast so far.
func (s *Store) Report(ctx context.Context, tenant, id uuid.UUID) (*Report, error) {
	b, err := read(ctx, s.pool, tenant, id, "")
	if err != nil {
		return nil, err
	}
	r := &Report{BlastID: id, State: b.State, Recipients: b.Recipients, Reasons: map[string]map[string]int64{}, StartedAt: b.StartedAt, FinishedAt: b.FinishedAt}
	rows, err := s.pool.Query(ctx, `SELECT what, reason, sum(n)::bigint FROM messaging.blast_counts WHERE blast_id = $1 GROUP BY 1, 2 HAVING sum(n) <> 0`, id)
	if err != nil {
		return nil, fmt.Errorf("read a blast's counts: %w", err)
	}
	defer rows.Close()
	for rows.Next() {
		var what, reason string
		var n int64
		if err := rows.Scan(&what, &reason, &n); err != nil {
			return nil, fmt.Errorf("read a blast's counts: %w", err)
		}
		r.count(what, reason, n)
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("read a blast's counts: %w", err)
	}
	if b.StartedAt == nil {
		return r, nil
	}
	if err := s.pool.QueryRow(ctx, `SELECT messaging.blast_unsubscribed($1)`, id).Scan(&r.Unsubscribed); err != nil {
		return nil, fmt.Errorf("count who has unsubscribed: %w", err)
	}
	return r, nil
}

func (r *Report) count(what, reason string, n int64) {
	for name, to := range map[string]*int64{"sent": &r.Sent, "delivered": &r.Delivered, "opened": &r.Opened, "clicked": &r.Clicked, "bounced": &r.Bounced, "complained": &r.Complained} {
		if name == what {
			*to += n
		}
	}
	if reason != "" {
		if r.Reasons[what] == nil {
			r.Reasons[what] = map[string]int64{}
		}
		r.Reasons[what][reason] += n
	}
}
