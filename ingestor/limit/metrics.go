package limit

import (
	"errors"
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
)

type metrics struct {
	passed, refused           prometheus.Counter // by leased tokens
	passedAlone, refusedAlone prometheus.Counter // by this process alone
	leases                    *prometheus.CounterVec
	away                      prometheus.Gauge
	waited                    prometheus.Histogram
}

func newMetrics(reg prometheus.Registerer) (*metrics, error) {
	decisions := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "carril_limit_decisions_total",
		Help: "Requests that the API's limits were asked about, by who decided (shared: Redis, local: this process alone) and how.",
	}, []string{"by", "decision"})
	m := &metrics{
		passed: decisions.WithLabelValues("shared", "passed"), refused: decisions.WithLabelValues("shared", "refused"),
		passedAlone: decisions.WithLabelValues("local", "passed"), refusedAlone: decisions.WithLabelValues("local", "refused"),
		leases: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "carril_limit_leases_total", Help: "Asks for a block of tokens, by what came of them.",
		}, []string{"result"}),
		away: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "carril_limit_redis_away", Help: "1 while the API's limits are kept by this process alone, because Redis gives no answer.",
		}),
		waited: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "carril_limit_wait_seconds", Help: "How long requests without a token at hand waited for one.",
			Buckets: []float64{.0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1},
		}),
	}
	for _, r := range []string{"granted", "refused", "failed"} {
		m.leases.WithLabelValues(r)
	}
	if err := errors.Join(reg.Register(decisions), reg.Register(m.leases), reg.Register(m.away), reg.Register(m.waited)); err != nil {
		return nil, fmt.Errorf("register limit metrics: %w", err)
	}
	return m, nil
}
