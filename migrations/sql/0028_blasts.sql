-- +goose Up
ALTER TABLE messaging.blasts DROP CONSTRAINT blasts_state_check;
ALTER TABLE messaging.blasts
    ADD CONSTRAINT blasts_state_check CHECK (state IN ('draft', 'scheduled', 'preparing', 'running', 'paused', 'cancelled', 'done')),
    ADD COLUMN audience        jsonb NOT NULL DEFAULT '{"type":"upload"}',
    ADD COLUMN body_hash       bytea,
    ADD COLUMN prepared_at     timestamptz,
    ADD COLUMN prepare_after   uuid,
    ADD COLUMN audience_report jsonb NOT NULL DEFAULT '{}',
    ADD COLUMN cancelled_from  bigint,
    ADD COLUMN started_at      timestamptz,
    ADD COLUMN finished_at     timestamptz,
    ADD COLUMN judged_from     timestamptz,
    ADD COLUMN tripped_at      timestamptz,
    ADD COLUMN trips           integer NOT NULL DEFAULT 0,
    ADD CONSTRAINT blasts_fed CHECK (fed >= 0 AND fed <= recipients);
CREATE INDEX blasts_active ON messaging.blasts (channel, tenant_id) WHERE state IN ('scheduled', 'preparing', 'running');
COMMENT ON COLUMN messaging.blasts.audience IS 'upload: the tenant''s files; contacts: everybody with a consent, filtered by traits, frozen at the start.';
COMMENT ON COLUMN messaging.blasts.body_hash IS 'Of what the blast was created with, so that a repeated create is told from another under the same key.';
COMMENT ON COLUMN messaging.blasts.prepare_after IS 'The last contact that the freeze of the audience has looked at.';
COMMENT ON COLUMN messaging.blasts.cancelled_from IS 'Recipients from this position on were never fed and are cancelled, without a write to a million rows.';
COMMENT ON COLUMN messaging.blasts.judged_from IS 'Outcomes before this time do not pause the blast: somebody has resumed it knowing them.';
COMMENT ON COLUMN messaging.blasts.trips IS 'How often its outcomes have paused it.';
UPDATE messaging.blasts SET prepared_at = created_at, started_at = created_at WHERE state NOT IN ('draft', 'scheduled');

ALTER TABLE messaging.blast_recipients
    ADD COLUMN reason text,
    ADD COLUMN marks  smallint NOT NULL DEFAULT 0,
    SET (fillfactor = 80);
COMMENT ON COLUMN messaging.blast_recipients.outcome IS 'What became of the message as far as we send it; null is pending, or cancelled from blasts.cancelled_from on.';
COMMENT ON COLUMN messaging.blast_recipients.reason IS 'Why, of a closed set; no personal data.';
COMMENT ON COLUMN messaging.blast_recipients.marks IS 'What the provider has reported, ever: 1 delivered, 2 opened, 4 clicked, 8 bounced, 16 complained, 32 failed, 64 any of these.';

CREATE TABLE messaging.blast_counts (
    blast_id uuid NOT NULL,
    at       timestamptz NOT NULL,
    what     text NOT NULL,
    reason   text NOT NULL DEFAULT '',
    n        bigint NOT NULL
);
CREATE INDEX blast_counts_blast ON messaging.blast_counts (blast_id, at);
COMMENT ON TABLE messaging.blast_counts IS 'How many recipients of a blast have which outcome and mark: the sum of these rows, written with each change in its own transaction. Rows are only added, so that nobody waits for a counter; the feeder folds them together.';
COMMENT ON COLUMN messaging.blast_counts.at IS 'Ten seconds that the change fell into; the epoch for what is long past.';

-- +goose StatementBegin
CREATE FUNCTION messaging.count_blast_recipients() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'INSERT' THEN
        INSERT INTO messaging.blast_counts (blast_id, at, what, reason, n)
        SELECT blast_id, date_bin('10 seconds', clock_timestamp(), 'epoch'), coalesce(outcome, 'pending'), coalesce(reason, ''), count(*)
        FROM new_rows GROUP BY 1, 3, 4;
        RETURN NULL;
    END IF;
    INSERT INTO messaging.blast_counts (blast_id, at, what, reason, n)
    SELECT blast_id, date_bin('10 seconds', clock_timestamp(), 'epoch'), what, reason, sum(n) FROM (
        SELECT blast_id, coalesce(outcome, 'pending') AS what, coalesce(reason, '') AS reason, -1 AS n FROM old_rows
        UNION ALL SELECT blast_id, coalesce(outcome, 'pending'), coalesce(reason, ''), 1 FROM new_rows
        UNION ALL SELECT o.blast_id, m.name, '', -1 FROM old_rows o JOIN messaging.blast_marks m ON o.marks & m.bit <> 0
        UNION ALL SELECT n.blast_id, m.name, '', 1 FROM new_rows n JOIN messaging.blast_marks m ON n.marks & m.bit <> 0
    ) u GROUP BY 1, 3, 4 HAVING sum(n) <> 0;
    RETURN NULL;
END $$;
-- +goose StatementEnd
CREATE VIEW messaging.blast_marks AS
SELECT * FROM (VALUES ('delivered', 1), ('opened', 2), ('clicked', 4), ('bounced', 8), ('complained', 16), ('refused', 32), ('reported', 64)) AS v(name, bit);
COMMENT ON VIEW messaging.blast_marks IS 'Names of the bits of blast_recipients.marks, as they are counted.';
CREATE TRIGGER count_inserted AFTER INSERT ON messaging.blast_recipients REFERENCING NEW TABLE AS new_rows
    FOR EACH STATEMENT EXECUTE FUNCTION messaging.count_blast_recipients();
CREATE TRIGGER count_updated AFTER UPDATE ON messaging.blast_recipients REFERENCING OLD TABLE AS old_rows NEW TABLE AS new_rows
    FOR EACH STATEMENT EXECUTE FUNCTION messaging.count_blast_recipients();
COMMENT ON FUNCTION messaging.count_blast_recipients IS 'Counts with the change itself: no writer can forget it, and the sum is exact at every commit.';
INSERT INTO messaging.blast_counts (blast_id, at, what, reason, n)
SELECT blast_id, 'epoch', coalesce(outcome, 'pending'), '', count(*) FROM messaging.blast_recipients GROUP BY 1, 3;

CREATE TABLE messaging.blast_uploads (
    blast_id    uuid NOT NULL REFERENCES messaging.blasts,
    upload_id   uuid NOT NULL,
    state       text NOT NULL CHECK (state IN ('open', 'done', 'failed')),
    error       text,
    error_row   bigint,
    turn        integer NOT NULL DEFAULT 1,
    rows_read   bigint NOT NULL DEFAULT 0,
    digest      bytea NOT NULL DEFAULT '',
    taken       bigint NOT NULL DEFAULT 0,
    duplicates  bigint NOT NULL DEFAULT 0,
    refused     bigint NOT NULL DEFAULT 0,
    reasons     jsonb NOT NULL DEFAULT '{}',
    created_at  timestamptz NOT NULL DEFAULT now(),
    updated_at  timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (blast_id, upload_id)
);
COMMENT ON TABLE messaging.blast_uploads IS 'How far a file of recipients has come: the same file under the same id goes on behind rows_read.';
COMMENT ON COLUMN messaging.blast_uploads.turn IS 'Counts connections that bring the file; an older one can write nothing more.';
COMMENT ON COLUMN messaging.blast_uploads.digest IS 'SHA-256 of the rows up to rows_read: another file under the same id is refused.';

CREATE TABLE messaging.blast_upload_rows (
    blast_id  uuid NOT NULL,
    upload_id uuid NOT NULL,
    row       bigint NOT NULL,
    col       text NOT NULL,
    reason    text NOT NULL,
    PRIMARY KEY (blast_id, upload_id, row),
    FOREIGN KEY (blast_id, upload_id) REFERENCES messaging.blast_uploads
);
COMMENT ON TABLE messaging.blast_upload_rows IS 'The first 1,000 rows of an upload that were not taken, and why; never what stood in them.';

GRANT SELECT, INSERT, UPDATE, DELETE ON messaging.blast_counts, messaging.blast_uploads, messaging.blast_upload_rows TO carril_app;
GRANT SELECT ON messaging.blast_counts, messaging.blast_uploads, messaging.blast_upload_rows, messaging.blast_marks TO carril_readonly;
GRANT SELECT ON messaging.blast_marks TO carril_app;

-- +goose Down
DROP TABLE messaging.blast_upload_rows, messaging.blast_uploads;
DROP TRIGGER count_updated ON messaging.blast_recipients;
DROP TRIGGER count_inserted ON messaging.blast_recipients;
DROP FUNCTION messaging.count_blast_recipients;
DROP VIEW messaging.blast_marks;
DROP TABLE messaging.blast_counts;
ALTER TABLE messaging.blast_recipients DROP COLUMN marks, DROP COLUMN reason, RESET (fillfactor);
DROP INDEX messaging.blasts_active;
UPDATE messaging.blasts SET state = 'running' WHERE state = 'preparing';
ALTER TABLE messaging.blasts DROP CONSTRAINT blasts_fed, DROP CONSTRAINT blasts_state_check,
    DROP COLUMN trips, DROP COLUMN tripped_at, DROP COLUMN judged_from, DROP COLUMN finished_at, DROP COLUMN started_at, DROP COLUMN cancelled_from,
    DROP COLUMN audience_report, DROP COLUMN prepare_after, DROP COLUMN prepared_at, DROP COLUMN body_hash, DROP COLUMN audience,
    ADD CONSTRAINT blasts_state_check CHECK (state IN ('draft', 'scheduled', 'running', 'paused', 'cancelled', 'done'));
