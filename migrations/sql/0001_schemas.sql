-- +goose Up
CREATE SCHEMA core;
CREATE SCHEMA messaging;
COMMENT ON SCHEMA core IS 'Tenants, events, contacts, stream bookkeeping and webhooks.';
COMMENT ON SCHEMA messaging IS 'Templates, requests, rails, sends and their statuses.';

-- +goose Down
DROP SCHEMA messaging CASCADE;
DROP SCHEMA core CASCADE;
