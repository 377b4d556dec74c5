-- +goose Up
-- +goose StatementBegin
CREATE FUNCTION core.leaves(parent_table text, lo timestamptz, hi timestamptz) RETURNS TABLE (leaf oid, name text, detached boolean)
LANGUAGE sql STABLE AS $$
    SELECT c.oid, format('%I.%I', n.nspname, c.relname), u.gone -- the snapshot's names, which regclass does not give
    FROM (SELECT t.part, false FROM core.partition_tree(parent_table) t
        WHERE t.is_leaf AND (t.is_default OR t.lower_bound < hi AND t.upper_bound > lo)
        UNION ALL
        SELECT l.leaf_oid, true FROM core.retention_ledger l
        WHERE l.parent = parent_table AND l.state <> 'dropped' AND l.lower_bound < hi AND l.upper_bound > lo) u (rel, gone)
    JOIN pg_class c ON c.oid = u.rel JOIN pg_namespace n ON n.oid = c.relnamespace
    ORDER BY 2
$$;
-- +goose StatementEnd
COMMENT ON FUNCTION core.leaves IS 'The tables that hold a partitioned table''s rows of a range of time: its leaves, DEFAULT, and what retention has detached and not dropped. All as of the caller''s snapshot, and without a lock on the parent: a reader in REPEATABLE READ that reads these tables sees every row once, and a detach elsewhere does not wait for it.';
GRANT EXECUTE ON FUNCTION core.leaves TO carril_app, carril_readonly;

ALTER TABLE core.outbox_lanes ADD COLUMN restored_counter bigint;
COMMENT ON COLUMN core.outbox_lanes.restored_counter IS 'The smallest counter that a rise of the incarnation met: what a reader of an older incarnation has up to there is what the lane has.';
-- +goose StatementBegin
CREATE FUNCTION core.note_incarnation() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    NEW.restored_counter := least(OLD.restored_counter, OLD.counter);
    RETURN NEW;
END $$;
-- +goose StatementEnd
CREATE TRIGGER note_incarnation BEFORE UPDATE OF incarnation ON core.outbox_lanes
    FOR EACH ROW WHEN (NEW.incarnation > OLD.incarnation) EXECUTE FUNCTION core.note_incarnation();

-- +goose Down
DROP TRIGGER note_incarnation ON core.outbox_lanes;
DROP FUNCTION core.note_incarnation;
ALTER TABLE core.outbox_lanes DROP COLUMN restored_counter;
DROP FUNCTION core.leaves(text, timestamptz, timestamptz);
