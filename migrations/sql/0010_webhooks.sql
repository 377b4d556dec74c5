-- +goose Up
CREATE TABLE core.webhook_endpoints (
    endpoint_id     uuid PRIMARY KEY,
    tenant_id       uuid NOT NULL REFERENCES core.tenants,
    url             text NOT NULL,
    description     text NOT NULL DEFAULT '',
    event_types     text[] NOT NULL,
    delivery        text NOT NULL DEFAULT 'single' CHECK (delivery IN ('single', 'batch')),
    secrets         jsonb NOT NULL,
    headers         bytea,
    filter          text,
    disabled_at     timestamptz,
    disabled_reason text,
    failing_since   timestamptz,
    last_failed_at  timestamptz,
    created_at      timestamptz NOT NULL DEFAULT now(),
    updated_at      timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX webhook_endpoints_tenant ON core.webhook_endpoints (tenant_id);
CREATE TRIGGER webhook_endpoints_changed AFTER INSERT OR UPDATE OR DELETE ON core.webhook_endpoints
    FOR EACH STATEMENT EXECUTE FUNCTION core.notify_config();
COMMENT ON TABLE core.webhook_endpoints IS 'Where a tenant hears of its stream. Secrets and headers are encrypted.';
COMMENT ON COLUMN core.webhook_endpoints.secrets IS '[{"sealed": base64, "until": time or null}]: several during a rotation.';
COMMENT ON COLUMN core.webhook_endpoints.failing_since IS 'First failure after the last success. It begins anew after a gap without attempts, so that no outage of ours counts.';

CREATE TABLE core.webhook_deliveries (
    created_at   timestamptz NOT NULL,
    delivery_id  uuid NOT NULL,
    endpoint_id  uuid NOT NULL,
    tenant_id    uuid NOT NULL,
    order_key    text NOT NULL,
    seq          bigint NOT NULL,
    event_type   text NOT NULL,
    event_id     uuid NOT NULL,
    body         bytea NOT NULL,
    state        text NOT NULL CHECK (state IN ('pending', 'delivered', 'failed', 'cancelled')),
    attempts     integer NOT NULL DEFAULT 0,
    next_attempt timestamptz,
    lease        uuid,
    lease_until  timestamptz,
    delivered_at timestamptz,
    last_error   text,
    PRIMARY KEY (created_at, delivery_id)
) PARTITION BY RANGE (created_at);
CREATE INDEX webhook_deliveries_due ON core.webhook_deliveries (endpoint_id, next_attempt) WHERE state = 'pending';
CREATE INDEX webhook_deliveries_order ON core.webhook_deliveries (order_key, seq) WHERE state = 'pending';
CREATE INDEX webhook_deliveries_event ON core.webhook_deliveries (tenant_id, event_id);
COMMENT ON TABLE core.webhook_deliveries IS 'One event to one endpoint; the id is derived from both, so a repeated record is the same delivery. By day.';
COMMENT ON COLUMN core.webhook_deliveries.created_at IS 'When the event was received, to the millisecond, as the delivery_id begins: the same for every repetition.';
COMMENT ON COLUMN core.webhook_deliveries.order_key IS 'Hash of the endpoint and the contact, or the send: rows of one key are delivered in order.';
COMMENT ON COLUMN core.webhook_deliveries.seq IS 'Place among the rows of an order_key: the record''s offset.';
COMMENT ON COLUMN core.webhook_deliveries.next_attempt IS 'Null while it waits behind an earlier row of its order_key; of a failed one, when it was given up.';
INSERT INTO core.partitioned_tables VALUES ('core.webhook_deliveries', 'day', 8, 3, false);

CREATE TABLE core.webhook_attempts (
    at          timestamptz NOT NULL DEFAULT now(),
    delivery_id uuid NOT NULL,
    endpoint_id uuid NOT NULL,
    tenant_id   uuid NOT NULL,
    event_id    uuid NOT NULL,
    event_type  text NOT NULL,
    attempt     integer NOT NULL,
    status      integer,
    class       text NOT NULL,
    duration_ms integer NOT NULL,
    answer      bytea
) PARTITION BY RANGE (at);
CREATE INDEX webhook_attempts_delivery ON core.webhook_attempts (delivery_id, attempt);
CREATE INDEX webhook_attempts_event ON core.webhook_attempts (tenant_id, event_id);
COMMENT ON TABLE core.webhook_attempts IS 'Every attempt, by day, kept 30 days; at most 1 KB of the answer.';
INSERT INTO core.partitioned_tables VALUES ('core.webhook_attempts', 'day', 1, 3, false);

-- +goose Down
DELETE FROM core.partitioned_tables WHERE parent LIKE 'core.webhook%';
DROP TABLE core.webhook_attempts, core.webhook_deliveries, core.webhook_endpoints;
