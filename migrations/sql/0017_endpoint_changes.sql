-- +goose Up
CREATE TRIGGER webhook_endpoints_changed AFTER INSERT OR DELETE OR UPDATE OF url, event_types, secrets, headers, disabled_at ON core.webhook_endpoints
    FOR EACH STATEMENT EXECUTE FUNCTION core.notify_config();

-- +goose Down
DROP TRIGGER webhook_endpoints_changed ON core.webhook_endpoints;
