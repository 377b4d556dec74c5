package sandbox_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/softcrum/carril/dispatcher/provider"
	"github.com/softcrum/carril/dispatcher/provider/providertest"
	"github.com/softcrum/carril/dispatcher/provider/sandbox"
	"github.com/softcrum/carril/dispatcher/provider/sms"
	"github.com/softcrum/carril/internal/signature"
)

const (
	textToken = "token-canary-0123456789"
	frontURL  = "https://carril.example.com/v1/providers/sms/webhooks"
)

func newTexter(t testing.TB, base, callback string) *sms.Adapter {
	t.Helper()
	a, err := sms.New(sms.Config{BaseURL: base, Account: "AC1", Token: sms.NewToken(textToken), CallbackURL: callback}, sms.Deps{})
	require.NoError(t, err)
	t.Cleanup(a.Close)
	return a
}

func textMessage(i int) provider.Message {
	return provider.Message{
		SendID: uuid.NewSHA1(uuid.NameSpaceOID, fmt.Appendf(nil, "send %d", i)), TenantID: uuid.NewSHA1(uuid.NameSpaceOID, []byte("tenant")),
		From: "+15005550006", To: fmt.Sprintf("+5068888%04d", 1000+i), Text: fmt.Sprintf("Text canary %d", i),
	}
}

// The text message adapter passes its suite against the sandbox too.
func TestTextConformance(t *testing.T) {
	t.Parallel()
	providertest.Run(t, func(t *testing.T) providertest.Subject {
		s := start(t, sandbox.Config{SMSRate: 1_000_000, SMSTokens: []string{textToken}}, sandbox.Deps{})
		return providertest.Subject{
			Provider: newTexter(t, s.URL(), frontURL), Backend: textBackend{backend{s}},
			Unreachable: newTexter(t, "http://"+providertest.UnusedAddress(t), frontURL),
			Message:     textMessage, Private: []string{textToken},
		}
	})
}

// textBackend gives the suite's orders in this API's numbers.
type textBackend struct{ backend }

func (b textBackend) Supports(kind providertest.Kind) bool {
	switch kind {
	case providertest.ItemFailures, providertest.Short, providertest.InFlight, providertest.MonthlyQuota:
		return false
	default:
		return b.backend.Supports(kind)
	}
}

func (b textBackend) Enact(list ...providertest.Behaviour) {
	for _, behaviour := range list {
		f, _ := faultFor(behaviour)
		f.Message = "The number +50688881000 of \"Text canary 0\" under " + textToken
		switch behaviour.Kind {
		case providertest.Permanent, providertest.ErrorInSuccess:
			f.Status, f.Name = 400, "21211"
		case providertest.Throttled:
			f.Name = "20429"
		case providertest.DailyQuota:
			f.Name = "63038"
		case providertest.AccountRefused:
			f.Status, f.Name = 401, "20003"
		case providertest.SenderRefused:
			f.Status, f.Name = 400, "21606"
		}
		f.Endpoint = "messages"
		if err := b.Inject(f); err != nil {
			panic(err)
		}
	}
}

func TestTextMessages(t *testing.T) {
	t.Parallel()

	t.Run("AreReportedWithSignedCallbacks", func(t *testing.T) {
		t.Parallel()
		secret, err := signature.ParseToken(textToken)
		require.NoError(t, err)
		var mu sync.Mutex
		got := map[string][]string{}
		front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			body, _ := io.ReadAll(r.Body)
			if err := signature.VerifyURL([]signature.Secret{secret}, frontURL+"?"+r.URL.RawQuery, r.Header, body); err != nil || r.URL.Path != "/v1/providers/sms/webhooks" {
				http.Error(w, "no", http.StatusUnauthorized)
				return
			}
			ev, err := sms.ParseCallback(body)
			if err != nil {
				http.Error(w, "no", http.StatusBadRequest)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			id := sms.Refer(r.URL.Query(), body).SendID.String()
			got[id] = append(got[id], ev.Type+" "+string(ev.Status))
		}))
		t.Cleanup(front.Close)
		s := start(t, sandbox.Config{Webhook: sandbox.WebhookConfig{DeliveryDelay: -1}}, sandbox.Deps{})
		s.SetCallbacks(front.URL)
		a := newTexter(t, s.URL(), frontURL)
		want := map[string][]string{}
		for i, c := range []struct {
			end    string
			events []string
		}{
			{"1234", []string{"message.queued ", "message.sent sent", "message.delivered delivered"}},
			{"0001", []string{"message.queued ", "message.sent sent", "message.undelivered failed"}},
			{"0002", []string{"message.queued ", "message.sent sent", "message.undelivered bounced"}},
			{"0003", []string{"message.queued ", "message.failed failed"}},
		} {
			m := textMessage(i)
			m.To = "+5068888" + c.end
			want[m.SendID.String()] = c.events
			frozen, err := a.Freeze([]provider.Message{m}, false)
			require.NoError(t, err)
			_, err = a.Send(t.Context(), provider.Request{Frozen: frozen, IdempotencyKey: "k"})
			require.NoError(t, err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		require.NoError(t, s.WaitWebhooks(ctx))
		mu.Lock()
		defer mu.Unlock()
		for id, events := range want {
			slices.Sort(events)
			slices.Sort(got[id])
			require.Equal(t, events, got[id])
		}
		require.Zero(t, s.Counters().WebhooksFailed)
		require.Len(t, s.Contents(), 4)
	})

	t.Run("AreRefusedAsTheAPIRefuses", func(t *testing.T) {
		t.Parallel()
		s := start(t, sandbox.Config{SMSRate: 100, DailyQuota: 3}, sandbox.Deps{})
		post := func(token string, form url.Values) (int, string) {
			r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.URL()+"/2010-04-01/Accounts/AC1/Messages.json", strings.NewReader(form.Encode()))
			require.NoError(t, err)
			r.SetBasicAuth("AC1", token)
			r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
			resp, err := http.DefaultClient.Do(r)
			require.NoError(t, err)
			defer resp.Body.Close()
			body, err := io.ReadAll(resp.Body)
			require.NoError(t, err)
			return resp.StatusCode, string(body)
		}
		good := func(change func(url.Values)) url.Values {
			v := url.Values{"To": {"+50688881234"}, "From": {"+15005550006"}, "Body": {"x"}}
			change(v)
			return v
		}
		for _, c := range []struct {
			token  string
			change func(url.Values)
			status int
			want   string
		}{
			{"short", func(url.Values) {}, 401, `"code":20003`},
			{textToken, func(v url.Values) { v.Del("From") }, 400, `"code":21603`},
			{textToken, func(v url.Values) { v.Del("Body") }, 400, `"code":21602`},
			{textToken, func(v url.Values) { v.Set("Body", strings.Repeat("x", 1601)) }, 400, `"code":21617`},
			{textToken, func(v url.Values) { v.Set("To", "123") }, 400, `"code":21211`},
			{textToken, func(v url.Values) { v.Set("To", "+50688880004") }, 400, `"code":21610`},
			{textToken, func(v url.Values) { v.Set("From", "+15005550007") }, 400, `"code":21606`},
			{textToken, func(url.Values) {}, 200, `"sid":"SM`},
			{textToken, func(url.Values) {}, 200, `"sid":"SM`},
			{textToken, func(url.Values) {}, 200, `"sid":"SM`},
			{textToken, func(url.Values) {}, 429, `"code":63038`},
		} {
			status, body := post(c.token, good(c.change))
			require.Equal(t, c.status, status, body)
			require.Contains(t, body, c.want)
		}
	})

	t.Run("AreReportedNowhereElse", func(t *testing.T) {
		t.Parallel()
		s := start(t, sandbox.Config{}, sandbox.Deps{})
		a := newTexter(t, s.URL(), frontURL)
		frozen, err := a.Freeze([]provider.Message{textMessage(1)}, false)
		require.NoError(t, err)
		_, err = a.Send(t.Context(), provider.Request{Frozen: frozen, IdempotencyKey: "k"})
		require.NoError(t, err)
		require.EqualValues(t, 1, s.Counters().WebhooksDropped, "the sandbox posts to this machine alone")
	})
}
