-- The tenant's key for hashes of erased identifiers, made by its first erasure; the
-- row is held until the transaction ends, so that a tenant's erasures have an order.
-- name: UseErasureKey :one
INSERT INTO core.erasure_keys AS k (tenant_id, key, last_erased_at) VALUES (@tenant_id, @key, clock_timestamp())
ON CONFLICT (tenant_id) DO UPDATE SET last_erased_at = greatest(k.last_erased_at, clock_timestamp())
RETURNING k.key, k.last_erased_at::timestamptz AS erased_at;

-- name: ErasureKey :one
SELECT key FROM core.erasure_keys WHERE tenant_id = @tenant_id;

-- Takes people's identifiers away; they come back for the last time.
-- name: TakeIdentifiers :many
DELETE FROM core.contact_identifiers WHERE tenant_id = @tenant_id AND contact_id = ANY(@contacts::uuid[]) RETURNING kind, value;

-- name: WriteTombstones :exec
INSERT INTO core.erased_identifiers (tenant_id, hash, erased_at, erasure_id)
SELECT @tenant_id, h, @erased_at, sqlc.arg(erasure_id)::uuid FROM unnest(@hashes::bytea[]) AS h
ON CONFLICT (tenant_id, hash) DO UPDATE SET erased_at = EXCLUDED.erased_at, erasure_id = EXCLUDED.erasure_id;

-- name: HashesOf :many
SELECT hash FROM core.erased_identifiers WHERE erasure_id = sqlc.arg(erasure_id)::uuid;

-- name: EraseContacts :execrows
UPDATE core.contacts SET traits = '{}', trait_times = '{}', erased_at = sqlc.arg(erased_at)::timestamptz, updated_at = sqlc.arg(erased_at)::timestamptz
WHERE tenant_id = @tenant_id AND contact_id = ANY(@contacts::uuid[]) AND erased_at IS NULL;

-- An erased person's suppressions stay, under the hashes of the addresses: who came
-- back must not be written to after a complaint.
-- name: HideSuppressions :execrows
WITH gone AS (
    DELETE FROM messaging.suppressions s WHERE s.tenant_id = @tenant_id AND s.address = ANY(@addresses::text[]) RETURNING s.*
)
INSERT INTO messaging.suppressions AS s (tenant_id, channel, address, reason, send_id, created_at)
SELECT gone.tenant_id, gone.channel, core.erased_address(gone.tenant_id, gone.channel, gone.address), gone.reason, gone.send_id, gone.created_at FROM gone
ON CONFLICT (tenant_id, channel, address) DO UPDATE SET reason = EXCLUDED.reason WHERE s.reason = 'unsubscribe';

-- A consent that was withdrawn stays as the suppression of its addresses, hashed.
-- name: KeepWithdrawals :execrows
INSERT INTO messaging.suppressions (tenant_id, channel, address, reason)
SELECT k.tenant_id, k.channel, core.erased_address(k.tenant_id, k.channel, a.address), 'unsubscribe'
FROM (SELECT DISTINCT ON (c.channel) c.tenant_id, c.channel, c.granted FROM messaging.consents c
    WHERE c.tenant_id = @tenant_id AND c.contact_id = ANY(@contacts::uuid[]) AND c.purpose = 'marketing' ORDER BY c.channel, c.changed_at DESC) k
JOIN ROWS FROM (unnest(@kinds::text[]), unnest(@addresses::text[])) AS a(kind, address)
    ON a.kind = CASE k.channel WHEN 'email' THEN 'email' ELSE 'phone' END
WHERE NOT k.granted
ON CONFLICT (tenant_id, channel, address) DO NOTHING;

-- Of a lifted suppression a hash stands that needs no key to be tried.
-- name: DropLifts :execrows
DELETE FROM messaging.suppression_lifts l USING unnest(@addresses::text[]) AS a
WHERE l.tenant_id = @tenant_id AND l.address_hash = sha256(convert_to(l.tenant_id::text || ' ' || l.channel || ' ' || a, 'UTF8'));

-- name: DropConsents :execrows
DELETE FROM messaging.consents WHERE tenant_id = @tenant_id AND contact_id = ANY(@contacts::uuid[]);

-- name: DropIdentityConflicts :execrows
DELETE FROM core.identity_conflicts WHERE tenant_id = @tenant_id AND contacts && @contacts::uuid[];

-- What operators wrote about why they merged somebody.
-- name: HushMerges :execrows
UPDATE core.contact_merges SET reason = '', undone_reason = CASE WHEN undone_reason IS NOT NULL THEN '' END
WHERE tenant_id = @tenant_id AND (from_contact = ANY(@contacts::uuid[]) OR into_contact = ANY(@contacts::uuid[]));

-- The recipient stays counted; its message is blocked, because the contact is named.
-- name: HideBlastAddresses :execrows
UPDATE messaging.blast_recipients r SET contact_id = sqlc.arg(contact_id)::uuid, address = 'erased:' || r.position, variables = '{}'
FROM messaging.blasts b WHERE b.tenant_id = @tenant_id AND r.blast_id = b.blast_id AND r.address = ANY(@addresses::text[]);

-- name: HideBlastContacts :execrows
UPDATE messaging.blast_recipients r SET address = 'erased:' || r.position, variables = '{}'
FROM messaging.blasts b WHERE b.tenant_id = @tenant_id AND r.blast_id = b.blast_id AND r.contact_id = ANY(@contacts::uuid[])
    AND r.address NOT LIKE 'erased:%';

-- name: InsertErasure :exec
INSERT INTO core.erasures (erasure_id, tenant_id, contact_id, contacts, cause, requested_by, erased_at, after_xid, next_at)
VALUES (@erasure_id, @tenant_id, sqlc.narg(contact_id)::uuid, @contacts, @cause, @requested_by, @erased_at, pg_current_xact_id(), @erased_at);

-- name: InsertErasureStores :exec
INSERT INTO core.erasure_stores (erasure_id, store, due_at)
SELECT @erasure_id, s, d FROM ROWS FROM (unnest(@stores::text[]), unnest(@due::timestamptz[])) AS u(s, d);

-- The erasure that erased a contact.
-- name: ErasureOf :one
SELECT erasure_id FROM core.erasures WHERE tenant_id = @tenant_id AND sqlc.arg(contact_id)::uuid = ANY(contacts) ORDER BY erased_at DESC LIMIT 1;

-- Erasures with something to do.
-- name: DueErasures :many
SELECT erasure_id, tenant_id, contacts, cause, erased_at, passes, failures,
    (pg_snapshot_xmin(pg_current_snapshot()) > after_xid)::bool AS quiet
FROM core.erasures WHERE done_at IS NULL AND next_at <= sqlc.arg(at)::timestamptz ORDER BY next_at LIMIT @max_rows;

-- Holds an erasure for one page of work.
-- name: HoldErasure :one
SELECT passes FROM core.erasures WHERE erasure_id = @erasure_id AND done_at IS NULL FOR UPDATE;

-- name: ErasureStores :many
SELECT store, passes, cursor, done_at FROM core.erasure_stores WHERE erasure_id = @erasure_id;

-- name: StepErasureStore :exec
UPDATE core.erasure_stores SET rows = rows + sqlc.arg(more)::bigint, cursor = sqlc.narg(at)::jsonb, passes = @passes, done_at = coalesce(sqlc.narg(done_at)::timestamptz, done_at)
WHERE erasure_id = @erasure_id AND store = @store;

-- name: PassErasure :exec
UPDATE core.erasures SET passes = @passes, next_at = sqlc.narg(next_at)::timestamptz, done_at = sqlc.narg(done_at)::timestamptz, failures = 0, last_error = NULL
WHERE erasure_id = @erasure_id;

-- name: FailErasure :exec
UPDATE core.erasures SET failures = failures + 1, last_error = sqlc.arg(why)::text, next_at = @next_at WHERE erasure_id = @erasure_id AND done_at IS NULL;

-- name: OpenErasures :one
SELECT count(*) AS open, coalesce(extract(epoch FROM now() - min(erased_at)), 0)::float8 AS oldest_seconds FROM core.erasures WHERE done_at IS NULL AND cause = 'request';

-- What stands about events beside their rows.
-- name: EmptyWarnings :execrows
UPDATE core.warnings SET detail = '{}' WHERE tenant_id = @tenant_id AND event_id = ANY(@events::uuid[]) AND detail <> '{}';

-- name: DropKeyConflicts :execrows
DELETE FROM core.idempotency_conflicts WHERE tenant_id = @tenant_id AND event_id = ANY(@events::uuid[]);

-- Bodies that were delivered or given up are emptied; what waits is not sent.
-- name: EmptyDeliveries :execrows
UPDATE core.webhook_deliveries SET body = '', state = CASE state WHEN 'pending' THEN 'cancelled' ELSE state END,
    next_attempt = CASE state WHEN 'pending' THEN NULL ELSE next_attempt END, lease = NULL, lease_until = NULL,
    last_error = CASE state WHEN 'pending' THEN 'erased' ELSE last_error END
WHERE created_at >= sqlc.arg(first)::timestamptz AND created_at <= sqlc.arg(last)::timestamptz AND tenant_id = @tenant_id AND event_id = ANY(@events::uuid[])
    AND body <> '';

-- name: EmptyAnswers :execrows
UPDATE core.webhook_attempts SET answer = NULL
WHERE at >= sqlc.arg(first)::timestamptz AND tenant_id = @tenant_id AND event_id = ANY(@events::uuid[]) AND answer IS NOT NULL;

-- Dead letters of events and sends lose their bytes, and cannot be replayed.
-- name: EmptyDeadLetters :execrows
UPDATE core.dead_letters SET record_key = NULL, record_value = NULL, record_headers = NULL, content_hash = NULL, reason = 'erased', status_note = NULL,
    status = CASE status WHEN 'open' THEN 'discarded' ELSE status END, status_by = coalesce(status_by, 'erasure'), status_at = coalesce(status_at, now())
WHERE (event_id = ANY(@events::uuid[]) OR send_id = ANY(@sends::uuid[]) OR dead_letter_id = ANY(@letters::uuid[])) AND record_value IS NOT NULL;

-- Dead letters that may be somebody's; those of no tenant too.
-- name: PageDeadLetters :many
SELECT dead_letter_id, created_at, tenant_id, coalesce(topic, '') AS topic, coalesce(record_key, '')::bytea AS record_key, record_value::bytea AS record_value,
    coalesce(record_headers::text, '')::text AS headers
FROM core.dead_letters
WHERE (tenant_id = sqlc.arg(of)::uuid OR tenant_id IS NULL) AND record_value IS NOT NULL AND (created_at, dead_letter_id) > (sqlc.arg(at)::timestamptz, sqlc.arg(behind)::uuid)
ORDER BY created_at, dead_letter_id LIMIT @max_rows;

-- Reports of sends that wait for a match.
-- name: DropUnmatched :execrows
DELETE FROM messaging.unmatched_events u WHERE u.send_id = ANY(@sends::uuid[]) OR u.provider_message_id = ANY(ARRAY(
    SELECT p.provider_message_id FROM messaging.provider_messages p WHERE p.send_id = ANY(@sends::uuid[])));

-- name: DropProviderMessages :execrows
DELETE FROM messaging.provider_messages WHERE send_id = ANY(@sends::uuid[]);

-- A tenant's jobs that hold messages of these people, or of nobody in particular.
-- A job's own time may lie as far back as the last send.
-- name: PageJobs :many
SELECT j.id_time, j.worker, j.job_id, j.state, j.generation, j.payload::text AS payload,
    (j.state = 'claimed' AND j.lease_until > clock_timestamp())::bool AS alive
FROM core.processed_jobs j
WHERE j.id_time >= sqlc.arg(at)::timestamptz AND (j.id_time, j.worker, j.job_id) > (sqlc.arg(at)::timestamptz, sqlc.arg(worker)::text, sqlc.arg(behind)::uuid)
    AND j.tenant_id = sqlc.arg(of)::uuid AND EXISTS (SELECT FROM jsonb_array_elements(j.payload -> 'messages') m
        WHERE m ->> 'contact_id' = ANY(@contacts::text[]) AND (m ->> 'address' <> '' OR m ? 'variables' OR m ? 'content'))
ORDER BY j.id_time, j.worker, j.job_id LIMIT @max_rows FOR UPDATE;

-- name: WriteJob :exec
UPDATE core.processed_jobs SET payload = jsonb_set(payload, '{messages}', sqlc.arg(messages)::jsonb), state = sqlc.arg(state)::text,
    reason = CASE WHEN sqlc.arg(state)::text = state THEN reason ELSE 'contact_erased' END,
    lease = CASE WHEN sqlc.arg(state)::text = state THEN lease END, lease_until = CASE WHEN sqlc.arg(state)::text = state THEN lease_until END,
    not_before = CASE WHEN sqlc.arg(state)::text = state THEN not_before END
WHERE id_time = @id_time AND worker = @worker AND job_id = @job_id;

-- Whether a job's last bytes may have been taken, and nobody knows.
-- name: JobUncertain :one
SELECT EXISTS (SELECT FROM messaging.send_requests q WHERE q.created_at > now() - interval '8 days' AND q.job_id = @job_id
    AND q.generation = @generation AND q.settled IS NULL AND q.body <> '') AS uncertain;

-- name: EmptyRequests :execrows
UPDATE messaging.send_requests SET body = '' WHERE created_at > now() - interval '8 days' AND job_id = @job_id AND body <> '';

-- A message that was asked for and will not be sent: the decision says why.
-- name: TurnDecision :exec
UPDATE messaging.decisions SET outcome = 'blocked', gate = 'contact', reason = 'contact_erased', send_id = NULL, decided_at = now()
WHERE received_at = @received_at AND request_id = @request_id AND recipient_index = @recipient_index AND channel = @channel AND outcome = 'queued';

-- name: BlockBlastRecipient :exec
UPDATE messaging.blast_recipients SET outcome = 'blocked' WHERE blast_id = @blast_id AND position = @position AND outcome IS NULL;

-- A send whose bytes left without an answer and will not be tried again. A report
-- of the provider still counts for more.
-- name: FailSend :exec
INSERT INTO messaging.send_status_history (requested_at, retention_months, tenant_id, send_id, status, provider, provider_event_id, generation, occurred_at, reason)
SELECT s.requested_at, s.retention_months, s.tenant_id, s.send_id, 'failed', s.provider, 'carril:failed:' || sqlc.arg(generation)::int, sqlc.arg(generation)::int, now(), 'contact_erased'
FROM messaging.sends s WHERE s.requested_at = @requested_at AND s.send_id = @send_id
ON CONFLICT DO NOTHING;

-- name: DropMarketingQueue :many
DELETE FROM messaging.marketing_queue WHERE tenant_id = @tenant_id AND payload ->> 'contact_id' = ANY(@contacts::text[])
RETURNING channel, payload::text AS payload;

-- Whether derived messages of a time are still stored; they go with their day.
-- name: OutboxHolds :one
SELECT EXISTS (SELECT FROM core.outbox WHERE written_at <= sqlc.arg(at)::timestamptz) AS holds;

-- Tenants with a clock for anonymous contacts.
-- name: AnonymousClocks :many
SELECT tenant_id, anonymous_retention_days::int AS days FROM core.tenants WHERE anonymous_retention_days IS NOT NULL ORDER BY tenant_id;

-- Anonymous contacts that were there before a time, in the order of their ids.
-- name: PageAnonymous :many
SELECT c.contact_id FROM core.contacts c
WHERE c.tenant_id = @tenant_id AND c.contact_id > @behind AND c.created_at < sqlc.arg(before)::timestamptz AND NOT c.known AND c.erased_at IS NULL
    AND NOT EXISTS (SELECT FROM core.contact_merges m WHERE m.tenant_id = c.tenant_id AND m.from_contact = c.contact_id AND m.undone_at IS NULL)
ORDER BY c.contact_id LIMIT @max_rows;

-- Contacts with all that were merged into them.
-- name: Families :many
WITH RECURSIVE who AS (
    SELECT c AS root, c AS contact_id FROM unnest(@contacts::uuid[]) AS c
    UNION
    SELECT who.root, m.from_contact FROM who JOIN core.contact_merges m ON m.tenant_id = @tenant_id AND m.into_contact = who.contact_id AND m.undone_at IS NULL
)
SELECT root::uuid AS root, contact_id::uuid AS contact_id FROM who;

-- Which contacts had an event since a time.
-- name: ActiveSince :many
SELECT DISTINCT e.contact_id FROM core.tracked_events e
WHERE e.occurred_at >= sqlc.arg(since)::timestamptz AND e.tenant_id = @tenant_id AND e.contact_id = ANY(@contacts::uuid[]);

-- As HideSuppressions, but for addresses that a contact has.
-- name: HideSuppressionsOfNobody :execrows
WITH gone AS (
    DELETE FROM messaging.suppressions s WHERE s.tenant_id = @tenant_id AND s.address = ANY(@addresses::text[])
        AND NOT EXISTS (SELECT FROM core.contact_identifiers i WHERE i.tenant_id = s.tenant_id AND i.kind IN ('email', 'phone') AND i.value = s.address)
    RETURNING s.*
)
INSERT INTO messaging.suppressions AS s (tenant_id, channel, address, reason, send_id, created_at)
SELECT gone.tenant_id, gone.channel, core.erased_address(gone.tenant_id, gone.channel, gone.address), gone.reason, gone.send_id, gone.created_at FROM gone
ON CONFLICT (tenant_id, channel, address) DO UPDATE SET reason = EXCLUDED.reason WHERE s.reason = 'unsubscribe';
