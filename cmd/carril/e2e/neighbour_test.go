package e2e

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestNoisyNeighbour has one tenant send twenty times its rate beside another
// that keeps within its own.
func TestNoisyNeighbour(t *testing.T) { // faults P7
	const rate, burst = 50, 100
	e := newEdge(t)
	(&cluster{t: t, db: e.db}).exec(fmt.Sprintf(`INSERT INTO core.plans (plan_id, retention_months, events_per_second, events_burst) VALUES ('narrow', 13, %d, %d)`, rate, burst))
	command(t, e.env, "tenant", "create", "noisy", "--plan", "narrow")
	noisy := *e
	noisy.key = command(t, e.env, "key", "create", "--tenant", "noisy")
	quiet := e.paced(t, 3*time.Second)

	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var passed, refused, wrong atomic.Int64
	begin := time.Now()
	var wg sync.WaitGroup
	for w := range 10 {
		wg.Go(func() {
			cl := patientClient(1)
			defer cl.CloseIdleConnections()
			tick := time.NewTicker(time.Second / (20 * rate / 10))
			defer tick.Stop()
			for i := 0; ctx.Err() == nil; i++ {
				r := noisy.send(cl, "/v1/core/track", singleBody(fmt.Sprint("noise", w, "-", i)))
				switch {
				case r.status == http.StatusAccepted:
					passed.Add(1)
				case r.code == "rate_limited" && r.fault == "":
					refused.Add(1)
				default:
					wrong.Add(1)
				}
				<-tick.C
			}
		})
	}
	beside := e.paced(t, 3*time.Second)
	stop()
	wg.Wait()
	allowed := burst + rate*time.Since(begin).Seconds()
	t.Logf("p99 to accept: %s quiet, %s beside the neighbour, ratio %.2f; of the neighbour's requests %d passed (at most %.0f may) and %d were refused",
		quiet, beside, float64(beside)/float64(quiet), passed.Load(), allowed, refused.Load())
	require.Zero(t, wrong.Load())
	require.Positive(t, refused.Load())
	// Twice: where this machine is too slow for Redis's 25 ms, the process keeps the same rate by itself.
	require.LessOrEqual(t, float64(passed.Load()), 2*allowed)
}

// paced sends a hundred events a second, each of which must be accepted, and
// gives the p99 of the time that it takes.
func (e *edge) paced(t *testing.T, length time.Duration) time.Duration {
	t.Helper()
	cl := patientClient(1)
	defer cl.CloseIdleConnections()
	var took []time.Duration
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for begin := time.Now(); time.Since(begin) < length; <-tick.C {
		at := time.Now()
		require.Equal(t, http.StatusAccepted, e.send(cl, "/v1/core/track", singleBody(fmt.Sprint("paced", at.UnixNano()))).status)
		took = append(took, time.Since(at))
	}
	slices.Sort(took)
	return took[len(took)*99/100]
}
