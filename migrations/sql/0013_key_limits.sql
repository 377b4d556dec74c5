-- +goose Up
ALTER TABLE core.api_keys
    ADD COLUMN events_per_second integer CHECK (events_per_second > 0),
    ADD COLUMN events_burst      integer CHECK (events_burst > 0),
    ADD CONSTRAINT api_keys_limit_is_whole CHECK ((events_per_second IS NULL) = (events_burst IS NULL));
COMMENT ON COLUMN core.api_keys.events_per_second IS 'A limit of the key''s own beside its tenant''s plan (FS-CORE-0006); NULL: none.';

DROP TRIGGER api_keys_changed ON core.api_keys;
CREATE TRIGGER api_keys_changed AFTER UPDATE OF revoked_at, expires_at, scopes, events_per_second, events_burst OR DELETE ON core.api_keys
    FOR EACH ROW EXECUTE FUNCTION core.notify_key();

-- +goose Down
DROP TRIGGER api_keys_changed ON core.api_keys;
CREATE TRIGGER api_keys_changed AFTER UPDATE OF revoked_at, expires_at, scopes OR DELETE ON core.api_keys
    FOR EACH ROW EXECUTE FUNCTION core.notify_key();
ALTER TABLE core.api_keys DROP COLUMN events_per_second, DROP COLUMN events_burst;
