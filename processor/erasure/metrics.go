package erasure

import "github.com/prometheus/client_golang/prometheus"

// Metrics of erasures.
type Metrics struct {
	open     prometheus.Gauge
	oldest   prometheus.Gauge
	rows     *prometheus.CounterVec
	failures prometheus.Counter
	purged   prometheus.Counter
}

// NewMetrics registers them.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	m := &Metrics{
		open:   prometheus.NewGauge(prometheus.GaugeOpts{Name: "carril_erasures_open", Help: "Erasures of people that are not through all stores yet."}),
		oldest: prometheus.NewGauge(prometheus.GaugeOpts{Name: "carril_erasures_oldest_seconds", Help: "Age of the oldest open erasure; 31 days at most."}),
		rows: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "carril_erasure_rows_total",
			Help: "Rows emptied or deleted for erased people, by store."}, []string{"store"}),
		failures: prometheus.NewCounter(prometheus.CounterOpts{Name: "carril_erasure_failures_total", Help: "Pages of an erasure that failed and are tried again."}),
		purged:   prometheus.NewCounter(prometheus.CounterOpts{Name: "carril_anonymous_contacts_purged_total", Help: "Anonymous contacts erased by their tenant's clock."}),
	}
	for _, s := range []string{StoreContacts, StoreJobs, StoreBlasts, StoreEvents, StoreSends, StoreLetters} {
		m.rows.WithLabelValues(s)
	}
	reg.MustRegister(m.open, m.oldest, m.rows, m.failures, m.purged)
	return m
}

func (m *Metrics) did(store string, n int) {
	if m != nil && n > 0 {
		m.rows.WithLabelValues(store).Add(float64(n))
	}
}

func (m *Metrics) failed() {
	if m != nil {
		m.failures.Inc()
	}
}
