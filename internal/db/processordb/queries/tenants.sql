-- What the stages need to know of a tenant.
-- name: Tenant :one
SELECT t.cell_id, p.retention_months FROM core.tenants t JOIN core.plans p USING (plan_id) WHERE t.tenant_id = @tenant_id;
