-- +goose Up
CREATE TABLE messaging.rate_limit_buckets (
    scope             text NOT NULL CHECK (scope IN ('global', 'tenant')),
    provider          text NOT NULL,
    tenant_id         uuid,
    rail              text CHECK (rail IN ('transactional', 'marketing')),
    capacity          double precision NOT NULL CHECK (capacity >= 1),
    refill_per_second double precision NOT NULL CHECK (refill_per_second > 0),
    updated_at        timestamptz NOT NULL DEFAULT now(),
    CHECK (scope = 'tenant' OR tenant_id IS NULL),
    UNIQUE NULLS NOT DISTINCT (scope, provider, tenant_id, rail)
);
CREATE TRIGGER rate_limit_buckets_changed AFTER INSERT OR UPDATE OR DELETE ON messaging.rate_limit_buckets
    FOR EACH STATEMENT EXECUTE FUNCTION core.notify_config();
COMMENT ON TABLE messaging.rate_limit_buckets IS 'Configuration only; the live counters stand in Redis (FS-MSG-0005). A tenant bucket without a tenant is the default of all tenants.';

CREATE TABLE messaging.send_requests (
    created_at      timestamptz NOT NULL DEFAULT now(),
    worker          text NOT NULL,
    job_id          uuid NOT NULL,
    id_time         timestamptz NOT NULL,
    generation      integer NOT NULL,
    provider        text NOT NULL,
    endpoint        text NOT NULL,
    idempotency_key text NOT NULL,
    body            bytea NOT NULL,
    send_ids        uuid[] NOT NULL,
    lease           uuid NOT NULL,
    attempts        integer NOT NULL DEFAULT 0,
    uncertain       boolean NOT NULL DEFAULT false,
    settled         text CHECK (settled IN ('taken', 'refused')),
    PRIMARY KEY (created_at, job_id, generation)
) PARTITION BY RANGE (created_at);
CREATE INDEX send_requests_job ON messaging.send_requests (job_id, generation);
COMMENT ON TABLE messaging.send_requests IS 'The frozen bytes (zstd) and key of each generation of a job, stored before they leave; by day, dropped when the provider''s key life is over.';
COMMENT ON COLUMN messaging.send_requests.uncertain IS 'One attempt under this key may have been taken; it stays so until an answer under the same key or a provider event settles it.';
INSERT INTO core.partitioned_tables VALUES ('messaging.send_requests', 'day', 2, 3, false);

CREATE TABLE messaging.tenant_rails (
    tenant_id uuid NOT NULL,
    channel   text NOT NULL,
    rail      text NOT NULL,
    paused_at timestamptz,
    paused_by text,
    PRIMARY KEY (tenant_id, channel, rail)
);
COMMENT ON TABLE messaging.tenant_rails IS 'The row that enqueue and release lock, so that a credit given back is never lost on a waiting job.';

CREATE TABLE messaging.blasts (
    blast_id       uuid PRIMARY KEY,
    tenant_id      uuid NOT NULL REFERENCES core.tenants,
    channel        text NOT NULL,
    name           text NOT NULL,
    template_id    text NOT NULL,
    template_version integer NOT NULL,
    variables      jsonb NOT NULL DEFAULT '{}',
    state          text NOT NULL CHECK (state IN ('draft', 'scheduled', 'running', 'paused', 'cancelled', 'done')),
    state_reason   text,
    start_at       timestamptz,
    recipients     bigint NOT NULL DEFAULT 0,
    fed            bigint NOT NULL DEFAULT 0,
    origin_event_id uuid NOT NULL,
    correlation_id text NOT NULL,
    created_at     timestamptz NOT NULL DEFAULT now(),
    updated_at     timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX blasts_tenant ON messaging.blasts (tenant_id, created_at);
COMMENT ON TABLE messaging.blasts IS 'A marketing campaign: sent + failed + expired + blocked + cancelled + needs_review + dead + pending = recipients, always.';

CREATE TABLE messaging.blast_recipients (
    blast_id   uuid NOT NULL REFERENCES messaging.blasts,
    position   bigint NOT NULL,
    contact_id uuid,
    address    text NOT NULL,
    variables  jsonb NOT NULL DEFAULT '{}',
    job_id     uuid,
    outcome    text,
    PRIMARY KEY (blast_id, position),
    UNIQUE (blast_id, address)
);
COMMENT ON TABLE messaging.blast_recipients IS 'Who a blast goes to, each address once.';

CREATE TABLE messaging.marketing_queue (
    tenant_id   uuid NOT NULL,
    channel     text NOT NULL,
    send_id     uuid NOT NULL,
    payload     jsonb NOT NULL,
    created_at  timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (tenant_id, channel, send_id)
);
COMMENT ON TABLE messaging.marketing_queue IS 'Marketing notifications that rules and the API caused, until the feeder freezes them into batches.';

CREATE TABLE messaging.gate_policies (
    tenant_id  uuid NOT NULL,
    type       text NOT NULL,
    mode       text NOT NULL CHECK (mode IN ('open', 'manual')),
    policy     jsonb NOT NULL,
    changed_by text NOT NULL,
    changed_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (tenant_id, type)
);
COMMENT ON TABLE messaging.gate_policies IS 'Controlled sending (PDF-012G): which tenants and types send by hand, with allowlist and windows.';

CREATE TABLE messaging.gate_events (
    event_id        uuid PRIMARY KEY,
    notification_id uuid NOT NULL,
    tenant_id       uuid NOT NULL,
    state           text NOT NULL CHECK (state IN ('READY_BLOCKED', 'SEND_ELIGIBLE_BUT_BLOCKED', 'SEND_APPROVED_MANUAL', 'SENT', 'FAILED', 'RETRY_BLOCKED', 'ALREADY_SENT_BLOCKED')),
    error_code      text,
    actor           text NOT NULL,
    detail          jsonb NOT NULL DEFAULT '{}',
    at              timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX gate_events_notification ON messaging.gate_events (notification_id, at);
CREATE TRIGGER append_only BEFORE UPDATE OR DELETE ON messaging.gate_events
    FOR EACH ROW EXECUTE FUNCTION core.refuse_change();
COMMENT ON TABLE messaging.gate_events IS 'Every change of a held notification''s state, append-only (PDF-012G).';

-- +goose Down
DELETE FROM core.partitioned_tables WHERE parent = 'messaging.send_requests';
DROP TABLE messaging.gate_events, messaging.gate_policies, messaging.marketing_queue, messaging.blast_recipients, messaging.blasts,
    messaging.tenant_rails, messaging.send_requests, messaging.rate_limit_buckets;
