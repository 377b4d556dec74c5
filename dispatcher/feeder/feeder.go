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
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/softcrum/carril/dispatcher/lane"
	"github.com/softcrum/carril/dispatcher/sends"
	"github.com/softcrum/carril/internal/ids"
	"github.com/softcrum/carril/internal/kafka"
	"github.com/softcrum/carril/internal/outbox"
	"github.com/softcrum/carril/schemas"
)

// Config of the feeder of one channel; zero values take the defaults.
type Config struct {
	Channel     string
	Holder      string
	Batch       int           // most messages of one batch; at most 100; default 100
	BatchBytes  int           // most bytes of their payloads; default 1 MiB
	InTopic     int           // most undispatched batches of a tenant; default 50
	Every       time.Duration // default 200 ms
	Linger      time.Duration // how long a batch that is not full waits for more; default 1 s
	Round       int           // batches of one transaction; default 20
	LeaseLife   time.Duration // default 5 s
	SettleAfter int           // a blast's first sends, after which it waits for their outcomes; default 500; negative: never
	SettleShare float64       // of them with an outcome before it goes on; default 0.8
	SettleFor   time.Duration // longest it waits for that; default 15 min
	Watch       time.Duration // how often the outcomes of running blasts are judged; default 2 s
	Bounces     float64       // share of the sends with an outcome above which a blast is paused; default 0.04
	Complaints  float64       // likewise; default 0.001
}

// Deps is what a feeder works with.
type Deps struct {
	Pool  *pgxpool.Pool // reaches PostgreSQL directly
	Store *sends.Store  // of the channel's marketing rail
	Kafka kafka.Config
	Sink  outbox.Sink
	Log   *slog.Logger
}

// Feeder feeds one channel's marketing rail.
type Feeder struct {
	cfg  Config
	deps Deps
	next uuid.UUID // the tenant whose turn it is: rounds go on where the last ended
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
	if cfg.SettleAfter == 0 {
		cfg.SettleAfter = 500
	}
	if cfg.SettleShare == 0 {
		cfg.SettleShare = 0.8
	}
	if cfg.SettleFor == 0 {
		cfg.SettleFor = 15 * time.Minute
	}
	if cfg.Watch == 0 {
		cfg.Watch = 2 * time.Second
	}
	if cfg.Bounces == 0 {
		cfg.Bounces = 0.04
	}
	if cfg.Complaints == 0 {
		cfg.Complaints = 0.001
	}
	if deps.Log == nil {
		deps.Log = slog.New(slog.DiscardHandler)
	}
	return &Feeder{cfg: cfg, deps: deps}, nil
}

// Run feeds whenever this process has the lease, until ctx ends.
func (f *Feeder) Run(ctx context.Context) error {
	return lane.Run(ctx, lane.Config{Name: "feeder:" + f.cfg.Channel, Holder: f.cfg.Holder, Life: f.cfg.LeaseLife},
		lane.Deps{Pool: f.deps.Pool, Sink: f.deps.Sink, Topic: f.deps.Kafka.Topic, Log: f.deps.Log},
		func(ctx context.Context, l outbox.Lane, pub *outbox.Publisher) error {
			tick := time.NewTicker(f.cfg.Every)
			defer tick.Stop()
			var watched time.Time
			for {
				if time.Since(watched) >= f.cfg.Watch {
					watched = time.Now()
					if err := f.watch(ctx); err != nil && ctx.Err() == nil {
						f.deps.Log.Warn("blasts are not judged", "channel", f.cfg.Channel, "error", err)
					}
				}
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
		})
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

// feed makes one batch of a tenant; false where there is none to make now.
func (f *Feeder) feed(ctx context.Context, tx pgx.Tx, tenant uuid.UUID) (m outbox.Message, ok bool, err error) {
	const sql = `SELECT count(*) FROM core.processed_jobs WHERE id_time > now() - interval '40 days' AND worker = $1 AND tenant_id = $2 AND state IN ('in_topic', 'claimed')`
	var standing int
	if err := tx.QueryRow(ctx, sql, f.deps.Store.Worker(), tenant).Scan(&standing); err != nil {
		return m, false, fmt.Errorf("count a tenant's batches: %w", err)
	}
	if standing >= f.cfg.InTopic {
		return m, false, nil
	}
	messages, err := f.fromQueue(ctx, tx, tenant)
	if err != nil {
		return m, false, err
	}
	if len(messages) == 0 {
		if messages, err = f.fromBlasts(ctx, tx, tenant); err != nil {
			return m, false, err
		}
	}
	if len(messages) == 0 {
		return m, false, nil
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

// fromBlasts takes the next recipients of the tenant's running blasts, the
// oldest blast first.
func (f *Feeder) fromBlasts(ctx context.Context, tx pgx.Tx, tenant uuid.UUID) ([]schemas.JobMessage, error) {
	const sql = `SELECT b.blast_id, b.template_id, b.template_version, b.variables, b.origin_event_id, b.correlation_id, b.fed, b.created_at,
    p.retention_months, now() - b.updated_at
FROM messaging.blasts b JOIN core.tenants t USING (tenant_id) JOIN core.plans p USING (plan_id)
WHERE b.tenant_id = $1 AND b.channel = $2 AND b.state = 'running' AND b.fed < b.recipients ORDER BY b.created_at, b.blast_id FOR UPDATE OF b SKIP LOCKED`
	rows, err := tx.Query(ctx, sql, tenant, f.cfg.Channel)
	if err != nil {
		return nil, fmt.Errorf("find running blasts: %w", err)
	}
	blasts, err := pgx.CollectRows(rows, pgx.RowToStructByPos[blast])
	if err != nil {
		return nil, fmt.Errorf("find running blasts: %w", err)
	}
	for _, b := range blasts {
		wait, err := f.unsettled(ctx, tx, tenant, b)
		if err != nil {
			return nil, err
		}
		if wait {
			continue
		}
		out, err := f.recipients(ctx, tx, tenant, b)
		if err != nil || len(out) > 0 {
			return out, err
		}
	}
	return nil, nil
}

type blast struct {
	ID              uuid.UUID
	TemplateID      string
	TemplateVersion int
	Variables       json.RawMessage
	OriginEventID   uuid.UUID
	CorrelationID   string
	Fed             int64
	CreatedAt       time.Time
	Retention       int16
	Since           time.Duration
}

// unsettled holds a blast back after its first sends until most of them have an
// outcome: bounces come a minute after the mails leave, and everybody shares
// one account.
func (f *Feeder) unsettled(ctx context.Context, tx pgx.Tx, tenant uuid.UUID, b blast) (bool, error) {
	if f.cfg.SettleAfter < 0 || b.Fed < int64(f.cfg.SettleAfter) || b.Fed >= int64(f.cfg.SettleAfter+f.cfg.Batch) || b.Since > f.cfg.SettleFor {
		return false, nil
	}
	at := b.CreatedAt.UTC().Truncate(time.Millisecond)
	first := make([]uuid.UUID, b.Fed)
	for i := range first {
		first[i] = ids.Send(tenant, b.ID, at, i, f.cfg.Channel)
	}
	const sql = `SELECT count(DISTINCT send_id) FROM messaging.send_status_history
WHERE requested_at = $1 AND send_id = ANY($2) AND status IN ('delivered', 'opened', 'clicked', 'bounced', 'complained', 'failed')`
	var done int
	if err := tx.QueryRow(ctx, sql, at, first).Scan(&done); err != nil {
		return false, fmt.Errorf("look at a blast's first outcomes: %w", err)
	}
	const blocked = `SELECT count(*) FROM messaging.blast_recipients WHERE blast_id = $1 AND position < $2 AND outcome IN ('blocked', 'expired', 'cancelled')`
	var never int
	if err := tx.QueryRow(ctx, blocked, b.ID, b.Fed).Scan(&never); err != nil {
		return false, fmt.Errorf("look at a blast's first outcomes: %w", err)
	}
	return float64(done) < f.cfg.SettleShare*float64(len(first)-never), nil
}

func (f *Feeder) recipients(ctx context.Context, tx pgx.Tx, tenant uuid.UUID, b blast) ([]schemas.JobMessage, error) {
	limit := f.cfg.Batch
	if ahead := int64(f.cfg.SettleAfter) - b.Fed; f.cfg.SettleAfter > 0 && ahead > 0 && ahead < int64(limit) {
		limit = int(ahead)
	}
	const sql = `SELECT position, contact_id, address, variables FROM messaging.blast_recipients
WHERE blast_id = $1 AND position >= $2 ORDER BY position LIMIT $3`
	rows, err := tx.Query(ctx, sql, b.ID, b.Fed, limit)
	if err != nil {
		return nil, fmt.Errorf("read a blast's recipients: %w", err)
	}
	var (
		out      []schemas.JobMessage
		position int64
		contact  *uuid.UUID
		address  string
		own      json.RawMessage
		bytes    int
	)
	at := b.CreatedAt.UTC().Truncate(time.Millisecond)
	_, err = pgx.ForEachRow(rows, []any{&position, &contact, &address, &own}, func() error {
		vars, err := merge(b.Variables, own)
		if err != nil {
			return err
		}
		if bytes += len(vars) + len(address) + 400; len(out) > 0 && bytes > f.cfg.BatchBytes {
			return nil
		}
		blastID := b.ID
		m := schemas.JobMessage{SendID: ids.Send(tenant, b.ID, at, int(position), f.cfg.Channel), RequestID: b.ID, RecipientIndex: int(position), RequestedAt: at,
			Address: address, Category: "marketing", RetentionMonths: b.Retention, TemplateID: b.TemplateID, TemplateVersion: b.TemplateVersion, Variables: vars,
			CorrelationID: b.CorrelationID, OriginEventID: b.OriginEventID, BlastID: &blastID}
		if contact != nil {
			m.ContactID = *contact
		}
		out = append(out, m)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read a blast's recipients: %w", err)
	}
	const fed = `UPDATE messaging.blasts SET fed = fed + $2, updated_at = now() WHERE blast_id = $1`
	if _, err := tx.Exec(ctx, fed, b.ID, len(out)); err != nil {
		return nil, fmt.Errorf("count a blast's fed recipients: %w", err)
	}
	return out, nil
}

// merge lays a recipient's variables over the blast's.
func merge(base, over json.RawMessage) (json.RawMessage, error) {
	vars := map[string]json.RawMessage{}
	for _, raw := range []json.RawMessage{base, over} {
		if len(raw) == 0 {
			continue
		}
		if err := json.Unmarshal(raw, &vars); err != nil {
			return nil, fmt.Errorf("read a blast's variables: %w", err)
		}
	}
	return json.Marshal(vars)
}
