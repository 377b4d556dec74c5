package stream

import (
	"context"
	"sync/atomic"

	"github.com/softcrum/carril/internal/cores"
)

// Slots are how many large batches a process applies at once, over all its
// loops. While they catch up, as many partitions as there are would each keep a
// core of PostgreSQL busy, and what else runs on the machine, the front door
// first of all, would be left what is over (docs/decisions/append.md). Batches of
// no more than Config.MaxRecords, which is what a stage that keeps up has, need
// none.
type Slots struct {
	free chan struct{}
	wait atomic.Int32 // who wait for one
}

// NewSlots makes n; 0: half as many as the process has cores, which leaves the
// others to a PostgreSQL on the same machine and to who waits for an answer.
func NewSlots(n int) *Slots {
	if n <= 0 {
		n = max(1, cores.Given()/2)
	}
	return &Slots{free: make(chan struct{}, n)}
}

// take waits for a slot; nil slots are without end.
func (s *Slots) take(ctx context.Context) (giveBack func(), err error) {
	if s == nil {
		return func() {}, nil
	}
	s.wait.Add(1)
	defer s.wait.Add(-1)
	select {
	case s.free <- struct{}{}:
		return func() { <-s.free }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// wanted says that somebody waits for a slot.
func (s *Slots) wanted() bool { return s != nil && s.wait.Load() > 0 }
