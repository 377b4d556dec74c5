package limit

import (
	"fmt"
	"math"
	"net/http"
	"strconv"
	"time"
)

// fixedHeaders are those that change with the limits alone; answers share them.
type fixedHeaders struct {
	policy []string
	limits [2][]string // of the tenant's bucket and the key's
}

// headers writes the three fields that clients know and the two structured ones
// of draft-ietf-httpapi-ratelimit-headers-10. A policy's quota is the burst and
// its window the time in which the burst comes back, so that q/w is the rate; a
// unit is a request by the draft's default, of which a batch spends one an event.
// On a refusal the tighter policy's t is the wait, which is Retry-After too.
func (t *tenant) headers(h http.Header, b *budget, wait time.Duration, now int64) {
	if b.fixed.policy == nil {
		b.fixed = fix(&t.plan, &b.own)
	}
	plan := figure{t.plan.remaining(b.tokens, now), seconds(time.Duration(t.plan.full - now))}
	var own figure
	tight, which := &plan, 0
	if b.own.rate > 0 {
		own = figure{b.own.remaining(b.tokens, now), seconds(time.Duration(b.own.full - now))}
		if own.remaining < plan.remaining {
			tight, which = &own, 1
		}
	}
	if wait > 0 {
		tight.reset = seconds(wait)
	}
	var room [96]byte
	text := plan.append(append(room[:0], `"plan"`...))
	if b.own.rate > 0 {
		text = own.append(append(text, `, "key"`...))
	}
	structured := len(text)
	text = strconv.AppendInt(text, tight.remaining, 10)
	remaining := len(text)
	text = strconv.AppendInt(text, tight.reset, 10)
	all := string(text)
	values := []string{all[:structured], all[structured:remaining], all[remaining:]}
	h["RateLimit-Policy"] = b.fixed.policy
	h["RateLimit-Limit"] = b.fixed.limits[which]
	h["RateLimit"] = values[0:1:1]
	h["RateLimit-Remaining"] = values[1:2:2]
	h["RateLimit-Reset"] = values[2:3:3]
}

// figure is a policy's state.
type figure struct{ remaining, reset int64 }

func (f figure) append(b []byte) []byte {
	b = strconv.AppendInt(append(b, ";r="...), f.remaining, 10)
	return strconv.AppendInt(append(b, ";t="...), f.reset, 10)
}

func seconds(d time.Duration) int64 {
	if d <= 0 {
		return 0
	}
	return int64((d + time.Second - 1) / time.Second)
}

func fix(plan, own *level) fixedHeaders {
	policy := policyOf("plan", plan)
	f := fixedHeaders{limits: [2][]string{{strconv.Itoa(int(plan.burst))}, nil}}
	if own.rate > 0 {
		policy += ", " + policyOf("key", own)
		f.limits[1] = []string{strconv.Itoa(int(own.burst))}
	}
	f.policy = []string{policy}
	return f
}

func policyOf(name string, b *level) string {
	return fmt.Sprintf("%q;q=%d;w=%d", name, int(b.burst), int(math.Ceil(b.burst/b.rate)))
}
