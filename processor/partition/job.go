package partition

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/softcrum/carril/internal/pg"
)

// strayChannel is where the database says that a row went into a DEFAULT
// partition.
const strayChannel = "carril_strays"

// JobConfig of the job; zero values take the defaults.
type JobConfig struct {
	Every time.Duration // default 10 min
	// ListenURL reaches PostgreSQL directly: a stray row is heard of at once.
	// Empty: it is found at the next run.
	ListenURL string
}

// Job makes partitions ahead and watches the DEFAULT ones. Any number of
// processes may run it; one at a time is enough.
type Job struct {
	cfg      JobConfig
	pool     *pgxpool.Pool
	log      *slog.Logger
	now      func() time.Time
	kick     chan struct{}
	inStray  *prometheus.GaugeVec
	strays   *prometheus.CounterVec
	lastGood prometheus.Gauge
}

// NewJob makes the job; now is the clock, by which months turn.
func NewJob(cfg JobConfig, pool *pgxpool.Pool, log *slog.Logger, reg prometheus.Registerer, now func() time.Time) *Job {
	if cfg.Every == 0 {
		cfg.Every = 10 * time.Minute
	}
	j := &Job{cfg: cfg, pool: pool, log: log, now: now, kick: make(chan struct{}, 1),
		inStray:  prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "carril_default_partition_rows", Help: "Rows in a DEFAULT partition; any is an incident."}, []string{"table"}),
		strays:   prometheus.NewCounterVec(prometheus.CounterOpts{Name: "carril_default_partition_strays_total", Help: "Rows found in a DEFAULT partition, moved since or not."}, []string{"table"}),
		lastGood: prometheus.NewGauge(prometheus.GaugeOpts{Name: "carril_partitions_last_success_seconds", Help: "When partitions were last made ahead, in unix time."}),
	}
	reg.MustRegister(j.inStray, j.strays, j.lastGood)
	return j
}

// Result of one run.
type Result struct {
	Made  int
	Stray map[string]int64 // rows found in DEFAULT partitions; only those that had any
	Moved int64            // how many of them lie where they belong now
}

// Run works until ctx ends.
func (j *Job) Run(ctx context.Context) error {
	var ear sync.WaitGroup
	defer ear.Wait()
	if j.cfg.ListenURL != "" {
		ear.Go(func() { j.listen(ctx) })
	}
	tick := time.NewTicker(j.cfg.Every)
	defer tick.Stop()
	for {
		j.runLogged(ctx)
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		case <-j.kick:
		}
	}
}

func (j *Job) runLogged(ctx context.Context) {
	res, err := j.RunOnce(ctx)
	switch {
	case ctx.Err() != nil:
	case err != nil:
		j.log.Error("partitions were not made", "error", err, "made", res.Made, "stray_rows", res.Stray, "moved", res.Moved)
	case len(res.Stray) > 0:
		j.log.Error("rows in DEFAULT partitions were moved: a partition had been missing", "stray_rows", res.Stray, "moved", res.Moved, "made", res.Made)
	case res.Made > 0:
		j.log.Info("partitions are ahead", "made", res.Made)
	default:
		j.log.Debug("partitions are ahead", "made", 0)
	}
}

// listen has a run come at once when a row goes into a DEFAULT partition.
func (j *Job) listen(ctx context.Context) {
	kick := func() {
		select {
		case j.kick <- struct{}{}:
		default: // one is due anyway
		}
	}
	l := pg.Listener{URL: j.cfg.ListenURL, Channel: strayChannel}
	pg.KeepListening(ctx, l.Listen, kick, func(string) { kick() }, func(err error) {
		j.log.Warn("stray rows are found by the probe alone for now", "error", err)
	})
}

// RunOnce makes what is missing around now, counts stray rows and moves them
// where they belong, a transaction a month. What fails does not keep the rest.
func (j *Job) RunOnce(ctx context.Context) (res Result, err error) {
	res.Made, err = EnsureAhead(ctx, j.pool, j.now())
	found, moved, e := j.repair(ctx)
	res.Stray, res.Moved = found, moved
	if err = errors.Join(err, e); err != nil {
		return res, err
	}
	j.lastGood.SetToCurrentTime()
	return res, nil
}

func (j *Job) repair(ctx context.Context) (found map[string]int64, moved int64, err error) {
	before, err := Strays(ctx, j.pool)
	if err != nil {
		return nil, 0, err
	}
	defaults, err := defaultTables(ctx, j.pool)
	if err != nil {
		return nil, 0, err
	}
	found, left := map[string]int64{}, map[string]int64{}
	for _, s := range before {
		found[s.Table] += s.Rows
		j.strays.WithLabelValues(s.Table).Add(float64(s.Rows))
	}
	if len(before) > 0 {
		var after []Stray
		moved, after, err = Repair(ctx, j.pool, before)
		for _, s := range after {
			left[s.Table] += s.Rows
		}
	}
	for _, t := range defaults {
		j.inStray.WithLabelValues(t).Set(float64(left[t]))
		j.strays.WithLabelValues(t).Add(0) // a series from the start
	}
	return found, moved, err
}

// EnsureAhead makes what every table should have around now, each partition in a
// transaction of its own; made counts them.
func EnsureAhead(ctx context.Context, pool *pgxpool.Pool, now time.Time) (made int, err error) {
	missing, err := Missing(ctx, pool, now)
	if err != nil {
		return 0, err
	}
	type step struct {
		parent string
		at     int64
	}
	done, locked := map[step]bool{}, map[string]bool{}
	var errs []error
	for _, m := range missing {
		k := step{m.Parent, m.From.Unix()}
		if done[k] || locked[m.Parent] {
			continue
		}
		done[k] = true
		ok, err := Make(ctx, pool, m.Parent, m.From, 0)
		if err != nil {
			errs, locked[m.Parent] = append(errs, err), true // the table's other steps wait for the same
		} else if ok {
			made++
		}
	}
	return made, errors.Join(errs...)
}

// Repair moves stray rows into their partitions, a transaction a month, and
// gives how many it moved and what is left.
func Repair(ctx context.Context, pool *pgxpool.Pool, strays []Stray) (moved int64, left []Stray, err error) {
	var errs []error
	for _, s := range strays {
		if _, err := Make(ctx, pool, s.Parent, s.From, 0); err != nil {
			errs = append(errs, err)
		}
	}
	left, err = Strays(ctx, pool)
	if err != nil {
		errs = append(errs, fmt.Errorf("look again: %w", err))
	}
	for _, s := range strays {
		moved += s.Rows
	}
	for _, s := range left {
		moved -= s.Rows
	}
	return max(moved, 0), left, errors.Join(errs...)
}
