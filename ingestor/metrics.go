package ingestor

import (
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/softcrum/carril/ingestor/intake"
	"github.com/softcrum/carril/ingestor/message"
)

type metrics struct {
	accepted   map[string]prometheus.Counter // by kind
	rejections *prometheus.CounterVec
	failures   *prometheus.CounterVec

	requests   *prometheus.CounterVec // for messages, by category
	recipients *prometheus.CounterVec
	refused    *prometheus.CounterVec // requests for messages, by code
}

func newMetrics(reg prometheus.Registerer, held *atomic.Int64) (*metrics, error) {
	events := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "carril_ingest_events_accepted_total", Help: "Events that the queue acknowledged, by kind.",
	}, []string{"kind"})
	m := &metrics{
		accepted: map[string]prometheus.Counter{
			intake.Track: events.WithLabelValues(intake.Track), intake.Identify: events.WithLabelValues(intake.Identify),
		},
		rejections: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "carril_ingest_rejections_total", Help: "Events, and batches as a whole, that were refused for what they are, by code.",
		}, []string{"code"}),
		failures: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "carril_ingest_enqueue_failures_total", Help: "Requests whose events the queue did not take, by class.",
		}, []string{"class"}),
	}
	m.requests = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "carril_ingest_message_requests_accepted_total", Help: "Requests for messages that the queue acknowledged, by category.",
	}, []string{"category"})
	m.recipients = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "carril_ingest_message_recipients_accepted_total", Help: "Recipients of the requests for messages that the queue acknowledged, by category.",
	}, []string{"category"})
	m.refused = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "carril_ingest_message_rejections_total", Help: "Requests for messages that were refused for what they are, by code.",
	}, []string{"code"})
	for _, c := range []string{"transactional", "product", "marketing"} {
		m.requests.WithLabelValues(c)
		m.recipients.WithLabelValues(c)
	}
	for _, c := range message.Codes() {
		m.refused.WithLabelValues(c)
	}
	for _, c := range intake.Codes() {
		m.rejections.WithLabelValues(string(c))
	}
	for _, c := range EnqueueClasses() {
		m.failures.WithLabelValues(string(c))
	}
	bytes := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "carril_ingest_held_bytes", Help: "Bytes that requests hold at this moment, of bodies and what is made of them.",
	}, func() float64 { return float64(held.Load()) })
	if err := errors.Join(reg.Register(events), reg.Register(m.rejections), reg.Register(m.failures), reg.Register(bytes),
		reg.Register(m.requests), reg.Register(m.recipients), reg.Register(m.refused)); err != nil {
		return nil, fmt.Errorf("register ingest metrics: %w", err)
	}
	return m, nil
}

func (m *metrics) rejected(c intake.Code) { m.rejections.WithLabelValues(string(c)).Inc() }

func (m *metrics) enqueued(records []Record) {
	for i := range records {
		m.accepted[records[i].Event.Kind].Inc()
	}
}
