-- Makes an export, or finds the one that was asked for under the same key.
-- name: MakeExport :exec
INSERT INTO core.exports (export_id, tenant_id, origin, request_key, request_hash, from_time, to_time, format, compression, storage)
VALUES (@export_id, @tenant_id, @origin, @request_key, @request_hash, @from_time, @to_time, @format, @compression, @storage)
ON CONFLICT (tenant_id, origin, request_key) DO NOTHING;

-- name: FindExport :one
SELECT export_id, state FROM core.exports WHERE tenant_id = @tenant_id AND origin = @origin AND request_key = @request_key;

-- Frees a key for a fresh export; the old one keeps its row and its objects.
-- name: ForgetExportKey :exec
UPDATE core.exports SET request_key = request_key || ':' || export_id::text
WHERE tenant_id = @tenant_id AND origin = @origin AND request_key = @request_key;

-- name: ReadExport :one
SELECT export_id, tenant_id, from_time, to_time, format, compression, state, rows, bytes, manifest, failures, created_at FROM core.exports WHERE export_id = @export_id;

-- The open export of the API whose turn it is: each gets a part in turn.
-- name: NextExport :one
SELECT export_id FROM core.exports WHERE state IN ('queued', 'running') AND origin = 'api' AND not_before <= now() ORDER BY updated_at, export_id LIMIT 1;

-- Divides an export into the months of its range.
-- name: PlanExport :exec
INSERT INTO core.export_parts (export_id, part, from_time, to_time)
SELECT e.export_id, row_number() OVER (ORDER BY m.month), greatest(m.month AT TIME ZONE 'UTC', e.from_time),
    least((m.month + interval '1 month') AT TIME ZONE 'UTC', e.to_time)
FROM core.exports e, generate_series(date_trunc('month', e.from_time AT TIME ZONE 'UTC'), (e.to_time AT TIME ZONE 'UTC') - interval '1 microsecond',
    interval '1 month') AS m (month)
WHERE e.export_id = @export_id
ON CONFLICT (export_id, part) DO NOTHING;

-- name: ExportParts :many
SELECT part, from_time, to_time, coalesce(made::text, '')::text AS made, finished_at
FROM core.export_parts WHERE export_id = @export_id ORDER BY part;

-- Records a part, once.
-- name: FinishExportPart :execrows
UPDATE core.export_parts SET made = nullif(@made::text, '')::jsonb, rows = @rows::bigint, bytes = @bytes::bigint, finished_at = now()
WHERE export_id = @export_id AND part = @part AND finished_at IS NULL;

-- Counts an export's parts into it.
-- name: AdvanceExport :exec
UPDATE core.exports e SET state = 'running', failures = 0, error = NULL, updated_at = now(),
    rows = p.rows, bytes = p.bytes, progress = p.done::real / greatest(p.parts, 1)
FROM (SELECT count(*) AS parts, count(finished_at) AS done, coalesce(sum(x.rows), 0)::bigint AS rows, coalesce(sum(x.bytes), 0)::bigint AS bytes
      FROM core.export_parts x WHERE x.export_id = @export_id) p
WHERE e.export_id = @export_id AND e.state IN ('queued', 'running');

-- name: ReportExport :exec
UPDATE core.exports SET progress = @progress, rows = @rows WHERE export_id = @export_id AND state = 'running';

-- name: FinishExport :exec
UPDATE core.exports SET state = 'done', manifest = @manifest, rows = @rows, bytes = @bytes, progress = 1, finished_at = now(), updated_at = now(),
    expires_at = CASE WHEN storage = '' THEN now() + sqlc.arg(keep)::interval END
WHERE export_id = @export_id AND state IN ('queued', 'running');

-- Puts an export off after a failure; the last one ends it.
-- name: FailExport :exec
UPDATE core.exports SET failures = failures + 1, error = @error, updated_at = now(),
    not_before = now() + least(interval '1 second' * power(2, failures), interval '5 minutes'),
    state = CASE WHEN failures + 1 >= sqlc.arg(most)::integer THEN 'failed' ELSE state END,
    finished_at = CASE WHEN failures + 1 >= sqlc.arg(most)::integer THEN now() END,
    expires_at = CASE WHEN failures + 1 >= sqlc.arg(most)::integer THEN now() END
WHERE export_id = @export_id AND state IN ('queued', 'running');

-- name: ExpiredExports :many
SELECT export_id, tenant_id FROM core.exports WHERE state IN ('done', 'failed') AND expires_at <= now() ORDER BY expires_at LIMIT 100;

-- A failed export stays failed; what it had made is gone all the same.
-- name: ExpireExport :exec
UPDATE core.exports SET state = CASE state WHEN 'done' THEN 'expired' ELSE state END, expires_at = CASE state WHEN 'done' THEN expires_at END
WHERE export_id = @export_id AND state IN ('done', 'failed');
