package manage

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
)

// refused asks for something that is refused, and gives the problem.
func (d *desk) refused(method, route, target, body string) (code, pointer string) {
	d.t.Helper()
	status, answer := d.call("acme", method, route, target, body)
	require.GreaterOrEqual(d.t, status, 400, answer)
	var p struct{ Code, Pointer string }
	require.NoError(d.t, json.Unmarshal([]byte(answer), &p))
	return p.Code, p.Pointer
}

func TestTemplateRoutes(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	d.addTenant(d.acme, "acme")
	d.addTenant(d.other, "other")
	const all, route = "/v1/messaging/templates", "/v1/messaging/templates/{template_id}"
	const body = `{"channel":"email","subject":"Thank you, {{ name }}","html":"<p>{{ name }}</p>","text":"Thanks {{ name | default: 'you' }}"}`
	put := func(id, body string) (int, string) { return d.call("acme", http.MethodPut, route, all+"/"+id, body) }

	status, one := put("receipt", body)
	require.Equal(t, http.StatusOK, status, one)
	status, again := put("receipt", body)
	require.Equal(t, http.StatusOK, status)
	require.JSONEq(t, one, again, "a retry writes nothing")
	status, two := put("receipt", strings.Replace(body, "Thank you", "Gracias", 1))
	require.Equal(t, http.StatusOK, status, two)
	require.Contains(t, two, `"version":2`)
	_, got := d.call("acme", http.MethodGet, route, all+"/receipt?version=1", "")
	require.JSONEq(t, one, got)
	_, got = d.call("acme", http.MethodGet, route, all+"/receipt", "")
	require.JSONEq(t, two, got)
	_, got = d.call("acme", http.MethodGet, all, all, "")
	require.Equal(t, 1, strings.Count(got, `"template_id"`))
	require.NotContains(t, got, "html")
	_, got = d.call("other", http.MethodGet, all, all, "")
	require.JSONEq(t, `{"templates":[]}`, got)

	status, got = d.call("acme", http.MethodPost, route+"/preview", all+"/receipt/preview", `{"variables":{"name":"<Ana>"},"version":1}`)
	require.Equal(t, http.StatusOK, status, got)
	require.JSONEq(t, `{"subject":"Thank you, <Ana>","html":"<p>&lt;Ana&gt;</p>","text":"Thanks <Ana>"}`, got)
	code, _ := d.refused(http.MethodPost, route+"/preview", all+"/receipt/preview", `{}`)
	require.Equal(t, "missing_variable", code)
	for _, version := range []string{"-1", "2147483648", "1.5"} {
		_, pointer := d.refused(http.MethodPost, route+"/preview", all+"/receipt/preview", `{"version":`+version+`}`)
		require.Equal(t, "/version", pointer)
	}

	for _, c := range []struct{ id, body, code, pointer string }{
		{"a%20b", body, "invalid_template_id", ""},
		{strings.Repeat("a", 101), body, "invalid_template_id", ""},
		{"x", `{"text":"{% if %}"}`, "template_invalid", "/text"},
		{"x", `{"html":"{{ a | nonsense_{ }}"}`, "template_invalid", "/html"},
		{"x", `{"subject":"no body"}`, "template_invalid", "/text"},
		{"x", `{"text":"t","subject":"` + strings.Repeat("x", 3000) + `"}`, "content_too_large", "/subject"},
		{"x", `{"text":"t","channel":"fax"}`, "unknown_channel", "/channel"},
		{"x", `{"text":"t","version":3}`, "unknown_field", "/version"},
	} {
		code, pointer := d.refused(http.MethodPut, route, all+"/"+c.id, c.body)
		require.Equal(t, [2]string{c.code, c.pointer}, [2]string{code, pointer})
	}
	_, absent := d.call("acme", http.MethodGet, route, all+"/absent", "")
	_, foreign := d.call("other", http.MethodGet, route, all+"/receipt", "")
	require.Equal(t, withoutInstance(t, absent), withoutInstance(t, foreign))
	code, _ = d.refused(http.MethodGet, route, all+"/receipt?version=0", "")
	require.Equal(t, "invalid_parameter", code)
	status, _ = d.call("acme", http.MethodGet, route, all+"/receipt?version=9", "")
	require.Equal(t, http.StatusNotFound, status)
}

func TestSenderRoutes(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	d.addTenant(d.acme, "acme")
	const all, route = "/v1/messaging/senders", "/v1/messaging/senders/{channel}"
	put := func(body string) string {
		status, got := d.call("acme", http.MethodPut, route, all+"/email", body)
		require.Equal(t, http.StatusOK, status, got)
		return got
	}
	require.Contains(t, put(`{"sender":"Shop <shop@mail.example.com>","reply_to":"help@example.com"}`), `"domain":"mail.example.com","verified":false`)
	d.exec(`UPDATE messaging.senders SET verified = true, paused_at = now(), pause_reason = 'refused' WHERE tenant_id = $1`, d.acme)
	require.Contains(t, put(`{"sender":"news@mail.example.com"}`), `"verified":true`, "the domain is the same")
	status, got := d.call("acme", http.MethodPost, route+"/resume", all+"/email/resume", "")
	require.Equal(t, http.StatusOK, status)
	require.NotContains(t, got, "paused_at")
	require.Contains(t, put(`{"sender":"news@rival.example.com"}`), `"verified":false`, "another domain is seen anew")
	_, got = d.call("acme", http.MethodGet, all, all, "")
	require.Equal(t, 1, strings.Count(got, `"sender":`))
	status, _ = d.call("other", http.MethodPost, route+"/resume", all+"/email/resume", "")
	require.Equal(t, http.StatusNotFound, status)
	for _, body := range []string{`{"sender":"nobody"}`, `{"sender":"a@localhost"}`, `{"sender":"Shop <a@example.com>\r\nBcc: x@example.com"}`,
		`{"sender":"\"Shop\u2028x\" <a@example.com>"}`, `{"sender":"a@example.com, b@example.com"}`, `{"sender":"a@example.com","reply_to":"x"}`, `{}`} {
		code, _ := d.refused(http.MethodPut, route, all+"/email", body)
		require.Equal(t, "invalid_sender", code, body)
	}
	code, _ := d.refused(http.MethodPut, route, all+"/sms", `{"sender":"a@example.com"}`)
	require.Equal(t, "sender_is_the_platforms", code)
}

func TestConsentRoutes(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	d.addTenant(d.acme, "acme")
	d.addTenant(d.other, "other")
	const route = "/v1/messaging/consents"
	contact := func(tenant uuid.UUID, kind, value string) uuid.UUID {
		id := uuid.New()
		d.exec(`INSERT INTO core.contacts (tenant_id, contact_id, cell_id, known) VALUES ($1, $2, 'cell-1', true)`, tenant, id)
		d.exec(`INSERT INTO core.contact_identifiers (tenant_id, kind, value, contact_id) VALUES ($1, $2, $3, $4)`, tenant, kind, value, id)
		return id
	}
	ana, ben := contact(d.acme, "email", "ana@example.com"), contact(d.acme, "external_id", "c-2")
	theirs := contact(d.other, "email", "eva@example.com")
	say := func(body string) string {
		status, got := d.call("acme", http.MethodPost, route, route, body)
		require.Equal(t, http.StatusOK, status, got)
		return got
	}
	got := say(`{"consents":[{"address":" ANA@Example.com","granted":true,"source":"checkout"},{"external_id":"c-2","granted":true},
{"external_id":"c-2","granted":false},{"address":"eva@example.com","granted":true},{"contact_id":"` + theirs.String() + `","granted":true}]}`)
	require.JSONEq(t, fmt.Sprintf(`{"results":[{"status":"recorded","contact_id":"%s"},{"status":"recorded","contact_id":"%s"},{"status":"recorded","contact_id":"%[2]s"},
{"status":"unknown_contact"},{"status":"unknown_contact"}]}`, ana, ben), got)
	list := func(key string, id uuid.UUID) []map[string]any {
		status, got := d.call(key, http.MethodGet, route, route+"?contact_id="+id.String(), "")
		require.Equal(t, http.StatusOK, status)
		var l struct{ Consents []map[string]any }
		require.NoError(t, json.Unmarshal([]byte(got), &l))
		return l.Consents
	}
	require.Len(t, list("acme", ben), 2)
	require.Equal(t, false, list("acme", ben)[0]["granted"], "the last word counts")
	zoe := contact(d.acme, "external_id", "Zo\u00e9") // as identity keeps it
	got = say(`{"consents":[{"external_id":" Zoe\u0301","granted":true}]}`)
	require.Contains(t, got, zoe.String(), "an identifier is looked up in the form in which it is kept")
	say(`{"consents":[{"address":"ana@example.com","granted":true,"source":"checkout"}]}`)
	require.Len(t, list("acme", ana), 1, "a retry changes nothing")
	require.Equal(t, "checkout", list("acme", ana)[0]["source"])
	require.Empty(t, list("other", ana))
	require.Empty(t, list("other", theirs))

	for body, pointer := range map[string]string{
		`{"consents":[]}`:                    "/consents",
		`{"consents":[{"external_id":"x"}]}`: "/consents/0/granted",
		`{"consents":[{"granted":true}]}`:    "/consents/0",
		`{"consents":[{"granted":true,"external_id":"x","address":"a@example.com"}]}`:                                         "/consents/0",
		`{"consents":[{"granted":true,"contact_id":"x"}]}`:                                                                    "/consents/0/contact_id",
		`{"consents":[{"granted":true,"address":"x"}]}`:                                                                       "/consents/0/address",
		`{"consents":[{"granted":true,"external_id":"x","channel":"fax"}]}`:                                                   "/consents/0/channel",
		`{"consents":[{"granted":true,"external_id":"x","purpose":"profiling"}]}`:                                             "/consents/0/purpose",
		`{"consents":[{"granted":true,"external_id":"x","source":"two\nlines"}]}`:                                             "/consents/0/source",
		`{"consents":[{"granted":"yes","external_id":"x"}]}`:                                                                  "/consents/0/granted",
		`{"consents":[` + strings.Repeat(`{"granted":true,"external_id":"x"},`, 500) + `{"granted":true,"external_id":"x"}]}`: "/consents",
	} {
		_, at := d.refused(http.MethodPost, route, route, body)
		require.Equal(t, pointer, at, body[:min(80, len(body))])
	}
}

func TestSuppressionRoutes(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	const route = "/v1/messaging/suppressions"
	suppress := func(body string) string {
		status, got := d.call("acme", http.MethodPost, route, route, body)
		require.Equal(t, http.StatusOK, status, got)
		return got
	}
	require.Contains(t, suppress(`{"address":"Ana@Example.com","reason":"unsubscribe"}`), `"address":"ana@example.com","reason":"unsubscribe"`)
	require.Contains(t, suppress(`{"address":"ana@example.com"}`), `"reason":"unsubscribe"`, "the first reason stays")
	for i := range 5 {
		suppress(fmt.Sprintf(`{"address":"p%d@example.com"}`, i))
	}
	d.exec(`UPDATE messaging.suppressions SET created_at = $1`, month()) // all at once: pages go by the address then
	page := func(key, cursor string, params ...string) (addresses []string, next string) {
		v := url.Values{"from": {month().Add(-time.Hour).Format(time.RFC3339)}, "to": {month().Add(time.Hour).Format(time.RFC3339)}, "limit": {"4"}}
		for i := 0; i < len(params); i += 2 {
			v.Set(params[i], params[i+1])
		}
		if cursor != "" {
			v.Set("cursor", cursor)
		}
		status, got := d.call(key, http.MethodGet, route, route+"?"+v.Encode(), "")
		require.Equal(t, http.StatusOK, status, got)
		var l struct {
			Suppressions []struct{ Address string }
			NextCursor   string `json:"next_cursor"`
		}
		require.NoError(t, json.Unmarshal([]byte(got), &l))
		for _, s := range l.Suppressions {
			addresses = append(addresses, s.Address)
		}
		return addresses, l.NextCursor
	}
	first, next := page("acme", "")
	rest, end := page("acme", next)
	require.Empty(t, end)
	require.ElementsMatch(t, []string{"ana@example.com", "p0@example.com", "p1@example.com", "p2@example.com", "p3@example.com", "p4@example.com"}, append(first, rest...))
	only, _ := page("acme", "", "reason", "unsubscribe")
	require.Equal(t, []string{"ana@example.com"}, only)
	theirs, _ := page("other", "")
	require.Empty(t, theirs)

	lift := func(key, body string) int {
		status, _ := d.call(key, http.MethodPost, route+"/lift", route+"/lift", body)
		return status
	}
	require.Equal(t, http.StatusNotFound, lift("other", `{"address":"p1@example.com","because":"mistake"}`))
	require.Equal(t, http.StatusNoContent, lift("acme", `{"address":"P1@example.com","because":"mistake"}`))
	require.Equal(t, http.StatusNotFound, lift("acme", `{"address":"p1@example.com","because":"mistake"}`))
	require.Equal(t, http.StatusUnprocessableEntity, lift("acme", `{"address":"p2@example.com","because":"please"}`))
	var reason, because string
	require.NoError(t, d.pool.QueryRow(t.Context(), `SELECT reason, because FROM messaging.suppression_lifts WHERE tenant_id = $1`, d.acme).Scan(&reason, &because))
	require.Equal(t, [2]string{"manual", "mistake"}, [2]string{reason, because})

	for _, body := range []string{`{"address":"nobody"}`, `{}`, `{"address":"a@example.com","reason":"hard_bounce"}`} {
		code, _ := d.refused(http.MethodPost, route, route, body)
		require.Equal(t, "invalid_field", code)
	}
}
