-- Makes the partition of a table for an instant, with a leaf a retention class,
-- where it is missing.
-- name: EnsurePartition :exec
SELECT core.ensure_partition(@parent_table, @at);

-- Makes what every time-partitioned table should have around an instant, and
-- gives the number of partitions made.
-- name: EnsurePartitions :one
SELECT core.ensure_partitions(@at)::int AS made;

-- The same around the database's own time.
-- name: EnsurePartitionsNow :exec
SELECT core.ensure_partitions(now());
