// Package feeder freezes marketing messages into batches and brings them to the
// marketing rail at the pace at which it takes them (FS-MSG-0005 §5): what
// rules and the API caused (messaging.marketing_queue) and the recipients of
// running blasts, in one queue a tenant. A batch's membership is fixed here and
// never again, which is what makes its retries safe. `carril maintain` runs it,
// in one process at a time; sending is the rail worker's.
package feeder

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/softcrum/carril/dispatcher/blast"
	"github.com/softcrum/carril/dispatcher/lane"
	"github.com/softcrum/carril/dispatcher/sends"
	"github.com/softcrum/carril/internal/kafka"
	"github.com/softcrum/carril/internal/outbox"
	"github.com/softcrum/carril/schemas"
)

// Config of the feeder of one channel; zero values take the defaults.
type Config struct {
	Channel    string
	Holder     string
	Batch      int           // most messages of one batch; at most 100; default 100
	BatchBytes int           // most bytes of their payloads; default 1 MiB
	InTopic    int           // most undispatched batches of a tenant; default 50
	Every      time.Duration // default 200 ms
	Linger     time.Duration // how long a batch that is not full waits for more; default 1 s
	Round      int           // batches of one transaction; default 20
	LeaseLife  time.Duration // default 5 s
	First      blast.First   // how a blast waits for the outcomes of its first sends
	Watch      time.Duration // how often the outcomes of running blasts are judged; default 2 s
	Measure    time.Duration // how often the blasts are looked over for the metrics; default 10 s
	Breaker    blast.Breaker // when outcomes pause a blast, and a tenant
}

// Deps is what a feeder works with.
type Deps struct {
	Pool  *pgxpool.Pool // reaches PostgreSQL directly
	Store *sends.Store  // of the channel's marketing rail
	Kafka kafka.Config
	Sink  outbox.Sink
	Log   *slog.Logger

	Metrics *Metrics // nil: not measured
}

// Feeder feeds one channel's marketing rail.
type Feeder struct {
	cfg    Config
	deps   Deps
	blasts *blast.Store
	next   uuid.UUID               // the tenant whose turn it is: rounds go on where the last ended
	served map[uuid.UUID]uuid.UUID // of a tenant, the blast that had its last batch; uuid.Nil: its queue
}

// New makes a feeder.
func New(cfg Config, deps Deps) (*Feeder, error) {
	if want := schemas.RailWorker(cfg.Channel, schemas.RailMarketing); deps.Store.Worker() != want {
		return nil, fmt.Errorf("feeder: the store is of %s, not %s", deps.Store.Worker(), want)
	}
	if cfg.Batch == 0 || cfg.Batch > 100 {
		cfg.Batch = 100
	}
	if cfg.BatchBytes == 0 {
		cfg.BatchBytes = 1 << 20
	}
	if cfg.InTopic == 0 {
		cfg.InTopic = 50
	}
	if cfg.Every == 0 {
		cfg.Every = 200 * time.Millisecond
	}
	if cfg.Linger == 0 {
		cfg.Linger = time.Second
	}
	if cfg.Round == 0 {
		cfg.Round = 20
	}
	if cfg.Watch == 0 {
		cfg.Watch = 2 * time.Second
	}
	if cfg.Measure == 0 {
		cfg.Measure = 10 * time.Second
	}
	if deps.Log == nil {
		deps.Log = slog.New(slog.DiscardHandler)
	}
	return &Feeder{cfg: cfg, deps: deps, blasts: blast.New(blast.Config{Breaker: cfg.Breaker, First: cfg.First}, deps.Pool), served: map[uuid.UUID]uuid.UUID{}}, nil
}

// Run feeds whenever this process has the lease, until ctx ends.
func (f *Feeder) Run(ctx context.Context) error {
	return lane.Run(ctx, lane.Config{Name: "feeder:" + f.cfg.Channel, Holder: f.cfg.Holder, Life: f.cfg.LeaseLife},
		lane.Deps{Pool: f.deps.Pool, Sink: f.deps.Sink, Topic: f.deps.Kafka.Topic, Log: f.deps.Log},
		func(ctx context.Context, l outbox.Lane, pub *outbox.Publisher) error {
			wctx, cancel := context.WithCancel(ctx)
			var watching sync.WaitGroup
			watching.Go(func() { f.tend(wctx) })
			defer watching.Wait()
			defer cancel()
			return f.feedOn(wctx, l, pub)
		})
}

// feedOn makes rounds of batches until ctx ends or the lane is another's.
func (f *Feeder) feedOn(ctx context.Context, l outbox.Lane, pub *outbox.Publisher) error {
	tick := time.NewTicker(f.cfg.Every)
	defer tick.Stop()
	for {
		n, err := f.Once(ctx, l)
		switch {
		case errors.Is(err, outbox.ErrFenced):
			return err
		case err != nil && ctx.Err() == nil:
			f.deps.Log.Warn("feeder waits", "channel", f.cfg.Channel, "error", err)
		}
		if n > 0 {
			pub.Wake()
		}
		if n >= f.cfg.Round && err == nil && ctx.Err() == nil {
			continue
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// Once makes up to a round of batches in one transaction, one a tenant in turn
// until nobody may have another; it gives their number.
func (f *Feeder) Once(ctx context.Context, l outbox.Lane) (made int, err error) {
	tctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	err = pgx.BeginFunc(tctx, f.deps.Pool, func(tx pgx.Tx) error {
		tenants, err := f.tenants(tctx, tx)
		if err != nil {
			return err
		}
		var msgs []outbox.Message
		made = 0
		for made < f.cfg.Round && len(tenants) > 0 {
			still := tenants[:0:0]
			for _, t := range tenants {
				if made >= f.cfg.Round {
					break
				}
				m, ok, err := f.feed(tctx, tx, t)
				if err != nil {
					return err
				}
				if ok {
					made++
					msgs = append(msgs, m)
					still = append(still, t)
					f.next = t
				}
			}
			tenants = still
		}
		_, err = l.Append(tctx, tx, msgs)
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("feed %s: %w", f.cfg.Channel, err)
	}
	return made, nil
}

// tenants lists those with something to feed, beginning after the one that was
// served last.
func (f *Feeder) tenants(ctx context.Context, tx pgx.Tx) ([]uuid.UUID, error) {
	const sql = `WITH RECURSIVE q AS (
    (SELECT tenant_id FROM messaging.marketing_queue ORDER BY tenant_id LIMIT 1)
    UNION ALL
    SELECT (SELECT m.tenant_id FROM messaging.marketing_queue m WHERE m.tenant_id > q.tenant_id ORDER BY m.tenant_id LIMIT 1) FROM q WHERE q.tenant_id IS NOT NULL
)
SELECT t FROM (
    SELECT tenant_id AS t FROM q WHERE tenant_id IS NOT NULL AND EXISTS (SELECT FROM messaging.marketing_queue m WHERE m.tenant_id = q.tenant_id AND m.channel = $1)
    UNION SELECT tenant_id FROM messaging.blasts WHERE state = 'running' AND channel = $1 AND fed < recipients
) u WHERE NOT EXISTS (SELECT FROM messaging.tenant_rails r WHERE r.tenant_id = u.t AND r.channel = $1 AND r.rail = 'marketing' AND r.paused_at IS NOT NULL)
ORDER BY t <= $2, t`
	rows, err := tx.Query(ctx, sql, f.cfg.Channel, f.next)
	if err != nil {
		return nil, fmt.Errorf("list tenants to feed: %w", err)
	}
	out, err := pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
	if err != nil {
		return nil, fmt.Errorf("list tenants to feed: %w", err)
	}
	return out, nil
}

// A credit is a batch that stands in the topic or is claimed. What a resumed
// blast or a paused sender still holds counts too: it comes back into the topic
// by itself, and a blast that is paused and resumed again and again must not
// fill it with more each time.
const standingCount = `count(*) FILTER (WHERE j.state IN ('in_topic', 'claimed') OR j.reason IN ('sender_paused', 'sender_unverified')
    OR j.reason = 'blast_paused' AND EXISTS (SELECT FROM messaging.blasts b WHERE b.blast_id = (j.payload -> 'messages' -> 0 ->> 'blast_id')::uuid AND b.state <> 'paused'))`

const standingSQL = `SELECT ` + standingCount + `
FROM core.processed_jobs j WHERE j.id_time > now() - interval '40 days' AND j.worker = $1 AND j.tenant_id = $2 AND j.state IN ('in_topic', 'claimed', 'held')`

// feed makes one batch of a tenant; false where there is none to make now.
func (f *Feeder) feed(ctx context.Context, tx pgx.Tx, tenant uuid.UUID) (m outbox.Message, ok bool, err error) {
	var standing int
	if err := tx.QueryRow(ctx, standingSQL, f.deps.Store.Worker(), tenant).Scan(&standing); err != nil {
		return m, false, fmt.Errorf("count a tenant's batches: %w", err)
	}
	if standing >= f.cfg.InTopic {
		return m, false, nil
	}
	messages, err := f.nextBatch(ctx, tx, tenant)
	if err != nil || len(messages) == 0 {
		return m, false, err
	}
	m, err = f.deps.Store.NewBatch(ctx, tx, tenant, messages)
	return m, err == nil, err
}

// fromQueue takes what rules and the API caused, oldest first; less than a full
// batch only when its oldest has waited long enough.
func (f *Feeder) fromQueue(ctx context.Context, tx pgx.Tx, tenant uuid.UUID) ([]schemas.JobMessage, error) {
	const sql = `SELECT send_id, payload, created_at <= now() - $4::interval FROM messaging.marketing_queue
WHERE tenant_id = $1 AND channel = $2 ORDER BY send_id LIMIT $3 FOR UPDATE SKIP LOCKED`
	rows, err := tx.Query(ctx, sql, tenant, f.cfg.Channel, f.cfg.Batch, f.cfg.Linger)
	if err != nil {
		return nil, fmt.Errorf("read the marketing queue: %w", err)
	}
	var (
		out   []schemas.JobMessage
		taken []uuid.UUID
		id    uuid.UUID
		raw   []byte
		old   bool
		due   bool
		bytes int
		full  bool
	)
	_, err = pgx.ForEachRow(rows, []any{&id, &raw, &old}, func() error {
		due = due || old
		if full = full || len(out) > 0 && bytes+len(raw) > f.cfg.BatchBytes; full {
			return nil
		}
		var m schemas.JobMessage
		if err := json.Unmarshal(raw, &m); err != nil {
			return fmt.Errorf("read a queued message: %w", err)
		}
		bytes += len(raw)
		out, taken = append(out, m), append(taken, id)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read the marketing queue: %w", err)
	}
	if !due && !full && len(out) < f.cfg.Batch {
		return nil, nil
	}
	const del = `DELETE FROM messaging.marketing_queue WHERE tenant_id = $1 AND channel = $2 AND send_id = ANY($3)`
	if _, err := tx.Exec(ctx, del, tenant, f.cfg.Channel, taken); err != nil {
		return nil, fmt.Errorf("take from the marketing queue: %w", err)
	}
	return out, nil
}
