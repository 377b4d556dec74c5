-- +goose Up
ALTER TABLE core.taxonomy_schemas ALTER COLUMN schema TYPE text USING schema::text;
ALTER TABLE core.taxonomy_schemas RENAME COLUMN created_at TO installed_at;
ALTER TABLE core.taxonomy_schemas ADD COLUMN ended_at timestamptz;
UPDATE core.taxonomy_schemas t SET ended_at = now()
WHERE version < (SELECT max(version) FROM core.taxonomy_schemas n WHERE n.tenant_id = t.tenant_id AND n.event_name = t.event_name);
CREATE UNIQUE INDEX taxonomy_schemas_in_force ON core.taxonomy_schemas (tenant_id, event_name) WHERE ended_at IS NULL;
COMMENT ON COLUMN core.taxonomy_schemas.schema IS 'A JSON Schema of draft 2020-12, as it was sent.';
COMMENT ON COLUMN core.taxonomy_schemas.mode IS 'enforce refuses what does not match, observe takes it and leaves a warning.';
COMMENT ON COLUMN core.taxonomy_schemas.ended_at IS 'When another version, or none, took its place; null while it is in force.';

-- +goose StatementBegin
CREATE FUNCTION core.notify_taxonomy() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_notify('carril_taxonomy', coalesce(NEW.tenant_id, OLD.tenant_id)::text);
    RETURN NULL;
END $$;
-- +goose StatementEnd
CREATE TRIGGER taxonomy_changed AFTER INSERT OR UPDATE OR DELETE ON core.taxonomy_schemas
    FOR EACH ROW EXECUTE FUNCTION core.notify_taxonomy();
COMMENT ON FUNCTION core.notify_taxonomy IS 'Tells every replica to read a tenant''s schemas again.';

-- +goose Down
DROP TRIGGER taxonomy_changed ON core.taxonomy_schemas;
DROP FUNCTION core.notify_taxonomy;
DROP INDEX core.taxonomy_schemas_in_force;
ALTER TABLE core.taxonomy_schemas DROP COLUMN ended_at;
ALTER TABLE core.taxonomy_schemas RENAME COLUMN installed_at TO created_at;
ALTER TABLE core.taxonomy_schemas ALTER COLUMN schema TYPE jsonb USING schema::jsonb;
