package rail

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	boardEvery = 2 * time.Second
	boardLife  = 10 * time.Second
)

// RouteKey is where the workers of a rail say in Redis which way they send.
func RouteKey(prefix, channel, rail string) string {
	return prefix + "route:" + channel + "." + rail
}

// Routes is what the worker that spoke last sees of its providers.
type Routes struct {
	Using     string           `json:"using,omitempty"` // where a new message goes; empty: nowhere
	Providers []ProviderHealth `json:"providers"`
	At        time.Time        `json:"at"`
}

// ProviderHealth is a provider as a rail's workers see it.
type ProviderHealth struct {
	Provider string `json:"provider"`
	State    string `json:"state"` // closed, open, or half_open: the next request is a probe
	Reason   string `json:"reason,omitempty"`
	InUse    bool   `json:"in_use"` // new messages go to it
}

// routes gives what this worker sees.
func (w *Worker) routesNow(now time.Time) Routes {
	w.mu.Lock()
	defer w.mu.Unlock()
	out := Routes{At: now.UTC()}
	out.Using, _ = w.using(now)
	for _, r := range w.routes {
		p := ProviderHealth{Provider: r.name, State: "closed", Reason: r.health.reason, InUse: r.name == out.Using}
		switch {
		case r.health.until.After(now):
			p.State = "open"
		case r.health.open():
			p.State = "half_open"
		}
		out.Providers = append(out.Providers, p)
	}
	return out
}

// tellRoutes says every other second which way this worker sends: in the metrics,
// and in Redis for the health of the queues. Nothing rests on it.
func (w *Worker) tellRoutes(ctx context.Context) {
	tick := time.NewTicker(boardEvery)
	defer tick.Stop()
	for {
		now := time.Now()
		w.showRoutes(now)
		if w.deps.Board != nil {
			w.post(ctx, w.routesNow(now))
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

func (w *Worker) post(ctx context.Context, r Routes) {
	raw, err := json.Marshal(r)
	if err != nil {
		return // four plain fields always encode
	}
	pctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	_ = w.deps.Board.Set(pctx, RouteKey(w.deps.BoardPrefix, w.cfg.Channel, w.cfg.Rail), raw, boardLife).Err() // the word before it gets old
}

// readRoutes gives what the workers of a rail said last; ok is false where none
// has spoken lately.
func readRoutes(ctx context.Context, r redis.Cmdable, prefix, channel, rail string) (out Routes, ok bool, err error) {
	raw, err := r.Get(ctx, RouteKey(prefix, channel, rail)).Bytes()
	if errors.Is(err, redis.Nil) {
		return out, false, nil
	}
	if err != nil {
		return out, false, fmt.Errorf("read the routes of %s.%s: %w", channel, rail, err)
	}
	if err := json.Unmarshal(raw, &out); err != nil {
		return out, false, fmt.Errorf("read the routes of %s.%s: %w", channel, rail, err)
	}
	return out, true, nil
}
