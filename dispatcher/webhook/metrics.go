package webhook

import "github.com/prometheus/client_golang/prometheus"

type metrics struct {
	attempts   *prometheus.CounterVec
	seconds    prometheus.Histogram
	deliveries *prometheus.CounterVec
	disabled   *prometheus.CounterVec
	claimed    prometheus.Counter
	opened     prometheus.Counter
	lanes      prometheus.Gauge
	memory     prometheus.Gauge
	running    prometheus.GaugeFunc
}

func newMetrics(reg prometheus.Registerer, running func() float64) *metrics {
	m := &metrics{
		attempts:   prometheus.NewCounterVec(prometheus.CounterOpts{Name: "carril_webhook_attempts_total", Help: "Attempts by what happened; counted is false where the cause was ours."}, []string{"class", "counted"}),
		seconds:    prometheus.NewHistogram(prometheus.HistogramOpts{Name: "carril_webhook_attempt_seconds", Help: "From the connection to the end of the answer.", Buckets: prometheus.ExponentialBuckets(0.002, 2, 14)}),
		deliveries: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "carril_webhook_deliveries_total", Help: "Deliveries that came to an end."}, []string{"outcome"}),
		disabled:   prometheus.NewCounterVec(prometheus.CounterOpts{Name: "carril_webhook_endpoints_disabled_total", Help: "Endpoints disabled by us."}, []string{"reason"}),
		claimed:    prometheus.NewCounter(prometheus.CounterOpts{Name: "carril_webhook_claimed_total", Help: "Deliveries taken from the table rather than straight from the stage."}),
		opened:     prometheus.NewCounter(prometheus.CounterOpts{Name: "carril_webhook_breaker_opened_total", Help: "Times that an endpoint's breaker opened."}),
		lanes:      prometheus.NewGauge(prometheus.GaugeOpts{Name: "carril_webhook_lanes", Help: "Endpoints with work in this process lately."}),
		memory:     prometheus.NewGauge(prometheus.GaugeOpts{Name: "carril_webhook_memory_bytes", Help: "Bodies in memory."}),
		running:    prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "carril_webhook_attempts_running", Help: "Attempts that run."}, running),
	}
	for _, class := range Classes() {
		for _, counted := range []string{"true", "false"} {
			m.attempts.WithLabelValues(class, counted)
		}
	}
	for _, outcome := range []string{"delivered", "failed", "cancelled"} {
		m.deliveries.WithLabelValues(outcome)
	}
	for _, reason := range []string{DisabledGone, DisabledFailing} {
		m.disabled.WithLabelValues(reason)
	}
	reg.MustRegister(m.attempts, m.seconds, m.deliveries, m.disabled, m.claimed, m.opened, m.lanes, m.memory, m.running)
	return m
}

func (m *metrics) attempted(v verdict) {
	counted := "false"
	if v.asked {
		counted = "true"
		m.seconds.Observe(v.took.Seconds())
	}
	m.attempts.WithLabelValues(v.class, counted).Inc()
}

func (m *metrics) settled(r result) {
	switch r.verdict.outcome {
	case delivered, failed, cancelled:
		m.deliveries.WithLabelValues(r.verdict.state()).Inc()
	}
}
