-- Finds or makes a producer's lane with the relay's cursor, and raises the lane's
-- epoch to the caller's where that is higher: older owners are fenced from then
-- on. A caller who gets another epoch back than it gave is fenced itself.
-- name: OpenLane :one
WITH lane AS (
    INSERT INTO core.outbox_lanes AS l (producer, store, epoch) VALUES (@producer, @store, greatest(@epoch::bigint, 0))
    ON CONFLICT (producer, store) DO UPDATE SET epoch = greatest(l.epoch, EXCLUDED.epoch)
    RETURNING lane, epoch
), cursor AS (
    INSERT INTO core.outbox_cursors (lane, consumer) SELECT lane, 'relay' FROM lane ON CONFLICT DO NOTHING
)
SELECT lane, epoch FROM lane;

-- Reserves n sequences of a lane and gives the last, with the transaction's time.
-- The row lock stays until the transaction ends, so that sequence order is commit
-- order and a rollback leaves no gap. A negative epoch is any; no row: fenced.
-- name: TakeSequences :one
UPDATE core.outbox_lanes SET counter = counter + sqlc.arg(n)
WHERE lane = @lane AND (@epoch::bigint < 0 OR epoch = @epoch) RETURNING counter, now()::timestamptz AS at;

-- Writes messages under the sequences first, first + 1, … in the arrays' order.
-- name: AppendOutbox :exec
INSERT INTO core.outbox (lane, lane_seq, topic, key, value, headers)
SELECT @lane, sqlc.arg(first)::bigint + o - 1, t, k, v, h
FROM ROWS FROM (unnest(@topics::text[]), unnest(@keys::bytea[]), unnest(@values::bytea[]), unnest(@headers::bytea[]))
    WITH ORDINALITY AS u(t, k, v, h, o);

-- Reads a lane in order beyond a sequence. since, a lower bound of when the rows
-- were written, is the partition predicate.
-- name: PageOutbox :many
SELECT lane_seq, written_at, topic, key, value, headers FROM core.outbox
WHERE written_at >= @since AND lane = @lane AND lane_seq > @after ORDER BY lane_seq LIMIT sqlc.arg(max_rows)::bigint;

-- Moves the relay's cursor by compare-and-set from where its owner left it, if
-- the lane is still that owner's (a negative epoch is any); no row: fenced.
-- name: AdvanceCursor :one
UPDATE core.outbox_cursors c SET cursor = @to_seq, since = @since
FROM core.outbox_lanes l
WHERE c.lane = @lane AND c.consumer = 'relay' AND c.cursor = @from_seq AND l.lane = c.lane AND (@epoch::bigint < 0 OR l.epoch = @epoch)
RETURNING c.cursor;

-- Where the relay of a lane stands, for the lane's owner alone; no row: fenced.
-- name: LoadCursor :one
SELECT c.cursor, c.since FROM core.outbox_cursors c JOIN core.outbox_lanes l USING (lane)
WHERE c.lane = @lane AND c.consumer = 'relay' AND (@epoch::bigint < 0 OR l.epoch = @epoch);

-- Keeps a message that the broker refuses for itself; runs in the transaction
-- that moves the cursor past it.
-- name: KeepRefusedMessage :exec
INSERT INTO core.dead_letters (dead_letter_id, stage, class, reason, topic, record_key, record_value, record_headers, content_hash)
VALUES (gen_random_uuid(), @stage, 'refused_by_broker', @reason, @topic::text, @record_key, @record_value, @record_headers, sha256(@record_value));
