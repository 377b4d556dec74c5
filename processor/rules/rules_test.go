package rules_test

import (
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/softcrum/carril/internal/ids"
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

func TestCompileRefuses(t *testing.T) {
	ok := []rules.Action{{Type: "points", Points: 1}}
	for name, r := range map[string]rules.Rule{
		"NoAction":        {},
		"UnknownAction":   {Actions: []rules.Action{{Type: "explode"}}},
		"ZeroPoints":      {Actions: []rules.Action{{Type: "points"}}},
		"UnknownCategory": {Actions: []rules.Action{{Type: "notify", Channel: "email", TemplateID: "t", Category: "urgent"}}},
		"NoTemplate":      {Actions: []rules.Action{{Type: "notify", Channel: "email", Category: "marketing"}}},
		"AgeWithoutUnit":  {Actions: []rules.Action{{Type: "notify", Channel: "email", TemplateID: "t", Category: "product", MaxAge: "24"}}},
		"Syntax":          {Actions: ok, Condition: "properties.total >"},
		"NotABool":        {Actions: ok, Condition: "1 + 1"},
		"UnknownName":     {Actions: ok, Condition: "secrets.x == 1"},
		"TooLong":         {Actions: ok, Condition: string(make([]byte, 5000))},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := rules.Compile(r)
			require.Error(t, err)
		})
	}
	_, err := rules.Compile(rules.Rule{Actions: ok, Condition: `properties.exists(k, k == "x")`})
	require.NoError(t, err)
}
