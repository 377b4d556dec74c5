-- +goose Up
-- +goose StatementBegin
CREATE FUNCTION core.notify_tenant_keys() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_notify('carril_keys', key_id) FROM core.api_keys WHERE tenant_id = NEW.tenant_id;
    RETURN NULL;
END $$;
-- +goose StatementEnd
CREATE TRIGGER tenants_changed AFTER UPDATE OF disabled_at, plan_id, clock_policy, cell_id ON core.tenants
    FOR EACH ROW EXECUTE FUNCTION core.notify_tenant_keys();
COMMENT ON FUNCTION core.notify_tenant_keys IS 'Tells every replica to drop a tenant''s keys from its cache at once: a cached key carries its tenant''s settings.';

-- +goose StatementBegin
CREATE FUNCTION core.notify_plan_keys() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_notify('carril_keys', k.key_id) FROM core.api_keys k JOIN core.tenants t ON t.tenant_id = k.tenant_id WHERE t.plan_id = NEW.plan_id;
    RETURN NULL;
END $$;
-- +goose StatementEnd
CREATE TRIGGER plans_changed AFTER UPDATE OF retention_months, events_per_second, events_burst ON core.plans
    FOR EACH ROW EXECUTE FUNCTION core.notify_plan_keys();
COMMENT ON FUNCTION core.notify_plan_keys IS 'As core.notify_tenant_keys, for the tenants of a plan.';

-- +goose Down
DROP TRIGGER plans_changed ON core.plans;
DROP TRIGGER tenants_changed ON core.tenants;
DROP FUNCTION core.notify_plan_keys, core.notify_tenant_keys;
