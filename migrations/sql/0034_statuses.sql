-- +goose Up
-- Two statuses are written when a message leaves, and two when its provider reports of
-- it. A foreign key asked for each by a statement of its own and locked the one row
-- that all of a blast's refer to. There are ten statuses, which the program knows by
-- name: a check of the row says the same for nothing, in a leaf that is written by
-- itself too. What stands there the key has looked at, so nothing is read again.
ALTER TABLE messaging.send_status_history DROP CONSTRAINT send_status_history_status_fkey;
ALTER TABLE messaging.send_status_history ADD CONSTRAINT status_known CHECK (status IN
    ('queued', 'sent', 'delayed', 'soft_bounced', 'failed', 'delivered', 'opened', 'clicked', 'bounced', 'complained')) NOT VALID;
COMMENT ON CONSTRAINT status_known ON messaging.send_status_history IS 'A row of messaging.send_statuses: another status comes with another check.';
CREATE TRIGGER append_only BEFORE UPDATE OF status OR DELETE OR TRUNCATE ON messaging.send_statuses
    FOR EACH STATEMENT EXECUTE FUNCTION core.refuse_change();

-- +goose Down
DROP TRIGGER append_only ON messaging.send_statuses;
ALTER TABLE messaging.send_status_history DROP CONSTRAINT status_known;
ALTER TABLE messaging.send_status_history ADD CONSTRAINT send_status_history_status_fkey FOREIGN KEY (status) REFERENCES messaging.send_statuses;
