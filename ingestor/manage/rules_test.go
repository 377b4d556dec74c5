package manage

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/softcrum/carril/internal/rule"
)

func TestRuleRoutes(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	d.addTenant(d.acme, "acme")
	d.addTenant(d.other, "other")
	const route = "/v1/core/rules/{rule_id}"
	id := uuid.NewString()
	put := func(key, id, body string) (int, string) {
		return d.call(key, http.MethodPut, route, "/v1/core/rules/"+id, body)
	}
	const receipt = `{"name":"Receipt","event_name":"invoice.paid","condition":"properties.total >= 100","valid_until":"2031-01-01T00:00:00+02:00",
"actions":[{"type":"points","points":10},{"type":"notify","channel":"email","category":"transactional","template_id":"receipt","max_age":"2h","variables":{"shop":"acme"}}],
"cap":{"count":3,"window":"24h"}}`

	t.Run("WritesReadsAndListsVersions", func(t *testing.T) {
		status, body := put("acme", id, receipt)
		require.Equal(t, http.StatusOK, status, body)
		status, again := put("acme", id, receipt)
		require.Equal(t, http.StatusOK, status)
		require.JSONEq(t, body, again, "a retry writes nothing")
		status, body = put("acme", id, strings.Replace(receipt, "100", "200", 1))
		require.Equal(t, http.StatusOK, status, body)
		var got rule.Rule
		require.NoError(t, json.Unmarshal([]byte(body), &got))
		require.Equal(t, 2, got.Version)
		require.True(t, got.Enabled)
		require.Equal(t, "acme", got.Actions[1].Variables["shop"])
		require.Equal(t, &rule.Cap{Count: 3, Window: "24h"}, got.Cap)

		status, body = d.call("acme", http.MethodGet, route, "/v1/core/rules/"+id, "")
		require.Equal(t, http.StatusOK, status)
		require.Contains(t, body, `"version":2`)
		status, body = d.call("acme", http.MethodGet, route+"/versions", "/v1/core/rules/"+id+"/versions", "")
		require.Equal(t, http.StatusOK, status)
		require.Equal(t, 2, strings.Count(body, `"version"`))
		status, body = put("acme", uuid.NewString(), `{"event_name":"core.contact.identified","enabled":false,"actions":[{"type":"points","points":-1}]}`)
		require.Equal(t, http.StatusOK, status, body)
		_, body = d.call("acme", http.MethodGet, "/v1/core/rules", "/v1/core/rules", "")
		require.Equal(t, 2, strings.Count(body, `"version"`), "the newest of each")
		_, body = d.call("other", http.MethodGet, "/v1/core/rules", "/v1/core/rules", "")
		require.JSONEq(t, `{"rules":[]}`, body)
	})

	t.Run("AnswersAForeignRuleLikeAnAbsentOne", func(t *testing.T) {
		for _, sub := range []string{"", "/versions"} {
			_, foreign := d.call("other", http.MethodGet, route+sub, "/v1/core/rules/"+id+sub, "")
			status, absent := d.call("acme", http.MethodGet, route+sub, "/v1/core/rules/"+uuid.NewString()+sub, "")
			require.Equal(t, http.StatusNotFound, status)
			require.Equal(t, withoutInstance(t, absent), withoutInstance(t, foreign))
			status, _ = d.call("acme", http.MethodGet, route+sub, "/v1/core/rules/no-id"+sub, "")
			require.Equal(t, http.StatusNotFound, status)
		}
	})

	t.Run("RefusesAChannelThatThereIsNot", func(t *testing.T) {
		status, body := put("acme", uuid.NewString(), strings.Replace(receipt, `"email"`, `"fax"`, 1))
		require.Equal(t, http.StatusUnprocessableEntity, status, body)
		require.Contains(t, body, `"code":"unknown_channel"`)
		require.Contains(t, body, `"pointer":"/actions/1/channel"`)
	})

	t.Run("RefusesWithAPointer", func(t *testing.T) {
		action := func(a string) string { return `{"event_name":"x","actions":[` + a + `]}` }
		points := `{"type":"points","points":1}`
		for name, c := range map[string]struct{ body, code, pointer string }{
			"NoActions":       {`{"event_name":"x"}`, "invalid_rule", "/actions"},
			"NoEventName":     {`{"actions":[` + points + `]}`, "invalid_event_name", "/event_name"},
			"ReservedName":    {`{"event_name":"core.x","actions":[` + points + `]}`, "invalid_event_name", "/event_name"},
			"UnknownField":    {`{"event_name":"x","actions":[` + points + `],"urgent":true}`, "unknown_field", "/urgent"},
			"OtherCase":       {`{"Event_name":"x","actions":[` + points + `]}`, "unknown_field", "/Event_name"},
			"Null":            {`{"event_name":"x","actions":[` + points + `],"cap":null}`, "invalid_field", "/cap"},
			"ActionNotObject": {action(`7`), "invalid_field", "/actions/0"},
			"UnknownInAction": {action(points + `,{"type":"points","a/b":1}`), "unknown_field", "/actions/1/a~1b"},
			"TextForPoints":   {action(`{"type":"points","points":"1"}`), "invalid_field", "/actions/0/points"},
			"NullConstant":    {action(`{"type":"notify","variables":{"a":null}}`), "invalid_field", "/actions/0/variables/a"},
			"Urgent":          {action(`{"type":"notify","channel":"email","template_id":"t","category":"urgent"}`), "invalid_rule", "/actions/0/category"},
			"NotATime":        {`{"event_name":"x","actions":[` + points + `],"valid_from":"tomorrow"}`, "invalid_field", "/valid_from"},
			"CapWithoutCount": {`{"event_name":"x","actions":[` + points + `],"cap":{}}`, "invalid_rule", "/cap/count"},
			"Condition":       {`{"event_name":"x","actions":[` + points + `],"condition":"properties.x >"}`, "invalid_rule", "/condition"},
		} {
			t.Run(name, func(t *testing.T) {
				status, body := put("acme", uuid.NewString(), c.body)
				var p struct{ Code, Pointer string }
				require.NoError(t, json.Unmarshal([]byte(body), &p))
				require.GreaterOrEqual(t, status, 400)
				require.Equal(t, c.code, p.Code, body)
				require.Equal(t, c.pointer, p.Pointer, body)
			})
		}
		status, body := put("acme", "no-id", receipt)
		require.Equal(t, http.StatusUnprocessableEntity, status)
		require.Contains(t, body, "invalid_rule")
		// It begins now, so it would end before it begins.
		status, body = put("acme", id, strings.Replace(receipt, "2031-01-01", "2001-01-01", 1))
		require.Equal(t, http.StatusUnprocessableEntity, status, body)
		require.Contains(t, body, `"pointer":"/valid_until"`)
		_, body = d.call("acme", http.MethodGet, route, "/v1/core/rules/"+id, "")
		require.Contains(t, body, `"version":2`)
		status, _ = put("writer", id, receipt)
		require.Equal(t, http.StatusForbidden, status)
	})
}

// withoutInstance is an answer without what each request has of its own.
func withoutInstance(t *testing.T, body string) string {
	t.Helper()
	var p map[string]any
	require.NoError(t, json.Unmarshal([]byte(body), &p))
	instance, ok := p["instance"].(string)
	require.True(t, ok)
	return strings.Replace(body, instance, "-", 1)
}
