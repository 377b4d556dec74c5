package retention

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/softcrum/carril/internal/db/processordb"
	"github.com/softcrum/carril/processor/partition"
)

// sweepEmpty removes leaves that have been empty and due for long, and months
// without a leaf: a successor has nothing to wait for once no late record of its
// month can come any more.
func (j *Job) sweepEmpty(ctx context.Context, res *Result) error {
	before := j.now().Add(-j.cfg.EmptyFor)
	long, err := dueLeaves(ctx, j.deps.Pool, before)
	if err != nil {
		return err
	}
	var errs []error
	for _, d := range long {
		if d.Empty {
			gone, err := j.ddl(ctx, "remove the empty leaf "+d.Name, `SELECT core.drop_empty_leaf($1, $2::oid::regclass)`, d.Parent, d.OID)
			res.Empty += gone
			errs = append(errs, err)
		}
	}
	steps, err := j.emptySteps(ctx, before)
	errs = append(errs, err)
	for _, s := range steps {
		gone, err := j.ddl(ctx, "remove an empty month of "+s.Parent, `SELECT core.drop_empty_step($1, $2::oid::regclass)`, s.Parent, s.OID)
		res.Empty += gone
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

func (j *Job) ddl(ctx context.Context, what, sql, parent string, oid uint32) (gone int, err error) {
	var ok bool
	err = partition.Retry(ctx, lockTries, func() error { return j.deps.Pool.QueryRow(ctx, sql, parent, oid).Scan(&ok) })
	if err != nil {
		return 0, fmt.Errorf("%s: %w", what, err)
	}
	if ok {
		gone = 1
	}
	return gone, nil
}

type part struct {
	Parent string
	OID    uint32
}

func (j *Job) emptySteps(ctx context.Context, before time.Time) ([]part, error) {
	const sql = `SELECT p.parent, t.part FROM core.partitioned_tables p CROSS JOIN LATERAL core.partition_tree(p.parent) t
WHERE p.classes AND NOT t.is_leaf AND t.upper_bound < $1 AND NOT EXISTS (SELECT FROM pg_inherits i WHERE i.inhparent = t.part)`
	rows, err := j.deps.Pool.Query(ctx, sql, before)
	if err != nil {
		return nil, fmt.Errorf("look for empty months: %w", err)
	}
	parts, err := pgx.CollectRows(rows, pgx.RowToStructByPos[part])
	if err != nil {
		return nil, fmt.Errorf("look for empty months: %w", err)
	}
	return parts, nil
}

// trim removes what has served its time and needs no export.
func (j *Job) trim(ctx context.Context, res *Result) error {
	db := processordb.New(j.deps.Pool)
	tenants, err := db.TenantHorizons(ctx)
	if err != nil {
		return j.counted(fmt.Errorf("read how long tenants keep: %w", err))
	}
	oldest := j.now().UTC().AddDate(0, -j.cfg.LookupMonths, 0)
	for _, t := range tenants {
		if before := j.horizon(t); before.Before(oldest) {
			oldest = before
		}
	}
	var errs []error
	for _, d := range []struct {
		parent string
		before time.Time
	}{
		{"core.outbox", j.now().Add(-j.cfg.OutboxKept)}, {"core.processed_jobs", j.now().Add(-j.cfg.JobsKept)},
		{"messaging.send_requests", j.now().Add(-j.cfg.RequestsKept)}, {"core.webhook_deliveries", j.now().Add(-j.cfg.DeliveriesKept)},
		{"core.webhook_attempts", j.now().Add(-j.cfg.AttemptsKept)}, {"messaging.decisions", oldest},
	} {
		errs = append(errs, j.counted(j.trimPast(ctx, d.parent, d.before, res)))
	}
	for _, t := range tenants {
		errs = append(errs, j.counted(j.trimTenant(ctx, db, t.TenantID, j.horizon(t), res)))
	}
	errs = append(errs, j.counted(j.trimMessages(ctx, oldest, res)))
	for _, f := range []func(context.Context, *Result) error{j.trimSpans, j.trimKeys, j.trimDeadLetters} {
		errs = append(errs, j.counted(f(ctx, res)))
	}
	return errors.Join(errs...)
}

// horizon is before what a tenant's things are no longer kept: as long as its
// plan, and no less than LookupMonths, says.
func (j *Job) horizon(t processordb.TenantHorizonsRow) time.Time {
	return j.now().UTC().AddDate(0, -max(int(t.RetentionMonths), j.cfg.LookupMonths), 0)
}

// trimPast drops the days or months of a table that ended before an instant,
// each in a transaction of its own, unless something of it is open.
func (j *Job) trimPast(ctx context.Context, parent string, before time.Time, res *Result) error {
	rows, err := j.deps.Pool.Query(ctx, `SELECT t.part, t.name FROM core.partition_tree($1) t
WHERE t.is_leaf AND NOT t.is_default AND t.upper_bound <= $2 AND t.upper_bound < now() - interval '1 day' ORDER BY t.lower_bound`, parent, before)
	if err != nil {
		return fmt.Errorf("look for the past of %s: %w", parent, err)
	}
	type past struct {
		OID  uint32
		Name string
	}
	list, err := pgx.CollectRows(rows, pgx.RowToStructByPos[past])
	if err != nil {
		return fmt.Errorf("look for the past of %s: %w", parent, err)
	}
	for _, d := range list {
		var held *string
		err := partition.Retry(ctx, lockTries, func() error {
			return j.deps.Pool.QueryRow(ctx, `SELECT core.drop_past($1, $2::oid::regclass)`, parent, d.OID).Scan(&held)
		})
		switch {
		case err != nil:
			return fmt.Errorf("drop %s: %w", d.Name, err)
		case held != nil:
			res.Held = append(res.Held, Held{d.Name, *held})
		default:
			res.Trimmed[parent]++
		}
	}
	return nil
}

// trimSpans deletes spans that lead nowhere any more, lane by lane from the
// oldest.
func (j *Job) trimSpans(ctx context.Context, res *Result) error {
	db := processordb.New(j.deps.Pool)
	lanes, err := db.EventLanes(ctx)
	if err != nil {
		return fmt.Errorf("list the lanes of events: %w", err)
	}
	for _, lane := range lanes {
		err := j.paged(ctx, "core.event_spans", res, func() (int64, error) {
			return db.TrimSpans(ctx, processordb.TrimSpansParams{Lane: lane, Page: int32(j.cfg.Page)})
		})
		if err != nil {
			return fmt.Errorf("trim the spans of lane %d: %w", lane, err)
		}
	}
	return nil
}

// trimKeys deletes fence rows whose leaf is gone and whose time is over (I22).
func (j *Job) trimKeys(ctx context.Context, res *Result) error {
	const sql = `WITH due AS (
    DELETE FROM core.expired_keys k WHERE k.ctid = ANY (ARRAY(SELECT e.ctid FROM core.expired_keys e WHERE e.due_at <= $1 ORDER BY e.due_at LIMIT $2 FOR UPDATE SKIP LOCKED))
    RETURNING k.tenant_id, k.event_id
), gone AS (
    DELETE FROM core.event_keys f USING due WHERE f.event_id = due.event_id AND f.tenant_id = due.tenant_id
)
SELECT count(*) FROM due`
	return j.trimByKey(ctx, "core.event_keys", sql, j.now(), res)
}

// trimMessages deletes what leads to sends that are gone: the fence of their
// requests, and the providers' ids.
func (j *Job) trimMessages(ctx context.Context, oldest time.Time, res *Result) error {
	const keys = `WITH due AS (SELECT k.request_id, k.tenant_id FROM messaging.request_keys k WHERE k.received_at < $1 LIMIT $2), gone AS (
    DELETE FROM messaging.request_keys k USING due WHERE k.request_id = due.request_id AND k.tenant_id = due.tenant_id
)
SELECT count(*) FROM due`
	// A month more than the send's class: a leaf goes once all of it is due.
	const ids = `WITH due AS (SELECT m.provider_message_id, m.provider FROM messaging.provider_messages m
    WHERE m.sent_at < $1 AND m.sent_at < $1 - make_interval(months => m.retention_months + 1) LIMIT $2), gone AS (
    DELETE FROM messaging.provider_messages m USING due WHERE m.provider_message_id = due.provider_message_id AND m.provider = due.provider
)
SELECT count(*) FROM due`
	return errors.Join(j.trimByKey(ctx, "messaging.request_keys", keys, oldest, res), j.trimByKey(ctx, "messaging.provider_messages", ids, j.now(), res))
}

// trimDeadLetters deletes those that somebody has replayed or let go long ago.
func (j *Job) trimDeadLetters(ctx context.Context, res *Result) error {
	const sql = `WITH due AS (SELECT d.dead_letter_id FROM core.dead_letters d WHERE d.status <> 'open' AND d.status_at < $1 ORDER BY d.status_at LIMIT $2), gone AS (
    DELETE FROM core.dead_letters d USING due WHERE d.dead_letter_id = due.dead_letter_id
)
SELECT count(*) FROM due`
	return j.trimByKey(ctx, "core.dead_letters", sql, j.now().Add(-j.cfg.DeadLettersKept), res)
}

// trimByKey runs a statement that deletes a page of rows by their keys, and
// counts them, until there are no more.
func (j *Job) trimByKey(ctx context.Context, what, sql string, before time.Time, res *Result) error {
	err := j.paged(ctx, what, res, func() (n int64, err error) {
		err = pgx.BeginFunc(ctx, j.deps.Pool, func(tx pgx.Tx) error {
			// The whole table must never be read for a page of it.
			if _, err := tx.Exec(ctx, `SELECT set_config('enable_hashjoin', 'off', true), set_config('enable_mergejoin', 'off', true)`); err != nil {
				return err
			}
			return tx.QueryRow(ctx, sql, before, j.cfg.Page).Scan(&n)
		})
		return n, err
	})
	if err != nil {
		return fmt.Errorf("trim %s: %w", what, err)
	}
	return nil
}

// trimTenant deletes what a tenant could look up until its horizon.
func (j *Job) trimTenant(ctx context.Context, db *processordb.Queries, tenant uuid.UUID, before time.Time, res *Result) error {
	page := int64(j.cfg.Page)
	err := errors.Join(
		j.paged(ctx, "core.warnings", res, func() (int64, error) {
			return db.DeleteWarnings(ctx, processordb.DeleteWarningsParams{TenantID: tenant, Before: before, Page: page})
		}),
		j.paged(ctx, "core.idempotency_conflicts", res, func() (int64, error) {
			return db.DeleteConflicts(ctx, processordb.DeleteConflictsParams{TenantID: tenant, Before: before, Page: page})
		}),
		j.trimBlasts(ctx, db, tenant, before, res),
	)
	if err != nil {
		return fmt.Errorf("trim what tenant %s can look up: %w", tenant, err)
	}
	return nil
}

// trimBlasts removes the recipients of blasts that ended before an instant. The
// blasts stay, with their counts.
func (j *Job) trimBlasts(ctx context.Context, db *processordb.Queries, tenant uuid.UUID, before time.Time, res *Result) error {
	old, err := db.OldBlasts(ctx, processordb.OldBlastsParams{TenantID: tenant, Before: &before})
	if err != nil {
		return fmt.Errorf("look for old blasts: %w", err)
	}
	for _, id := range old {
		if err := db.KeepUnsubscribed(ctx, id); err != nil { // its recipients are about to go
			return fmt.Errorf("keep the counts of blast %s: %w", id, err)
		}
		err := db.DeleteUploads(ctx, id) // first: a blast without recipients is not looked at again
		if err == nil {
			err = j.paged(ctx, "messaging.blast_recipients", res, func() (int64, error) {
				return db.DeleteRecipients(ctx, processordb.DeleteRecipientsParams{BlastID: id, Page: int64(j.cfg.Page)})
			})
		}
		if err != nil {
			return fmt.Errorf("remove the recipients of blast %s: %w", id, err)
		}
	}
	return nil
}

// paged deletes until a page is not full.
func (j *Job) paged(ctx context.Context, what string, res *Result, next func() (int64, error)) error {
	for {
		n, err := next()
		if n > 0 {
			res.Trimmed[what] += n
		}
		if err != nil || n < int64(j.cfg.Page) {
			return err
		}
		if err := ctx.Err(); err != nil {
			return err
		}
	}
}
