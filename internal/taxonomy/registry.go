package taxonomy

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/softcrum/carril/internal/pg"
)

// Mode is what becomes of events that do not match.
type Mode string

// The modes of a schema.
const (
	Enforce Mode = "enforce" // they are refused
	Observe Mode = "observe" // they are taken, and a warning is left
)

// Channel is what PostgreSQL notifies, with the id of a tenant whose schemas changed.
const Channel = "carril_taxonomy"

// Schema is a schema in force.
type Schema struct {
	Version int
	Mode    Mode
	program func() *program // compiled at its first use; nil where it does not compile
}

// Judge gives what of a payload, a JSON object, does not match; nil: all does.
func (s *Schema) Judge(payload string) []Violation {
	if p := s.program(); p != nil {
		return p.judge(payload)
	}
	return nil
}

// NewSchema makes a schema of its text. One that does not compile, stored under
// other limits than today's, judges nothing.
func NewSchema(version int, mode Mode, text string) *Schema {
	return &Schema{Version: version, Mode: mode, program: sync.OnceValue(func() *program {
		p, err := compile([]byte(text))
		if err != nil {
			return nil
		}
		return p
	})}
}

// Source reads what is in force.
type Source interface {
	// Heads gives the schemas in force, without their texts, of one tenant or,
	// for uuid.Nil, of all.
	Heads(ctx context.Context, tenant uuid.UUID) ([]Head, error)
	// Texts gives the texts of these versions, those that still exist.
	Texts(ctx context.Context, heads []Head) (map[Key]string, error)
}

// Key names a version of a schema.
type Key struct {
	Tenant  uuid.UUID
	Event   string
	Version int
}

// Head is a schema in force, without its text.
type Head struct {
	Key
	Mode      Mode
	Installed time.Time
}

// Notifier tells of tenants whose schemas changed. Listen blocks until ctx ends
// or its connection is lost; it calls listening once it hears everything from
// then on, and heard with each tenant's id.
type Notifier interface {
	Listen(ctx context.Context, listening func(), heard func(tenant string)) error
}

// Config of a Registry. The zero value of a field takes its default.
type Config struct {
	Refresh time.Duration // how often all is read again; 30 s
	Query   time.Duration // longest read; 5 s
}

// Deps of a Registry. Notifier may be nil: a change then takes Refresh. A nil
// Log discards.
type Deps struct {
	Source   Source
	Notifier Notifier
	Log      *slog.Logger
	Metrics  prometheus.Registerer
}

// byTenant is never changed once it is seen.
type byTenant map[uuid.UUID]map[string]*Schema

// Registry holds the schemas in force of all tenants.
type Registry struct {
	cfg  Config
	deps Deps
	now  atomic.Pointer[byTenant]

	mu       sync.Mutex // of refreshes: one at a time, or an older answer would come to stand
	count    prometheus.Gauge
	failures prometheus.Counter

	end context.CancelFunc
	wg  sync.WaitGroup
}

// NewRegistry makes a registry that knows nothing until Start.
func NewRegistry(cfg Config, deps Deps) (*Registry, error) {
	if cfg.Refresh == 0 {
		cfg.Refresh = 30 * time.Second
	}
	if cfg.Query == 0 {
		cfg.Query = 5 * time.Second
	}
	if deps.Source == nil || deps.Metrics == nil || min(cfg.Refresh, cfg.Query) < 0 {
		return nil, errors.New("taxonomy: a source, a metrics registerer and positive times are needed")
	}
	if deps.Log == nil {
		deps.Log = slog.New(slog.DiscardHandler)
	}
	r := &Registry{cfg: cfg, deps: deps,
		count:    prometheus.NewGauge(prometheus.GaugeOpts{Name: "carril_taxonomy_schemas", Help: "Schemas in force that this process knows."}),
		failures: prometheus.NewCounter(prometheus.CounterOpts{Name: "carril_taxonomy_refresh_failures_total", Help: "Reads of schemas that failed; what was known stays in force."})}
	r.now.Store(&byTenant{})
	if err := errors.Join(deps.Metrics.Register(r.count), deps.Metrics.Register(r.failures)); err != nil {
		return nil, fmt.Errorf("register taxonomy metrics: %w", err)
	}
	return r, nil
}

// Find gives the schema of a tenant's event name; nil: there is none. It waits
// for nothing.
func (r *Registry) Find(tenant uuid.UUID, event string) *Schema {
	return (*r.now.Load())[tenant][event]
}

// Refresh reads a tenant's schemas, or with uuid.Nil all of them, and puts them
// in force. What it cannot read stays as it was.
func (r *Registry) Refresh(ctx context.Context, tenant uuid.UUID) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	ctx, cancel := context.WithTimeoutCause(ctx, r.cfg.Query, errors.New("taxonomy: read timeout"))
	defer cancel()
	if err := r.refresh(ctx, tenant); err != nil {
		r.failures.Inc()
		return err
	}
	return nil
}

func (r *Registry) refresh(ctx context.Context, tenant uuid.UUID) error {
	heads, err := r.deps.Source.Heads(ctx, tenant)
	if err != nil {
		return err
	}
	was := *r.now.Load()
	next := byTenant{}
	if tenant != uuid.Nil {
		next = maps.Clone(was)
		delete(next, tenant)
	}
	var unknown []Head
	for _, h := range heads {
		if s := was[h.Tenant][h.Event]; s != nil && s.Version == h.Version {
			next.put(h, s)
		} else {
			unknown = append(unknown, h)
		}
	}
	if len(unknown) > 0 {
		texts, err := r.deps.Source.Texts(ctx, unknown)
		if err != nil {
			return err
		}
		for _, h := range unknown {
			if text, ok := texts[h.Key]; ok {
				next.put(h, NewSchema(h.Version, h.Mode, text))
			}
		}
	}
	r.now.Store(&next)
	n := 0
	for _, events := range next {
		n += len(events)
	}
	r.count.Set(float64(n))
	return nil
}

// put never changes a map that was seen: the tenants of next are new ones, or
// not touched.
func (b byTenant) put(h Head, s *Schema) {
	if b[h.Tenant] == nil {
		b[h.Tenant] = map[string]*Schema{}
	}
	b[h.Tenant][h.Event] = s
}

// Start reads what is in force and keeps it so in the background, until Stop.
// A database that is away holds nobody up: it is read when it is back.
func (r *Registry) Start(ctx context.Context) error {
	if err := r.Refresh(ctx, uuid.Nil); err != nil {
		r.deps.Log.Warn("taxonomy: the schemas could not be read; events are taken without them until they can", "error", err)
	}
	ctx, r.end = context.WithCancel(context.WithoutCancel(ctx))
	if r.deps.Notifier != nil {
		r.wg.Go(func() { r.listen(ctx) })
	}
	r.wg.Go(func() { r.refreshEvery(ctx) })
	return nil
}

// Stop ends the background work and waits for it. It is harmless twice, and
// before Start.
func (r *Registry) Stop() {
	if r.end != nil {
		r.end()
	}
	r.wg.Wait()
}

func (r *Registry) refreshEvery(ctx context.Context) {
	tick := time.NewTicker(r.cfg.Refresh)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			r.refreshLogged(ctx, uuid.Nil)
		case <-ctx.Done():
			return
		}
	}
}

func (r *Registry) refreshLogged(ctx context.Context, tenant uuid.UUID) {
	if err := r.Refresh(ctx, tenant); err != nil && ctx.Err() == nil {
		r.deps.Log.Warn("taxonomy: schemas not read; what was known stays in force", "error", err)
	}
}

// listen hears of changes over one connection after the other. Between two of
// them changes go unheard, so each begins with a read of all.
func (r *Registry) listen(ctx context.Context) {
	pg.KeepListening(ctx, r.deps.Notifier.Listen, func() { r.refreshLogged(ctx, uuid.Nil) }, func(tenant string) {
		if id, err := uuid.Parse(tenant); err == nil {
			r.refreshLogged(ctx, id)
		}
	}, func(err error) {
		r.deps.Log.Warn("taxonomy: not hearing of changes, which take effect with the next read", "error", err)
	})
}
