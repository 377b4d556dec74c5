-- Detached tables that are not dropped, the oldest first: what a run takes up
-- again. Sends come before the histories that say what became of them.
-- name: OpenLeaves :many
SELECT * FROM core.retention_ledger WHERE state <> 'dropped' ORDER BY lower_bound, retention_months, parent = 'messaging.send_status_history', parent;

-- One of the ledger, whatever its state.
-- name: OpenLeaf :one
SELECT * FROM core.retention_ledger WHERE run_id = @run_id;

-- What went last.
-- name: RecentLeaves :many
SELECT * FROM core.retention_ledger WHERE state = 'dropped' ORDER BY dropped_at DESC, run_id LIMIT sqlc.arg(max_rows)::bigint;

-- Moves what grown plans keep into its longer class; voids an export.
-- name: MoveGrown :one
SELECT core.move_grown(@run_id, @at)::bigint AS moved;

-- Whether there is any.
-- name: HasGrown :one
SELECT core.has_grown(@run_id, @at)::boolean AS grown;

-- Keeps what the exporter wrote; no row where another has written since.
-- name: LeafExported :execrows
UPDATE core.retention_ledger SET state = 'exported', object = @object, rows = @rows, sha256 = @sha256, exported_at = @at, trouble = NULL
WHERE run_id = @run_id AND export_run = @export_run AND state = 'detached';

-- Notes that the stored objects hold what was exported.
-- name: LeafVerified :execrows
UPDATE core.retention_ledger SET state = 'verified', trouble = NULL WHERE run_id = @run_id AND export_run = @export_run AND state = 'exported';

-- Makes an export void: its table has changed, or what was stored is not what was
-- exported. The next one has a run, and so objects, of its own.
-- name: ExportAgain :execrows
UPDATE core.retention_ledger SET state = 'detached', superseded = superseded || object, object = NULL, rows = NULL, sha256 = NULL,
    export_run = gen_random_uuid(), trouble = @trouble
WHERE run_id = @run_id AND export_run = @export_run AND state IN ('exported', 'verified');

-- Notes why a step did not come about.
-- name: LeafTrouble :exec
UPDATE core.retention_ledger SET trouble = @trouble WHERE run_id = @run_id AND state <> 'dropped';

-- Keeps everybody away from a verified table until the transaction ends.
-- name: LockDetached :exec
SELECT core.lock_detached(@run_id);

-- How many of its events no relay has passed.
-- name: DetachedUnpublished :one
SELECT core.detached_unpublished(@run_id)::bigint AS n;

-- Counts, notes its fence rows, drops it and closes its ledger row.
-- name: DropDetached :exec
SELECT core.drop_detached(@run_id, @topic_retention, @at);

-- The lanes of events.
-- name: EventLanes :many
SELECT lane FROM core.outbox_lanes WHERE store = 'events' ORDER BY lane;

-- Deletes the oldest spans of a lane that lead nowhere any more, at most a page.
-- name: TrimSpans :one
SELECT core.trim_spans(@lane, @page)::bigint AS trimmed;

-- Tenants with how long their plan keeps what they can look up.
-- name: TenantHorizons :many
SELECT t.tenant_id, p.retention_months FROM core.tenants t JOIN core.plans p USING (plan_id) ORDER BY t.tenant_id;

-- Deletes a page of a tenant's warnings.
-- name: DeleteWarnings :execrows
DELETE FROM core.warnings w WHERE w.tenant_id = @tenant_id AND w.warning_id = ANY (ARRAY(
    SELECT o.warning_id FROM core.warnings o WHERE o.tenant_id = @tenant_id AND o.recorded_at < @before ORDER BY o.recorded_at LIMIT sqlc.arg(page)::bigint));

-- Deletes a page of a tenant's key conflicts.
-- name: DeleteConflicts :execrows
DELETE FROM core.idempotency_conflicts c WHERE c.tenant_id = @tenant_id AND c.recorded_at < @before AND c.conflict_id = ANY (ARRAY(
    SELECT o.conflict_id FROM core.idempotency_conflicts o WHERE o.tenant_id = @tenant_id AND o.recorded_at < @before ORDER BY o.recorded_at LIMIT sqlc.arg(page)::bigint));

-- A tenant's blasts that ended before an instant and still have recipients.
-- name: OldBlasts :many
SELECT b.blast_id FROM messaging.blasts b WHERE b.tenant_id = @tenant_id AND b.state IN ('done', 'cancelled') AND b.finished_at < @before
    AND EXISTS (SELECT FROM messaging.blast_recipients r WHERE r.blast_id = b.blast_id) ORDER BY b.finished_at;

-- Notes how many recipients of a blast have unsubscribed, before they go.
-- name: KeepUnsubscribed :exec
UPDATE messaging.blasts b SET unsubscribed = messaging.blast_unsubscribed(b.blast_id) WHERE b.blast_id = @blast_id AND b.unsubscribed IS NULL;

-- Deletes a page of a blast's recipients.
-- name: DeleteRecipients :execrows
DELETE FROM messaging.blast_recipients r WHERE r.blast_id = @blast_id AND r.position = ANY (ARRAY(
    SELECT o.position FROM messaging.blast_recipients o WHERE o.blast_id = @blast_id ORDER BY o.position LIMIT sqlc.arg(page)::bigint));

-- Deletes the uploads of a blast, with what was refused of them.
-- name: DeleteUploads :exec
WITH refused AS (DELETE FROM messaging.blast_upload_rows r WHERE r.blast_id = @blast_id)
DELETE FROM messaging.blast_uploads u WHERE u.blast_id = @blast_id;

-- Exports that stand for nothing any more, since rows changed after them.
-- name: SupersededExports :many
SELECT run_id, unnest(superseded)::text AS manifest FROM core.retention_ledger WHERE superseded <> '{}' ORDER BY run_id;

-- That such an export is no more.
-- name: ForgetExport :exec
UPDATE core.retention_ledger SET superseded = array_remove(superseded, sqlc.arg(manifest)::text) WHERE run_id = @run_id;

-- Every export that there is of leaves, those that stand for nothing too.
-- name: LeafExports :many
SELECT parent, object::text AS manifest FROM core.retention_ledger WHERE object IS NOT NULL
UNION ALL
SELECT parent, unnest(superseded)::text FROM core.retention_ledger WHERE superseded <> '{}'
ORDER BY 2;
