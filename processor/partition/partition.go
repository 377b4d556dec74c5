// Package partition keeps time-partitioned tables ahead of the clock: on
// demand for whoever writes a row, and as a job that makes the coming months
// and days and watches the DEFAULT partitions, which must stay empty. The one
// maker of a partition is the SQL function core.ensure_partition.
package partition

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/softcrum/carril/internal/db/processordb"
)

// Maker makes partitions on demand and remembers which ones it has seen.
type Maker struct {
	pool *pgxpool.Pool
	mu   sync.Mutex
	seen map[seenKey]bool
}

type seenKey struct {
	parent string
	month  string
	class  int16
}

// NewMaker makes a Maker over pool.
func NewMaker(pool *pgxpool.Pool) *Maker { return &Maker{pool: pool, seen: map[seenKey]bool{}} }

// Ensure makes the month of a table that an instant falls into, with the leaf
// of a retention class, unless it is known to be there. It uses a connection
// of its own: no lock of a caller's transaction is held while it works.
func (m *Maker) Ensure(ctx context.Context, parent string, at time.Time, class int16) error {
	k := seenKey{parent, at.UTC().Format("200601"), class}
	m.mu.Lock()
	ok := m.seen[k]
	m.mu.Unlock()
	if ok {
		return nil
	}
	if err := processordb.New(m.pool).EnsurePartition(ctx, processordb.EnsurePartitionParams{ParentTable: parent, At: at}); err != nil {
		return fmt.Errorf("make partition %s of %s: %w", k.month, parent, err)
	}
	m.mu.Lock()
	m.seen[k] = true
	m.mu.Unlock()
	return nil
}

// Forget drops what is remembered, after the database contradicted it.
func (m *Maker) Forget() {
	m.mu.Lock()
	clear(m.seen)
	m.mu.Unlock()
}

// JobConfig of the job; zero values take the defaults.
type JobConfig struct {
	Every time.Duration // default 10 min
}

// Job makes partitions ahead and watches the DEFAULT ones.
type Job struct {
	cfg      JobConfig
	pool     *pgxpool.Pool
	log      *slog.Logger
	now      func() time.Time
	inStray  *prometheus.GaugeVec
	lastGood prometheus.Gauge
}

// NewJob makes the job; now is the clock, by which months turn.
func NewJob(cfg JobConfig, pool *pgxpool.Pool, log *slog.Logger, reg prometheus.Registerer, now func() time.Time) *Job {
	if cfg.Every == 0 {
		cfg.Every = 10 * time.Minute
	}
	j := &Job{cfg: cfg, pool: pool, log: log, now: now,
		inStray:  prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "carril_default_partition_rows", Help: "Rows in a DEFAULT partition; any is an incident."}, []string{"table"}),
		lastGood: prometheus.NewGauge(prometheus.GaugeOpts{Name: "carril_partitions_last_success_seconds", Help: "When partitions were last made ahead, in unix time."}),
	}
	reg.MustRegister(j.inStray, j.lastGood)
	return j
}

// Result of one run.
type Result struct {
	Made  int
	Stray map[string]int64 // rows by DEFAULT partition; only those that have any
}

// Run works until ctx ends.
func (j *Job) Run(ctx context.Context) error {
	tick := time.NewTicker(j.cfg.Every)
	defer tick.Stop()
	for {
		res, err := j.RunOnce(ctx)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			j.log.Error("partitions were not made", "error", err)
		case len(res.Stray) > 0:
			j.log.Error("rows in DEFAULT partitions", "rows", res.Stray, "made", res.Made)
		default:
			j.log.Info("partitions are ahead", "made", res.Made)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// RunOnce makes what is missing around now and counts stray rows.
func (j *Job) RunOnce(ctx context.Context) (res Result, err error) {
	made, err := processordb.New(j.pool).EnsurePartitions(ctx, j.now())
	if err != nil {
		return res, fmt.Errorf("make partitions: %w", err)
	}
	res.Made = int(made)
	res.Stray = map[string]int64{}
	for _, table := range []string{"core.tracked_events_default", "messaging.sends_default", "messaging.send_status_history_default"} {
		var n int64
		// By hand: sqlc cannot take a table's name. It is a constant of this file.
		if err := j.pool.QueryRow(ctx, "SELECT count(*) FROM "+table).Scan(&n); err != nil {
			return res, fmt.Errorf("count %s: %w", table, err)
		}
		j.inStray.WithLabelValues(table).Set(float64(n))
		if n > 0 {
			res.Stray[table] = n
		}
	}
	j.lastGood.SetToCurrentTime()
	return res, nil
}
