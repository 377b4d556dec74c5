package benchmarks

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/softcrum/carril/ingestor/manage"
	"github.com/softcrum/carril/internal/bench"
	"github.com/softcrum/carril/internal/ids"
)

const (
	e2eTenants = 8
	// e2eStall is how long the provider may be asked for nothing before what is
	// missing counts as lost to the measurement.
	e2eStall = 15 * time.Second
	// e2eDrain is how long it may take what is behind when a load ends.
	e2eDrain = time.Minute
	// e2eTraced is how many events of a measurement are traced.
	e2eTraced = 300
)

// E2E measures the whole platform in one process: an event's way from its 202
// through the append, a rule with points, and the transactional rail to the
// provider's request. Events come in an open loop at the rate, or at 100 and
// then 1,000 a second. The baseline is the same way through the same system
// while nothing else is in it: one event at a time. The ratio is of p95.
func E2E(ctx context.Context, cfg Config) (*bench.Report, error) {
	return measure(ctx, cfg, "e2e", siteConfig{}, func(ctx context.Context, r *run, rep *bench.Report) error {
		body, err := eventBody(r.Payload, time.Now())
		if err != nil {
			return err
		}
		ts, err := r.tenants(ctx, e2eTenants)
		if err != nil {
			return err
		}
		for _, t := range ts {
			if err := r.seedRule(ctx, t, "transactional"); err != nil {
				return err
			}
		}
		rate := float64(unlimited)
		if r.ProviderRate > 0 {
			rate = r.ProviderRate
		}
		w, err := r.startWhole(ctx, wholeConfig{rate: rate})
		if err != nil {
			return err
		}
		e := &e2e{run: r, whole: w, tenants: ts, body: body}
		err = e.measure(ctx, rep)
		if serr := w.stop(); err == nil {
			err = serr
		}
		return err
	})
}

type e2e struct {
	*run
	whole   *whole
	tenants []tenant
	body    []byte // an event's

	next uint64 // keys given out
	sent uint64 // 202s of all measurements, each of which asks for one message

	mu       sync.Mutex
	accepted map[uuid.UUID]time.Time // of this measurement: when each 202 was read
	owner    map[uuid.UUID]uuid.UUID // of each of those events: its tenant
}

func (e *e2e) measure(ctx context.Context, rep *bench.Report) error {
	rates := []float64{100, 1000}
	if e.Rate > 0 {
		rates = []float64{e.Rate}
	}
	conns := e.connections(64)
	rep.Unit, rep.Mode = "messages", fmt.Sprintf("open loop at %g events a second, from the 202 to the provider", rates[0])
	rep.Baseline.What = "the same way through the same system, one event at a time and nothing else in it"
	rep.Settings["connections"], rep.Settings["rate"] = conns, rates[0]
	rep.Details = map[string]any{}

	share := e.Duration / time.Duration(1+len(rates))
	if _, err := e.idle(ctx, min(share, time.Second)); err != nil { // warm-up
		return err
	}
	idle, err := e.idle(ctx, share)
	if err != nil {
		return err
	}
	rep.Baseline.Figures, rep.Baseline.Steps = bench.FiguresOf(idle.way, 1), idle.steps
	for i, rate := range rates {
		m, err := e.load(ctx, rate, share, conns)
		if err != nil {
			return err
		}
		if i == 0 {
			rep.Result, rep.Steps = bench.FiguresOf(m.way, 1), m.steps
			rep.Details["front_door_p95_ms"] = bench.Millis(m.door.Latency.Quantile(0.95))
			continue
		}
		rep.More = append(rep.More, bench.More{Name: fmt.Sprintf("at %g a second", rate), Figures: bench.FiguresOf(m.way, 1), Steps: m.steps})
	}
	rep.Notes = append(rep.Notes, "a stage's time in a trace is when its transaction began: its own work stands in the step after it")
	return rep.Compare(bench.RatioOfP95)
}

// measured is one measurement: the front door's side and the whole way.
type measured struct {
	door  *bench.Stats
	way   *bench.Stats
	steps []bench.Step
}

// idle sends one event after the other, each when the one before has reached
// the provider and a moment has passed.
func (e *e2e) idle(ctx context.Context, d time.Duration) (measured, error) {
	e.begin()
	g := e.posts(1)
	defer g.close()
	start, cpu := time.Now(), bench.CPUTime()
	door := &bench.Stats{}
	end := e.progress.For("e2e: one at a time, for comparison", d)
	defer end()
	for time.Since(start) < d || len(e.accepted) == 0 {
		s := bench.OpenLoop{Rate: 1e9, Duration: time.Nanosecond, Drain: opTimeout}.Run(ctx, g.ops) // one
		door.Merge(s)
		if s.Failed() > 0 {
			return measured{}, fmt.Errorf("the front door refuses: %v", s.Errors)
		}
		e.sent++
		if got, err := e.whole.received(ctx, e.sent, e2eStall); err != nil || got < e.sent {
			return measured{}, errorOr(err, "an event caused no message within %s", e2eStall)
		}
		select {
		case <-ctx.Done():
			return measured{}, ctx.Err()
		case <-time.After(20 * time.Millisecond):
		}
	}
	door.CPU = bench.CPUTime() - cpu
	return e.collect(ctx, door, start)
}

// load sends events in an open loop and waits until the provider has them.
func (e *e2e) load(ctx context.Context, rate float64, d time.Duration, conns int) (measured, error) {
	e.begin()
	g := e.posts(conns)
	defer g.close()
	start, cpu := time.Now(), bench.CPUTime()
	end := e.progress.For(fmt.Sprintf("e2e: %g events a second", rate), d)
	defer end()
	door := bench.OpenLoop{Rate: rate, Duration: d, Drain: opTimeout}.Run(ctx, g.ops)
	if ctx.Err() != nil {
		return measured{}, ctx.Err()
	}
	e.sent += door.Latency.Count()
	if err := e.await(ctx); err != nil {
		return measured{}, err
	}
	door.CPU = bench.CPUTime() - cpu
	return e.collect(ctx, door, start)
}

// await waits until the provider has everything, or has got nothing more for a
// while, or has had its time.
func (e *e2e) await(ctx context.Context) error {
	end := e.progress.Phase("e2e: waiting for the provider", func() float64 { return float64(e.whole.provider.Counters().Accepted) / float64(e.sent) })
	defer end()
	wctx, cancel := context.WithTimeout(ctx, e2eDrain)
	defer cancel()
	if _, err := e.whole.received(wctx, e.sent, e2eStall); err != nil && wctx.Err() == nil {
		return err
	}
	return ctx.Err()
}

func (e *e2e) begin() {
	e.accepted, e.owner = map[uuid.UUID]time.Time{}, map[uuid.UUID]uuid.UUID{}
}

// posts makes ops that post an event and note when its 202 was read.
func (e *e2e) posts(conns int) generator {
	var g generator
	addr := hostOf(e.whole.API)
	for i := range conns {
		conn := bench.NewConn(addr, opTimeout)
		t := e.tenants[i%len(e.tenants)]
		req := newStencil(bench.Request(http.MethodPost, "/v1/core/track", addr, e.body, "Authorization: Bearer "+t.key, "Content-Type: application/json"))
		g.conns = append(g.conns, conn)
		g.ops = append(g.ops, func(ctx context.Context) error {
			e.mu.Lock()
			e.next++
			n := e.next
			e.mu.Unlock()
			req.setOne(n, personOf(n, people))
			if _, err := conn.Do(ctx, req.bytes, http.StatusAccepted); err != nil {
				return err
			}
			at := time.Now()
			e.mu.Lock()
			id := ids.Event(t.id, keyOf(n))
			e.accepted[id], e.owner[id] = at, t.id
			e.mu.Unlock()
			return nil
		})
	}
	return g
}

// collect joins what was accepted with what the provider got.
func (e *e2e) collect(ctx context.Context, door *bench.Stats, start time.Time) (measured, error) {
	m := measured{door: door, way: &bench.Stats{Errors: map[string]uint64{}, CPU: door.CPU}}
	for class, n := range door.Errors {
		m.way.Errors[class] += n
	}
	asked, err := e.asked(ctx)
	if err != nil {
		return m, err
	}
	for event, at := range e.accepted {
		got, ok := asked[event]
		if !ok {
			m.way.Errors["no_message"]++
			continue
		}
		m.way.Latency.Record(got.Sub(at))
		m.way.Elapsed = max(m.way.Elapsed, got.Sub(start))
	}
	if err := e.settle(ctx, len(asked)); err != nil {
		return m, err
	}
	m.steps, err = e.steps(ctx, asked)
	return m, err
}

// settle waits until the system has written down what the provider answered:
// that commit comes after the request that is measured.
func (e *e2e) settle(ctx context.Context, sends int) error {
	const sql = `SELECT count(DISTINCT send_id) FROM messaging.send_status_history WHERE requested_at >= now() - interval '1 day' AND status = 'sent'`
	for end := time.Now().Add(e2eStall); time.Now().Before(end); {
		var n int
		if err := e.pool.QueryRow(ctx, sql).Scan(&n); err != nil {
			return fmt.Errorf("count what was sent: %w", err)
		}
		if n >= sends {
			break
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(20 * time.Millisecond):
		}
	}
	return nil
}

// asked gives when the provider was first asked for the message that each event
// caused.
func (e *e2e) asked(ctx context.Context) (map[uuid.UUID]time.Time, error) {
	receipts := e.whole.receipts()
	const sql = `SELECT send_id::text, origin_event_id FROM messaging.sends WHERE requested_at >= now() - interval '1 day'`
	rows, err := e.pool.Query(ctx, sql)
	if err != nil {
		return nil, fmt.Errorf("read the sends: %w", err)
	}
	asked := map[uuid.UUID]time.Time{}
	var send string
	var event uuid.UUID
	_, err = pgx.ForEachRow(rows, []any{&send, &event}, func() error {
		if at, ok := receipts[send]; ok {
			asked[event] = at
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read the sends: %w", err)
	}
	return asked, nil
}

// wayOf names the steps of an event's way, in order; asked is the provider's own.
var wayOf = []string{"accepted", "appended", "requested", "queued", "asked", "sent"}

// steps follows some of the events through their traces.
func (e *e2e) steps(ctx context.Context, asked map[uuid.UUID]time.Time) ([]bench.Step, error) {
	spent := make([]bench.Histogram, len(wayOf)-1)
	traced := 0
	for event := range e.accepted { // in an order of its own every time: a sample
		if traced++; traced > e2eTraced {
			break
		}
		t, err := manage.TraceEvent(ctx, e.pool, uuid.Nil, event)
		if err != nil {
			continue // counted as no_message above, if it is none
		}
		at := timesOf(t)
		at["asked"] = asked[event]
		for i := range spent {
			from, to := at[wayOf[i]], at[wayOf[i+1]]
			if !from.IsZero() && !to.IsZero() {
				spent[i].Record(to.Sub(from))
			}
		}
	}
	var steps []bench.Step
	for i := range spent {
		steps = append(steps, bench.StepOf(wayOf[i]+" to "+wayOf[i+1], &spent[i]))
	}
	return steps, ctx.Err()
}

// timesOf gives when each step first happened.
func timesOf(t *manage.Trace) map[string]time.Time {
	at := map[string]time.Time{}
	for _, s := range slices.Backward(t.Steps) {
		at[s.Step] = s.At
	}
	return at
}

func errorOr(err error, format string, args ...any) error {
	if err != nil {
		return err
	}
	return fmt.Errorf(format, args...)
}
