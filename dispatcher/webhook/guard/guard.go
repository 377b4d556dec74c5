// Package guard reaches the addresses that tenants name, and nothing of ours
// beside them. It owns what a webhook's URL and headers may be, which addresses
// may be connected to (decided in the dialer, on the final address, whatever a
// name resolved to when the URL was checked), and one bounded POST: a total
// deadline, no redirect, no proxy of the environment, a capped answer. It knows
// nothing of endpoints, signatures or retries; package webhook calls it.
package guard

import (
	"context"
	"crypto/x509"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"time"

	"code.dny.dev/ssrf"
)

// Config says where webhooks may go and what one request may cost. Zero values
// take the defaults.
type Config struct {
	Ports     []uint16 // that a URL may name; default 443
	AnyPort   bool     // every port but 0; for one machine
	AllowHTTP bool     // http beside https; off: https alone

	// Private opens ranges that are otherwise refused, for targets inside one's
	// own network. It never opens the metadata services of clouds.
	Private []netip.Prefix

	Roots *x509.CertPool // of the targets' certificates; nil: the system's

	Deadline     time.Duration // one request in all, the answer's body included; default 15 s
	DialTimeout  time.Duration // the look-up of a name, and again the connection; default 5 s
	ReadLimit    int64         // bytes of an answer's body that are read; default 64 KiB
	KeepLimit    int           // bytes of it that are kept; default 1 KiB
	HeaderLimit  int64         // bytes of an answer's headers; default 64 KiB
	ConnsPerHost int           // connections to one host and port, busy and idle; default 64
	IdleConns    int           // idle connections in all; default 1,024
	IdleFor      time.Duration // how long one is kept; default 60 s
}

func (c Config) withDefaults() Config {
	if len(c.Ports) == 0 {
		c.Ports = []uint16{443}
	}
	setDefault(&c.Deadline, 15*time.Second)
	setDefault(&c.DialTimeout, 5*time.Second)
	setDefault(&c.ReadLimit, 64<<10)
	setDefault(&c.KeepLimit, 1<<10)
	setDefault(&c.HeaderLimit, 64<<10)
	setDefault(&c.ConnsPerHost, 64)
	setDefault(&c.IdleConns, 1024)
	setDefault(&c.IdleFor, time.Minute)
	return c
}

func setDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// Resolver looks names up; *net.Resolver is one.
type Resolver interface {
	// LookupNetIP gives every address of a host. network is "ip".
	LookupNetIP(ctx context.Context, network, host string) ([]netip.Addr, error)
}

// Guard decides about URLs, headers and addresses. It is safe for concurrent
// use.
type Guard struct {
	cfg      Config
	resolver Resolver
	special  *ssrf.Guardian
}

// New makes a guard. A nil resolver is Go's own, which asks the system's name
// servers without the C library.
func New(cfg Config, resolver Resolver) (*Guard, error) {
	cfg = cfg.withDefaults()
	if cfg.Deadline < 0 || cfg.DialTimeout < 0 || cfg.ReadLimit < 0 || cfg.KeepLimit < 0 || cfg.ConnsPerHost < 0 {
		return nil, fmt.Errorf("webhook guard: negative limit")
	}
	if slices.Contains(cfg.Ports, 0) {
		return nil, fmt.Errorf("webhook guard: port 0 is no port")
	}
	for i, p := range cfg.Private {
		if !p.IsValid() {
			return nil, fmt.Errorf("webhook guard: private range %d is no CIDR range", i)
		}
	}
	if resolver == nil {
		resolver = &net.Resolver{PreferGo: true}
	}
	return &Guard{cfg: cfg, resolver: resolver, special: ssrf.New(ssrf.WithAnyPort())}, nil
}

// Deadline is the longest that one request takes.
func (g *Guard) Deadline() time.Duration { return g.cfg.Deadline }
