-- +goose Up
CREATE TABLE messaging.templates (
    tenant_id   uuid NOT NULL REFERENCES core.tenants,
    template_id text NOT NULL,
    version     integer NOT NULL CHECK (version > 0),
    channel     text NOT NULL,
    subject     text NOT NULL DEFAULT '',
    html        text NOT NULL DEFAULT '',
    text        text NOT NULL DEFAULT '',
    created_at  timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (tenant_id, template_id, version)
);
COMMENT ON TABLE messaging.templates IS 'Liquid templates; a version never changes.';

CREATE TABLE messaging.senders (
    tenant_id    uuid NOT NULL REFERENCES core.tenants,
    channel      text NOT NULL,
    sender       text NOT NULL,
    reply_to     text,
    domain       text NOT NULL DEFAULT '',
    verified     boolean NOT NULL DEFAULT false,
    paused_at    timestamptz,
    pause_reason text,
    PRIMARY KEY (tenant_id, channel)
);
COMMENT ON TABLE messaging.senders IS 'Who a tenant''s messages come from. A sender that the provider refuses is paused; the rail goes on.';

CREATE TABLE messaging.consents (
    tenant_id  uuid NOT NULL,
    contact_id uuid NOT NULL,
    channel    text NOT NULL,
    purpose    text NOT NULL DEFAULT 'marketing',
    granted    boolean NOT NULL,
    source     text NOT NULL,
    changed_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (tenant_id, contact_id, channel, purpose, changed_at)
);
COMMENT ON TABLE messaging.consents IS 'Every change of a consent; the newest counts. Our store is the source of truth (FS-MSG-0005 §6).';

CREATE TABLE messaging.suppressions (
    tenant_id  uuid NOT NULL,
    channel    text NOT NULL,
    address    text NOT NULL,
    reason     text NOT NULL CHECK (reason IN ('hard_bounce', 'complaint', 'unsubscribe', 'manual')),
    send_id    uuid,
    created_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (tenant_id, channel, address)
);
COMMENT ON TABLE messaging.suppressions IS 'Addresses that get nothing more; works by address even when the send is long gone. Nothing removes one silently.';

CREATE TABLE messaging.request_keys (
    tenant_id   uuid NOT NULL,
    request_id  uuid NOT NULL,
    body_hash   bytea NOT NULL,
    received_at timestamptz NOT NULL,
    PRIMARY KEY (request_id, tenant_id)
) PARTITION BY HASH (request_id);
-- +goose StatementBegin
DO $$ BEGIN
    FOR i IN 0..15 LOOP
        EXECUTE format('CREATE TABLE messaging.request_keys_%s PARTITION OF messaging.request_keys FOR VALUES WITH (MODULUS 16, REMAINDER %s)', i, i);
    END LOOP;
END $$;
-- +goose StatementEnd
COMMENT ON TABLE messaging.request_keys IS 'The fence of a notification: keeps the first received_at and body, so that a retry through another replica is the same send.';

CREATE TABLE messaging.decisions (
    received_at     timestamptz NOT NULL,
    tenant_id       uuid NOT NULL,
    request_id      uuid NOT NULL,
    recipient_index integer NOT NULL,
    channel         text NOT NULL,
    contact_id      uuid,
    origin_event_id uuid NOT NULL,
    rule_id         uuid,
    correlation_id  text NOT NULL,
    outcome         text NOT NULL CHECK (outcome IN ('queued', 'blocked')),
    gate            text,
    reason          text,
    send_id         uuid,
    decided_at      timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (received_at, request_id, recipient_index, channel),
    CHECK ((outcome = 'blocked') = (reason IS NOT NULL)),
    CHECK ((outcome = 'queued') = (send_id IS NOT NULL))
) PARTITION BY RANGE (received_at);
CREATE INDEX decisions_origin ON messaging.decisions (tenant_id, origin_event_id);
COMMENT ON TABLE messaging.decisions IS 'What the gates said of each recipient of a request; a blocked message has a reason here and no send (FS-MSG-0003 §1). By month of the request''s first received_at.';
INSERT INTO core.partitioned_tables VALUES ('messaging.decisions', 'month', 1, 3, false);

CREATE TABLE messaging.sends (
    requested_at     timestamptz NOT NULL,
    retention_months smallint NOT NULL,
    tenant_id        uuid NOT NULL,
    send_id          uuid NOT NULL,
    cell_id          text NOT NULL,
    request_id       uuid NOT NULL,
    recipient_index  integer NOT NULL,
    contact_id       uuid NOT NULL,
    channel          text NOT NULL,
    category         text NOT NULL CHECK (category IN ('transactional', 'product', 'marketing')),
    provider         text NOT NULL,
    address          text,
    content          jsonb,
    correlation_id   text NOT NULL,
    origin_event_id  uuid NOT NULL,
    rule_id          uuid,
    blast_id         uuid,
    created_at       timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (requested_at, send_id, retention_months)
) PARTITION BY RANGE (requested_at);
CREATE INDEX sends_origin ON messaging.sends (tenant_id, origin_event_id);
CREATE INDEX sends_time ON messaging.sends (tenant_id, requested_at);
CREATE TABLE messaging.sends_default PARTITION OF messaging.sends DEFAULT;
COMMENT ON TABLE messaging.sends IS 'One row a message, recipient and channel, written when every gate was open. No status column: the status is derived from the history (FS-MSG-0003 §4).';
COMMENT ON COLUMN messaging.sends.content IS 'Template version and variables, or the inline text; nulled when the person is erased.';
INSERT INTO core.partitioned_tables VALUES ('messaging.sends', 'month', 1, 3, true);

-- +goose StatementBegin
CREATE FUNCTION messaging.guard_send() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'UPDATE' AND NEW.content IS NULL AND NEW.address IS NULL
        AND to_jsonb(NEW) - 'content' - 'address' = to_jsonb(OLD) - 'content' - 'address' THEN
        RETURN NEW;
    END IF;
    RAISE EXCEPTION 'messaging.sends is append-only: % refused', TG_OP USING ERRCODE = 'restrict_violation';
END $$;
-- +goose StatementEnd
COMMENT ON FUNCTION messaging.guard_send IS 'Append-only, but for erasure, which nulls content and address together.';
CREATE TRIGGER append_only BEFORE UPDATE OR DELETE ON messaging.sends
    FOR EACH ROW EXECUTE FUNCTION messaging.guard_send();

CREATE TABLE messaging.send_statuses (
    status   text PRIMARY KEY,
    rank     integer NOT NULL UNIQUE,
    terminal boolean NOT NULL,
    event    text
);
INSERT INTO messaging.send_statuses (status, rank, terminal, event) VALUES
    ('queued', 10, false, NULL),
    ('sent', 30, false, 'messaging.message.sent'),
    ('delayed', 35, false, NULL),
    ('soft_bounced', 40, false, 'messaging.message.bounced'),
    ('failed', 45, true, 'messaging.message.failed'),
    ('delivered', 50, true, 'messaging.message.delivered'),
    ('opened', 60, true, 'messaging.message.opened'),
    ('clicked', 70, true, 'messaging.message.clicked'),
    ('bounced', 90, true, 'messaging.message.bounced'),
    ('complained', 100, true, 'messaging.message.complained');
COMMENT ON TABLE messaging.send_statuses IS 'The statuses of a send. The current one is the highest rank in the history, so any order and any duplication gives the same answer.';

CREATE TABLE messaging.send_status_history (
    requested_at      timestamptz NOT NULL,
    retention_months  smallint NOT NULL,
    tenant_id         uuid NOT NULL,
    send_id           uuid NOT NULL,
    status            text NOT NULL REFERENCES messaging.send_statuses,
    provider          text NOT NULL,
    provider_event_id text NOT NULL,
    generation        integer NOT NULL DEFAULT 0,
    occurred_at       timestamptz NOT NULL,
    recorded_at       timestamptz NOT NULL DEFAULT now(),
    arrival           bigint GENERATED ALWAYS AS IDENTITY,
    reason            text,
    detail            jsonb,
    PRIMARY KEY (requested_at, provider, provider_event_id, send_id, retention_months)
) PARTITION BY RANGE (requested_at);
CREATE INDEX send_status_history_send ON messaging.send_status_history (send_id, requested_at);
CREATE TABLE messaging.send_status_history_default PARTITION OF messaging.send_status_history DEFAULT;
CREATE TRIGGER append_only BEFORE UPDATE OR DELETE ON messaging.send_status_history
    FOR EACH ROW EXECUTE FUNCTION core.refuse_change();
COMMENT ON TABLE messaging.send_status_history IS 'What happened to a send, as it arrived; append-only, by month of the send''s own time (FS-MSG-0003 §3, §7).';
COMMENT ON COLUMN messaging.send_status_history.provider_event_id IS 'The provider''s id of the report, or ours (carril:…) for what we write ourselves.';
INSERT INTO core.partitioned_tables VALUES ('messaging.send_status_history', 'month', 1, 3, true);

CREATE TABLE messaging.provider_messages (
    sent_at             timestamptz NOT NULL,
    provider            text NOT NULL,
    provider_message_id text NOT NULL,
    send_id             uuid NOT NULL,
    tenant_id           uuid NOT NULL,
    retention_months    smallint NOT NULL,
    generation          integer NOT NULL,
    PRIMARY KEY (provider_message_id, provider)
);
CREATE INDEX provider_messages_send ON messaging.provider_messages (send_id);
COMMENT ON TABLE messaging.provider_messages IS 'The provider''s id of each accepted message, to find its send.';

CREATE TABLE messaging.unmatched_events (
    provider          text NOT NULL,
    provider_event_id text NOT NULL,
    provider_message_id text,
    send_id           uuid,
    body              bytea NOT NULL,
    received_at       timestamptz NOT NULL,
    tries             integer NOT NULL DEFAULT 0,
    next_try          timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (provider, provider_event_id)
);
CREATE INDEX unmatched_events_message ON messaging.unmatched_events (provider_message_id);
CREATE INDEX unmatched_events_next ON messaging.unmatched_events (next_try);
COMMENT ON TABLE messaging.unmatched_events IS 'Provider events that overtook our own commit, waiting for their send.';

-- +goose Down
DELETE FROM core.partitioned_tables WHERE parent LIKE 'messaging.%';
DROP TABLE messaging.unmatched_events, messaging.provider_messages, messaging.send_status_history, messaging.send_statuses, messaging.sends,
    messaging.decisions, messaging.request_keys, messaging.suppressions, messaging.consents, messaging.senders, messaging.templates;
DROP FUNCTION messaging.guard_send;
