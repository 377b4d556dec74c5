package rail_test

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/softcrum/carril/dispatcher/rail"
	"github.com/softcrum/carril/schemas"
)

// turns lets so many batches begin.
type turns struct{ left, asked, began atomic.Int64 }

func (g *turns) Wait(time.Time) time.Duration {
	g.asked.Add(1)
	if g.left.Load() > 0 {
		return 0
	}
	return 5 * time.Millisecond
}

func (g *turns) Began(time.Time) { g.left.Add(-1); g.began.Add(1) }

// A batch that waits for its turn takes no token, and codes go by.
func TestMarketingWaitsForItsTurn(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	gate := &turns{}
	var steps atomic.Int64
	b.start(setup{})
	b.start(setup{rail: schemas.RailMarketing, pace: gate, hook: func(rail.Point) { steps.Add(1) }})
	const batches = 3
	for range batches {
		b.enqueueBatch(b.tenant, 4, nil)
	}
	b.eventually("marketing waits for its turn", func() bool { return gate.asked.Load() > 5 })
	code := b.enqueue(job{})[0]
	b.eventually("a code does not", func() bool { return b.fake.delivered(code) == 1 })
	require.Zero(t, steps.Load(), "no token was taken")
	for turn := int64(1); turn <= batches; turn++ {
		gate.left.Store(1)
		b.eventually("one goes", func() bool {
			return b.count(`SELECT count(*) FROM core.processed_jobs WHERE worker = 'rail:email.marketing' AND state = 'sent'`) == int(turn)
		})
		require.Equal(t, turn, gate.began.Load())
	}
}
