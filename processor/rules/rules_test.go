package rules_test

import (
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/softcrum/carril/internal/ids"
	"github.com/softcrum/carril/internal/rule"
	"github.com/softcrum/carril/internal/testkit"
	"github.com/softcrum/carril/processor/rules"
	"github.com/softcrum/carril/processor/stagetest"
	"github.com/softcrum/carril/schemas"
)

func TestMain(m *testing.M) { testkit.Main(m) }

func run(b *stagetest.Bench) {
	h := rules.New(rules.Deps{Codec: b.Codec, Rules: rules.NewCache(b.Side, 0, testkit.Logger(b.T)), Metrics: prometheus.NewRegistry(), Now: time.Now})
	b.Run(rules.Stage, []string{schemas.TopicEventTracked}, h, nil)
}

func addRule(b *stagetest.Bench, event, condition, actions string) uuid.UUID {
	id := ids.New()
	b.Exec(`INSERT INTO core.rules (tenant_id, rule_id, version, name, event_name, condition, actions) VALUES ($1, $2, 1, 'r', $3, $4, $5)`,
		b.Tenant, id, event, condition, actions)
	return id
}

func tracked(b *stagetest.Bench, key, name, payload string) schemas.EventTracked {
	now := time.Now().UTC()
	return schemas.EventTracked{EventID: ids.Event(b.Tenant, key), TenantID: b.Tenant, CellID: "cell-1", ContactID: uuid.NewSHA1(b.Tenant, []byte("c")),
		Kind: "track", EventName: name, OccurredAt: now, ReceivedAt: now, CorrelationID: "corr-" + key, IdempotencyKey: key, Payload: payload}
}

const receipt = `[{"type":"points","points":10},{"type":"notify","channel":"email","category":"transactional","template_id":"receipt"}]`

func TestRules(t *testing.T) {
	t.Run("OneEventFiresOnceWhateverTheNumberOfItsRecords", func(t *testing.T) { // I12, FS-CORE-0006 AC2
		t.Parallel()
		b := stagetest.New(t)
		rule := addRule(b, "invoice.paid", "true", receipt)
		e := tracked(b, "k", "invoice.paid", `{"total":5}`)
		stagetest.Send(b, schemas.TopicEventTracked, b.Tenant, e, e)
		run(b)
		b.Await(1, `SELECT count(*) FROM core.points_ledger`)
		stagetest.Send(b, schemas.TopicEventTracked, b.Tenant, e, tracked(b, "k2", "invoice.paid", `{}`))
		b.Await(2, `SELECT count(*) FROM core.points_ledger`)
		require.Equal(t, 20, b.Count(`SELECT balance FROM core.points_balances`))
		got := stagetest.Read[schemas.NotificationRequested](b, schemas.TopicRequestedTransactional, 2)
		require.Equal(t, ids.RuleRequest(e.EventID, rule, 1), got[0].RequestID)
		require.Equal(t, e.EventID, *got[0].OriginEventID)
		require.Equal(t, "corr-k", got[0].CorrelationID)
		require.EqualValues(t, 86400, *got[0].MaxAgeSeconds)
	})

	t.Run("CarriesTheCallersTraceparentToTheRequest", func(t *testing.T) {
		t.Parallel()
		b := stagetest.New(t)
		addRule(b, "invoice.paid", "true", receipt)
		const trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
		e := tracked(b, "k", "invoice.paid", `{}`)
		stagetest.SendTraced(b, schemas.TopicEventTracked, "core.event.tracked", e.EventID, trace, e)
		run(b)
		require.Equal(t, trace, b.Headers(schemas.TopicRequestedTransactional)["traceparent"])
	})

	t.Run("ImportsFireNothing", func(t *testing.T) { // I31
		t.Parallel()
		b := stagetest.New(t)
		addRule(b, "invoice.paid", "true", receipt)
		old := tracked(b, "old", "invoice.paid", `{}`)
		old.Historical = true
		stagetest.Send(b, schemas.TopicEventTracked, b.Tenant, old, tracked(b, "new", "invoice.paid", `{}`))
		run(b)
		b.Await(1, `SELECT count(*) FROM core.points_ledger`)
		require.Equal(t, 1, b.Count(`SELECT count(*) FROM core.points_ledger WHERE correlation_id = 'corr-new'`))
	})

	t.Run("ConditionsSeePropertiesAndABadOneFiresNothing", func(t *testing.T) {
		t.Parallel()
		b := stagetest.New(t)
		big := addRule(b, "invoice.paid", `properties.total > 100 && event.name == "invoice.paid"`, `[{"type":"points","points":1}]`)
		addRule(b, "invoice.paid", `properties.absent == 1`, `[{"type":"points","points":100}]`)
		addRule(b, "other", "true", `[{"type":"points","points":1000}]`)
		stagetest.Send(b, schemas.TopicEventTracked, b.Tenant, tracked(b, "small", "invoice.paid", `{"total":99.5}`),
			tracked(b, "big", "invoice.paid", `{"total":100.01}`), tracked(b, "whole", "invoice.paid", `{"total":101}`))
		run(b)
		b.Await(2, `SELECT count(*) FROM core.points_ledger`)
		require.Equal(t, 2, b.Count(`SELECT count(*) FROM core.points_ledger WHERE rule_id = $1 AND correlation_id IN ('corr-big', 'corr-whole')`, big))
	})
}

func TestCaps(t *testing.T) {
	t.Parallel()
	capped := func(b *stagetest.Bench, count int, window string, actions string) uuid.UUID {
		id := ids.New()
		b.Exec(`INSERT INTO core.rules (tenant_id, rule_id, version, name, event_name, actions, cap_count, cap_window)
VALUES ($1, $2, 1, 'r', 'invoice.paid', $3, $4, nullif($5, ''))`, b.Tenant, id, actions, count, window)
		return id
	}
	at := func(b *stagetest.Bench, key string, hours int, contact string) schemas.EventTracked {
		e := tracked(b, key, "invoice.paid", `{}`)
		e.OccurredAt = e.OccurredAt.Add(time.Duration(hours) * time.Hour)
		e.ContactID = uuid.NewSHA1(b.Tenant, []byte(contact))
		return e
	}
	fired := func(b *stagetest.Bench, outcome string) []string {
		rows, err := b.Side.Query(b.T.Context(), `SELECT correlation_id FROM core.points_ledger WHERE outcome = $1 ORDER BY 1`, outcome)
		require.NoError(b.T, err)
		keys, err := pgx.CollectRows(rows, pgx.RowTo[string])
		require.NoError(b.T, err)
		return keys
	}

	t.Run("HoldWithinABatchAndAcrossThem", func(t *testing.T) {
		t.Parallel()
		b := stagetest.New(t)
		capped(b, 2, "", receipt)
		stagetest.Send(b, schemas.TopicEventTracked, b.Tenant, at(b, "a", 0, "x"), at(b, "b", 0, "x"), at(b, "c", 0, "x"), at(b, "d", 0, "y"))
		run(b)
		b.Await(4, `SELECT count(*) FROM core.points_ledger`)
		stagetest.Send(b, schemas.TopicEventTracked, b.Tenant, at(b, "e", -500, "x"), at(b, "f", 0, "y"))
		b.Await(6, `SELECT count(*) FROM core.points_ledger`)
		require.Equal(t, []string{"corr-a", "corr-b", "corr-d", "corr-f"}, fired(b, "fired"))
		require.Equal(t, []string{"corr-c", "corr-e"}, fired(b, "capped"))
		require.Equal(t, 40, b.Count(`SELECT sum(balance) FROM core.points_balances`))
		require.Zero(t, b.Count(`SELECT sum(points) FROM core.points_ledger WHERE outcome = 'capped'`))
		require.Len(t, stagetest.Read[schemas.NotificationRequested](b, schemas.TopicRequestedTransactional, 4), 4)
	})

	t.Run("HoldInAnyWindowWhateverTheOrder", func(t *testing.T) {
		t.Parallel()
		b := stagetest.New(t)
		capped(b, 2, "24h", `[{"type":"points","points":1}]`)
		stagetest.Send(b, schemas.TopicEventTracked, b.Tenant, at(b, "a", -30, "x"), at(b, "b", -10, "x"))
		run(b)
		b.Await(2, `SELECT count(*) FROM core.points_ledger`)
		// between the two: 24 h that hold all three; a day later: not
		stagetest.Send(b, schemas.TopicEventTracked, b.Tenant, at(b, "c", -20, "x"), at(b, "d", -5, "x"), at(b, "e", 0, "x"))
		b.Await(5, `SELECT count(*) FROM core.points_ledger`)
		require.Equal(t, []string{"corr-a", "corr-b", "corr-d"}, fired(b, "fired"))
		require.Equal(t, []string{"corr-c", "corr-e"}, fired(b, "capped"))
	})

	t.Run("KeepARepeatFromFiringLater", func(t *testing.T) {
		t.Parallel()
		b := stagetest.New(t)
		id := capped(b, 1, "", `[{"type":"points","points":1}]`)
		stagetest.Send(b, schemas.TopicEventTracked, b.Tenant, at(b, "a", 0, "x"), at(b, "b", 0, "x"))
		run(b)
		b.Await(2, `SELECT count(*) FROM core.points_ledger`)
		b.Exec(`INSERT INTO core.rules (tenant_id, rule_id, version, name, event_name, actions) SELECT tenant_id, rule_id, 2, name, event_name, actions
FROM core.rules WHERE rule_id = $1`, id) // the cap is gone
		stagetest.Send(b, schemas.TopicEventTracked, b.Tenant, at(b, "b", 0, "x"))
		b.Eventually("the uncapped version is read", func() bool {
			stagetest.Send(b, schemas.TopicEventTracked, b.Tenant, at(b, ids.New().String(), 0, "x"))
			return b.Count(`SELECT count(*) FROM core.points_ledger WHERE outcome = 'fired' AND rule_version = 2`) > 0
		})
		require.Contains(t, fired(b, "capped"), "corr-b")
		require.Zero(t, b.Count(`SELECT count(*) FROM core.points_ledger WHERE correlation_id = 'corr-b' AND outcome = 'fired'`))
	})

	t.Run("CountAPersonWhoWasTwoContacts", func(t *testing.T) {
		t.Parallel()
		b := stagetest.New(t)
		capped(b, 2, "", `[{"type":"points","points":1}]`)
		stagetest.Send(b, schemas.TopicEventTracked, b.Tenant, at(b, "a", 0, "x"), at(b, "b", 0, "y"))
		run(b)
		b.Await(2, `SELECT count(*) FROM core.points_ledger`)
		x, y := uuid.NewSHA1(b.Tenant, []byte("x")), uuid.NewSHA1(b.Tenant, []byte("y"))
		b.Exec(`INSERT INTO core.contacts (tenant_id, contact_id, cell_id, known) VALUES ($1, $2, 'cell-1', true), ($1, $3, 'cell-1', false)`, b.Tenant, x, y)
		b.Exec(`INSERT INTO core.contact_merges (tenant_id, from_contact, into_contact) VALUES ($1, $2, $3)`, b.Tenant, y, x)
		stagetest.Send(b, schemas.TopicEventTracked, b.Tenant, at(b, "c", 0, "x"), at(b, "d", 0, "y"), at(b, "e", 0, "z"))
		b.Await(5, `SELECT count(*) FROM core.points_ledger`)
		require.Equal(t, []string{"corr-c", "corr-d"}, fired(b, "capped"))
	})
}

func TestVersions(t *testing.T) {
	t.Parallel()
	b := stagetest.New(t)
	store := rule.NewStore(b.Side)
	draft := rule.Rule{ID: ids.New(), Name: "r", EventName: "invoice.paid", Condition: "true", Enabled: true, Actions: []rule.Action{{Type: "points", Points: 1}}}
	_, err := store.Put(t.Context(), b.Tenant, draft)
	require.NoError(t, err)
	draft.Actions = []rule.Action{{Type: "points", Points: 100}}
	_, err = store.Put(t.Context(), b.Tenant, draft)
	require.NoError(t, err)
	late, now := tracked(b, "late", "invoice.paid", `{}`), tracked(b, "now", "invoice.paid", `{}`)
	late.OccurredAt = late.OccurredAt.Add(-time.Hour) // a till that was offline
	now.OccurredAt = now.OccurredAt.Add(time.Minute)
	stagetest.Send(b, schemas.TopicEventTracked, b.Tenant, late, now)
	run(b)
	b.Await(2, `SELECT count(*) FROM core.points_ledger`)
	require.Equal(t, 1, b.Count(`SELECT points FROM core.points_ledger WHERE correlation_id = 'corr-late' AND rule_version = 1`))
	require.Equal(t, 100, b.Count(`SELECT points FROM core.points_ledger WHERE correlation_id = 'corr-now' AND rule_version = 2`))
}

func TestATenantHearsOfAConditionWithoutAnAnswer(t *testing.T) {
	t.Parallel()
	b := stagetest.New(t)
	id := addRule(b, "invoice.paid", `properties.secret > 1`, `[{"type":"points","points":1}]`)
	addRule(b, "invoice.paid", `true`, `[{"type":"points","points":1}]`)
	stagetest.Send(b, schemas.TopicEventTracked, b.Tenant, tracked(b, "a", "invoice.paid", `{"secret":"canary-7"}`), tracked(b, "b", "invoice.paid", `{"secret":"canary-7"}`),
		tracked(b, "c", "invoice.paid", `{}`))
	run(b)
	b.Await(3, `SELECT count(*) FROM core.points_ledger`)
	require.Equal(t, 2, b.Count(`SELECT count(*) FROM core.warnings WHERE kind = 'rule_failed' AND detail->>'rule_id' = $1`, id.String()), "one a cause, not one an event")
	require.Equal(t, 1, b.Count(`SELECT count(*) FROM core.warnings WHERE detail->>'cause' = 'no_such_key'`))
	require.Zero(t, b.Count(`SELECT count(*) FROM core.warnings WHERE detail::text LIKE '%canary%'`), "nothing of the event")
}

func TestDryRun(t *testing.T) {
	t.Parallel()
	b := stagetest.New(t)
	start := time.Date(2026, 11, 3, 0, 0, 0, 0, time.UTC)
	b.Exec(`SELECT core.ensure_partition('core.tracked_events', $1)`, start)
	add := func(n int, name string, contact string, hours int, payload string, historical bool) {
		b.Exec(`INSERT INTO core.tracked_events (tenant_id, event_id, cell_id, contact_id, kind, event_name, properties, occurred_at, occurred_offset, received_at,
    idempotency_key, correlation_id, retention_months, historical, lane, lane_seq)
SELECT $1, gen_random_uuid(), 'cell-1', $2, 'track', $3, $4, $5::timestamptz + i * interval '1 second', 0, $5::timestamptz + interval '1 hour', 'k' || i, 'c', 13, $6, 1, i
FROM generate_series(1, $7) i`, b.Tenant, uuid.NewSHA1(b.Tenant, []byte(contact)), name, payload, start.Add(time.Duration(hours)*time.Hour), historical, n)
	}
	add(4500, "invoice.paid", "x", 0, `{"total":10}`, false) // three pages
	add(5, "invoice.paid", "y", 2, `{"total":1}`, false)
	add(3, "invoice.paid", "y", 3, `{}`, false)
	add(7, "invoice.paid", "y", 4, `{"total":10}`, true)
	add(9, "other", "x", 0, `{"total":10}`, false)
	r, err := rule.Compile(rule.Rule{EventName: "invoice.paid", Condition: "properties.total > 5", Enabled: true, Cap: &rule.Cap{Count: 100},
		Actions: []rule.Action{{Type: "points", Points: 2}, {Type: "notify", Channel: "email", Category: "product", TemplateID: "t"}}})
	require.NoError(t, err)
	pages := 0
	rep, err := rules.DryRun(t.Context(), b.Side, b.Tenant, r, start, start.Add(24*time.Hour), func(time.Time, int) { pages++ })
	require.NoError(t, err)
	require.Equal(t, 2, pages)
	require.Len(t, rep.Samples, 5+5+3)
	rep.Samples = nil
	require.Equal(t, &rules.Report{Seen: 4515, Skipped: 7, Fired: 100, Capped: 4400, Points: 200, Messages: map[string]int{"email product": 100},
		Failed: map[string]int{"no_such_key": 3}, Contacts: 1}, rep)
	require.Zero(t, b.Count(`SELECT count(*) FROM core.points_ledger`), "nothing is written")

	rep, err = rules.DryRun(t.Context(), b.Side, b.Tenant, r, start.Add(24*time.Hour), start.Add(48*time.Hour), nil)
	require.NoError(t, err)
	require.Zero(t, rep.Seen)
}
