package rail

import (
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
)

// Rerouted is how many claims were given back for their provider's own token.
func (m *Metrics) Rerouted(channel, rail string) float64 {
	var out dto.Metric
	var c prometheus.Metric = m.records.WithLabelValues(channel, rail, "rerouted")
	if err := c.Write(&out); err != nil {
		return -1
	}
	return out.GetCounter().GetValue()
}
