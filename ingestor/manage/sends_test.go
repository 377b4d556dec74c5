package manage

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/softcrum/carril/ingestor/apikey"
	"github.com/softcrum/carril/internal/content"
	"github.com/softcrum/carril/internal/gates"
	"github.com/softcrum/carril/internal/httpserver"
	"github.com/softcrum/carril/internal/ids"
	"github.com/softcrum/carril/internal/rule"
	"github.com/softcrum/carril/internal/storage"
	"github.com/softcrum/carril/internal/taxonomy"
	"github.com/softcrum/carril/internal/testkit"
	"github.com/softcrum/carril/internal/testkit/contract"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// keyring knows principals by the text of their key.
type keyring map[string]*apikey.Principal

func (k keyring) Verify(_ context.Context, text string) (*apikey.Principal, error) {
	if p, ok := k[text]; ok {
		return p, nil
	}
	return nil, apikey.ErrInvalid
}

// desk is the management reads over a database of their own.
type desk struct {
	t      *testing.T
	pool   *pgxpool.Pool
	routes http.Handler
	acme   uuid.UUID
	other  uuid.UUID

	changed chan uuid.UUID // tenants whose schemas changed
	files   storage.Store  // of exports
}

func newDesk(t *testing.T) *desk {
	t.Helper()
	d := &desk{t: t, pool: testkit.Pool(t), acme: ids.New(), other: ids.New(), changed: make(chan uuid.UUID, 10)}
	var err error
	d.files, err = storage.Open(storage.Config{URL: "file://" + t.TempDir()})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, d.files.Close()) })
	r := httpserver.NewRouter()
	scopes := []string{ScopeSendsRead, ScopeEventsRead, ScopeTaxonomy, ScopeRules, ScopeTemplates, ScopeConsents, ScopeSuppressions, ScopeSenders, ScopeQueuesRead, ScopeContactsRead, ScopeContactsErase}
	New(Deps{DB: d.pool, CursorKey: []byte("k"), Taxonomy: taxonomy.NewStore(d.pool), Rules: rule.NewStore(d.pool), Templates: content.NewStore(d.pool), Permissions: gates.NewStore(d.pool),
		Channels: []string{"email", "sms"}, SchemasChanged: d.noteChanges, Erasures: eraser{d}, Snapshots: d.pool, Files: d.files,
		Queues: func(context.Context) any { return map[string]any{"at": month(), "channels": []any{}} }, Keys: keyring{"acme": {TenantID: d.acme, Scopes: scopes}, "other": {TenantID: d.other, Scopes: scopes},
			"operator": {Scopes: scopes}, "writer": {TenantID: d.acme, Scopes: []string{"core.events.write"}},
			"reader": {TenantID: d.acme, Scopes: []string{ScopeContactsRead}}}}).Mount(r)
	d.routes = httpserver.Identify(r, slog.New(slog.DiscardHandler))
	return d
}

func (d *desk) exec(sql string, args ...any) {
	d.t.Helper()
	_, err := d.pool.Exec(context.Background(), sql, args...)
	require.NoError(d.t, err)
}

// get asks for a path and holds the answer against the contract.
func (d *desk) get(key, route, target string) (int, string) {
	d.t.Helper()
	req := httptest.NewRequestWithContext(d.t.Context(), http.MethodGet, target, nil)
	req.Header.Set("Authorization", "Bearer "+key)
	w := httptest.NewRecorder()
	d.routes.ServeHTTP(w, req)
	body := w.Body.Bytes()
	contract.Require(d.t, contract.Exchange{Route: route, Params: map[string]string{"id": "x", "event_id": "x", "export_id": "x", "name": "x", "contact_id": uuid.Nil.String(), "erasure_id": uuid.Nil.String()}, Request: req,
		Status: w.Code, Header: w.Header(), Answered: body})
	return w.Code, string(body)
}

func (d *desk) one(key string, id any) (int, string) {
	return d.get(key, "/v1/messaging/sends/{id}", fmt.Sprintf("/v1/messaging/sends/%v", id))
}

func (d *desk) list(key string, params ...string) (int, string) {
	v := url.Values{}
	for i := 0; i < len(params); i += 2 {
		v.Set(params[i], params[i+1])
	}
	return d.get(key, "/v1/messaging/sends", "/v1/messaging/sends?"+v.Encode())
}

// addSend writes a send of a tenant requested at a time.
func (d *desk) addSend(tenant uuid.UUID, at time.Time, contact, origin uuid.UUID) uuid.UUID {
	d.t.Helper()
	request := ids.New()
	id := ids.Send(tenant, request, at, 0, "email")
	d.exec(`INSERT INTO messaging.sends (requested_at, retention_months, tenant_id, send_id, cell_id, request_id, recipient_index, contact_id,
		channel, category, provider, address, content, correlation_id, origin_event_id)
		VALUES ($1, 13, $2, $3, 'c1', $4, 0, $5, 'email', 'product', 'resend', 'ana@example.com', '{"template_id":"receipt","template_version":2}', 'corr', $6)`,
		ids.Time(id), tenant, id, request, contact, origin)
	return id
}

func (d *desk) addStatus(tenant, send uuid.UUID, status string, occurred time.Time) {
	d.t.Helper()
	d.exec(`INSERT INTO messaging.send_status_history (requested_at, retention_months, tenant_id, send_id, status, provider, provider_event_id, generation, occurred_at)
		VALUES ($1, 13, $2, $3, $4, 'resend', gen_random_uuid()::text, 1, $5)`, ids.Time(send), tenant, send, status, occurred)
}

// month is a time in the month that is open in every database of a test.
func month() time.Time { return time.Now().UTC().Truncate(time.Millisecond) }

func TestSend(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	at := month()
	contact, origin := ids.New(), ids.New()

	t.Run("KeepsStatusesAsTheyCameAndDerivesTheHighest", func(t *testing.T) { // FS-MSG-0003 AC3
		came := []string{"queued", "sent", "opened", "delivered", "sent"}
		for range 4 {
			id := d.addSend(d.acme, at, contact, origin)
			for i, s := range came {
				d.addStatus(d.acme, id, s, at.Add(-time.Duration(i)*time.Second)) // a provider's clock runs as it likes
			}
			status, body := d.one("acme", id)
			require.Equal(t, http.StatusOK, status, body)
			var got Send
			require.NoError(t, json.Unmarshal([]byte(body), &got))
			require.Equal(t, "opened", got.Status)
			var history []string
			for _, c := range got.History {
				history = append(history, c.Status)
			}
			require.Equal(t, came, history)
			require.Equal(t, at.Add(-2*time.Second), got.History[2].OccurredAt)
			require.Equal(t, origin, got.OriginEventID)
			require.Equal(t, "corr", got.CorrelationID)
			require.Equal(t, "receipt", *got.TemplateID)
			rand.Shuffle(len(came), func(i, j int) { came[i], came[j] = came[j], came[i] })
		}
	})
	t.Run("AnswersAForeignIDLikeAnAbsentOne", func(t *testing.T) {
		id := d.addSend(d.acme, at, contact, origin)
		absent := ids.Send(d.acme, ids.New(), at, 0, "email")
		var bodies []string
		for _, ask := range []struct {
			key string
			id  any
		}{{"other", id}, {"acme", absent}, {"acme", "nonsense"}, {"acme", uuid.Max}} {
			status, body := d.one(ask.key, ask.id)
			require.Equal(t, http.StatusNotFound, status)
			var p map[string]any
			require.NoError(t, json.Unmarshal([]byte(body), &p))
			bodies = append(bodies, strings.Replace(body, p["instance"].(string), "-", 1)) // each request has its own
		}
		for _, b := range bodies {
			require.Equal(t, bodies[0], b)
		}
		status, _ := d.one("operator", id)
		require.Equal(t, http.StatusOK, status)
		status, _ = d.one("writer", id)
		require.Equal(t, http.StatusForbidden, status)
	})
	t.Run("IsQueuedWhileNothingIsKnown", func(t *testing.T) {
		_, body := d.one("acme", d.addSend(d.acme, at, contact, origin))
		require.Contains(t, body, `"status":"queued"`)
	})
}

func TestSendsList(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	at := month()
	ana, anonymous, luis := ids.New(), ids.New(), ids.New()
	want := map[uuid.UUID]bool{}
	for i := range 7 { // three of one millisecond
		id := d.addSend(d.acme, at.Add(time.Duration(max(0, i-2))*time.Millisecond), luis, ids.New())
		d.addStatus(d.acme, id, "delivered", at)
		want[id] = true
	}
	d.addSend(d.other, at, luis, ids.New())
	from, to := at.Format(time.RFC3339Nano), at.Add(time.Second).Format(time.RFC3339Nano)
	type page struct {
		Sends []Send `json:"sends"`
		Next  string `json:"next_cursor"`
	}
	read := func(t *testing.T, key string, params ...string) page {
		t.Helper()
		status, body := d.list(key, append([]string{"from", from, "to", to}, params...)...)
		require.Equal(t, http.StatusOK, status, body)
		var p page
		require.NoError(t, json.Unmarshal([]byte(body), &p))
		return p
	}
	t.Run("GivesEachSendOnceOverPages", func(t *testing.T) {
		for _, limit := range []string{"1", "2", "3", "7", "200"} {
			seen, last, cursor := map[uuid.UUID]bool{}, at.Add(time.Hour), ""
			for range 10 {
				params := []string{"limit", limit}
				if cursor != "" {
					params = append(params, "cursor", cursor)
				}
				p := read(t, "acme", params...)
				for _, s := range p.Sends {
					require.False(t, seen[s.SendID])
					require.False(t, s.RequestedAt.After(last))
					require.Equal(t, "delivered", s.Status)
					seen[s.SendID], last = true, s.RequestedAt
				}
				if cursor = p.Next; cursor == "" {
					break
				}
			}
			require.Equal(t, want, seen, limit)
		}
	})
	t.Run("KeepsToItsRange", func(t *testing.T) {
		status, body := d.list("acme", "from", at.Add(time.Millisecond).Format(time.RFC3339Nano), "to", at.Add(3*time.Millisecond).Format(time.RFC3339Nano))
		require.Equal(t, http.StatusOK, status)
		require.Equal(t, 2, strings.Count(body, `"send_id"`))
	})
	t.Run("NeedsItsTimeRange", func(t *testing.T) {
		for _, params := range [][]string{{}, {"from", from}, {"to", to}} {
			status, body := d.list("acme", params...)
			require.Equal(t, http.StatusBadRequest, status)
			require.Contains(t, body, `"missing_time_range"`)
		}
	})
	t.Run("RefusesParametersThatCannotBe", func(t *testing.T) {
		for _, params := range [][]string{{"from", to, "to", from}, {"from", "yesterday", "to", to}, {"from", from, "to", to, "limit", "0"},
			{"from", from, "to", to, "limit", "201"}, {"from", from, "to", to, "contact_id", "x"}, {"from", from, "to", to, "chanel", "email"},
			{"from", from, "to", to, "contact_id", ""}, {"from", from, "to", to, "channel", ""}, {"from", from, "to", to, "limit", ""}} {
			status, body := d.list("acme", params...)
			require.Equal(t, http.StatusBadRequest, status, params)
			require.Contains(t, body, `"invalid_parameter"`)
		}
		status, _ := d.list("operator", "from", from, "to", to)
		require.Equal(t, http.StatusForbidden, status)
		status, body := d.list("acme", "from", from, "to", to, "cursor", "")
		require.Equal(t, http.StatusOK, status, body)
	})
	t.Run("TakesNoCursorOfAnotherList", func(t *testing.T) {
		cursor := read(t, "acme", "limit", "1").Next
		for _, ask := range []struct {
			key    string
			params []string
		}{
			{"other", []string{"from", from, "to", to, "cursor", cursor}},
			{"acme", []string{"from", from, "to", to, "channel", "email", "cursor", cursor}},
			{"acme", []string{"from", from, "to", at.Add(time.Minute).Format(time.RFC3339Nano), "cursor", cursor}},
			{"acme", []string{"from", from, "to", to, "cursor", "B" + cursor[1:]}},
			{"acme", []string{"from", from, "to", to, "cursor", "x"}},
		} {
			status, body := d.list(ask.key, ask.params...)
			require.Equal(t, http.StatusBadRequest, status)
			require.Contains(t, body, `"invalid_cursor"`)
		}
	})
	t.Run("FindsAContactsSendsAcrossMerges", func(t *testing.T) {
		d.addSend(d.acme, at, ana, ids.New())
		d.addSend(d.acme, at, anonymous, ids.New())
		require.Len(t, read(t, "acme", "contact_id", ana.String()).Sends, 1)
		d.exec(`INSERT INTO core.contact_merges (tenant_id, from_contact, into_contact) VALUES ($1, $2, $3)`, d.acme, anonymous, ana)
		require.Len(t, read(t, "acme", "contact_id", ana.String()).Sends, 2)
		require.Empty(t, read(t, "other", "contact_id", ana.String()).Sends)
		require.Empty(t, read(t, "acme", "contact_id", ana.String(), "channel", "sms").Sends)
	})
}

// TestTraceFollowsAnEventToEverySend is FS-MSG-0003 AC7.
func TestTraceFollowsAnEventToEverySend(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	at, origin, contact := month(), ids.Event(d.acme, "invoice-889"), ids.New()
	d.exec(`INSERT INTO core.event_keys (tenant_id, event_id, body_hash, occurred_at, received_at) VALUES ($1, $2, '', $3, $3)`, d.acme, origin, at)
	want := map[uuid.UUID]string{}
	for i, statuses := range [][]string{{"queued", "sent", "delivered", "sent"}, {"queued", "sent", "bounced", "delivered"}, {}} {
		id := d.addSend(d.acme, at.Add(time.Duration(i)*time.Millisecond), contact, origin)
		d.exec(`INSERT INTO messaging.decisions (received_at, tenant_id, request_id, recipient_index, channel, contact_id, origin_event_id, correlation_id, outcome, send_id)
			VALUES ($1, $2, $3, 0, 'email', $4, $5, 'corr', 'queued', $6)`, ids.Time(id), d.acme, ids.New(), contact, origin, id)
		for _, s := range statuses {
			d.addStatus(d.acme, id, s, at)
		}
		want[id] = [...]string{"delivered", "bounced", "queued"}[i]
	}
	trace, err := TraceEvent(t.Context(), d.pool, d.acme, origin)
	require.NoError(t, err)
	got := map[uuid.UUID]string{}
	for _, s := range trace.Sends {
		got[s.SendID] = s.Status
	}
	require.Equal(t, want, got)
	_, err = TraceEvent(t.Context(), d.pool, d.other, origin)
	require.ErrorIs(t, err, ErrNotFound)
}

// TestNoMutableStatus is FS-MSG-0003 AC9.
func TestNoMutableStatus(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	t.Run("SendsHaveNoStatusColumn", func(t *testing.T) {
		var columns, status int
		require.NoError(t, d.pool.QueryRow(t.Context(), `SELECT count(*), count(*) FILTER (WHERE column_name LIKE '%status%' OR column_name LIKE '%state%')
			FROM information_schema.columns WHERE table_schema = 'messaging' AND table_name = 'sends'`).Scan(&columns, &status))
		require.Positive(t, columns)
		require.Zero(t, status)
	})
	t.Run("RowsRefuseChanges", func(t *testing.T) {
		id := d.addSend(d.acme, month(), ids.New(), ids.New())
		d.addStatus(d.acme, id, "sent", month())
		for _, sql := range []string{
			`UPDATE messaging.sends SET provider = 'other' WHERE requested_at = $1 AND send_id = $2`,
			`DELETE FROM messaging.sends WHERE requested_at = $1 AND send_id = $2`,
			`UPDATE messaging.send_status_history SET status = 'delivered' WHERE requested_at = $1 AND send_id = $2`,
			`DELETE FROM messaging.send_status_history WHERE requested_at = $1 AND send_id = $2`,
		} {
			_, err := d.pool.Exec(t.Context(), sql, ids.Time(id), id)
			var refused *pgconn.PgError
			require.ErrorAs(t, err, &refused, sql)
			require.Equal(t, "23001", refused.Code, sql) // restrict_violation
		}
	})
}
