package rail

import "time"

// route is the way to one provider: its own breaker, and by its name its own
// bucket. It is guarded by its worker's mutex.
type route struct {
	name   string
	listed bool // takes new generations; another is there for those of its own that are uncertain
	health breaker
}

// The longest pause before a probe. Where others can carry the messages
// meanwhile, a probe may cost one of them its certainty for nothing, so it comes
// seldom.
const (
	maxPauseAlone = 5 * time.Second
	maxPauseAmong = time.Minute
)

// newRoutes makes the ways to the providers, in their order of preference.
func newRoutes(names []string) []*route {
	longest := maxPauseAlone
	if len(names) > 1 {
		longest = maxPauseAmong
	}
	out := make([]*route, len(names))
	for i, name := range names {
		out[i] = &route{name: name, listed: true, health: breaker{longest: longest}}
	}
	return out
}

// routeTo gives the way to a provider, as an uncertain generation needs it.
func (w *Worker) routeTo(name string) *route {
	for _, r := range w.routes {
		if r.name == name {
			return r
		}
	}
	r := &route{name: name, health: breaker{longest: maxPauseAlone}} // taken out of the list since
	w.routes = append(w.routes, r)
	return r
}

// standstill says how long nothing at all may leave, whichever way.
func (w *Worker) standstill(now time.Time) time.Duration {
	least := time.Duration(-1)
	for _, r := range w.routes {
		if wait := r.health.wait(now); least < 0 || wait < least {
			least = wait
		}
	}
	return max(least, 0)
}

// way gives the route of a job, or how long it has none. What may have been
// taken stays with its provider, whatever becomes of that; all else goes by the
// first one that is in order (I46).
func (w *Worker) way(it *item, now time.Time) (*route, time.Duration) {
	if it.bound != "" {
		r := w.routeTo(it.bound)
		return r, r.health.wait(now)
	}
	least := time.Duration(-1)
	for _, r := range w.routes {
		if !r.listed {
			continue
		}
		wait := r.health.wait(now)
		if wait == 0 && r.health.open() && w.others(r) && w.ring.boundTo(r.name, now.Add(time.Second)) {
			wait = time.Second // its probe is one of those that have no choice
		}
		if wait == 0 {
			return r, 0
		}
		if least < 0 || wait < least {
			least = wait
		}
	}
	return nil, max(least, 0)
}

// others says that a new generation has another way than this one.
func (w *Worker) others(r *route) bool {
	for _, o := range w.routes {
		if o != r && o.listed {
			return true
		}
	}
	return false
}

// using names the provider that a new generation would go to now, and why the
// rail stands still where it would go to none.
func (w *Worker) using(now time.Time) (name, reason string) {
	for _, r := range w.routes {
		if !r.listed {
			continue
		}
		if !r.health.open() && !r.health.until.After(now) {
			return r.name, ""
		}
		if reason == "" {
			reason = r.health.reason
		}
	}
	return "", reason
}
