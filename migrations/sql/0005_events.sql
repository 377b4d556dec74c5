-- +goose Up
CREATE TABLE core.event_keys (
    tenant_id   uuid NOT NULL,
    event_id    uuid NOT NULL,
    body_hash   bytea NOT NULL,
    occurred_at timestamptz NOT NULL,
    received_at timestamptz NOT NULL,
    PRIMARY KEY (event_id, tenant_id)
) PARTITION BY HASH (event_id);
-- +goose StatementBegin
DO $$ BEGIN
    FOR i IN 0..15 LOOP
        EXECUTE format('CREATE TABLE core.event_keys_%s PARTITION OF core.event_keys FOR VALUES WITH (MODULUS 16, REMAINDER %s)', i, i);
    END LOOP;
END $$;
-- +goose StatementEnd
COMMENT ON TABLE core.event_keys IS 'The storage fence of FS-CORE-0006 §3: one row a tenant''s idempotency key, whatever month its event lies in. event_id is derived from tenant and key.';
COMMENT ON COLUMN core.event_keys.body_hash IS 'Of the first body; another body under the same key is a conflict, not an event.';

CREATE TABLE core.tracked_events (
    tenant_id        uuid NOT NULL,
    event_id         uuid NOT NULL,
    cell_id          text NOT NULL,
    contact_id       uuid NOT NULL,
    kind             text NOT NULL CHECK (kind IN ('track', 'identify', 'platform')),
    event_name       text NOT NULL,
    properties       jsonb NOT NULL,
    occurred_at      timestamptz NOT NULL,
    occurred_offset  integer NOT NULL,
    occurred_claimed timestamptz,
    received_at      timestamptz NOT NULL,
    idempotency_key  text NOT NULL,
    correlation_id   text NOT NULL,
    retention_months smallint NOT NULL,
    historical       boolean NOT NULL DEFAULT false,
    lane             integer NOT NULL,
    lane_seq         bigint NOT NULL
) PARTITION BY RANGE (occurred_at);
CREATE INDEX tracked_events_lane ON core.tracked_events (tenant_id, lane, lane_seq);
CREATE INDEX tracked_events_time ON core.tracked_events (tenant_id, occurred_at);
CREATE TABLE core.tracked_events_default PARTITION OF core.tracked_events DEFAULT;
COMMENT ON TABLE core.tracked_events IS 'Every event, append-only, by month of occurred_at and retention class (FS-CORE-0006 §7). Every query carries a time predicate. An event is found by its id through core.event_keys.';
COMMENT ON COLUMN core.tracked_events.occurred_offset IS 'The caller''s UTC offset, in seconds east.';
COMMENT ON COLUMN core.tracked_events.lane IS 'Outbox lane: events are their own outbox.';
COMMENT ON TABLE core.tracked_events_default IS 'Must stay empty; any row here is an alarm.';
INSERT INTO core.partitioned_tables VALUES ('core.tracked_events', 'month', 1, 3, true);

-- +goose StatementBegin
CREATE FUNCTION core.guard_tracked_event() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'UPDATE' AND current_user = 'carril_eraser'
        AND NEW.properties = '{}'::jsonb
        AND to_jsonb(NEW) - 'properties' - 'idempotency_key' = to_jsonb(OLD) - 'properties' - 'idempotency_key' THEN
        RETURN NEW;
    END IF;
    RAISE EXCEPTION 'core.tracked_events is append-only: % refused', TG_OP USING ERRCODE = 'restrict_violation';
END $$;
-- +goose StatementEnd
COMMENT ON FUNCTION core.guard_tracked_event IS 'Append-only, but for the role carril_eraser, which may empty the properties of an erased person and nothing else.';
CREATE TRIGGER append_only BEFORE UPDATE OR DELETE ON core.tracked_events
    FOR EACH ROW EXECUTE FUNCTION core.guard_tracked_event();

CREATE TABLE core.idempotency_conflicts (
    tenant_id   uuid NOT NULL,
    event_id    uuid NOT NULL,
    body_hash   bytea NOT NULL,
    received_at timestamptz NOT NULL,
    recorded_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (tenant_id, event_id, body_hash)
);
CREATE INDEX idempotency_conflicts_time ON core.idempotency_conflicts (tenant_id, recorded_at);
COMMENT ON TABLE core.idempotency_conflicts IS 'The same key with another body: answered with the original id, never a second effect, and shown to the tenant.';

CREATE TABLE core.warnings (
    tenant_id   uuid NOT NULL,
    warning_id  uuid NOT NULL,
    event_id    uuid,
    kind        text NOT NULL,
    detail      jsonb NOT NULL,
    recorded_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (tenant_id, warning_id)
);
CREATE INDEX warnings_time ON core.warnings (tenant_id, recorded_at);
COMMENT ON TABLE core.warnings IS 'What a tenant should know of its accepted events: refused identifiers, taxonomy violations, capped traits.';

CREATE TABLE core.monthly_counts (
    tenant_id  uuid NOT NULL,
    month      date NOT NULL,
    source     text NOT NULL CHECK (source IN ('events', 'sends')),
    name       text NOT NULL,
    status     text NOT NULL DEFAULT '',
    count      bigint NOT NULL,
    PRIMARY KEY (tenant_id, month, source, name, status)
);
COMMENT ON TABLE core.monthly_counts IS 'Counts that stay when partitions go (FS-MSG-0003 §7).';

CREATE TABLE core.retention_ledger (
    run_id        uuid PRIMARY KEY,
    parent        text NOT NULL,
    leaf          text NOT NULL,
    leaf_oid      oid NOT NULL,
    lower_bound   timestamptz NOT NULL,
    upper_bound   timestamptz NOT NULL,
    retention_months smallint NOT NULL,
    state         text NOT NULL CHECK (state IN ('detached', 'exported', 'verified', 'dropped')),
    rows          bigint,
    object        text,
    sha256        bytea,
    detached_at   timestamptz NOT NULL DEFAULT now(),
    dropped_at    timestamptz
);
CREATE INDEX retention_ledger_open ON core.retention_ledger (parent) WHERE state <> 'dropped';
COMMENT ON TABLE core.retention_ledger IS 'Every leaf on its way out: detached, exported, read back and verified, dropped (FS-CORE-0006 §9). What is detached and not dropped is still read.';

-- +goose Down
DELETE FROM core.partitioned_tables WHERE parent = 'core.tracked_events';
DROP TABLE core.retention_ledger, core.monthly_counts, core.warnings, core.idempotency_conflicts, core.tracked_events, core.event_keys;
DROP FUNCTION core.guard_tracked_event;
