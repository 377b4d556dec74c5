package rail

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"
	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/softcrum/carril/internal/kafka"
	"github.com/softcrum/carril/schemas"
)

// QueueHealth is the state of every rail: what GET /v1/messaging/queues/health
// answers. Cannot names what could not be seen; its fields are then absent.
type QueueHealth struct {
	At       time.Time       `json:"at"`
	Channels []ChannelHealth `json:"channels"`
}

// ChannelHealth is a channel's two rails.
type ChannelHealth struct {
	Channel   string       `json:"channel"`
	Yield     *YieldHealth `json:"yield,omitempty"`
	Rails     []RailHealth `json:"rails"`
	CannotSee []string     `json:"cannot_see,omitempty"`
}

// YieldHealth is the monitor's last word.
type YieldHealth struct {
	Yielding bool      `json:"yielding"`
	Reason   string    `json:"reason,omitempty"`
	At       time.Time `json:"at"`
}

// RailHealth is one rail. Depth is the sum of its parts, each named: parking
// must not hide an incident (FS-MSG-0005 §8).
type RailHealth struct {
	Rail          string           `json:"rail"`
	Depth         *int64           `json:"depth,omitempty"`
	Lag           *int64           `json:"lag,omitempty"` // records in the topic that are not finished
	Parked        *int64           `json:"parked,omitempty"`
	Waiting       *int64           `json:"waiting,omitempty"`
	Held          *int64           `json:"held,omitempty"`
	Claimed       *int64           `json:"claimed,omitempty"` // part of the lag
	OldestSeconds *float64         `json:"oldest_seconds,omitempty"`
	DrainSeconds  *float64         `json:"drain_seconds,omitempty"` // depth divided by the rate it may use now
	Workers       *int             `json:"workers,omitempty"`
	Providers     []ProviderHealth `json:"providers,omitempty"` // as the worker that spoke last sees them
	Bucket        *BucketHealth    `json:"bucket,omitempty"`    // of the provider in use, else of the preferred one
	LastError     *LastError       `json:"last_error,omitempty"`
}

// BucketHealth is the provider's bucket of a rail.
type BucketHealth struct {
	Provider       string   `json:"provider"`
	RatePerSecond  float64  `json:"rate_per_second"`
	Configured     float64  `json:"configured_per_second"`
	Burst          float64  `json:"burst"`
	BlockedSeconds float64  `json:"blocked_seconds"`
	Waiters        int      `json:"waiters"`
	DayUsed        int      `json:"day_used"`
	DayQuota       int      `json:"day_quota,omitempty"`
	MonthUsed      int      `json:"month_used"`
	MonthQuota     int      `json:"month_quota,omitempty"`
	QuotaReserve   *float64 `json:"quota_reserve,omitempty"` // share of the quotas that marketing leaves; absent without a quota
}

// LastError is the last thing that kept a job of a rail from leaving.
type LastError struct {
	State  string    `json:"state"`
	Reason string    `json:"reason"`
	At     time.Time `json:"at"`
}

// HealthDeps is what the health of the queues is read from.
type HealthDeps struct {
	Pool      *pgxpool.Pool
	Kafka     kafka.Config
	Admin     *kadm.Client
	Redis     redis.Cmdable
	Prefix    string            // before every key in Redis
	Buckets   Buckets           //
	Channels  []string          // in the order of the answer
	Providers map[string]string // by schemas.RailWorker(channel, rail)
	Budget    time.Duration     // for the whole answer; default 800 ms
}

// Health reads the state of every rail. It never fails: what cannot be seen is
// named. Each store is asked beside the others: one that hangs takes the whole
// budget, and must not hide what the others know.
func Health(ctx context.Context, d HealthDeps) QueueHealth {
	ctx, cancel := context.WithTimeout(ctx, def(d.Budget, 800*time.Millisecond))
	defer cancel()
	out := QueueHealth{At: time.Now().UTC(), Channels: make([]ChannelHealth, len(d.Channels))}
	blind := make([]blindness, len(d.Channels))
	for i, c := range d.Channels {
		out.Channels[i] = ChannelHealth{Channel: c, Rails: []RailHealth{{Rail: schemas.RailTransactional}, {Rail: schemas.RailMarketing}}}
	}
	var asked sync.WaitGroup
	for _, ask := range []func(context.Context, *ChannelHealth, *blindness){d.askRedis, d.askPostgres, d.askKafka} {
		asked.Go(func() {
			for i := range out.Channels {
				ask(ctx, &out.Channels[i], &blind[i])
			}
		})
	}
	asked.Wait()
	for i := range out.Channels {
		out.Channels[i].sum()
		out.Channels[i].CannotSee = blind[i].names(out.Channels[i].Rails)
	}
	return out
}

// blindness is what of a channel could not be seen; each store writes its own
// fields.
type blindness struct {
	yield                    error
	postgres, kafka, buckets [2]error // by rail
}

func (b *blindness) names(rails []RailHealth) (out []string) {
	if b.yield != nil {
		out = append(out, "yield")
	}
	for i, r := range rails {
		for _, s := range []struct {
			name string
			err  error
		}{{"postgres", b.postgres[i]}, {"kafka", b.kafka[i]}, {"buckets", b.buckets[i]}} {
			if s.err != nil {
				out = append(out, r.Rail+"."+s.name)
			}
		}
	}
	return out
}

func (d HealthDeps) askRedis(ctx context.Context, h *ChannelHealth, b *blindness) {
	h.Yield, b.yield = d.yield(ctx, h.Channel)
	for i := range h.Rails {
		using := d.fromRoutes(ctx, h.Channel, &h.Rails[i])
		b.buckets[i] = d.fromBuckets(ctx, h.Channel, using, &h.Rails[i])
	}
}

func (d HealthDeps) askPostgres(ctx context.Context, h *ChannelHealth, b *blindness) {
	for i := range h.Rails {
		b.postgres[i] = d.fromPostgres(ctx, h.Channel, &h.Rails[i])
	}
}

func (d HealthDeps) askKafka(ctx context.Context, h *ChannelHealth, b *blindness) {
	for i := range h.Rails {
		b.kafka[i] = d.fromKafka(ctx, h.Channel, &h.Rails[i])
	}
}

// sum adds up what several stores know of each rail.
func (h *ChannelHealth) sum() {
	for i := range h.Rails {
		r := &h.Rails[i]
		if r.Lag == nil || r.Parked == nil {
			continue
		}
		depth := *r.Lag + *r.Parked + *r.Waiting + *r.Held
		r.Depth = &depth
		if r.Bucket != nil && r.Bucket.RatePerSecond > 0 {
			drain := float64(depth)/r.Bucket.RatePerSecond + r.Bucket.BlockedSeconds
			r.DrainSeconds = &drain
		}
	}
}

func (d HealthDeps) yield(ctx context.Context, channel string) (*YieldHealth, error) {
	raw, err := d.Redis.Get(ctx, YieldKey(d.Prefix, channel)).Bytes()
	if errors.Is(err, redis.Nil) {
		return &YieldHealth{Yielding: true, Reason: "no_word", At: time.Now().UTC()}, nil
	}
	if err != nil {
		return nil, err
	}
	var w yieldWord
	if err := json.Unmarshal(raw, &w); err != nil {
		return nil, err
	}
	return &YieldHealth{Yielding: w.Yield, Reason: w.Reason, At: w.At.UTC()}, nil
}

func (d HealthDeps) fromPostgres(ctx context.Context, channel string, h *RailHealth) error {
	n, err := countDepth(ctx, d.Pool, channel, h.Rail)
	if err != nil {
		return err
	}
	oldest := n.oldest.Seconds()
	h.Parked, h.Waiting, h.Held, h.Claimed, h.OldestSeconds, h.LastError = &n.parked, &n.waiting, &n.held, &n.claimed, &oldest, n.last
	return nil
}

func (d HealthDeps) fromKafka(ctx context.Context, channel string, h *RailHealth) error {
	logs, err := readLogs(ctx, d.Admin, d.Kafka, channel, h.Rail)
	if err != nil {
		return err
	}
	var lag int64
	for _, p := range logs.partitions {
		lag += p.lag()
	}
	h.Lag, h.Workers = &lag, &logs.members
	return nil
}

// fromRoutes names the provider in use, empty where nobody says; that Redis is
// away, the buckets tell.
func (d HealthDeps) fromRoutes(ctx context.Context, channel string, h *RailHealth) string {
	r, ok, err := readRoutes(ctx, d.Redis, d.Prefix, channel, h.Rail)
	if err != nil || !ok {
		return ""
	}
	h.Providers = r.Providers
	return r.Using
}

func (d HealthDeps) fromBuckets(ctx context.Context, channel, using string, h *RailHealth) error {
	name := using
	if name == "" {
		name = d.Providers[schemas.RailWorker(channel, h.Rail)]
	}
	if name == "" {
		return errors.New("no provider")
	}
	l, err := d.Buckets.Levels(ctx, name)
	if err != nil {
		return err
	}
	h.Bucket = &BucketHealth{Provider: name, RatePerSecond: l.Current, Configured: l.Rate, Burst: l.Burst, BlockedSeconds: l.Blocked.Seconds(),
		Waiters: len(l.Waiters), DayUsed: l.DayUsed, DayQuota: l.Quotas.Day, MonthUsed: l.MonthUsed, MonthQuota: l.Quotas.Month}
	if l.Quotas.Day > 0 || l.Quotas.Month > 0 {
		h.Bucket.QuotaReserve = &l.Quotas.Reserve
	}
	return nil
}

// depth is what stands in PostgreSQL of a rail.
type depth struct {
	parked, waiting, held, claimed int64
	oldest                         time.Duration
	last                           *LastError
}

// countDepth counts a rail's open jobs by where they stand. On the marketing
// rail what the feeder has not frozen yet waits too, in messages.
func countDepth(ctx context.Context, pool *pgxpool.Pool, channel, rail string) (d depth, err error) {
	worker := schemas.RailWorker(channel, rail)
	const sql = `SELECT count(*) FILTER (WHERE state = 'parked'), count(*) FILTER (WHERE state = 'waiting'), count(*) FILTER (WHERE state = 'held'),
    count(*) FILTER (WHERE state = 'claimed'), coalesce(extract(epoch FROM now() - min(id_time)), 0)::float8
FROM core.processed_jobs WHERE id_time > now() - interval '40 days' AND worker = $1 AND state IN ('waiting', 'in_topic', 'claimed', 'parked', 'held')`
	var oldest float64
	if err := pool.QueryRow(ctx, sql, worker).Scan(&d.parked, &d.waiting, &d.held, &d.claimed, &oldest); err != nil {
		return d, fmt.Errorf("count the jobs of %s: %w", worker, err)
	}
	d.oldest = time.Duration(oldest * float64(time.Second))
	if rail == schemas.RailMarketing {
		var queued int64
		if err := pool.QueryRow(ctx, `SELECT count(*) FROM messaging.marketing_queue WHERE channel = $1`, channel).Scan(&queued); err != nil {
			return d, fmt.Errorf("count the marketing queue: %w", err)
		}
		d.waiting += queued
	}
	const last = `SELECT class, reason, created_at FROM core.dead_letters WHERE status = 'open' AND stage = $1 AND created_at > now() - interval '1 day' ORDER BY created_at DESC LIMIT 1`
	const kept = `SELECT state, coalesce(reason, ''), updated_at FROM core.processed_jobs
WHERE id_time > now() - interval '40 days' AND worker = $1 AND state IN ('parked', 'held') ORDER BY updated_at DESC LIMIT 1`
	for _, q := range []string{last, kept} {
		var e LastError
		err := pool.QueryRow(ctx, q, worker).Scan(&e.State, &e.Reason, &e.At)
		if errors.Is(err, pgx.ErrNoRows) {
			continue
		}
		if err != nil {
			return d, fmt.Errorf("find the last error of %s: %w", worker, err)
		}
		if d.last == nil || e.At.After(d.last.At) {
			e.At = e.At.UTC()
			d.last = &e
		}
	}
	return d, nil
}
