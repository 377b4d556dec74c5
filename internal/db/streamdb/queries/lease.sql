-- Takes a lease that nobody holds, by the database's clock; no row where another
-- holder's lives. The epoch rises with each holder.
-- name: TakeLease :one
INSERT INTO core.leases AS l (name, holder, epoch, until) VALUES (@name, @holder, 1, clock_timestamp() + @life::interval)
ON CONFLICT (name) DO UPDATE SET holder = EXCLUDED.holder, epoch = l.epoch + 1, until = EXCLUDED.until
WHERE l.until < clock_timestamp() RETURNING epoch;

-- The numbers of the leases prefix:0 to prefix:n-1 that may be taken, lowest
-- first. Only a look: TakeLease decides.
-- name: FreeSlots :many
SELECT i::int FROM generate_series(0, sqlc.arg(n)::int - 1) i LEFT JOIN core.leases l ON l.name = @prefix::text || ':' || i
WHERE l.until IS NULL OR l.until < clock_timestamp() ORDER BY i;

-- Extends a lease, also after it ran out, unless another took it: the epoch
-- tells, not the time.
-- name: RenewLease :execrows
UPDATE core.leases SET until = clock_timestamp() + @life::interval WHERE name = @name AND epoch = @epoch;

-- Ends a lease in the past, so that the next holder need not wait; the row stays
-- for its epoch.
-- name: ReleaseLease :exec
UPDATE core.leases SET until = clock_timestamp() - interval '1 second' WHERE name = @name AND epoch = @epoch;
