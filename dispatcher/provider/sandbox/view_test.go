package sandbox_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/softcrum/carril/dispatcher/provider/sandbox"
	"github.com/softcrum/carril/internal/signature"
)

func TestViews(t *testing.T) {
	t.Parallel()

	t.Run("PageReceiptsAndRequestsByNumber", func(t *testing.T) {
		t.Parallel()
		s := start(t, sandbox.Config{Rate: many, MaxReceipts: 4, MaxRequests: 4}, sandbox.Deps{})
		for i := range 6 {
			call(t, s, "POST", "/emails", email(fmt.Sprintf("a%d@example.com", i)))
		}
		for _, c := range []struct {
			since, first, next, gone uint64
			n                        int
		}{{0, 3, 6, 2, 4}, {1, 3, 6, 1, 4}, {2, 3, 6, 0, 4}, {5, 6, 6, 0, 1}, {6, 0, 6, 0, 0}, {99, 0, 99, 0, 0}} {
			for _, view := range []string{"receipts", "requests"} {
				var got struct {
					Entries    []struct{ Seq uint64 }
					Next, Gone uint64
					Counters   sandbox.Counters
				}
				reply := call(t, s, "GET", fmt.Sprintf("/sandbox/%s?since=%d", view, c.since), "")
				require.NoError(t, json.Unmarshal([]byte(reply.body), &got))
				require.Len(t, got.Entries, c.n, c)
				require.Equal(t, []uint64{c.next, c.gone}, []uint64{got.Next, got.Gone}, c)
				require.EqualValues(t, 6, got.Counters.Accepted)
				for i, e := range got.Entries {
					require.Equal(t, c.first+uint64(i), e.Seq)
				}
			}
		}
		require.Equal(t, 400, call(t, s, "GET", "/sandbox/receipts?since=x", "").status)
		require.Contains(t, call(t, s, "GET", "/sandbox/counters", "").body, `"accepted":6`)
	})

	t.Run("GiveAReceiptAllThatALedgerNeeds", func(t *testing.T) {
		t.Parallel()
		s := start(t, sandbox.Config{}, sandbox.Deps{})
		call(t, s, "POST", "/emails", email("a@example.com"), "Idempotency-Key", "key-1")
		body := call(t, s, "GET", "/sandbox/receipts", "").body
		for _, want := range []string{
			`"key":"key-1"`, `"tenant_id":"t1"`, `"send_id":"s-a_example_com"`, `"to":"a@example.com"`, `"body_sha256":"`, `"at":"`, `"answer":"200"`,
		} {
			require.Contains(t, body, want)
		}
	})

	t.Run("ShowMessagesWithoutRunningThem", func(t *testing.T) {
		t.Parallel()
		s := start(t, sandbox.Config{}, sandbox.Deps{})
		require.Contains(t, call(t, s, "GET", "/", "").body, "No message yet.")
		sent := call(t, s, "POST", "/emails", `{"from":"a@example.com","to":"b@example.com","subject":"<script>alert(1)</script>",
			"html":"<img src=x onerror=alert(2)>\"><script>alert(3)</script>","text":"</pre><script>alert(4)</script>","headers":{"X-<b>":"<i>"}}`)
		require.Equal(t, 200, sent.status, sent.body)
		index := call(t, s, "GET", "/", "")
		id := ids(t, sent.body)[0]
		message := call(t, s, "GET", "/sandbox/messages/"+id+"?view=html", "")
		for _, page := range []reply{index, message} {
			require.Equal(t, 200, page.status)
			require.NotContains(t, page.body, "<script")
			require.NotContains(t, page.body, "<img")
			require.Contains(t, page.header.Get("Content-Security-Policy"), "default-src 'none'")
		}
		require.Contains(t, index.body, "b@example.com")
		require.Contains(t, message.body, "<iframe sandbox srcdoc=")
		raw := call(t, s, "GET", "/sandbox/messages/"+id, "")
		var content sandbox.Content
		require.NoError(t, json.Unmarshal([]byte(raw.body), &content))
		require.Equal(t, "<script>alert(1)</script>", content.Subject)
		require.Equal(t, 404, call(t, s, "GET", "/sandbox/messages/none", "").status)
	})
}

func TestConfig(t *testing.T) {
	t.Parallel()

	t.Run("RefusesImpossibleValues", func(t *testing.T) {
		t.Parallel() // bad-inputs rows 82 and 83
		secret := signature.NewSecret()
		for want, cfg := range map[string]sandbox.Config{
			"rate is not":               {Rate: -1},
			"window is not":             {Window: -1},
			"daily_quota":               {DailyQuota: -1},
			"latency":                   {Latency: -time.Second},
			"max_receipts":              {MaxReceipts: -1},
			"webhook.speed":             {Webhook: sandbox.WebhookConfig{Speed: -1}},
			"webhook.workers":           {Webhook: sandbox.WebhookConfig{Workers: -1}},
			"addr is not HOST:PORT":     {Addr: "127.0.0.1"},
			"addr is not loopback":      {Addr: "0.0.0.0:0"},
			"and remote access was not": {Addr: ":0"},
			"addr is not loopback, and": {Addr: "sandbox.example.com:80"},
			"webhook.url needs":         {Webhook: sandbox.WebhookConfig{URL: "http://127.0.0.1:1"}},
			"webhook.url is not":        {Webhook: sandbox.WebhookConfig{URL: "file:///x", Secrets: []signature.Secret{secret}}},
			"webhook.secrets holds":     {Webhook: sandbox.WebhookConfig{URL: "http://127.0.0.1:1", Secrets: []signature.Secret{{}}}},
		} {
			_, err := sandbox.New(cfg, sandbox.Deps{})
			require.ErrorContains(t, err, want)
		}
		_, err := sandbox.New(sandbox.Config{Addr: "0.0.0.0:0", AllowRemote: true}, sandbox.Deps{})
		require.NoError(t, err)
	})
}

func TestLifecycle(t *testing.T) {
	t.Parallel()

	t.Run("FailsToStartWhereTheAddressIsTaken", func(t *testing.T) {
		t.Parallel()
		first := start(t, sandbox.Config{}, sandbox.Deps{})
		second, err := sandbox.New(sandbox.Config{Addr: strings.TrimPrefix(first.URL(), "http://")}, sandbox.Deps{})
		require.NoError(t, err)
		require.ErrorContains(t, second.Start(t.Context()), "start the sandbox")
		stop(t, second) // that never ran
	})

	t.Run("StartsOnce", func(t *testing.T) {
		t.Parallel()
		s := start(t, sandbox.Config{}, sandbox.Deps{})
		require.Error(t, s.Start(t.Context()))
	})
}
