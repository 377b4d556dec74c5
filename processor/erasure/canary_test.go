package erasure_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/softcrum/carril/internal/ids"
	"github.com/softcrum/carril/processor/contacts"
	"github.com/softcrum/carril/processor/identity"
	"github.com/softcrum/carril/processor/stagetest"
	"github.com/softcrum/carril/schemas"
)

// What only the person's own data holds.
var canary = []string{"canary", "4125550199"}

// canaryLife leads a person through the system with a canary in every field that
// a caller fills with what is theirs, and gives the contact.
func canaryLife(t *testing.T, o *office) uuid.UUID {
	now := time.Now()
	o.appends()
	o.rulesAndChannels()
	const who = `{"external_id":"canary-1","email":"Canary@Example.com","phone":"+58 412-555-0199","anonymous_id":"canary-device","crm":"canary-crm"}`
	o.SendEvents(
		o.Event("t-1-canary", "page.seen", now, `{"anonymous_id":"canary-old-device"}`, `{"url":"/canary"}`),
		o.Identify("i-1-canary", now, who, `{"name":"Canary","canary_key":1}`),
		o.Event("t-2-canary", "invoice.paid", now, `{"email":"canary@example.com"}`, `{"note":"canary","deep":{"canary":[1]}}`),
		o.Event("t-2-canary", "invoice.paid", now, `{"email":"canary@example.com"}`, `{"note":"another canary"}`),             // a conflict
		o.Event("t-3-canary", "a.b", now, `{"email":"not an address of canary","external_id":"canary-1"}`, `{"canary":true}`), // a warning
		o.Event("t-4-canary", "a.b", now.AddDate(0, -5, 0), `{"external_id":"canary-1"}`, `{"old":"canary"}`),
		o.Event("t-5", "a.b", now, `{"external_id":"other","email":"canary@example.com"}`, `{}`),   // an identity conflict
		o.Event("t-6-canary", "a.b", now, `{"external_id":"canary-1"}`, `{"bad":"canary \u0000"}`), // a dead letter
		o.Event("t-7", "a.b", now, `{"external_id":"other"}`, `{"not":"theirs"}`))
	o.Await(7, eventCount)
	o.Await(1, `SELECT count(*) FROM core.dead_letters`)
	o.Await(1, `SELECT count(*) FROM core.processed_jobs WHERE worker = 'rail:email.transactional'`)
	contact, old := o.contactOf("external_id", "canary-1"), o.contactOf("anonymous_id", "canary-old-device")
	desk := contacts.Desk{Pool: o.Side, Lanes: o.deps.Lanes}
	require.NoError(t, desk.Merge(t.Context(), identity.ByHand{TenantID: o.Tenant, From: old, Into: contact, By: "op", Why: "it is Canary"}))
	requireCanaries(t, o, contact)
	return contact
}

// requireCanaries fills the stores of other services.
func requireCanaries(t *testing.T, o *office, contact uuid.UUID) {
	t.Helper()
	event, at := ids.Event(o.Tenant, "t-2-canary"), time.Now().UTC()
	sent := o.send(contact, "canary@example.com", "canary said", "sent")
	o.Exec(`INSERT INTO core.webhook_deliveries (created_at, delivery_id, endpoint_id, tenant_id, order_key, seq, event_type, event_id, body, state)
		SELECT k.received_at, gen_random_uuid(), gen_random_uuid(), $1, 'o', 1, 'core.event.tracked', $2, '{"note":"canary"}', s FROM core.event_keys k, unnest(ARRAY['pending', 'delivered', 'failed']) s
		WHERE k.tenant_id = $1 AND k.event_id = $2`, o.Tenant, event)
	o.Exec(`INSERT INTO core.webhook_attempts (delivery_id, endpoint_id, tenant_id, event_id, event_type, attempt, class, duration_ms, answer)
		VALUES (gen_random_uuid(), gen_random_uuid(), $1, $2, 'core.event.tracked', 1, 'ok', 1, 'thanks canary')`, o.Tenant, event)
	blast := ids.New()
	o.Exec(`INSERT INTO messaging.blasts (blast_id, tenant_id, channel, name, template_id, template_version, state, recipients, origin_event_id, correlation_id)
		VALUES ($1, $2, 'email', 'b', 'receipt', 1, 'running', 3, $1, 'c')`, blast, o.Tenant)
	o.Exec(`INSERT INTO messaging.blast_recipients (blast_id, position, contact_id, address, variables) VALUES ($1, 0, NULL, 'canary@example.com', '{"a":"canary"}'),
		($1, 1, $2, 'canary.old@example.com', '{"a":"canary"}'), ($1, 2, NULL, 'other@example.com', '{}')`, blast, contact)
	o.Exec(`INSERT INTO messaging.suppressions (tenant_id, channel, address, reason) VALUES ($1, 'email', 'canary@example.com', 'unsubscribe')`, o.Tenant)
	o.Exec(`INSERT INTO messaging.consents (tenant_id, contact_id, channel, granted, source) VALUES ($1, $2, 'sms', false, 'canary form')`, o.Tenant, contact)
	queued := schemas.JobMessage{SendID: ids.New(), RequestID: ids.New(), RequestedAt: at, ContactID: contact, Address: "canary@example.com"}
	o.Exec(`INSERT INTO messaging.marketing_queue (tenant_id, channel, send_id, payload) VALUES ($1, 'email', $2, $3)`, o.Tenant, queued.SendID, queued)
	o.Exec(`INSERT INTO messaging.unmatched_events (provider, provider_event_id, provider_message_id, body, received_at) VALUES ('resend', 'e', $1, '{"to":["canary@example.com"]}', now())`, sent.String())
	for i, value := range []string{`{"to":["canary@example.com"],"tenant":"` + o.Tenant.String() + `"}`, "\x00\x01" + o.Tenant.String() + `{"phone":"+58412\u0035550199"}`} {
		o.Exec(`INSERT INTO core.dead_letters (dead_letter_id, stage, class, reason, topic, record_key, record_value, record_headers)
			VALUES ($1, 's', 'c', 'canary was refused', $2, 'k', $3, '[["x","canary"]]')`, ids.New(), []string{schemas.TopicProviderEvents, schemas.TopicEvents}[i], []byte(value))
	}
	o.Exec(`INSERT INTO core.dead_letters (dead_letter_id, stage, class, reason, tenant_id, record_value) VALUES ($1, 's', 'c', 'r', $2, '{"email":"other@example.com"}')`, ids.New(), o.Tenant)
	have := o.found(canary...)
	for _, place := range []string{"core.contacts.traits", "core.contacts.trait_times", "core.contact_identifiers.value", "core.contact_merges.reason", "core.dead_letters.record_value",
		"core.outbox", "core.processed_jobs", "core.tracked_events", "core.webhook_deliveries", "core.webhook_attempts", "messaging.blast_recipients.address",
		"messaging.consents.source", "messaging.marketing_queue.payload", "messaging.send_requests", "messaging.sends", "messaging.suppressions.address", "messaging.unmatched_events.body"} {
		require.True(t, slices.ContainsFunc(have, func(s string) bool { return strings.HasPrefix(s, place) }), "the canary must be in %s first: %v", place, have)
	}
}

// beyondOutbox drops what the outbox's days hold, as its deadline does, and gives
// where the canary still is.
func (o *office) beyondOutbox() []string {
	o.Exec(`TRUNCATE core.outbox`)
	return o.found(canary...)
}

func TestCanary(t *testing.T) { // FS-MSG-0003 AC8, faults P16
	t.Parallel()
	o := newOffice(t)
	contact := canaryLife(t, o)
	count := func() []int {
		return []int{o.Count(eventCount), o.Count(`SELECT count(*) FROM messaging.sends WHERE requested_at > '-infinity'`), o.Count(`SELECT count(*) FROM core.points_ledger`),
			o.Count(`SELECT count(*) FROM messaging.decisions WHERE received_at > '-infinity'`), o.Count(`SELECT count(*) FROM messaging.blast_recipients`),
			o.Count(`SELECT sum(balance)::int FROM core.points_balances`)}
	}
	before := count()
	late := o.Event("late-canary", "a.b", time.Now(), `{"email":"canary@example.com","anonymous_id":"canary-late"}`, `{"late":"canary"}`) // accepted, not yet read
	ask := asked(o, "late-ask", "canary@example.com")

	id := o.erase(contact)
	require.Equal(t, id, o.erase(contact), "asked again it is the same erasure")
	for _, left := range o.found(canary...) {
		require.NotContains(t, left, "core.contact", "gone with the request itself")
	}
	o.work()
	require.Empty(t, o.beyondOutbox())
	require.Equal(t, before, count(), "rows stay as anonymous counts")
	require.Equal(t, 1, o.Count(`SELECT count(*) FROM messaging.sends WHERE requested_at > '-infinity' AND content IS NULL AND address IS NULL`))
	require.Equal(t, 1, o.Count(`SELECT count(*) FROM core.dead_letters WHERE record_value IS NOT NULL`), "somebody else's is left alone")
	require.Equal(t, 1, o.Count(`SELECT count(*) FROM messaging.blast_recipients WHERE address = 'other@example.com'`))
	require.Equal(t, 1, o.Count(eventCount+` AND properties = '{"not": "theirs"}'`))
	require.Equal(t, 1, o.Count(`SELECT count(*) FROM core.webhook_deliveries WHERE created_at > '-infinity' AND state = 'cancelled' AND last_error = 'erased'`))

	t.Run("ALateEventLandsOnAFreshAnonymousContact", func(t *testing.T) { // I14
		o.SendEvents(late)
		o.Await(before[0]+1, eventCount)
		o.Await(1, `SELECT count(*) FROM core.tracked_events e JOIN core.contacts c USING (tenant_id, contact_id) WHERE e.occurred_at > '-infinity' AND e.event_id = $1
			AND NOT c.known AND c.erased_at IS NULL AND e.contact_id <> $2 AND e.properties = '{}'
			AND NOT EXISTS (SELECT FROM core.contact_identifiers i WHERE i.contact_id = c.contact_id)`, late.EventID, contact)
		require.Empty(t, o.beyondOutbox())
	})
	t.Run("NothingIsSentForARequestFromBefore", func(t *testing.T) {
		stagetest.Send(o.Bench, schemas.TopicRequestedTransactional, o.Tenant, ask)
		o.Await(1, `SELECT count(*) FROM messaging.decisions WHERE received_at > '-infinity' AND request_id = $1 AND outcome = 'blocked' AND reason = 'contact_erased'`, ask.RequestID)
		require.Empty(t, o.beyondOutbox())
	})
	t.Run("ARestartUndoesNothing", func(t *testing.T) {
		o.work(2*time.Hour, 16*24*time.Hour, 31*24*time.Hour)
		require.Empty(t, o.beyondOutbox())
		require.Zero(t, o.Count(`SELECT count(*) FROM core.erasures WHERE done_at IS NULL`))
		require.Zero(t, o.Count(`SELECT count(*) FROM core.erasure_stores WHERE done_at IS NULL`))
		require.Zero(t, o.Count(`SELECT count(*) FROM messaging.provider_messages`), "when no report is awaited any more")
		_, err := o.Side.Exec(t.Context(), `UPDATE core.contacts SET erased_at = NULL WHERE contact_id = $1`, contact)
		require.ErrorContains(t, err, "stays erased")
	})
	t.Run("OneReceivedLaterIsAPersonWhoCameBack", func(t *testing.T) {
		o.SendEvents(o.Event("back", "a.b", time.Now(), `{"email":"canary@example.com"}`, `{}`), late) // the late one again, too
		o.Await(1, eventCount+` AND idempotency_key = 'back'`)
		back := o.contactOf("email", "canary@example.com")
		require.NotEqual(t, contact, back)
		// Another that was received before and never read: not theirs.
		later := late
		later.EventID, later.IdempotencyKey = ids.Event(o.Tenant, "late-2"), "late-2"
		o.SendEvents(later)
		o.Await(1, eventCount+` AND event_id = $1`, later.EventID)
		require.Equal(t, 1, o.Count(eventCount+` AND contact_id = $1`, back))
	})
}
