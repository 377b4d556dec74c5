package providerhook

import (
	"errors"
	"fmt"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/softcrum/carril/internal/signature"
)

// The outcomes, beside those of signature.Errors.
const (
	outcomeAccepted   = "accepted"
	outcomeUnknown    = "unknown_provider"
	outcomeMethod     = "method_not_allowed"
	outcomeEncoding   = "unsupported_encoding"
	outcomeTooLarge   = "body_too_large"
	outcomeUnreadable = "unreadable_body"
	outcomeQueue      = "queue_unavailable"
)

// unknownProvider is the label of every name that is no source: what callers
// write at will is no label.
const unknownProvider = "unknown"

type metrics struct {
	webhooks *prometheus.CounterVec
}

func newMetrics(registerer prometheus.Registerer, providers []string) (*metrics, error) {
	m := &metrics{webhooks: prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "carril_provider_webhooks_total",
		Help: "Providers' webhooks by provider and outcome.",
	}, []string{"provider", "outcome"})}
	outcomes := []string{outcomeAccepted, outcomeMethod, outcomeEncoding, outcomeTooLarge, outcomeUnreadable, outcomeQueue}
	for _, reason := range signature.Errors() {
		outcomes = append(outcomes, string(reason))
	}
	m.webhooks.WithLabelValues(unknownProvider, outcomeUnknown)
	for _, provider := range providers {
		for _, outcome := range outcomes {
			m.webhooks.WithLabelValues(provider, outcome)
		}
	}
	if registerer == nil {
		return m, nil
	}
	if err := registerer.Register(m.webhooks); err != nil {
		return nil, fmt.Errorf("register provider webhook metrics: %w", err)
	}
	return m, nil
}

func (m *metrics) count(provider, outcome string) {
	m.webhooks.WithLabelValues(provider, outcome).Inc()
}

// reasonOf gives the label of a signature that did not verify.
func reasonOf(err error) string {
	var reason signature.Error
	if errors.As(err, &reason) {
		return string(reason)
	}
	return string(signature.ErrMismatch)
}
