// Package lifecycle runs the parts of a process together: each has a name, all
// start in order, and when one fails or the context ends they stop in reverse,
// under one deadline. The wiring in cmd/carril/app uses it; parts know nothing
// of it.
package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"
)

// Part is one thing that runs until its context ends.
type Part struct {
	Name string
	Run  func(ctx context.Context) error
}

// Stack is a set of running parts.
type Stack struct {
	log     *slog.Logger
	mu      sync.Mutex
	running []*running
	failed  chan error
	stopped bool
}

type running struct {
	name   string
	cancel context.CancelFunc
	done   chan struct{}
}

// New makes an empty stack.
func New(log *slog.Logger) *Stack {
	return &Stack{log: log, failed: make(chan error, 1)}
}

// Go starts a part on top of the stack. A part that ends with an error before
// it is stopped fails the whole stack.
func (s *Stack) Go(p Part) {
	ctx, cancel := context.WithCancel(context.Background())
	r := &running{name: p.Name, cancel: cancel, done: make(chan struct{})}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped {
		cancel()
		return
	}
	s.running = append(s.running, r)
	go func() {
		defer close(r.done)
		err := p.Run(ctx)
		if err == nil || ctx.Err() != nil || errors.Is(err, context.Canceled) {
			return
		}
		select {
		case s.failed <- fmt.Errorf("%s: %w", p.Name, err):
		default:
		}
	}()
}

// OnStop puts a clean-up on the stack: it runs when its turn comes.
func (s *Stack) OnStop(name string, f func()) {
	s.Go(Part{Name: name, Run: func(ctx context.Context) error {
		<-ctx.Done()
		f()
		return nil
	}})
}

// Failed gives the first part's failure.
func (s *Stack) Failed() <-chan error { return s.failed }

// Stop ends the parts, the last started first, and waits for each, for at most
// limit in all. It is harmless to call it twice.
func (s *Stack) Stop(limit time.Duration) error {
	s.mu.Lock()
	s.stopped = true
	parts := s.running
	s.running = nil
	s.mu.Unlock()
	deadline := time.NewTimer(limit)
	defer deadline.Stop()
	for i := len(parts) - 1; i >= 0; i-- {
		p := parts[i]
		p.cancel()
		select {
		case <-p.done:
		case <-deadline.C:
			for ; i >= 0; i-- { // the rest is told, and not waited for
				parts[i].cancel()
			}
			return fmt.Errorf("%s did not stop within %s", p.name, limit)
		}
	}
	return nil
}
