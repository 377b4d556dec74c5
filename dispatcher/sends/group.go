package sends

import (
	"context"
	"sync"
	"time"
)

// groupTimeout bounds one shared transaction.
const groupTimeout = 30 * time.Second

// maxGroup is how many callers share one transaction at most.
const maxGroup = 64

// group does what concurrent callers want done together: while one round is
// under way, callers gather for the next. Nobody waits for company.
type group[T any] struct {
	work func(ctx context.Context, items []T) []error

	leads sync.WaitGroup

	mu      sync.Mutex
	busy    bool
	waiting []member[T]
}

type member[T any] struct {
	item T
	done chan error
}

func newGroup[T any](work func(ctx context.Context, items []T) []error) *group[T] {
	return &group[T]{work: work}
}

// offer has items done that nobody waits for.
func (g *group[T]) offer(items []T) {
	g.mu.Lock()
	for _, it := range items {
		g.waiting = append(g.waiting, member[T]{it, make(chan error, 1)})
	}
	lead := !g.busy && len(g.waiting) > 0
	g.busy = g.busy || lead
	g.mu.Unlock()
	if lead {
		g.leads.Go(g.rounds)
	}
}

// do waits until the item's round is over, or ctx ends; then the round may
// still do it.
func (g *group[T]) do(ctx context.Context, item T) error {
	m := member[T]{item, make(chan error, 1)}
	g.mu.Lock()
	g.waiting = append(g.waiting, m)
	lead := !g.busy
	g.busy = true
	g.mu.Unlock()
	if lead {
		g.leads.Go(g.rounds)
	}
	select {
	case err := <-m.done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// rounds works until nobody waits.
func (g *group[T]) rounds() {
	for {
		g.mu.Lock()
		n := min(len(g.waiting), maxGroup)
		if n == 0 {
			g.busy = false
			g.mu.Unlock()
			return
		}
		round := g.waiting[:n:n]
		g.waiting = g.waiting[n:]
		g.mu.Unlock()
		g.round(round)
	}
}

func (g *group[T]) round(round []member[T]) {
	items := make([]T, len(round))
	for i, m := range round {
		items[i] = m.item
	}
	ctx, cancel := context.WithTimeout(context.Background(), groupTimeout)
	defer cancel()
	for i, err := range g.work(ctx, items) {
		round[i].done <- err
	}
}
