package app

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"

	"github.com/softcrum/carril/dispatcher/bucket"
	"github.com/softcrum/carril/dispatcher/provider"
	"github.com/softcrum/carril/dispatcher/rail"
	"github.com/softcrum/carril/dispatcher/sends"
	"github.com/softcrum/carril/internal/ids"
	"github.com/softcrum/carril/schemas"
)

// statuses is the handler of providers' reports; one serves the stage and the
// matcher of a process.
func (a *App) statuses() *sends.Statuses {
	if a.statusHandler == nil {
		a.statusHandler = sends.NewStatuses(a.codec, parsers(), sends.NewStatusMetrics(a.reg))
	}
	return a.statusHandler
}

// statusStage brings providers' reports to their sends; it runs with the
// stream stages.
func (a *App) statusStage() stage {
	return stage{sends.StageStatuses, []string{schemas.TopicProviderEvents}, a.statuses(), nil, 4}
}

// dispatching is what rails, sweeps and feeders of one process share.
type dispatching struct {
	providers map[string]provider.Provider   // by name
	byChannel map[string][]provider.Provider // the preferred one first
	repeats   int
	limits    map[string]bucket.Stated // as the settings say them
	redis     *redis.Client
	metrics   *rail.Metrics
	buckets   *bucket.Metrics
	pace      *rail.Pace // of this process's marketing
}

// prefix stands before every key of the rails in Redis.
func (a *App) prefix() string { return a.set.RedisPrefix + "carril:" }

// names gives the providers' names.
func (d *dispatching) names() []string {
	names := make([]string, 0, len(d.providers))
	for n := range d.providers {
		names = append(names, n)
	}
	return names
}

// stated is what is known of the providers without any configuration.
func (d *dispatching) stated() map[string]bucket.Stated {
	out := map[string]bucket.Stated{}
	for n, p := range d.providers {
		st := d.limits[n]
		st.RatePerSecond = p.Capabilities().RatePerSecond
		out[n] = st
	}
	return out
}

// store is a rail's jobs and sends over a pool.
func (d *dispatching) store(channel, r string, pool *pgxpool.Pool, codec *schemas.Codec) (*sends.Store, error) {
	cfg := sends.Config{Channel: channel, Rail: r}
	for i, p := range d.carriers(channel, r) {
		if i == 0 {
			cfg.Provider = p.Name()
			continue
		}
		cfg.Others = append(cfg.Others, p.Name())
	}
	if cfg.Provider == "" {
		return nil, configError(channel+"-providers", "has none with a batch endpoint, and no other carries marketing %s (FS-MSG-0005 §5): `carril dispatch --rail transactional` does without", channel)
	}
	if r == schemas.RailTransactional {
		cfg.UncertainRepeats = d.repeats
	}
	return sends.New(cfg, sends.Deps{Pool: pool, Codec: codec, Providers: d.providers})
}

// dispatching opens the providers, once a process.
func (a *App) dispatching() (*dispatching, error) {
	if a.shared != nil {
		return a.shared, nil
	}
	d := &dispatching{providers: map[string]provider.Provider{}, byChannel: map[string][]provider.Provider{}, repeats: a.set.Repeats, limits: a.set.Stated()}
	if err := a.openProviders(d); err != nil {
		return nil, err
	}
	var err error
	if d.redis, err = a.bucketRedis(); err != nil {
		return nil, err
	}
	a.shared = d
	return d, nil
}

// startDispatch runs the workers of the chosen rails.
func (a *App) startDispatch(ctx context.Context) error {
	d, err := a.dispatching()
	if err != nil {
		return err
	}
	d.metrics = rail.NewMetrics(a.reg, a.set.Channels)
	d.buckets = bucket.NewMetrics(a.reg, d.names())
	for _, channel := range a.set.Channels {
		for _, r := range []string{schemas.RailTransactional, schemas.RailMarketing} {
			if (a.roles.Channel == "" || a.roles.Channel == channel) && (a.roles.Rail == "" || a.roles.Rail == r) {
				if err := a.startRail(ctx, d, channel, r); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// startRail runs one rail's worker with pools and buckets of its own.
func (a *App) startRail(ctx context.Context, d *dispatching, channel, r string) error {
	name := channel + "." + r
	pool, err := a.pool(ctx, "rail "+name, a.set.PostgresURL, 16)
	if err != nil {
		return err
	}
	store, err := d.store(channel, r, pool, a.codec)
	if err != nil {
		return err
	}
	limiter, err := bucket.New(bucket.Config{Prefix: a.prefix(), Asker: ids.New().String() + "-" + r, Rail: r, Providers: d.stated(), Reserve: &a.set.QuotaReserve},
		bucket.Deps{Redis: d.redis, Pool: a.side, Listen: a.direct, Log: a.log, Metrics: d.buckets})
	if err != nil {
		return err
	}
	a.stack.Go(lifecyclePart("buckets of "+name, limiter.Run))
	var yield rail.Yielder
	var pace rail.Pacer
	workers := 0 // the rail's own
	if r == schemas.RailMarketing {
		workers = a.set.Workers
		reader := rail.NewYieldReader(d.redis, a.prefix(), channel, 0)
		a.stack.Go(lifecyclePart("yield of "+name, reader.Run))
		yield, pace = reader, a.pace(d)
	}
	w, err := rail.New(rail.Config{Channel: channel, Rail: r, InstanceID: a.instance(name), Owner: owner(), Budget: a.set.LatencyBudget, Concurrency: workers}, rail.Deps{
		Kafka: a.kafka, Pool: pool, Store: store, Codec: a.codec, Limiter: limiter, Sink: a.sink(), Yield: yield, Pace: pace,
		Board: d.redis, BoardPrefix: a.prefix(), Log: a.log, Metrics: d.metrics})
	if err != nil {
		return fmt.Errorf("%w: %w", ErrConfig, err)
	}
	a.stack.Go(lifecyclePart("rail "+name, w.Run))
	a.readies = append(a.readies, joined("rail "+name, w.Ready()))
	return nil
}

// pace is that of this process's marketing, whatever its channels: they share the
// cores. nil: it has none.
func (a *App) pace(d *dispatching) rail.Pacer {
	if a.set.MarketingLate == 0 {
		return nil
	}
	if d.pace == nil {
		d.pace = rail.NewPace(rail.PaceConfig{Late: a.set.MarketingLate}, rail.PaceDeps{Ping: a.side.Ping, Log: a.log, Metrics: rail.NewPaceMetrics(a.reg)})
		a.stack.Go(lifecyclePart("pace of marketing", d.pace.Run))
	}
	return d.pace
}
