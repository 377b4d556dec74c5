package sends

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/softcrum/carril/internal/ids"
	"github.com/softcrum/carril/internal/outbox"
	"github.com/softcrum/carril/schemas"
)

// NewBatch makes a marketing job of messages of one tenant, whose membership is
// fixed from here on, and gives its record for the same transaction's outbox.
func (s *Store) NewBatch(ctx context.Context, tx pgx.Tx, tenant uuid.UUID, messages []schemas.JobMessage) (outbox.Message, error) {
	if s.cfg.Rail != schemas.RailMarketing || len(messages) == 0 || len(messages) > 100 {
		return outbox.Message{}, errors.New("a batch is 1 to 100 messages of the marketing rail")
	}
	p := schemas.JobPayload{Channel: s.cfg.Channel, Messages: messages}
	if err := tx.QueryRow(ctx, `SELECT cell_id FROM core.tenants WHERE tenant_id = $1`, tenant).Scan(&p.CellID); err != nil {
		return outbox.Message{}, fmt.Errorf("read a batch's tenant: %w", err)
	}
	now := time.Now().UTC()
	job := ids.Batch(messages[0].SendID, now)
	raw, err := json.Marshal(p)
	if err != nil {
		return outbox.Message{}, fmt.Errorf("write a batch: %w", err)
	}
	const sql = `INSERT INTO core.processed_jobs (id_time, worker, job_id, state, tenant_id, category, payload, expires_at) VALUES ($1, $2, $3, 'in_topic', $4, 'marketing', $5, $6)`
	if _, err := tx.Exec(ctx, sql, ids.Time(job), s.worker, job, tenant, raw, soleExpiry(messages)); err != nil {
		return outbox.Message{}, fmt.Errorf("write a batch: %w", err)
	}
	return s.record(ctx, enqueued{job: job, tenant: tenant, turn: 1, category: "marketing", payload: p, at: now})
}

// soleExpiry is when the whole batch is worth nothing: the last of its
// messages' times, if each has one.
func soleExpiry(ms []schemas.JobMessage) (last *time.Time) {
	for _, m := range ms {
		if m.ExpiresAt == nil {
			return nil
		}
		if last == nil || m.ExpiresAt.After(*last) {
			last = m.ExpiresAt
		}
	}
	return last
}
