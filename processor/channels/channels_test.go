package channels_test

import (
	"crypto/sha256"
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/softcrum/carril/internal/ids"
	"github.com/softcrum/carril/internal/testkit"
	"github.com/softcrum/carril/processor/channels"
	"github.com/softcrum/carril/processor/eventlog"
	"github.com/softcrum/carril/processor/partition"
	"github.com/softcrum/carril/processor/stagetest"
	"github.com/softcrum/carril/processor/tenants"
	"github.com/softcrum/carril/schemas"
)

func TestMain(m *testing.M) { testkit.Main(m) }

func newBench(t *testing.T) *stagetest.Bench {
	b := stagetest.New(t)
	b.Exec(`INSERT INTO messaging.templates (tenant_id, template_id, version, channel, subject, text) VALUES ($1, 'receipt', 1, 'email', 's', 't'), ($1, 'receipt', 2, 'email', 's', 't')`, b.Tenant)
	b.Exec(`INSERT INTO messaging.senders (tenant_id, channel, sender, verified) VALUES ($1, 'email', 'Acme <hi@example.com>', true)`, b.Tenant)
	return b
}

func run(b *stagetest.Bench, rail string, credits int) {
	b.T.Helper()
	contacts, err := eventlog.OpenContactLanes(b.T.Context(), b.Side, b.Codec, nil)
	require.NoError(b.T, err)
	h := channels.New(rail, channels.Deps{Codec: b.Codec, Tenants: tenants.NewCache(b.Side, 0), Partitions: partition.NewMaker(b.Side), Contacts: contacts,
		Metrics: prometheus.NewRegistry(), Now: time.Now, Channels: []string{"email"}, Credits: credits})
	b.Run(channels.StageFor(rail), []string{channels.TopicFor(rail)}, h, eventlog.Source{Pool: b.Side, Codec: b.Codec})
}

// asked makes a request of the API for one address.
func asked(b *stagetest.Bench, key, category, address string) schemas.NotificationRequested {
	sum := sha256.Sum256([]byte(key))
	return schemas.NotificationRequested{RequestID: ids.Request(b.Tenant, key), TenantID: b.Tenant, CellID: "cell-1", Category: category, Channel: "email",
		Origin: "api", CorrelationID: "corr-" + key, IdempotencyKey: &key, BodyHash: sum[:], ReceivedAt: time.Now().UTC(),
		Recipients: fmt.Sprintf(`[{"address":%q}]`, address), TemplateID: new("receipt"), Variables: `{"a":1}`}
}

func (s state) of(b *stagetest.Bench) int {
	return b.Count(`SELECT count(*) FROM core.processed_jobs WHERE worker = 'rail:email.transactional' AND state = $1`, string(s))
}

type state string

func TestChannels(t *testing.T) {
	t.Run("ARetryThroughAnotherReplicaIsTheSameSend", func(t *testing.T) { // I2, FS-MSG-0005 AC6
		t.Parallel()
		b := newBench(t)
		first := asked(b, "K", "transactional", "ana@example.com")
		second := first
		second.ReceivedAt = first.ReceivedAt.Add(2200 * time.Millisecond)
		stagetest.Send(b, schemas.TopicRequestedTransactional, b.Tenant, first, second)
		run(b, schemas.RailTransactional, 0)
		jobs := stagetest.Read[schemas.SendJob](b, schemas.RailTopic("email", "transactional"), 1)
		stagetest.Send(b, schemas.TopicRequestedTransactional, b.Tenant, second, asked(b, "K2", "transactional", "bo@example.com"))
		stagetest.Read[schemas.SendJob](b, schemas.RailTopic("email", "transactional"), 2)
		require.Equal(t, 2, state("in_topic").of(b))
		require.Equal(t, first.ReceivedAt.UnixMilli(), ids.Time(jobs[0].JobID).UnixMilli())
		require.Equal(t, 1, b.Count(`SELECT count(*) FROM core.processed_jobs WHERE job_id = $1 AND payload->'messages'->0->>'address' = 'ana@example.com'
			AND (payload->'messages'->0->>'template_version')::int = 2`, jobs[0].JobID))
	})

	t.Run("AnotherBodyUnderAUsedKeyIsRecordedAndNeverSent", func(t *testing.T) { // bad inputs 25
		t.Parallel()
		b := newBench(t)
		first := asked(b, "K", "transactional", "ana@example.com")
		other := asked(b, "K", "transactional", "bo@example.com")
		other.BodyHash = append([]byte{1}, other.BodyHash[1:]...)
		rule := first
		rule.Origin, rule.BodyHash = "rule", append([]byte{2}, rule.BodyHash[1:]...)
		stagetest.Send(b, schemas.TopicRequestedTransactional, b.Tenant, first, first, other) // one batch
		run(b, schemas.RailTransactional, 0)
		stagetest.Read[schemas.SendJob](b, schemas.RailTopic("email", "transactional"), 1)
		stagetest.Send(b, schemas.TopicRequestedTransactional, b.Tenant, other, first, rule, asked(b, "K2", "transactional", "cy@example.com")) // another
		stagetest.Read[schemas.SendJob](b, schemas.RailTopic("email", "transactional"), 2)
		require.Equal(t, 2, state("in_topic").of(b))
		require.Zero(t, b.Count(`SELECT count(*) FROM core.processed_jobs WHERE payload->'messages'->0->>'address' = 'bo@example.com'`))
		require.Equal(t, 1, b.Count(`SELECT count(*) FROM core.idempotency_conflicts`))
		require.Equal(t, 1, b.Count(`SELECT count(*) FROM core.idempotency_conflicts WHERE kind = 'message' AND event_id = $1 AND tenant_id = $2 AND body_hash = $3`,
			first.RequestID, b.Tenant, other.BodyHash))
	})

	t.Run("CarriesTheCallersTraceparentToTheRail", func(t *testing.T) {
		t.Parallel()
		b := newBench(t)
		const trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
		n := asked(b, "K", "transactional", "ana@example.com")
		stagetest.SendTraced(b, schemas.TopicRequestedTransactional, "messaging.requested", n.RequestID, trace, n)
		run(b, schemas.RailTransactional, 0)
		require.Equal(t, trace, b.Headers(schemas.RailTopic("email", "transactional"))["traceparent"])
	})

	t.Run("EverySendHasAnOriginEventOfThePlatform", func(t *testing.T) { // FS-MSG-0003 AC2, I33
		t.Parallel()
		b := newBench(t)
		b.SendEvents() // none: the tenant tracked nothing
		stagetest.Send(b, schemas.TopicRequestedTransactional, b.Tenant, asked(b, "invoice-889", "transactional", "ana@example.com"))
		run(b, schemas.RailTransactional, 0)
		got := stagetest.Read[schemas.EventTracked](b, schemas.TopicEventTracked, 1)
		require.Equal(t, "messaging.message.requested", got[0].EventName)
		require.Equal(t, ids.PlatformEvent(ids.Request(b.Tenant, "invoice-889")), got[0].EventID)
		require.NotContains(t, got[0].Payload, "ana@")
		b.Await(1, `SELECT count(*) FROM messaging.decisions WHERE outcome = 'queued' AND origin_event_id = $1 AND send_id IS NOT NULL`, got[0].EventID)
	})

	t.Run("ABlockedMessageHasAReasonAndNoJob", func(t *testing.T) { // FS-MSG-0003 AC1
		t.Parallel()
		b := newBench(t)
		b.Exec(`INSERT INTO messaging.suppressions (tenant_id, channel, address, reason) VALUES ($1, 'email', 'gone@example.com', 'hard_bounce')`, b.Tenant)
		expired := asked(b, "expired", "transactional", "a@example.com")
		expired.ExpiresAt = new(time.Now().Add(-time.Second))
		missing := asked(b, "missing", "transactional", "a@example.com")
		missing.TemplateID = new("nope")
		stranger := asked(b, "stranger", "transactional", "")
		stranger.ContactID = new(uuid.New())
		old := asked(b, "old", "transactional", "a@example.com")
		old.MaxAgeSeconds, old.OriginOccurredAt = new(int64(60)), new(time.Now().Add(-time.Hour))
		pigeon := asked(b, "pigeon", "transactional", "a@example.com")
		pigeon.Channel = "pigeon"
		stagetest.Send(b, schemas.TopicRequestedTransactional, b.Tenant, asked(b, "gone", "transactional", "Gone@example.com"), expired, missing, stranger, old, pigeon,
			asked(b, "bad", "transactional", "a@b.c\r\nBcc: x@example.com"), asked(b, "fine", "product", "a@example.com"))
		run(b, schemas.RailTransactional, 0)
		b.Await(8, `SELECT count(*) FROM messaging.decisions`)
		for key, reason := range map[string]string{"gone": "suppressed_hard_bounce", "expired": "expired", "missing": "template_missing", "stranger": "unknown_contact",
			"old": "too_old", "pigeon": "unknown_channel", "bad": "address_invalid"} {
			require.Equal(t, 1, b.Count(`SELECT count(*) FROM messaging.decisions WHERE request_id = $1 AND outcome = 'blocked' AND reason = $2`, ids.Request(b.Tenant, key), reason), key)
		}
		require.Equal(t, 1, state("in_topic").of(b))
	})

	t.Run("ContactsOfARuleAreReachedThroughTheirMerges", func(t *testing.T) { // I3
		t.Parallel()
		b := newBench(t)
		gone, kept := uuid.New(), uuid.New()
		b.Exec(`INSERT INTO core.contacts (tenant_id, contact_id, cell_id, known) VALUES ($1, $2, 'cell-1', false), ($1, $3, 'cell-1', true)`, b.Tenant, gone, kept)
		b.Exec(`INSERT INTO core.contact_identifiers (tenant_id, kind, value, contact_id) VALUES ($1, 'email', 'kept@example.com', $2)`, b.Tenant, kept)
		b.Exec(`INSERT INTO core.contact_merges (tenant_id, from_contact, into_contact) VALUES ($1, $2, $3)`, b.Tenant, gone, kept)
		r := asked(b, "K", "transactional", "")
		r.ContactID = &gone
		stagetest.Send(b, schemas.TopicRequestedTransactional, b.Tenant, r, r)
		run(b, schemas.RailTransactional, 0)
		b.Await(1, `SELECT count(*) FROM messaging.decisions WHERE outcome = 'queued' AND contact_id = $1`, kept)
	})

	t.Run("MarketingNeedsConsentAndGoesToTheFeeder", func(t *testing.T) {
		t.Parallel()
		b := newBench(t)
		yes := uuid.New()
		b.Exec(`INSERT INTO core.contacts (tenant_id, contact_id, cell_id, known) VALUES ($1, $2, 'cell-1', true)`, b.Tenant, yes)
		b.Exec(`INSERT INTO core.contact_identifiers (tenant_id, kind, value, contact_id) VALUES ($1, 'email', 'yes@example.com', $2)`, b.Tenant, yes)
		b.Exec(`INSERT INTO messaging.consents (tenant_id, contact_id, channel, granted, source) VALUES ($1, $2, 'email', true, 'form')`, b.Tenant, yes)
		stagetest.Send(b, schemas.TopicRequestedMarketing, b.Tenant, asked(b, "y", "marketing", "yes@example.com"), asked(b, "n", "marketing", "no@example.com"))
		run(b, schemas.RailMarketing, 0)
		b.Await(2, `SELECT count(*) FROM messaging.decisions`)
		require.Equal(t, 1, b.Count(`SELECT count(*) FROM messaging.decisions WHERE reason = 'consent_missing'`))
		require.Equal(t, 1, b.Count(`SELECT count(*) FROM messaging.marketing_queue WHERE payload->>'address' = 'yes@example.com'`))
		require.Zero(t, state("in_topic").of(b))
	})

	t.Run("AMarketingRequestOnTheTransactionalTopicIsRefused", func(t *testing.T) { // FS-MSG-0005 §9
		t.Parallel()
		b := newBench(t)
		stagetest.Send(b, schemas.TopicRequestedTransactional, b.Tenant, asked(b, "m", "marketing", "a@example.com"), asked(b, "t", "transactional", "a@example.com"))
		run(b, schemas.RailTransactional, 0)
		b.Await(1, `SELECT count(*) FROM core.dead_letters WHERE stage = 'channels-transactional' AND class = 'undecodable'`)
		b.Await(1, `SELECT count(*) FROM messaging.decisions`)
	})

	t.Run("BeyondItsCreditsATenantsJobsWaitInTheDatabase", func(t *testing.T) {
		t.Parallel()
		b := newBench(t)
		for i := range 10 {
			stagetest.Send(b, schemas.TopicRequestedTransactional, b.Tenant, asked(b, fmt.Sprint(i), "transactional", "a@example.com"))
		}
		run(b, schemas.RailTransactional, 4)
		b.Await(10, `SELECT count(*) FROM messaging.decisions`)
		require.Equal(t, 4, state("in_topic").of(b))
		require.Equal(t, 6, state("waiting").of(b))
	})
}

// TestTwoWritersOfOneContact is I28: the append stage and the channels stage
// meet the same new emails at once.
func TestTwoWritersOfOneContact(t *testing.T) {
	t.Parallel()
	const n = 150
	b := newBench(t)
	contacts, err := eventlog.OpenContactLanes(t.Context(), b.Side, b.Codec, nil)
	require.NoError(t, err)
	appender := eventlog.New(eventlog.Deps{Codec: b.Codec, Tenants: tenants.NewCache(b.Side, 0), Partitions: partition.NewMaker(b.Side),
		Contacts: contacts, Log: testkit.Logger(t)})
	var requests []schemas.NotificationRequested
	var events []schemas.Event
	for i := range n {
		address := fmt.Sprintf("new-%d@example.com", i)
		requests = append(requests, asked(b, fmt.Sprint(i), "transactional", address))
		events = append(events, b.Event(fmt.Sprint(i), "a.b", time.Now(), fmt.Sprintf(`{"email":%q}`, address), `{}`))
	}
	stagetest.Send(b, schemas.TopicRequestedTransactional, b.Tenant, requests...)
	stagetest.Send(b, schemas.TopicEvents, b.Tenant, events...)
	b.Run(eventlog.Stage, []string{schemas.TopicEvents}, appender, eventlog.Source{Pool: b.Side, Codec: b.Codec})
	run(b, schemas.RailTransactional, 0)
	b.Await(n, `SELECT count(*) FROM messaging.decisions WHERE outcome = 'queued'`)
	b.Await(2*n, `SELECT count(*) FROM core.tracked_events WHERE occurred_at > '-infinity'`) // and the platform's own
	require.Equal(t, n, b.Count(`SELECT count(*) FROM core.contact_identifiers WHERE kind = 'email'`))
	require.Equal(t, n, b.Count(`SELECT count(DISTINCT contact_id) FROM core.tracked_events WHERE occurred_at > '-infinity'`))
	require.Zero(t, b.Count(`SELECT count(*) FROM core.dead_letters`))
}
