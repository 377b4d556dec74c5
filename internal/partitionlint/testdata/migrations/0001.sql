-- +goose Up
CREATE TABLE core.tracked_events (tenant_id uuid NOT NULL, event_id uuid NOT NULL, contact_id uuid, occurred_at timestamptz NOT NULL) PARTITION BY RANGE (occurred_at);
CREATE TABLE core.event_keys (tenant_id uuid NOT NULL, event_id uuid NOT NULL) PARTITION BY HASH (event_id);
CREATE TABLE core.contacts (tenant_id uuid NOT NULL, contact_id uuid NOT NULL, occurred_at timestamptz);
CREATE VIEW core.purchases AS SELECT e.tenant_id, e.occurred_at AS at FROM core.tracked_events e;

-- +goose Down
DROP VIEW core.purchases;
