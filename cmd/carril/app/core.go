package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/redis/go-redis/v9"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sr"

	"github.com/softcrum/carril/dispatcher/bucket"
	"github.com/softcrum/carril/dispatcher/sends"
	"github.com/softcrum/carril/internal/kafka"
	"github.com/softcrum/carril/internal/lifecycle"
	"github.com/softcrum/carril/internal/outbox"
	"github.com/softcrum/carril/internal/pg"
	"github.com/softcrum/carril/internal/storage"
	"github.com/softcrum/carril/internal/stream"
	"github.com/softcrum/carril/internal/taxonomy"
	"github.com/softcrum/carril/processor/archive"
	"github.com/softcrum/carril/schemas"
)

// Roles says what a process runs.
type Roles struct {
	Ingest, Process, Dispatch, Webhooks, Maintain bool

	Channel string // Dispatch: one channel; empty: all
	Rail    string // Dispatch: one rail; empty: both
}

// AllRoles runs everything.
func AllRoles() Roles {
	return Roles{Ingest: true, Process: true, Dispatch: true, Webhooks: true, Maintain: true}
}

// App is a running set of roles.
type App struct {
	set   Settings
	roles Roles
	log   *slog.Logger
	reg   *prometheus.Registry
	stack *lifecycle.Stack

	kafka    kafka.Config
	codec    *schemas.Codec
	producer *kgo.Client
	adm      *kadm.Client
	side     *pgxpool.Pool // caches, look-ups and small jobs: never waited for inside a stage's transaction pool
	direct   *pgxpool.Pool // LISTEN, leases
	redis    *redis.Client

	streams       *stream.Metrics
	slots         *stream.Slots
	memory        *stream.Memory
	statusHandler *sends.Statuses
	shared        *dispatching
	forget        map[string][]func() // by configuration table
	watcher       *bucket.Limiter
	buckets       *redis.Client      // of the buckets, see bucketRedis
	schemas       *taxonomy.Registry // nil until a role asks for it
	store         storage.Store      // nil until a role asks for it
	archived      *archive.Archive   // likewise
	readies       []readiness
	stopping      atomic.Bool
	months        bool // readiness asks for the months ahead

	// API and Ops are the bound addresses, as URLs; empty where the role has none.
	API, Ops string
}

// readiness is one thing that must be true before the process says ready.
type readiness struct {
	name string
	wait func(ctx context.Context) error // returns when it is ready
	now  func() error                    // for /readyz; nil error: ready
}

// Start connects, verifies and starts the roles; it returns when they can take
// work. ctx bounds the start alone.
func Start(ctx context.Context, set Settings, roles Roles, log *slog.Logger) (*App, error) {
	if err := errors.Join(set.Validate(), set.NeedStores()); err != nil {
		return nil, err
	}
	a := &App{set: set, roles: roles, log: log, reg: prometheus.NewRegistry(), stack: lifecycle.New(log)}
	a.reg.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	if err := a.start(ctx); err != nil {
		return nil, errors.Join(err, a.Stop())
	}
	return a, nil
}

func (a *App) start(ctx context.Context) error {
	if err := a.connect(ctx); err != nil {
		return err
	}
	if err := a.startOps(ctx); err != nil {
		return err
	}
	if err := a.verify(ctx); err != nil {
		return err
	}
	for _, role := range []struct {
		on    bool
		start func(context.Context) error
	}{
		{a.roles.Maintain, a.startMaintain},
		{a.roles.Process, a.startProcess},
		{a.roles.Dispatch, a.startDispatch},
		{a.roles.Webhooks, a.startWebhooks},
		{a.roles.Ingest, a.startIngest},
	} {
		if role.on {
			if err := role.start(ctx); err != nil {
				return err
			}
		}
	}
	a.hearChanges()
	for _, r := range a.readies {
		if err := r.wait(ctx); err != nil {
			return fmt.Errorf("wait until %s is ready: %w", r.name, err)
		}
	}
	return nil
}

// Failed gives the failure of a part that should not have ended.
func (a *App) Failed() <-chan error { return a.stack.Failed() }

// Stop says that the process is not ready any more, then drains and ends
// everything, under the drain setting (faults P10).
func (a *App) Stop() error {
	a.stopping.Store(true)
	return a.stack.Stop(a.set.Drain)
}

func (a *App) connect(ctx context.Context) error {
	var err error
	if a.kafka, err = a.set.KafkaConfig(); err != nil {
		return err
	}
	if a.codec, err = a.set.NewCodec(); err != nil {
		return err
	}
	if a.producer, err = a.kafka.NewProducer(kgo.MaxBufferedRecords(100_000), kgo.RecordDeliveryTimeout(30*time.Second)); err != nil {
		return err
	}
	a.stack.OnStop("kafka producer", a.producer.Close)
	a.adm = kadm.NewClient(a.producer)
	if a.side, err = a.pool(ctx, "side", a.set.PostgresURL, 12); err != nil {
		return err
	}
	if a.direct, err = a.pool(ctx, "direct", a.set.direct(), 8); err != nil {
		return err
	}
	opt, err := redis.ParseURL(a.set.RedisURL)
	if err != nil {
		return configError("redis-url", "cannot be read")
	}
	opt.ReadTimeout, opt.WriteTimeout, opt.DialTimeout = time.Second, time.Second, 2*time.Second
	a.redis = redis.NewClient(opt)
	a.stack.OnStop("redis client", func() { _ = a.redis.Close() })
	a.streams = stream.NewMetrics(a.reg)
	a.slots = stream.NewSlots(a.set.CatchUp)
	a.memory = stream.NewMemory(0)
	return nil
}

// registry is a client of the settings' schema registry.
func (s *Settings) registry() (*sr.Client, error) {
	opts := []sr.ClientOpt{sr.URLs(s.RegistryURL), sr.UserAgent("carril")}
	if s.RegistryUser != "" {
		opts = append(opts, sr.BasicAuth(s.RegistryUser, s.RegistryPassword))
	}
	if s.RegistryToken != "" {
		opts = append(opts, sr.BearerToken(s.RegistryToken))
	}
	cl, err := sr.NewClient(opts...)
	if err != nil {
		return nil, configError("registry-url", "cannot be used: %v", err)
	}
	return cl, nil
}

// NewCodec makes the codec over the settings' registry.
func (s *Settings) NewCodec() (*schemas.Codec, error) {
	cl, err := s.registry()
	if err != nil {
		return nil, err
	}
	return schemas.NewCodec(cl, s.KafkaPrefix)
}

// pool opens a pool that is closed in its turn. Each part that holds
// transactions has a pool of its own, so that none starves another.
func (a *App) pool(ctx context.Context, name, url string, conns int32) (*pgxpool.Pool, error) {
	return a.open(ctx, name, pg.Config{URL: url, MaxConns: conns, ByKey: true})
}

// wholePool is for those who read tables whole.
func (a *App) wholePool(ctx context.Context, name, url string, conns int32) (*pgxpool.Pool, error) {
	return a.open(ctx, name, pg.Config{URL: url, MaxConns: conns})
}

func (a *App) open(ctx context.Context, name string, cfg pg.Config) (*pgxpool.Pool, error) {
	p, err := pg.Open(ctx, cfg)
	if err != nil {
		return nil, configError("postgres-url", "cannot be used: %v", err)
	}
	a.stack.OnStop("postgres pool "+name, p.Close)
	return p, nil
}

// verify refuses to run on topics that do not keep what a 202 promises, and on
// a database that was never migrated. What is merely away is waited for.
func (a *App) verify(ctx context.Context) error {
	specs := a.kafka.Specs(a.set.Channels, false)
	if err := a.patiently(ctx, "Kafka", func(ctx context.Context) error { return a.producer.Ping(ctx) }); err != nil {
		return err
	}
	if err := kafka.VerifyTopics(ctx, a.adm, specs); err != nil {
		return fmt.Errorf("%w: %w", ErrConfig, err)
	}
	topics := make([]string, 0, len(specs))
	for _, t := range schemas.Topics(a.set.Channels) {
		topics = append(topics, t.Name)
	}
	if err := a.patiently(ctx, "the schema registry", func(ctx context.Context) error { return a.codec.Warm(ctx, topics...) }); err != nil {
		return err
	}
	return a.patiently(ctx, "PostgreSQL", func(ctx context.Context) error {
		var migrated bool
		if err := a.side.QueryRow(ctx, `SELECT to_regclass('core.stream_positions') IS NOT NULL`).Scan(&migrated); err != nil {
			return err
		}
		if !migrated {
			return fmt.Errorf("%w: the database is not migrated: run `carril migrate`", ErrConfig)
		}
		return nil
	})
}

// patiently tries until ctx ends, and says what it waits for.
func (a *App) patiently(ctx context.Context, what string, try func(ctx context.Context) error) error {
	for waited := time.Duration(0); ; {
		tctx, cancel := context.WithTimeout(ctx, 5*time.Second)
		err := try(tctx)
		cancel()
		if err == nil || errors.Is(err, ErrConfig) {
			return err
		}
		if ctx.Err() != nil {
			return fmt.Errorf("%s did not answer: %w", what, err)
		}
		if waited == 0 {
			a.log.Warn("waiting for a dependency", "dependency", what, "error", err)
		}
		waited += 500 * time.Millisecond
		select {
		case <-ctx.Done():
		case <-time.After(500 * time.Millisecond):
		}
	}
}

// sink publishes for outbox lanes.
func (a *App) sink() outbox.Sink { return outbox.ClientSink{Client: a.producer} }

// instance names this replica's member of a group; empty for a dynamic one.
func (a *App) instance(stage string) string {
	if a.set.InstanceID == "" {
		return ""
	}
	return a.set.InstanceID + "-" + stage
}
