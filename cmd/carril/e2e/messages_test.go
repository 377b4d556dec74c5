package e2e

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// ask sends a request for one transactional message and records the id of its
// 202 under "message/" and its key. It gives the status, 0 when there was no
// answer.
func ask(api, key, idem, address string, l *ledger) int {
	body := fmt.Sprintf(`{"idempotency_key":%q,"channel":"email","category":"transactional","recipients":[{"address":%q}],
		"template_id":"receipt","variables":{"properties":{"invoice":%q}}}`, idem, address, idem)
	req, err := http.NewRequest(http.MethodPost, api+"/v1/messaging/messages", strings.NewReader(body))
	if err != nil {
		return 0
	}
	req.Header.Set("Authorization", "Bearer "+key)
	req.Header.Set("Content-Type", "application/json")
	resp, err := client.Do(req)
	if err != nil {
		return 0
	}
	defer resp.Body.Close()
	b, _ := io.ReadAll(resp.Body) // a part of an answer is none
	var answer struct {
		RequestID string `json:"request_id"`
	}
	if resp.StatusCode == http.StatusAccepted {
		if json.Unmarshal(b, &answer) != nil || answer.RequestID == "" {
			return 0
		}
		l.record("message/"+idem, answer.RequestID)
	}
	return resp.StatusCode
}

// TestMessagesOfTheAPI asks for messages through two doors at once, and tracks
// events under the same keys.
func TestMessagesOfTheAPI(t *testing.T) {
	c := newCluster(t)
	start(t, c.env, "maintain")
	start(t, c.env, "process")
	start(t, c.env, "dispatch")
	doors := []*process{c.ingest(0), c.ingest(1)}
	l, at := newLedger(), time.Now()
	const sends = `SELECT count(*) FROM messaging.sends WHERE requested_at > '-infinity'`
	const delivered = `SELECT count(DISTINCT send_id) FROM messaging.send_status_history WHERE requested_at > '-infinity' AND status = 'delivered'`

	t.Run("OneKeyTwentyTimesThroughTwoDoorsIsOneMessage", func(t *testing.T) { // I2
		var wg sync.WaitGroup
		for i := range 20 {
			wg.Go(func() {
				if status := insist(func() int { return ask("http://"+c.apis[i%2], c.key, "invoice-889", "ana@example.com", l) }); status != 202 {
					t.Errorf("attempt %d: status %d", i, status)
				}
			})
		}
		wg.Wait()
		require.Empty(t, l.bad)
		c.db.await(1, time.Minute, delivered)
		// A retry that comes when all is done, so with another received_at for sure.
		require.Equal(t, 202, insist(func() int { return ask("http://"+c.apis[1], c.key, "invoice-889", "ana@example.com", l) }))
		require.Equal(t, 202, insist(func() int { return ask("http://"+c.apis[0], c.key, "fence", "luis@example.com", l) })) // behind the retry in its partition
		c.db.await(2, time.Minute, delivered)
		require.Equal(t, 2, c.db.count(sends))
		require.Equal(t, 2, c.sent())
		require.Empty(t, l.bad)
	})
	t.Run("AnEventAndAMessageUnderOneKeyBothExist", func(t *testing.T) { // I33, both orders
		api := "http://" + c.apis[0]
		require.Equal(t, 202, insist(func() int { return post(api, c.key, "invoice-889", "ana@example.com", at, l) }))
		require.Equal(t, 202, insist(func() int { return post(api, c.key, "invoice-890", "ana@example.com", at, l) }))
		c.db.await(2, time.Minute, `SELECT count(*) FROM core.points_ledger`)
		require.Equal(t, 202, insist(func() int { return ask(api, c.key, "invoice-890", "ana@example.com", l) }))
		c.db.await(5, time.Minute, delivered)
		require.NotEqual(t, l.ids["invoice-889"], l.ids["message/invoice-889"])
		require.NotEqual(t, l.ids["invoice-890"], l.ids["message/invoice-890"])
		require.Equal(t, 2, c.db.count(`SELECT count(*) FROM core.tracked_events WHERE occurred_at > '-infinity' AND event_name = 'invoice.paid'
			AND idempotency_key IN ('invoice-889', 'invoice-890')`))
		require.Equal(t, 5, c.db.count(sends))
		require.Equal(t, 5, c.sent())
	})
	t.Run("EverySendNamesWhatCausedIt", func(t *testing.T) { // FS-MSG-0003 AC2
		require.Equal(t, 5, c.db.count(sends+` AND correlation_id <> '' AND origin_event_id IS NOT NULL`))
		require.Equal(t, 5, c.db.count(`SELECT count(*) FROM messaging.sends s JOIN core.tracked_events e
			ON e.occurred_at > '-infinity' AND e.tenant_id = s.tenant_id AND e.event_id = s.origin_event_id AND e.correlation_id = s.correlation_id
			WHERE s.requested_at > '-infinity'`))
		require.Equal(t, 3, c.db.count(`SELECT count(*) FROM core.tracked_events WHERE occurred_at > '-infinity' AND event_name = 'messaging.message.requested'`))
		require.Equal(t, 1, c.db.count(sends+` AND request_id = $1 AND correlation_id = $1::text`, l.ids["message/invoice-889"]))
		require.Zero(t, c.db.count(`SELECT count(*) FROM core.dead_letters`))
	})
	t.Run("TheAPIShowsThem", func(t *testing.T) {
		var page struct {
			Sends []struct {
				SendID string `json:"send_id"`
				Origin string `json:"origin_event_id"`
				Status string `json:"status"`
			} `json:"sends"`
			Next string `json:"next_cursor"`
		}
		query := fmt.Sprintf("?from=%s&to=%s&limit=3", at.Add(-time.Hour).UTC().Format(time.RFC3339), at.Add(time.Hour).UTC().Format(time.RFC3339))
		c.get(0, "/v1/messaging/sends"+query, &page)
		require.Len(t, page.Sends, 3)
		require.Equal(t, "delivered", page.Sends[0].Status)
		first := page.Sends[0]
		page.Sends = nil
		c.get(1, "/v1/messaging/sends"+query+"&cursor="+page.Next, &page) // the other door reads its cursor
		require.Len(t, page.Sends, 2)
		var trace struct {
			Sends []struct {
				SendID string `json:"send_id"`
				Status string `json:"status"`
			} `json:"sends"`
		}
		c.get(0, "/v1/messaging/trace?origin_event_id="+first.Origin, &trace) // FS-MSG-0003 AC7
		require.Len(t, trace.Sends, 1)
		require.Equal(t, first.SendID, trace.Sends[0].SendID)
		require.Equal(t, "delivered", trace.Sends[0].Status)
	})
	t.Run("RequestsAreCountedByRoute", func(t *testing.T) {
		resp, err := client.Get(doors[0].Ops + "/metrics")
		require.NoError(t, err)
		defer resp.Body.Close()
		b, err := io.ReadAll(resp.Body)
		require.NoError(t, err)
		require.Contains(t, string(b), `carril_http_requests_total{code="202",route="/v1/messaging/messages"}`)
		require.Contains(t, string(b), `carril_ingest_message_requests_accepted_total{category="transactional"}`)
	})
}

// get reads JSON from one of the doors with the tenant's key.
func (c *cluster) get(door int, target string, into any) {
	c.t.Helper()
	req, err := http.NewRequestWithContext(c.t.Context(), http.MethodGet, "http://"+c.apis[door]+target, nil)
	require.NoError(c.t, err)
	req.Header.Set("Authorization", "Bearer "+c.key)
	resp, err := client.Do(req)
	require.NoError(c.t, err)
	defer resp.Body.Close()
	require.Equal(c.t, http.StatusOK, resp.StatusCode, target)
	require.NoError(c.t, json.NewDecoder(resp.Body).Decode(into))
}
