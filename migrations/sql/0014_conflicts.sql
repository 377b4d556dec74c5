-- +goose Up
ALTER TABLE core.idempotency_conflicts
    ADD COLUMN kind text NOT NULL DEFAULT 'event' CHECK (kind IN ('event', 'message')),
    ADD COLUMN conflict_id uuid NOT NULL DEFAULT gen_random_uuid();
DROP INDEX core.idempotency_conflicts_time;
CREATE UNIQUE INDEX idempotency_conflicts_time ON core.idempotency_conflicts (tenant_id, recorded_at, conflict_id);
COMMENT ON COLUMN core.idempotency_conflicts.event_id IS 'What the key stands for: an event, or a request for messages where kind says so. The two never share an id.';
COMMENT ON COLUMN core.idempotency_conflicts.conflict_id IS 'Orders the conflicts of one transaction, so that a list can be read page by page.';
DROP INDEX core.warnings_time;
CREATE UNIQUE INDEX warnings_time ON core.warnings (tenant_id, recorded_at, warning_id);

-- +goose Down
DROP INDEX core.warnings_time;
CREATE INDEX warnings_time ON core.warnings (tenant_id, recorded_at);
DROP INDEX core.idempotency_conflicts_time;
ALTER TABLE core.idempotency_conflicts DROP COLUMN conflict_id, DROP COLUMN kind;
CREATE INDEX idempotency_conflicts_time ON core.idempotency_conflicts (tenant_id, recorded_at);
