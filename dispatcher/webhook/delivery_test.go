package webhook_test

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/softcrum/carril/dispatcher/webhook"
	"github.com/softcrum/carril/internal/signature"
	"github.com/softcrum/carril/schemas"
)

func TestDelivery(t *testing.T) {
	t.Parallel()

	t.Run("AnEventArrivesSignedAndOnce", func(t *testing.T) { // FS-CORE-0006 "Eventos", AC2
		t.Parallel()
		m := newMirror(t, webhook.Config{})
		s := newSink(t, nil)
		e, secret := m.endpoint(m.tenant, s.URL)
		m.run()
		ev := m.event(m.tenant, "k", "c")
		send(m, schemas.TopicEventTracked, m.tenant, ev, ev)
		send(m, schemas.TopicEventTracked, m.tenant, ev, m.event(m.tenant, "k2", "c"))
		m.awaitState("delivered", 2)
		got := s.requests()
		require.Len(t, got, 2)

		id, err := signature.Verify([]signature.Secret{secret}, got[0].header, []byte(got[0].body), time.Now())
		require.NoError(t, err)
		require.Equal(t, id, value[string](m.bench, `SELECT delivery_id::text FROM core.webhook_deliveries WHERE event_id = $1`, ev.EventID))
		require.Equal(t, handMade(t, secret, got[0]), got[0].header.Get("webhook-signature"), "as the standard's own text says")
		require.Contains(t, got[0].body, `"properties":{"n":1.10}`)
		require.Equal(t, "application/json", got[0].header.Get("Content-Type"))
		require.Equal(t, e.URL, s.URL+"/")
		require.Equal(t, 2, m.count(`SELECT count(*) FROM core.webhook_attempts WHERE class = 'delivered' AND status = 204 AND attempt = 1 AND tenant_id = $1`, m.tenant))
		require.Equal(t, 2, m.count(`SELECT count(*) FROM core.webhook_deliveries WHERE delivered_at IS NOT NULL AND attempts = 1 AND lease IS NULL AND last_error IS NULL`))
	})

	t.Run("AMessagesStepsArriveInOrder", func(t *testing.T) { // FS-MSG-0003 "Eventos"
		t.Parallel()
		m := newMirror(t, webhook.Config{})
		all, some := newSink(t, nil), newSink(t, nil)
		m.endpoint(m.tenant, all.URL, "messaging.message.*")
		m.endpoint(m.tenant, some.URL, "messaging.message.bounced", "core.event.tracked")
		other := m.addTenant("other")
		foreign := newSink(t, nil)
		m.endpoint(other, foreign.URL)
		m.run()
		steps := []string{"sent", "delivered", "opened", "clicked", "bounced", "complained", "failed"}
		for _, step := range steps {
			send(m, schemas.TopicMessage, m.tenant, m.change(m.tenant, step, step))
		}
		m.awaitState("delivered", len(steps)+1)
		var got []string
		for _, r := range all.requests() {
			got = append(got, strings.SplitN(strings.TrimPrefix(r.body, `{"type":"messaging.message.`), `"`, 2)[0])
		}
		require.Equal(t, steps, got)
		require.Len(t, some.requests(), 1)
		require.Empty(t, foreign.requests(), "no tenant hears of another")
	})
}

// handMade is the signature as Standard Webhooks describes it, made by hand.
func handMade(t *testing.T, secret signature.Secret, r received) string {
	t.Helper()
	key, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(secret.Reveal(), "whsec_"))
	require.NoError(t, err)
	mac := hmac.New(sha256.New, key)
	mac.Write([]byte(r.header.Get("webhook-id") + "." + r.header.Get("webhook-timestamp") + "." + r.body))
	return "v1," + base64.StdEncoding.EncodeToString(mac.Sum(nil))
}
