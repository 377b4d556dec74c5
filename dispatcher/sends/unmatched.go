package sends

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/softcrum/carril/internal/ids"
	"github.com/softcrum/carril/internal/outbox"
)

// putAside keeps reports whose send is not there yet: a provider's event can
// overtake the commit of the answer to its request.
func putAside(ctx context.Context, tx pgx.Tx, reports []*report) error {
	for _, r := range reports {
		var send *uuid.UUID
		if r.event.SendID != uuid.Nil {
			send = &r.event.SendID
		}
		const sql = `INSERT INTO messaging.unmatched_events (provider, provider_event_id, provider_message_id, send_id, body, received_at, next_try)
VALUES ($1, $2, nullif($3, ''), $4, $5, $6, now() + interval '1 second') ON CONFLICT DO NOTHING`
		if _, err := tx.Exec(ctx, sql, r.provider, r.id, r.event.ProviderMessageID, send, r.body, r.receivedAt); err != nil {
			return fmt.Errorf("put an event aside: %w", err)
		}
	}
	return nil
}

// MatcherConfig of the second look at unmatched events; zero values take the
// defaults.
type MatcherConfig struct {
	Every time.Duration // default 1 s
	Batch int           // default 200
	Keep  time.Duration // how long a send may be missing; default 48 h
}

// Matcher tries unmatched events again, and lets go of what nobody will ever
// claim: with the suppression that it asks for, and a dead letter. It runs in
// one process at a time, under a lease whose epoch owns its lane.
type Matcher struct {
	cfg  MatcherConfig
	pool *pgxpool.Pool
	h    *Statuses
	log  *slog.Logger
}

// NewMatcher makes a matcher beside a status stage.
func NewMatcher(cfg MatcherConfig, pool *pgxpool.Pool, h *Statuses, log *slog.Logger) *Matcher {
	if cfg.Every == 0 {
		cfg.Every = time.Second
	}
	if cfg.Batch == 0 {
		cfg.Batch = 200
	}
	if cfg.Keep == 0 {
		cfg.Keep = 48 * time.Hour
	}
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &Matcher{cfg: cfg, pool: pool, h: h, log: log}
}

// Run looks again until ctx ends; pub publishes lane.
func (m *Matcher) Run(ctx context.Context, lane outbox.Lane, pub *outbox.Publisher) error {
	tick := time.NewTicker(m.cfg.Every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		n, err := m.Once(ctx, lane)
		if err != nil && ctx.Err() == nil {
			m.log.Warn("unmatched events wait", "error", err)
		}
		if n > 0 {
			pub.Wake()
		}
	}
}

// Once looks at what is due; it gives the number of events that found their send.
func (m *Matcher) Once(ctx context.Context, lane outbox.Lane) (n int, err error) {
	tctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	err = pgx.BeginFunc(tctx, m.pool, func(tx pgx.Tx) error {
		reports, err := m.due(tctx, tx)
		if err != nil || len(reports) == 0 {
			return err
		}
		res, err := m.h.match(tctx, tx, reports)
		if err != nil {
			return err
		}
		n = len(reports) - len(res.unmatched)
		if err := m.forget(tctx, tx, reports, res.unmatched); err != nil {
			return err
		}
		_, err = lane.Append(tctx, tx, res.changes)
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("match events again: %w", err)
	}
	return n, nil
}

func (m *Matcher) due(ctx context.Context, tx pgx.Tx) ([]*report, error) {
	const sql = `SELECT provider, provider_event_id, coalesce(provider_message_id, ''), send_id, body, received_at, tries FROM messaging.unmatched_events
WHERE next_try <= now() ORDER BY next_try LIMIT $1 FOR UPDATE SKIP LOCKED`
	rows, err := tx.Query(ctx, sql, m.cfg.Batch)
	if err != nil {
		return nil, fmt.Errorf("read unmatched events: %w", err)
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (*report, error) {
		r := &report{}
		var send *uuid.UUID
		var message string
		if err := row.Scan(&r.provider, &r.id, &message, &send, &r.body, &r.receivedAt, &r.tries); err != nil {
			return nil, err
		}
		if err := m.h.read(r, send, nil, &message); err != nil {
			m.log.Error("an unmatched event cannot be read any more", "provider", r.provider, "error", err)
			r.event.SendID = uuid.Nil
		}
		return r, nil
	})
}

// forget deletes what was matched and what has waited too long, and plans the
// next look at the rest.
func (m *Matcher) forget(ctx context.Context, tx pgx.Tx, all, unmatched []*report) error {
	still := map[*report]bool{}
	for _, r := range unmatched {
		still[r] = true
	}
	for _, r := range all {
		switch {
		case !still[r]:
		case time.Since(r.receivedAt) > m.cfg.Keep:
			if err := m.letGo(ctx, tx, r); err != nil {
				return err
			}
		default:
			const sql = `UPDATE messaging.unmatched_events SET tries = tries + 1, next_try = now() + least(interval '1 second' * power(2, tries), interval '10 minutes')
WHERE provider = $1 AND provider_event_id = $2`
			if _, err := tx.Exec(ctx, sql, r.provider, r.id); err != nil {
				return fmt.Errorf("plan an event's next look: %w", err)
			}
			continue
		}
		if _, err := tx.Exec(ctx, `DELETE FROM messaging.unmatched_events WHERE provider = $1 AND provider_event_id = $2`, r.provider, r.id); err != nil {
			return fmt.Errorf("forget an event: %w", err)
		}
	}
	return nil
}

// letGo keeps the suppression of an event whose send is long gone, since it
// works by address, and a dead letter for people.
func (m *Matcher) letGo(ctx context.Context, tx pgx.Tx, r *report) error {
	why := suppressionOf(r.event.Status)
	var tenant *uuid.UUID
	if r.event.TenantID != uuid.Nil {
		var there bool
		if err := tx.QueryRow(ctx, `SELECT EXISTS (SELECT FROM core.tenants WHERE tenant_id = $1)`, r.event.TenantID).Scan(&there); err != nil {
			return fmt.Errorf("look for an event's tenant: %w", err)
		}
		if there {
			tenant = &r.event.TenantID
		}
	}
	if why != "" && tenant != nil {
		for _, address := range r.event.Recipients {
			if _, err := writeSuppression(ctx, tx, *tenant, channelOf(address), address, why, nil); err != nil {
				return err
			}
		}
	}
	const sql = `INSERT INTO core.dead_letters (dead_letter_id, stage, class, reason, tenant_id, topic, record_value, content_hash)
VALUES ($1, $2, 'unmatched', 'no send was found', $3, 'messaging.provider_events', $4, sha256($4))`
	if _, err := tx.Exec(ctx, sql, ids.New(), "stage:"+StageStatuses, tenant, r.body); err != nil {
		return fmt.Errorf("keep an unmatched event: %w", err)
	}
	return nil
}

// channelOf tells an address's channel by its form, where no send says it.
func channelOf(address string) string {
	if strings.Contains(address, "@") {
		return "email"
	}
	return "sms"
}
