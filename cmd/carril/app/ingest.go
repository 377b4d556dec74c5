package app

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/softcrum/carril/dispatcher/rail"
	"github.com/softcrum/carril/ingestor"
	"github.com/softcrum/carril/ingestor/apikey"
	"github.com/softcrum/carril/ingestor/limit"
	"github.com/softcrum/carril/ingestor/manage"
	"github.com/softcrum/carril/ingestor/providerhook"
	"github.com/softcrum/carril/internal/content"
	"github.com/softcrum/carril/internal/gates"
	"github.com/softcrum/carril/internal/httpserver"
	"github.com/softcrum/carril/internal/kafka"
	"github.com/softcrum/carril/internal/pg"
	"github.com/softcrum/carril/internal/ratelimit"
	"github.com/softcrum/carril/internal/rule"
	"github.com/softcrum/carril/internal/taxonomy"
	"github.com/softcrum/carril/schemas"
)

// startIngest opens the front door: the runtime API, the providers' webhooks
// and the management reads.
func (a *App) startIngest(ctx context.Context) error {
	keys, err := apikey.NewVerifier(apikey.Config{}, apikey.Deps{Store: apikey.NewPostgres(a.side), Notifier: pg.Listener{URL: a.set.direct(), Channel: apikey.Channel},
		Log: a.log, Metrics: a.reg})
	if err != nil {
		return err
	}
	if err := keys.Start(ctx); err != nil {
		return err
	}
	a.stack.OnStop("api keys", func() {
		sctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		_ = keys.Stop(sctx) // what it still knows is only when keys were last used
	})
	front, err := a.kafka.NewProducer(ingestor.ProducerConfig{}.Opts()...)
	if err != nil {
		return err
	}
	a.stack.OnStop("kafka producer of the front door", front.Close)
	inForce, err := a.taxonomy(ctx)
	if err != nil {
		return err
	}
	queue := ingestor.NewKafka(a.kafka, front, a.codec)
	limits, err := a.limits()
	if err != nil {
		return err
	}
	guard, err := apikey.NewGuard(apikey.GuardConfig{Failures: a.set.AuthFailures}, keys, a.reg)
	if err != nil {
		return err
	}
	api, err := ingestor.New(ingestor.Config{}, ingestor.Deps{Keys: guard, Limits: limits, Queue: queue, Requests: queue, Channels: a.set.Channels,
		Taxonomy: inForce, Log: a.log, Metrics: a.reg})
	if err != nil {
		return err
	}
	hooks, err := a.providerHooks()
	if err != nil {
		return err
	}
	queues, err := a.queueHealth()
	if err != nil {
		return err
	}
	endpoints, err := a.endpoints()
	if err != nil {
		return err
	}
	people, err := a.erasures(ctx)
	if err != nil {
		return err
	}
	campaigns, err := a.blasts()
	if err != nil {
		return err
	}
	metrics, err := httpserver.NewMetrics(a.reg)
	if err != nil {
		return err
	}
	exported, err := a.files()
	if err != nil {
		return err
	}
	reads := manage.New(manage.Deps{Keys: guard, DB: a.side, CursorKey: a.cursorKey(), Queues: queues, Taxonomy: taxonomy.NewStore(a.side), Rules: rule.NewStore(a.side),
		Templates: content.NewStore(a.side), Permissions: gates.NewStore(a.side), Channels: a.set.Channels,
		SchemasChanged: inForce.Refresh, Endpoints: endpoints, Erasures: people, Blasts: campaigns, Snapshots: a.side, Files: exported, Log: a.log})
	files := openFiles()
	conns, _ := connections(files)
	if conns < 1_000 {
		a.log.Warn("the limit on open files bounds the API's connections", "open_files", files, "connections", conns)
	}
	addr, err := a.serve(ctx, "api listener", httpserver.Config{Addr: a.set.Addr, MaxConns: conns, TrustedProxies: a.set.proxies()}, apiRouter(metrics, api, reads, hooks))
	if err != nil {
		return err
	}
	a.API = "http://" + addr
	return nil
}

// limits is the API's limiter, on a Redis client of its own: it keeps the
// deadline of an ask.
func (a *App) limits() (*limit.Limiter, error) {
	rdb, err := ratelimit.Open(a.set.RedisURL)
	if err != nil {
		return nil, configError("redis-url", "cannot be used")
	}
	a.stack.OnStop("redis client of the API's limits", func() { _ = rdb.Close() })
	l, err := limit.New(limit.Config{Prefix: a.prefix()}, limit.Deps{Redis: rdb, Log: a.log, Metrics: a.reg})
	if err != nil {
		return nil, err
	}
	a.stack.OnStop("the API's limits", l.Stop)
	return l, nil
}

// Files that the process needs for anything but its API's clients: stores,
// brokers, probes. What is left of its limit is for them.
const ownFiles = 128

// connections bounds those of the API and of the probes below what the process
// may open: at the limit itself nothing could be accepted (faults F41). files of
// 0 is a limit that is not known.
func connections(files int) (api, ops int) {
	const most, least = 10_000, 16
	if files == 0 || files >= most+ownFiles {
		return most, most / 10
	}
	return max(least, files-ownFiles), ownFiles / 4
}

// apiRouter has every route of the API, and so every one that the contract must
// name; hooks nil: no provider is known.
func apiRouter(metrics *httpserver.Metrics, api *ingestor.API, reads *manage.Routes, hooks http.Handler) *chi.Mux {
	r := httpserver.NewRouter()
	r.Use(metrics.Observe)
	api.Mount(r)
	reads.Mount(r)
	if hooks != nil {
		r.Method(http.MethodPost, providerhook.Route, hooks)
	}
	return r
}

// taxonomy gives the schemas in force, one set for all roles of the process.
func (a *App) taxonomy(ctx context.Context) (*taxonomy.Registry, error) {
	if a.schemas != nil {
		return a.schemas, nil
	}
	r, err := taxonomy.NewRegistry(taxonomy.Config{}, taxonomy.Deps{Source: taxonomy.NewStore(a.side),
		Notifier: pg.Listener{URL: a.set.direct(), Channel: taxonomy.Channel}, Log: a.log, Metrics: a.reg})
	if err != nil {
		return nil, err
	}
	if err := r.Start(ctx); err != nil {
		return nil, err
	}
	a.stack.OnStop("taxonomy", r.Stop)
	a.schemas = r
	return r, nil
}

// cursorKey signs the cursors of lists. It follows from the deployment's own
// key, so that every replica reads the cursors of the others.
func (a *App) cursorKey() []byte {
	if a.set.WebhookKey == "" {
		a.log.Warn("without webhook-key the cursors of lists hold in this process alone")
		return randomBytes(32)
	}
	m := hmac.New(sha256.New, []byte(a.set.WebhookKey))
	m.Write([]byte("carril list cursors"))
	return m.Sum(nil)
}

// providerHooks verifies and enqueues what providers report; nil where no
// secret was given, so that the route does not exist.
func (a *App) providerHooks() (http.Handler, error) {
	sources, err := a.hookSources()
	if err != nil || len(sources) == 0 {
		return nil, err
	}
	// A producer of their own: a code's request must not wait for reports that are on
	// their way, nor for company.
	reports, err := a.kafka.NewProducer(ingestor.ProducerConfig{Linger: reportLinger}.Opts()...)
	if err != nil {
		return nil, err
	}
	a.stack.OnStop("kafka producer of providers' reports", reports.Close)
	h, err := providerhook.New(providerhook.Config{Sources: sources},
		providerhook.Deps{Queue: providerQueue{a, reports}, Registerer: a.reg, Logger: a.log})
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrConfig, err)
	}
	return h, nil
}

// reportLinger is how long a provider's report waits for others before it is written
// down and answered: each comes by itself, and a blast brings two a message.
const reportLinger = 10 * time.Millisecond

// providerQueue keeps provider events in their topic.
type providerQueue struct {
	a       *App
	reports *kgo.Client
}

// Enqueue returns once the event is on all in-sync replicas.
func (q providerQueue) Enqueue(ctx context.Context, e providerhook.Event) error {
	rec := schemas.ProviderEvent{Provider: e.Provider, ProviderEventID: e.ProviderEventID, Body: e.RawBody, ReceivedAt: e.ReceivedAt}
	key := e.ProviderEventID
	if e.ProviderMessageID != "" {
		key, rec.ProviderMessageID = e.ProviderMessageID, &e.ProviderMessageID
	}
	if e.SendID != [16]byte{} {
		key, rec.SendID, rec.TenantID = e.SendID.String(), &e.SendID, &e.TenantID
	}
	value, err := q.a.codec.Encode(ctx, nil, schemas.TopicProviderEvents, &rec)
	if err != nil {
		return err
	}
	h := kafka.Event{ID: e.Provider + "/" + e.ProviderEventID, Type: "messaging.provider_event", Source: "/providers/" + e.Provider,
		Time: e.ReceivedAt, CorrelationID: key}
	done := make(chan error, 1)
	q.reports.TryProduce(context.WithoutCancel(ctx), &kgo.Record{Topic: q.a.kafka.Topic(schemas.TopicProviderEvents), Key: []byte(key), Value: value,
		Headers: h.Headers()}, func(_ *kgo.Record, err error) { done <- err })
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return errors.Join(ctx.Err(), context.Cause(ctx))
	}
}

// queueHealth reads the state of both rails of every channel; nil where this
// process is not told of the providers.
func (a *App) queueHealth() (manage.QueueHealth, error) {
	if a.set.unset() != "" {
		return nil, nil //nolint:nilnil // no provider, no route
	}
	d, err := a.dispatching()
	if err != nil {
		return nil, err
	}
	levels, err := a.levels()
	if err != nil {
		return nil, err
	}
	providers := map[string]string{}
	for _, channel := range a.set.Channels {
		for _, r := range []string{schemas.RailTransactional, schemas.RailMarketing} {
			providers[schemas.RailWorker(channel, r)] = d.preferred(channel, r)
		}
	}
	deps := rail.HealthDeps{Pool: a.side, Kafka: a.kafka, Admin: a.adm, Redis: d.redis, Prefix: a.prefix(), Buckets: levels,
		Channels: a.set.Channels, Providers: providers}
	return func(ctx context.Context) any { return rail.Health(ctx, deps) }, nil
}
