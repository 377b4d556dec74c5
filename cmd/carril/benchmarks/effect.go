package benchmarks

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/softcrum/carril/internal/bench"
	"github.com/softcrum/carril/schemas"
)

const (
	// effectRate is what the requirement is measured at.
	effectRate = 2_000
	// effectProvider is what the provider takes meanwhile, in requests a second,
	// unless told: what is queued is sent at a provider's pace, and not at ours.
	effectProvider = 10
	// effectEvery is of how many events one is watched.
	effectEvery = 20
	// effectPoll is how often the database is asked, at most: the resolution of the
	// figures. Who asks waits four times as long as the answer took, so that it does
	// not become the load that it measures.
	effectPoll = 25 * time.Millisecond
	// effectDrain is how long it may take what is behind when the load ends.
	effectDrain = 2 * time.Minute
)

// Effect measures how soon an event's effect is visible (FS-CORE-0006 AC5): from
// its 202 until the database shows its points and its notification queued. Every
// event fires a rule that does both. One in twenty is watched, by asking. The
// baseline is the same for one event at a time, alone in the same system.
func Effect(ctx context.Context, cfg Config) (*bench.Report, error) {
	if cfg.Rate == 0 {
		cfg.Rate = effectRate
	}
	if cfg.ProviderRate == 0 {
		cfg.ProviderRate = effectProvider
	}
	want := siteConfig{partitions: map[string]int32{}}
	if cfg.Partitions > 0 {
		for _, t := range schemas.Topics(cfg.Settings.Channels) {
			want.partitions[t.Name] = int32(cfg.Partitions)
		}
	}
	return measure(ctx, cfg, "effect", want, func(ctx context.Context, r *run, rep *bench.Report) error {
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
		w, err := r.startWhole(ctx, wholeConfig{rate: r.ProviderRate})
		if err != nil {
			return err
		}
		e := &effect{e2e: &e2e{run: r, whole: w, tenants: ts, body: body}}
		err = e.measure(ctx, rep)
		if serr := w.stop(); err == nil {
			err = serr
		}
		return err
	})
}

type effect struct {
	*e2e
	watching sync.WaitGroup
}

func (e *effect) measure(ctx context.Context, rep *bench.Report) error {
	conns := e.connections(64)
	rep.Unit, rep.Mode = "events", fmt.Sprintf("open loop at %g events a second, from the 202 to points and a queued notification", e.Rate)
	rep.Baseline.What = "the same for one event at a time, alone in the same system"
	rep.Settings["connections"], rep.Settings["rate"], rep.Settings["provider_rate"] = conns, e.Rate, e.ProviderRate
	if e.Partitions > 0 {
		rep.Settings["partitions"] = e.Partitions
	}
	rep.Details = map[string]any{}
	share := e.Duration / 2
	if _, _, err := e.offer(ctx, 20, min(share, time.Second), 1, 1); err != nil { // warm-up
		return err
	}
	_, idle, err := e.offer(ctx, 5, share, 1, 1)
	if err != nil {
		return err
	}
	door, loaded, err := e.offer(ctx, e.Rate, share, conns, effectEvery)
	if err != nil {
		return err
	}
	rep.Baseline.Figures, rep.Result = bench.FiguresOf(idle, 1), bench.FiguresOf(loaded, 1)
	rep.Details["front_door_p95_ms"] = bench.Millis(door.Latency.Quantile(0.95))
	rep.Details["accepted"] = door.Latency.Count()
	rep.Details["caught_up_after_ms"] = bench.Millis(loaded.Elapsed - share)
	rep.Notes = append(rep.Notes, fmt.Sprintf("one event in %d is watched, with a resolution of %s", effectEvery, effectPoll))
	return rep.Compare(bench.RatioOfP95)
}

// offer posts events in an open loop and watches one in every.
func (e *effect) offer(ctx context.Context, rate float64, d time.Duration, conns, every int) (door, seen *bench.Stats, err error) {
	e.begin()
	g := e.posts(conns)
	defer g.close()
	start := time.Now()
	over := make(chan struct{})
	seen = &bench.Stats{Errors: map[string]uint64{}}
	var failed error
	e.watching.Go(func() { failed = e.watch(ctx, over, start, every, seen) })
	end := e.progress.For(fmt.Sprintf("effect: %g events a second", rate), d)
	door = bench.OpenLoop{Rate: rate, Duration: d, Drain: opTimeout}.Run(ctx, g.ops)
	end()
	close(over)
	defer e.progress.Phase("effect: waiting for the last", nil)()
	e.watching.Wait()
	if err := cmp.Or(ctx.Err(), failed); err != nil {
		return nil, nil, err
	}
	for class, n := range door.Errors {
		seen.Errors[class] += n
	}
	seen.CPU = door.CPU
	return door, seen, nil
}

// watch asks for the effects of what was accepted until all are there, or what
// is missing has had its time.
func (e *effect) watch(ctx context.Context, over <-chan struct{}, start time.Time, every int, seen *bench.Stats) error {
	open, owner := map[uuid.UUID]time.Time{}, map[uuid.UUID]uuid.UUID{}
	known := 0
	var deadline <-chan time.Time
	next := time.NewTimer(effectPoll)
	defer next.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-over:
			over, deadline = nil, time.After(effectDrain)
		case <-deadline:
			seen.Errors["no_effect"] += uint64(len(open))
			return nil
		case <-next.C:
		}
		e.mu.Lock()
		for id, at := range e.accepted {
			if known++; known%every == 0 {
				open[id], owner[id] = at, e.owner[id]
			}
		}
		e.begin()
		e.mu.Unlock()
		asked := time.Now()
		there, err := e.effects(ctx, open, owner)
		if err != nil {
			return err
		}
		next.Reset(max(effectPoll, 4*time.Since(asked)))
		for _, id := range there {
			seen.Latency.Record(time.Since(open[id]))
			delete(open, id)
			delete(owner, id)
		}
		seen.Elapsed = time.Since(start)
		if over == nil && len(open) == 0 {
			return nil
		}
	}
}

// effects gives which events have their points and their notification queued;
// it asks for the oldest thousand at most.
func (e *effect) effects(ctx context.Context, open map[uuid.UUID]time.Time, owner map[uuid.UUID]uuid.UUID) ([]uuid.UUID, error) {
	if len(open) == 0 {
		return nil, nil
	}
	const most = 1_000
	events := slices.SortedFunc(maps.Keys(open), func(a, b uuid.UUID) int { return open[a].Compare(open[b]) })
	events = events[:min(len(events), most)]
	tenants := make([]uuid.UUID, len(events))
	for i, id := range events {
		tenants[i] = owner[id]
	}
	// LIMIT keeps the planner at one descent an event: a join of tables that it
	// takes for empty reads them whole.
	const sql = `SELECT u.e FROM unnest($1::uuid[], $2::uuid[]) AS u(t, e)
CROSS JOIN LATERAL (SELECT FROM core.points_ledger p WHERE p.tenant_id = u.t AND p.event_id = u.e LIMIT 1) p
CROSS JOIN LATERAL (SELECT FROM messaging.decisions d
    WHERE d.received_at >= now() - interval '1 day' AND d.tenant_id = u.t AND d.origin_event_id = u.e AND d.outcome = 'queued' LIMIT 1) d`
	rows, err := e.pool.Query(ctx, sql, tenants, events)
	if err != nil {
		return nil, fmt.Errorf("look for effects: %w", err)
	}
	there, err := pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
	if err != nil {
		return nil, fmt.Errorf("look for effects: %w", err)
	}
	return there, nil
}
