-- +goose Up
CREATE TABLE core.retention_classes (
    months smallint PRIMARY KEY CHECK (months >= 1)
);
COMMENT ON TABLE core.retention_classes IS 'Every retention class that there has been (FS-CORE-0006 §9): a month has a leaf for each, also for rows stamped before a plan changed.';
INSERT INTO core.retention_classes SELECT unnest(ARRAY[13, 25, 37]::smallint[]) UNION SELECT retention_months FROM core.plans;
GRANT SELECT ON core.retention_classes TO carril_app, carril_readonly;

-- +goose StatementBegin
CREATE FUNCTION core.note_retention_class() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog AS $$
BEGIN
    INSERT INTO core.retention_classes VALUES (NEW.retention_months) ON CONFLICT DO NOTHING;
    RETURN NULL;
END $$;
-- +goose StatementEnd
COMMENT ON FUNCTION core.note_retention_class IS 'Remembers the class that a plan brings.';
CREATE TRIGGER plans_class AFTER INSERT OR UPDATE OF retention_months ON core.plans FOR EACH ROW EXECUTE FUNCTION core.note_retention_class();

-- Bounds are read from the catalog, never computed twice: names change when a
-- leaf has a successor, bounds do not.
-- +goose StatementBegin
CREATE FUNCTION core.partition_tree(parent_table text) RETURNS TABLE (
    part oid, name text, step oid, lower_bound timestamptz, upper_bound timestamptz, retention_months smallint, is_leaf boolean, is_default boolean)
LANGUAGE sql STABLE SET search_path = pg_catalog SET timezone = 'UTC' SET datestyle = 'ISO, YMD' SET lock_timeout = '1s' AS $$
    WITH steps AS MATERIALIZED (
        SELECT c.oid, c.relkind, b.bound, substring(b.bound FROM $r$FROM \('([^']+)'\)$r$)::timestamptz AS lo, substring(b.bound FROM $r$TO \('([^']+)'\)$r$)::timestamptz AS hi
        FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid CROSS JOIN LATERAL (SELECT pg_get_expr(c.relpartbound, c.oid) AS bound) b
        WHERE i.inhparent = parent_table::regclass
    )
    SELECT oid, oid::regclass::text, oid, lo, hi, NULL::smallint, relkind <> 'p', bound = 'DEFAULT' FROM steps
    UNION ALL
    SELECT c.oid, c.oid::regclass::text, s.oid, s.lo, s.hi, substring(pg_get_expr(c.relpartbound, c.oid) FROM '\d+')::smallint, true, false
    FROM steps s JOIN pg_inherits i ON i.inhparent = s.oid JOIN pg_class c ON c.oid = i.inhrelid
    WHERE s.relkind = 'p'
$$;
-- +goose StatementEnd
COMMENT ON FUNCTION core.partition_tree IS 'The partitions of a table as the catalog has them: each step (its own step), and below it a leaf a retention class where the table has classes.';

-- +goose StatementBegin
CREATE FUNCTION core.missing_partitions(at timestamptz) RETURNS TABLE (parent text, lower_bound timestamptz, retention_months smallint, steps integer)
LANGUAGE sql STABLE SET search_path = pg_catalog SET timezone = 'UTC' AS $$
    WITH tree AS MATERIALIZED (
        SELECT p.parent, t.* FROM core.partitioned_tables p CROSS JOIN LATERAL core.partition_tree(p.parent) t WHERE t.is_leaf AND NOT t.is_default
    )
    SELECT p.parent, w.lo, c.months, i
    FROM core.partitioned_tables p
    CROSS JOIN generate_series(-p.behind, p.ahead) i
    CROSS JOIN LATERAL (SELECT date_trunc(p.step, at) + (i || ' ' || p.step)::interval AS lo) w
    LEFT JOIN core.retention_classes c ON p.classes
    WHERE NOT EXISTS (SELECT FROM tree t WHERE t.parent = p.parent AND t.lower_bound <= w.lo AND t.upper_bound > w.lo
        AND t.retention_months IS NOT DISTINCT FROM c.months)
    ORDER BY p.parent, i, c.months
$$;
-- +goose StatementEnd
COMMENT ON FUNCTION core.missing_partitions IS 'What should stand around an instant and does not; steps is how many steps ahead of it, negative behind.';

-- +goose StatementBegin
CREATE FUNCTION core.columns_of(rel regclass) RETURNS text LANGUAGE sql STABLE SET search_path = pg_catalog AS $$
    SELECT string_agg(quote_ident(attname), ', ' ORDER BY attnum) FROM pg_attribute WHERE attrelid = rel AND attnum > 0 AND NOT attisdropped
$$;

CREATE FUNCTION core.free_name(ns text, wanted text) RETURNS text LANGUAGE sql VOLATILE SET search_path = pg_catalog AS $$
    SELECT CASE WHEN to_regclass(format('%I.%I', ns, wanted)) IS NULL THEN wanted
        ELSE wanted || '_' || substr(md5(random()::text || clock_timestamp()), 1, 8) END
$$;

-- Made apart and then attached: ATTACH lets readers and writers of the step go on.
CREATE FUNCTION core.attach_leaf(step regclass, wanted text, class smallint) RETURNS regclass LANGUAGE plpgsql SET search_path = pg_catalog AS $$
DECLARE
    ns text := (SELECT n.nspname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = step);
    leaf text := format('%I.%I', ns, core.free_name(ns, wanted));
BEGIN
    EXECUTE format('CREATE TABLE %s (LIKE %s INCLUDING DEFAULTS INCLUDING CONSTRAINTS)', leaf, step);
    EXECUTE format('ALTER TABLE %s ADD CONSTRAINT bounds CHECK (retention_months = %s)', leaf, class);
    EXECUTE format('ALTER TABLE %s ATTACH PARTITION %s FOR VALUES IN (%s)', step, leaf, class);
    EXECUTE format('ALTER TABLE %s DROP CONSTRAINT bounds', leaf);
    RETURN leaf::regclass;
END $$;

DROP FUNCTION core.ensure_partitions(timestamptz);
DROP FUNCTION core.ensure_partition(text, timestamptz);

CREATE FUNCTION core.ensure_partition(parent_table text, at timestamptz, class smallint DEFAULT NULL) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog SET timezone = 'UTC' SET datestyle = 'ISO, YMD' SET lock_timeout = '1s' AS $$
DECLARE
    p core.partitioned_tables;
    lo timestamptz; hi timestamptz; span text; ns text; rel text; standing regclass; part text; def regclass; strays boolean := false;
    wanted smallint[] := '{}'; missing smallint[]; c smallint;
BEGIN
    SELECT * INTO STRICT p FROM core.partitioned_tables t WHERE t.parent = parent_table;
    lo := date_trunc(p.step, at);
    hi := lo + ('1 ' || p.step)::interval;
    IF p.classes THEN
        wanted := ARRAY(SELECT months FROM core.retention_classes UNION SELECT class WHERE class IS NOT NULL);
    END IF;
    FOR pass IN 1..2 LOOP
        SELECT t.part INTO standing FROM core.partition_tree(parent_table) t WHERE t.part = t.step AND NOT t.is_default AND t.lower_bound <= at AND t.upper_bound > at;
        missing := ARRAY(SELECT w FROM unnest(wanted) w EXCEPT SELECT t.retention_months FROM core.partition_tree(parent_table) t WHERE t.step = standing AND t.is_leaf);
        IF standing IS NOT NULL AND missing = '{}' THEN
            RETURN false;
        END IF;
        IF pass = 1 THEN -- look again behind whoever was making it
            PERFORM pg_advisory_xact_lock(hashtextextended('carril.partitions', 0));
        END IF;
    END LOOP;
    ns := split_part(parent_table, '.', 1);
    rel := split_part(parent_table, '.', 2) || '_' || to_char(lo, CASE p.step WHEN 'day' THEN 'YYYYMMDD' ELSE 'YYYYMM' END);
    IF standing IS NOT NULL THEN
        rel := (SELECT relname FROM pg_class WHERE oid = standing);
        FOREACH c IN ARRAY missing LOOP
            PERFORM core.attach_leaf(standing, rel || '_r' || c, c);
        END LOOP;
        RETURN true;
    END IF;

    span := format('%1$I >= %2$L AND %1$I < %3$L', core.partition_column(parent_table), lo, hi);
    SELECT t.part INTO def FROM core.partition_tree(parent_table) t WHERE t.is_default;
    IF def IS NOT NULL THEN
        EXECUTE format('SELECT EXISTS (SELECT FROM %s WHERE %s)', def, span) INTO strays;
    END IF;
    IF strays AND p.classes THEN
        EXECUTE format('SELECT array_agg(DISTINCT c) FROM (SELECT unnest($1) UNION SELECT retention_months FROM %s WHERE %s) u (c)', def, span) INTO wanted USING wanted;
    END IF;
    part := format('%I.%I', ns, core.free_name(ns, rel));
    EXECUTE format('CREATE TABLE %s (LIKE %s INCLUDING DEFAULTS INCLUDING CONSTRAINTS)%s', part, parent_table,
        CASE WHEN p.classes THEN ' PARTITION BY LIST (retention_months)' ELSE '' END);
    FOREACH c IN ARRAY wanted LOOP -- nobody sees the step yet: no lock of its own matters
        EXECUTE format('CREATE TABLE %I.%I PARTITION OF %s FOR VALUES IN (%s)', ns, core.free_name(ns, rel || '_r' || c), part, c);
    END LOOP;
    IF strays THEN
        PERFORM core.move_strays(def, part::regclass, span);
    END IF;
    EXECUTE format('ALTER TABLE %s ADD CONSTRAINT bounds CHECK (%s)', part, span);
    EXECUTE format('ALTER TABLE %s ATTACH PARTITION %s FOR VALUES FROM (%L) TO (%L)', parent_table, part, lo, hi);
    EXECUTE format('ALTER TABLE %s DROP CONSTRAINT bounds', part);
    RETURN true;
END $$;

-- The append-only trigger is silenced for as long as this transaction holds a
-- lock that keeps every other writer out. Only the owner may do that: no role of
-- the platform can remove a row but by this function, which takes a row out only
-- where it puts it in.
CREATE FUNCTION core.move_strays(def regclass, part regclass, span text) RETURNS bigint LANGUAGE plpgsql SET search_path = pg_catalog AS $$
DECLARE
    n bigint; m bigint; columns text := core.columns_of(def);
BEGIN
    EXECUTE format('LOCK TABLE %s IN SHARE ROW EXCLUSIVE MODE', def);
    EXECUTE format('INSERT INTO %s (%2$s) SELECT %2$s FROM %3$s WHERE %4$s', part, columns, def, span);
    GET DIAGNOSTICS n = ROW_COUNT;
    EXECUTE format('ALTER TABLE %s DISABLE TRIGGER append_only', def);
    EXECUTE format('DELETE FROM %s WHERE %s', def, span);
    GET DIAGNOSTICS m = ROW_COUNT;
    EXECUTE format('ALTER TABLE %s ENABLE TRIGGER append_only', def);
    IF n <> m THEN
        RAISE EXCEPTION 'moved % rows out of % and % into %', m, def, n, part;
    END IF;
    RETURN n;
END $$;

CREATE FUNCTION core.ensure_partitions(at timestamptz) RETURNS integer LANGUAGE plpgsql SET search_path = pg_catalog SET timezone = 'UTC' AS $$
DECLARE
    m record; n integer := 0;
BEGIN
    FOR m IN SELECT DISTINCT parent, lower_bound FROM core.missing_partitions(at) ORDER BY parent, lower_bound LOOP
        IF core.ensure_partition(m.parent, m.lower_bound) THEN
            n := n + 1;
        END IF;
    END LOOP;
    RETURN n;
END $$;

CREATE FUNCTION core.stray_months() RETURNS TABLE (parent text, default_table text, lower_bound timestamptz, rows bigint)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog SET timezone = 'UTC' AS $$
DECLARE
    d record;
BEGIN
    FOR d IN SELECT p.parent AS of, p.step AS every, t.name FROM core.partitioned_tables p CROSS JOIN LATERAL core.partition_tree(p.parent) t WHERE t.is_default LOOP
        RETURN QUERY EXECUTE format('SELECT %L, %L, date_trunc(%L, %I), count(*) FROM %s GROUP BY 3 ORDER BY 3',
            d.of, d.name, d.every, core.partition_column(d.of), d.name);
    END LOOP;
END $$;

CREATE FUNCTION core.notice_stray() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_notify('carril_strays', TG_TABLE_SCHEMA || '.' || TG_TABLE_NAME);
    RETURN NULL;
END $$;
-- +goose StatementEnd
CREATE TRIGGER stray AFTER INSERT ON core.tracked_events_default FOR EACH ROW EXECUTE FUNCTION core.notice_stray();
CREATE TRIGGER stray AFTER INSERT ON messaging.sends_default FOR EACH ROW EXECUTE FUNCTION core.notice_stray();
CREATE TRIGGER stray AFTER INSERT ON messaging.send_status_history_default FOR EACH ROW EXECUTE FUNCTION core.notice_stray();

COMMENT ON FUNCTION core.columns_of IS 'The columns of a table, quoted, in order.';
COMMENT ON FUNCTION core.free_name IS 'A name for a table: the wanted one, with a suffix where a detached leaf still has it.';
COMMENT ON FUNCTION core.attach_leaf IS 'Gives a step an empty leaf of a class.';
COMMENT ON FUNCTION core.ensure_partition IS 'Makes the partition of a table for an instant, with a leaf for each retention class and for the one that is named, where it is missing; rows of that time that lie in DEFAULT move into it. True when it made something. 55P03 when a lock was not to be had within a second: try again.';
COMMENT ON FUNCTION core.move_strays IS 'Moves rows from a DEFAULT partition into a step that is not attached yet.';
COMMENT ON FUNCTION core.ensure_partitions IS 'Makes what every time-partitioned table should have around an instant, in one transaction; the number of partitions made. On a busy database make them one by one instead (carril partitions ensure).';
COMMENT ON FUNCTION core.stray_months IS 'How many rows lie in the DEFAULT partitions, by step; any is an incident.';
COMMENT ON FUNCTION core.notice_stray IS 'Tells maintenance at once that a row went into a DEFAULT partition; costs nothing where none does.';
REVOKE ALL ON FUNCTION core.ensure_partition, core.stray_months FROM PUBLIC;
GRANT EXECUTE ON FUNCTION core.ensure_partition, core.stray_months TO carril_app;

-- +goose Down
DROP TRIGGER stray ON messaging.send_status_history_default;
DROP TRIGGER stray ON messaging.sends_default;
DROP TRIGGER stray ON core.tracked_events_default;
DROP FUNCTION core.notice_stray(), core.stray_months(), core.ensure_partitions(timestamptz), core.ensure_partition(text, timestamptz, smallint),
    core.move_strays(regclass, regclass, text), core.attach_leaf(regclass, text, smallint), core.free_name(text, text), core.columns_of(regclass),
    core.missing_partitions(timestamptz), core.partition_tree(text);
DROP TRIGGER plans_class ON core.plans;
DROP FUNCTION core.note_retention_class();
DROP TABLE core.retention_classes;
-- +goose StatementBegin
CREATE FUNCTION core.ensure_partition(parent_table text, at timestamptz) RETURNS boolean LANGUAGE plpgsql
SET timezone = 'UTC' SET lock_timeout = '2s' AS $$
DECLARE
    p core.partitioned_tables;
    lo timestamptz; hi timestamptz; ns text; rel text; part text; class smallint; made boolean := false;
BEGIN
    SELECT * INTO STRICT p FROM core.partitioned_tables WHERE parent = parent_table;
    lo := date_trunc(p.step, at);
    hi := lo + ('1 ' || p.step)::interval;
    ns := split_part(parent_table, '.', 1);
    rel := split_part(parent_table, '.', 2);
    part := rel || '_' || to_char(lo, CASE p.step WHEN 'day' THEN 'YYYYMMDD' ELSE 'YYYYMM' END);
    IF to_regclass(format('%I.%I', ns, part)) IS NULL THEN
        PERFORM pg_advisory_xact_lock(hashtextextended('carril.partitions', 0));
    END IF;
    IF to_regclass(format('%I.%I', ns, part)) IS NULL THEN
        -- Made apart and then attached: ATTACH lets readers and writers of the parent go on.
        EXECUTE format('CREATE TABLE %I.%I (LIKE %I.%I INCLUDING DEFAULTS INCLUDING CONSTRAINTS)%s',
            ns, part, ns, rel, CASE WHEN p.classes THEN ' PARTITION BY LIST (retention_months)' ELSE '' END);
        IF NOT p.classes THEN
            EXECUTE format('ALTER TABLE %I.%I ADD CONSTRAINT bounds CHECK (%s)', ns, part,
                format('%I >= %L AND %I < %L', core.partition_column(parent_table), lo, core.partition_column(parent_table), hi));
        END IF;
        EXECUTE format('ALTER TABLE %I.%I ATTACH PARTITION %I.%I FOR VALUES FROM (%L) TO (%L)', ns, rel, ns, part, lo, hi);
        IF NOT p.classes THEN
            EXECUTE format('ALTER TABLE %I.%I DROP CONSTRAINT bounds', ns, part);
        END IF;
        made := true;
    END IF;
    IF p.classes THEN
        FOR class IN SELECT unnest(ARRAY[13, 25, 37]::smallint[]) UNION SELECT retention_months FROM core.plans LOOP
            IF to_regclass(format('%I.%I', ns, part || '_r' || class)) IS NULL THEN
                PERFORM pg_advisory_xact_lock(hashtextextended('carril.partitions', 0));
                EXECUTE format('CREATE TABLE IF NOT EXISTS %I.%I PARTITION OF %I.%I FOR VALUES IN (%L)',
                    ns, part || '_r' || class, ns, part, class);
                made := true;
            END IF;
        END LOOP;
    END IF;
    RETURN made;
END $$;

CREATE FUNCTION core.ensure_partitions(at timestamptz) RETURNS integer LANGUAGE plpgsql
SET timezone = 'UTC' AS $$
DECLARE
    p core.partitioned_tables; i integer; n integer := 0;
BEGIN
    FOR p IN SELECT * FROM core.partitioned_tables ORDER BY parent LOOP
        FOR i IN -p.behind .. p.ahead LOOP
            IF core.ensure_partition(p.parent, date_trunc(p.step, at) + (i || ' ' || p.step)::interval) THEN
                n := n + 1;
            END IF;
        END LOOP;
    END LOOP;
    RETURN n;
END $$;
-- +goose StatementEnd
COMMENT ON FUNCTION core.ensure_partition IS 'Makes the partition of a table for an instant, with a leaf for each retention class, where it is missing; true when it made something.';
COMMENT ON FUNCTION core.ensure_partitions IS 'Makes what every time-partitioned table should have around an instant; the number of partitions made.';
