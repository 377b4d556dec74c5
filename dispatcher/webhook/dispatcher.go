package webhook

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"github.com/softcrum/carril/dispatcher/webhook/guard"
	"github.com/softcrum/carril/internal/ids"
	"github.com/softcrum/carril/internal/stream"
)

// Dispatcher delivers. Make it with New, give Handler to a stream loop over
// Topics, and call Run once beside the loop; stop the loop first.
type Dispatcher struct {
	cfg      Config
	deps     Deps
	log      *slog.Logger
	me       uuid.UUID // names the leases of this process
	deadline time.Duration

	client  *guard.Client
	lanes   *lanes
	table   *table
	settler *settler
	metrics *metrics
	egress  egress
	slots   chan struct{} // one an attempt that runs
	changes atomic.Int64  // counts Forget
	oldest  atomic.Int64  // Unix seconds before which nothing waits; see since
}

// New makes a dispatcher; it connects to nothing yet.
func New(cfg Config, deps Deps) (*Dispatcher, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(deps.Guard.Deadline()); err != nil {
		return nil, err
	}
	d := &Dispatcher{cfg: cfg, deps: deps, log: deps.Log, me: ids.New(), deadline: deps.Guard.Deadline(), client: guard.NewClient(deps.Guard),
		slots: make(chan struct{}, cfg.InFlight)}
	if d.log == nil {
		d.log = slog.New(slog.DiscardHandler)
	}
	d.lanes = &lanes{d: d}
	d.table = &table{pool: deps.Pool, me: d.me, lease: cfg.Lease, since: d.since}
	d.settler = newSettler(d)
	d.metrics = newMetrics(deps.Metrics, func() float64 { return float64(len(d.slots)) })
	return d, nil
}

// Handler is the stage that turns records into deliveries.
func (d *Dispatcher) Handler() stream.Handler { return stage{d} }

// Forget makes the next attempts read their endpoints again; call it when
// core.webhook_endpoints has changed.
func (d *Dispatcher) Forget() { d.changes.Add(1) }

// Run attempts deliveries until ctx ends: those that the stage hands over, and
// those in the table whose time has come. Then it starts nothing more, gives its
// leases back at once, lets what runs finish for Config.Drain, and writes every
// result before it returns, for as long again.
func (d *Dispatcher) Run(ctx context.Context) error {
	hard, cut := context.WithCancel(context.WithoutCancel(ctx)) // outlives ctx by the drain
	defer cut()
	writing, endWriting := context.WithCancel(context.WithoutCancel(ctx))
	defer endWriting()
	attempted := make(chan struct{})
	var parts sync.WaitGroup
	d.lanes.start(hard)
	parts.Go(func() { d.settler.run(writing, attempted) })
	parts.Go(func() { d.sweep(ctx) })

	<-ctx.Done()
	d.lanes.stop()
	defer time.AfterFunc(d.cfg.Drain, cut).Stop()
	defer time.AfterFunc(2*d.cfg.Drain, endWriting).Stop() // the database may be away; leases end by themselves
	d.lanes.active.Wait()
	close(attempted)
	parts.Wait()
	d.client.Close()
	return nil
}

// note writes what a result says of its endpoint as a whole.
func (d *Dispatcher) note(ctx context.Context, r result) error {
	switch {
	case r.verdict.disable != "":
		return d.disable(ctx, r.it.endpoint, r.verdict.disable)
	case r.health == healthGood:
		const sql = `UPDATE core.webhook_endpoints SET failing_since = NULL, last_failed_at = NULL WHERE endpoint_id = $1 AND failing_since IS NOT NULL`
		_, err := d.deps.Pool.Exec(ctx, sql, r.it.endpoint)
		return err
	case r.health == healthBad:
		return d.noteFailure(ctx, r.it.endpoint)
	}
	return nil
}

// noteFailure keeps since when an endpoint does nothing but fail, and ends it
// after Config.DisableAfter. Time in which nothing was attempted does not count:
// it may have been an outage of ours.
func (d *Dispatcher) noteFailure(ctx context.Context, endpoint uuid.UUID) error {
	const sql = `UPDATE core.webhook_endpoints SET last_failed_at = now(),
    failing_since = CASE WHEN failing_since IS NULL OR last_failed_at IS NULL OR last_failed_at < now() - $2::interval THEN now() ELSE failing_since END
WHERE endpoint_id = $1 AND disabled_at IS NULL RETURNING failing_since <= now() - $3::interval`
	rows, err := d.deps.Pool.Query(ctx, sql, endpoint, d.cfg.DisableGap, d.cfg.DisableAfter)
	if err != nil {
		return err
	}
	var over bool
	for rows.Next() {
		if err := rows.Scan(&over); err != nil {
			rows.Close()
			return err
		}
	}
	if err := rows.Err(); err != nil {
		return err
	}
	if over {
		return d.disable(ctx, endpoint, DisabledFailing)
	}
	return nil
}

// disable ends an endpoint and tells its tenant by a warning.
func (d *Dispatcher) disable(ctx context.Context, endpoint uuid.UUID, reason string) error {
	const sql = `WITH off AS (UPDATE core.webhook_endpoints SET disabled_at = now(), disabled_reason = $2, updated_at = now()
    WHERE endpoint_id = $1 AND disabled_at IS NULL RETURNING tenant_id)
INSERT INTO core.warnings (tenant_id, warning_id, kind, detail)
SELECT tenant_id, $3, 'webhook_endpoint_disabled', jsonb_build_object('endpoint_id', $1::uuid, 'reason', $2::text) FROM off`
	tag, err := d.deps.Pool.Exec(ctx, sql, endpoint, reason, ids.New())
	if err != nil {
		return fmt.Errorf("disable a webhook endpoint: %w", err)
	}
	d.Forget()
	if tag.RowsAffected() > 0 {
		d.metrics.disabled.WithLabelValues(reason).Inc()
		d.log.Warn("webhook endpoint disabled", "endpoint_id", endpoint, "reason", reason)
	}
	return nil
}
