-- +goose Up
-- A day is dropped when it is 25 h old: one more behind it would be made again and
-- again.
UPDATE core.partitioned_tables SET behind = 1 WHERE parent = 'messaging.send_requests';
ALTER TABLE core.retention_ledger
    ADD COLUMN successor   text,
    ADD COLUMN export_run  uuid,
    ADD COLUMN moved       bigint NOT NULL DEFAULT 0,
    ADD COLUMN superseded  text[] NOT NULL DEFAULT '{}',
    ADD COLUMN exported_at timestamptz,
    ADD COLUMN trouble     text;
COMMENT ON COLUMN core.retention_ledger.leaf IS 'The detached table, schema.table.';
COMMENT ON COLUMN core.retention_ledger.successor IS 'The empty leaf that took its place, where late records go.';
COMMENT ON COLUMN core.retention_ledger.export_run IS 'Names the objects of the export in force; another one where rows changed after an export.';
COMMENT ON COLUMN core.retention_ledger.moved IS 'Rows that went to a longer class because their tenant''s plan grew.';
COMMENT ON COLUMN core.retention_ledger.superseded IS 'Manifests of exports that rows changed after (an erasure, a grown plan): they stand for nothing and may be deleted.';
COMMENT ON COLUMN core.retention_ledger.trouble IS 'Why the last step did not come about; null when it did.';

CREATE TABLE core.expired_keys (
    due_at    timestamptz NOT NULL,
    tenant_id uuid NOT NULL,
    event_id  uuid NOT NULL
);
CREATE INDEX expired_keys_due ON core.expired_keys (due_at);
COMMENT ON TABLE core.expired_keys IS 'Fence rows whose leaf is gone, and when they may follow it: a key lasts the longest of its class and the topic''s retention after it was received, whatever month its event lay in.';
GRANT SELECT, INSERT, UPDATE, DELETE ON core.expired_keys TO carril_app;
GRANT SELECT ON core.expired_keys TO carril_readonly;

-- +goose StatementBegin
CREATE FUNCTION core.due_leaves(at timestamptz) RETURNS TABLE (parent text, leaf oid, name text, lower_bound timestamptz, upper_bound timestamptz, retention_months smallint)
LANGUAGE sql STABLE SET search_path = pg_catalog SET timezone = 'UTC' AS $$
    SELECT p.parent, t.part, t.name, t.lower_bound, t.upper_bound, t.retention_months
    FROM core.partitioned_tables p CROSS JOIN LATERAL core.partition_tree(p.parent) t
    WHERE p.classes AND t.is_leaf AND NOT t.is_default AND t.upper_bound <= at - make_interval(months => t.retention_months)
    ORDER BY t.lower_bound, t.retention_months, p.parent
$$;

CREATE FUNCTION core.is_empty(rel regclass) RETURNS boolean LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog AS $$
DECLARE
    found boolean;
BEGIN
    EXECUTE format('SELECT NOT EXISTS (SELECT FROM %s)', rel) INTO found;
    RETURN found;
END $$;

-- The one way to rows that are on their way out. It is called in the same
-- statement as the read of the parent, so that both see one state: a row is in
-- one of the two, always.
CREATE FUNCTION core.detached(rows_of anyelement, lo timestamptz, hi timestamptz, tenants uuid[]) RETURNS SETOF anyelement
LANGUAGE plpgsql STABLE SET search_path = pg_catalog AS $$
DECLARE
    of regclass := (SELECT typrelid FROM pg_type WHERE oid = pg_typeof(rows_of));
    time_column text;
    d record; columns text;
BEGIN
    FOR d IN SELECT l.leaf, l.leaf_oid FROM core.retention_ledger l
        WHERE l.parent = of::text AND l.state <> 'dropped' AND l.lower_bound <= hi AND l.upper_bound > lo LOOP
        IF to_regclass(d.leaf) IS DISTINCT FROM d.leaf_oid::regclass THEN
            RAISE EXCEPTION '% was dropped meanwhile', d.leaf USING ERRCODE = 'serialization_failure';
        END IF;
        time_column := core.partition_column(of::text);
        -- A column that the parent was given since has no value here.
        columns := (SELECT string_agg(coalesce('d.' || quote_ident(have.attname), 'NULL::' || format_type(want.atttypid, want.atttypmod)), ', ' ORDER BY want.attnum)
            FROM pg_attribute want LEFT JOIN pg_attribute have ON have.attrelid = d.leaf_oid AND have.attname = want.attname AND NOT have.attisdropped
            WHERE want.attrelid = of AND want.attnum > 0 AND NOT want.attisdropped);
        BEGIN
            RETURN QUERY EXECUTE format('SELECT %s FROM %s d WHERE d.%3$I >= $1 AND d.%3$I <= $2 AND ($3 IS NULL OR d.tenant_id = ANY ($3))',
                columns, d.leaf, time_column) USING lo, hi, tenants;
        EXCEPTION WHEN undefined_table THEN
            RAISE EXCEPTION '% was dropped meanwhile', d.leaf USING ERRCODE = 'serialization_failure';
        END;
    END LOOP;
END $$;

-- Lanes whose relay has not passed what they wrote into a range of time.
CREATE FUNCTION core.unpublished_lanes(lo timestamptz, hi timestamptz) RETURNS TABLE (lane integer, producer text, relay bigint, last_seq bigint)
LANGUAGE sql STABLE SET search_path = pg_catalog AS $$
    SELECT l.lane, l.producer, coalesce(c.cursor, 0), s.last_seq
    FROM core.outbox_lanes l LEFT JOIN core.outbox_cursors c ON c.lane = l.lane AND c.consumer = 'relay'
    CROSS JOIN LATERAL (SELECT max(s.last_seq) AS last_seq FROM core.event_spans s
        WHERE s.lane = l.lane AND s.last_seq > coalesce(c.cursor, 0) AND s.min_occurred < hi AND s.max_occurred >= lo
            AND s.first_seq >= (SELECT coalesce(max(f.first_seq), 0) FROM core.event_spans f WHERE f.lane = l.lane AND f.first_seq <= coalesce(c.cursor, 0) + 1)) s
    WHERE l.store = 'events' AND s.last_seq IS NOT NULL ORDER BY l.lane
$$;

-- Takes a leaf out and puts an empty one in its place, in the caller's
-- transaction. A detached table loses the triggers that its parent gave it, and
-- nobody but its owner could read it: both are given back.
CREATE FUNCTION core.detach_leaf(of_table text, leaf_table regclass, run uuid) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog SET timezone = 'UTC' SET datestyle = 'ISO, YMD' SET lock_timeout = '1s' AS $$
DECLARE
    t record; g record; successor regclass;
BEGIN
    PERFORM pg_advisory_xact_lock(hashtextextended('carril.partitions', 0));
    SELECT p.step::regclass AS step, p.name, p.lower_bound, p.upper_bound, p.retention_months INTO STRICT t
        FROM core.partition_tree(of_table) p WHERE p.part = leaf_table AND p.retention_months IS NOT NULL;
    EXECUTE format('ALTER TABLE %s DETACH PARTITION %s', t.step, leaf_table);
    successor := core.attach_leaf(t.step, (SELECT relname FROM pg_class WHERE oid = t.step) || '_r' || t.retention_months || '_' || left(run::text, 8), t.retention_months);
    FOR g IN SELECT tgname, tgfoid::regproc AS does FROM pg_trigger WHERE tgrelid = of_table::regclass AND tgname = 'append_only' LOOP
        EXECUTE format('CREATE TRIGGER %I BEFORE UPDATE OR DELETE ON %s FOR EACH ROW EXECUTE FUNCTION %s()', g.tgname, leaf_table, g.does);
    END LOOP;
    FOR g IN SELECT DISTINCT a.grantee::regrole AS who, a.privilege_type AS may FROM pg_class c CROSS JOIN LATERAL aclexplode(c.relacl) a
        WHERE c.oid = of_table::regclass AND a.grantee <> 0 AND a.grantee <> c.relowner AND a.privilege_type IN ('SELECT', 'UPDATE') LOOP
        EXECUTE format('GRANT %s ON %s TO %s', g.may, leaf_table, g.who);
    END LOOP;
    EXECUTE format('COMMENT ON TABLE %s IS %L', leaf_table, 'Detached from ' || of_table || ' by retention run ' || run || '; see core.retention_ledger.');
    INSERT INTO core.retention_ledger (run_id, parent, leaf, leaf_oid, lower_bound, upper_bound, retention_months, state, successor, export_run)
        VALUES (run, of_table, t.name, leaf_table, t.lower_bound, t.upper_bound, t.retention_months, 'detached', successor::text, run);
    RETURN successor::text;
END $$;

-- The tenants whose plan now keeps a detached table's rows for longer.
CREATE FUNCTION core.growers(run uuid, at timestamptz) RETURNS TABLE (tenant_id uuid, months smallint)
LANGUAGE sql STABLE SET search_path = pg_catalog SET timezone = 'UTC' AS $$
    SELECT t.tenant_id, p.retention_months FROM core.retention_ledger l
    JOIN core.plans p ON p.retention_months > l.retention_months AND l.upper_bound > at - make_interval(months => p.retention_months)
    JOIN core.tenants t ON t.plan_id = p.plan_id
    WHERE l.run_id = run
$$;

CREATE FUNCTION core.has_grown(run uuid, at timestamptz) RETURNS boolean LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog AS $$
DECLARE
    found boolean; leaf text := (SELECT l.leaf FROM core.retention_ledger l WHERE l.run_id = run AND l.state <> 'dropped');
BEGIN
    EXECUTE format('SELECT EXISTS (SELECT FROM core.growers($1, $2) g WHERE EXISTS (SELECT FROM %s d WHERE d.tenant_id = g.tenant_id))', leaf) INTO found USING run, at;
    RETURN found;
END $$;

-- Moves what grown plans keep into its longer class, with the ledger, in the
-- caller's transaction. Like core.move_strays it may remove rows of an
-- append-only table because it has just written the same number elsewhere.
CREATE FUNCTION core.move_grown(run uuid, at timestamptz) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog SET timezone = 'UTC' SET lock_timeout = '1s' AS $$
DECLARE
    l core.retention_ledger; c smallint; n bigint; m bigint; columns text;
BEGIN
    SELECT * INTO STRICT l FROM core.retention_ledger r WHERE r.run_id = run AND r.state <> 'dropped' FOR UPDATE;
    EXECUTE format('LOCK TABLE %s IN SHARE ROW EXCLUSIVE MODE', l.leaf);
    FOR c IN SELECT DISTINCT months FROM core.growers(run, at) LOOP
        PERFORM core.ensure_partition(l.parent, l.lower_bound, c);
    END LOOP;
    columns := (SELECT string_agg(quote_ident(attname), ', ' ORDER BY attnum) FROM pg_attribute
        WHERE attrelid = l.leaf_oid AND attnum > 0 AND NOT attisdropped AND attname <> 'retention_months');
    EXECUTE format('INSERT INTO %1$s (%2$s, retention_months) OVERRIDING SYSTEM VALUE SELECT %3$s, g.months FROM %4$s d JOIN core.growers($1, $2) g ON g.tenant_id = d.tenant_id',
        l.parent, columns, 'd.' || replace(columns, ', ', ', d.'), l.leaf) USING run, at;
    GET DIAGNOSTICS n = ROW_COUNT;
    IF n > 0 THEN
        EXECUTE format('ALTER TABLE %s DISABLE TRIGGER append_only', l.leaf);
        EXECUTE format('DELETE FROM %s d WHERE EXISTS (SELECT FROM core.growers($1, $2) g WHERE g.tenant_id = d.tenant_id)', l.leaf) USING run, at;
        GET DIAGNOSTICS m = ROW_COUNT;
        EXECUTE format('ALTER TABLE %s ENABLE TRIGGER append_only', l.leaf);
        IF n <> m THEN
            RAISE EXCEPTION 'moved % rows out of % and % into %', m, l.leaf, n, l.parent;
        END IF;
        UPDATE core.retention_ledger r SET moved = r.moved + n, state = 'detached', object = NULL, rows = NULL, sha256 = NULL, export_run = gen_random_uuid(),
            superseded = CASE WHEN r.object IS NULL THEN r.superseded ELSE r.superseded || r.object END WHERE r.run_id = run;
    END IF;
    RETURN n;
END $$;

-- Keeps everybody away from a detached table until the transaction ends.
CREATE FUNCTION core.lock_detached(run uuid) RETURNS void LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog SET lock_timeout = '1s' AS $$
DECLARE
    l core.retention_ledger;
BEGIN
    SELECT * INTO STRICT l FROM core.retention_ledger r WHERE r.run_id = run AND r.state = 'verified' FOR UPDATE;
    EXECUTE format('LOCK TABLE %s IN ACCESS EXCLUSIVE MODE', l.leaf);
END $$;

-- Whether a detached table of events holds any that no relay has published.
CREATE FUNCTION core.detached_unpublished(run uuid) RETURNS bigint LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog AS $$
DECLARE
    l core.retention_ledger; n bigint := 0;
BEGIN
    SELECT * INTO STRICT l FROM core.retention_ledger r WHERE r.run_id = run AND r.state <> 'dropped';
    IF l.parent = 'core.tracked_events' THEN
        EXECUTE format('SELECT count(*) FROM %s d LEFT JOIN core.outbox_cursors c ON c.lane = d.lane AND c.consumer = ''relay'' WHERE d.lane_seq > coalesce(c.cursor, 0)', l.leaf) INTO n;
    END IF;
    RETURN n;
END $$;

-- What stays when a detached table goes, and its end. Runs in the transaction
-- that has locked the table and found it equal to its export.
CREATE FUNCTION core.drop_detached(run uuid, topic_retention interval, at timestamptz) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog SET timezone = 'UTC' AS $$
DECLARE
    l core.retention_ledger;
BEGIN
    SELECT * INTO STRICT l FROM core.retention_ledger r WHERE r.run_id = run AND r.state = 'verified';
    CASE l.parent
    WHEN 'core.tracked_events' THEN
        EXECUTE format('INSERT INTO core.monthly_counts AS m (tenant_id, month, source, name, count)
            SELECT tenant_id, $1, ''events'', event_name, count(*) FROM %s GROUP BY tenant_id, event_name
            ON CONFLICT (tenant_id, month, source, name, status) DO UPDATE SET count = m.count + EXCLUDED.count', l.leaf) USING l.lower_bound::date;
        EXECUTE format('INSERT INTO core.expired_keys (due_at, tenant_id, event_id)
            SELECT received_at + greatest(make_interval(months => $1), $2), tenant_id, event_id FROM %s', l.leaf) USING l.retention_months::integer, topic_retention;
    WHEN 'messaging.sends' THEN
        EXECUTE format('INSERT INTO core.monthly_counts AS m (tenant_id, month, source, name, status, count)
            WITH history AS MATERIALIZED (
                SELECT h.send_id, h.status, h.generation FROM messaging.send_status_history h WHERE h.requested_at >= $1 AND h.requested_at < $2
                UNION ALL
                SELECT h.send_id, h.status, h.generation FROM core.detached(NULL::messaging.send_status_history, $1, $2, NULL) h WHERE h.requested_at < $2
            ), newest AS (SELECT send_id, max(generation) AS generation FROM history GROUP BY send_id
            ), final AS (
                SELECT DISTINCT ON (h.send_id) h.send_id, h.status FROM history h JOIN newest n USING (send_id) JOIN messaging.send_statuses s ON s.status = h.status
                WHERE h.status <> ''failed'' OR h.generation = n.generation ORDER BY h.send_id, s.rank DESC
            )
            SELECT d.tenant_id, $3, ''sends'', d.channel || ''/'' || d.category, coalesce(f.status, ''queued''), count(*)
            FROM %s d LEFT JOIN final f USING (send_id) GROUP BY 1, 4, 5
            ON CONFLICT (tenant_id, month, source, name, status) DO UPDATE SET count = m.count + EXCLUDED.count', l.leaf)
            USING l.lower_bound, l.upper_bound, l.lower_bound::date;
    ELSE NULL; -- a history is counted with its sends
    END CASE;
    EXECUTE format('DROP TABLE %s', l.leaf);
    UPDATE core.retention_ledger r SET state = 'dropped', dropped_at = at, trouble = NULL WHERE r.run_id = run;
END $$;

-- Removes a leaf that is empty and long due, and its step once it has no other.
CREATE FUNCTION core.drop_empty_leaf(of_table text, leaf_table regclass) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog SET lock_timeout = '1s' AS $$
DECLARE
    in_step regclass;
BEGIN
    PERFORM pg_advisory_xact_lock(hashtextextended('carril.partitions', 0));
    SELECT p.step INTO STRICT in_step FROM core.partition_tree(of_table) p WHERE p.part = leaf_table AND p.retention_months IS NOT NULL;
    EXECUTE format('LOCK TABLE ONLY %s IN ACCESS EXCLUSIVE MODE', in_step);
    IF NOT core.is_empty(leaf_table) THEN
        RETURN false;
    END IF;
    EXECUTE format('DROP TABLE %s', leaf_table);
    RETURN true;
END $$;

CREATE FUNCTION core.drop_empty_step(of_table text, step_table regclass) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog SET lock_timeout = '1s' AS $$
BEGIN
    PERFORM pg_advisory_xact_lock(hashtextextended('carril.partitions', 0));
    PERFORM FROM core.partition_tree(of_table) t WHERE t.part = step_table AND t.step = step_table AND NOT t.is_leaf;
    IF NOT FOUND OR EXISTS (SELECT FROM pg_inherits WHERE inhparent = step_table) THEN
        RETURN false;
    END IF;
    EXECUTE format('DROP TABLE %s', step_table); -- refuses when a leaf has come meanwhile
    RETURN true;
END $$;

-- Drops a day of work that is over; gives the reason where it is not.
CREATE FUNCTION core.drop_past(of_table text, past regclass) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog SET lock_timeout = '1s' AS $$
DECLARE
    busy boolean := false; reason text; guard text; again text; began timestamptz;
BEGIN
    SELECT t.lower_bound INTO began FROM core.partition_tree(of_table) t JOIN core.partitioned_tables p ON p.parent = of_table AND NOT p.classes
        WHERE t.part = past AND t.upper_bound < now() - interval '1 day';
    IF NOT FOUND THEN
        RAISE EXCEPTION '% is no past of %', past, of_table;
    END IF;
    CASE of_table
    WHEN 'core.outbox' THEN
        reason := 'a relay has not passed it';
        guard := format('SELECT EXISTS (SELECT FROM core.outbox_lanes l LEFT JOIN core.outbox_cursors c ON c.lane = l.lane AND c.consumer = ''relay''
            WHERE EXISTS (SELECT FROM %s d WHERE d.lane = l.lane AND d.lane_seq > coalesce(c.cursor, 0)))', past);
    WHEN 'core.processed_jobs' THEN
        reason := 'jobs of it are open';
        -- A job under review was open before: no index is needed for it under the lock.
        guard := format('SELECT EXISTS (SELECT FROM %s d WHERE d.state IN (''waiting'', ''in_topic'', ''claimed'', ''parked'', ''held'', ''needs_review''))', past);
        again := format('SELECT EXISTS (SELECT FROM %s d WHERE d.state IN (''waiting'', ''in_topic'', ''claimed'', ''parked'', ''held''))', past);
    WHEN 'core.webhook_deliveries' THEN
        reason := 'deliveries of it are pending';
        guard := format('SELECT EXISTS (SELECT FROM %s d WHERE d.state = ''pending'')', past);
    WHEN 'messaging.decisions' THEN
        reason := 'sends of the same month go first';
        guard := format('SELECT EXISTS (SELECT FROM core.retention_ledger l WHERE l.parent = ''messaging.sends'' AND l.state <> ''dropped'' AND l.lower_bound = to_timestamp(%1$s))
            OR EXISTS (SELECT FROM core.partition_tree(''messaging.sends'') t WHERE t.is_leaf AND t.lower_bound = to_timestamp(%1$s) AND NOT core.is_empty(t.part::regclass))',
            extract(epoch FROM began));
    WHEN 'core.webhook_attempts', 'messaging.send_requests' THEN
        guard := 'SELECT false';
    ELSE
        RAISE EXCEPTION 'nothing is known of what may go of %', of_table;
    END CASE;
    FOR pass IN 1..2 LOOP -- again under the lock, which nobody is made to wait for in vain
        EXECUTE CASE pass WHEN 1 THEN guard ELSE coalesce(again, guard) END INTO busy;
        IF busy THEN
            RETURN reason;
        END IF;
        IF pass = 1 THEN
            EXECUTE format('LOCK TABLE ONLY %s IN ACCESS EXCLUSIVE MODE', of_table);
        END IF;
    END LOOP;
    EXECUTE format('DROP TABLE %s', past);
    RETURN NULL;
END $$;

-- Deletes the oldest spans of a lane that are published and whose leaves are
-- gone: no leaf, attached or detached, overlaps them. They go in the order in
-- which they came; the first that must stay keeps what follows.
CREATE FUNCTION core.trim_spans(of_lane integer, page integer) RETURNS bigint LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog AS $$
DECLARE
    n bigint;
BEGIN
    WITH months AS MATERIALIZED (
        SELECT t.lower_bound AS lo, t.upper_bound AS hi FROM core.partition_tree('core.tracked_events') t WHERE t.is_leaf AND NOT t.is_default
        UNION SELECT l.lower_bound, l.upper_bound FROM core.retention_ledger l WHERE l.parent = 'core.tracked_events' AND l.state <> 'dropped'
    ), oldest AS (
        SELECT s.first_seq, s.last_seq <= coalesce(c.cursor, 0) AND NOT EXISTS (SELECT FROM months m WHERE m.lo <= s.max_occurred AND m.hi > s.min_occurred) AS done
        FROM (SELECT * FROM core.event_spans e WHERE e.lane = of_lane ORDER BY e.first_seq LIMIT page) s
        LEFT JOIN core.outbox_cursors c ON c.lane = of_lane AND c.consumer = 'relay'
    ), stays AS (
        SELECT min(first_seq) AS at FROM oldest WHERE NOT done
    )
    DELETE FROM core.event_spans e USING oldest o, stays
    WHERE e.lane = of_lane AND e.first_seq = o.first_seq AND o.done AND (stays.at IS NULL OR o.first_seq < stays.at);
    GET DIAGNOSTICS n = ROW_COUNT;
    RETURN n;
END $$;
-- +goose StatementEnd

COMMENT ON FUNCTION core.due_leaves IS 'Leaves whose whole range is older than their class at an instant (FS-CORE-0006 §9).';
COMMENT ON FUNCTION core.is_empty IS 'Whether a table has no row.';
COMMENT ON FUNCTION core.detached IS 'Rows of a table that were detached and not dropped, in a range of time (both ends count) and of some tenants (null: any). Use: SELECT … FROM core.tracked_events e WHERE … UNION ALL SELECT … FROM core.detached(NULL::core.tracked_events, $1, $2, $3) e WHERE …, in one statement. 40001: one of them was dropped meanwhile, ask again.';
COMMENT ON FUNCTION core.unpublished_lanes IS 'Lanes of events whose relay has not passed what they wrote into a range of time.';
COMMENT ON FUNCTION core.detach_leaf IS 'Detaches a leaf, puts an empty successor in its place and writes the ledger, in one transaction; gives the successor. 55P03: try again.';
COMMENT ON FUNCTION core.growers IS 'Tenants whose plan keeps the rows of a detached table for longer than its class.';
COMMENT ON FUNCTION core.has_grown IS 'Whether a detached table holds rows of such tenants.';
COMMENT ON FUNCTION core.move_grown IS 'Moves the rows of such tenants into their longer class; an export of before is void then.';
COMMENT ON FUNCTION core.lock_detached IS 'Locks a verified detached table until the transaction ends.';
COMMENT ON FUNCTION core.detached_unpublished IS 'How many events of a detached table no relay has passed yet.';
COMMENT ON FUNCTION core.drop_detached IS 'Adds the monthly counts, notes the fence rows that may go, drops the table and closes its ledger row.';
COMMENT ON FUNCTION core.drop_empty_leaf IS 'Drops a leaf if it has no row.';
COMMENT ON FUNCTION core.drop_empty_step IS 'Drops a month that has no leaf.';
COMMENT ON FUNCTION core.drop_past IS 'Drops a past day or month of a table without classes when nothing of it is open; null when it is gone, else why not.';
COMMENT ON FUNCTION core.trim_spans IS 'Deletes spans that lead nowhere any more, at most a page; how many went.';
-- +goose StatementBegin
DO $$
DECLARE
    f text;
BEGIN
    FOREACH f IN ARRAY ARRAY['core.is_empty(regclass)', 'core.detach_leaf(text, regclass, uuid)', 'core.has_grown(uuid, timestamptz)', 'core.move_grown(uuid, timestamptz)', 'core.lock_detached(uuid)',
        'core.detached_unpublished(uuid)', 'core.drop_detached(uuid, interval, timestamptz)', 'core.drop_empty_leaf(text, regclass)',
        'core.drop_empty_step(text, regclass)', 'core.drop_past(text, regclass)', 'core.trim_spans(integer, integer)'] LOOP
        EXECUTE format('REVOKE ALL ON FUNCTION %s FROM PUBLIC', f);
        EXECUTE format('GRANT EXECUTE ON FUNCTION %s TO carril_app', f);
    END LOOP;
END $$;
-- +goose StatementEnd

-- +goose Down
UPDATE core.partitioned_tables SET behind = 2 WHERE parent = 'messaging.send_requests';
DROP FUNCTION core.trim_spans(integer, integer), core.drop_past(text, regclass), core.drop_empty_step(text, regclass), core.drop_empty_leaf(text, regclass),
    core.drop_detached(uuid, interval, timestamptz), core.detached_unpublished(uuid), core.lock_detached(uuid), core.move_grown(uuid, timestamptz),
    core.has_grown(uuid, timestamptz), core.growers(uuid, timestamptz), core.detach_leaf(text, regclass, uuid), core.unpublished_lanes(timestamptz, timestamptz),
    core.detached(anyelement, timestamptz, timestamptz, uuid[]), core.is_empty(regclass), core.due_leaves(timestamptz);
DROP TABLE core.expired_keys;
ALTER TABLE core.retention_ledger DROP COLUMN successor, DROP COLUMN export_run, DROP COLUMN moved, DROP COLUMN superseded, DROP COLUMN exported_at, DROP COLUMN trouble;
