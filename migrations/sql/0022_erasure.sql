-- +goose Up
CREATE TABLE core.erasure_keys (
    tenant_id      uuid PRIMARY KEY REFERENCES core.tenants,
    key            bytea NOT NULL CHECK (octet_length(key) = 32),
    last_erased_at timestamptz,
    created_at     timestamptz NOT NULL DEFAULT now()
);
COMMENT ON TABLE core.erasure_keys IS 'A tenant''s key for the hashes of what was erased, made by its first erasure. Never exported, hidden from carril_readonly; without it a hash tells nobody which address it was.';
COMMENT ON COLUMN core.erasure_keys.last_erased_at IS 'What was received after it needs no look at the tombstones.';

CREATE TABLE core.erasures (
    erasure_id   uuid PRIMARY KEY,
    tenant_id    uuid NOT NULL REFERENCES core.tenants,
    contact_id   uuid,
    contacts     uuid[] NOT NULL,
    cause        text NOT NULL CHECK (cause IN ('request', 'anonymous')),
    requested_by text NOT NULL,
    erased_at    timestamptz NOT NULL,
    after_xid    xid8 NOT NULL,
    passes       integer NOT NULL DEFAULT 0,
    next_at      timestamptz,
    done_at      timestamptz,
    failures     integer NOT NULL DEFAULT 0,
    last_error   text,
    CHECK ((cause = 'request') = (contact_id IS NOT NULL)),
    CHECK (done_at IS NULL OR next_at IS NULL)
);
CREATE UNIQUE INDEX erasures_contact ON core.erasures (tenant_id, contact_id) WHERE contact_id IS NOT NULL;
CREATE INDEX erasures_next ON core.erasures (next_at) WHERE done_at IS NULL;
COMMENT ON TABLE core.erasures IS 'Erasures of people, and of anonymous contacts by the tenant''s clock. Once there is a row its contacts are erased for good; the rest is done store by store and resumed from here.';
COMMENT ON COLUMN core.erasures.contacts IS 'The contact and all that were merged into it.';
COMMENT ON COLUMN core.erasures.after_xid IS 'The erasing transaction: who began before it may still write to the contacts.';
COMMENT ON COLUMN core.erasures.passes IS 'How often all stores were gone through: what was on its way meanwhile is met by a later pass.';

CREATE TABLE core.erasure_stores (
    erasure_id uuid NOT NULL REFERENCES core.erasures ON DELETE CASCADE,
    store      text NOT NULL,
    passes     integer NOT NULL DEFAULT 0,
    rows       bigint NOT NULL DEFAULT 0,
    cursor     jsonb,
    due_at     timestamptz NOT NULL,
    done_at    timestamptz,
    PRIMARY KEY (erasure_id, store)
);
COMMENT ON TABLE core.erasure_stores IS 'How far an erasure has come in each store; docs/erasure.md says what is done there.';
COMMENT ON COLUMN core.erasure_stores.rows IS 'How many rows were emptied or deleted, in all passes.';
COMMENT ON COLUMN core.erasure_stores.cursor IS 'Where the pass under way stands; null: at the beginning.';

ALTER TABLE core.erased_identifiers ADD COLUMN erasure_id uuid;
CREATE INDEX erased_identifiers_erasure ON core.erased_identifiers (erasure_id);
COMMENT ON COLUMN core.erased_identifiers.hash IS 'core.erased_hash of the kind and the normalised value under the tenant''s key.';

CREATE INDEX warnings_event ON core.warnings (tenant_id, event_id) WHERE event_id IS NOT NULL;

-- +goose StatementBegin
CREATE FUNCTION core.erased_hash(key bytea, kind text, value text) RETURNS bytea LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE AS $$
    SELECT sha256(key || sha256(key || convert_to(kind || E'\n' || value, 'UTF8')))
$$;

CREATE FUNCTION core.erased_address(tenant uuid, channel text, address text) RETURNS text LANGUAGE sql STABLE STRICT PARALLEL SAFE AS $$
    SELECT 'erased:' || encode(core.erased_hash(k.key, CASE channel WHEN 'email' THEN 'email' ELSE 'phone' END, address), 'hex')
    FROM core.erasure_keys k WHERE k.tenant_id = tenant
$$;
-- +goose StatementEnd
COMMENT ON FUNCTION core.erased_hash IS 'Keyed hash of an identifier; the product computes the same in internal/identifier.';
COMMENT ON FUNCTION core.erased_address IS 'What stands in messaging.suppressions for an erased person''s address; null where the tenant has erased nobody.';

-- A report or an operator may suppress an erased person's address after the
-- erasure. Where nobody has come back under it, only its hash is written down.
-- +goose StatementBegin
CREATE FUNCTION messaging.hide_erased_address() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE of_kind text := CASE NEW.channel WHEN 'email' THEN 'email' ELSE 'phone' END;
BEGIN
    IF NEW.address LIKE 'erased:%' THEN
        RETURN NEW;
    END IF;
    IF EXISTS (SELECT FROM core.erasure_keys k JOIN core.erased_identifiers e ON e.tenant_id = k.tenant_id
            AND e.hash = core.erased_hash(k.key, of_kind, NEW.address) WHERE k.tenant_id = NEW.tenant_id)
        AND NOT EXISTS (SELECT FROM core.contact_identifiers i WHERE i.tenant_id = NEW.tenant_id AND i.kind = of_kind AND i.value = NEW.address) THEN
        NEW.address := core.erased_address(NEW.tenant_id, NEW.channel, NEW.address);
    END IF;
    RETURN NEW;
END $$;

CREATE FUNCTION core.guard_erased_contact() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.erased_at IS NULL OR NEW.traits <> '{}' OR NEW.trait_times <> '{}' THEN
        RAISE EXCEPTION 'an erased contact stays erased' USING ERRCODE = 'restrict_violation';
    END IF;
    RETURN NEW;
END $$;
-- +goose StatementEnd
CREATE TRIGGER hide_erased BEFORE INSERT OR UPDATE OF address ON messaging.suppressions
    FOR EACH ROW EXECUTE FUNCTION messaging.hide_erased_address();
CREATE TRIGGER stays_erased BEFORE UPDATE ON core.contacts
    FOR EACH ROW WHEN (OLD.erased_at IS NOT NULL) EXECUTE FUNCTION core.guard_erased_contact();
COMMENT ON FUNCTION core.guard_erased_contact IS 'Nothing brings an erased person back.';

-- +goose StatementBegin
CREATE FUNCTION core.open_leaf(parent_table text, leaf oid) RETURNS text LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp AS $$
DECLARE found text;
BEGIN
    SELECT l.name INTO found FROM core.leaves(parent_table, '-infinity', 'infinity') l WHERE l.leaf = open_leaf.leaf;
    IF found IS NOT NULL AND NOT has_table_privilege('carril_eraser', leaf, 'SELECT, UPDATE') THEN
        EXECUTE 'GRANT SELECT, UPDATE ON ' || found || ' TO carril_eraser';
    END IF;
    RETURN found;
END $$;

-- The role carril_eraser owns the two functions that empty rows; its rights are
-- all they have, and core.guard_tracked_event lets it do this and nothing else.
CREATE FUNCTION core.erase_events(leaf text, tenant uuid, who uuid[], at timestamptz, behind uuid, page integer)
RETURNS TABLE (event_id uuid, occurred_at timestamptz, received_at timestamptz, emptied boolean) LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN QUERY EXECUTE format($q$
        WITH page AS (
            SELECT e.ctid AS place, e.event_id, e.occurred_at, e.received_at, e.properties <> '{}' OR e.idempotency_key <> '' AS full
            FROM %1$s e WHERE e.tenant_id = $1 AND e.contact_id = ANY($2) AND e.occurred_at >= $3 AND (e.occurred_at, e.event_id) > ($3, $4)
            ORDER BY e.occurred_at, e.event_id LIMIT $5 FOR UPDATE
        ), emptied AS (
            UPDATE %1$s e SET properties = '{}', idempotency_key = '' FROM page p WHERE e.ctid = p.place AND p.full
        )
        SELECT p.event_id, p.occurred_at, p.received_at, p.full FROM page p ORDER BY p.occurred_at, p.event_id$q$, leaf::regclass)
    USING tenant, who, at, behind, page;
END $$;

CREATE FUNCTION core.erase_sends(leaf text, tenant uuid, who uuid[], at timestamptz, behind uuid, page integer)
RETURNS TABLE (send_id uuid, requested_at timestamptz, channel text, address text, emptied boolean) LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN QUERY EXECUTE format($q$
        WITH page AS (
            SELECT s.ctid AS place, s.send_id, s.requested_at, s.channel, s.address, s.content IS NOT NULL OR s.address IS NOT NULL AS full
            FROM %1$s s WHERE s.tenant_id = $1 AND s.contact_id = ANY($2) AND s.requested_at >= $3 AND (s.requested_at, s.send_id) > ($3, $4)
            ORDER BY s.requested_at, s.send_id LIMIT $5 FOR UPDATE
        ), emptied AS (
            UPDATE %1$s s SET content = NULL, address = NULL FROM page p WHERE s.ctid = p.place AND p.full
        )
        SELECT p.send_id, p.requested_at, p.channel, p.address, p.full FROM page p ORDER BY p.requested_at, p.send_id$q$, leaf::regclass)
    USING tenant, who, at, behind, page;
END $$;

DO $$
DECLARE super boolean := (SELECT rolsuper FROM pg_roles WHERE rolname = current_user);
BEGIN
    IF NOT super THEN
        IF NOT pg_has_role(current_user, 'carril_eraser', 'MEMBER') THEN
            EXECUTE format('GRANT carril_eraser TO %I', current_user);
        END IF;
        GRANT CREATE ON SCHEMA core TO carril_eraser;
    END IF;
    ALTER FUNCTION core.erase_events(text, uuid, uuid[], timestamptz, uuid, integer) OWNER TO carril_eraser;
    ALTER FUNCTION core.erase_sends(text, uuid, uuid[], timestamptz, uuid, integer) OWNER TO carril_eraser;
    IF NOT super THEN
        REVOKE CREATE ON SCHEMA core FROM carril_eraser;
    END IF;
END $$;
-- +goose StatementEnd
COMMENT ON FUNCTION core.open_leaf IS 'Lets carril_eraser at a leaf; its name, or null where it is gone.';
COMMENT ON FUNCTION core.erase_events IS 'Empties a page of people''s events in a leaf, and gives the page.';
COMMENT ON FUNCTION core.erase_sends IS 'Empties a page of people''s sends in a leaf, and gives the page with the addresses that stood there.';
REVOKE ALL ON FUNCTION core.open_leaf, core.erase_events, core.erase_sends FROM PUBLIC;
GRANT EXECUTE ON FUNCTION core.open_leaf, core.erase_events, core.erase_sends TO carril_app;
GRANT SELECT, INSERT, UPDATE ON core.erasure_keys TO carril_app;
GRANT SELECT, INSERT, UPDATE, DELETE ON core.erasures, core.erasure_stores TO carril_app;
GRANT SELECT ON core.erasures, core.erasure_stores TO carril_readonly;

-- +goose Down
DROP TRIGGER stays_erased ON core.contacts;
DROP TRIGGER hide_erased ON messaging.suppressions;
DROP FUNCTION core.erase_sends, core.erase_events, core.open_leaf, core.guard_erased_contact, messaging.hide_erased_address,
    core.erased_address, core.erased_hash;
DROP INDEX core.warnings_event;
DROP INDEX core.erased_identifiers_erasure;
ALTER TABLE core.erased_identifiers DROP COLUMN erasure_id;
DROP TABLE core.erasure_stores, core.erasures, core.erasure_keys;
