package e2e

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// call asks the API for something and gives the status and the answer.
func (p *process) call(method, path, body string) (int, map[string]any) {
	p.t.Helper()
	req, err := http.NewRequest(method, p.API+path, strings.NewReader(body))
	require.NoError(p.t, err)
	req.Header.Set("Authorization", "Bearer "+p.Key)
	req.Header.Set("Content-Type", "application/json")
	resp, err := client.Do(req)
	require.NoError(p.t, err)
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	require.NoError(p.t, err)
	var answer map[string]any
	if len(b) > 0 {
		require.NoError(p.t, json.Unmarshal(b, &answer), string(b))
	}
	return resp.StatusCode, answer
}

// listed waits until a list has so many rows, and gives them.
func (p *process) listed(n int, path, array string, filters ...string) []any {
	p.t.Helper()
	v := url.Values{"from": {time.Now().Add(-time.Hour).UTC().Format(time.RFC3339)}, "to": {time.Now().Add(time.Hour).UTC().Format(time.RFC3339)}}
	for i := 0; i < len(filters); i += 2 {
		v.Set(filters[i], filters[i+1])
	}
	var rows []any
	eventually(p.t, time.Minute, func() bool {
		status, answer := p.call(http.MethodGet, path+"?"+v.Encode(), "")
		require.Equal(p.t, http.StatusOK, status, answer)
		rows = answer[array].([]any)
		return len(rows) >= n
	}, func() string { return fmt.Sprintf("%d of %d in %s", len(rows), n, path) })
	require.Len(p.t, rows, n)
	return rows
}

// TestAfterThe202 is what a caller sees of what it sent, over HTTP alone.
func TestAfterThe202(t *testing.T) {
	t.Parallel()
	p := startDev(t, dataFolder(t))
	event := func(key, name, properties string) string {
		return fmt.Sprintf(`{"event_name":%q,"idempotency_key":%q,"occurred_at":%q,"identifiers":{"external_id":"c-1"},"properties":%s}`,
			name, key, time.Now().UTC().Format(time.RFC3339Nano), properties)
	}
	track := func(body string) string {
		t.Helper()
		var answer map[string]any
		require.Equal(t, http.StatusAccepted, insist(func() (status int) {
			status, answer = p.call(http.MethodPost, "/v1/core/track", body)
			return status
		}), answer)
		return answer["event_id"].(string)
	}
	t.Run("AnEventIsStoredAsItWasSent", func(t *testing.T) {
		id := track(event("stored", "a.b", `{"n":9007199254740993,"m":1.10}`))
		var answer map[string]any
		eventually(t, time.Minute, func() bool {
			var status int
			status, answer = p.call(http.MethodGet, "/v1/core/events/"+id, "")
			return status == http.StatusOK
		}, func() string { return "the event " + id })
		require.Equal(t, "stored", answer["status"])
		require.Equal(t, "stored", answer["event"].(map[string]any)["idempotency_key"])
		p.listed(1, "/v1/core/events", "events", "event_name", "a.b")
	})
	t.Run("AnotherBodyUnderAUsedKeyIsShownAndHasNoEffect", func(t *testing.T) { // bad inputs 25
		id := track(event("used", "conflict.made", `{"n":1}`))
		require.Equal(t, id, track(event("used", "conflict.made", `{"n":2}`)))
		message := func(text string) string {
			status, answer := p.call(http.MethodPost, "/v1/messaging/messages", fmt.Sprintf(
				`{"idempotency_key":"used","channel":"email","category":"transactional","recipients":[{"address":"ana@example.com"}],"content":{"subject":"s","text":%q}}`, text))
			require.Equal(t, http.StatusAccepted, status, answer)
			return answer["request_id"].(string)
		}
		request := message("one")
		require.Equal(t, request, message("two"))
		ids := map[any]any{}
		for _, row := range p.listed(2, "/v1/core/idempotency-conflicts", "conflicts") {
			c := row.(map[string]any)
			ids[c["kind"]] = c["event_id"]
			if c["kind"] == "message" {
				ids[c["kind"]] = c["request_id"]
			}
		}
		require.Equal(t, map[any]any{"event": id, "message": request}, ids)
		p.listed(2, "/v1/core/warnings", "warnings", "kind", "idempotency_conflict")
		p.listed(1, "/v1/core/events", "events", "event_name", "conflict.made")
		p.listed(1, "/v1/messaging/sends", "sends")
	})
	t.Run("AnInstalledSchemaHoldsFromItsAnswerOn", func(t *testing.T) { // FS-CORE-0006 §8
		put := func(mode string) {
			status, answer := p.call(http.MethodPut, "/v1/core/taxonomy/order.placed", `{"mode":"`+mode+`","schema":{"required":["total"]}}`)
			require.Equal(t, http.StatusOK, status, answer)
		}
		put("enforce")
		status, answer := p.call(http.MethodPost, "/v1/core/track", event("bad-1", "order.placed", `{}`))
		require.Equal(t, http.StatusUnprocessableEntity, status)
		require.Equal(t, "taxonomy_violation", answer["code"])
		require.Equal(t, "/properties/total", answer["pointer"])
		put("observe")
		id := track(event("bad-2", "order.placed", `{}`))
		warning := p.listed(1, "/v1/core/warnings", "warnings", "kind", "taxonomy_violation")[0].(map[string]any)
		require.Equal(t, id, warning["event_id"])
		require.InDelta(t, 2, warning["detail"].(map[string]any)["version"], 0)
		status, _ = p.call(http.MethodDelete, "/v1/core/taxonomy/order.placed", "")
		require.Equal(t, http.StatusNoContent, status)
		status, _ = p.call(http.MethodGet, "/v1/core/taxonomy/order.placed", "")
		require.Equal(t, http.StatusNotFound, status)
	})
}
