package blast

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
)

// Quota is a limit that the provider's account has on messages, as it stands.
type Quota struct {
	Limit   int64   `json:"limit"`
	Used    int64   `json:"used"`
	Reserve float64 `json:"reserve"`            // share that marketing leaves to transactional
	Left    int64   `json:"left_for_marketing"` // of this period
	Share   int64   `json:"-"`                  // what marketing may have of a whole period
}

// fresh is the quota at the beginning of a period.
func (q *Quota) fresh() *Quota {
	if q == nil {
		return nil
	}
	return &Quota{Limit: q.Limit, Reserve: q.Reserve, Left: q.Share, Share: q.Share}
}

// Quotas are those of the provider that carries a channel's marketing, by UTC day
// and month; nil is none.
type Quotas struct{ Day, Month *Quota }

// at gives the quotas as they will stand at a later time.
func (q Quotas) at(now, when time.Time) Quotas {
	now, when = now.UTC(), when.UTC()
	if when.Year() > now.Year() || when.Year() == now.Year() && when.YearDay() > now.YearDay() {
		q.Day = q.Day.fresh()
	}
	if when.Year()*12+int(when.Month()) > now.Year()*12+int(now.Month()) {
		q.Month = q.Month.fresh()
	}
	return q
}

// Fit says how a blast goes with the quotas. It is absent where there are none.
type Fit struct {
	Known      bool   `json:"known"` // false: how they stand cannot be seen now
	Day        *Quota `json:"day,omitempty"`
	Month      *Quota `json:"month,omitempty"`
	Fits       *bool  `json:"fits,omitempty"`        // into what is left
	DaysNeeded *int   `json:"days_needed,omitempty"` // UTC days, the first one counted; absent beyond ten years
}

// maxDays bounds what is reckoned ahead: nobody waits longer.
const maxDays = 3653

// fit says how n messages that begin at a time go with the quotas.
func (q Quotas) fit(n int64, start time.Time) *Fit {
	f := &Fit{Known: true, Day: q.Day, Month: q.Month, Fits: new(true)}
	for _, part := range []*Quota{q.Day, q.Month} {
		if part != nil && n > part.Left {
			*f.Fits = false
		}
	}
	if days := q.days(n, start); days > 0 {
		f.DaysNeeded = &days
	}
	return f
}

// days counts the days that n messages take, with nobody beside them; 0 where it
// gives up. A batch goes whole, so what is left of a day for less than one is
// left.
func (q Quotas) days(n int64, start time.Time) int {
	batch := int64(Batch)
	for _, part := range []*Quota{q.Day, q.Month} {
		if part != nil {
			batch = min(batch, max(part.Share, 1))
		}
	}
	for i, at := 1, start.UTC(); i <= maxDays; i, at = i+1, at.AddDate(0, 0, 1) {
		if i > 1 {
			q.Day = q.Day.fresh()
			if at.Day() == 1 {
				q.Month = q.Month.fresh()
			}
		}
		take := n
		for _, part := range []*Quota{q.Day, q.Month} {
			if part != nil {
				take = min(take, part.Left)
			}
		}
		if take < n {
			take -= take % batch
		}
		if n -= take; n <= 0 {
			return i
		}
		if q.Month != nil {
			month := *q.Month
			month.Left -= take
			q.Month = &month
		}
	}
	return 0
}

// room says how n messages of a channel that begin at a time go with the quotas;
// nil where there are none.
func (s *Store) room(ctx context.Context, channel string, n int64, start time.Time) *Fit {
	if s.cfg.Quotas == nil {
		return nil
	}
	q, err := s.cfg.Quotas(ctx, channel)
	switch {
	case err != nil:
		return &Fit{}
	case q == nil:
		return nil
	}
	now := s.cfg.Now()
	if start.Before(now) {
		start = now
	}
	return q.at(now, start).fit(n, start)
}

// overQuota is the refusal of a blast that does not fit; nil where it does, or
// where nobody knows.
func overQuota(n int64, f *Fit) error {
	if f == nil || f.Fits == nil || *f.Fits {
		return nil
	}
	name, q := "day", f.Day
	if q == nil || n <= q.Left {
		name, q = "month", f.Month
	}
	detail := fmt.Sprintf("The blast is for %d, and marketing has %d messages left of the %s's quota (%d, of which %d are used and %.4g %% are kept for transactional messages). ",
		n, q.Left, name, q.Limit, q.Used, 100*q.Reserve)
	if f.DaysNeeded != nil {
		detail += fmt.Sprintf("Start it with over_quota to spread it over %d days.", *f.DaysNeeded)
	} else {
		detail += "Even over days it would not come to an end."
	}
	return refuseState(CodeQuota, detail)
}

// CodeQuota is the code of a refusal for the provider's quota.
const CodeQuota = "quota_exceeded"

// audience counts whom a draft would go to if it started now.
func (s *Store) audience(ctx context.Context, b *Blast) (int64, error) {
	if b.Audience.Type != FromContacts {
		return b.Recipients, nil
	}
	d := &DryRun{Blocked: map[string]int64{}}
	if err := s.lookAtContacts(ctx, b, d); err != nil {
		return 0, err
	}
	d.estimate()
	return d.Sendable, nil
}

// fitting looks, before a draft starts, whether the quotas have room for it.
func (s *Store) fitting(ctx context.Context, tenant, id uuid.UUID, how Start) (*Fit, error) {
	if s.cfg.Quotas == nil {
		return nil, nil //nolint:nilnil // no quotas, no answer
	}
	b, err := read(ctx, s.pool, tenant, id, "")
	if err != nil || b.State != Draft {
		return nil, err
	}
	start := s.cfg.Now()
	if how.At != nil {
		start = *how.At
	}
	f := s.room(ctx, b.Channel, 0, start)
	if f == nil || !f.Known {
		return f, nil // nothing to count for
	}
	n, err := s.audience(ctx, b)
	if err != nil {
		return nil, said("count an audience", err)
	}
	q := Quotas{Day: f.Day, Month: f.Month}
	f = q.fit(n, later(start, s.cfg.Now()))
	if how.OverQuota {
		return f, nil
	}
	return f, overQuota(n, f)
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}
