package rail

import (
	"context"
	"encoding/json"
	"errors"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// YieldReader reads a channel's monitor's word for every marketing worker of a
// process. It fails closed: no word, an old one, or no Redis means yield.
type YieldReader struct {
	rdb   redis.Cmdable
	key   string
	every time.Duration

	mu      sync.Mutex
	yield   bool
	reason  string
	lastAt  time.Time // of the monitor's clock
	since   time.Time // when we first saw that word
	changed chan struct{}
}

// NewYieldReader makes a reader; every is how often it looks, 250 ms where zero.
// It yields until it has read something better.
func NewYieldReader(rdb redis.Cmdable, prefix, channel string, every time.Duration) *YieldReader {
	return &YieldReader{rdb: rdb, key: YieldKey(prefix, channel), every: def(every, 250*time.Millisecond), yield: true, reason: "unknown", changed: make(chan struct{})}
}

// Run reads until ctx ends.
func (r *YieldReader) Run(ctx context.Context) error {
	tick := time.NewTicker(r.every)
	defer tick.Stop()
	for {
		r.read(ctx)
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

func (r *YieldReader) read(ctx context.Context) {
	rctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	raw, err := r.rdb.Get(rctx, r.key).Bytes()
	if ctx.Err() != nil {
		return
	}
	switch {
	case errors.Is(err, redis.Nil):
		r.set(true, "no_word")
		return
	case err != nil:
		r.set(true, "redis_away")
		return
	}
	var w yieldWord
	if err := json.Unmarshal(raw, &w); err != nil {
		r.set(true, "no_word")
		return
	}
	r.mu.Lock()
	if !w.At.Equal(r.lastAt) {
		r.lastAt, r.since = w.At, time.Now()
	}
	stale := time.Since(r.since) > yieldLife // a key whose life nobody ends; told by our own clock
	r.mu.Unlock()
	if stale {
		r.set(true, "old_word")
		return
	}
	r.set(w.Yield, w.Reason)
}

func (r *YieldReader) set(yield bool, reason string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if yield == r.yield && reason == r.reason {
		return
	}
	r.yield, r.reason = yield, reason
	close(r.changed)
	r.changed = make(chan struct{})
}

// Yielding says whether marketing must yield, and why.
func (r *YieldReader) Yielding() (bool, string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.yield, r.reason
}

// Changed is closed when the answer changes.
func (r *YieldReader) Changed() <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.changed
}
