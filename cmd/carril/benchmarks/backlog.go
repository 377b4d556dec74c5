package benchmarks

import (
	"context"
	"fmt"
	"time"

	"github.com/softcrum/carril/cmd/carril/app"
	"github.com/softcrum/carril/internal/bench"
	"github.com/softcrum/carril/processor/eventlog"
	"github.com/softcrum/carril/schemas"
)

// backlogRate is what the front door is offered while the rest is busy or away.
const backlogRate = 1_000

// Backlog measures the front door while what stands behind it is in trouble:
// single events in an open loop, first with nothing else at work (the baseline),
// then while the processor of the same machine catches up on events that wait
// (the result), then while PostgreSQL refuses every connection. The ratio is of
// p95.
func Backlog(ctx context.Context, cfg Config) (*bench.Report, error) {
	return measure(ctx, cfg, "backlog", siteConfig{}, func(ctx context.Context, r *run, rep *bench.Report) error {
		ts, err := r.tenants(ctx, trackTenants)
		if err != nil {
			return err
		}
		body, err := eventBody(r.Payload, time.Now())
		if err != nil {
			return err
		}
		rate := r.Rate
		if rate == 0 {
			rate = backlogRate
		}
		roles, err := app.Start(ctx, r.set, app.Roles{Ingest: true}, r.Log)
		if err != nil {
			return err
		}
		defer roles.Stop() //nolint:errcheck // the figures stand; the site is removed whatever it says
		conns := r.connections(64)
		load := posts(hostOf(roles.API), "/v1/core/track", ts, conns, body)
		defer load.close()
		b := &backlog{run: r, load: load, rate: rate, tenants: ts}
		rep.Unit, rep.Mode = "requests", fmt.Sprintf("open loop at %g a second, %d connections", rate, conns)
		rep.Baseline.What = "the same load with nothing else at work"
		rep.Settings["rate"], rep.Settings["backlog"] = rate, r.Events
		rep.Details = map[string]any{}
		return b.measure(ctx, rep)
	})
}

type backlog struct {
	*run
	load    generator
	rate    float64
	tenants []tenant
}

func (b *backlog) measure(ctx context.Context, rep *bench.Report) error {
	bench.Closed(ctx, b.load.ops, min(b.Duration/6, time.Second))
	rep.Baseline.Figures = b.step(ctx, "backlog: alone")
	fill := &appendRun{run: b.run, tenants: b.tenants, at: time.Now().UTC()}
	if err := fill.preload(ctx); err != nil {
		return err
	}
	if err := b.behind(ctx, rep); err != nil {
		return err
	}
	back, err := b.closeDatabase(ctx)
	if err != nil {
		return err
	}
	away := b.step(ctx, "backlog: PostgreSQL away")
	if err := back(); err != nil {
		return err
	}
	rep.More = append(rep.More, bench.More{Name: "PostgreSQL away", Figures: away})
	if rep.Baseline.P95 > 0 {
		rep.Details["postgres_away_ratio_of_p95"] = round3(away.P95 / rep.Baseline.P95)
	}
	return rep.Compare(bench.RatioOfP95)
}

// step is a share of the duration under the load.
func (b *backlog) step(ctx context.Context, name string) bench.Figures {
	end := b.progress.For(name, b.Duration/3)
	defer end()
	return bench.FiguresOf(bench.OpenLoop{Rate: b.rate, Duration: b.Duration / 3, Drain: opTimeout}.Run(ctx, b.load.ops), 1)
}

// behind measures while the processor works on what waits, and reports how far
// it came.
func (b *backlog) behind(ctx context.Context, rep *bench.Report) error {
	process, err := app.Start(ctx, b.set, app.Roles{Process: true}, b.Log)
	if err != nil {
		return err
	}
	defer process.Stop() //nolint:errcheck // as above
	if err := b.working(ctx); err != nil {
		return err
	}
	before, err := b.applied(ctx)
	if err != nil {
		return err
	}
	rep.Result = b.step(ctx, "backlog: the processor catching up")
	after, err := b.applied(ctx)
	rep.Details["caught_up_a_second"] = float64(after-before) / (b.Duration / 3).Seconds()
	rep.Details["left_of_the_backlog"] = max(0, b.Events-after)
	return err
}

// working waits until the processor has applied its first batch.
func (b *backlog) working(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for {
		n, err := b.applied(ctx)
		if err != nil || n > 0 {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the processor applied nothing: %w", ctx.Err())
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func (b *backlog) applied(ctx context.Context) (n int, err error) {
	const sql = `SELECT coalesce(sum(next_offset), 0) FROM core.stream_positions WHERE stage = $1 AND topic = $2`
	if err := b.pool.QueryRow(ctx, sql, eventlog.Stage, schemas.TopicEvents).Scan(&n); err != nil {
		return 0, fmt.Errorf("read the stage's positions: %w", err)
	}
	return n, nil
}

// closeDatabase has PostgreSQL refuse the benchmark's own database and end its
// connections: to the roles it looks as if the server were gone.
func (b *backlog) closeDatabase(ctx context.Context) (back func() error, err error) {
	admin := b.Settings.PostgresURL
	if admin == "" {
		admin = b.stack.PostgresURL
	}
	var name string
	if err := b.pool.QueryRow(ctx, `SELECT current_database()`).Scan(&name); err != nil {
		return nil, fmt.Errorf("name the database: %w", err)
	}
	for _, sql := range []string{"ALTER DATABASE " + name + " ALLOW_CONNECTIONS false",
		"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '" + name + "'"} {
		if err := execute(ctx, admin, sql); err != nil {
			return nil, fmt.Errorf("close the database: %w", err)
		}
	}
	return func() error {
		if err := execute(ctx, admin, "ALTER DATABASE "+name+" ALLOW_CONNECTIONS true"); err != nil {
			return fmt.Errorf("open the database again: %w", err)
		}
		return nil
	}, nil
}
