package app

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/softcrum/carril/dispatcher/blast"
	"github.com/softcrum/carril/ingestor/manage"
	"github.com/softcrum/carril/internal/httpserver"
	"github.com/softcrum/carril/internal/ids"
	"github.com/softcrum/carril/internal/testkit"
	"github.com/softcrum/carril/internal/testkit/contract"
)

const blastsRoute, blastRoute = "/v1/messaging/blasts", "/v1/messaging/blasts/{blast_id}"

// campaigns are the routes of blasts over a database of the test's own.
type campaigns struct {
	t     *testing.T
	pool  *pgxpool.Pool
	front http.Handler
	acme  uuid.UUID

	quotas *blast.Quotas // of the provider; nil: it has none
	blind  error         // they cannot be seen
}

// quotaNow is the clock of the quotas' days.
var quotaNow = time.Date(2026, 11, 12, 9, 0, 0, 0, time.UTC)

func newCampaigns(t *testing.T) *campaigns {
	t.Helper()
	c := &campaigns{t: t, pool: testkit.Pool(t), acme: ids.New()}
	other := ids.New()
	for slug, id := range map[string]uuid.UUID{"acme": c.acme, "other": other} {
		c.exec(`INSERT INTO core.tenants (tenant_id, slug, name, plan_id) VALUES ($1, $2, $2, 'starter')`, id, slug)
	}
	c.exec(`INSERT INTO messaging.templates (tenant_id, template_id, version, channel, subject, html) VALUES ($1, 'news', 1, 'email', 'News for {{ name }}', '<p>{{ season }}</p>')`, c.acme)
	c.exec(`INSERT INTO core.contacts (tenant_id, contact_id, cell_id, known) SELECT $1, md5('k' || i)::uuid, 'c1', true FROM generate_series(1, 1500) i`, c.acme)
	c.exec(`INSERT INTO core.contact_identifiers (tenant_id, kind, value, contact_id) SELECT $1, k, CASE k WHEN 'email' THEN 'p' || i || '@example.com' ELSE 'c-' || i END, md5('k' || i)::uuid
FROM generate_series(1, 1500) i, (VALUES ('email'), ('external_id')) AS v(k)`, c.acme)
	c.exec(`INSERT INTO messaging.consents (tenant_id, contact_id, channel, granted, source) SELECT $1, md5('k' || i)::uuid, 'email', i <> 3, 'test' FROM generate_series(1, 1500) i`, c.acme)
	r := httpserver.NewRouter()
	scopes := []string{manage.ScopeBlasts}
	cfg := blast.Config{RequestsPerSecond: func(context.Context, uuid.UUID, string) float64 { return 4.5 },
		Quotas: func(context.Context, string) (*blast.Quotas, error) { return c.quotas, c.blind }, Now: func() time.Time { return quotaNow }}
	manage.New(manage.Deps{DB: c.pool, CursorKey: []byte("k"), Channels: []string{"email"}, Keys: keyring{"acme": {TenantID: c.acme, Scopes: scopes}, "other": {TenantID: other, Scopes: scopes},
		"looker": {TenantID: c.acme, Scopes: []string{manage.ScopeBlastsRead}}, "writer": {TenantID: c.acme, Scopes: []string{"core.events.write"}}},
		Blasts: blasts{blast.New(cfg, c.pool)}}).Mount(r)
	c.front = httpserver.Identify(r, slog.New(slog.DiscardHandler))
	return c
}

func (c *campaigns) exec(sql string, args ...any) {
	c.t.Helper()
	_, err := c.pool.Exec(context.Background(), sql, args...)
	require.NoError(c.t, err)
}

// call asks for something and holds both sides against the contract.
func (c *campaigns) call(key, method, route, target, body string) (int, string) {
	c.t.Helper()
	return c.send(key, method, route, target, body, "application/json")
}

func (c *campaigns) send(key, method, route, target, body, kind string) (int, string) {
	c.t.Helper()
	req := httptest.NewRequestWithContext(c.t.Context(), method, target, strings.NewReader(body))
	req.Header.Set("Authorization", "Bearer "+key)
	if body != "" {
		req.Header.Set("Content-Type", kind)
	}
	w := httptest.NewRecorder()
	c.front.ServeHTTP(w, req)
	params := map[string]string{}
	want, have := strings.Split(route, "/"), strings.Split(req.URL.Path, "/")
	for i, part := range want {
		if strings.HasPrefix(part, "{") {
			params[strings.Trim(part, "{}")] = have[i]
		}
	}
	contract.Require(c.t, contract.Exchange{Route: route, Params: params, Request: req, Sent: body, Status: w.Code, Header: w.Header(), Answered: w.Body.Bytes()})
	return w.Code, w.Body.String()
}

func (c *campaigns) create(body string) string {
	c.t.Helper()
	status, answer := c.call("acme", http.MethodPost, blastsRoute, blastsRoute, body)
	require.Equal(c.t, http.StatusCreated, status, answer)
	var b struct {
		ID string `json:"blast_id"`
	}
	require.NoError(c.t, json.Unmarshal([]byte(answer), &b))
	return b.ID
}

func at(id string) string { return blastsRoute + "/" + id }

func csvOf(n int) string {
	var b strings.Builder
	b.WriteString("external_id;name\n")
	for i := 1; i <= n; i++ {
		fmt.Fprintf(&b, "c-%d;Name %d\n", i, i)
	}
	return b.String()
}

// TestBlastsAndTheQuota starts blasts that fit into what the provider's quota
// leaves to marketing, and some that do not.
func TestBlastsAndTheQuota(t *testing.T) {
	t.Parallel()
	c := newCampaigns(t)
	c.exec(`INSERT INTO messaging.senders (tenant_id, channel, sender, verified) VALUES ($1, 'email', 'acme@example.com', true)`, c.acme)
	draft := func(audience string) string {
		return c.create(`{"name":"Spring","template_id":"news","variables":{"season":"spring","name":"you"}` + audience + `}`)
	}
	filled := func() string {
		id := draft("")
		status, answer := c.send("acme", http.MethodPost, blastRoute+"/recipients", at(id)+"/recipients?upload_id="+ids.New().String(), csvOf(1_200), "text/csv")
		require.Equal(t, http.StatusOK, status, answer)
		return id
	}
	dryRun := func(id string) string {
		status, answer := c.call("acme", http.MethodPost, blastRoute+"/dry-run", at(id)+"/dry-run", "")
		require.Equal(t, http.StatusOK, status, answer)
		return answer
	}
	start := func(id, body string) (int, string) {
		return c.call("acme", http.MethodPost, blastRoute+"/start", at(id)+"/start", body)
	}
	day := func(used int64) *blast.Quota {
		return &blast.Quota{Limit: 1_000, Used: used, Reserve: 0.2, Left: 800 - used, Share: 800}
	}
	month := &blast.Quota{Limit: 30_000, Used: 6_000, Reserve: 0.2, Left: 18_000, Share: 24_000}

	c.quotas = &blast.Quotas{Day: day(300), Month: month}
	upload, contacts := filled(), draft(`,"audience":{"type":"contacts"}`)
	for id, days := range map[string]int{upload: 2, contacts: 3} {
		answer := dryRun(id)
		require.Contains(t, answer, `"quota":{"known":true,"day":{"limit":1000,"used":300,"reserve":0.2,"left_for_marketing":500},`+
			`"month":{"limit":30000,"used":6000,"reserve":0.2,"left_for_marketing":18000},"fits":false,"days_needed":`+fmt.Sprint(days)+`}`)
		status, answer := start(id, "")
		require.Equal(t, "409 quota_exceeded", fmt.Sprint(status, " ", codeOf(answer)))
		for _, figure := range []string{"The blast does not fit into the provider's quota", "has 500 messages left of the day's quota (1000, of which 300 are used and 20 % are kept", fmt.Sprintf("over %d days", days)} {
			require.Contains(t, answer, figure)
		}
	}
	status, answer := start(upload, `{"over_quota":true}`)
	require.Equal(t, http.StatusOK, status, answer)
	require.Contains(t, answer, `"state":"running"`)
	require.Contains(t, answer, `"fits":false,"days_needed":2`)
	status, answer = start(upload, "")
	require.Equal(t, http.StatusOK, status, "what has started is not asked again: "+answer)
	require.NotContains(t, answer, `"quota"`)

	c.quotas = &blast.Quotas{Month: &blast.Quota{Limit: 2_000, Used: 1_000, Reserve: 0.2, Left: 600, Share: 1_600}}
	status, answer = start(contacts, `{"start_at":"`+quotaNow.Add(24*time.Hour).Format(time.RFC3339)+`"}`)
	require.Equal(t, "409 quota_exceeded", fmt.Sprint(status, " ", codeOf(answer)))
	require.Contains(t, answer, "600 messages left of the month's quota")
	require.Contains(t, answer, "over 19 days", "from the 13th of November to the 1st of December")

	c.quotas, c.blind = nil, context.DeadlineExceeded
	require.Contains(t, dryRun(contacts), `"quota":{"known":false}`)
	status, answer = start(contacts, "")
	require.Equal(t, http.StatusOK, status, answer)
	require.Contains(t, answer, `"quota":{"known":false}`, "what cannot be seen refuses nothing, and is said")

	c.blind = nil
	id := filled()
	require.NotContains(t, dryRun(id), `"quota"`)
	status, answer = start(id, "")
	require.Equal(t, http.StatusOK, status, answer)
	require.NotContains(t, answer, `"quota"`)
}

// TestBlastRoutes takes a blast through its life over HTTP, each request and
// answer held against the contract.
func TestBlastRoutes(t *testing.T) {
	t.Parallel()
	c := newCampaigns(t)
	const draft = `{"name":"Spring","template_id":"news","variables":{"season":"spring"},"idempotency_key":"spring-1"}`
	id := c.create(draft)
	upload := ids.New().String()

	t.Run("MakesADraftOnce", func(t *testing.T) {
		require.Equal(t, id, c.create(draft))
		status, answer := c.call("acme", http.MethodPost, blastsRoute, blastsRoute, strings.Replace(draft, "Spring", "Autumn", 1))
		require.Equal(t, "422 idempotency_key_mismatch", fmt.Sprint(status, " ", codeOf(answer)))
		status, answer = c.call("acme", http.MethodPatch, blastRoute, at(id), `{"name":"Spring sale"}`)
		require.Equal(t, http.StatusOK, status, answer)
		require.Contains(t, answer, `"name":"Spring sale"`)
	})
	t.Run("TakesRecipients", func(t *testing.T) {
		status, answer := c.send("acme", http.MethodPost, blastRoute+"/recipients", at(id)+"/recipients?upload_id="+upload, csvOf(1_200)+"nobody;x\n", "text/csv; charset=utf-8")
		require.Equal(t, http.StatusOK, status, answer)
		require.Contains(t, answer, `"taken":1200`)
		require.Contains(t, answer, `"reasons":{"unknown_contact":1}`)
		status, answer = c.call("looker", http.MethodGet, blastRoute+"/uploads/{upload_id}", at(id)+"/uploads/"+upload, "")
		require.Equal(t, http.StatusOK, status, answer)
		require.Contains(t, answer, `"bad_rows":[{"row":1202,"column":"external_id","reason":"unknown_contact"}]`)
		require.NotContains(t, answer, "nobody")
		status, answer = c.send("acme", http.MethodPost, blastRoute+"/recipients", at(id)+"/recipients?upload_id="+ids.New().String(), "external_id,n\nc-1,Le\xf3n\n", "text/csv")
		require.Equal(t, "422 not_utf8", fmt.Sprint(status, " ", codeOf(answer)))
		require.Contains(t, answer, `"row":2`)
		for _, bad := range []struct{ query, kind, want string }{
			{"", "text/csv", "400 invalid_parameter"}, {"upload_id=" + upload + "&delimiter=x", "text/csv", "400 invalid_parameter"}, {"upload_id=" + upload + "&columns=[]", "text/csv", "400 invalid_parameter"},
			{"upload_id=" + upload + "&delimiter=", "text/csv", "400 invalid_parameter"}, {"upload_id=" + upload + "&columns=", "text/csv", "400 invalid_parameter"}, {"upload_id=", "text/csv", "400 invalid_parameter"},
			{"upload_id=" + upload, "application/json", "415 unsupported_media_type"}, {"upload_id=" + upload, "text/csv; charset=windows-1252", "415 unsupported_media_type"},
		} {
			status, answer := c.send("acme", http.MethodPost, blastRoute+"/recipients", at(id)+"/recipients?"+bad.query, "email\n", bad.kind)
			require.Equal(t, bad.want, fmt.Sprint(status, " ", codeOf(answer)), bad.query)
		}
	})
	t.Run("ListsBadRowsPageByPage", func(t *testing.T) {
		other := ids.New().String()
		status, answer := c.send("acme", http.MethodPost, blastRoute+"/recipients", at(id)+"/recipients?upload_id="+other, "email\n"+strings.Repeat("x@example.com\n", 5), "text/csv")
		require.Equal(t, http.StatusOK, status, answer)
		var rows []int64
		for cursor, pages := "", 0; pages < 5; pages++ {
			_, answer := c.call("acme", http.MethodGet, blastRoute+"/uploads/{upload_id}", at(id)+"/uploads/"+other+"?limit=2"+cursor, "")
			var page struct {
				Rows []struct{ Row int64 } `json:"bad_rows"`
				Next string                `json:"next_cursor"`
			}
			require.NoError(t, json.Unmarshal([]byte(answer), &page))
			for _, r := range page.Rows {
				rows = append(rows, r.Row)
			}
			if page.Next == "" {
				break
			}
			cursor = "&cursor=" + page.Next
			status, answer = c.call("acme", http.MethodGet, blastRoute+"/uploads/{upload_id}", at(id)+"/uploads/"+upload+"?limit=2"+cursor, "")
			require.Equal(t, "400 invalid_cursor", fmt.Sprint(status, " ", codeOf(answer)), "a cursor of another upload")
		}
		require.Equal(t, []int64{2, 3, 4, 5, 6}, rows)
	})
	t.Run("ShowsWhatItWouldBe", func(t *testing.T) {
		status, answer := c.call("looker", http.MethodPost, blastRoute+"/preview", at(id)+"/preview", `{"address":"P7@example.com"}`)
		require.Equal(t, http.StatusOK, status, answer)
		require.JSONEq(t, `{"subject":"News for Name 7","html":"<p>spring</p>","text":""}`, answer)
		status, answer = c.call("acme", http.MethodPost, blastRoute+"/preview", at(id)+"/preview", "")
		require.Equal(t, "422 missing_variable", fmt.Sprint(status, " ", codeOf(answer)))
		status, answer = c.call("acme", http.MethodPost, blastRoute+"/preview", at(id)+"/preview", `{"address":"stranger@example.com"}`)
		require.Equal(t, "422 unknown_recipient", fmt.Sprint(status, " ", codeOf(answer)))
		c.exec(`INSERT INTO messaging.suppressions (tenant_id, channel, address, reason) VALUES ($1, 'email', 'p5@example.com', 'complaint')`, c.acme)
		c.exec(`INSERT INTO messaging.senders (tenant_id, channel, sender) VALUES ($1, 'email', 'acme@example.com')`, c.acme)
		status, answer = c.call("looker", http.MethodPost, blastRoute+"/dry-run", at(id)+"/dry-run", "")
		require.Equal(t, http.StatusOK, status, answer)
		for _, want := range []string{`"recipients":1200`, `"complete":true`, `"sendable":1198`, `"without_consent":1`, `"suppressed":1`, `"requests":12`, `"seconds":3`, `"render_failed":{}`} {
			require.Contains(t, answer, want)
		}
	})
	t.Run("SendsATestThatIsNoPartOfIt", func(t *testing.T) {
		status, answer := c.call("acme", http.MethodPost, blastRoute+"/test", at(id)+"/test", `{"external_id":"c-9","variables":{"name":"Ana"}}`)
		require.Equal(t, http.StatusAccepted, status, answer)
		var payload string
		require.NoError(t, c.pool.QueryRow(t.Context(), `SELECT payload::text FROM messaging.marketing_queue WHERE tenant_id = $1`, c.acme).Scan(&payload))
		require.Contains(t, payload, "[Test] News for Ana")
		require.NotContains(t, payload, "blast_id")
		status, answer = c.call("acme", http.MethodPost, blastRoute+"/test", at(id)+"/test", `{"address":"stranger@example.com","variables":{"name":"Ana"}}`)
		require.Equal(t, "422 unknown_contact", fmt.Sprint(status, " ", codeOf(answer)))
	})
	t.Run("StartsPausesResumesAndIsCancelled", func(t *testing.T) {
		step := func(what, body string) string {
			t.Helper()
			status, answer := c.call("acme", http.MethodPost, blastRoute+"/"+what, at(id)+"/"+what, body)
			if status >= 400 {
				return codeOf(answer)
			}
			var b struct{ State string }
			require.NoError(t, json.Unmarshal([]byte(answer), &b))
			return b.State
		}
		require.Equal(t, "cannot_pause", step("pause", ""))
		require.Equal(t, "sender_unverified", step("start", ""))
		c.exec(`UPDATE messaging.senders SET verified = true WHERE tenant_id = $1`, c.acme)
		require.Equal(t, "invalid_field", step("start", `{"start_at":"soon"}`))
		soon := time.Now().Add(time.Hour).In(time.FixedZone("", -5*3600))
		require.Equal(t, "scheduled", step("start", `{"start_at":"`+soon.Format(time.RFC3339Nano)+`"}`))
		require.Equal(t, "scheduled", step("start", `{"start_at":"`+soon.UTC().Format(time.RFC3339Nano)+`"}`), "the same time")
		require.Equal(t, "already_started", step("start", `{"start_at":"`+soon.Add(time.Hour).Format(time.RFC3339Nano)+`"}`))
		require.Equal(t, "scheduled", step("start", ""), "to start again changes nothing")
		require.Equal(t, "paused", step("pause", ""))
		require.Equal(t, "scheduled", step("resume", ""))
		c.exec(`UPDATE messaging.blasts SET start_at = now() WHERE blast_id = $1`, id)
		_, err := blast.New(blast.Config{}, c.pool).Due(t.Context(), "email")
		require.NoError(t, err)
		require.Equal(t, "running", step("resume", ""))
		status, answer := c.call("acme", http.MethodPatch, blastRoute, at(id), `{"name":"late"}`)
		require.Equal(t, "409 not_a_draft", fmt.Sprint(status, " ", codeOf(answer)))
		for _, wrong := range []string{`{"template_id":"a b"}`, `{"template_version":0}`, `{"audience":{"type":"contacts","traits":[]}}`, `{"variables":[]}`} {
			status, answer = c.call("acme", http.MethodPatch, blastRoute, at(id), wrong)
			require.Equal(t, "422 invalid_field", fmt.Sprint(status, " ", codeOf(answer)), wrong)
		}
		require.Equal(t, "paused", step("pause", ""))
		require.Equal(t, "cancelled", step("cancel", ""))
		require.Equal(t, "cancelled", step("cancel", ""))
		require.Equal(t, "cannot_resume", step("resume", ""))
		require.Equal(t, "cannot_start", step("start", ""))
		_, answer = c.call("looker", http.MethodGet, blastRoute, at(id), "")
		require.Contains(t, answer, `"cancelled":1200,"needs_review":0,"dead":0,"pending":0`)
		status, answer = c.call("looker", http.MethodGet, blastRoute+"/report", at(id)+"/report", "")
		require.Equal(t, http.StatusOK, status, answer)
		require.Contains(t, answer, `"reasons":{"cancelled":{"by_hand":1200}}`)
	})
	t.Run("IsAnotherTenantsNotFound", func(t *testing.T) { // bad input 47
		for _, x := range []struct{ method, route, body string }{{http.MethodGet, "", ""}, {http.MethodPatch, "", `{"name":"mine"}`}, {http.MethodPost, "/preview", "{}"}, {http.MethodPost, "/test", "{}"},
			{http.MethodPost, "/dry-run", ""}, {http.MethodPost, "/start", ""}, {http.MethodPost, "/pause", ""}, {http.MethodPost, "/resume", ""}, {http.MethodPost, "/cancel", ""}, {http.MethodGet, "/report", ""}} {
			status, foreign := c.call("other", x.method, blastRoute+x.route, at(id)+x.route, x.body)
			require.Equal(t, http.StatusNotFound, status, x.method+x.route)
			_, absent := c.call("other", x.method, blastRoute+x.route, at(ids.New().String())+x.route, x.body)
			require.Equal(t, same(absent), same(foreign))
		}
		status, foreign := c.send("other", http.MethodPost, blastRoute+"/recipients", at(id)+"/recipients?upload_id="+upload, "email\n", "text/csv")
		require.Equal(t, http.StatusNotFound, status, foreign)
		status, _ = c.call("other", http.MethodGet, blastRoute+"/uploads/{upload_id}", at(id)+"/uploads/"+upload, "")
		require.Equal(t, http.StatusNotFound, status)
		_, list := c.call("other", http.MethodGet, blastsRoute, blastsRoute, "")
		require.JSONEq(t, `{"blasts":[]}`, list)
		status, _ = c.call("looker", http.MethodPost, blastRoute+"/cancel", at(id)+"/cancel", "")
		require.Equal(t, http.StatusForbidden, status)
		status, _ = c.call("writer", http.MethodGet, blastRoute, at(id), "")
		require.Equal(t, http.StatusForbidden, status)
	})
	t.Run("RefusesWhatIsNoBlast", func(t *testing.T) {
		for _, x := range []struct{ body, want string }{
			{`{"template_id":"news"}`, "422 missing_field"}, {`{"name":"x"}`, "422 missing_field"}, {`{"name":"x","template_id":"none"}`, "422 unknown_template"},
			{`{"name":" ","template_id":"news"}`, "422 invalid_field"}, {`{"name":"two\nlines","template_id":"news"}`, "422 invalid_field"}, {`{"name":"x","template_id":"news","channel":"fax"}`, "422 unknown_channel"},
			{`{"name":"x","template_id":"news","template_version":9}`, "422 unknown_template"}, {`{"name":"x","template_id":"news","audience":{"type":"all"}}`, "422 invalid_field"},
			{`{"name":"x","template_id":"news","audience":{"type":"upload","traits":{}}}`, "422 invalid_field"}, {`{"name":"x","template_id":"news","variables":[]}`, "422 invalid_field"},
			{`{"name":"x","template_id":"news","idempotency_key":"a\u0001"}`, "422 invalid_idempotency_key"}, {`{"name":"x","template_id":"news","state":"running"}`, "400 unknown_field"},
		} {
			status, answer := c.call("acme", http.MethodPost, blastsRoute, blastsRoute, x.body)
			require.Equal(t, x.want, fmt.Sprint(status, " ", codeOf(answer)), x.body)
		}
	})
	t.Run("IsListedPageByPage", func(t *testing.T) {
		var made []string
		for i := range 4 {
			made = append([]string{c.create(fmt.Sprintf(`{"name":"b%d","template_id":"news","audience":{"type":"contacts","traits":{"tier":"gold"}}}`, i))}, made...)
		}
		var listed []string
		for cursor, pages := "", 0; pages < 5; pages++ {
			status, answer := c.call("looker", http.MethodGet, blastsRoute, blastsRoute+"?state=draft&limit=3"+cursor, "")
			require.Equal(t, http.StatusOK, status, answer)
			var page struct {
				Blasts []struct {
					ID string `json:"blast_id"`
				}
				Next string `json:"next_cursor"`
			}
			require.NoError(t, json.Unmarshal([]byte(answer), &page))
			for _, b := range page.Blasts {
				listed = append(listed, b.ID)
			}
			if page.Next == "" {
				break
			}
			status, answer = c.call("looker", http.MethodGet, blastsRoute, blastsRoute+"?state=running&cursor="+page.Next, "")
			require.Equal(t, "400 invalid_cursor", fmt.Sprint(status, " ", codeOf(answer)))
			cursor = "&cursor=" + page.Next
		}
		require.Equal(t, made, listed)
		status, answer := c.call("looker", http.MethodGet, blastsRoute, blastsRoute+"?state=lost", "")
		require.Equal(t, "400 invalid_parameter", fmt.Sprint(status, " ", codeOf(answer)))
	})
}

// A file that takes longer than any request may is taken whole, and a client
// that breaks off goes on where it was.
func TestUploadOverASlowConnection(t *testing.T) {
	t.Parallel()
	c := newCampaigns(t)
	id, upload := c.create(`{"name":"Slow","template_id":"news"}`), ids.New().String()
	// Far below what the file takes: 12 waits of 200 ms.
	s, err := httpserver.New(httpserver.Config{Addr: "127.0.0.1:0", ReadTimeout: time.Second, WriteTimeout: time.Second}, c.front, nil)
	require.NoError(t, err)
	addr, err := s.Start(t.Context())
	require.NoError(t, err)
	t.Cleanup(func() { _ = s.Stop(context.Background()) })
	target := "http://" + addr + at(id) + "/recipients?upload_id=" + upload

	body := csvOf(1_500)
	conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", addr)
	require.NoError(t, err)
	_, err = fmt.Fprintf(conn, "POST %s/recipients?upload_id=%s HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer acme\r\nContent-Type: text/csv\r\nContent-Length: %d\r\n\r\n%s", at(id), upload, len(body), body[:len(body)*4/5])
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		var n int
		_ = c.pool.QueryRow(t.Context(), `SELECT rows_read FROM messaging.blast_uploads WHERE upload_id = $1`, upload).Scan(&n)
		return n == 1_000
	}, time.Minute, 10*time.Millisecond, "a chunk is taken while the file still comes")
	require.NoError(t, conn.Close())

	slow := io.MultiReader()
	for part := range bytesOf([]byte(body), 12) {
		slow = io.MultiReader(slow, pause{}, bytes.NewReader(part))
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, target, slow)
	require.NoError(t, err)
	req.Header.Set("Authorization", "Bearer acme")
	req.Header.Set("Content-Type", "text/csv")
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	res, err := client.Do(req)
	require.NoError(t, err)
	defer res.Body.Close()
	answer, err := io.ReadAll(res.Body)
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, res.StatusCode, string(answer))
	require.Contains(t, string(answer), `"rows_read":1500,"taken":1500,"duplicates":0`)
}

// pause stands in a body for a while in which nothing comes.
type pause struct{}

func (pause) Read([]byte) (int, error) {
	time.Sleep(200 * time.Millisecond) // the slowness that is tested, not a wait for something
	return 0, io.EOF
}

// bytesOf cuts b into n parts.
func bytesOf(b []byte, n int) func(func([]byte) bool) {
	return func(yield func([]byte) bool) {
		for i := range n {
			if !yield(b[i*len(b)/n : (i+1)*len(b)/n]) {
				return
			}
		}
	}
}
