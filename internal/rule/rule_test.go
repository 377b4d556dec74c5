package rule_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/softcrum/carril/internal/rule"
	"github.com/softcrum/carril/internal/testkit"
	"github.com/softcrum/carril/schemas"
)

func TestMain(m *testing.M) { testkit.Main(m) }

func points(n int64) []rule.Action { return []rule.Action{{Type: "points", Points: n}} }

func TestCompileRefuses(t *testing.T) {
	t.Parallel()
	early, late := time.Unix(1000, 0), time.Unix(2000, 0)
	for name, c := range map[string]struct {
		rule    rule.Rule
		pointer string
	}{
		"NoAction":          {rule.Rule{}, "/actions"},
		"TooManyActions":    {rule.Rule{Actions: make([]rule.Action, 11)}, "/actions"},
		"UnknownAction":     {rule.Rule{Actions: []rule.Action{{Type: "explode"}}}, "/actions/0/type"},
		"ZeroPoints":        {rule.Rule{Actions: []rule.Action{{Type: "points"}}}, "/actions/0/points"},
		"EndlessPoints":     {rule.Rule{Actions: points(1 << 40)}, "/actions/0/points"},
		"BothInOne":         {rule.Rule{Actions: []rule.Action{{Type: "points", Points: 1, Channel: "email"}}}, "/actions/0"},
		"UnknownCategory":   {rule.Rule{Actions: []rule.Action{{Type: "notify", Channel: "email", TemplateID: "t", Category: "urgent"}}}, "/actions/0/category"},
		"NoTemplate":        {rule.Rule{Actions: []rule.Action{{Type: "notify", Channel: "email", Category: "marketing"}}}, "/actions/0/template_id"},
		"AgeWithoutUnit":    {rule.Rule{Actions: []rule.Action{{Type: "notify", Channel: "email", TemplateID: "t", Category: "product", MaxAge: "24"}}}, "/actions/0/max_age"},
		"Syntax":            {rule.Rule{Actions: points(1), Condition: "properties.total >"}, "/condition"},
		"NotABool":          {rule.Rule{Actions: points(1), Condition: "1 + 1"}, "/condition"},
		"UnknownName":       {rule.Rule{Actions: points(1), Condition: "secrets.x == 1"}, "/condition"},
		"TooLong":           {rule.Rule{Actions: points(1), Condition: strings.Repeat(" ", 5000)}, "/condition"},
		"NulInTheName":      {rule.Rule{Actions: points(1), Name: "a\x00"}, "/name"},
		"TwoLinesOfName":    {rule.Rule{Actions: points(1), Name: "a\nb"}, "/name"},
		"WindowBackwards":   {rule.Rule{Actions: points(1), ValidFrom: &late, ValidUntil: &early}, "/valid_until"},
		"WindowOfNothing":   {rule.Rule{Actions: points(1), ValidFrom: &early, ValidUntil: &early}, "/valid_until"},
		"CapOfNothing":      {rule.Rule{Actions: points(1), Cap: &rule.Cap{}}, "/cap/count"},
		"CapWindowNoUnit":   {rule.Rule{Actions: points(1), Cap: &rule.Cap{Count: 1, Window: "24"}}, "/cap/window"},
		"CapWindowNegative": {rule.Rule{Actions: points(1), Cap: &rule.Cap{Count: 1, Window: "-1h"}}, "/cap/window"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := rule.Compile(c.rule)
			var invalid *rule.Invalid
			require.ErrorAs(t, err, &invalid)
			require.Equal(t, c.pointer, invalid.Pointer)
		})
	}
	_, err := rule.Compile(rule.Rule{Actions: points(1), Condition: `properties.exists(k, k == "x")`})
	require.NoError(t, err)
}

// A condition with a text in it that nothing can read never holds; who writes it is
// told, and one that was written before goes on.
func TestCheckRefuses(t *testing.T) {
	t.Parallel()
	for name, condition := range map[string]string{
		"APatternThatIsNone":  `properties.x == 1 || properties.s.matches("(")`,
		"ATimeThatIsNone":     `event.occurred_at > timestamp("2026-02-30")`,
		"ADurationThatIsNone": `event.received_at - event.occurred_at > duration("1 day")`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := rule.Rule{Actions: points(1), Condition: condition}
			_, err := rule.Check(r)
			var invalid *rule.Invalid
			require.ErrorAs(t, err, &invalid)
			require.Equal(t, "/condition", invalid.Pointer)
			_, err = rule.Compile(r)
			require.NoError(t, err)
		})
	}
	_, err := rule.Check(rule.Rule{Actions: points(1), Condition: `properties.s.matches(properties.p) && event.occurred_at > timestamp("2026-02-28T00:00:00Z")`})
	require.NoError(t, err)
}

func TestConditionsWithoutAnAnswer(t *testing.T) {
	t.Parallel()
	// 300 numbers, each compared with each of the others, with each again
	list, err := json.Marshal(make([]int, 300))
	require.NoError(t, err)
	payload := `{"list":` + string(list) + `,"zero":0,"name":"x"}`
	for name, c := range map[string]struct {
		condition string
		want      error
	}{
		"CostsTooMuch":      {`properties.list.all(a, properties.list.all(b, properties.list.all(c, a + b + c == 0)))`, rule.ErrCost},
		"ReadsWhatIsNot":    {`properties.absent == 1`, rule.ErrAbsent},
		"DividesByZero":     {`1 / properties.zero == 1`, rule.ErrFailed},
		"ComparesUnlike":    {`properties.name > 3`, rule.ErrFailed},
		"GivesAnotherThing": {`properties.name`, rule.ErrNotBool},
	} {
		t.Run(name, func(t *testing.T) {
			r, err := rule.Compile(rule.Rule{Actions: points(1), Condition: c.condition})
			require.NoError(t, err)
			_, err = r.Holds(&schemas.EventTracked{Payload: payload})
			require.ErrorIs(t, err, c.want)
		})
	}
	r, err := rule.Compile(rule.Rule{Actions: points(1), Condition: `has(properties.absent) || properties.zero == 0`})
	require.NoError(t, err)
	ok, err := r.Holds(&schemas.EventTracked{Payload: payload})
	require.NoError(t, err)
	require.True(t, ok)
}

func TestVersionsFor(t *testing.T) {
	t.Parallel()
	at := func(s int64) *time.Time { return new(time.Unix(s, 0).UTC()) }
	version := func(n int, name string, from, until *time.Time, enabled bool) *rule.Rule {
		return &rule.Rule{Version: n, EventName: name, ValidFrom: from, ValidUntil: until, Enabled: enabled}
	}
	event := func(name string, s int64) *schemas.EventTracked {
		return &schemas.EventTracked{EventName: name, OccurredAt: time.Unix(s, 0)}
	}
	which := func(v rule.Versions, e *schemas.EventTracked) int {
		if r := v.For(e); r != nil {
			return r.Version
		}
		return 0
	}
	v := rule.Versions{version(3, "b", at(300), nil, true), version(2, "a", at(100), at(200), true), version(1, "a", nil, nil, true)}
	require.Equal(t, 1, which(v, event("a", 99)), "before the second")
	require.Equal(t, 2, which(v, event("a", 100)), "its first moment")
	require.Equal(t, 1, which(v, event("a", 200)), "its end is not part of it")
	require.Equal(t, 0, which(v, event("a", 300)), "the rule is about other events now")
	require.Equal(t, 3, which(v, event("b", 300)))
	require.Equal(t, 0, which(v, event("b", 299)))
	v[0].Enabled = false
	require.Equal(t, 0, which(v, event("a", 99)), "the newest switches the rule off for all times")
	require.Nil(t, rule.Versions{}.For(event("a", 1)))
}

func TestStore(t *testing.T) {
	t.Parallel()
	pool := testkit.Pool(t)
	ctx := t.Context()
	tenant, other := uuid.New(), uuid.New()
	for _, id := range []uuid.UUID{tenant, other} {
		_, err := pool.Exec(ctx, `INSERT INTO core.tenants (tenant_id, slug, name, plan_id) VALUES ($1, $2, 't', 'starter')`, id, "t-"+id.String())
		require.NoError(t, err)
	}
	store := rule.NewStore(pool)
	draft := rule.Rule{ID: uuid.New(), Name: "r", EventName: "invoice.paid", Condition: "true", Actions: points(3), Enabled: true,
		Cap: &rule.Cap{Count: 2, Window: "24h"}, ValidUntil: new(time.Date(2030, 1, 2, 3, 4, 5, 678901234, time.FixedZone("", 7200)))}

	one, err := store.Put(ctx, tenant, draft)
	require.NoError(t, err)
	require.Equal(t, 1, one.Version)
	require.Nil(t, one.ValidFrom, "the first judges the past, too")
	again, err := store.Put(ctx, tenant, draft)
	require.NoError(t, err)
	require.Equal(t, 1, again.Version, "the same is not written again")

	draft.Condition = "properties.total > 1"
	two, err := store.Put(ctx, tenant, draft)
	require.NoError(t, err)
	require.Equal(t, 2, two.Version)
	require.NotNil(t, two.ValidFrom, "what happened before is the first version's")
	again, err = store.Put(ctx, tenant, draft)
	require.NoError(t, err)
	require.Equal(t, 2, again.Version)

	got, err := store.Get(ctx, tenant, draft.ID)
	require.NoError(t, err)
	require.Equal(t, draft.Cap, got.Cap)
	require.Equal(t, draft.Actions, got.Actions)
	require.Equal(t, "2030-01-02T01:04:05.678901Z", got.ValidUntil.Format(time.RFC3339Nano))
	versions, err := store.Versions(ctx, tenant, draft.ID)
	require.NoError(t, err)
	require.Equal(t, []int{2, 1}, []int{versions[0].Version, versions[1].Version})
	list, err := store.List(ctx, tenant)
	require.NoError(t, err)
	require.Len(t, list, 1)

	_, err = store.Get(ctx, other, draft.ID)
	require.ErrorIs(t, err, rule.ErrNone)
	_, err = store.Versions(ctx, other, draft.ID)
	require.ErrorIs(t, err, rule.ErrNone)
	theirs, err := store.Put(ctx, other, draft)
	require.NoError(t, err)
	require.Equal(t, 1, theirs.Version, "an id is its tenant's own")

	draft.Actions = nil
	_, err = store.Put(ctx, tenant, draft)
	var invalid *rule.Invalid
	require.ErrorAs(t, err, &invalid)
	_, err = pool.Exec(ctx, `UPDATE core.rules SET enabled = false WHERE tenant_id = $1`, tenant)
	require.Error(t, err, "a version is never changed")

	_, err = pool.Exec(ctx, `INSERT INTO core.rules (tenant_id, rule_id, version, name, event_name, actions)
SELECT $1, gen_random_uuid(), 1, 'r', 'e', '[]' FROM generate_series(1, $2)`, other, rule.MaxRules-1)
	require.NoError(t, err)
	draft.ID, draft.Actions = uuid.New(), points(1)
	_, err = store.Put(ctx, other, draft)
	require.ErrorIs(t, err, rule.ErrTooMany)
}
