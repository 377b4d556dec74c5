package eventlog_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/softcrum/carril/internal/ids"
	"github.com/softcrum/carril/internal/taxonomy"
	"github.com/softcrum/carril/internal/testkit"
	"github.com/softcrum/carril/processor/eventlog"
	"github.com/softcrum/carril/processor/partition"
	"github.com/softcrum/carril/processor/stagetest"
	"github.com/softcrum/carril/processor/tenants"
	"github.com/softcrum/carril/schemas"
)

func TestMain(m *testing.M) { testkit.Main(m) }

func run(b *stagetest.Bench) (stop func()) { return runWith(b, eventlog.Deps{}) }

func runWith(b *stagetest.Bench, deps eventlog.Deps) (stop func()) {
	b.T.Helper()
	contacts, err := eventlog.OpenContactLanes(b.T.Context(), b.Side, b.Codec, nil)
	require.NoError(b.T, err)
	deps.Codec, deps.Tenants, deps.Partitions = b.Codec, tenants.NewCache(b.Side, 0), partition.NewMaker(b.Side)
	deps.Contacts, deps.Log = contacts, testkit.Logger(b.T)
	h := eventlog.New(deps)
	return b.Run(eventlog.Stage, []string{schemas.TopicEvents}, h, eventlog.Source{Pool: b.Side, Codec: b.Codec})
}

const (
	eventCount = `SELECT count(*) FROM core.tracked_events WHERE occurred_at > '-infinity'`
	anybody    = `{"external_id":"u-1"}`
)

func TestAppend(t *testing.T) {
	now := time.Now()

	t.Run("SameKeyAHundredTimesIsOneRowAndOneEffect", func(t *testing.T) { // FS-CORE-0006 AC2, I12
		t.Parallel()
		b := stagetest.New(t)
		for range 100 {
			b.SendEvents(b.Event("invoice-889", "invoice.paid", now, anybody, `{"total":10}`))
		}
		b.SendEvents(b.Event("invoice-890", "invoice.paid", now, anybody, `{}`))
		run(b)
		b.Await(2, eventCount)
		tracked := stagetest.Read[schemas.EventTracked](b, schemas.TopicEventTracked, 2)
		require.Equal(t, "invoice-889", tracked[0].IdempotencyKey)
		require.Equal(t, tracked[0].ContactID, tracked[1].ContactID)
		require.Zero(t, b.Count(`SELECT count(*) FROM core.idempotency_conflicts`))
	})

	t.Run("SameKeyWithAnotherBodyIsAConflictAndNoSecondRow", func(t *testing.T) {
		t.Parallel()
		b := stagetest.New(t)
		reg := prometheus.NewPedanticRegistry()
		for range 2 { // the second time in other batches; the same conflict is recorded once
			b.SendEvents(b.Event("k", "invoice.paid", now, anybody, `{"total":1}`), b.Event("k", "invoice.paid", now, anybody, `{"total":2}`))
		}
		runWith(b, eventlog.Deps{Metrics: eventlog.NewMetrics(reg)})
		b.SendEvents(b.Event("k", "invoice.paid", now, anybody, `{"total":2}`), b.Event("k", "invoice.paid", now, anybody, `{"total":3}`),
			b.Event("last", "invoice.paid", now, anybody, `{}`))
		b.Await(1, eventCount+` AND idempotency_key = 'last'`)
		b.Await(2, `SELECT count(*) FROM core.idempotency_conflicts WHERE kind = 'event' AND event_id = $1`, ids.Event(b.Tenant, "k"))
		b.Await(1, eventCount+` AND idempotency_key = 'k' AND properties = '{"total":1}'`)
		b.Eventually("the metric", func() bool { return stagetest.Metric(t, reg, "carril_append_idempotency_conflicts_total") == 2 })
	})

	t.Run("LargeBatchesKeepOneRowAKeyWhereverItsRepeatsLie", func(t *testing.T) { // FS-CORE-0006 AC2
		t.Parallel()
		b := stagetest.New(t)
		send := func(from, to int, body string) {
			var events []schemas.Event
			for i := from; i < to; i++ {
				events = append(events, b.Event(fmt.Sprintf("k-%d", i), "a.b", now, anybody, body))
			}
			b.SendEvents(events...)
		}
		send(0, 700, `{}`)
		send(690, 700, `{}`) // repeats that lie close to their originals
		stop := run(b)
		b.Await(700, eventCount)
		stop()

		// Of a process that remembers none of them.
		send(695, 1_300, `{}`)        // repeats among new keys
		send(699, 700, `{"other":1}`) // and another body
		send(1_300, 1_900, `{}`)
		run(b)
		b.Await(1_900, eventCount)
		b.Await(1, `SELECT count(*) FROM core.idempotency_conflicts`)
		require.Equal(t, 1_900, b.Count(`SELECT count(*) FROM core.event_keys`))
		require.Equal(t, 1_900, b.Count(`SELECT count(DISTINCT event_id) FROM core.tracked_events WHERE occurred_at > '-infinity'`))
		require.Zero(t, b.Count(`SELECT count(*) FROM core.dead_letters`))
	})

	t.Run("TwoTenantsMayUseOneKey", func(t *testing.T) { // field report 7
		t.Parallel()
		b := stagetest.New(t)
		b.SendEvents(b.Event("k", "a.b", now, anybody, `{}`))
		b.Tenant = b.AddTenant("other", "scale")
		b.SendEvents(b.Event("k", "a.b", now, anybody, `{}`))
		run(b)
		b.Await(2, eventCount)
		b.Await(2, `SELECT count(*) FROM core.contacts`)
		require.Equal(t, 1, b.Count(eventCount+` AND retention_months = 37 AND tenant_id = $1`, b.Tenant))
	})

	t.Run("AnHourAgoFallsIntoItsPartitionAndOrdersByItsOwnTime", func(t *testing.T) { // FS-CORE-0006 AC3, field report 9
		t.Parallel()
		b := stagetest.New(t)
		midnight := time.Date(now.UTC().Year(), now.UTC().Month(), 1, 0, 30, 0, 0, time.UTC) // an hour before lies in the month before
		b.SendEvents(b.Event("late", "a.b", midnight, anybody, `{}`), b.Event("early", "a.b", midnight.Add(-time.Hour), anybody, `{}`))
		run(b)
		b.Await(2, eventCount)
		rows, err := b.Side.Query(t.Context(), `SELECT idempotency_key || ' ' || tableoid::regclass::text FROM core.tracked_events
			WHERE occurred_at > '-infinity' ORDER BY occurred_at`)
		require.NoError(t, err)
		var got []string
		for rows.Next() {
			var s string
			require.NoError(t, rows.Scan(&s))
			got = append(got, s)
		}
		require.Equal(t, []string{
			"early core.tracked_events_" + midnight.Add(-time.Hour).Format("200601") + "_r13",
			"late core.tracked_events_" + midnight.Format("200601") + "_r13"}, got)
	})

	t.Run("AMonthThatNobodyMadeIsMadeAndDefaultStaysEmpty", func(t *testing.T) { // FS-CORE-0006 AC6, faults F25
		t.Parallel()
		b := stagetest.New(t)
		for i := range 14 {
			b.SendEvents(b.Event(fmt.Sprintf("m-%d", i), "a.b", now.AddDate(0, -i, 0), anybody, `{}`))
		}
		run(b)
		b.Await(14, eventCount)
		require.Zero(t, b.Count(`SELECT count(*) FROM core.tracked_events_default`))
	})

	t.Run("KeepsDigitsAndTheCallersOffset", func(t *testing.T) { // bad-inputs 14, field report 10
		t.Parallel()
		b := stagetest.New(t)
		e := b.Event("k", "a.b", time.Date(2026, 11, 1, 5, 30, 0, 0, time.UTC), anybody, `{"n":9007199254740993,"m":1.10}`)
		e.OccurredOffset = -4 * 3600
		b.SendEvents(e)
		run(b)
		b.Await(1, eventCount+` AND properties->>'n' = '9007199254740993' AND properties->>'m' = '1.10' AND occurred_offset = -14400
			AND occurred_at = '2026-11-01T01:30:00-04:00'`)
	})

	t.Run("KeepsWhatTheCallerClaimedWhereItsClockWasClamped", func(t *testing.T) {
		t.Parallel()
		b := stagetest.New(t)
		e := b.Event("k", "a.b", now, anybody, `{}`)
		e.OccurredClaimed = new(now.Add(10 * 24 * time.Hour).UTC().Truncate(time.Microsecond))
		b.SendEvents(e)
		run(b)
		b.Await(1, eventCount+` AND occurred_at = $1 AND occurred_claimed = $2`, e.OccurredAt, *e.OccurredClaimed)
	})

	t.Run("CarriesTheCallersTraceparentOn", func(t *testing.T) {
		t.Parallel()
		b := stagetest.New(t)
		const trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
		e := b.Event("k", "a.b", now, anybody, `{}`)
		stagetest.SendTraced(b, schemas.TopicEvents, "core.event.accepted", e.EventID, trace, e)
		run(b)
		require.Equal(t, trace, b.Headers(schemas.TopicEventTracked)["traceparent"])
	})

	t.Run("AnEventOfNoTenantIsADeadLetterAndTheOthersLand", func(t *testing.T) {
		t.Parallel()
		b := stagetest.New(t)
		stray := b.Event("k", "a.b", now, anybody, `{}`)
		stray.TenantID = uuid.New()
		b.SendEvents(stray, b.Event("k2", "a.b", now, anybody, `{}`))
		run(b)
		b.Await(1, eventCount)
		b.Await(1, `SELECT count(*) FROM core.dead_letters WHERE class = 'unknown_tenant' AND event_id = $1`, stray.EventID)
	})

	t.Run("WhatPostgresRefusesIsADeadLetterAndLeavesNoFence", func(t *testing.T) { // I44, field report 4
		t.Parallel()
		b := stagetest.New(t)
		bad := b.Event("bad", "a.b", now, anybody, `{"x":"\u0000"}`)
		var all []schemas.Event
		for i := range 40 {
			all = append(all, b.Event(fmt.Sprintf("ok-%d", i), "a.b", now, anybody, `{}`))
		}
		b.SendEvents(all[:17]...)
		stagetest.SendTraced(b, schemas.TopicEvents, "core.event.accepted", bad.EventID, "", bad)
		b.SendEvents(all[18:]...)
		run(b)
		b.Await(39, eventCount)
		b.Await(1, `SELECT count(*) FROM core.dead_letters WHERE class = 'refused_by_database' AND tenant_id = $1 AND event_id = $2`, b.Tenant, bad.EventID)
		require.Zero(t, b.Count(`SELECT count(*) FROM core.event_keys WHERE event_id = $1`, bad.EventID))
		b.SendEvents(b.Event("bad", "a.b", now, anybody, `{"x":"fixed"}`)) // the replay lands
		b.Await(40, eventCount)
	})
}

// byName are schemas by event name, whoever asks.
type byName map[string]*taxonomy.Schema

func (s byName) Find(_ uuid.UUID, event string) *taxonomy.Schema { return s[event] }

// TestTaxonomy is FS-CORE-0006 §8 behind the door: what was taken stays, with a
// warning.
func TestTaxonomy(t *testing.T) {
	t.Parallel()
	b := stagetest.New(t)
	now, reg := time.Now(), prometheus.NewPedanticRegistry()
	schema := `{"properties":{"total":{"type":"number"}}}`
	b.SendEvents(
		b.Event("good", "cart.opened", now, anybody, `{"total":1}`),
		b.Event("bad", "cart.opened", now, anybody, `{"total":"secret"}`),
		b.Event("bad", "cart.opened", now, anybody, `{"total":"other"}`), // a loser of the fence is no event
		b.Event("late", "invoice.paid", now, anybody, `{"total":null}`),  // the front door did not know its schema
		b.Event("free", "page.seen", now, anybody, `{"total":"x"}`),
		b.Identify("traits", now, anybody, `{"total":[]}`))
	runWith(b, eventlog.Deps{Metrics: eventlog.NewMetrics(reg), Taxonomy: byName{
		"cart.opened": taxonomy.NewSchema(4, taxonomy.Observe, schema), "invoice.paid": taxonomy.NewSchema(1, taxonomy.Enforce, schema),
		eventlog.NameIdentified: taxonomy.NewSchema(1, taxonomy.Observe, schema)}})
	b.Await(5, eventCount)
	b.Await(3, `SELECT count(*) FROM core.warnings WHERE kind = 'taxonomy_violation'`)
	b.Await(1, `SELECT count(*) FROM core.warnings WHERE event_id = $1 AND tenant_id = $2 AND detail = '{"event_name":"cart.opened","version":4,"mode":"observe",
		"violations":[{"pointer":"/total","keyword":"type","schema":"/properties/total/type"}]}'`, ids.Event(b.Tenant, "bad"), b.Tenant)
	b.Eventually("the metric", func() bool { return stagetest.Metric(t, reg, "carril_append_taxonomy_violations_total") == 3 })
}

func TestRecoveryPublishesWhatTheOwnerLeft(t *testing.T) { // I7, I12
	t.Parallel()
	b := stagetest.New(t)
	for i := range 30 {
		b.SendEvents(b.Event(fmt.Sprintf("k-%02d", i), "a.b", time.Now().AddDate(0, -(i%3), 0), anybody, `{"i":`+fmt.Sprint(i)+`}`))
	}
	stop := run(b)
	b.Await(30, eventCount)
	stagetest.Read[schemas.EventTracked](b, schemas.TopicEventTracked, 30)
	stop()
	// As if the owner had died after its commit, before it published anything.
	b.Exec(`UPDATE core.outbox_cursors SET cursor = 0`)
	stop = run(b)
	b.Eventually("cursor at the counter", func() bool {
		return b.Count(`SELECT count(*) FROM core.outbox_cursors c JOIN core.outbox_lanes l USING (lane) WHERE l.store = 'events' AND c.cursor < l.counter`) == 0
	})
	stop()
	got := stagetest.Read[schemas.EventTracked](b, schemas.TopicEventTracked, 30) // distinct by ce_id
	for i, e := range got {
		require.Equal(t, fmt.Sprintf("k-%02d", i), e.IdempotencyKey)
		require.EqualValues(t, i+1, e.LaneSeq)
	}
	require.Equal(t, 1, b.Count(`SELECT count(DISTINCT lane) FROM core.tracked_events WHERE occurred_at > '-infinity'`))
}

func TestTablesRefuseChanges(t *testing.T) { // FS-CORE-0006 §7
	t.Parallel()
	b := stagetest.New(t)
	b.SendEvents(b.Event("k", "a.b", time.Now(), anybody, `{}`))
	run(b)
	b.Await(1, eventCount)
	for _, sql := range []string{
		`UPDATE core.tracked_events SET event_name = 'x' WHERE occurred_at > '-infinity'`,
		`DELETE FROM core.tracked_events WHERE occurred_at > '-infinity'`,
	} {
		_, err := b.Side.Exec(t.Context(), sql)
		require.ErrorContains(t, err, "append-only", sql)
	}
	for _, column := range []string{"correlation_id", "contact_id", "cell_id", "tenant_id"} {
		require.Equal(t, 1, b.Count(`SELECT count(*) FROM information_schema.columns WHERE table_schema = 'core' AND table_name = 'tracked_events'
			AND column_name = $1 AND is_nullable = 'NO'`, column), column)
	}
}

func TestIdentity(t *testing.T) {
	now := time.Now()
	contactOf := func(b *stagetest.Bench, key string) (id string) {
		b.T.Helper()
		require.NoError(b.T, b.Side.QueryRow(b.T.Context(), `SELECT contact_id::text FROM core.tracked_events WHERE occurred_at > '-infinity' AND idempotency_key = $1`, key).Scan(&id))
		return id
	}

	t.Run("UnknownBecomesAnAnonymousContact", func(t *testing.T) { // FS-CORE-0006 §6
		t.Parallel()
		b := stagetest.New(t)
		b.SendEvents(b.Event("k", "a.b", now, `{"anonymous_id":"dev-7"}`, `{}`), b.Event("k2", "a.b", now, `{"external_id":"null"}`, `{}`))
		run(b)
		b.Await(2, eventCount)
		require.Equal(t, 2, b.Count(`SELECT count(*) FROM core.contacts WHERE NOT known`))
		require.Equal(t, 1, b.Count(`SELECT count(*) FROM core.warnings WHERE kind = 'refused_identifier'`), "a value that names nobody never costs the event")
	})

	t.Run("AnonymousMergesIntoKnownInOnePollInOrder", func(t *testing.T) {
		t.Parallel()
		b := stagetest.New(t)
		b.SendEvents(
			b.Event("t1", "page.seen", now, `{"anonymous_id":"dev-1"}`, `{}`),
			b.Identify("i1", now, `{"anonymous_id":"dev-1","external_id":"u-1","email":"Ana@Example.com "}`, `{"plan":"pro"}`),
			b.Event("t2", "invoice.paid", now, `{"email":"ana@example.com"}`, `{}`))
		run(b)
		b.Await(3, eventCount)
		require.Equal(t, contactOf(b, "i1"), contactOf(b, "t2"))
		require.Equal(t, contactOf(b, "t1"), contactOf(b, "i1"))
		require.Equal(t, 1, b.Count(`SELECT count(*) FROM core.contacts WHERE known AND traits = '{"plan":"pro"}'`))
		require.Equal(t, 3, b.Count(`SELECT count(*) FROM core.contact_identifiers`))
		require.Equal(t, 1, b.Count(eventCount+` AND event_name = 'core.contact.identified'`))
	})

	t.Run("TwoKnownAnonymousAndEmailContactsMerge", func(t *testing.T) {
		t.Parallel()
		b := stagetest.New(t)
		b.SendEvents(
			b.Event("t1", "a.b", now, `{"anonymous_id":"dev-1"}`, `{}`),
			b.Event("t2", "a.b", now, `{"email":"bo@example.com"}`, `{}`),
			b.Identify("i1", now, `{"anonymous_id":"dev-1","email":"bo@example.com"}`, `{}`))
		run(b)
		b.Await(3, eventCount)
		b.SendEvents(b.Event("t3", "a.b", now, `{"anonymous_id":"dev-1"}`, `{}`))
		b.Await(4, eventCount)
		require.Equal(t, 1, b.Count(`SELECT count(*) FROM core.contact_merges WHERE into_contact = $1`, contactOf(b, "t2")), "the known one survives")
		require.Equal(t, contactOf(b, "t2"), contactOf(b, "i1"))
		require.Equal(t, contactOf(b, "t2"), contactOf(b, "t3"))
	})

	t.Run("AMergeIsSeenByTheBatchBehindIt", func(t *testing.T) { // whose people are looked up before it is committed
		t.Parallel()
		b := stagetest.New(t)
		const n = 350
		var all []schemas.Event
		say := func(key, identifiers string) {
			all = append(all, b.Event(key, "page.viewed", now, identifiers, `{}`))
		}
		for i := range n {
			say(fmt.Sprint("phone-", i), fmt.Sprintf(`{"anonymous_id":"a-%d"}`, i))
			say(fmt.Sprint("known-", i), fmt.Sprintf(`{"external_id":"u-%d"}`, i))
		}
		for i := range n {
			say(fmt.Sprint("merge-", i), fmt.Sprintf(`{"external_id":"u-%d","anonymous_id":"a-%d"}`, i, i))
			say(fmt.Sprint("other-", i), fmt.Sprintf(`{"external_id":"u-%d"}`, i))
		}
		for i := range 2 * n {
			say(fmt.Sprint("after-", i), fmt.Sprintf(`{"anonymous_id":"a-%d"}`, i%n))
		}
		b.SendEvents(all...)
		run(b)
		b.Await(len(all), eventCount)
		require.Zero(t, b.Count(`SELECT count(*) FROM core.tracked_events e JOIN core.contact_merges m ON m.from_contact = e.contact_id
			WHERE e.occurred_at > '-infinity' AND e.idempotency_key LIKE 'after-%'`))
		require.Equal(t, n, b.Count(`SELECT count(*) FROM core.contact_merges`))
	})

	t.Run("TwoExternalIDsNeverMerge", func(t *testing.T) {
		t.Parallel()
		b := stagetest.New(t)
		b.SendEvents(
			b.Event("t1", "a.b", now, `{"external_id":"u-1","email":"shared@example.com"}`, `{}`),
			b.Event("t2", "a.b", now, `{"external_id":"u-2","email":"shared@example.com"}`, `{}`))
		run(b)
		b.Await(2, eventCount)
		require.NotEqual(t, contactOf(b, "t1"), contactOf(b, "t2"))
		require.Zero(t, b.Count(`SELECT count(*) FROM core.contact_merges`))
		require.Equal(t, 1, b.Count(`SELECT count(*) FROM core.identity_conflicts`))
	})

	t.Run("ALosingDuplicateAttachesNothing", func(t *testing.T) { // I13
		t.Parallel()
		b := stagetest.New(t)
		b.SendEvents(b.Identify("K", now, `{"external_id":"u-1","email":"a@example.com"}`, `{}`), b.Identify("K", now, `{"external_id":"u-1","email":"b@example.com"}`, `{}`))
		run(b)
		b.Await(1, eventCount)
		b.Await(1, `SELECT count(*) FROM core.idempotency_conflicts`)
		require.Zero(t, b.Count(`SELECT count(*) FROM core.contact_identifiers WHERE value = 'b@example.com'`))
	})

	t.Run("LastOccurredWinsAndNullDeletes", func(t *testing.T) {
		t.Parallel()
		b := stagetest.New(t)
		b.SendEvents(
			b.Identify("i1", now, anybody, `{"plan":"pro","city":"Lima"}`),
			b.Identify("i2", now.Add(-time.Hour), anybody, `{"plan":"free","age":3}`),
			b.Identify("i3", now.Add(time.Second), anybody, `{"city":null}`))
		run(b)
		b.Await(3, eventCount)
		require.Equal(t, 1, b.Count(`SELECT count(*) FROM core.contacts WHERE traits = '{"plan":"pro","age":3}'`))
	})

	t.Run("TraitsAreCappedWithAWarning", func(t *testing.T) { // I39
		t.Parallel()
		b := stagetest.New(t)
		for i := range 40 {
			b.SendEvents(b.Identify(fmt.Sprintf("i%d", i), now, anybody, fmt.Sprintf(`{"t%d":%q}`, i, strings.Repeat("x", 32_000))))
		}
		run(b)
		b.Await(40, eventCount)
		require.Equal(t, 38, b.Count(`SELECT count(*) FROM core.warnings WHERE kind = 'traits_capped'`))
		require.Equal(t, 1, b.Count(`SELECT count(*) FROM core.contacts WHERE traits ?& array['t0','t1'] AND NOT traits ? 't2'`))
	})
}
