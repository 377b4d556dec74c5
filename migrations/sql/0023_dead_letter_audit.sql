-- +goose Up
ALTER TABLE core.dead_letters
    ADD COLUMN status_note text,
    ADD COLUMN replay_lane integer,
    ADD COLUMN replay_seq  bigint;
CREATE INDEX dead_letters_stage ON core.dead_letters (stage, class, created_at) WHERE status = 'open';
COMMENT ON COLUMN core.dead_letters.status_by IS 'Who replayed or discarded it.';
COMMENT ON COLUMN core.dead_letters.status_note IS 'Why it was discarded or replayed, in their words.';
COMMENT ON COLUMN core.dead_letters.replay_seq IS 'Its place in the outbox lane that put it back on its topic.';

-- +goose Down
DROP INDEX core.dead_letters_stage;
ALTER TABLE core.dead_letters DROP COLUMN status_note, DROP COLUMN replay_lane, DROP COLUMN replay_seq;
