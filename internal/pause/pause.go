// Package pause owns waiting for some time that ends early with its context:
// loops that try again, and loads that keep a pace, wait so.
package pause

import (
	"context"
	"time"
)

// For waits d, and says whether it has: not where ctx ended first.
func For(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}
