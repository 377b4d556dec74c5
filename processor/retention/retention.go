// Package retention ends what plans do not keep any longer (FS-CORE-0006 §9,
// FS-MSG-0003 §7): a leaf, one retention class of one month, is detached,
// exported, read back, and dropped in a transaction that finds it equal to its
// export; counts a month stay for ever. Every step stands in
// core.retention_ledger, so that a run after a crash goes on where the last one
// stopped, and so that what is detached is still found by who reads it
// (core.detached) or changes it (core.leaves). It also removes what has
// served its time without an export: days of work, spans, fence rows, warnings.
//
// Making partitions is left to processor/partition, writing objects to the
// Exporter. `carril maintain` runs the job under a lease, `carril retention` by
// hand.
package retention

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/softcrum/carril/internal/db/processordb"
)

// Lease is the name under which one process of N runs the job.
const Lease = "maintain:retention"

// Tables with retention classes.
const (
	Events  = "core.tracked_events"
	Sends   = "messaging.sends"
	History = "messaging.send_status_history"
)

// ErrNoStorage says that leaves are due and there is nowhere to export them.
var ErrNoStorage = errors.New("no storage is configured (CARRIL_STORAGE_URL): nothing is exported, so no leaf goes")

// Config of the job; zero values take the defaults.
type Config struct {
	Every          time.Duration // between runs; default 1 h
	TopicRetention time.Duration // of core.events: a fence row lasts at least as long; default 14 days
	// EmptyFor is how long beyond its class an empty leaf stands, for records that
	// come late: as long as a topic keeps one, and more. Default 31 days.
	EmptyFor time.Duration
	Page     int // rows deleted at a time, where rows are; default 5,000

	OutboxKept     time.Duration // days of core.outbox that every relay has passed; default 2 days
	JobsKept       time.Duration // days of core.processed_jobs with no open job; default 40 days, as far as rails look back
	RequestsKept   time.Duration // days of messaging.send_requests; default 25 h, when no provider remembers the key
	DeliveriesKept time.Duration // days of core.webhook_deliveries with none pending; default 31 days
	AttemptsKept   time.Duration // days of core.webhook_attempts; default 30 days
	LookupMonths   int           // that warnings, key conflicts, decisions and recipients of blasts are kept, or the plan's months where those are more; default 13

	DeadLettersKept time.Duration // dead letters, since they were replayed or discarded; open ones stay; default 90 days
}

const day = 24 * time.Hour

func (c Config) withDefaults() Config {
	set := func(d *time.Duration, v time.Duration) {
		if *d == 0 {
			*d = v
		}
	}
	set(&c.Every, time.Hour)
	set(&c.TopicRetention, 14*day)
	set(&c.EmptyFor, 31*day)
	set(&c.OutboxKept, 2*day)
	set(&c.JobsKept, 40*day)
	set(&c.RequestsKept, 25*time.Hour)
	set(&c.DeliveriesKept, 31*day)
	set(&c.AttemptsKept, 30*day)
	set(&c.DeadLettersKept, 90*day)
	if c.Page == 0 {
		c.Page = 5_000
	}
	if c.LookupMonths == 0 {
		c.LookupMonths = 13
	}
	return c
}

// Deps is what the job works with.
type Deps struct {
	Pool     *pgxpool.Pool // direct, or through a pooler: nothing is kept between transactions
	Exporter Exporter      // nil: no storage; leaves stay, and every run says so
	Log      *slog.Logger
	Metrics  *Metrics // nil: not measured
	// Now is the clock by which things fall due. Nil: the database's, so that no
	// process whose clock has run ahead drops what is not due.
	Now func() time.Time
}

// Metrics of the job.
type Metrics struct {
	due, detached, held, lastGood prometheus.Gauge
	dropped                       *prometheus.CounterVec
	failures                      prometheus.Counter
}

// NewMetrics registers the job's metrics.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	m := &Metrics{
		due: prometheus.NewGauge(prometheus.GaugeOpts{Name: "carril_retention_due_leaves",
			Help: "Leaves with rows that are older than their class and still attached after a run."}),
		detached: prometheus.NewGauge(prometheus.GaugeOpts{Name: "carril_retention_detached_leaves",
			Help: "Detached tables that are not exported and dropped after a run."}),
		held: prometheus.NewGauge(prometheus.GaugeOpts{Name: "carril_retention_held_leaves",
			Help: "Partitions that wait for something else: a relay that lags, an open job, sends before their history, storage."}),
		lastGood: prometheus.NewGauge(prometheus.GaugeOpts{Name: "carril_retention_last_success_seconds",
			Help: "When a run last ended without a failure, in unix time."}),
		dropped:  prometheus.NewCounterVec(prometheus.CounterOpts{Name: "carril_retention_dropped_total", Help: "Leaves exported, verified and dropped."}, []string{"table"}),
		failures: prometheus.NewCounter(prometheus.CounterOpts{Name: "carril_retention_failures_total", Help: "Steps of retention that failed; each is tried again by the next run."}),
	}
	for _, t := range []string{Events, Sends, History} {
		m.dropped.WithLabelValues(t)
	}
	reg.MustRegister(m.due, m.detached, m.held, m.lastGood, m.dropped, m.failures)
	return m
}

// Job is the retention job, for one goroutine. One process at a time runs it; two
// would only do work in vain: every step compares what it changes.
type Job struct {
	cfg  Config
	deps Deps
	at   time.Time // of this run
	// probe is asked at each point where a process may die; a test's error there
	// is a death.
	probe func(point string) error
}

// NewJob makes the job.
func NewJob(cfg Config, deps Deps) *Job {
	return &Job{cfg: cfg.withDefaults(), deps: deps, probe: func(string) error { return nil }}
}

// Result of one run.
type Result struct {
	Dropped []string // detached tables that are gone, exported and verified
	Held    []Held   // what has to wait, and for what
	Due     int      // leaves with rows that are due and still attached
	Open    int      // detached tables that are still there
	Moved   int64    // rows that went to a longer class
	Empty   int      // empty leaves and months that were removed
	Trimmed map[string]int64
}

// Held is a table that has to wait.
type Held struct {
	Table  string `json:"table"`
	Reason string `json:"reason"`
}

// Run works until ctx ends.
func (j *Job) Run(ctx context.Context) error {
	tick := time.NewTicker(j.cfg.Every)
	defer tick.Stop()
	for {
		res, err := j.RunOnce(ctx)
		if ctx.Err() != nil {
			return nil
		}
		j.say(ctx, res, err)
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

func (j *Job) say(ctx context.Context, res Result, err error) {
	level, attrs := slog.LevelDebug, []any{"dropped", res.Dropped, "due", res.Due, "detached", res.Open, "moved_rows", res.Moved, "removed_empty", res.Empty, "trimmed", res.Trimmed}
	if len(res.Dropped)+res.Due+res.Open+res.Empty+len(res.Trimmed) > 0 || res.Moved > 0 {
		level = slog.LevelInfo
	}
	if len(res.Held) > 0 {
		level, attrs = slog.LevelWarn, append(attrs, "held", res.Held)
	}
	if err != nil {
		level, attrs = slog.LevelError, append(attrs, "error", err)
	}
	j.deps.Log.Log(ctx, level, "retention has run", attrs...)
}

// RunOnce takes up what an earlier run left, then what is due, then trims. What
// fails is tried again by the next run and keeps nothing else; the error joins
// all of them.
func (j *Job) RunOnce(ctx context.Context) (Result, error) {
	res := Result{Trimmed: map[string]int64{}}
	err := j.look(ctx)
	if err != nil {
		return res, j.counted(err)
	}
	err = errors.Join(j.leaves(ctx, &res), j.discard(ctx), j.sweepEmpty(ctx, &res), j.trim(ctx, &res), j.standing(ctx, &res))
	if m := j.deps.Metrics; m != nil {
		m.due.Set(float64(res.Due))
		m.detached.Set(float64(res.Open))
		m.held.Set(float64(len(res.Held)))
		if err == nil {
			m.lastGood.SetToCurrentTime()
		}
	}
	return res, err
}

// discard removes exports that rows changed after: an erased person may be in
// them.
func (j *Job) discard(ctx context.Context) error {
	if j.deps.Exporter == nil {
		return nil
	}
	db := processordb.New(j.deps.Pool)
	void, err := db.SupersededExports(ctx)
	if err != nil {
		return fmt.Errorf("read the retention ledger: %w", err)
	}
	var errs []error
	for _, e := range void {
		err := j.deps.Exporter.Discard(ctx, e.Manifest)
		if err == nil {
			err = db.ForgetExport(ctx, processordb.ForgetExportParams{Manifest: e.Manifest, RunID: e.RunID})
		}
		if err != nil {
			errs = append(errs, j.counted(fmt.Errorf("discard export %s: %w", e.Manifest, err)))
		}
	}
	return errors.Join(errs...)
}

// leaves brings every leaf as far as it goes.
func (j *Job) leaves(ctx context.Context, res *Result) error {
	open, err := processordb.New(j.deps.Pool).OpenLeaves(ctx)
	if err != nil {
		return fmt.Errorf("read the retention ledger: %w", err)
	}
	var errs []error
	var histories []uuid.UUID
	for _, l := range open {
		if l.Parent == History { // after the sends that they tell about
			histories = append(histories, l.RunID)
			continue
		}
		errs = append(errs, j.counted(j.finish(ctx, l.RunID, res)))
	}
	due, err := dueLeaves(ctx, j.deps.Pool, j.now())
	if err != nil {
		return errors.Join(append(errs, err)...)
	}
	for _, d := range due {
		if !d.Empty && ctx.Err() == nil {
			errs = append(errs, j.counted(j.begin(ctx, d, res)))
		}
	}
	for _, run := range histories {
		errs = append(errs, j.counted(j.finish(ctx, run, res)))
	}
	return errors.Join(append(errs, ctx.Err())...)
}

func (j *Job) counted(err error) error {
	if m := j.deps.Metrics; err != nil && m != nil {
		m.failures.Inc()
	}
	return err
}

// begin detaches a due leaf, unless something has to come first, and goes on
// with it.
func (j *Job) begin(ctx context.Context, d due, res *Result) error {
	reason, err := j.reasonToWait(ctx, d)
	if err != nil {
		return err
	}
	if reason != "" {
		res.Held = append(res.Held, Held{d.Name, reason})
		return nil
	}
	run, err := uuid.NewRandom()
	if err != nil {
		return fmt.Errorf("name a retention run: %w", err)
	}
	if err := j.detach(ctx, d, run); err != nil {
		return err
	}
	return j.finish(ctx, run, res)
}

// reasonToWait says what must come before a leaf may go; empty: nothing.
func (j *Job) reasonToWait(ctx context.Context, d due) (string, error) {
	if j.deps.Exporter == nil {
		return ErrNoStorage.Error(), nil
	}
	switch d.Parent {
	case Events:
		return unpublished(ctx, j.deps.Pool, d.From, d.To)
	case History:
		return j.sendsFirst(ctx, d.From, d.RetentionMonths)
	}
	return "", nil
}

// sendsFirst: a send is counted by its final status, which its history knows.
func (j *Job) sendsFirst(ctx context.Context, from time.Time, class int16) (string, error) {
	open, err := sendsOpen(ctx, j.deps.Pool, from, class)
	if err != nil || !open {
		return "", err
	}
	return "the sends of the same month and class go first", nil
}

func (j *Job) now() time.Time { return j.at }

// look takes the time of a run.
func (j *Job) look(ctx context.Context) error {
	if j.deps.Now != nil {
		j.at = j.deps.Now()
		return nil
	}
	if err := j.deps.Pool.QueryRow(ctx, `SELECT now()`).Scan(&j.at); err != nil {
		return fmt.Errorf("ask the database for the time: %w", err)
	}
	return nil
}

// standing counts what is left.
func (j *Job) standing(ctx context.Context, res *Result) error {
	due, err := dueLeaves(ctx, j.deps.Pool, j.now())
	if err != nil {
		return err
	}
	for _, d := range due {
		if !d.Empty {
			res.Due++
		}
	}
	open, err := processordb.New(j.deps.Pool).OpenLeaves(ctx)
	if err != nil {
		return fmt.Errorf("read the retention ledger: %w", err)
	}
	res.Open = len(open)
	return nil
}
