package smtp

import (
	"context"
	"sync"
	"time"
)

// pool keeps a few connections for the next message, the one used last first:
// what a quiet rail leaves over dies of its idleness.
type pool struct {
	life time.Duration
	most int // messages a connection
	now  func() time.Time
	room chan struct{} // one token a connection that may be

	mu    sync.Mutex
	idle  []*session
	since uint64 // counts drops
}

func newPool(cfg Config, now func() time.Time) *pool {
	p := &pool{life: cfg.IdleTimeout, most: cfg.MaxPerConn, now: now, room: make(chan struct{}, cfg.MaxConns)}
	for range cfg.MaxConns {
		p.room <- struct{}{}
	}
	return p
}

// enter waits for leave to use a connection; leave gives it back.
func (p *pool) enter(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	select {
	case <-p.room:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (p *pool) leave() { p.room <- struct{}{} }

func (p *pool) epoch() uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.since
}

// take gives an idle connection that is not too old; nil where there is none.
func (p *pool) take() *session {
	p.mu.Lock()
	var old []*session
	var got *session
	for got == nil && len(p.idle) > 0 {
		s := p.idle[len(p.idle)-1]
		p.idle = p.idle[:len(p.idle)-1]
		if p.now().Sub(s.idle) >= p.life {
			old = append(old, s)
			continue
		}
		got = s
	}
	p.mu.Unlock()
	for _, s := range old {
		s.close()
	}
	return got
}

// put keeps a connection for the next message, unless it has served its time.
func (p *pool) put(s *session) {
	s.idle = p.now()
	p.mu.Lock()
	keep := s.epoch == p.since && s.sent < p.most
	if keep {
		p.idle = append(p.idle, s)
	}
	p.mu.Unlock()
	if !keep {
		s.farewell()
	}
}

// drop ends the idle connections, and those in use once they come back.
func (p *pool) drop() {
	p.mu.Lock()
	idle := p.idle
	p.idle = nil
	p.since++
	p.mu.Unlock()
	for _, s := range idle {
		s.farewell()
	}
}
