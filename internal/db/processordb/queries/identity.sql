-- People whom a batch may change. The external_ids come along because they decide
-- merges.
-- name: LoadContacts :many
SELECT c.contact_id, c.cell_id, c.known, c.created_at,
    ARRAY(SELECT x.value FROM core.contact_identifiers x WHERE x.tenant_id = c.tenant_id AND x.contact_id = c.contact_id AND x.kind = 'external_id')::text[] AS external,
    (SELECT count(*) FROM core.contact_identifiers x WHERE x.tenant_id = c.tenant_id AND x.contact_id = c.contact_id)::int AS attached
FROM ROWS FROM (unnest(@tenants::uuid[]), unnest(@contacts::uuid[])) AS u(tenant_id, contact_id)
JOIN core.contacts c USING (tenant_id, contact_id);

-- Makes contacts, all at the batch's own time: the older of two survives a merge.
-- name: InsertContacts :exec
INSERT INTO core.contacts (tenant_id, contact_id, cell_id, known, created_at)
SELECT t, c, cell, k, @created_at
FROM ROWS FROM (unnest(@tenants::uuid[]), unnest(@contacts::uuid[]), unnest(@cells::text[]), unnest(@known::bool[])) AS u(t, c, cell, k);

-- Anonymous contacts that the batch learnt to know.
-- name: MarkContactsKnown :exec
UPDATE core.contacts c SET known = true, updated_at = now()
FROM ROWS FROM (unnest(@tenants::uuid[]), unnest(@contacts::uuid[])) AS u(tenant_id, contact_id)
WHERE c.tenant_id = u.tenant_id AND c.contact_id = u.contact_id;

-- Records a merge. By the wall clock, not the transaction's, so that a batch's
-- merges keep their order.
-- name: InsertMerge :exec
INSERT INTO core.contact_merges (tenant_id, from_contact, into_contact, cause_event_id, merged_at)
VALUES (@tenant_id, @from_contact, @into_contact, @cause_event_id::uuid, clock_timestamp());

-- Gives a merged contact's identifiers to its survivor, and remembers whose they
-- were first, so that the merge can be undone.
-- name: MoveIdentifiers :exec
UPDATE core.contact_identifiers SET contact_id = @into_contact, first_contact = coalesce(first_contact, contact_id) WHERE tenant_id = @tenant_id AND contact_id = @from_contact;

-- Contacts that met and were not merged, once an event.
-- name: RecordIdentityConflict :exec
INSERT INTO core.identity_conflicts (tenant_id, event_id, contacts, reason)
VALUES (@tenant_id, @event_id, @contacts, 'external_id') ON CONFLICT DO NOTHING;

-- Reads traits to change them: the rows are locked in one order, without the
-- keys, which identifiers refer to. An erasure that came first is seen here: it
-- held the rows until its commit.
-- name: LockTraits :many
SELECT c.contact_id, c.traits, c.trait_times, (c.erased_at IS NOT NULL)::bool AS erased FROM core.contacts c
JOIN ROWS FROM (unnest(@tenants::uuid[]), unnest(@contacts::uuid[])) AS u(tenant_id, contact_id) ON c.tenant_id = u.tenant_id AND c.contact_id = u.contact_id
ORDER BY c.tenant_id, c.contact_id FOR NO KEY UPDATE OF c;

-- Writes back what LockTraits read and the batch changed.
-- name: WriteTraits :exec
UPDATE core.contacts c SET traits = u.traits::jsonb, trait_times = u.times::jsonb, updated_at = now()
FROM ROWS FROM (unnest(@tenants::uuid[]), unnest(@contacts::uuid[]), unnest(@traits::text[]), unnest(@trait_times::text[])) AS u(tenant_id, contact_id, traits, times)
WHERE c.tenant_id = u.tenant_id AND c.contact_id = u.contact_id;

-- The keys of those tenants who erased somebody since the batch's oldest record
-- was received: of most batches, none.
-- name: ErasureKeys :many
SELECT tenant_id, key FROM core.erasure_keys WHERE tenant_id = ANY(@tenants::uuid[]) AND last_erased_at >= sqlc.arg(oldest)::timestamptz;

-- When whom these hashes stand for was erased.
-- name: Tombstones :many
SELECT e.tenant_id, e.hash, e.erased_at
FROM ROWS FROM (unnest(@tenants::uuid[]), unnest(@hashes::bytea[])) AS u(tenant_id, hash)
JOIN core.erased_identifiers e ON e.tenant_id = u.tenant_id AND e.hash = u.hash;
