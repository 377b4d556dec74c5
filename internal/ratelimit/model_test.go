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
	marks, served map[ratelimit.Mode]map[string]int64
}

func newModel(now int64) *model {
	return &model{now: now, tenantFull: map[string]int64{}, factor: 1, marks: orders(), served: orders()}
}

func orders() map[ratelimit.Mode]map[string]int64 {
	return map[ratelimit.Mode]map[string]int64{ratelimit.Transactional: {}, ratelimit.Marketing: {}, ratelimit.Plain: {}}
}

// order is in whose order an ask waits and is served.
func order(mode ratelimit.Mode) ratelimit.Mode {
	if mode == ratelimit.Renew {
		return ratelimit.Transactional
	}
	return mode
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
	marks, served := m.marks[order(a.Mode)], m.served[order(a.Mode)]
	if a.Mode == ratelimit.Renew { // granted or not, what it had is as if it had never been
		delete(served, a.TenantID)
	}
	n := cost
	if a.Tenant.Rate > 0 {
		step := 1e6 / a.Tenant.Rate
		debt := math.Min(float64(max(0, m.tenantFull[a.TenantID]-m.now)), a.Tenant.Capacity*step)
		m.tenantFull[a.TenantID] = min(m.tenantFull[a.TenantID], m.now+int64(math.RoundToEven(debt)))
		free := int(math.Floor(a.Tenant.Capacity - debt/step + 1e-9))
		if free < least {
			delete(marks, member)
			return 0, ratelimit.Tenant, debt + float64(least)*step - a.Tenant.Capacity*step
		}
		n = min(n, free)
	}
	refuse := func(why ratelimit.Reason, wait float64) (int, ratelimit.Reason, float64) {
		if a.Mode != ratelimit.Plain && (a.Mode != ratelimit.Marketing || why != ratelimit.Blocked) {
			wait = math.Min(wait, 2e6)
			marks[member] = int64(math.RoundToEven(float64(m.now) + wait + 100e3))
		}
		return 0, why, wait
	}
	if m.blocked > m.now {
		return refuse(ratelimit.Blocked, float64(m.blocked-m.now))
	}
	step := 1e6 / (a.Provider.Rate * m.currentFactor())
	debt := math.Min(float64(max(0, m.providerFull-m.now)), a.Provider.Capacity*step)
	m.providerFull = min(m.providerFull, m.now+int64(math.RoundToEven(debt)))
	wanted, spare := least, 0
	if a.Mode == ratelimit.Marketing && a.Provider.Capacity >= 2 {
		wanted, spare = least+1, 1
	}
	free := int(math.Floor(a.Provider.Capacity - debt/step + 1e-9))
	if free < wanted {
		return refuse(ratelimit.Provider, debt+float64(wanted)*step-a.Provider.Capacity*step)
	}
	free -= spare
	if a.Mode == ratelimit.Transactional || a.Mode == ratelimit.Marketing {
		if wait, turn := m.otherTurn(a, step, m.providerFull); turn {
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
	delete(marks, member)
	served[a.TenantID] = m.now
	return n, ratelimit.Granted, 0
}

// live gives who waits, and until when.
func (m *model) live(mode ratelimit.Mode) map[string]int64 {
	live := map[string]int64{}
	for member, end := range m.marks[mode] {
		if end > m.now && end <= m.now+2_100_000 {
			who, _, _ := strings.Cut(member, ":")
			live[who] = max(live[who], end)
		}
	}
	return live
}

// waiting lists the transactional asks whose marks live.
func (m *model) waiting() []string {
	out := []string{}
	for member, end := range m.marks[ratelimit.Transactional] {
		if end > m.now && end <= m.now+2_100_000 {
			out = append(out, member)
		}
	}
	return out
}

// otherTurn says that the free token is somebody else's.
func (m *model) otherTurn(a ratelimit.Ask, step float64, full int64) (wait float64, yes bool) {
	if a.Mode == ratelimit.Marketing && len(m.live(ratelimit.Transactional)) > 0 {
		return math.Min(step, 100e3), true
	}
	if a.Mode == ratelimit.Marketing && float64(m.now-full) >= step {
		return 0, false // nobody has fetched it
	}
	served := m.served[a.Mode]
	var waiting []int64
	firstEnd := map[int64]int64{}
	for who, end := range m.live(a.Mode) {
		if who != a.TenantID && served[who] < served[a.TenantID] {
			waiting = append(waiting, served[who])
			if old, ok := firstEnd[served[who]]; !ok || end < old {
				firstEnd[served[who]] = end
			}
		}
	}
	if len(waiting) == 0 {
		return 0, false
	}
	end := firstEnd[slices.Min(waiting)]
	return math.Max(1000, math.Min(step, float64(end-m.now))), true
}
