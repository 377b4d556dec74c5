package app

import (
	"context"
	"time"

	"github.com/softcrum/carril/dispatcher/blast"
	"github.com/softcrum/carril/dispatcher/feeder"
	"github.com/softcrum/carril/dispatcher/lane"
	"github.com/softcrum/carril/dispatcher/rail"
	"github.com/softcrum/carril/dispatcher/sends"
	"github.com/softcrum/carril/internal/lease"
	"github.com/softcrum/carril/internal/outbox"
	"github.com/softcrum/carril/processor/eventlog"
	"github.com/softcrum/carril/processor/partition"
	"github.com/softcrum/carril/processor/retention"
	"github.com/softcrum/carril/schemas"
)

// startContactRelays offers this process as the relay of the contact lanes;
// one process of N has each lane at a time.
func (a *App) startContactRelays() {
	for n := range eventlog.ContactLaneCount {
		producer := eventlog.ContactProducer(n)
		a.stack.Go(lifecyclePart("relay "+producer, func(ctx context.Context) error {
			return outbox.RunOrdered(ctx, outbox.OrderedConfig{Producer: producer, Holder: owner(), Kafka: a.kafka}, a.direct, a.log)
		}))
	}
}

// startMaintain runs the jobs of which one process of N is active.
func (a *App) startMaintain(ctx context.Context) error {
	parts := partition.NewJob(partition.JobConfig{ListenURL: a.set.direct()}, a.direct, a.log, a.reg, time.Now)
	a.stack.Go(lifecyclePart("partitions", func(ctx context.Context) error {
		return lease.Run(ctx, a.direct, lease.Config{Name: "maintain:partitions", Holder: owner()}, a.log, func(ctx context.Context, _ *lease.Lease) error {
			return parts.Run(ctx)
		})
	}))
	a.watchMonths()
	if err := a.startRetention(ctx); err != nil {
		return err
	}
	if err := a.startErasures(ctx); err != nil {
		return err
	}
	if err := a.startExports(ctx); err != nil {
		return err
	}
	d, err := a.dispatching()
	if err != nil {
		return err
	}
	depths, feeding := rail.NewDepthMetrics(a.reg, a.set.Channels), feeder.NewMetrics(a.reg, a.set.Channels)
	for _, channel := range a.set.Channels {
		if err := a.startSweepAndFeeder(ctx, d, channel, feeding); err != nil {
			return err
		}
		if err := a.startMonitor(d, channel, depths); err != nil {
			return err
		}
	}
	return a.startMatcher(ctx)
}

// startRetention runs the retention job, on a pool of its own: an export reads a
// month.
func (a *App) startRetention(ctx context.Context) error {
	pool, err := a.wholePool(ctx, "retention", a.set.direct(), 4)
	if err != nil {
		return err
	}
	exporter, err := a.leaves(ctx)
	if err != nil {
		return err
	}
	job := retention.NewJob(retention.Config{}, retention.Deps{Pool: pool, Exporter: exporter, Log: a.log, Metrics: retention.NewMetrics(a.reg)})
	a.stack.Go(lifecyclePart("retention", func(ctx context.Context) error {
		return lease.Run(ctx, a.direct, lease.Config{Name: retention.Lease, Holder: owner()}, a.log, func(ctx context.Context, _ *lease.Lease) error {
			return job.Run(ctx)
		})
	}))
	return nil
}

// watchMonths has /readyz say when the coming months do not stand (faults P14).
func (a *App) watchMonths() {
	if a.months {
		return
	}
	a.months = true
	ahead := partition.NewAhead(a.side, time.Now)
	a.readies = append(a.readies, readiness{name: "partitions", now: ahead.Err,
		wait: func(context.Context) error { return nil }}) // what is missing is being made
}

// startMonitor watches a channel's transactional rail: marketing yields on its
// word, and on its silence.
func (a *App) startMonitor(d *dispatching, channel string, depths *rail.DepthMetrics) error {
	levels, err := a.levels()
	if err != nil {
		return err
	}
	m := rail.NewMonitor(rail.MonitorConfig{Channel: channel, Prefix: a.prefix(), Holder: owner(), Yield: rail.YieldConfig{Budget: a.set.LatencyBudget}},
		rail.MonitorDeps{Kafka: a.kafka, Admin: a.adm, Redis: d.redis, Pool: a.direct, Buckets: levels, Provider: d.preferred(channel, schemas.RailTransactional),
			Log: a.log, Metrics: depths})
	a.stack.Go(lifecyclePart("depth monitor "+channel, m.Run))
	return nil
}

// startSweepAndFeeder moves what no rail worker moves: expired leases, parked
// jobs, credits; and brings marketing messages to their rail.
func (a *App) startSweepAndFeeder(ctx context.Context, d *dispatching, channel string, metrics *feeder.Metrics) error {
	pool, err := a.pool(ctx, "sweep "+channel, a.set.direct(), 8)
	if err != nil {
		return err
	}
	stores := map[string]*sends.Store{}
	var swept []*sends.Store
	for _, r := range []string{schemas.RailTransactional, schemas.RailMarketing} {
		if d.preferred(channel, r) == "" {
			a.log.Warn("no provider carries this rail: what comes for it waits", "channel", channel, "rail", r)
			continue
		}
		if stores[r], err = d.store(channel, r, pool, a.codec); err != nil {
			return err
		}
		swept = append(swept, stores[r])
	}
	sweeper := rail.NewSweeper(rail.SweeperConfig{Channel: channel, Holder: owner()}, rail.SweeperDeps{Pool: pool, Kafka: a.kafka, Admin: a.adm,
		Sink: a.sink(), Stores: swept, Log: a.log})
	a.stack.Go(lifecyclePart("sweep "+channel, sweeper.Run))
	if stores[schemas.RailMarketing] == nil {
		return nil
	}
	cfg := a.set.feeding()
	cfg.Channel, cfg.Holder, cfg.Batch = channel, owner(), d.batch(channel)
	feed, err := feeder.New(cfg, feeder.Deps{Pool: pool, Store: stores[schemas.RailMarketing], Kafka: a.kafka, Sink: a.sink(), Log: a.log, Metrics: metrics})
	if err != nil {
		return err
	}
	a.stack.Go(lifecyclePart("feeder "+channel, feed.Run))
	return nil
}

// startMatcher brings provider events that overtook our own commit to their
// sends.
func (a *App) startMatcher(ctx context.Context) error {
	pool, err := a.pool(ctx, "matcher", a.set.direct(), 3)
	if err != nil {
		return err
	}
	m := sends.NewMatcher(sends.MatcherConfig{}, pool, a.statuses(), a.log)
	a.stack.Go(lifecyclePart("matcher", func(ctx context.Context) error {
		return lane.Run(ctx, lane.Config{Name: "matcher", Holder: owner()}, lane.Deps{Pool: pool, Sink: a.sink(), Topic: a.kafka.Topic, Log: a.log}, m.Run)
	}))
	return nil
}

// feeding is what the settings say of blasts.
func (s *Settings) feeding() feeder.Config {
	return feeder.Config{InTopic: s.FeederBatches, First: s.First(),
		Breaker: blast.Breaker{Bounces: s.BlastBounces, Complaints: s.BlastComplaints, Trips: s.BlastTrips}}
}

// First is how a blast waits for the outcomes of its first messages.
func (s *Settings) First() blast.First {
	return blast.First{After: s.BlastFirst, Share: s.BlastFirstShare, For: s.BlastFirstWait}
}

// validateBlasts checks what feeding takes. Nothing is 0: the parts would read it
// as their default.
func (s *Settings) validateBlasts() error {
	for name, share := range map[string]float64{"blast-bounces": s.BlastBounces, "blast-complaints": s.BlastComplaints, "blast-first-share": s.BlastFirstShare} {
		if !(share > 0 && share <= 1) { // NaN is neither
			return configError(name, "is not above 0 and at most 1")
		}
	}
	for name, n := range map[string]int{"blast-trips": s.BlastTrips, "blast-first": s.BlastFirst} {
		if n != -1 && n < 1 {
			return configError(name, "is neither positive nor -1")
		}
	}
	switch {
	case s.BlastFirstWait < time.Second:
		return configError("blast-first-wait", "is below 1s")
	case s.FeederBatches < 1 || s.FeederBatches > 1000:
		return configError("feeder-batches", "is not within 1 and 1000")
	}
	return nil
}
