-- +goose Up
CREATE TABLE core.rules (
    tenant_id   uuid NOT NULL REFERENCES core.tenants,
    rule_id     uuid NOT NULL,
    version     integer NOT NULL CHECK (version > 0),
    name        text NOT NULL,
    event_name  text NOT NULL,
    condition   text NOT NULL DEFAULT 'true',
    actions     jsonb NOT NULL CHECK (jsonb_typeof(actions) = 'array'),
    valid_from  timestamptz NOT NULL DEFAULT '-infinity',
    valid_until timestamptz NOT NULL DEFAULT 'infinity',
    enabled     boolean NOT NULL DEFAULT true,
    created_at  timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (tenant_id, rule_id, version)
);
COMMENT ON TABLE core.rules IS 'On an event, if the CEL condition holds, do: points and notify. The newest version of a rule counts.';
COMMENT ON COLUMN core.rules.actions IS '[{"type":"points","points":10}, {"type":"notify","channel":"email","category":"transactional","template_id":"receipt","max_age":"24h"}]';

-- +goose StatementBegin
CREATE FUNCTION core.notify_config() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_notify('carril_config', TG_TABLE_SCHEMA || '.' || TG_TABLE_NAME);
    RETURN NULL;
END $$;
-- +goose StatementEnd
COMMENT ON FUNCTION core.notify_config IS 'Tells every replica that a configuration table changed.';
CREATE TRIGGER rules_changed AFTER INSERT OR UPDATE OR DELETE ON core.rules
    FOR EACH STATEMENT EXECUTE FUNCTION core.notify_config();

CREATE TABLE core.points_ledger (
    tenant_id      uuid NOT NULL,
    event_id       uuid NOT NULL,
    rule_id        uuid NOT NULL,
    contact_id     uuid NOT NULL,
    points         bigint NOT NULL,
    correlation_id text NOT NULL,
    occurred_at    timestamptz NOT NULL,
    entered_at     timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (tenant_id, event_id, rule_id)
);
CREATE INDEX points_ledger_contact ON core.points_ledger (tenant_id, contact_id, entered_at);
CREATE TRIGGER append_only BEFORE UPDATE OR DELETE ON core.points_ledger
    FOR EACH ROW EXECUTE FUNCTION core.refuse_change();
COMMENT ON TABLE core.points_ledger IS 'Append-only; one entry an event and rule is the fence against giving points twice.';

CREATE TABLE core.points_balances (
    tenant_id  uuid NOT NULL,
    contact_id uuid NOT NULL,
    balance    bigint NOT NULL,
    PRIMARY KEY (tenant_id, contact_id)
) WITH (fillfactor = 70);
COMMENT ON TABLE core.points_balances IS 'Sum of the ledger a contact, kept in the same transaction.';

-- +goose Down
DROP TABLE core.points_balances, core.points_ledger, core.rules;
DROP FUNCTION core.notify_config;
