package webhook

import (
	"errors"
	"math/rand/v2"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/softcrum/carril/dispatcher/webhook/guard"
)

// outcome is what becomes of a delivery after an attempt, or without one.
type outcome int

const (
	delivered outcome = iota // 2xx
	retried                  // failed, to be tried again
	failed                   // failed for the last time
	released                 // back to the table for a reason of ours; nothing is counted
	cancelled                // its endpoint is disabled or gone
)

// verdict is the judgement on an attempt.
type verdict struct {
	outcome outcome
	class   string        // stable name of what happened; see Classes
	asked   bool          // the endpoint was asked, and what it did counts
	wait    time.Duration // until the next attempt
	pause   time.Duration // for which the whole endpoint is left alone
	disable string        // reason for which the endpoint ends; empty: it goes on
	status  int
	answer  []byte
	took    time.Duration
}

// Classes of attempts beside those of guard.Classes.
const (
	classDelivered = "delivered"
	classRedirect  = "redirect"  // 3xx, which is not followed
	classGone      = "gone"      // 410
	classThrottled = "throttled" // 429
	classStatus    = "status"    // any other status
	classNoKey     = "sealed"    // its secrets do not open: our configuration
	classNoTarget  = "endpoint_unknown"
)

// Classes lists every class of an attempt, the values of
// core.webhook_attempts.class.
func Classes() []string {
	out := []string{classDelivered, classRedirect, classGone, classThrottled, classStatus, classNoKey, classNoTarget}
	for _, c := range guard.Classes() {
		out = append(out, string(c))
	}
	return out
}

// judge decides about an attempt that was made.
func (d *Dispatcher) judge(it *delivery, target string, a guard.Answer, err error) verdict {
	v := verdict{status: a.Status, answer: a.Kept, took: a.Took, asked: true}
	if f := (*guard.Failure)(nil); errors.As(err, &f) {
		v.class = string(f.Class)
		if d.egress.ours(f.Class, hostOf(target), time.Now()) {
			return d.blameless(f.Class)
		}
		return d.again(it, v, 0)
	}
	d.egress.reached(hostOf(target), time.Now())
	switch {
	case a.Status >= 200 && a.Status < 300:
		v.outcome, v.class = delivered, classDelivered
		return v
	case a.Status == http.StatusGone:
		v.outcome, v.class, v.disable = failed, classGone, DisabledGone
		return v
	case a.Status == http.StatusTooManyRequests:
		v.class = classThrottled
	case a.Status >= 300 && a.Status < 400:
		v.class = classRedirect
	default:
		v.class = classStatus
	}
	return d.again(it, v, retryAfter(a.RetryAfter, time.Now(), d.cfg.MaxRetryAfter))
}

// maxPause bounds for how long a Retry-After stops a whole endpoint; a single
// delivery may wait longer.
const maxPause = time.Hour

// again gives a failed delivery its next time, or none.
func (d *Dispatcher) again(it *delivery, v verdict, asked time.Duration) verdict {
	if it.attempts >= len(d.cfg.Retries) {
		v.outcome = failed
		return v
	}
	v.outcome, v.wait = retried, max(d.jitter(d.cfg.Retries[it.attempts]), asked)
	if v.status == http.StatusTooManyRequests || v.status == http.StatusServiceUnavailable {
		v.pause = min(asked, maxPause)
	}
	return v
}

// blameless puts a delivery off for a reason of ours, and its endpoint's others
// for as long as they would meet the same.
func (d *Dispatcher) blameless(c guard.Class) verdict {
	v := verdict{outcome: released, class: string(c)}
	switch c {
	case guard.ClassCanceled: // the process stops: another may go on at once
	case guard.ClassBusy:
		v.wait, v.pause = d.jitter(2*time.Second), time.Second
	default:
		v.wait, v.pause = d.jitter(d.cfg.OwnWait), d.cfg.OwnWait/2
	}
	return v
}

// jitter spreads a wait by ±20 %, so that what failed together does not come
// back together.
func (d *Dispatcher) jitter(wait time.Duration) time.Duration {
	return time.Duration(float64(wait) * (0.8 + 0.4*rand.Float64()))
}

// retryAfter reads seconds or an HTTP date. It is honoured upward alone: what is
// absent, past or unreadable is 0, what is longer than the limit is the limit.
func retryAfter(value string, now time.Time, limit time.Duration) time.Duration {
	value = strings.TrimSpace(value)
	if value == "" {
		return 0
	}
	if strings.Trim(value, "0123456789") == "" {
		seconds, err := strconv.ParseInt(value, 10, 64)
		if err != nil || seconds > int64(limit/time.Second) {
			return limit
		}
		return time.Duration(seconds) * time.Second
	}
	at, err := http.ParseTime(value)
	if err != nil {
		return 0
	}
	return min(max(at.Sub(now), 0), limit)
}

// egress remembers whether anybody can be reached at all, to tell an outage of
// ours from an endpoint's (P9). Hosts are of all tenants.
type egress struct {
	mu       sync.Mutex
	answered time.Time            // the last answer of any host
	resolved time.Time            // the last name that was found
	silent   map[string]time.Time // hosts that could not be connected to since
}

const (
	recent     = time.Minute // how long an answer proves that the way out is open
	manySilent = 3           // hosts that fail together, none answering, are our own fault
	maxSilent  = 1024
)

func (e *egress) reached(host string, now time.Time) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.answered = now
	e.named(host, now)
	clear(e.silent)
}

func (e *egress) named(host string, now time.Time) {
	if _, err := netip.ParseAddr(host); err != nil {
		e.resolved = now
	}
}

// ours says whether a failure is to be blamed on us: resources of our own, a
// name server that answers for nobody, a way out that is closed to everybody.
func (e *egress) ours(c guard.Class, host string, now time.Time) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	switch c {
	case guard.ClassLocal, guard.ClassBusy, guard.ClassCanceled:
		return true
	case guard.ClassDNSAway:
		return now.Sub(e.resolved) > recent
	case guard.ClassUnreachable:
		e.fell(host, now)
		return now.Sub(e.answered) > recent
	case guard.ClassConnect:
		e.named(host, now)
		e.fell(host, now)
		return now.Sub(e.answered) > recent && len(e.silent) >= manySilent
	case guard.ClassDNS:
		e.resolved = now // that a name does not exist is an answer too
	case guard.ClassRefused, guard.ClassTLS, guard.ClassTimeout, guard.ClassReset, guard.ClassAnswer:
		e.answered = now
		e.named(host, now)
		clear(e.silent)
	}
	return false
}

func (e *egress) fell(host string, now time.Time) {
	if e.silent == nil || len(e.silent) > maxSilent {
		e.silent = map[string]time.Time{}
	}
	for h, at := range e.silent {
		if now.Sub(at) > 10*recent {
			delete(e.silent, h)
		}
	}
	e.silent[host] = now
}

func hostOf(target string) string {
	u, err := url.Parse(target)
	if err != nil {
		return ""
	}
	return u.Hostname()
}
