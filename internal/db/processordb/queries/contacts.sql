-- A contact and all that were merged into it, through every merge in force; a ring
-- of merges ends where it began.
-- name: Family :many
WITH RECURSIVE who AS (
    SELECT @contact_id::uuid AS contact_id
    UNION
    SELECT m.from_contact FROM who JOIN core.contact_merges m ON m.tenant_id = @tenant_id AND m.into_contact = who.contact_id AND m.undone_at IS NULL
)
SELECT contact_id::uuid AS contact_id FROM who ORDER BY contact_id;

-- Locks contacts against everybody who would attach to them, in one order.
-- name: LockContacts :many
SELECT contact_id, cell_id, known, traits, trait_times, erased_at FROM core.contacts
WHERE tenant_id = @tenant_id AND contact_id = ANY(@contacts::uuid[]) ORDER BY tenant_id, contact_id FOR UPDATE;

-- Whose an identifier is.
-- name: OwnerOf :one
SELECT contact_id FROM core.contact_identifiers WHERE tenant_id = @tenant_id AND kind = @kind AND value = @value;

-- Which of these contacts have an external_id.
-- name: HaveExternalID :many
SELECT DISTINCT contact_id FROM core.contact_identifiers
WHERE tenant_id = @tenant_id AND contact_id = ANY(@contacts::uuid[]) AND kind = 'external_id';

-- Records a merge that an operator made.
-- name: InsertMergeByHand :exec
INSERT INTO core.contact_merges (tenant_id, from_contact, into_contact, merged_at, merged_by, reason)
VALUES (@tenant_id, @from_contact, @into_contact, clock_timestamp(), @merged_by, @reason);

-- Ends the merge in force of a contact; no row where there is none.
-- name: UndoMerge :execrows
UPDATE core.contact_merges SET undone_at = clock_timestamp(), undone_by = sqlc.arg(undone_by)::text, undone_reason = sqlc.arg(reason)::text
WHERE tenant_id = @tenant_id AND from_contact = @from_contact AND undone_at IS NULL;

-- Gives back the identifiers that a contact, or one merged into it, brought along.
-- name: ReturnIdentifiers :execrows
UPDATE core.contact_identifiers SET contact_id = sqlc.arg(contact_id)::uuid, first_contact = nullif(first_contact, sqlc.arg(contact_id)::uuid)
WHERE tenant_id = @tenant_id AND contact_id = @holder AND first_contact = ANY(@family::uuid[]);

-- A contact is known while it has anything but devices.
-- name: JudgeKnown :one
UPDATE core.contacts c SET updated_at = now(), known = EXISTS (SELECT FROM core.contact_identifiers i
    WHERE i.tenant_id = c.tenant_id AND i.contact_id = c.contact_id AND i.kind <> 'anonymous_id')
WHERE c.tenant_id = @tenant_id AND c.contact_id = @contact_id RETURNING known;
