package app

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/softcrum/carril/internal/httpserver"
	"github.com/softcrum/carril/internal/lifecycle"
)

func lifecyclePart(name string, run func(context.Context) error) lifecycle.Part {
	return lifecycle.Part{Name: name, Run: run}
}

// startOps serves probes and metrics on a listener of their own.
func (a *App) startOps(ctx context.Context) error {
	r := httpserver.NewRouter()
	r.Get("/healthz", func(w http.ResponseWriter, _ *http.Request) {
		writeJSON(w, http.StatusOK, map[string]any{"status": "ok"})
	})
	r.Get("/readyz", a.readyz)
	r.Method(http.MethodGet, "/metrics", promhttp.HandlerFor(a.reg, promhttp.HandlerOpts{}))
	_, conns := connections(openFiles())
	addr, err := a.serve(ctx, "ops listener", httpserver.Config{Addr: a.set.OpsAddr, MaxConns: conns}, r)
	if err != nil {
		return err
	}
	a.Ops = "http://" + addr
	return nil
}

// serve starts a listener that is stopped in its turn.
func (a *App) serve(ctx context.Context, name string, cfg httpserver.Config, h http.Handler) (string, error) {
	cfg.DrainTimeout = a.set.Drain
	s, err := httpserver.New(cfg, h, a.log)
	if err != nil {
		return "", configError(name, "%v", err)
	}
	bound, err := s.Start(ctx)
	if err != nil {
		return "", err
	}
	a.stack.Go(lifecyclePart(name, func(ctx context.Context) error {
		select {
		case <-ctx.Done():
			return s.Stop(context.WithoutCancel(ctx))
		case err := <-s.Failed():
			return err
		}
	}))
	return bound, nil
}

// readyz says what is not ready, part by part. A dependency that is away is
// named; ingest goes on without PostgreSQL and says so.
func (a *App) readyz(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), 2*time.Second)
	defer cancel()
	checks := map[string]string{}
	check := func(name string, err error) {
		checks[name] = "ok"
		if err != nil {
			checks[name] = err.Error()
		}
	}
	status := http.StatusOK
	if a.stopping.Load() {
		check("process", errStopping)
		status = http.StatusServiceUnavailable
	}
	for _, p := range a.readies {
		err := p.now()
		check(p.name, err)
		if err != nil {
			status = http.StatusServiceUnavailable
		}
	}
	if err := a.producer.Ping(ctx); err != nil {
		check("kafka", errAway)
		status = http.StatusServiceUnavailable
	} else {
		check("kafka", nil)
	}
	check("postgres", away(a.side.Ping(ctx)))
	check("redis", away(a.redis.Ping(ctx).Err()))
	writeJSON(w, status, map[string]any{"ready": status == http.StatusOK, "checks": checks})
}

type awayError struct{}

func (awayError) Error() string { return "does not answer" }

var errAway error = awayError{}

var errStopping = errors.New("is stopping")

// away hides addresses and credentials that a client's error may quote.
func away(err error) error {
	if err != nil {
		return errAway
	}
	return nil
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	b, err := json.Marshal(v)
	if err != nil {
		http.Error(w, `{"error":"internal"}`, http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(append(b, '\n')) // the client has left
}
