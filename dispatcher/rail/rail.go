// Package rail is the worker of one rail of one channel: it takes jobs from the
// rail's topic, asks the buckets for a token for each, and has it claimed, sent
// and settled (FS-MSG-0005). It owns the window over a partition's records, the
// ring of tenants, the pace, the retries and the yield. What a message is, what
// it may become and what an outcome means is dispatcher/sends'; when a request
// may leave is dispatcher/bucket's. See docs/decisions/rail-window.md.
package rail

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/softcrum/carril/dispatcher/bucket"
	"github.com/softcrum/carril/dispatcher/sends"
	"github.com/softcrum/carril/internal/kafka"
	"github.com/softcrum/carril/internal/outbox"
	"github.com/softcrum/carril/schemas"
)

// Config of a worker; zero values take the defaults. Where two are given, the
// first is the transactional rail's.
type Config struct {
	Channel    string
	Rail       string // schemas.RailTransactional or RailMarketing
	InstanceID string // static membership; empty: a dynamic member
	Owner      string // who this process is, for people; default the rail

	Window      int           // records of a partition in memory; default 256, 64
	WindowBytes int           // bytes of them; default 4 MiB
	Concurrency int           // requests in flight; default 64, 16
	Budget      time.Duration // how long a transactional message may take; default 5 s
	SendTimeout time.Duration // one request; below the job's lease; default 30 s
	CommitEvery time.Duration // offsets and positions; default 100 ms
	Tries       int           // counted attempts; default 8, 12
	TryFor      time.Duration // from the first counted attempt, without what it stood still for; default 30 min, 24 h
	Backoff     time.Duration // cap of the first wait after a counted attempt, four times as much each time, with full jitter; default 1 s
	BackoffMax  time.Duration // default 10 min, 1 h
	Session     time.Duration // default 6 s
	Heartbeat   time.Duration // default 1 s
	Drain       time.Duration // longest that requests in flight may take when partitions go or the worker stops; default 5 s
	Recheck     time.Duration // how often an account that was refused is tried again; default 30 s
	Slots       int           // most workers of all processes; default 1,024
	SlotLife    time.Duration // until a process that renews nothing counts as dead; default 5 s
}

func (c Config) withDefaults() Config {
	transactional := c.Rail == schemas.RailTransactional
	c.Window = def(c.Window, pick(transactional, 256, 64))
	c.WindowBytes = def(c.WindowBytes, 4<<20)
	c.Concurrency = def(c.Concurrency, pick(transactional, 64, 16))
	c.Budget = def(c.Budget, 5*time.Second)
	c.SendTimeout = def(c.SendTimeout, 30*time.Second)
	c.CommitEvery = def(c.CommitEvery, 100*time.Millisecond)
	c.Tries = def(c.Tries, pick(transactional, 8, 12))
	c.TryFor = def(c.TryFor, pick(transactional, 30*time.Minute, 24*time.Hour))
	c.Backoff = def(c.Backoff, time.Second)
	c.BackoffMax = def(c.BackoffMax, pick(transactional, 10*time.Minute, time.Hour))
	c.Session = def(c.Session, 6*time.Second)
	c.Heartbeat = def(c.Heartbeat, time.Second)
	c.Drain = def(c.Drain, 5*time.Second)
	c.Recheck = def(c.Recheck, 30*time.Second)
	c.Slots = def(c.Slots, 1024)
	c.SlotLife = def(c.SlotLife, 5*time.Second)
	c.Owner = def(c.Owner, c.Channel+"."+c.Rail)
	return c
}

func def[T comparable](v, otherwise T) T {
	var zero T
	if v == zero {
		return otherwise
	}
	return v
}

func pick[T any](first bool, a, b T) T {
	if first {
		return a
	}
	return b
}

// Limiter hands out tokens; *bucket.Limiter is one.
type Limiter interface {
	Ask(ctx context.Context, a bucket.Ask) bucket.Answer
	Renew(ctx context.Context, a bucket.Ask, within time.Duration) bool
	Report(ctx context.Context, r bucket.Report)
}

// Yielder says whether marketing must yield, and why; *YieldReader is one.
type Yielder interface {
	Yielding() (yield bool, reason string)
	Changed() <-chan struct{} // closed at the next change
}

// Pacer says when the next batch of marketing may begin; *Pace is one.
type Pacer interface {
	Wait(now time.Time) time.Duration
	Began(now time.Time)
}

// Deps is what a worker works with.
type Deps struct {
	Kafka       kafka.Config
	Pool        *pgxpool.Pool // of this rail's own
	Store       *sends.Store
	Codec       *schemas.Codec
	Limiter     Limiter
	Sink        outbox.Sink
	Yield       Yielder       // marketing: required
	Pace        Pacer         // marketing; nil: nothing but tokens holds it back
	Board       redis.Cmdable // where it says which provider it uses; nil: nowhere
	BoardPrefix string        // before its key there
	Log         *slog.Logger
	Metrics     *Metrics         // nil: not measured
	Hook        func(step Point) // tests: called at every step of a job; nil in production
}

// Point is a place in a job's life at which a process may die.
type Point string

// The points, in order (F3).
const (
	PointToken    Point = "token"    // the token is taken, nothing is claimed
	PointClaimed  Point = "claimed"  // the bytes are frozen, nothing has left
	PointAnswered Point = "answered" // the provider has answered, nothing is written
	PointWritten  Point = "written"  // the outcome is committed, the offset is not
)

// Worker runs one rail in one process. Make it with New, call Run once.
type Worker struct {
	cfg   Config
	deps  Deps
	log   *slog.Logger
	stage string
	topic string // logical
	cl    *kgo.Client
	adm   *kadm.Client
	slots *slotKeeper
	late  lateness

	ready     chan struct{}
	readyOnce sync.Once
	wake      chan struct{} // the scheduler has something to look at
	arrived   chan struct{} // the intake has
	free      chan struct{} // one token a free sender

	work    context.Context //nolint:containedctx // ends what is in flight, which outlives the call that started it
	stop    context.CancelFunc
	senders sync.WaitGroup

	mu       sync.Mutex
	windows  map[int32]*window
	ring     *ring
	intake   []*arrival
	stopping bool
	routes   []*route
}

// New makes a worker and its Kafka client; it does not connect yet.
func New(cfg Config, deps Deps) (*Worker, error) {
	cfg = cfg.withDefaults()
	if cfg.Rail != schemas.RailTransactional && cfg.Rail != schemas.RailMarketing {
		return nil, fmt.Errorf("rail: there is no rail %q: a channel has two (FS-MSG-0005 §1)", cfg.Rail)
	}
	if deps.Store.Worker() != schemas.RailWorker(cfg.Channel, cfg.Rail) {
		return nil, fmt.Errorf("rail: the store is of %s", deps.Store.Worker())
	}
	if cfg.Rail == schemas.RailMarketing && deps.Yield == nil {
		return nil, errors.New("rail: marketing must have something to yield to (FS-MSG-0005 §2)")
	}
	if deps.Log == nil {
		deps.Log = slog.New(slog.DiscardHandler)
	}
	w := &Worker{cfg: cfg, deps: deps, stage: deps.Store.Worker(), topic: schemas.RailTopic(cfg.Channel, cfg.Rail),
		log: deps.Log.With("channel", cfg.Channel, "rail", cfg.Rail), ready: make(chan struct{}), wake: make(chan struct{}, 1),
		arrived: make(chan struct{}, 1), free: make(chan struct{}, cfg.Concurrency), windows: map[int32]*window{}, ring: newRing(),
		routes: newRoutes(deps.Store.Providers())}
	w.work, w.stop = context.WithCancel(context.Background())
	for range cfg.Concurrency {
		w.free <- struct{}{}
	}
	w.slots = newSlotKeeper(w)
	return w, w.connect()
}

// Ready is closed when the worker has joined its group.
func (w *Worker) Ready() <-chan struct{} { return w.ready }

// Run works until ctx ends; then it hands out nothing more, waits up to Drain
// for what is in flight, commits, and leaves.
func (w *Worker) Run(ctx context.Context) error {
	var beside sync.WaitGroup
	bctx, stopBeside := context.WithCancel(context.Background())
	beside.Go(func() { w.slots.run(bctx) })
	beside.Go(func() { w.commitLoop(bctx) })
	beside.Go(func() { w.tellRoutes(bctx) })
	sctx, stopScheduling := context.WithCancel(ctx)
	var front sync.WaitGroup
	front.Go(func() { w.takeIn(sctx) })
	front.Go(func() { w.schedule(sctx) })
	for ctx.Err() == nil {
		w.pollOnce(ctx)
	}
	w.mu.Lock()
	w.stopping = true
	w.mu.Unlock()
	stopScheduling()
	front.Wait()
	w.release(w.all(), true)
	w.stop()
	w.senders.Wait()
	w.deps.Store.Wait()
	stopBeside()
	beside.Wait()
	w.cl.CloseAllowingRebalance()
	return nil
}
