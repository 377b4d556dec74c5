package feeder

import (
	"context"
	"fmt"
	"math"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/softcrum/carril/dispatcher/blast"
)

// Metrics of the feeders of a process: how the blasts stand, and what of the
// marketing rail they use. Only the process that feeds a channel shows its
// gauges; the others show 0, so that a sum over processes is right.
type Metrics struct {
	blasts   *prometheus.GaugeVec
	pending  *prometheus.GaugeVec
	sends    *prometheus.GaugeVec
	pace     *prometheus.GaugeVec
	estimate *prometheus.GaugeVec
	stopped  *prometheus.GaugeVec
	credits  *prometheus.GaugeVec
	fullest  *prometheus.GaugeVec
	limit    *prometheus.GaugeVec
	trips    *prometheus.CounterVec
	failures *prometheus.CounterVec
}

// tripReasons is the closed set of the metric's label.
var tripReasons = []string{"bounces", "complaints"}

// NewMetrics registers the metrics of feeders, with every label there is.
func NewMetrics(reg prometheus.Registerer, channels []string) *Metrics {
	m := &Metrics{
		blasts:   prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "carril_blasts", Help: "Blasts that are under way, by state; held is running, but its tenant's marketing is stopped or its sender paused."}, []string{"channel", "state"}),
		pending:  prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "carril_blast_recipients_pending", Help: "Recipients of such blasts without an outcome of ours."}, []string{"channel", "state"}),
		sends:    prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "carril_blast_sends", Help: "Sends of running, held and paused blasts, by whether the provider has reported an outcome."}, []string{"channel", "outcome"}),
		pace:     prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "carril_blast_recipients_per_second", Help: "Recipients of running blasts that got an outcome of ours a second, over five minutes."}, []string{"channel"}),
		estimate: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "carril_blast_drain_seconds", Help: "Pending recipients of running blasts, divided by that pace; +Inf while nothing moves."}, []string{"channel"}),
		stopped:  prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "carril_blast_tenants_stopped", Help: "Tenants whose marketing the outcomes of their blasts have stopped."}, []string{"channel"}),
		credits:  prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "carril_feeder_credits_used", Help: "Batches of all tenants that stand in the topic, are claimed, or come back to it by themselves."}, []string{"channel"}),
		fullest:  prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "carril_feeder_credits_used_most", Help: "The most of these that one tenant has."}, []string{"channel"}),
		limit:    prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "carril_feeder_credits_limit", Help: "The most of these that one tenant may have."}, []string{"channel"}),
		trips:    prometheus.NewCounterVec(prometheus.CounterOpts{Name: "carril_blast_trips_total", Help: "Blasts that their outcomes have paused."}, []string{"channel", "reason"}),
		failures: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "carril_blast_overview_failures_total", Help: "Looks over the blasts that failed: the gauges are as they were."}, []string{"channel"}),
	}
	reg.MustRegister(m.blasts, m.pending, m.sends, m.pace, m.estimate, m.stopped, m.credits, m.fullest, m.limit, m.trips, m.failures)
	for _, c := range channels {
		for _, why := range tripReasons {
			m.trips.WithLabelValues(c, why)
		}
		m.failures.WithLabelValues(c)
		m.clear(c)
	}
	return m
}

// clear says that this process does not feed a channel.
func (m *Metrics) clear(channel string) {
	if m == nil {
		return
	}
	m.show(channel, blast.Overview{}, standing{}, 0)
}

func (m *Metrics) tripped(channel, reason string) {
	if m != nil {
		m.trips.WithLabelValues(channel, reason).Inc()
	}
}

func (m *Metrics) show(channel string, o blast.Overview, s standing, limit int) {
	var reported, unreported int64
	for _, state := range blast.Standings() {
		v := o.States[state]
		m.blasts.WithLabelValues(channel, state).Set(float64(v.Blasts))
		m.pending.WithLabelValues(channel, state).Set(float64(v.Pending))
		reported, unreported = reported+v.Reported, unreported+v.Unreported
	}
	m.sends.WithLabelValues(channel, "reported").Set(float64(reported))
	m.sends.WithLabelValues(channel, "unreported").Set(float64(unreported))
	running := o.States[blast.Running]
	m.pace.WithLabelValues(channel).Set(running.PerSecond)
	m.estimate.WithLabelValues(channel).Set(drain(running))
	m.stopped.WithLabelValues(channel).Set(float64(o.Stopped))
	m.credits.WithLabelValues(channel).Set(float64(s.all))
	m.fullest.WithLabelValues(channel).Set(float64(s.most))
	m.limit.WithLabelValues(channel).Set(float64(limit))
}

// drain is how many seconds the running blasts still take at their pace.
func drain(s blast.Standing) float64 {
	switch {
	case s.Pending == 0:
		return 0
	case s.PerSecond == 0:
		return math.Inf(1)
	}
	return float64(s.Pending) / s.PerSecond
}

// standing is what the tenants have of their credits.
type standing struct{ all, most int64 }

// measure looks over the channel's blasts.
func (f *Feeder) measure(ctx context.Context) error {
	o, err := f.blasts.Overview(ctx, f.cfg.Channel)
	var s standing
	if err == nil {
		const sql = `SELECT coalesce(sum(n), 0)::bigint, coalesce(max(n), 0)::bigint FROM (SELECT ` + standingCount + ` AS n FROM core.processed_jobs j
WHERE j.id_time > now() - interval '40 days' AND j.worker = $1 AND j.state IN ('in_topic', 'claimed', 'held') GROUP BY j.tenant_id) t`
		if err = f.deps.Pool.QueryRow(ctx, sql, f.deps.Store.Worker()).Scan(&s.all, &s.most); err != nil {
			err = fmt.Errorf("count the tenants' batches: %w", err)
		}
	}
	if err != nil {
		if ctx.Err() == nil {
			f.deps.Metrics.failures.WithLabelValues(f.cfg.Channel).Inc()
		}
		return err
	}
	f.deps.Metrics.show(f.cfg.Channel, o, s, f.cfg.InTopic)
	return nil
}
