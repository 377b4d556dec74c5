package manage

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/softcrum/carril/internal/ids"
	"github.com/softcrum/carril/internal/testkit/contract"
)

// eraser stands in for the desk of erasures: it writes what it is asked.
type eraser struct{ d *desk }

func (e eraser) Request(ctx context.Context, tenant, contact uuid.UUID, by string) (uuid.UUID, error) {
	p, err := findPerson(ctx, e.d.pool, tenant, contact)
	if err != nil {
		return uuid.Nil, err
	}
	id := uuid.NewSHA1(tenant, p.root[:])
	e.d.exec(`INSERT INTO core.erasures (erasure_id, tenant_id, contact_id, contacts, cause, requested_by, erased_at, after_xid) VALUES ($1, $2, $3, $4, 'request', $5, now(), '1') ON CONFLICT DO NOTHING`,
		id, tenant, p.root, p.family, by)
	e.d.exec(`INSERT INTO core.erasure_stores (erasure_id, store, due_at, done_at, rows) VALUES ($1, 'contacts', now(), now(), 1), ($1, 'events', now() + interval '1 day', NULL, 0) ON CONFLICT DO NOTHING`, id)
	e.d.exec(`DELETE FROM core.contact_identifiers WHERE contact_id = $1`, p.root)
	e.d.exec(`UPDATE core.contacts SET traits = '{}', trait_times = '{}', erased_at = now() WHERE contact_id = $1`, p.root)
	return id, nil
}

// addContact writes a contact of a tenant with identifiers as pairs.
func (d *desk) addContact(tenant uuid.UUID, traits string, identifiers ...string) uuid.UUID {
	d.t.Helper()
	id := ids.New()
	d.exec(`INSERT INTO core.tenants (tenant_id, slug, name, plan_id) VALUES ($1, $2, 'x', 'starter') ON CONFLICT DO NOTHING`, tenant, "t"+tenant.String())
	d.exec(`INSERT INTO core.contacts (tenant_id, contact_id, cell_id, known, traits) VALUES ($1, $2, 'c1', true, $3)`, tenant, id, traits)
	for i := 0; i < len(identifiers); i += 2 {
		d.exec(`INSERT INTO core.contact_identifiers (tenant_id, kind, value, contact_id) VALUES ($1, $2, $3, $4)`, tenant, identifiers[i], identifiers[i+1], id)
	}
	return id
}

func (d *desk) merge(tenant, from, into uuid.UUID) {
	d.t.Helper()
	d.exec(`INSERT INTO core.contact_merges (tenant_id, from_contact, into_contact) VALUES ($1, $2, $3)`, tenant, from, into)
}

const oneContact = "/v1/core/contacts/{contact_id}"

func (d *desk) contact(key string, id any) (int, string) {
	return d.get(key, oneContact, fmt.Sprintf("/v1/core/contacts/%v", id))
}

// del asks for an erasure and holds the answer against the contract.
func (d *desk) del(key string, id any) (int, string) {
	d.t.Helper()
	req := httptest.NewRequestWithContext(d.t.Context(), http.MethodDelete, fmt.Sprintf("/v1/core/contacts/%v", id), nil)
	req.Header.Set("Authorization", "Bearer "+key)
	w := httptest.NewRecorder()
	d.routes.ServeHTTP(w, req)
	contract.Require(d.t, contract.Exchange{Route: oneContact, Params: map[string]string{"contact_id": fmt.Sprint(id)}, Request: req, Status: w.Code, Header: w.Header(),
		Answered: w.Body.Bytes()})
	return w.Code, w.Body.String()
}

func TestContacts(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	ana := d.addContact(d.acme, `{"n":9007199254740993,"city":"Lima"}`, "email", "ana@example.com", "external_id", "c-1", "crm", "7-A")
	old := d.addContact(d.acme, `{}`)
	d.merge(d.acme, old, ana)
	foreign := d.addContact(d.other, `{}`, "email", "ana@example.com")
	find := func(key string, params ...string) (int, []Contact) {
		status, body := d.ask(key, "/v1/core/contacts", params...)
		var page struct{ Contacts []Contact }
		require.NoError(t, json.Unmarshal([]byte(body), &page))
		return status, page.Contacts
	}

	t.Run("AreFoundByAnyIdentifierInAnyForm", func(t *testing.T) {
		for _, ask := range [][]string{{"email", " ANA@example.com"}, {"external_id", "c-1"}, {"kind", "crm", "value", "7-A"}} {
			status, found := find("acme", ask...)
			require.Equal(t, http.StatusOK, status)
			require.Len(t, found, 1)
			require.Equal(t, ana, found[0].ContactID)
			require.Len(t, found[0].Identifiers, 3)
			require.Contains(t, string(found[0].Traits), "9007199254740993")
		}
		_, found := find("other", "email", "ana@example.com")
		require.Equal(t, foreign, found[0].ContactID, "each tenant's own")
		status, found := find("other", "external_id", "c-1")
		require.Equal(t, http.StatusOK, status)
		require.Empty(t, found)
	})
	t.Run("AreNotLookedForWithoutOneIdentifier", func(t *testing.T) {
		for _, c := range []struct {
			code   string
			params []string
		}{{"invalid_parameter", nil}, {"invalid_parameter", []string{"email", "a@example.com", "phone", "+584125550101"}}, {"invalid_parameter", []string{"kind", "crm"}},
			{"invalid_parameter", []string{"mail", "a@example.com"}}, {"invalid_identifier", []string{"email", "null"}}, {"invalid_identifier", []string{"phone", "12"}},
			{"invalid_parameter", []string{"kind", "", "value", "x"}}} {
			status, body := d.ask("acme", "/v1/core/contacts", c.params...)
			require.Equal(t, http.StatusBadRequest, status, c.params)
			require.Contains(t, body, `"code":"`+c.code+`"`)
		}
	})
	t.Run("SayWhatAPlusIs", func(t *testing.T) { // a client that does not escape sends a space
		status, body := d.call("acme", http.MethodGet, "/v1/core/contacts", "/v1/core/contacts?phone=+584125550101", "")
		require.Equal(t, http.StatusBadRequest, status)
		require.Contains(t, body, "A + is written %2B.")
		_, body = d.call("acme", http.MethodGet, "/v1/core/contacts", "/v1/core/contacts?phone=12", "")
		require.NotContains(t, body, "%2B")
	})
	t.Run("SayWhomTheyBecame", func(t *testing.T) {
		_, body := d.contact("acme", old)
		var c Contact
		require.NoError(t, json.Unmarshal([]byte(body), &c))
		require.Equal(t, []any{old, ana}, []any{c.ContactID, *c.MergedInto})
		require.Len(t, c.Identifiers, 3, "the survivor's")
		_, body = d.contact("acme", ana)
		require.NoError(t, json.Unmarshal([]byte(body), &c))
		require.Equal(t, []uuid.UUID{old}, c.MergedFrom)
	})
	t.Run("OfOthersAreLikeAbsentOnes", func(t *testing.T) { // faults P6
		for tail, route := range map[string]string{"": oneContact, "/points": oneContact + "/points", "/timeline": oneContact + "/timeline",
			"/timeline?from=2026-01-01T00:00:00Z&to=2026-02-01T00:00:00Z": oneContact + "/timeline"} {
			var bodies []string
			for _, id := range []any{foreign, ids.New(), "nonsense"} {
				status, body := d.get("acme", route, fmt.Sprintf("/v1/core/contacts/%v%s", id, tail))
				require.Equal(t, http.StatusNotFound, status, tail)
				bodies = append(bodies, body)
			}
			requireSame(t, bodies...)
		}
		var bodies []string
		for _, id := range []any{foreign, ids.New(), "nonsense"} {
			status, body := d.del("acme", id)
			require.Equal(t, http.StatusNotFound, status)
			bodies = append(bodies, body)
		}
		requireSame(t, bodies...)
	})
	t.Run("NeedTheirScopes", func(t *testing.T) {
		status, _ := d.contact("writer", ana)
		require.Equal(t, http.StatusForbidden, status)
		status, _ = d.del("reader", ana)
		require.Equal(t, http.StatusForbidden, status)
		status, _ = d.contact("reader", ana)
		require.Equal(t, http.StatusOK, status)
		status, body := d.del("operator", ana)
		require.Equal(t, http.StatusForbidden, status)
		require.Contains(t, body, "tenant_required")
	})
}

func TestTimeline(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	ana, old := d.addContact(d.acme, `{}`), d.addContact(d.acme, `{}`)
	d.merge(d.acme, old, ana)
	at := month()
	var want []string
	for i := range 12 {
		when := at.Add(-time.Duration(i) * time.Second)
		if who := []uuid.UUID{ana, old}[i%2]; i%3 == 0 {
			send := d.addSend(d.acme, when, who, ids.New())
			d.addStatus(d.acme, send, "delivered", when)
			want = append(want, send.String())
		} else {
			want = append(want, d.addEvent(d.acme, fmt.Sprint("k", i), when, who, "a.b", `{}`).String())
		}
	}
	d.addEvent(d.acme, "somebody else's", at, ids.New(), "a.b", `{}`)
	route := oneContact + "/timeline"
	list := walk{d: d, route: route, array: "timeline", from: at.Add(-time.Hour), to: at.Add(time.Hour)}
	read := func(id uuid.UUID, params ...string) (got []string) {
		cursor := ""
		for range 50 {
			v := list.params(params...)
			if cursor != "" {
				v = append(v, "cursor", cursor)
			}
			status, body := d.askAt("acme", route, fmt.Sprintf("/v1/core/contacts/%s/timeline", id), v...)
			require.Equal(t, http.StatusOK, status, body)
			var page struct {
				Timeline []Moment
				Next     string `json:"next_cursor"`
			}
			require.NoError(t, json.Unmarshal([]byte(body), &page))
			for _, m := range page.Timeline {
				got = append(got, m.id().String())
				if m.Kind == "send" {
					require.Equal(t, "delivered", m.Send.Status, "the current one")
				}
			}
			if cursor = page.Next; cursor == "" {
				return got
			}
		}
		return got
	}
	for _, limit := range []string{"1", "5", "200"} {
		require.Equal(t, want, read(ana, "limit", limit), "newest first, page by page, over all that were merged")
		require.Equal(t, want, read(old, "limit", limit), "by either id")
	}
	status, body := d.askAt("acme", route, fmt.Sprintf("/v1/core/contacts/%s/timeline", ana))
	require.Equal(t, http.StatusBadRequest, status)
	require.Contains(t, body, "missing_time_range")
	// A cursor goes with its contact.
	_, body = d.askAt("acme", route, fmt.Sprintf("/v1/core/contacts/%s/timeline", ana), list.params("limit", "1")...)
	var page map[string]any
	require.NoError(t, json.Unmarshal([]byte(body), &page))
	status, body = d.askAt("acme", route, fmt.Sprintf("/v1/core/contacts/%s/timeline", old), list.params("limit", "1", "cursor", page["next_cursor"].(string))...)
	require.Equal(t, http.StatusBadRequest, status)
	require.Contains(t, body, "invalid_cursor")
}

func TestPoints(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	ana, old := d.addContact(d.acme, `{}`), d.addContact(d.acme, `{}`)
	d.merge(d.acme, old, ana)
	give := func(who uuid.UUID, points int) {
		event := ids.New()
		d.exec(`WITH l AS (INSERT INTO core.points_ledger (tenant_id, event_id, rule_id, contact_id, points, correlation_id, occurred_at)
			VALUES ($1, $2, $2, $3, $4, 'c', now()), ($1, $2, gen_random_uuid(), $3, 0, 'c', now())) INSERT INTO core.points_balances VALUES ($1, $3, $4)
			ON CONFLICT (tenant_id, contact_id) DO UPDATE SET balance = core.points_balances.balance + EXCLUDED.balance`, d.acme, event, who, points)
	}
	for i := range 5 {
		give([]uuid.UUID{ana, old}[i%2], 10+i)
	}
	read := func(id uuid.UUID, limit string) (balance int64, entries []int64) {
		cursor := ""
		for range 20 {
			params := []string{"limit", limit}
			if cursor != "" {
				params = append(params, "cursor", cursor)
			}
			status, body := d.askAt("acme", oneContact+"/points", fmt.Sprintf("/v1/core/contacts/%s/points", id), params...)
			require.Equal(t, http.StatusOK, status, body)
			var p Points
			require.NoError(t, json.Unmarshal([]byte(body), &p))
			balance = p.Balance
			for _, e := range p.Entries {
				entries = append(entries, e.Points)
			}
			if cursor = p.NextCursor; cursor == "" {
				break
			}
		}
		return balance, entries
	}
	for _, id := range []uuid.UUID{ana, old} {
		for _, limit := range []string{"1", "2", "50"} {
			balance, entries := read(id, limit)
			require.EqualValues(t, 60, balance, "nothing is counted twice")
			require.Equal(t, []int64{14, 13, 12, 11, 10}, entries)
		}
	}
	d.exec(`UPDATE core.contact_merges SET undone_at = now()`)
	balance, entries := read(ana, "50")
	require.EqualValues(t, 36, balance, "an undone merge parts it")
	require.Len(t, entries, 3)
	balance, _ = read(old, "50")
	require.EqualValues(t, 24, balance)
	status, body := d.askAt("acme", oneContact+"/points", fmt.Sprintf("/v1/core/contacts/%s/points", ana), "cursor", "AAAA")
	require.Equal(t, http.StatusBadRequest, status)
	require.Contains(t, body, "invalid_cursor")
}

func TestErasure(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	ana, old := d.addContact(d.acme, `{"a":1}`, "email", "ana@example.com"), d.addContact(d.acme, `{}`)
	d.merge(d.acme, old, ana)
	status, body := d.del("acme", old)
	require.Equal(t, http.StatusAccepted, status, body)
	var e Erasure
	require.NoError(t, json.Unmarshal([]byte(body), &e))
	require.Equal(t, []any{ana, "open", "api", []string{"events"}}, []any{*e.ContactID, e.State, e.RequestedBy, e.Open})
	require.Len(t, e.Contacts, 2)
	_, again := d.del("acme", ana)
	var second Erasure
	require.NoError(t, json.Unmarshal([]byte(again), &second))
	require.Equal(t, e.ErasureID, second.ErasureID, "asked again it is the same")

	const route = "/v1/core/erasures/{erasure_id}"
	status, body = d.askAt("acme", route, "/v1/core/erasures/"+e.ErasureID.String())
	require.Equal(t, http.StatusOK, status)
	require.Contains(t, body, `"store":"events","state":"open"`)
	var bodies []string
	for _, ask := range [][2]string{{"other", e.ErasureID.String()}, {"acme", ids.New().String()}, {"acme", "x"}} {
		status, body := d.askAt(ask[0], route, "/v1/core/erasures/"+ask[1])
		require.Equal(t, http.StatusNotFound, status)
		bodies = append(bodies, body)
	}
	requireSame(t, bodies...)
	d.exec(`UPDATE core.erasure_stores SET done_at = now()`)
	d.exec(`UPDATE core.erasures SET done_at = now()`)
	_, body = d.askAt("acme", route, "/v1/core/erasures/"+e.ErasureID.String())
	require.Contains(t, body, `"open":[]`)
	_, body = d.contact("acme", old)
	require.Contains(t, body, `"erasure_id":"`+e.ErasureID.String())
	require.Contains(t, body, `"identifiers":[],"traits":{}`)
	status, body = d.ask("acme", "/v1/core/contacts", "email", "ana@example.com")
	require.Equal(t, http.StatusOK, status)
	require.Equal(t, "{\"contacts\":[]}\n", body)
}
