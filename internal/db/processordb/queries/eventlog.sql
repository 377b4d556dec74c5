-- The storage fence (FS-CORE-0006 §3): takes keys in the order of the arrays,
-- which callers sort, so that two writers never wait for each other in a ring.
-- What comes back is new.
-- name: InsertEventKeys :many
INSERT INTO core.event_keys (tenant_id, event_id, body_hash, occurred_at, received_at)
SELECT t, e, b, o, r
FROM ROWS FROM (unnest(@tenants::uuid[]), unnest(@events::uuid[]), unnest(@body_hashes::bytea[]), unnest(@occurred::timestamptz[]), unnest(@received::timestamptz[]))
    AS u(t, e, b, o, r)
ON CONFLICT DO NOTHING RETURNING event_id;

-- Of events whose key was taken, those whose body is another: the tenant can look
-- them up. The same body again is a repeat and leaves nothing.
-- name: RecordKeyConflicts :execrows
INSERT INTO core.idempotency_conflicts (tenant_id, event_id, body_hash, received_at)
SELECT DISTINCT ON (u.tenant_id, u.event_id, u.body_hash) u.tenant_id, u.event_id, u.body_hash, u.received_at
FROM ROWS FROM (unnest(@tenants::uuid[]), unnest(@events::uuid[]), unnest(@body_hashes::bytea[]), unnest(@received::timestamptz[]))
    AS u(tenant_id, event_id, body_hash, received_at)
JOIN core.event_keys k ON k.event_id = u.event_id AND k.tenant_id = u.tenant_id AND k.body_hash <> u.body_hash
ON CONFLICT DO NOTHING;

-- Says which times and tenants a transaction's events lie in, for whoever reads
-- them back by lane.
-- name: InsertSpan :exec
INSERT INTO core.event_spans (lane, first_seq, last_seq, min_occurred, max_occurred, tenant_ids)
VALUES (@lane, @first_seq, @last_seq, @min_occurred, @max_occurred, @tenants);

-- What tenants should know of accepted events.
-- name: InsertWarnings :exec
INSERT INTO core.warnings (tenant_id, warning_id, event_id, kind, detail)
SELECT t, w, e, k, d::jsonb
FROM ROWS FROM (unnest(@tenants::uuid[]), unnest(@warnings::uuid[]), unnest(@events::uuid[]), unnest(@kinds::text[]), unnest(@details::text[])) AS u(t, w, e, k, d);

-- The spans of a lane beyond a sequence, from the one that holds it on; the inner
-- select makes it a range of the primary key.
-- name: SpansOfLane :many
SELECT e.last_seq, e.min_occurred, e.max_occurred, e.tenant_ids FROM core.event_spans e
WHERE e.lane = @lane AND e.first_seq >= (SELECT coalesce(max(s.first_seq), 0) FROM core.event_spans s WHERE s.lane = @lane AND s.first_seq <= sqlc.arg(after)::bigint + 1)
    AND e.last_seq > sqlc.arg(after)::bigint
ORDER BY e.first_seq LIMIT sqlc.arg(max_rows)::bigint;
