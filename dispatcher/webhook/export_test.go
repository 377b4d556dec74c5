package webhook

import (
	"context"
)

// Die makes the dispatcher a process that was killed: it attempts nothing more,
// and nothing that it knows reaches the database.
func (d *Dispatcher) Die() {
	d.lanes.mu.Lock()
	d.lanes.spawn = func(func(context.Context)) {}
	d.lanes.mu.Unlock()
	d.deps.Pool.Close()
}

// BlockedFor is for how long a direct delivery may arrive behind one that went
// back.
const BlockedFor = blockedFor

// The statements whose plans are looked at.
const (
	DueSQL    = dueSQL
	UpdateSQL = updateSQL
)

// ByIndex is what claims do first.
var ByIndex = byIndex
