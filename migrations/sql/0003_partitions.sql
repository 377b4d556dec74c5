-- +goose Up
CREATE TABLE core.partitioned_tables (
    parent  text PRIMARY KEY,
    step    text NOT NULL CHECK (step IN ('day', 'month')),
    behind  integer NOT NULL CHECK (behind >= 0),
    ahead   integer NOT NULL CHECK (ahead >= 1),
    classes boolean NOT NULL
);
COMMENT ON TABLE core.partitioned_tables IS 'Tables that are partitioned by time: the step, how many steps stand ready behind and ahead of now, and whether each step is divided by retention class.';

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

CREATE FUNCTION core.partition_column(parent_table text) RETURNS text LANGUAGE sql STABLE AS $$
    SELECT a.attname::text FROM pg_partitioned_table t
    JOIN pg_attribute a ON a.attrelid = t.partrelid AND a.attnum = t.partattrs[0]
    WHERE t.partrelid = parent_table::regclass
$$;

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

-- +goose StatementBegin
CREATE FUNCTION core.refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION '%.% is append-only: % refused', TG_TABLE_SCHEMA, TG_TABLE_NAME, TG_OP
        USING ERRCODE = 'restrict_violation';
END $$;
-- +goose StatementEnd
COMMENT ON FUNCTION core.refuse_change IS 'Trigger of append-only tables; a dropped partition is the only way out.';

-- +goose Down
DROP FUNCTION core.refuse_change;
DROP FUNCTION core.ensure_partitions(timestamptz);
DROP FUNCTION core.partition_column(text);
DROP FUNCTION core.ensure_partition(text, timestamptz);
DROP TABLE core.partitioned_tables;
