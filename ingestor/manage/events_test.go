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

	"github.com/softcrum/carril/internal/ids"
)

// addEvent stores an event of a tenant under a key, as the append stage does.
func (d *desk) addEvent(tenant uuid.UUID, key string, at time.Time, contact uuid.UUID, name, properties string) uuid.UUID {
	d.t.Helper()
	id := ids.Event(tenant, key)
	d.exec(`INSERT INTO core.event_keys (tenant_id, event_id, body_hash, occurred_at, received_at) VALUES ($1, $2, 'first', $3, $4)`, tenant, id, at, at.Add(time.Second))
	d.exec(`INSERT INTO core.tracked_events (tenant_id, event_id, cell_id, contact_id, kind, event_name, properties, occurred_at, occurred_offset, received_at,
		idempotency_key, correlation_id, retention_months, lane, lane_seq)
		VALUES ($1, $2, 'c1', $3, 'track', $4, $5::text::jsonb, $6, -18000, $7, $8, $9, 13, 1, 1)`, tenant, id, contact, name, properties, at, at.Add(time.Second), key, id.String())
	return id
}

// ask lists with parameters as pairs, and holds the answer against the contract.
func (d *desk) ask(key, route string, params ...string) (int, string) {
	d.t.Helper()
	v := url.Values{}
	for i := 0; i < len(params); i += 2 {
		v.Set(params[i], params[i+1])
	}
	return d.get(key, route, route+"?"+v.Encode())
}

// askAt is ask for a route whose path has parameters.
func (d *desk) askAt(key, route, path string, params ...string) (int, string) {
	d.t.Helper()
	v := url.Values{}
	for i := 0; i < len(params); i += 2 {
		v.Set(params[i], params[i+1])
	}
	return d.get(key, route, path+"?"+v.Encode())
}

// requireSame holds two problems alike, but for their own request's id.
func requireSame(t *testing.T, bodies ...string) {
	t.Helper()
	for i, b := range bodies {
		var p map[string]any
		require.NoError(t, json.Unmarshal([]byte(b), &p))
		bodies[i] = strings.Replace(b, p["instance"].(string), "-", 1)
		require.Equal(t, bodies[0], bodies[i])
	}
}

func TestEvent(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	at, contact := month(), ids.New()
	one := func(key string, id any) (int, string) {
		return d.get(key, "/v1/core/events/{event_id}", fmt.Sprintf("/v1/core/events/%v", id))
	}
	t.Run("IsGivenAsItIsStored", func(t *testing.T) {
		id := d.addEvent(d.acme, "invoice-889", at, contact, "invoice.paid", `{"n":9007199254740993,"m":1.10,"t":"\ud83d\ude00<&>"}`)
		status, body := one("acme", id)
		require.Equal(t, http.StatusOK, status, body)
		var f Fate
		require.NoError(t, json.Unmarshal([]byte(body), &f))
		require.Equal(t, "stored", f.Status)
		require.True(t, f.Has("accepted") && f.Has("appended"))
		require.Equal(t, "invoice-889", f.Event.IdempotencyKey)
		require.Equal(t, contact, f.Event.ContactID)
		require.True(t, at.Equal(f.Event.OccurredAt))
		require.Contains(t, body, `"occurred_at":"`+at.In(time.FixedZone("", -18000)).Format(time.RFC3339Nano)+`"`, "in the caller's offset")
		require.Contains(t, body, `9007199254740993`)
		require.Contains(t, body, `1.10`)
		require.Contains(t, body, `😀<&>`)
	})
	t.Run("IsADeadLetterWithItsReason", func(t *testing.T) {
		id := ids.Event(d.acme, "dead")
		d.exec(`INSERT INTO core.dead_letters (dead_letter_id, stage, class, reason, tenant_id, event_id) VALUES ($1, 'append', 'refused_by_database', 'x', $2, $3)`, ids.New(), d.acme, id)
		status, body := one("acme", id)
		require.Equal(t, http.StatusOK, status)
		require.Contains(t, body, `"status":"dead_letter"`)
		require.Contains(t, body, `"reason":"refused_by_database"`)
		status, _ = one("other", id)
		require.Equal(t, http.StatusNotFound, status)
	})
	t.Run("IsExpiredOnceItsRowHasLeft", func(t *testing.T) {
		id := ids.Event(d.acme, "old")
		d.exec(`INSERT INTO core.event_keys (tenant_id, event_id, body_hash, occurred_at, received_at) VALUES ($1, $2, '', $3, $3)`, d.acme, id, at.AddDate(-3, 0, 0))
		_, body := one("acme", id)
		require.Contains(t, body, `"status":"expired"`)
	})
	t.Run("IsNotThereForOthersNorBeforeItIsStored", func(t *testing.T) { // bad inputs 47
		mine := d.addEvent(d.acme, "mine", at, contact, "a.b", `{}`)
		var bodies []string
		for _, ask := range []struct {
			key string
			id  any
		}{{"other", mine}, {"acme", ids.Event(d.acme, "accepted and not appended")}, {"acme", ids.New()}, {"acme", "nonsense"}, {"acme", "{" + mine.String() + "}"},
			{"acme", strings.ReplaceAll(mine.String(), "-", "")}} {
			status, body := one(ask.key, ask.id)
			require.Equal(t, http.StatusNotFound, status, ask.id)
			bodies = append(bodies, body)
		}
		requireSame(t, bodies...)
		status, _ := one("operator", mine)
		require.Equal(t, http.StatusOK, status)
		status, _ = one("writer", mine)
		require.Equal(t, http.StatusForbidden, status)
	})
}

// A list that is read page by page, with one range.
type walk struct {
	d        *desk
	route    string
	array    string
	from, to time.Time
}

func (l walk) params(more ...string) []string {
	return append([]string{"from", l.from.Format(time.RFC3339Nano), "to", l.to.Format(time.RFC3339Nano)}, more...)
}

// all reads every page and gives the rows as they came.
func (l walk) all(t *testing.T, key string, params ...string) (rows []map[string]any) {
	t.Helper()
	cursor := ""
	for range 50 {
		ask := l.params(params...)
		if cursor != "" {
			ask = append(ask, "cursor", cursor)
		}
		status, body := l.d.ask(key, l.route, ask...)
		require.Equal(t, http.StatusOK, status, body)
		var page map[string]any
		require.NoError(t, json.Unmarshal([]byte(body), &page))
		for _, r := range page[l.array].([]any) {
			rows = append(rows, r.(map[string]any))
		}
		if cursor, _ = page["next_cursor"].(string); cursor == "" {
			return rows
		}
	}
	require.Fail(t, "the list has no end")
	return nil
}

func field(rows []map[string]any, name string) []string {
	var out []string
	for _, r := range rows {
		out = append(out, fmt.Sprint(r[name]))
	}
	return out
}

// requireList asks of a list what every list must do.
func requireList(t *testing.T, l walk, id string, key string) {
	t.Helper()
	whole := field(l.all(t, key, "limit", "200"), id)
	require.NotEmpty(t, whole)
	seen := map[string]bool{}
	for _, v := range whole {
		require.False(t, seen[v], "twice")
		seen[v] = true
	}
	for _, limit := range []string{"1", "2", "3"} {
		require.Equal(t, whole, field(l.all(t, key, "limit", limit), id), limit)
	}
	require.Empty(t, l.all(t, "other"))
	for _, params := range [][]string{{}, {"from", l.params()[1]}, {"to", l.params()[1]}} {
		status, body := l.d.ask(key, l.route, params...)
		require.Equal(t, http.StatusBadRequest, status)
		require.Contains(t, body, `"missing_time_range"`)
	}
	for _, more := range [][]string{{"limit", "0"}, {"limit", "201"}, {"limit", "x"}, {"colour", "red"}, {"from", "yesterday"}, {"from", l.params()[3]}} {
		status, body := l.d.ask(key, l.route, l.params(more...)...)
		require.Equal(t, http.StatusBadRequest, status, more)
		require.Contains(t, body, `"invalid_parameter"`)
	}
	_, body := l.d.ask(key, l.route, l.params("limit", "1")...)
	var page struct {
		Next string `json:"next_cursor"`
	}
	require.NoError(t, json.Unmarshal([]byte(body), &page))
	for _, cursor := range []string{"x", "B" + page.Next[1:], page.Next + "A"} {
		status, body := l.d.ask(key, l.route, l.params("cursor", cursor)...)
		require.Equal(t, http.StatusBadRequest, status)
		require.Contains(t, body, `"invalid_cursor"`)
	}
	status, body := l.d.ask("other", l.route, l.params("cursor", page.Next)...)
	require.Equal(t, http.StatusBadRequest, status, body)
	status, _ = l.d.ask("operator", l.route, l.params()...)
	require.Equal(t, http.StatusForbidden, status)
	status, _ = l.d.ask("writer", l.route, l.params()...)
	require.Equal(t, http.StatusForbidden, status)
}

func TestEventsList(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	at := month()
	ana, anonymous := ids.New(), ids.New()
	for i := range 7 { // four of one microsecond
		name := [...]string{"invoice.paid", "cart.opened"}[i%2]
		d.addEvent(d.acme, fmt.Sprint("k", i), at.Add(time.Duration(max(0, i-3))*time.Microsecond), ana, name, `{"i":1.0}`)
	}
	d.addEvent(d.acme, "anonymous", at, anonymous, "page.seen", `{}`)
	l := walk{d, "/v1/core/events", "events", at, at.Add(time.Second)}
	t.Run("GivesEachEventOnceOverPages", func(t *testing.T) { requireList(t, l, "event_id", "acme") })
	t.Run("KeepsToItsRange", func(t *testing.T) {
		short := l
		short.from, short.to = at.Add(time.Microsecond), at.Add(3*time.Microsecond)
		require.Len(t, short.all(t, "acme"), 2)
	})
	t.Run("FindsByNameAndContactAcrossMerges", func(t *testing.T) {
		require.Len(t, l.all(t, "acme", "event_name", "invoice.paid"), 4)
		require.Empty(t, l.all(t, "acme", "event_name", "INVOICE.PAID"))
		require.Len(t, l.all(t, "acme", "contact_id", ana.String()), 7)
		d.exec(`INSERT INTO core.contact_merges (tenant_id, from_contact, into_contact) VALUES ($1, $2, $3)`, d.acme, anonymous, ana)
		require.Len(t, l.all(t, "acme", "contact_id", ana.String()), 8)
		require.Len(t, l.all(t, "acme", "contact_id", ana.String(), "event_name", "page.seen", "limit", "1"), 1)
		status, body := d.ask("acme", l.route, l.params("contact_id", "x")...)
		require.Equal(t, http.StatusBadRequest, status, body)
		for _, name := range []string{"a\x00b", "\xff", strings.Repeat("a", 513)} {
			status, body = d.ask("acme", l.route, l.params("event_name", name)...)
			require.Equal(t, http.StatusBadRequest, status, body)
			require.Contains(t, body, `"invalid_parameter"`)
		}
	})
}

func TestWarningsList(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	from := time.Now().UTC().Add(-time.Minute).Truncate(time.Microsecond)
	event, request := d.addEvent(d.acme, "k", month(), ids.New(), "a.b", `{}`), ids.Request(d.acme, "r")
	d.exec(`INSERT INTO messaging.request_keys (tenant_id, request_id, body_hash, received_at) VALUES ($1, $2, 'first', $3)`, d.acme, request, from)
	d.exec(`INSERT INTO core.warnings (tenant_id, warning_id, event_id, kind, detail) SELECT $1, gen_random_uuid(), $2, k, '{"email":"why"}' FROM unnest($3::text[]) k`,
		d.acme, event, []string{"refused_identifier", "traits_capped", "taxonomy_violation", "taxonomy_violation"}) // one moment for all
	d.exec(`INSERT INTO core.idempotency_conflicts (kind, tenant_id, event_id, body_hash, received_at)
		SELECT k, $1, i, h::bytea, $2 FROM ROWS FROM (unnest($3::text[]), unnest($4::uuid[]), unnest($5::text[])) u(k, i, h)`,
		d.acme, from, []string{"event", "event", "message"}, []uuid.UUID{event, event, request}, []string{"x", "y", "z"})
	d.exec(`INSERT INTO core.dead_letters (dead_letter_id, stage, class, reason, tenant_id, event_id) VALUES ($1, 'append', 'poison', 'secret', $2, $3)`,
		ids.New(), d.acme, ids.Event(d.acme, "dead"))
	to := time.Now().UTC().Add(time.Minute)
	l := walk{d, "/v1/core/warnings", "warnings", from, to}
	t.Run("GivesEachWarningOnceOverPages", func(t *testing.T) { requireList(t, l, "warning_id", "acme") })
	t.Run("HasAllThatATenantShouldKnow", func(t *testing.T) {
		require.ElementsMatch(t, []string{"refused_identifier", "traits_capped", "taxonomy_violation", "taxonomy_violation",
			"idempotency_conflict", "idempotency_conflict", "idempotency_conflict", "dead_letter"}, field(l.all(t, "acme", "limit", "3"), "kind"))
		require.Len(t, l.all(t, "acme", "kind", "taxonomy_violation", "limit", "1"), 2)
		dead := l.all(t, "acme", "kind", "dead_letter")
		require.Equal(t, map[string]any{"stage": "append", "class": "poison", "status": "open"}, dead[0]["detail"])
		status, body := d.ask("acme", l.route, l.params("kind", "taxonomy")...)
		require.Equal(t, http.StatusBadRequest, status, body)
	})
	t.Run("NamesTheConflicts", func(t *testing.T) {
		l := walk{d, "/v1/core/idempotency-conflicts", "conflicts", from, to}
		requireList(t, l, "conflict_id", "acme")
		for _, c := range l.all(t, "acme") {
			if c["kind"] == "event" {
				require.Equal(t, event.String(), c["event_id"])
				require.Equal(t, "k", c["idempotency_key"])
				require.Equal(t, "a.b", c["event_name"])
			} else {
				require.Equal(t, request.String(), c["request_id"])
				require.Equal(t, from.Format(time.RFC3339Nano), c["first_received_at"])
			}
		}
	})
}

func TestTraceAndHealthAnswerAsTheContractSays(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	id := d.addEvent(d.acme, "k", month(), ids.New(), "a.b", `{}`)
	trace := func(key, query string) (int, string) {
		return d.get(key, "/v1/messaging/trace", "/v1/messaging/trace?"+query)
	}
	status, body := trace("acme", "origin_event_id="+id.String())
	require.Equal(t, http.StatusOK, status)
	require.Contains(t, body, `"appended"`)
	var bodies []string
	for _, ask := range [][2]string{{"other", id.String()}, {"acme", ids.New().String()}} {
		status, body := trace(ask[0], "origin_event_id="+ask[1])
		require.Equal(t, http.StatusNotFound, status)
		bodies = append(bodies, body)
	}
	requireSame(t, bodies...)
	for _, query := range []string{"", "origin_event_id=x", "origin_event_id={" + id.String() + "}"} {
		status, body = trace("acme", query)
		require.Equal(t, http.StatusBadRequest, status)
		require.Contains(t, body, `"invalid_parameter"`)
	}
	health := func(key string) (int, string) {
		return d.get(key, "/v1/messaging/queues/health", "/v1/messaging/queues/health")
	}
	status, _ = health("operator")
	require.Equal(t, http.StatusOK, status)
	status, body = health("acme")
	require.Equal(t, http.StatusForbidden, status)
	require.Contains(t, body, "operator_required")
}
