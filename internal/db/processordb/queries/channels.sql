-- The fence of requests, in the order of the arrays, which callers sort; it keeps
-- the first received_at for ever. What comes back is new.
-- name: InsertRequestKeys :many
INSERT INTO messaging.request_keys (tenant_id, request_id, body_hash, received_at)
SELECT t, q, b, r
FROM ROWS FROM (unnest(@tenants::uuid[]), unnest(@requests::uuid[]), unnest(@body_hashes::bytea[]), unnest(@received::timestamptz[])) AS u(t, q, b, r)
ON CONFLICT DO NOTHING RETURNING request_id;

-- Of requests whose key was taken, those whose body is another: nothing is sent for
-- them, and the tenant can look them up. The same body again leaves nothing.
-- name: RecordRequestConflicts :execrows
INSERT INTO core.idempotency_conflicts (kind, tenant_id, event_id, body_hash, received_at)
SELECT DISTINCT ON (u.tenant_id, u.request_id, u.body_hash) 'message', u.tenant_id, u.request_id, u.body_hash, u.received_at
FROM ROWS FROM (unnest(@tenants::uuid[]), unnest(@requests::uuid[]), unnest(@body_hashes::bytea[]), unnest(@received::timestamptz[]))
    AS u(tenant_id, request_id, body_hash, received_at)
JOIN messaging.request_keys k ON k.request_id = u.request_id AND k.tenant_id = u.tenant_id AND k.body_hash <> u.body_hash
ON CONFLICT DO NOTHING;

-- Follows each contact through its merges to the one that stands. The depth bounds
-- it, should merges ever form a ring.
-- name: ResolveMerges :many
WITH RECURSIVE w AS (
    SELECT u.tenant_id, u.contact_id AS asked, u.contact_id AS at, 0 AS depth
    FROM ROWS FROM (unnest(@tenants::uuid[]), unnest(@contacts::uuid[])) AS u(tenant_id, contact_id)
    UNION
    SELECT w.tenant_id, w.asked, m.into_contact, depth + 1 FROM w
    JOIN core.contact_merges m ON m.tenant_id = w.tenant_id AND m.from_contact = w.at AND m.undone_at IS NULL WHERE depth < 32
)
SELECT DISTINCT ON (w.tenant_id, asked) w.tenant_id::uuid AS tenant_id, asked::uuid AS asked, at::uuid AS at FROM w
JOIN core.contacts c ON c.tenant_id = w.tenant_id AND c.contact_id = w.at
ORDER BY w.tenant_id, asked, depth DESC;

-- Each contact's newest address of a kind.
-- name: NewestAddresses :many
SELECT DISTINCT ON (i.tenant_id, i.contact_id, i.kind) i.contact_id, i.kind, i.value
FROM ROWS FROM (unnest(@tenants::uuid[]), unnest(@contacts::uuid[]), unnest(@kinds::text[])) AS u(tenant_id, contact_id, kind)
JOIN core.contact_identifiers i ON i.tenant_id = u.tenant_id AND i.contact_id = u.contact_id AND i.kind = u.kind
ORDER BY i.tenant_id, i.contact_id, i.kind, i.created_at DESC, i.value;

-- A template's newest version, or the one asked for; 0 where there is none.
-- name: TemplateVersion :one
SELECT coalesce(max(version), 0)::int AS version FROM messaging.templates
WHERE tenant_id = @tenant_id AND template_id = @template_id AND (sqlc.arg(fixed)::int = 0 OR version = sqlc.arg(fixed)::int);

-- What became of every recipient.
-- name: InsertDecisions :exec
INSERT INTO messaging.decisions (received_at, tenant_id, request_id, recipient_index, channel, contact_id, origin_event_id,
    rule_id, correlation_id, outcome, gate, reason, send_id)
SELECT r, t, q, i, c, k, o, u, x, d, g, w, s
FROM ROWS FROM (unnest(@received::timestamptz[]), unnest(@tenants::uuid[]), unnest(@requests::uuid[]), unnest(@recipient_indexes::int[]),
    unnest(@channels::text[]), unnest(@contacts::uuid[]), unnest(@origins::uuid[]), unnest(@rules::pg_catalog.uuid[]),
    unnest(@correlations::text[]), unnest(@outcomes::text[]), unnest(@gates::pg_catalog.text[]), unnest(@reasons::pg_catalog.text[]),
    unnest(@sends::pg_catalog.uuid[])) AS v(r, t, q, i, c, k, o, u, x, d, g, w, s);

-- Leaves marketing messages for the feeder; a send that waits already is the same.
-- name: QueueMarketing :exec
INSERT INTO messaging.marketing_queue (tenant_id, channel, send_id, payload)
SELECT t, c, s, p::jsonb
FROM ROWS FROM (unnest(@tenants::uuid[]), unnest(@channels::text[]), unnest(@sends::uuid[]), unnest(@payloads::text[])) AS u(t, c, s, p)
ON CONFLICT DO NOTHING;

-- Writes jobs for the rails, by day of their id's own time.
-- name: InsertJobs :exec
INSERT INTO core.processed_jobs (id_time, worker, job_id, state, tenant_id, category, payload, expires_at, not_before)
SELECT t, w, j, s, n, c, p::jsonb, e, CASE WHEN s = 'waiting' THEN t END -- its place in the line, which the index keeps
FROM ROWS FROM (unnest(@times::timestamptz[]), unnest(@workers::text[]), unnest(@jobs::uuid[]), unnest(@states::text[]), unnest(@tenants::uuid[]),
    unnest(@categories::text[]), unnest(@payloads::text[]), unnest(@expires::pg_catalog.timestamptz[])) AS u(t, w, j, s, n, c, p, e);

-- Locks a tenant's rail until the transaction ends, against a release that would
-- count beside us; the row is made where it is missing.
-- name: LockTenantRail :exec
INSERT INTO messaging.tenant_rails (tenant_id, channel, rail) VALUES (@tenant_id, @channel, @rail)
ON CONFLICT (tenant_id, channel, rail) DO UPDATE SET rail = EXCLUDED.rail;

-- How many of a tenant's jobs hold a credit, and whether any waits for one; read
-- under LockTenantRail. The days are the partition predicate. A state at a time:
-- what waits may be a million, and only its first is looked at.
-- name: CountCredits :one
SELECT ((SELECT count(*) FROM core.processed_jobs t WHERE t.id_time > now() - interval '40 days' AND t.worker = @worker AND t.tenant_id = @tenant_id::uuid AND t.state = 'in_topic')
    + (SELECT count(*) FROM core.processed_jobs c WHERE c.id_time > now() - interval '40 days' AND c.worker = @worker AND c.tenant_id = @tenant_id::uuid AND c.state = 'claimed')
    + (SELECT count(*) FROM core.processed_jobs p WHERE p.id_time > now() - interval '40 days' AND p.worker = @worker AND p.tenant_id = @tenant_id::uuid AND p.state = 'parked'
        AND p.reason = 'tenant_bucket'))::bigint AS taken,
    EXISTS (SELECT FROM core.processed_jobs w WHERE w.id_time > now() - interval '40 days' AND w.worker = @worker AND w.tenant_id = @tenant_id::uuid AND w.state = 'waiting') AS waiting;
