package stream

import (
	"context"
	"runtime"
)

// Slots are how many large batches a process applies at once, over all its
// loops. While they catch up, as many partitions as there are would each keep a
// core of PostgreSQL busy; one writer a core brings the most rows
// (docs/decisions/append.md), and what else runs on the machine, the front door
// first of all, would be left what is over. Batches of no more than
// Config.MaxRecords, which is what a stage that keeps up has, need none.
type Slots struct{ free chan struct{} }

// NewSlots makes n; 0: as many as the process has cores.
func NewSlots(n int) *Slots {
	if n <= 0 {
		n = runtime.GOMAXPROCS(0)
	}
	return &Slots{make(chan struct{}, n)}
}

// take waits for a slot; nil slots are without end.
func (s *Slots) take(ctx context.Context) (giveBack func(), err error) {
	if s == nil {
		return func() {}, nil
	}
	select {
	case s.free <- struct{}{}:
		return func() { <-s.free }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}
