package feeder

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/softcrum/carril/dispatcher/blast"
	"github.com/softcrum/carril/internal/ids"
	"github.com/softcrum/carril/schemas"
)

// running is a blast that has something to feed.
type running struct {
	ID              uuid.UUID
	TemplateID      string
	TemplateVersion int
	Variables       json.RawMessage
	OriginEventID   uuid.UUID
	CorrelationID   string
	Fed             int64
	StartedAt       time.Time // its messages carry this time in their ids
	Retention       int16
	Since           time.Duration
}

// nextBatch takes the messages of a tenant's next batch: its queue and each of its
// running blasts in turn, a batch each, beginning after the one that had the
// last. A batch is a request of the provider's, whatever it holds, so a turn is
// a quantum of one request and leaves no deficit; a small blast goes out beside
// a large one at half the pace, and not behind it.
func (f *Feeder) nextBatch(ctx context.Context, tx pgx.Tx, tenant uuid.UUID) ([]schemas.JobMessage, error) {
	const sql = `SELECT b.blast_id, b.template_id, b.template_version, b.variables, b.origin_event_id, b.correlation_id, b.fed, coalesce(b.started_at, b.created_at),
    p.retention_months, now() - b.updated_at
FROM messaging.blasts b JOIN core.tenants t USING (tenant_id) JOIN core.plans p USING (plan_id)
WHERE b.tenant_id = $1 AND b.channel = $2 AND b.state = 'running' AND b.fed < b.recipients ORDER BY b.blast_id FOR UPDATE OF b SKIP LOCKED`
	rows, err := tx.Query(ctx, sql, tenant, f.cfg.Channel)
	if err != nil {
		return nil, fmt.Errorf("find running blasts: %w", err)
	}
	blasts, err := pgx.CollectRows(rows, pgx.RowToStructByPos[running])
	if err != nil {
		return nil, fmt.Errorf("find running blasts: %w", err)
	}
	for _, b := range inTurn(blasts, f.served[tenant]) {
		var out []schemas.JobMessage
		if b.ID == uuid.Nil {
			out, err = f.fromQueue(ctx, tx, tenant)
		} else {
			out, err = f.fromBlast(ctx, tx, tenant, b)
		}
		if err != nil {
			return nil, err
		}
		if len(out) > 0 {
			f.served[tenant] = b.ID
			return out, nil
		}
	}
	delete(f.served, tenant)
	return nil, nil
}

// inTurn gives the blasts, sorted by id, and the queue as the one without an id,
// in the order in which they are asked: behind the last one served.
func inTurn(blasts []running, last uuid.UUID) []running {
	all := append([]running{{}}, blasts...)
	for i, b := range all {
		if compare(b.ID, last) > 0 {
			return append(append([]running{}, all[i:]...), all[:i]...)
		}
	}
	return all
}

func compare(a, b uuid.UUID) int {
	for i := range a {
		if a[i] != b[i] {
			return int(a[i]) - int(b[i])
		}
	}
	return 0
}

// fromBlast takes a blast's next recipients, unless it must wait for the
// outcomes of its first ones, or these have paused it.
func (f *Feeder) fromBlast(ctx context.Context, tx pgx.Tx, tenant uuid.UUID, b running) ([]schemas.JobMessage, error) {
	wait, err := f.unsettled(ctx, tx, b)
	if err != nil || wait {
		return nil, err
	}
	if b.Fed > 0 {
		reason, o, err := f.blasts.Judge(ctx, tx, tenant, b.ID, f.cfg.Channel)
		if err != nil {
			return nil, err
		}
		if reason != "" {
			f.tell(b.ID, tenant, reason, o)
			return nil, nil
		}
	}
	return f.recipients(ctx, tx, tenant, b)
}

// unsettled holds a blast back after its first sends until most of them have an
// outcome.
func (f *Feeder) unsettled(ctx context.Context, tx pgx.Tx, b running) (bool, error) {
	first := f.blasts.First()
	if !first.Reached(b.Fed, f.cfg.Batch) {
		return false, nil
	}
	reported, never, err := f.blasts.Settled(ctx, tx, b.ID)
	if err != nil {
		return false, err
	}
	return first.Waits(b.Fed, b.Since, reported, never), nil
}

func (f *Feeder) recipients(ctx context.Context, tx pgx.Tx, tenant uuid.UUID, b running) ([]schemas.JobMessage, error) {
	limit := f.cfg.Batch
	if ahead := int64(f.blasts.First().After) - b.Fed; ahead > 0 && ahead < int64(limit) {
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
	at := b.StartedAt.UTC().Truncate(time.Millisecond)
	_, err = pgx.ForEachRow(rows, []any{&position, &contact, &address, &own}, func() error {
		vars, err := blast.Merge(b.Variables, own)
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
