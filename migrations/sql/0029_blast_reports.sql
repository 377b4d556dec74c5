-- +goose Up
CREATE INDEX consents_withdrawn ON messaging.consents (tenant_id, changed_at) WHERE NOT granted;
COMMENT ON INDEX messaging.consents_withdrawn IS 'A blast''s report counts who has unsubscribed since it began.';

-- +goose Down
DROP INDEX messaging.consents_withdrawn;
