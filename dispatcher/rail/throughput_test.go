package rail_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// BenchmarkTransactional measures a rail's way from the topic to the committed
// outcome, with a provider that answers at once.
func BenchmarkTransactional(b *testing.B) {
	t := newBench(b)
	t.enqueue(make([]job, b.N)...)
	w, limiter, closeAll := t.build(setup{})
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	b.ResetTimer()
	wg.Go(func() { _ = w.Run(ctx) })
	wg.Go(func() { _ = limiter.Run(ctx) })
	deadline := time.Now().Add(5 * time.Minute)
	for {
		if _, people := t.fake.count(); people >= b.N {
			break
		}
		require.True(b, time.Now().Before(deadline))
		time.Sleep(time.Millisecond)
	}
	b.StopTimer()
	cancel()
	wg.Wait()
	closeAll()
}
