-- +goose Up
ALTER TABLE messaging.rate_limit_buckets
    ADD COLUMN day_quota   integer CHECK (day_quota >= 0),
    ADD COLUMN month_quota integer CHECK (month_quota >= 0),
    ADD COLUMN reserve     double precision CHECK (reserve >= 0 AND reserve < 1),
    ADD CONSTRAINT rate_limit_buckets_quotas_are_the_providers
        CHECK (scope = 'global' AND rail IS NULL OR num_nonnulls(day_quota, month_quota, reserve) = 0);
COMMENT ON COLUMN messaging.rate_limit_buckets.day_quota IS 'Messages that the provider''s account takes a UTC day; 0 is no limit, null is what the setting says.';
COMMENT ON COLUMN messaging.rate_limit_buckets.month_quota IS 'Messages that the provider''s account takes a month; 0 is no limit, null is what the setting says.';
COMMENT ON COLUMN messaging.rate_limit_buckets.reserve IS 'Share of the quotas that marketing leaves to transactional; null is what the setting says (0.1).';

-- +goose Down
ALTER TABLE messaging.rate_limit_buckets DROP CONSTRAINT rate_limit_buckets_quotas_are_the_providers,
    DROP COLUMN reserve, DROP COLUMN month_quota, DROP COLUMN day_quota;
