package e2e

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/softcrum/carril/dispatcher/provider/providertest"
)

// askText asks for one text message and gives the status.
func askText(t *testing.T, p *process, idem, to string) int {
	t.Helper()
	body := fmt.Sprintf(`{"idempotency_key":%q,"channel":"sms","category":"transactional","recipients":[{"address":%q}],"content":{"text":"Your code is 4711"}}`, idem, to)
	return insist(func() int { return statusOf(t, http.MethodPost, p.API+"/v1/messaging/messages", p.Key, body) })
}

// statusOf sends a request and gives its status.
func statusOf(t *testing.T, method, url, key, body string) int {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	require.NoError(t, err)
	req.Header.Set("Content-Type", "application/json")
	if key != "" {
		req.Header.Set("Authorization", "Bearer "+key)
	}
	resp, err := client.Do(req)
	require.NoError(t, err)
	defer resp.Body.Close()
	_, _ = io.Copy(io.Discard, resp.Body)
	return resp.StatusCode
}

// TestTextMessages goes once around with the second channel: message, provider,
// signed callback, status.
func TestTextMessages(t *testing.T) {
	t.Parallel()
	data := dataFolder(t)
	p := start(t, []string{"CARRIL_CHANNELS=email,sms"}, "dev", "--quiet", "--data", data, "--addr", "127.0.0.1:0")
	db := devDatabase(t, data)
	require.Equal(t, 202, askText(t, p, "code-1", "+50688881234"))
	require.Equal(t, 202, askText(t, p, "code-2", "+50688880002")) // there is no such handset
	require.Equal(t, 202, askText(t, p, "code-3", "+50688880004")) // its owner said stop
	const status = `SELECT count(*) FROM messaging.send_status_history h JOIN messaging.sends s ON s.requested_at = h.requested_at AND s.send_id = h.send_id
		WHERE h.requested_at > now() - interval '1 day' AND s.requested_at > now() - interval '1 day' AND s.address = $1 AND h.status = $2`
	for _, c := range []struct{ to, status string }{{"+50688881234", "sent"}, {"+50688881234", "delivered"}, {"+50688880002", "bounced"}, {"+50688880004", "failed"}} {
		eventually(t, 90*time.Second, func() bool { n, err := db.tryCount(status, c.to, c.status); return err == nil && n > 0 },
			func() string { return c.to + " is not " + c.status })
	}
	require.Zero(t, db.count(status, "+50688880004", "sent"))
	// FS-MSG-0003 AC6
	require.Equal(t, 1, db.count(`SELECT count(*) FROM messaging.suppressions WHERE channel = 'sms' AND address = '+50688880002' AND reason = 'hard_bounce'`))
	require.Equal(t, 401, statusOf(t, http.MethodPost, p.API+"/v1/providers/sms/webhooks", "", `{"MessageSid":"SM1"}`))
}

// TestRelayStandsIn has the preferred provider of email refuse the account: what
// comes goes by the mail relay, once.
func TestRelayStandsIn(t *testing.T) {
	t.Parallel()
	relay := providertest.NewSMTPBackend(t, providertest.SMTPOptions{Plain: true})
	data := dataFolder(t)
	p := start(t, []string{"CARRIL_EMAIL_PROVIDERS=resend,smtp", "CARRIL_SMTP_ADDR=" + relay.Addr, "CARRIL_SMTP_SECURITY=plain",
		"CARRIL_SMTP_USER=" + providertest.SMTPUser, "CARRIL_SMTP_PASSWORD=" + providertest.SMTPPassword},
		"dev", "--quiet", "--data", data, "--addr", "127.0.0.1:0")
	db := devDatabase(t, data)
	mail := func(idem, to string) {
		t.Helper()
		body := fmt.Sprintf(`{"idempotency_key":%q,"channel":"email","category":"transactional","recipients":[{"address":%q}],"content":{"subject":"Your code","text":"4711"}}`, idem, to)
		require.Equal(t, 202, insist(func() int { return statusOf(t, http.MethodPost, p.API+"/v1/messaging/messages", p.Key, body) }))
	}
	const sent = `SELECT count(DISTINCT send_id) FROM messaging.send_status_history WHERE requested_at > now() - interval '1 day' AND status = 'sent' AND provider = $1`
	mail("before", "ana@example.com")
	db.await(1, 90*time.Second, sent, "resend")
	require.Equal(t, 201, statusOf(t, http.MethodPost, p.Sandbox+"/sandbox/faults", "", `{"kind":"status","status":403,"name":"suspended_api_key","times":100000}`))
	for i := range 5 {
		mail(fmt.Sprint("after-", i), fmt.Sprintf("ana%d@example.com", i))
	}
	db.await(5, 90*time.Second, sent, "smtp")
	require.Len(t, relay.IDs(), 5)
	for id, ids := range relay.IDs() {
		require.Len(t, ids, 1, "send %s", id)
	}
	require.Equal(t, 1, db.count(sent, "resend"))
}
