-- +goose Up
-- What waits has its place in the line in not_before, which the index of open jobs
-- keeps; what came before has none, and would stay behind all that comes.
UPDATE core.processed_jobs SET not_before = id_time WHERE id_time > now() - interval '40 days' AND state = 'waiting' AND not_before IS NULL;

-- What is written for every message and was never removed. The rows stand about
-- in the order of their time, so that a summary of each range of pages finds the
-- old ones, and costs a write next to nothing.
CREATE INDEX request_keys_received ON messaging.request_keys USING brin (received_at) WITH (autosummarize = on);
CREATE INDEX provider_messages_sent ON messaging.provider_messages USING brin (sent_at) WITH (autosummarize = on);
CREATE INDEX dead_letters_closed ON core.dead_letters (status_at) WHERE status <> 'open';

ALTER TABLE messaging.blasts ADD COLUMN unsubscribed bigint;
COMMENT ON COLUMN messaging.blasts.unsubscribed IS 'How many had unsubscribed when the recipients of an old blast were removed; null: they stand, and are counted.';
CREATE FUNCTION messaging.blast_unsubscribed(of_blast uuid) RETURNS bigint LANGUAGE sql STABLE AS $$
    SELECT coalesce(b.unsubscribed, (SELECT count(*) FROM (
        SELECT r.position FROM messaging.suppressions s JOIN messaging.blast_recipients r ON r.blast_id = b.blast_id AND r.address = s.address
        WHERE s.tenant_id = b.tenant_id AND s.channel = b.channel AND s.reason = 'unsubscribe' AND s.created_at >= b.started_at
        UNION
        SELECT r.position FROM messaging.consents k JOIN core.contact_identifiers i ON i.tenant_id = k.tenant_id AND i.contact_id = k.contact_id
        JOIN messaging.blast_recipients r ON r.blast_id = b.blast_id AND r.address = i.value
        WHERE k.tenant_id = b.tenant_id AND k.channel = b.channel AND k.purpose = 'marketing' AND NOT k.granted AND k.changed_at >= b.started_at
    ) u)) FROM messaging.blasts b WHERE b.blast_id = of_blast
$$;
COMMENT ON FUNCTION messaging.blast_unsubscribed IS 'How many recipients of a blast have unsubscribed since it began. The few who left are looked up among the recipients, not the other way round.';
REVOKE ALL ON FUNCTION messaging.blast_unsubscribed FROM PUBLIC;
GRANT EXECUTE ON FUNCTION messaging.blast_unsubscribed TO carril_app;

-- +goose Down
DROP FUNCTION messaging.blast_unsubscribed(uuid);
ALTER TABLE messaging.blasts DROP COLUMN unsubscribed;
DROP INDEX core.dead_letters_closed, messaging.provider_messages_sent, messaging.request_keys_received;
