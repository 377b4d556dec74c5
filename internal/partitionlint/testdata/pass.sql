-- a range
SELECT * FROM core.tracked_events WHERE tenant_id = $1 AND occurred_at >= $2 AND occurred_at < $3;
-- a value
SELECT * FROM core.tracked_events e WHERE e.occurred_at = $1 AND e.event_id = $2;
-- a list of values
SELECT * FROM core.tracked_events WHERE occurred_at = ANY($1);
-- a list of constants
SELECT * FROM core.tracked_events WHERE occurred_at IN ($1, $2);
-- between
SELECT * FROM core.tracked_events WHERE occurred_at BETWEEN $1 AND $2 + interval '1 day';
-- the range on the other side
SELECT * FROM core.tracked_events WHERE $1 <= occurred_at;
-- a row that begins with the key
SELECT * FROM core.tracked_events WHERE (occurred_at, event_id) > ($1, $2);
-- counted from now
DELETE FROM core.tracked_events WHERE occurred_at < now() - interval '13 months';
-- both branches
SELECT * FROM core.tracked_events WHERE (occurred_at > $1 AND tenant_id = $2) OR occurred_at = $3;
-- in a CTE
WITH recent AS (SELECT * FROM core.tracked_events WHERE occurred_at > $1) SELECT * FROM recent;
-- a CTE of the same name is no table
WITH tracked_events AS (SELECT 1) SELECT * FROM tracked_events;
-- the join's condition
SELECT * FROM core.contacts c JOIN core.tracked_events e ON e.contact_id = c.contact_id AND e.occurred_at > $1;
-- the side that an outer join may leave empty
SELECT * FROM core.contacts c LEFT JOIN core.tracked_events e ON e.contact_id = c.contact_id AND e.occurred_at > $1;
-- an update over a join, with its own list
UPDATE core.tracked_events e SET contact_id = u.c FROM unnest($1::timestamptz[], $2::uuid[]) AS u(t, c) WHERE e.occurred_at = ANY($1) AND e.occurred_at = u.t;
-- a subquery that is executed once
SELECT * FROM core.tracked_events WHERE occurred_at >= (SELECT min(t) FROM unnest($1::timestamptz[]) AS u(t));
-- sqlc's parameters
SELECT * FROM core.tracked_events WHERE occurred_at >= @since::timestamptz AND occurred_at < sqlc.arg(until);
-- a row is inserted where it belongs
INSERT INTO core.tracked_events (tenant_id, event_id, occurred_at) VALUES ($1, $2, $3);
-- not partitioned by time
SELECT * FROM core.event_keys WHERE event_id = $1;
-- a view
SELECT * FROM core.purchases p WHERE p.at > $1;
-- an excuse
-- all partitions: an operator looks for an event of which nothing else is known
SELECT * FROM core.tracked_events WHERE event_id = $1;
