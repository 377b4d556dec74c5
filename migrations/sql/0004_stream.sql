-- +goose Up
CREATE TABLE core.stream_positions (
    stage        text NOT NULL,
    topic        text NOT NULL,
    partition    integer NOT NULL,
    topic_id     uuid NOT NULL,
    epoch        bigint NOT NULL,
    owner        text NOT NULL,
    next_offset  bigint NOT NULL CHECK (next_offset >= 0),
    leader_epoch integer NOT NULL DEFAULT -1,
    stopped      text,
    missed       bigint NOT NULL DEFAULT 0,
    updated_at   timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (stage, topic, partition)
) WITH (fillfactor = 50);
COMMENT ON TABLE core.stream_positions IS 'Where each stage stands in each partition. The compare-and-set on epoch and next_offset is what applies a record once (FS-CORE-0006 §5).';
COMMENT ON COLUMN core.stream_positions.epoch IS 'Raised by every take-over; a batch of an older epoch changes no row and aborts.';
COMMENT ON COLUMN core.stream_positions.stopped IS 'Why the partition stands still until an operator decides; null while it runs.';
COMMENT ON COLUMN core.stream_positions.missed IS 'Records known to be lost to the log''s start.';

CREATE TABLE core.outbox_lanes (
    lane        integer PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
    producer    text NOT NULL,
    store       text NOT NULL CHECK (store IN ('events', 'outbox')),
    epoch       bigint NOT NULL DEFAULT 0,
    counter     bigint NOT NULL DEFAULT 0,
    incarnation integer NOT NULL DEFAULT 1,
    UNIQUE (producer, store)
) WITH (fillfactor = 50);
COMMENT ON TABLE core.outbox_lanes IS 'A lane is one producer''s contiguous sequence in one store. counter is the last sequence given out; the row lock makes its order the commit order.';

CREATE TABLE core.outbox_cursors (
    lane     integer NOT NULL REFERENCES core.outbox_lanes,
    consumer text NOT NULL,
    cursor   bigint NOT NULL DEFAULT 0,
    since    timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (lane, consumer)
) WITH (fillfactor = 50);
COMMENT ON TABLE core.outbox_cursors IS 'How far each consumer of a lane has come; the relay''s is named relay. since is a lower bound of the partition key of what lies beyond.';

CREATE TABLE core.outbox (
    written_at timestamptz NOT NULL DEFAULT now(),
    lane       integer NOT NULL,
    lane_seq   bigint NOT NULL,
    topic      text NOT NULL,
    key        bytea NOT NULL,
    value      bytea NOT NULL,
    headers    jsonb NOT NULL,
    PRIMARY KEY (written_at, lane, lane_seq)
) PARTITION BY RANGE (written_at);
CREATE INDEX outbox_lane ON core.outbox (lane, lane_seq);
COMMENT ON TABLE core.outbox IS 'Derived messages waiting for their relay, by day; nothing is deleted row by row.';
INSERT INTO core.partitioned_tables VALUES ('core.outbox', 'day', 2, 3, false);

CREATE TABLE core.event_spans (
    lane         integer NOT NULL,
    first_seq    bigint NOT NULL,
    last_seq     bigint NOT NULL CHECK (last_seq >= first_seq),
    min_occurred timestamptz NOT NULL,
    max_occurred timestamptz NOT NULL CHECK (max_occurred >= min_occurred),
    tenant_ids   uuid[] NOT NULL,
    written_at   timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (lane, first_seq)
);
COMMENT ON TABLE core.event_spans IS 'What each transaction appended to core.tracked_events: tells recovery, mirrors and the feed which partitions and tenants to read. Lives as long as its leaves.';

CREATE TABLE core.processed_jobs (
    id_time         timestamptz NOT NULL,
    worker          text NOT NULL,
    job_id          uuid NOT NULL,
    state           text NOT NULL CHECK (state IN ('done', 'waiting', 'in_topic', 'claimed', 'sent', 'failed', 'expired', 'blocked',
                        'cancelled', 'needs_review', 'dead', 'parked', 'held')),
    -- a stage's batch
    topic           text,
    topic_partition integer,
    owner_epoch     bigint,
    first_offset    bigint,
    last_offset     bigint,
    -- a rail's job
    tenant_id       uuid,
    category        text,
    turn            integer NOT NULL DEFAULT 1,
    lease           uuid,
    lease_until     timestamptz,
    attempts        integer NOT NULL DEFAULT 0,
    first_attempt   timestamptz,
    waited          interval NOT NULL DEFAULT '0',
    not_before      timestamptz,
    expires_at      timestamptz,
    generation      integer NOT NULL DEFAULT 0,
    reason          text,
    payload         jsonb,
    created_at      timestamptz NOT NULL DEFAULT now(),
    updated_at      timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (id_time, worker, job_id)
) PARTITION BY RANGE (id_time);
CREATE INDEX processed_jobs_open ON core.processed_jobs (worker, tenant_id, state, not_before)
    WHERE state IN ('waiting', 'in_topic', 'claimed', 'parked', 'held');
COMMENT ON TABLE core.processed_jobs IS 'What has been worked on, once: a row a batch of a stage (FS-CORE-0006 §5), a row a job of a rail (FS-MSG-0005 §7), by day of the id''s own time.';
COMMENT ON COLUMN core.processed_jobs.worker IS 'stage:NAME for a stage''s batches, rail:CHANNEL.RAIL for jobs.';
COMMENT ON COLUMN core.processed_jobs.turn IS 'Counts enqueues, never sends; a record of another turn is skipped.';
COMMENT ON COLUMN core.processed_jobs.waited IS 'Time during which the retry windows stood still.';
INSERT INTO core.partitioned_tables VALUES ('core.processed_jobs', 'day', 8, 3, false);

CREATE TABLE core.dead_letters (
    dead_letter_id uuid PRIMARY KEY,
    stage          text NOT NULL,
    class          text NOT NULL,
    reason         text NOT NULL,
    tenant_id      uuid,
    event_id       uuid,
    send_id        uuid,
    topic          text,
    topic_id       uuid,
    topic_partition integer,
    topic_offset   bigint,
    record_key     bytea,
    record_value   bytea,
    record_headers jsonb,
    content_hash   bytea,
    status         text NOT NULL DEFAULT 'open' CHECK (status IN ('open', 'replayed', 'discarded')),
    status_by      text,
    status_at      timestamptz,
    created_at     timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX dead_letters_open ON core.dead_letters (created_at) WHERE status = 'open';
CREATE INDEX dead_letters_tenant ON core.dead_letters (tenant_id, created_at);
CREATE INDEX dead_letters_event ON core.dead_letters (event_id) WHERE event_id IS NOT NULL;
CREATE INDEX dead_letters_send ON core.dead_letters (send_id) WHERE send_id IS NOT NULL;
COMMENT ON TABLE core.dead_letters IS 'What could not be processed, with its bytes, where it came from and why; a send''s carries the send id (FS-MSG-0005 §7).';

-- +goose Down
DELETE FROM core.partitioned_tables WHERE parent IN ('core.outbox', 'core.processed_jobs');
DROP TABLE core.dead_letters, core.processed_jobs, core.event_spans, core.outbox, core.outbox_cursors, core.outbox_lanes, core.stream_positions;
