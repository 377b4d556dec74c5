-- +goose Up
CREATE TABLE core.plans (
    plan_id           text PRIMARY KEY,
    retention_months  smallint NOT NULL CHECK (retention_months >= 1),
    events_per_second integer NOT NULL CHECK (events_per_second > 0),
    events_burst      integer NOT NULL CHECK (events_burst > 0),
    created_at        timestamptz NOT NULL DEFAULT now()
);
COMMENT ON TABLE core.plans IS 'What a tenant pays for: retention class in months (13, 25, 37 or longer, FS-CORE-0006 §9) and rate limits in events.';
INSERT INTO core.plans (plan_id, retention_months, events_per_second, events_burst) VALUES
    ('starter', 13, 200, 400), ('growth', 25, 1000, 2000), ('scale', 37, 5000, 10000);

CREATE TABLE core.tenants (
    tenant_id                uuid PRIMARY KEY,
    slug                     text NOT NULL UNIQUE CHECK (slug ~ '^[a-z0-9][a-z0-9-]{0,62}$'),
    name                     text NOT NULL,
    cell_id                  text NOT NULL DEFAULT 'cell-1',
    plan_id                  text NOT NULL REFERENCES core.plans,
    clock_policy             text NOT NULL DEFAULT 'reject' CHECK (clock_policy IN ('reject', 'clamp')),
    anonymous_retention_days integer CHECK (anonymous_retention_days > 0),
    disabled_at              timestamptz,
    created_at               timestamptz NOT NULL DEFAULT now()
);
COMMENT ON TABLE core.tenants IS 'A customer of the platform. cell_id is the shard it lives in and is stamped on every row and record.';
COMMENT ON COLUMN core.tenants.clock_policy IS 'What happens to an occurred_at outside the accepted window: reject with 422, or clamp and keep the claim beside it.';

CREATE TABLE core.api_keys (
    key_id       text PRIMARY KEY,
    tenant_id    uuid REFERENCES core.tenants,
    secret_hash  bytea NOT NULL CHECK (octet_length(secret_hash) = 32),
    scopes       text[] NOT NULL,
    name         text NOT NULL DEFAULT '',
    env          text NOT NULL,
    created_at   timestamptz NOT NULL DEFAULT now(),
    expires_at   timestamptz,
    revoked_at   timestamptz,
    last_used_at timestamptz
);
CREATE INDEX api_keys_tenant ON core.api_keys (tenant_id);
COMMENT ON TABLE core.api_keys IS 'API keys; only the SHA-256 of the secret is kept. A key without a tenant is an operator''s.';

-- +goose StatementBegin
CREATE FUNCTION core.notify_key() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_notify('carril_keys', coalesce(NEW.key_id, OLD.key_id));
    RETURN NULL;
END $$;
-- +goose StatementEnd
CREATE TRIGGER api_keys_changed AFTER UPDATE OF revoked_at, expires_at, scopes OR DELETE ON core.api_keys
    FOR EACH ROW EXECUTE FUNCTION core.notify_key();
COMMENT ON FUNCTION core.notify_key IS 'Tells every replica to drop a key from its cache at once.';

CREATE TABLE core.taxonomy_schemas (
    tenant_id  uuid NOT NULL REFERENCES core.tenants,
    event_name text NOT NULL,
    version    integer NOT NULL CHECK (version > 0),
    mode       text NOT NULL CHECK (mode IN ('enforce', 'observe')),
    schema     jsonb NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (tenant_id, event_name, version)
);
COMMENT ON TABLE core.taxonomy_schemas IS 'JSON Schemas that a tenant installed for its events (FS-CORE-0006 §8).';

CREATE TABLE core.leases (
    name   text PRIMARY KEY,
    holder text NOT NULL,
    epoch  bigint NOT NULL,
    until  timestamptz NOT NULL
);
COMMENT ON TABLE core.leases IS 'One active of N: who may run a maintenance job until when, by the database''s clock.';

-- +goose Down
DROP TABLE core.leases, core.taxonomy_schemas, core.api_keys, core.tenants, core.plans CASCADE;
DROP FUNCTION core.notify_key;
