-- +goose Up
CREATE TABLE messaging.suppression_lifts (
    tenant_id    uuid NOT NULL,
    channel      text NOT NULL,
    address_hash bytea NOT NULL,
    reason       text NOT NULL,
    because      text NOT NULL CHECK (because IN ('address_fixed', 'consent_given', 'mistake')),
    lifted_by    text NOT NULL,
    lifted_at    timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (tenant_id, channel, address_hash, lifted_at)
);
COMMENT ON TABLE messaging.suppression_lifts IS 'Every suppression that was taken away, by whom and why; the address as a hash alone.';
COMMENT ON COLUMN messaging.suppression_lifts.lifted_by IS 'The id of the key, or cli.';
GRANT SELECT, INSERT, DELETE ON messaging.suppression_lifts TO carril_app;
GRANT SELECT ON messaging.suppression_lifts TO carril_readonly;
CREATE INDEX suppressions_time ON messaging.suppressions (tenant_id, created_at);
ALTER TABLE messaging.senders ADD COLUMN changed_at timestamptz NOT NULL DEFAULT now();
COMMENT ON COLUMN messaging.senders.verified IS 'The domain is the tenant''s, as an operator has seen at the provider; another domain must be seen anew. Nothing is sent before.';

-- +goose Down
ALTER TABLE messaging.senders DROP COLUMN changed_at;
DROP INDEX messaging.suppressions_time;
DROP TABLE messaging.suppression_lifts;
