-- +goose Up
ALTER TABLE core.contact_identifiers ADD COLUMN first_contact uuid;
COMMENT ON COLUMN core.contact_identifiers.first_contact IS 'Whose it was before merges moved it; an undone merge gives it back. Null: contact_id''s own.';

ALTER TABLE core.contact_merges
    ADD COLUMN merged_by     text NOT NULL DEFAULT '',
    ADD COLUMN reason        text NOT NULL DEFAULT '',
    ADD COLUMN undone_by     text,
    ADD COLUMN undone_reason text;
COMMENT ON COLUMN core.contact_merges.merged_by IS 'The operator who merged by hand; empty where an event did.';

-- +goose Down
ALTER TABLE core.contact_merges DROP COLUMN merged_by, DROP COLUMN reason, DROP COLUMN undone_by, DROP COLUMN undone_reason;
ALTER TABLE core.contact_identifiers DROP COLUMN first_contact;
