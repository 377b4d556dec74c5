package rail

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/softcrum/carril/dispatcher/bucket"
	"github.com/softcrum/carril/internal/kafka"
	"github.com/softcrum/carril/internal/lease"
	"github.com/softcrum/carril/schemas"
)

// yieldLife is how long a word of the monitor counts.
const yieldLife = 3 * time.Second

// YieldKey is where the monitor of a channel leaves its word in Redis.
func YieldKey(prefix, channel string) string { return prefix + "yield:" + channel }

// yieldWord is the value of that key.
type yieldWord struct {
	Yield  bool      `json:"yield"`
	Reason string    `json:"reason,omitempty"`
	Lag    int64     `json:"lag"`
	At     time.Time `json:"at"`
}

// MonitorConfig of a channel's monitor; zero values take the defaults.
type MonitorConfig struct {
	Channel string
	Prefix  string // before every key in Redis
	Holder  string
	Every   time.Duration // default 500 ms
	Depths  time.Duration // how often what stands in PostgreSQL is counted; default 5 s
	Life    time.Duration // of the lease; default 3 s
	Yield   YieldConfig
}

// Buckets is what the monitor asks of the limiter; *bucket.Limiter is one.
type Buckets interface {
	Levels(ctx context.Context, provider string) (bucket.Levels, error)
}

// MonitorDeps is what a monitor works with.
type MonitorDeps struct {
	Kafka    kafka.Config
	Admin    *kadm.Client
	Redis    redis.Cmdable
	Pool     *pgxpool.Pool // reaches PostgreSQL directly
	Buckets  Buckets
	Provider string // of the transactional rail, while its workers name no other
	Log      *slog.Logger
	Metrics  *DepthMetrics // nil: not measured
}

// Monitor watches a channel's transactional rail and says whether marketing must
// yield (FS-MSG-0005 §2). One process of N does, under a lease; its word lives
// three seconds, so that its silence is a yield.
type Monitor struct {
	cfg     MonitorConfig
	deps    MonitorDeps
	decide  decision
	waiters map[string]time.Time // since when each stands
}

// NewMonitor makes a channel's monitor.
func NewMonitor(cfg MonitorConfig, deps MonitorDeps) *Monitor {
	cfg.Every = def(cfg.Every, 500*time.Millisecond)
	cfg.Depths = def(cfg.Depths, 5*time.Second)
	cfg.Life = def(cfg.Life, 3*time.Second)
	cfg.Yield = cfg.Yield.withDefaults()
	if deps.Log == nil {
		deps.Log = slog.New(slog.DiscardHandler)
	}
	return &Monitor{cfg: cfg, deps: deps}
}

// Run watches whenever this process has the lease, until ctx ends.
func (m *Monitor) Run(ctx context.Context) error {
	return lease.Run(ctx, m.deps.Pool, lease.Config{Name: "monitor:" + m.cfg.Channel, Holder: m.cfg.Holder, Life: m.cfg.Life}, m.deps.Log,
		func(ctx context.Context, _ *lease.Lease) error { return m.watch(ctx) })
}

func (m *Monitor) watch(ctx context.Context) error {
	m.decide, m.waiters = decision{cfg: m.cfg.Yield}, map[string]time.Time{}
	tick := time.NewTicker(m.cfg.Every)
	defer tick.Stop()
	var counted time.Time
	for {
		m.once(ctx)
		if time.Since(counted) >= m.cfg.Depths {
			counted = time.Now()
			m.countDepths(ctx)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// once samples, decides and leaves its word.
func (m *Monitor) once(ctx context.Context) {
	sctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	rate := m.rate(sctx)
	r := m.sample(sctx, rate)
	if ctx.Err() != nil {
		return
	}
	before := m.decide.yield
	yield, reason := m.decide.see(r, rate)
	if yield != before {
		m.deps.Log.Info("marketing's yield changed", "channel", m.cfg.Channel, "yield", yield, "reason", reason, "sample", r.String())
	}
	if dm := m.deps.Metrics; dm != nil {
		dm.observe(m.cfg.Channel, r, yield, reason)
	}
	raw, err := json.Marshal(yieldWord{Yield: yield, Reason: reason, Lag: r.lag, At: r.at})
	if err != nil {
		return
	}
	if err := m.deps.Redis.Set(sctx, YieldKey(m.cfg.Prefix, m.cfg.Channel), raw, yieldLife).Err(); err != nil && ctx.Err() == nil {
		m.deps.Log.Debug("the monitor's word is not left", "channel", m.cfg.Channel, "error", err) // its absence is a yield
	}
}

// rate is what transactional may use now, in requests a second; and who waits
// for a token is noted.
func (m *Monitor) rate(ctx context.Context) float64 {
	name := m.deps.Provider
	if r, ok, err := readRoutes(ctx, m.deps.Redis, m.cfg.Prefix, m.cfg.Channel, schemas.RailTransactional); err == nil && ok && r.Using != "" {
		name = r.Using
	}
	levels, err := m.deps.Buckets.Levels(ctx, name)
	if err != nil {
		clear(m.waiters) // marketing stands still without Redis anyway
		return levels.Rate
	}
	now, standing := time.Now(), map[string]time.Time{}
	for _, w := range levels.Waiters {
		since, ok := m.waiters[w]
		if !ok {
			since = now
		}
		standing[w] = since
	}
	m.waiters = standing
	return levels.Current
}

func (m *Monitor) sample(ctx context.Context, rate float64) reading {
	now := time.Now()
	r := reading{at: now, young: true}
	for _, since := range m.waiters {
		r.waiting = max(r.waiting, now.Sub(since))
	}
	logs, err := readLogs(ctx, m.deps.Admin, m.deps.Kafka, m.cfg.Channel, schemas.RailTransactional, now.Add(-m.cfg.Yield.yieldAt()), now.Add(-m.cfg.Yield.resumeAt(rate)))
	if err != nil {
		m.deps.Log.Warn("the transactional rail cannot be seen", "channel", m.cfg.Channel, "error", err)
		r.blind = "kafka"
		return r
	}
	for _, p := range logs.partitions {
		r.lag += p.lag()
		r.old = r.old || p.next() < p.after[0]
		r.young = r.young && p.next() >= p.after[1]
	}
	if rate > 0 {
		r.drain = time.Duration(float64(r.lag) / rate * float64(time.Second))
	}
	if logs.members == 0 && r.lag > 0 {
		r.blind = "no_worker" // a backlog that nobody works on is worse than any that moves
	}
	return r
}

// partitionLog is a partition of a rail beside its group's commit.
type partitionLog struct {
	start, end, committed int64 // committed: -1 where the group never did
	after                 []int64
}

// next is where the group stands; without a commit, the log's start.
func (p partitionLog) next() int64 { return max(p.committed, p.start) }

func (p partitionLog) lag() int64 { return max(0, p.end-p.next()) }

type railLogs struct {
	partitions map[int32]partitionLog
	members    int
}

// readLogs asks the cluster for every partition of a rail. An error of any of
// them is an error of the whole: a total over those that answered would look
// healthy.
func readLogs(ctx context.Context, adm *kadm.Client, k kafka.Config, channel, rail string, after ...time.Time) (out railLogs, err error) {
	topic, group := k.Topic(schemas.RailTopic(channel, rail)), k.Group(Group(channel, rail))
	details, err := adm.ListTopics(ctx, topic)
	if err != nil {
		return out, fmt.Errorf("describe %s: %w", topic, err)
	}
	d, ok := details[topic]
	if !ok || d.Err != nil || len(d.Partitions) == 0 {
		return out, fmt.Errorf("describe %s: %w", topic, errors.Join(d.Err, errors.New("no partitions")))
	}
	starts, err := adm.ListStartOffsets(ctx, topic)
	if err != nil {
		return out, fmt.Errorf("log starts of %s: %w", topic, err)
	}
	ends, err := adm.ListEndOffsets(ctx, topic)
	if err != nil {
		return out, fmt.Errorf("log ends of %s: %w", topic, err)
	}
	var afters []kadm.ListedOffsets
	for _, at := range after {
		listed, err := adm.ListOffsetsAfterMilli(ctx, at.UnixMilli(), topic)
		if err != nil {
			return out, fmt.Errorf("offsets of %s at a time: %w", topic, err)
		}
		afters = append(afters, listed)
	}
	committed, err := adm.FetchOffsets(ctx, group)
	if err != nil && !errors.Is(err, kerr.GroupIDNotFound) { // a group that nobody ever joined has committed nothing
		return out, fmt.Errorf("commits of %s: %w", group, err)
	}
	out.partitions = map[int32]partitionLog{}
	for p := range d.Partitions {
		pl, err := onePartition(topic, p, starts, ends, afters, committed)
		if err != nil {
			return out, err
		}
		out.partitions[p] = pl
	}
	groups, err := adm.DescribeGroups(ctx, group)
	if err != nil {
		return out, fmt.Errorf("describe %s: %w", group, err)
	}
	if g, ok := groups[group]; ok && g.Err == nil {
		out.members = len(g.Members)
	}
	return out, nil
}

func onePartition(topic string, p int32, starts, ends kadm.ListedOffsets, afters []kadm.ListedOffsets, committed kadm.OffsetResponses) (pl partitionLog, err error) {
	start, ok1 := starts.Lookup(topic, p)
	end, ok2 := ends.Lookup(topic, p)
	if !ok1 || !ok2 || start.Err != nil || end.Err != nil {
		return pl, fmt.Errorf("offsets of %s/%d: %w", topic, p, cmp.Or(errors.Join(start.Err, end.Err), errNoAnswer))
	}
	pl = partitionLog{start: start.Offset, end: end.Offset, committed: -1}
	if c, ok := committed.Lookup(topic, p); ok {
		if c.Err != nil {
			return pl, fmt.Errorf("commit of %s/%d: %w", topic, p, c.Err)
		}
		pl.committed = c.At
	}
	for _, listed := range afters {
		o, ok := listed.Lookup(topic, p)
		if !ok || o.Err != nil {
			return pl, fmt.Errorf("offset of %s/%d at a time: %w", topic, p, cmp.Or(o.Err, errNoAnswer))
		}
		at := o.Offset
		if at < 0 {
			at = pl.end // nothing is younger: all of it is older
		}
		pl.after = append(pl.after, at)
	}
	return pl, nil
}

// DepthMetrics of the monitors of a process: what stands on each rail, each part
// named, so that parking hides no incident.
type DepthMetrics struct {
	depth  *prometheus.GaugeVec
	yield  *prometheus.GaugeVec
	blind  *prometheus.GaugeVec
	behind *prometheus.GaugeVec
	oldest *prometheus.GaugeVec
}

// NewDepthMetrics registers them.
func NewDepthMetrics(reg prometheus.Registerer, channels []string) *DepthMetrics {
	m := &DepthMetrics{
		depth:  prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "carril_rail_depth", Help: "Jobs of a rail that are not settled, by where they stand."}, []string{"channel", "rail", "kind"}),
		yield:  prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "carril_rail_yield", Help: "1 while marketing yields, by why."}, []string{"channel", "reason"}),
		blind:  prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "carril_rail_blind", Help: "1 while the monitor cannot see the transactional rail."}, []string{"channel"}),
		behind: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "carril_rail_drain_seconds", Help: "What stands in the transactional topic, divided by the rate it may use now."}, []string{"channel"}),
		oldest: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "carril_rail_oldest_seconds", Help: "Age of the oldest job that is not settled."}, []string{"channel", "rail"}),
	}
	reg.MustRegister(m.depth, m.yield, m.blind, m.behind, m.oldest)
	for _, c := range channels {
		for _, r := range []string{schemas.RailTransactional, schemas.RailMarketing} {
			for _, kind := range []string{"lag", "parked", "waiting", "held"} {
				m.depth.WithLabelValues(c, r, kind)
			}
			m.oldest.WithLabelValues(c, r)
		}
		for _, why := range yieldReasons {
			m.yield.WithLabelValues(c, why)
		}
		m.blind.WithLabelValues(c)
		m.behind.WithLabelValues(c)
	}
	return m
}

// yieldReasons is the closed set of the metric's label.
var yieldReasons = []string{"age", "depth", "drain", "waiting", "blind"}

func (m *DepthMetrics) observe(channel string, r reading, yield bool, reason string) {
	blind := 0.0
	if r.blind != "" {
		blind, reason = 1, "blind"
	}
	m.blind.WithLabelValues(channel).Set(blind)
	m.behind.WithLabelValues(channel).Set(r.drain.Seconds())
	for _, why := range yieldReasons {
		v := 0.0
		if yield && why == reason {
			v = 1
		}
		m.yield.WithLabelValues(channel, why).Set(v)
	}
}

// countDepths publishes the depth of both rails.
func (m *Monitor) countDepths(ctx context.Context) {
	dm := m.deps.Metrics
	if dm == nil {
		return
	}
	cctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	for _, r := range []string{schemas.RailTransactional, schemas.RailMarketing} {
		d, err := countDepth(cctx, m.deps.Pool, m.cfg.Channel, r)
		if err != nil {
			m.deps.Log.Warn("the rail's depth is not counted", "channel", m.cfg.Channel, "rail", r, "error", err)
			continue
		}
		for kind, n := range map[string]int64{"parked": d.parked, "waiting": d.waiting, "held": d.held} {
			dm.depth.WithLabelValues(m.cfg.Channel, r, kind).Set(float64(n))
		}
		dm.oldest.WithLabelValues(m.cfg.Channel, r).Set(d.oldest.Seconds())
		if logs, err := readLogs(cctx, m.deps.Admin, m.deps.Kafka, m.cfg.Channel, r); err == nil {
			lag := int64(0)
			for _, p := range logs.partitions {
				lag += p.lag()
			}
			dm.depth.WithLabelValues(m.cfg.Channel, r, "lag").Set(float64(lag))
		}
	}
}
