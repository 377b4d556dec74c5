package ratelimit_test

import (
	"math"
	"slices"
	"strings"

	"github.com/softcrum/carril/internal/ratelimit"
)

// model is the script's meaning, written apart from it: debts instead of
// arrival times, slices instead of sorted sets.
type model struct {
	now           int64 // µs
	providerFull  int64 // when the provider's bucket owes nothing more
	tenantFull    map[string]int64
	blocked       int64
	factor        float64
	factorAt, cut int64
	marks         map[string]int64
	served        map[string]int64
}

func newModel(now int64) *model {
	return &model{now: now, tenantFull: map[string]int64{}, factor: 1, marks: map[string]int64{}, served: map[string]int64{}}
}

func (m *model) currentFactor() float64 {
	if m.now <= m.factorAt {
		return m.factor
	}
	return m.factor + (1-m.factor)*math.Min(1, float64(m.now-m.factorAt)/100e6)
}

func (m *model) report(kind string, granted, retry int64) {
	fresh := granted > m.cut
	if granted == 0 {
		fresh = m.blocked <= m.now
	}
	f := m.currentFactor()
	m.blocked = max(m.blocked, m.now+min(retry, 900e6))
	if kind != "rate" {
		return
	}
	if fresh {
		f, m.cut = math.Max(0.1, 0.7*f), m.now
	}
	m.factor, m.factorAt = f, m.blocked
}

// take gives the tokens, the reason and the wait in µs.
func (m *model) take(a ratelimit.Ask) (int, ratelimit.Reason, float64) {
	cost, least := max(a.Cost, 1), a.Least
	if least == 0 {
		least = cost
	}
	member := a.TenantID + ":" + a.Asker
	n := cost
	if a.Tenant.Rate > 0 {
		step := 1e6 / a.Tenant.Rate
		debt := math.Min(float64(max(0, m.tenantFull[a.TenantID]-m.now)), a.Tenant.Capacity*step)
		m.tenantFull[a.TenantID] = min(m.tenantFull[a.TenantID], m.now+int64(math.RoundToEven(debt)))
		free := int(math.Floor(a.Tenant.Capacity - debt/step + 1e-9))
		if free < least {
			if a.Mode == ratelimit.Transactional {
				delete(m.marks, member)
			}
			return 0, ratelimit.Tenant, debt + float64(least)*step - a.Tenant.Capacity*step
		}
		n = min(n, free)
	}
	refuse := func(why ratelimit.Reason, wait float64) (int, ratelimit.Reason, float64) {
		if a.Mode == ratelimit.Transactional {
			wait = math.Min(wait, 2e6)
			m.marks[member] = int64(math.RoundToEven(float64(m.now) + wait + 100e3))
		}
		return 0, why, wait
	}
	if m.blocked > m.now {
		return refuse(ratelimit.Blocked, float64(m.blocked-m.now))
	}
	step := 1e6 / (a.Provider.Rate * m.currentFactor())
	debt := math.Min(float64(max(0, m.providerFull-m.now)), a.Provider.Capacity*step)
	m.providerFull = min(m.providerFull, m.now+int64(math.RoundToEven(debt)))
	free := int(math.Floor(a.Provider.Capacity - debt/step + 1e-9))
	if free < least {
		return refuse(ratelimit.Provider, debt+float64(least)*step-a.Provider.Capacity*step)
	}
	if a.Mode != ratelimit.Plain {
		if wait, turn := m.otherTurn(a, step); turn {
			return refuse(ratelimit.Waiter, wait)
		}
	}
	n = min(n, free)
	m.providerFull = int64(math.RoundToEven(float64(m.now) + debt + float64(n)*step))
	if a.Tenant.Rate > 0 {
		tstep := 1e6 / a.Tenant.Rate
		tdebt := math.Min(float64(max(0, m.tenantFull[a.TenantID]-m.now)), a.Tenant.Capacity*tstep)
		m.tenantFull[a.TenantID] = int64(math.RoundToEven(float64(m.now) + tdebt + float64(n)*tstep))
	}
	if a.Mode == ratelimit.Transactional {
		delete(m.marks, member)
		m.served[a.TenantID] = m.now
	}
	return n, ratelimit.Granted, 0
}

// otherTurn says that the free token is somebody else's.
func (m *model) otherTurn(a ratelimit.Ask, step float64) (wait float64, yes bool) {
	live := map[string]int64{} // tenant -> last end
	for member, end := range m.marks {
		if end > m.now && end <= m.now+2_100_000 {
			who, _, _ := strings.Cut(member, ":")
			live[who] = max(live[who], end)
		}
	}
	if a.Mode == ratelimit.Marketing {
		return math.Min(step, 100e3), len(live) > 0
	}
	var waiting []int64
	firstEnd := map[int64]int64{}
	for who, end := range live {
		if who != a.TenantID && m.served[who] < m.served[a.TenantID] {
			waiting = append(waiting, m.served[who])
			if old, ok := firstEnd[m.served[who]]; !ok || end < old {
				firstEnd[m.served[who]] = end
			}
		}
	}
	if len(waiting) == 0 {
		return 0, false
	}
	end := firstEnd[slices.Min(waiting)]
	return math.Max(1000, math.Min(step, float64(end-m.now))), true
}
