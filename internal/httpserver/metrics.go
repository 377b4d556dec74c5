package httpserver

import (
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/prometheus/client_golang/prometheus"
)

// Metrics counts requests by route and status and times them by route. A route
// is the router's pattern, so that the labels are few whatever is asked for.
type Metrics struct {
	requests *prometheus.CounterVec
	duration *prometheus.HistogramVec
}

// unmatched is the route of what no pattern matches.
const unmatched = "unmatched"

// NewMetrics registers the metrics. Several routers of one process share them.
func NewMetrics(reg prometheus.Registerer) (*Metrics, error) {
	m := &Metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "carril_http_requests_total", Help: "HTTP requests by route and status code.",
		}, []string{"route", "code"}),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "carril_http_request_duration_seconds", Help: "From the end of the request's headers to the end of the answer, by route.",
			Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .2, .5, 1, 2, 5, 15},
		}, []string{"route"}),
	}
	if err := errors.Join(reg.Register(m.requests), reg.Register(m.duration)); err != nil {
		return nil, fmt.Errorf("register HTTP metrics: %w", err)
	}
	return m, nil
}

// Observe is the middleware of a chi router. Middlewares of a router run for
// what no route matches, too.
func (m *Metrics) Observe(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s, ok := w.(*started)
		if !ok {
			s = &started{ResponseWriter: w}
		}
		begin, route, status := time.Now(), unmatched, http.StatusInternalServerError // of a panic
		defer func() {
			if rc := chi.RouteContext(r.Context()); rc != nil && rc.RoutePattern() != "" {
				route = rc.RoutePattern()
			}
			m.requests.WithLabelValues(route, strconv.Itoa(status)).Inc()
			m.duration.WithLabelValues(route).Observe(time.Since(begin).Seconds())
		}()
		next.ServeHTTP(s, r)
		if status = s.status; status == 0 {
			status = http.StatusOK
		}
	})
}
