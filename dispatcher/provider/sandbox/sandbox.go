package sandbox

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/softcrum/carril/internal/signature"
)

// Server is a sandbox. It is safe for concurrent use.
type Server struct {
	cfg    Config
	now    func() time.Time
	log    *slog.Logger
	mux    *http.ServeMux
	faults *faults
	limit  *limiter
	texts  *limiter // of the text message API
	quota  *quota
	keys   *keys
	ledger *ledger
	hooks  *hooks

	instance [8]byte // the front half of every message id
	messages atomic.Uint64

	closing   chan struct{} // ends whoever hangs on demand
	closeOnce sync.Once
	mu        sync.Mutex
	server    *http.Server
	url       string
	served    chan struct{}
}

// New makes a sandbox that serves nothing yet. An error names the setting at
// fault.
func New(cfg Config, deps Deps) (*Server, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, fmt.Errorf("configure the sandbox: %w", err)
	}
	s := &Server{cfg: cfg, now: deps.Now, log: deps.Logger, closing: make(chan struct{})}
	if s.now == nil {
		s.now = time.Now
	}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	rand.Read(s.instance[:])
	s.faults = &faults{}
	s.limit = &limiter{rate: cfg.Rate, window: cfg.Window}
	s.texts = &limiter{rate: cfg.SMSRate, window: cfg.Window}
	s.quota = &quota{daily: cfg.DailyQuota, monthly: cfg.MonthlyQuota}
	s.keys = newKeys(cfg.KeyLife, cfg.MaxKeys)
	s.ledger = newLedger(cfg)
	s.hooks = newHooks(cfg.Webhook, s.log)
	s.mux = s.routes()
	return s, nil
}

// Handler serves the API and the sandbox's own pages. Webhooks leave only
// between Start and Stop.
func (s *Server) Handler() http.Handler { return s.mux }

// Start listens and serves until Stop. It fails where the address is taken.
func (s *Server) Start(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.server != nil {
		return errors.New("start the sandbox: it was started before")
	}
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", s.cfg.Addr)
	if err != nil {
		return fmt.Errorf("start the sandbox: %w", err)
	}
	s.url = "http://" + l.Addr().String()
	s.server = &http.Server{Handler: s.mux, ReadHeaderTimeout: 5 * time.Second, IdleTimeout: 2 * time.Minute}
	s.served = make(chan struct{})
	s.hooks.start()
	go func() {
		defer close(s.served)
		if err := s.server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			s.log.Error("sandbox stopped serving", "error", err)
		}
	}()
	return nil
}

// Stop ends what hangs on demand, lets requests finish until ctx ends, and drops
// the webhooks that have not gone. It is harmless twice.
func (s *Server) Stop(ctx context.Context) error {
	s.closeOnce.Do(func() { close(s.closing) })
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hooks.stop()
	if s.server == nil {
		return nil
	}
	err := s.server.Shutdown(ctx)
	if err != nil {
		_ = s.server.Close()
	}
	<-s.served
	if err != nil {
		return fmt.Errorf("stop the sandbox: %w", err)
	}
	return nil
}

// URL is where a started sandbox listens, as "http://127.0.0.1:41234"; empty
// before Start.
func (s *Server) URL() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.url
}

// SetWebhook takes another target and other secrets from now on, for what waits
// too; an empty URL sends none.
func (s *Server) SetWebhook(target string, secrets ...signature.Secret) error {
	if err := checkWebhook(target, secrets); err != nil {
		return fmt.Errorf("set the sandbox's webhook: %w", err)
	}
	s.hooks.retarget(target, secrets)
	return nil
}

// SetCallbacks has the text messages' callbacks posted to another front than the
// URLs name, as a proxy would carry them; they are signed as they are named.
// Empty: as they are named, where that is on this machine.
func (s *Server) SetCallbacks(front string) { s.hooks.carry(front) }

// Inject queues faults: each is met by the next requests to its endpoint.
func (s *Server) Inject(list ...Fault) error {
	for _, f := range list {
		if err := f.check(); err != nil {
			return fmt.Errorf("inject a fault: %w", err)
		}
	}
	s.faults.add(list)
	return nil
}

// InjectJSON is Inject for one fault, or a list of them, in JSON.
func (s *Server) InjectJSON(raw []byte) error {
	list, err := parseFaults(raw)
	if err != nil {
		return err
	}
	return s.Inject(list...)
}

// ClearFaults drops the faults that nothing has met yet.
func (s *Server) ClearFaults() { s.faults.clear() }

// Requests gives the physical requests to the API, oldest first, refused ones
// and unknown paths too; at most Config.MaxRequests.
func (s *Server) Requests() []Request { return s.ledger.requests.all() }

// Receipts gives one entry for each message of each request that was taken or
// answered again, oldest first; at most Config.MaxReceipts.
func (s *Server) Receipts() []Receipt { return s.ledger.receipts.all() }

// Counters gives totals since the start; nothing bounds them.
func (s *Server) Counters() Counters {
	c := s.ledger.counters()
	c.WebhooksPending = s.hooks.pending()
	c.WebhooksDelivered = s.hooks.delivered.Load()
	c.WebhooksFailed = s.hooks.failed.Load()
	c.WebhooksGivenUp = s.hooks.givenUp.Load()
	c.WebhooksDropped = s.hooks.dropped.Load()
	return c
}

// WaitWebhooks returns when no event waits to go, or with ctx's error.
func (s *Server) WaitWebhooks(ctx context.Context) error { return s.hooks.wait(ctx) }
