package bucket

import (
	"context"
	"time"

	"github.com/google/uuid"

	"github.com/softcrum/carril/internal/ratelimit"
)

// Levels is a provider's bucket as it stands.
type Levels struct {
	Rate      float64       // requests a second as configured
	Current   float64       // … as used now: less after a 429
	Burst     float64       // capacity
	Blocked   time.Duration // the provider asked for a pause: what is left of it
	NextToken time.Duration
	DayUsed   int
	DayQuota  int // 0: none known
	MonthUsed int
	Waiters   []string // transactional asks that wait for the provider, as tenant:asker
}

// Levels reads a provider's bucket; the error says that Redis gives no answer.
func (l *Limiter) Levels(ctx context.Context, provider string) (Levels, error) {
	b, _ := l.Rates(provider, uuid.Nil, "")
	out := Levels{Rate: b.Rate, Current: b.Rate, Burst: b.Capacity, DayQuota: l.cfg.Providers[provider].DayQuota}
	rctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	var got ratelimit.Levels
	got, err := l.script.Levels(rctx, l.deps.Redis, l.keys(provider, uuid.Nil, ""), time.Now())
	if err != nil {
		return out, err
	}
	out.Current, out.Blocked, out.NextToken = b.Rate*got.Factor, got.Blocked, got.NextToken
	out.DayUsed, out.MonthUsed, out.Waiters = got.DayUsed, got.MonthUsed, got.Waiters
	return out, nil
}
