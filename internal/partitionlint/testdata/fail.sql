-- by contact alone (FS-CORE-0006 AC8)
SELECT * FROM core.tracked_events WHERE contact_id = $1;
-- by nothing
SELECT count(*) FROM core.tracked_events;
-- the key under a function
SELECT * FROM core.tracked_events WHERE date_trunc('month', occurred_at) = $1;
-- the key under a cast
SELECT * FROM core.tracked_events WHERE occurred_at::date = $1;
-- the key in arithmetic
SELECT * FROM core.tracked_events WHERE occurred_at + interval '1 day' > $1;
-- one branch only
SELECT * FROM core.tracked_events WHERE occurred_at > $1 OR contact_id = $2;
-- denied
SELECT * FROM core.tracked_events WHERE NOT (occurred_at > $1);
-- an inequality
SELECT * FROM core.tracked_events WHERE occurred_at <> $1;
-- not null
SELECT * FROM core.tracked_events WHERE occurred_at IS NOT NULL;
-- another table's column of the name
SELECT * FROM core.contacts c JOIN core.tracked_events e ON e.contact_id = c.contact_id WHERE c.occurred_at > $1;
-- a name that could be either's
SELECT * FROM core.contacts c, core.tracked_events e WHERE occurred_at > $1;
-- a join alone
SELECT * FROM unnest($1::timestamptz[]) AS u(t) JOIN core.tracked_events e ON e.occurred_at = u.t;
-- the wrong side of an outer join
SELECT * FROM core.tracked_events e LEFT JOIN core.contacts c ON c.contact_id = e.contact_id AND e.occurred_at > $1;
-- in a CTE that nobody bounds from outside
WITH mine AS (SELECT * FROM core.tracked_events WHERE tenant_id = $1) SELECT * FROM mine WHERE occurred_at > $2;
-- in a subquery
SELECT * FROM core.contacts c WHERE EXISTS (SELECT FROM core.tracked_events e WHERE e.contact_id = c.contact_id);
-- correlated
SELECT * FROM core.contacts c WHERE EXISTS (SELECT FROM core.tracked_events e WHERE e.occurred_at > c.occurred_at);
-- lateral
SELECT * FROM core.contacts c CROSS JOIN LATERAL (SELECT * FROM core.tracked_events e WHERE e.contact_id = c.contact_id LIMIT 1) x;
-- an update
UPDATE core.tracked_events SET contact_id = $1 WHERE contact_id = $2;
-- a delete
DELETE FROM core.tracked_events WHERE tenant_id = $1;
-- in an insert
INSERT INTO core.contacts (tenant_id, contact_id) SELECT tenant_id, contact_id FROM core.tracked_events WHERE tenant_id = $1;
-- a view
SELECT * FROM core.purchases WHERE tenant_id = $1;
-- copied out
COPY core.tracked_events TO STDOUT;
-- the whole of a union's second half
SELECT event_id FROM core.tracked_events WHERE occurred_at > $1 UNION SELECT event_id FROM core.tracked_events;
-- without its schema
SELECT * FROM tracked_events WHERE contact_id = $1;
