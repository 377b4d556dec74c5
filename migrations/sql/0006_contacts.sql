-- +goose Up
CREATE TABLE core.contacts (
    tenant_id   uuid NOT NULL REFERENCES core.tenants,
    contact_id  uuid NOT NULL,
    cell_id     text NOT NULL,
    known       boolean NOT NULL,
    traits      jsonb NOT NULL DEFAULT '{}',
    trait_times jsonb NOT NULL DEFAULT '{}',
    created_at  timestamptz NOT NULL DEFAULT now(),
    updated_at  timestamptz NOT NULL DEFAULT now(),
    erased_at   timestamptz,
    PRIMARY KEY (tenant_id, contact_id)
);
COMMENT ON TABLE core.contacts IS 'People, known or anonymous. A merged contact keeps its row; core.contact_merges says where it went.';
COMMENT ON COLUMN core.contacts.trait_times IS 'occurred_at of the identify that wrote each trait: the last one wins a key.';

CREATE TABLE core.contact_identifiers (
    tenant_id  uuid NOT NULL,
    kind       text NOT NULL,
    value      text NOT NULL,
    contact_id uuid NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (tenant_id, kind, value),
    FOREIGN KEY (tenant_id, contact_id) REFERENCES core.contacts
);
CREATE INDEX contact_identifiers_contact ON core.contact_identifiers (tenant_id, contact_id);
COMMENT ON TABLE core.contact_identifiers IS 'Normalised identifiers; each belongs to one contact of the tenant.';

CREATE TABLE core.contact_merges (
    tenant_id      uuid NOT NULL,
    from_contact   uuid NOT NULL,
    into_contact   uuid NOT NULL CHECK (into_contact <> from_contact),
    cause_event_id uuid,
    merged_at      timestamptz NOT NULL DEFAULT now(),
    undone_at      timestamptz,
    PRIMARY KEY (tenant_id, from_contact, merged_at)
);
CREATE UNIQUE INDEX contact_merges_live ON core.contact_merges (tenant_id, from_contact) WHERE undone_at IS NULL;
CREATE INDEX contact_merges_into ON core.contact_merges (tenant_id, into_contact) WHERE undone_at IS NULL;
COMMENT ON TABLE core.contact_merges IS 'Which contact became which; events are never rewritten, reads resolve through this. An undone merge stays as history.';

CREATE TABLE core.identity_conflicts (
    tenant_id   uuid NOT NULL,
    event_id    uuid NOT NULL,
    contacts    uuid[] NOT NULL,
    reason      text NOT NULL,
    recorded_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (tenant_id, event_id)
);
COMMENT ON TABLE core.identity_conflicts IS 'Contacts that met and were not merged: two external_ids never become one person.';

CREATE TABLE core.erased_identifiers (
    tenant_id  uuid NOT NULL,
    hash       bytea NOT NULL,
    erased_at  timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (tenant_id, hash)
);
COMMENT ON TABLE core.erased_identifiers IS 'Hashed tombstones: what was received before the erasure never brings the person back.';

-- +goose Down
DROP TABLE core.erased_identifiers, core.identity_conflicts, core.contact_merges, core.contact_identifiers, core.contacts;
