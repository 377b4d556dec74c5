-- +goose Up
-- Headers are written once, read once and never searched: PostgreSQL need not take
-- them apart. As jsonb they cost more than the rest of a message's row. A process of
-- the version before writes jsonb's binary form, which is the text behind a 1, and
-- what it inserts otherwise waits for the new version.
ALTER TABLE core.outbox ALTER COLUMN headers TYPE bytea USING convert_to(headers::text, 'UTF8');
COMMENT ON COLUMN core.outbox.headers IS '[[key, value], …] as JSON; convert_from(headers, ''UTF8'') shows it.';

-- +goose Down
ALTER TABLE core.outbox ALTER COLUMN headers TYPE jsonb USING convert_from(headers, 'UTF8')::jsonb;
