-- The newest version of each of a tenant's rules, where that is enabled: an older
-- one never comes back. Infinite times are cut to what Go can hold.
-- name: NewestRules :many
SELECT rule_id, version, event_name, condition, actions, extract(epoch FROM greatest(valid_from, '0001-01-01'))::bigint AS valid_from,
    extract(epoch FROM least(valid_until, '9999-01-01'))::bigint AS valid_until
FROM (SELECT DISTINCT ON (rule_id) * FROM core.rules WHERE tenant_id = @tenant_id ORDER BY rule_id, version DESC) r
WHERE enabled ORDER BY rule_id;

-- The stage's fence: one entry an event and rule, in the order of the arrays,
-- which callers sort. What comes back is new.
-- name: EnterPoints :many
INSERT INTO core.points_ledger (tenant_id, event_id, rule_id, contact_id, points, correlation_id, occurred_at)
SELECT t, e, r, c, p, x, o
FROM ROWS FROM (unnest(@tenants::uuid[]), unnest(@events::uuid[]), unnest(@rules::uuid[]), unnest(@contacts::uuid[]),
    unnest(@points::bigint[]), unnest(@correlations::text[]), unnest(@occurred::timestamptz[])) AS u(t, e, r, c, p, x, o)
ON CONFLICT DO NOTHING RETURNING event_id, rule_id;

-- Adds points to balances, each contact once, in the order of the arrays, which
-- callers sort: two batches never wait for each other in a ring.
-- name: AddPoints :exec
INSERT INTO core.points_balances AS p (tenant_id, contact_id, balance)
SELECT t, c, n FROM ROWS FROM (unnest(@tenants::uuid[]), unnest(@contacts::uuid[]), unnest(@points::bigint[])) AS u(t, c, n)
ON CONFLICT (tenant_id, contact_id) DO UPDATE SET balance = p.balance + EXCLUDED.balance;
