package apikey

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/softcrum/carril/internal/httpserver"
)

// GuardConfig of a Guard. The zero value of a field takes its default.
type GuardConfig struct {
	Failures     int           // that an address has at once; 30
	Every        time.Duration // another one each; 2 s
	MaxAddresses int           // remembered, twice as many at most; 20,000
}

// ThrottledError refuses an address that sent too many keys which are none.
type ThrottledError struct{ Wait time.Duration }

func (e *ThrottledError) Error() string {
	return fmt.Sprintf("api key: too many failures from one address, for another %s", e.Wait)
}

// Guard is a Verify that lets nobody try keys without end: an address whose
// failures are spent is refused before the store is asked. A key that is known
// already still passes: a neighbour behind the same address must not take a
// working integration down with it (architecture §1, promise 6). The address is
// httpserver.ClientAddr's; where it knows none, nothing is limited.
type Guard struct {
	cfg     GuardConfig
	keys    *Verifier
	refused prometheus.Counter

	mu       sync.Mutex
	now, old map[netip.Addr]time.Time // when an address has all its failures again; old: of before the map was full
	any      atomic.Bool              // somebody failed at some time
}

// NewGuard makes a guard before a verifier.
func NewGuard(cfg GuardConfig, keys *Verifier, reg prometheus.Registerer) (*Guard, error) {
	fill(&cfg.Failures, 30)
	fill(&cfg.Every, 2*time.Second)
	fill(&cfg.MaxAddresses, 20_000)
	if keys == nil || reg == nil || min(cfg.Failures, cfg.MaxAddresses) < 0 || cfg.Every < 0 {
		return nil, errors.New("api keys: a guard needs a verifier, a metrics registerer and positive limits")
	}
	g := &Guard{cfg: cfg, keys: keys, now: map[netip.Addr]time.Time{}, refused: prometheus.NewCounter(prometheus.CounterOpts{
		Name: "carril_api_key_failures_throttled_total", Help: "Requests refused because their address had sent too many keys which are none."})}
	if err := reg.Register(g.refused); err != nil {
		return nil, fmt.Errorf("register api key metrics: %w", err)
	}
	return g, nil
}

// Verify implements Verify; its further error is a *ThrottledError.
func (g *Guard) Verify(ctx context.Context, text string) (*Principal, error) {
	if g.any.Load() {
		if wait := g.wait(httpserver.ClientAddr(ctx)); wait > 0 && !g.keys.Known(text) {
			g.refused.Inc()
			return nil, &ThrottledError{wait}
		}
	}
	p, err := g.keys.Verify(ctx, text)
	if errors.Is(err, ErrInvalid) {
		g.failed(httpserver.ClientAddr(ctx))
	}
	return p, err
}

// wait is until an address may fail again.
func (g *Guard) wait(addr netip.Addr) time.Duration {
	g.mu.Lock()
	defer g.mu.Unlock()
	at := g.at(network(addr))
	if at.IsZero() {
		return 0
	}
	return at.Sub(g.keys.deps.Now()) - time.Duration(g.cfg.Failures-1)*g.cfg.Every
}

func (g *Guard) at(addr netip.Addr) time.Time {
	if at, ok := g.now[addr]; ok {
		return at
	}
	return g.old[addr]
}

func (g *Guard) failed(addr netip.Addr) {
	if !addr.IsValid() {
		return
	}
	addr = network(addr)
	g.any.Store(true)
	g.mu.Lock()
	defer g.mu.Unlock()
	at := g.at(addr)
	if now := g.keys.deps.Now(); at.Before(now) {
		at = now
	}
	if len(g.now) >= g.cfg.MaxAddresses {
		g.now, g.old = map[netip.Addr]time.Time{}, g.now
	}
	g.now[addr] = at.Add(g.cfg.Every)
}

// network is what one sender has: an IPv4 address, or the 64 bits of an IPv6
// network, within which addresses cost nothing.
func network(addr netip.Addr) netip.Addr {
	if !addr.Is6() {
		return addr
	}
	p, err := addr.Prefix(64)
	if err != nil { // no address has a shorter length
		return addr
	}
	return p.Addr()
}
