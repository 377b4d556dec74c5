-- Makes the partition of a table for an instant, with a leaf a retention class
-- and for the one that is named (null: none), where it is missing; true when it
-- made something.
-- name: EnsurePartition :one
SELECT core.ensure_partition(@parent_table, @at, sqlc.narg(class)::smallint)::boolean AS made;

-- What should stand around the database's own time.
-- name: EnsurePartitionsNow :exec
SELECT core.ensure_partitions(now());

-- What retention classes there have been.
-- name: RetentionClasses :many
SELECT months FROM core.retention_classes ORDER BY months;

-- The tables that are partitioned by time.
-- name: PartitionedTables :many
SELECT parent, step, behind, ahead, classes FROM core.partitioned_tables ORDER BY parent;
