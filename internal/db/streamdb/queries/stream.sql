-- Makes this process the owner of a position, under a new epoch. Its row lock
-- holds until the take-over commits, so that the predecessor's last batch is
-- either seen or fenced. xmax is 0 only in a row that nobody had.
-- name: RaiseEpoch :one
INSERT INTO core.stream_positions AS p (stage, topic, partition, topic_id, epoch, owner, next_offset)
VALUES (@stage, @topic, @partition, @topic_id, 1, @owner, 0)
ON CONFLICT (stage, topic, partition) DO UPDATE SET epoch = p.epoch + 1, owner = EXCLUDED.owner, updated_at = now()
RETURNING epoch, next_offset, topic_id, stopped, xmax = 0 AS inserted;

-- Sets what a take-over decided, under RaiseEpoch's row lock. stopped is empty
-- where the partition runs; then what was missed before stays on record.
-- name: SettlePosition :exec
UPDATE core.stream_positions SET next_offset = @next_offset, topic_id = @topic_id, stopped = nullif(@stopped::text, ''),
    missed = CASE WHEN @stopped::text = '' THEN missed ELSE @missed END
WHERE stage = @stage AND topic = @topic AND partition = @partition;

-- The fence of a batch: moves the position by compare-and-set on epoch and
-- offset, and writes the batch's own row, in one statement. No row: another
-- owner has taken over. A process that is paused in the middle of a batch would
-- hold the row for as long as it sleeps, and its successor waits for it: the
-- transaction ends by itself when nothing is asked of it for so long.
-- name: AdvancePosition :execrows
WITH moved AS (
    UPDATE core.stream_positions SET next_offset = @next_offset, leader_epoch = @leader_epoch, updated_at = now()
    WHERE stage = @stage AND topic = @topic AND partition = @partition AND topic_id = @topic_id AND epoch = @epoch AND next_offset = @from_offset
    RETURNING stage
)
INSERT INTO core.processed_jobs (id_time, worker, job_id, state, topic, topic_partition, owner_epoch, first_offset, last_offset)
SELECT now(), 'stage:' || stage, @job_id, 'done', @topic::text, @partition::int, @epoch::bigint, @from_offset::bigint, sqlc.arg(next_offset)::bigint - 1
FROM moved WHERE set_config('idle_in_transaction_session_timeout', '15s', true) <> '';

-- Reads a position back after a commit of unknown outcome. The row lock waits for
-- a transaction that is still on its way.
-- name: ReadBackPosition :one
SELECT next_offset, epoch FROM core.stream_positions WHERE stage = @stage AND topic = @topic AND partition = @partition FOR UPDATE;

-- Whether a partition waits for an operator.
-- name: PositionStopped :one
SELECT (stopped IS NOT NULL)::bool AS stopped FROM core.stream_positions WHERE stage = @stage AND topic = @topic AND partition = @partition;

-- Keeps a record that could not be processed, with its bytes.
-- name: KeepDeadLetter :exec
INSERT INTO core.dead_letters (dead_letter_id, stage, class, reason, tenant_id, event_id, send_id,
    topic, topic_id, topic_partition, topic_offset, record_key, record_value, record_headers, content_hash)
VALUES (@dead_letter_id, @stage, @class, @reason, @tenant_id, @event_id, @send_id,
    @topic::text, @topic_id::uuid, @topic_partition::int, @topic_offset::bigint, @record_key, @record_value, @record_headers, @content_hash);
