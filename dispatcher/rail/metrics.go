package rail

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/softcrum/carril/dispatcher/provider"
	"github.com/softcrum/carril/dispatcher/sends"
	"github.com/softcrum/carril/schemas"
)

// Metrics of all rail workers of a process.
type Metrics struct {
	attempts *prometheus.CounterVec
	records  *prometheus.CounterVec
	took     *prometheus.HistogramVec
	wait     *prometheus.HistogramVec
	inFlight *prometheus.GaugeVec
	alarms   *prometheus.CounterVec
	paused   *prometheus.GaugeVec
	using    *prometheus.GaugeVec
	requests *prometheus.CounterVec
}

// outcomes of an attempt: the classes of its failure, and a success.
func attemptClasses() []string {
	out := []string{"ok"}
	for _, c := range provider.Classes() {
		out = append(out, string(c))
	}
	return out
}

// NewMetrics registers the workers' metrics, with every label there is.
func NewMetrics(reg prometheus.Registerer, channels []string) *Metrics {
	rail := []string{"channel", "rail"}
	m := &Metrics{
		attempts: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "carril_rail_attempts_total", Help: "Requests to a provider, by what it answered."}, append(rail, "class")),
		records:  prometheus.NewCounterVec(prometheus.CounterOpts{Name: "carril_rail_records_total", Help: "Records that were let go without a request, by why."}, append(rail, "why")),
		took:     prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "carril_rail_attempt_seconds", Help: "From a request's start to its answer.", Buckets: prometheus.ExponentialBuckets(0.005, 2, 14)}, rail),
		wait:     prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "carril_rail_token_wait_seconds", Help: "From a job's arrival in the worker to its token.", Buckets: prometheus.ExponentialBuckets(0.001, 2, 18)}, rail),
		inFlight: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "carril_rail_in_flight", Help: "Jobs in a sender's hands."}, rail),
		alarms:   prometheus.NewCounterVec(prometheus.CounterOpts{Name: "carril_rail_alarms_total", Help: "What somebody must look at, by kind."}, append(rail, "kind")),
		paused:   prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "carril_rail_paused", Help: "1 while the rail stands still for its provider, by why."}, append(rail, "why")),
	}
	m.using = prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "carril_rail_provider_in_use", Help: "1 for the provider that a new message goes to, by this process."}, append(rail, "provider"))
	m.requests = prometheus.NewCounterVec(prometheus.CounterOpts{Name: "carril_rail_provider_requests_total", Help: "Requests by provider and by what it answered."}, append(rail, "provider", "class"))
	reg.MustRegister(m.attempts, m.records, m.took, m.wait, m.inFlight, m.alarms, m.paused, m.using, m.requests)
	for _, c := range channels {
		for _, r := range []string{schemas.RailTransactional, schemas.RailMarketing} {
			for _, class := range attemptClasses() {
				m.attempts.WithLabelValues(c, r, class)
			}
			for _, why := range []string{"orphan", "stale", "refused", "parked", "rerouted", "late", string(sends.Gone), string(sends.Busy), string(sends.Closed)} {
				m.records.WithLabelValues(c, r, why)
			}
			for _, kind := range []string{"recreated", "truncated", "missed", "configuration", "sender", "dead_letter", "needs_review"} {
				m.alarms.WithLabelValues(c, r, kind)
			}
			m.took.WithLabelValues(c, r)
			m.wait.WithLabelValues(c, r)
			m.inFlight.WithLabelValues(c, r)
			for _, why := range pauseReasons {
				m.paused.WithLabelValues(c, r, why)
			}
		}
	}
	return m
}

func (w *Worker) count(why string) { w.countN(why, 1) }

func (w *Worker) countN(why string, n int) {
	if m := w.deps.Metrics; m != nil {
		m.records.WithLabelValues(w.cfg.Channel, w.cfg.Rail, why).Add(float64(n))
	}
}

func (w *Worker) alarm(kind string) {
	if m := w.deps.Metrics; m != nil {
		m.alarms.WithLabelValues(w.cfg.Channel, w.cfg.Rail, kind).Inc()
	}
}

// pauseReasons is the closed set of the metric's label.
var pauseReasons = []string{pausedFailing, pausedConfiguration}

func (w *Worker) inFlight(n float64) {
	if m := w.deps.Metrics; m != nil {
		m.inFlight.WithLabelValues(w.cfg.Channel, w.cfg.Rail).Add(n)
	}
}

// showPause publishes why the rail stands still; "" while it does not.
func (w *Worker) showPause(reason string) {
	m := w.deps.Metrics
	if m == nil {
		return
	}
	for _, why := range pauseReasons {
		v := 0.0
		if why == reason {
			v = 1
		}
		m.paused.WithLabelValues(w.cfg.Channel, w.cfg.Rail, why).Set(v)
	}
}

// showRoutes publishes which provider new messages go to.
func (w *Worker) showRoutes(now time.Time) {
	w.mu.Lock()
	name, reason := w.using(now)
	names := make([]string, len(w.routes))
	for i, r := range w.routes {
		names[i] = r.name
	}
	w.mu.Unlock()
	w.showPause(reason)
	m := w.deps.Metrics
	if m == nil {
		return
	}
	for _, n := range names {
		v := 0.0
		if n == name {
			v = 1
		}
		m.using.WithLabelValues(w.cfg.Channel, w.cfg.Rail, n).Set(v)
	}
}

// observe counts an attempt.
func (w *Worker) observe(name string, class provider.Class, took time.Duration) {
	m := w.deps.Metrics
	if m == nil {
		return
	}
	if class == "" {
		class = "ok"
	}
	m.attempts.WithLabelValues(w.cfg.Channel, w.cfg.Rail, string(class)).Inc()
	m.requests.WithLabelValues(w.cfg.Channel, w.cfg.Rail, name, string(class)).Inc()
	m.took.WithLabelValues(w.cfg.Channel, w.cfg.Rail).Observe(took.Seconds())
}

// report writes the one line of an attempt, and raises what needs somebody.
func (w *Worker) report(c sends.Claimed, step sends.Step, class provider.Class, took time.Duration) {
	level := w.log.Debug
	switch {
	case class == provider.ClassConfiguration:
		level = w.log.Error
		w.alarm("configuration")
	case class == provider.ClassSender:
		level = w.log.Error
		w.alarm("sender")
	case step.State == sends.StateDead:
		level = w.log.Error
		w.alarm("dead_letter")
	case step.State == sends.StateNeedsReview:
		level = w.log.Error
		w.alarm("needs_review")
	case class != "":
		level = w.log.Warn
	}
	level("attempt", "job_id", c.JobID, "tenant_id", c.TenantID, "generation", c.Generation(), "messages", len(c.Messages), "provider", c.Provider.Name(), "resend", c.Resend,
		"class", string(class), "state", step.State, "reason", step.Reason, "attempts", c.Attempts(), "took", took)
}
