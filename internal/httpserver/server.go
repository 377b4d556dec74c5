package httpserver

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"time"
)

// Config says where and how patiently to listen. The zero value of a field
// takes its default.
type Config struct {
	Addr              string        // host:port, port 0 takes a free one; required
	ReadHeaderTimeout time.Duration // from the first byte to the end of the headers; 5 s
	ReadTimeout       time.Duration // from the first byte to the end of the body; 15 s
	WriteTimeout      time.Duration // from the end of the headers to the end of the answer; 30 s
	IdleTimeout       time.Duration // between two requests of a connection; 75 s, above the 60 s of common proxies
	DrainTimeout      time.Duration // for the requests in flight when stopped; 20 s
	MaxHeaderBytes    int           // request line and headers; 16 KiB (net/http reads 4 KiB more)
	MaxConns          int           // open connections; the next gets a 503; 10,000

	// TrustedProxies may say in X-Forwarded-For whom they speak for; anybody
	// else's header is ignored. Default none.
	TrustedProxies []netip.Prefix
}

func (c Config) withDefaults() Config {
	fill(&c.ReadHeaderTimeout, 5*time.Second)
	fill(&c.ReadTimeout, 15*time.Second)
	fill(&c.WriteTimeout, 30*time.Second)
	fill(&c.IdleTimeout, 75*time.Second)
	fill(&c.DrainTimeout, 20*time.Second)
	fill(&c.MaxHeaderBytes, 16<<10)
	fill(&c.MaxConns, 10_000)
	return c
}

func fill[T comparable](v *T, def T) {
	var zero T
	if *v == zero {
		*v = def
	}
}

func (c Config) validate() error {
	if c.Addr == "" {
		return errors.New("http server: no address to listen on")
	}
	if c.MaxConns < 0 || c.MaxHeaderBytes < 0 ||
		min(c.ReadHeaderTimeout, c.ReadTimeout, c.WriteTimeout, c.IdleTimeout, c.DrainTimeout) < 0 {
		return errors.New("http server: limits and timeouts must be positive")
	}
	return nil
}

// Server serves one handler on one address. It speaks plain HTTP/1.1: TLS ends
// at the proxy in front.
type Server struct {
	cfg  Config
	log  *slog.Logger
	http *http.Server

	failed chan error
	served chan struct{}
	stop   func(context.Context) error
}

// New makes a server around handler, wrapped in Identify. A nil log discards.
func New(cfg Config, handler http.Handler, log *slog.Logger) (*Server, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	s := &Server{cfg: cfg, log: log, failed: make(chan error, 1), served: make(chan struct{})}
	s.http = &http.Server{
		Handler:                      identify(handler, log, cfg.TrustedProxies),
		ReadHeaderTimeout:            cfg.ReadHeaderTimeout,
		ReadTimeout:                  cfg.ReadTimeout,
		WriteTimeout:                 cfg.WriteTimeout,
		IdleTimeout:                  cfg.IdleTimeout,
		MaxHeaderBytes:               cfg.MaxHeaderBytes,
		ErrorLog:                     slog.NewLogLogger(log.Handler(), slog.LevelWarn),
		DisableGeneralOptionsHandler: true, // "OPTIONS *" is answered by the router, in JSON
	}
	return s, nil
}

// Start listens and serves in the background. It returns the bound address, or
// fails at once when the address cannot be had.
func (s *Server) Start(ctx context.Context) (string, error) {
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", s.cfg.Addr)
	if err != nil {
		return "", fmt.Errorf("listen on %s: %w", s.cfg.Addr, err)
	}
	s.stop = onceWith(s.drain)
	go func() {
		defer close(s.served)
		if err := s.http.Serve(&listener{Listener: l, max: int64(s.cfg.MaxConns)}); !errors.Is(err, http.ErrServerClosed) {
			s.failed <- fmt.Errorf("serve on %s: %w", l.Addr(), err)
		}
	}()
	return l.Addr().String(), nil
}

// Failed gives the error of a server that ended without being stopped.
func (s *Server) Failed() <-chan error { return s.failed }

// Stop stops accepting, waits for the requests in flight until ctx ends or
// DrainTimeout passes, and cuts what is left, which it reports. It is harmless
// on a server that never started, and the second time, which waits for and
// repeats the first's answer.
func (s *Server) Stop(ctx context.Context) error {
	if s.stop == nil {
		return nil
	}
	return s.stop(ctx)
}

func (s *Server) drain(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, s.cfg.DrainTimeout, errors.New("drain timeout"))
	defer cancel()
	err := s.http.Shutdown(ctx)
	if err != nil {
		_ = s.http.Close()
		err = fmt.Errorf("drain http server: requests in flight were cut: %w", context.Cause(ctx))
	}
	<-s.served
	return err
}

func onceWith(f func(context.Context) error) func(context.Context) error {
	var once sync.Once
	var err error
	return func(ctx context.Context) error {
		once.Do(func() { err = f(ctx) })
		return err
	}
}
