package archive

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/softcrum/carril/internal/db/processordb"
)

// JobConfig of a Job; zero values take the defaults.
type JobConfig struct {
	Every time.Duration // how often it looks for work when there is none; default 1 s
	Clean time.Duration // how often it removes what has expired; default 10 min
	// Failures of one part, one after the other, that end an export; default 12: with
	// their pauses, 35 minutes.
	Failures int
}

// Job makes the exports that the API was asked for, a part of each in turn, so
// that a large one does not hold up a small one, and deletes them when they
// expire. Of N processes one runs it, under a lease; two at once would cost work
// and no export.
type Job struct {
	cfg   JobConfig
	a     *Archive
	log   *slog.Logger
	steps *prometheus.CounterVec
}

// NewJob makes a Job over an Archive.
func NewJob(cfg JobConfig, a *Archive, reg prometheus.Registerer) *Job {
	if cfg.Every == 0 {
		cfg.Every = time.Second
	}
	if cfg.Clean == 0 {
		cfg.Clean = 10 * time.Minute
	}
	if cfg.Failures == 0 {
		cfg.Failures = 12
	}
	j := &Job{cfg: cfg, a: a, log: a.deps.Log, steps: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "carril_export_steps_total",
		Help: "Steps of tenants' exports, by outcome."}, []string{"outcome"})}
	for _, outcome := range []string{outcomeDone, faultStore, faultDatabase, faultData} {
		j.steps.WithLabelValues(outcome)
	}
	reg.MustRegister(j.steps)
	return j
}

// What a tenant is told of a failure, and the metric's labels.
const (
	outcomeDone   = "done"
	faultStore    = "store_unavailable" // the storage, or the way to it or to the database
	faultDatabase = "database_refused"
	faultData     = "export_corrupt" // what was read back is not what was written
)

func faultOf(err error) string {
	var pe *pgconn.PgError
	switch {
	case errors.Is(err, ErrCorrupt):
		return faultData
	case errors.As(err, &pe) || errors.Is(err, ErrMismatch):
		return faultDatabase
	}
	return faultStore
}

// Run works until ctx ends.
func (j *Job) Run(ctx context.Context) error {
	var cleaned time.Time
	tick := time.NewTicker(j.cfg.Every)
	defer tick.Stop()
	for {
		if time.Since(cleaned) >= j.cfg.Clean {
			if err := j.clean(ctx); err != nil && ctx.Err() == nil {
				j.log.Warn("expired exports could not be removed", "error", err)
			}
			cleaned = time.Now()
		}
		worked, err := j.RunOnce(ctx)
		if err != nil && ctx.Err() == nil {
			j.log.Warn("the exports stand still", "error", err)
		}
		if worked && err == nil && ctx.Err() == nil {
			continue
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// RunOnce does the next step of the export whose turn it is; false where there is
// none. An export's own failure is recorded with it and is no error.
func (j *Job) RunOnce(ctx context.Context) (worked bool, err error) {
	q := processordb.New(j.a.deps.Pool)
	id, err := q.NextExport(ctx)
	if errors.Is(err, pgx.ErrNoRows) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	began := time.Now()
	done, err := j.a.Step(ctx, id)
	if ctx.Err() != nil {
		return false, nil
	}
	if err != nil {
		fault := faultOf(err)
		j.steps.WithLabelValues(fault).Inc()
		j.log.Warn("a step of an export failed", "export_id", id, "fault", fault, "error", err)
		return true, q.FailExport(ctx, processordb.FailExportParams{Error: &fault, Most: int32(j.cfg.Failures), ExportID: id})
	}
	j.steps.WithLabelValues(outcomeDone).Inc()
	if done != nil {
		j.log.Info("an export is done", "export_id", id, "rows", done.Rows, "bytes", done.Bytes, "objects", done.Objects, "last_step", time.Since(began))
	}
	return true, nil
}

// clean deletes what has expired, and what killed writers left behind.
func (j *Job) clean(ctx context.Context) error {
	q := processordb.New(j.a.deps.Pool)
	expired, err := q.ExpiredExports(ctx)
	if err != nil {
		return err
	}
	for _, e := range expired {
		if err := j.a.sweep(ctx, exportDir(e.TenantID, e.ExportID), nil); err != nil {
			return err
		}
		if err := q.ExpireExport(ctx, e.ExportID); err != nil {
			return err
		}
	}
	return j.a.deps.Storage.Sweep(ctx, "", time.Now().Add(-24*time.Hour))
}
