package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/klauspost/compress/zstd"
	"github.com/stretchr/testify/require"
)

// call sends JSON to a door and gives the answer.
func call(t *testing.T, method, target, key, body string) (int, map[string]any) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, target, strings.NewReader(body))
	require.NoError(t, err)
	req.Header.Set("Authorization", "Bearer "+key)
	req.Header.Set("Content-Type", "application/json")
	resp, err := client.Do(req)
	require.NoError(t, err)
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	answer := map[string]any{}
	if len(raw) > 0 {
		require.NoError(t, json.Unmarshal(raw, &answer), string(raw))
	}
	return resp.StatusCode, answer
}

// holding gives the columns of the database that hold a word, compressed or not.
func holding(t *testing.T, url, word string) (places []string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	conn, err := pgx.Connect(ctx, url)
	require.NoError(t, err)
	defer conn.Close(ctx)
	rows, err := conn.Query(ctx, `SELECT format('%I.%I', n.nspname, c.relname), quote_ident(a.attname), a.atttypid = 'bytea'::regtype FROM pg_class c
		JOIN pg_namespace n ON n.oid = c.relnamespace JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
		WHERE n.nspname IN ('core', 'messaging') AND c.relkind = 'r' ORDER BY 1, 2`)
	require.NoError(t, err)
	type column struct {
		Table, Name string
		Bytes       bool
	}
	columns, err := pgx.CollectRows(rows, pgx.RowToStructByPos[column])
	require.NoError(t, err)
	dec, err := zstd.NewReader(nil)
	require.NoError(t, err)
	defer dec.Close()
	for _, c := range columns {
		value := c.Name
		if !c.Bytes {
			value = "convert_to(" + c.Name + "::text, 'UTF8')"
		}
		rows, err := conn.Query(ctx, fmt.Sprintf(`SELECT %s FROM %s WHERE %s IS NOT NULL`, value, c.Table, c.Name))
		require.NoError(t, err)
		values, err := pgx.CollectRows(rows, pgx.RowTo[[]byte])
		var gone *pgconn.PgError
		if errors.As(err, &gone) && gone.Code == "42P01" { // a day that has served its time went meanwhile
			continue
		}
		require.NoError(t, err, c.Table)
		if slices.ContainsFunc(values, func(v []byte) bool {
			plain, _ := dec.DecodeAll(v, nil) // most are not compressed
			return strings.Contains(strings.ToLower(string(v)+string(plain)), word)
		}) {
			places = append(places, c.Table+"."+c.Name)
		}
	}
	return places
}

// TestErasedPersonIsNowhere leads a person through every role: events, a rule's
// message to the provider and back, a webhook that its endpoint refuses; and has
// them erased over HTTP.
func TestErasedPersonIsNowhere(t *testing.T) { // FS-MSG-0003 AC8, faults P16
	c := newCluster(t)
	var hooks atomic.Int64
	receiver := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(w, io.LimitReader(r.Body, 1<<10)) // what it answers is kept, too
		w.WriteHeader(http.StatusInternalServerError)
		hooks.Add(1)
	}))
	defer receiver.Close()
	all := start(t, c.env, "all", "--addr", c.apis[0])
	api := "http://" + c.apis[0]
	key := command(t, c.env, "key", "create", "--tenant", "acme", "--scopes", "core.events.write,core.contacts.read,core.contacts.erase,webhooks.manage,messaging.sends.read")
	status, _ := call(t, http.MethodPost, api+"/v1/webhooks/endpoints", key, fmt.Sprintf(`{"url":%q,"event_types":["core.event.tracked"]}`, receiver.URL))
	require.Equal(t, http.StatusCreated, status)

	now := time.Now().UTC().Format(time.RFC3339Nano)
	send := func(path, body string) {
		t.Helper()
		require.Equal(t, http.StatusAccepted, insist(func() int { status, _ := call(t, http.MethodPost, api+path, key, body); return status }))
	}
	send("/v1/core/identify", fmt.Sprintf(`{"idempotency_key":"i-canary","occurred_at":%q,
		"identifiers":{"external_id":"canary-1","email":"Canary@example.com","anonymous_id":"canary-d"},"traits":{"name":"Canary"}}`, now))
	send("/v1/core/track", fmt.Sprintf(`{"event_name":"invoice.paid","idempotency_key":"t-canary","occurred_at":%q,
		"identifiers":{"email":"canary@example.com"},"properties":{"invoice":"canary-889"}}`, now))
	c.db.await(1, 2*time.Minute, `SELECT count(DISTINCT send_id) FROM messaging.send_status_history WHERE requested_at > '-infinity' AND status = 'delivered'`)
	c.db.await(2, 2*time.Minute, `SELECT count(*) FROM core.webhook_deliveries WHERE created_at > '-infinity' AND attempts > 0`)
	_, found := call(t, http.MethodGet, api+"/v1/core/contacts?email=canary@example.com", key, "")
	contact := found["contacts"].([]any)[0].(map[string]any)["contact_id"].(string)
	_, points := call(t, http.MethodGet, api+"/v1/core/contacts/"+contact+"/points", key, "")
	require.EqualValues(t, 10, points["balance"])
	have := holding(t, c.db.url, "canary")
	require.Greater(t, len(have), 8, "the canary must be there first: %v", have)

	status, erasure := call(t, http.MethodDelete, api+"/v1/core/contacts/"+contact, key, "")
	require.Equal(t, http.StatusAccepted, status)
	id := erasure["erasure_id"].(string)
	eventually(t, 3*time.Minute, func() bool {
		_, e := call(t, http.MethodGet, api+"/v1/core/erasures/"+id, key, "")
		return fmt.Sprint(e["open"]) == "[outbox kafka contact_topic]"
	}, func() string { return "the erasure's stores" })
	nowhere := func() {
		t.Helper()
		for _, place := range holding(t, c.db.url, "canary") {
			require.Contains(t, place, "core.outbox_", "what was published goes with its day")
		}
	}
	nowhere()
	all.kill()
	start(t, c.env, "all", "--addr", c.apis[0])
	nowhere()
	require.Equal(t, 1, c.db.count(`SELECT count(*) FROM messaging.sends WHERE requested_at > '-infinity' AND content IS NULL AND address IS NULL`), "the row stays as a count")
	status, _ = call(t, http.MethodGet, api+"/v1/core/contacts/"+contact, key, "")
	require.Equal(t, http.StatusOK, status)

	out := command(t, c.env, "contact", "erase", "--tenant", "acme", contact)
	require.Contains(t, out, id, "the command shows the same erasure")
	require.Contains(t, command(t, c.env, "contact", "show", "--tenant", "acme", contact), `"erased_at"`)
}
