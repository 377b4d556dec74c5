-- +goose Up
CREATE TABLE core.exports (
    export_id    uuid PRIMARY KEY,
    tenant_id    uuid NOT NULL REFERENCES core.tenants,
    origin       text NOT NULL CHECK (origin IN ('api', 'operator')),
    request_key  text NOT NULL,
    request_hash bytea NOT NULL,
    from_time    timestamptz NOT NULL,
    to_time      timestamptz NOT NULL CHECK (to_time > from_time),
    format       text NOT NULL CHECK (format IN ('ndjson', 'parquet')),
    compression  text NOT NULL CHECK (compression IN ('zstd', 'gzip')),
    storage      text NOT NULL DEFAULT '',
    state        text NOT NULL DEFAULT 'queued' CHECK (state IN ('queued', 'running', 'done', 'failed', 'expired')),
    progress     real NOT NULL DEFAULT 0 CHECK (progress BETWEEN 0 AND 1),
    rows         bigint NOT NULL DEFAULT 0,
    bytes        bigint NOT NULL DEFAULT 0,
    manifest     text,
    error        text,
    failures     integer NOT NULL DEFAULT 0,
    not_before   timestamptz NOT NULL DEFAULT now(),
    created_at   timestamptz NOT NULL DEFAULT now(),
    updated_at   timestamptz NOT NULL DEFAULT now(),
    finished_at  timestamptz,
    expires_at   timestamptz,
    UNIQUE (tenant_id, origin, request_key)
) WITH (fillfactor = 70);
CREATE INDEX exports_open ON core.exports (updated_at) WHERE state IN ('queued', 'running');
CREATE INDEX exports_time ON core.exports (tenant_id, created_at, export_id);
CREATE INDEX exports_expiry ON core.exports (expires_at) WHERE state IN ('done', 'failed') AND expires_at IS NOT NULL;
COMMENT ON TABLE core.exports IS 'Exports of a tenant''s events on request, made part by part, so that a killed one goes on where it stood.';
COMMENT ON COLUMN core.exports.request_key IS 'The Idempotency-Key of the request, or what stands for the arguments of a command.';
COMMENT ON COLUMN core.exports.storage IS 'Where it goes, without a credential; empty: the platform''s own storage.';
COMMENT ON COLUMN core.exports.failures IS 'Of the part at hand, one after the other; a part that is done starts it anew.';
COMMENT ON COLUMN core.exports.expires_at IS 'When its objects are deleted: they hold personal data, and no erasure rewrites them.';

CREATE TABLE core.export_parts (
    export_id    uuid NOT NULL REFERENCES core.exports ON DELETE CASCADE,
    part         integer NOT NULL CHECK (part > 0),
    from_time    timestamptz NOT NULL,
    to_time      timestamptz NOT NULL CHECK (to_time > from_time),
    made         jsonb,
    rows         bigint,
    bytes        bigint,
    finished_at  timestamptz,
    PRIMARY KEY (export_id, part),
    CHECK ((finished_at IS NULL) = (rows IS NULL) AND (finished_at IS NULL) = (bytes IS NULL))
);
COMMENT ON TABLE core.export_parts IS 'The parts of an export, a month each; one without a finish is still to be made. made is its line of the manifest; a month without an event has none.';

GRANT SELECT, INSERT, UPDATE, DELETE ON core.exports, core.export_parts TO carril_app;
GRANT SELECT ON core.exports, core.export_parts TO carril_readonly;

-- +goose Down
DROP TABLE core.export_parts, core.exports;
