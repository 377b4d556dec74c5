package bucket

import (
	"context"
	"errors"
	"math"
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
	Quotas    Quotas // as configured
	DayUsed   int
	MonthUsed int
	Waiters   []string // transactional asks that wait for the provider, as tenant:asker
}

var errNoRedis = errors.New("no Redis is known")

// Levels reads a provider's bucket; beside the error, which says that Redis gives
// no answer, it has what is configured.
func (l *Limiter) Levels(ctx context.Context, provider string) (Levels, error) {
	b, _ := l.Rates(provider, uuid.Nil, "")
	out := Levels{Rate: b.Rate, Current: b.Rate, Burst: b.Capacity, Quotas: l.Quotas(provider)}
	if l.deps.Redis == nil {
		return out, errNoRedis
	}
	rctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	var got ratelimit.Levels
	got, err := l.script.Levels(rctx, l.deps.Redis, l.keys(provider, uuid.Nil, ""), l.deps.Now())
	if err != nil {
		return out, err
	}
	out.Current, out.Blocked, out.NextToken = b.Rate*got.Factor, got.Blocked, got.NextToken
	out.DayUsed, out.MonthUsed, out.Waiters = got.DayUsed, got.MonthUsed, got.Waiters
	return out, nil
}

// measure publishes how the providers' quotas stand. What Redis does not say stays
// as it was: a quota that seems free again while Redis is away would end an alert.
func (l *Limiter) measure(ctx context.Context) {
	m := l.deps.Metrics
	if m == nil {
		return
	}
	for name := range l.cfg.Providers {
		got, err := l.Levels(ctx, name)
		m.limit.WithLabelValues(name, periodDay).Set(float64(got.Quotas.Day))
		m.limit.WithLabelValues(name, periodMonth).Set(float64(got.Quotas.Month))
		if err != nil {
			continue
		}
		m.used.WithLabelValues(name, periodDay).Set(float64(got.DayUsed))
		m.used.WithLabelValues(name, periodMonth).Set(float64(got.MonthUsed))
	}
}

// OfMarketing is how many messages of a limit marketing may have: all but the
// reserve, as the script reckons it.
func (q Quotas) OfMarketing(limit int) int { return int(math.Floor(float64(limit) * (1 - q.Reserve))) }

// most is what one request of marketing may hold: at least one message, whatever
// the quotas are.
func (q Quotas) most() int {
	most := math.MaxInt
	for _, limit := range []int{q.Day, q.Month} {
		if limit > 0 {
			most = min(most, q.OfMarketing(limit))
		}
	}
	return max(most, 1)
}
