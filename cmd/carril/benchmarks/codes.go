package benchmarks

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/softcrum/carril/internal/bench"
)

// burstOf is how many codes a burst asks for at once.
const burstOf = 10

// code is a one-time code that was asked for and promised by a 202.
type code struct {
	request  uuid.UUID
	burst    bool
	shadowed bool // alone, and asked for while a burst of its tenant's must still be going out
	asked    time.Time
	accepted time.Time
	received time.Time // when the provider was first asked for it; zero: never
}

// codes is one measurement of them.
type codes struct {
	start  time.Time
	end    time.Time // when the provider had all of them
	took   time.Duration
	list   []code
	errors map[bool]map[string]uint64 // of those that got no 202: of bursts, and of the others
	bursts []time.Time
	steps  []bench.Step

	mu sync.Mutex // list, errors
}

// codeBody is a request for a code, of size bytes, with marks where requests
// differ.
func codeBody(size int) ([]byte, error) {
	const form = `{"idempotency_key":"bench-` + keyMark + `","channel":"email","category":"transactional",` +
		`"recipients":[{"address":"c-` + personMark + `@example.com"}],"content":{"subject":"Your code","text":"493021 is your code of %s. %s"}}`
	return fillBody(form, size, time.Now())
}

// asks makes ops that ask for a code each and note it in c.
func (b *blastRun) asks(c *codes, conns int, burst bool) generator {
	var g generator
	addr := hostOf(b.whole.API)
	for range conns {
		conn := bench.NewConn(addr, opTimeout)
		req := newStencil(bench.Request(http.MethodPost, "/v1/messaging/messages", addr, b.body, "Authorization: Bearer "+b.b.key, "Content-Type: application/json"))
		g.conns = append(g.conns, conn)
		g.ops = append(g.ops, func(ctx context.Context) error {
			n := b.next.Add(1)
			req.setOne(n, personOf(n, people))
			one := code{burst: burst, asked: time.Now()}
			body, err := conn.Do(ctx, req.bytes, http.StatusAccepted)
			one.accepted = time.Now()
			c.mu.Lock()
			defer c.mu.Unlock()
			if err == nil {
				one.request, err = requestID(body)
			}
			if err != nil {
				c.errors[burst][bench.Class(err)]++
				return err
			}
			c.list = append(c.list, one)
			return nil
		})
	}
	return g
}

func requestID(body []byte) (uuid.UUID, error) {
	var answer struct {
		RequestID uuid.UUID `json:"request_id"`
	}
	if err := json.Unmarshal(body, &answer); err != nil || answer.RequestID == uuid.Nil {
		return uuid.Nil, errors.New("a 202 without a request_id")
	}
	return answer.RequestID, nil
}

// measureCodes asks for codes in an open loop, and for bursts of them beside,
// and waits until the provider has them.
func (b *blastRun) measureCodes(ctx context.Context, d time.Duration, what string) (*codes, error) {
	c := &codes{start: time.Now(), errors: map[bool]map[string]uint64{false: {}, true: {}}}
	alone, together := b.asks(c, 16, false), b.asks(c, burstOf, true)
	defer alone.close()
	defer together.close()
	had := b.from(b.b)
	end := b.progress.For("blast-vs-otp: "+what, d)
	defer end()
	var beside sync.WaitGroup
	beside.Go(func() { c.burst(ctx, together.ops, b.Bursts, d, b.Rate) })
	loop := bench.OpenLoop{Rate: b.Rate, Duration: d, Drain: opTimeout}.Run(ctx, alone.ops)
	beside.Wait()
	c.took = time.Since(c.start)
	if n := loop.Errors[bench.ErrNotStarted.Error()]; n > 0 {
		c.errors[false][bench.ErrNotStarted.Error()] += n
	}
	for waiting := time.Now(); b.from(b.b) < had+len(c.list) && time.Since(waiting) < e2eDrain; {
		if err := b.whole.wait(ctx, 200*time.Millisecond); err != nil {
			return nil, err
		}
	}
	return c, b.join(ctx, c)
}

// burst asks for ten codes at once, again and again, in the middle of every
// interval and between two of the codes that come alone: one that came at the
// same moment would wait for the burst and not count as behind it.
func (c *codes) burst(ctx context.Context, ops []bench.Op, every, d time.Duration, rate float64) {
	if every <= 0 {
		return
	}
	between := time.Duration(float64(time.Second) / rate / 2)
	for at := every / 2; at < d; at += every {
		select {
		case <-ctx.Done():
			return
		case <-time.After(time.Until(c.start.Add(at.Truncate(2*between) + between))):
		}
		c.bursts = append(c.bursts, time.Now())
		var wg sync.WaitGroup
		for _, op := range ops {
			wg.Go(func() { _ = op(ctx) }) // what fails is counted by the op
		}
		wg.Wait()
	}
}

// join finds when each code reached the provider, and where its time went.
func (b *blastRun) join(ctx context.Context, c *codes) error {
	receipts := b.whole.receipts()
	const sql = `SELECT s.request_id, s.send_id::text, s.created_at, d.decided_at FROM messaging.sends s
JOIN messaging.decisions d ON d.received_at >= now() - interval '1 day' AND d.request_id = s.request_id
WHERE s.requested_at >= now() - interval '1 day' AND s.tenant_id = $1 AND d.tenant_id = $1`
	rows, err := b.pool.Query(ctx, sql, b.b.id)
	if err != nil {
		return fmt.Errorf("read the sends: %w", err)
	}
	type way struct{ decided, claimed, received time.Time }
	ways := map[uuid.UUID]way{}
	var request uuid.UUID
	var send string
	var w way
	if _, err = pgx.ForEachRow(rows, []any{&request, &send, &w.claimed, &w.decided}, func() error {
		w.received = receipts[send]
		ways[request] = w
		return nil
	}); err != nil {
		return fmt.Errorf("read the sends: %w", err)
	}
	shadow := b.shadow()
	var parts [4]bench.Histogram
	for i := range c.list {
		one := &c.list[i]
		w := ways[one.request]
		one.received = w.received
		one.shadowed = !one.burst && slices.ContainsFunc(c.bursts, func(at time.Time) bool {
			return !one.asked.Before(at) && one.asked.Before(at.Add(shadow))
		})
		if one.received.IsZero() {
			continue
		}
		if one.received.After(c.end) {
			c.end = one.received
		}
		if one.plain() {
			parts[0].Record(one.accepted.Sub(one.asked))
			parts[1].Record(w.decided.Sub(one.accepted))
			parts[2].Record(w.claimed.Sub(w.decided))
			parts[3].Record(one.received.Sub(w.claimed))
		}
	}
	for i, name := range []string{"request to 202", "202 to decided", "decided to token and claim", "claim to provider"} {
		c.steps = append(c.steps, bench.StepOf(name, &parts[i]))
	}
	return nil
}

// shadow is how long a burst takes to go out at the permitted rate while the
// other codes come in beside: arithmetic, whatever was measured. A code that is
// asked for meanwhile waits for its own tenant's codes.
func (b *blastRun) shadow() time.Duration {
	left := b.permitted()
	if left > b.Rate {
		left -= b.Rate
	}
	return time.Duration(burstOf / left * float64(time.Second))
}

func (c code) plain() bool { return !c.burst && !c.shadowed }

// stats counts the codes that which picks, each from when from says.
func (c *codes) stats(which func(code) bool, from func(code) time.Time) *bench.Stats {
	s := &bench.Stats{Errors: map[string]uint64{}}
	for burst, failed := range c.errors {
		if which(code{burst: burst}) {
			maps.Copy(s.Errors, failed)
		}
	}
	for _, one := range c.list {
		switch {
		case !which(one):
		case one.received.IsZero():
			s.Errors["no_message"]++
		default:
			s.Latency.Record(one.received.Sub(from(one)))
			s.Elapsed = max(s.Elapsed, one.received.Sub(c.start))
		}
	}
	s.Elapsed = max(s.Elapsed, c.took)
	return s
}

func fromAccepted(c code) time.Time { return c.accepted }
func fromAsked(c code) time.Time    { return c.asked }

// points are for a plot, from the 202.
func (c *codes) points(which func(code) bool) (ps []bench.Point) {
	for _, one := range c.list {
		if which(one) && !one.received.IsZero() {
			ps = append(ps, bench.Point{At: one.asked.Sub(c.start), Took: one.received.Sub(one.accepted)})
		}
	}
	return ps
}
