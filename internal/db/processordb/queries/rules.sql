-- What rules with a cap have fired for contacts already, within the times given,
-- for the contacts themselves and for all that were merged into them.
-- name: FiredFor :many
WITH RECURSIVE asked AS (
    SELECT u.t, u.r, u.c, u.f, u.l
    FROM ROWS FROM (unnest(@tenants::uuid[]), unnest(@rules::uuid[]), unnest(@contacts::uuid[]), unnest(@after::timestamptz[]),
        unnest(@before::timestamptz[])) AS u(t, r, c, f, l)
), kin AS (
    SELECT DISTINCT a.t, a.c AS head, a.c AS contact FROM asked a
    UNION
    SELECT k.t, k.head, m.from_contact FROM kin k
    JOIN core.contact_merges m ON m.tenant_id = k.t AND m.into_contact = k.contact AND m.undone_at IS NULL
)
SELECT a.r::uuid AS rule_id, a.c::uuid AS contact_id, p.tenant_id, p.event_id, p.occurred_at
FROM asked a
JOIN kin k ON k.t = a.t AND k.head = a.c
JOIN core.points_ledger p ON p.tenant_id = k.t AND p.contact_id = k.contact AND p.rule_id = a.r
WHERE p.outcome = 'fired' AND p.occurred_at > a.f AND p.occurred_at < a.l;

-- The stage's fence: one entry an event and rule, in the order of the arrays,
-- which callers sort. What comes back is new.
-- name: EnterPoints :many
INSERT INTO core.points_ledger (tenant_id, event_id, rule_id, contact_id, points, correlation_id, occurred_at, rule_version, outcome)
SELECT t, e, r, c, p, x, o, v, s
FROM ROWS FROM (unnest(@tenants::uuid[]), unnest(@events::uuid[]), unnest(@rules::uuid[]), unnest(@contacts::uuid[]),
    unnest(@points::bigint[]), unnest(@correlations::text[]), unnest(@occurred::timestamptz[]),
    unnest(@versions::integer[]), unnest(@outcomes::text[])) AS u(t, e, r, c, p, x, o, v, s)
ON CONFLICT DO NOTHING RETURNING event_id, rule_id;

-- Adds points to balances, each contact once, in the order of the arrays, which
-- callers sort: two batches never wait for each other in a ring.
-- name: AddPoints :exec
INSERT INTO core.points_balances AS p (tenant_id, contact_id, balance)
SELECT t, c, n FROM ROWS FROM (unnest(@tenants::uuid[]), unnest(@contacts::uuid[]), unnest(@points::bigint[])) AS u(t, c, n)
ON CONFLICT (tenant_id, contact_id) DO UPDATE SET balance = p.balance + EXCLUDED.balance;

-- That a condition had no answer, once an hour and version.
-- name: WarnOfRules :exec
INSERT INTO core.warnings (tenant_id, warning_id, event_id, kind, detail)
SELECT t, w, e, 'rule_failed', d::jsonb
FROM ROWS FROM (unnest(@tenants::uuid[]), unnest(@warnings::uuid[]), unnest(@events::uuid[]), unnest(@details::text[])) AS u(t, w, e, d)
ON CONFLICT DO NOTHING;
