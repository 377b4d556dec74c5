package sandbox_test

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/softcrum/carril/dispatcher/provider"
	"github.com/softcrum/carril/dispatcher/provider/providertest"
	"github.com/softcrum/carril/dispatcher/provider/resend"
	"github.com/softcrum/carril/dispatcher/provider/sandbox"
	"github.com/softcrum/carril/internal/signature"
)

// receiver takes webhooks and answers as it is told.
type receiver struct {
	*httptest.Server
	secret signature.Secret

	mu     sync.Mutex
	got    []received
	answer func(n int) int // the status for the n-th attempt, from 0
}

type received struct {
	id   string
	ts   string
	err  error
	body []byte
}

func newReceiver(t *testing.T, answer func(n int) int) *receiver {
	t.Helper()
	r := &receiver{secret: signature.NewSecret(), answer: answer}
	r.Server = httptest.NewServer(http.HandlerFunc(r.serve))
	t.Cleanup(r.Close)
	return r
}

func (r *receiver) serve(w http.ResponseWriter, req *http.Request) {
	body, _ := io.ReadAll(req.Body)
	id, err := signature.Verify([]signature.Secret{r.secret}, req.Header, body, time.Now())
	r.mu.Lock()
	n := len(r.got)
	r.got = append(r.got, received{id: id, ts: req.Header.Get("Svix-Timestamp"), err: err, body: body})
	r.mu.Unlock()
	w.WriteHeader(r.answer(n))
}

func (r *receiver) all() []received {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]received(nil), r.got...)
}

func ok(int) int { return http.StatusNoContent }

func (r *receiver) config() sandbox.Config {
	return sandbox.Config{Rate: many, Webhook: sandbox.WebhookConfig{
		URL: r.URL, Secrets: []signature.Secret{signature.NewSecret(), r.secret}, DeliveryDelay: time.Millisecond, Workers: 1, Speed: 1e6,
	}}
}

func settle(t testing.TB, s *sandbox.Server) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	require.NoError(t, s.WaitWebhooks(ctx))
}

func TestWebhooks(t *testing.T) {
	t.Parallel()

	t.Run("TellTheStoryThatTheLocalPartNames", func(t *testing.T) {
		t.Parallel()
		for to, want := range map[string][]provider.Status{
			"ana@example.com":          {provider.StatusSent, provider.StatusDelivered},
			"delivered@example.com":    {provider.StatusSent, provider.StatusDelivered},
			"bounced@example.com":      {provider.StatusSent, provider.StatusHardBounce},
			"Bounced+7@example.com":    {provider.StatusSent, provider.StatusHardBounce},
			"soft@example.com":         {provider.StatusSent, provider.StatusSoftBounce},
			"complained@example.com":   {provider.StatusSent, provider.StatusDelivered, provider.StatusComplained},
			"opened@example.com":       {provider.StatusSent, provider.StatusDelivered, provider.StatusOpened},
			"clicked@example.com":      {provider.StatusSent, provider.StatusDelivered, provider.StatusOpened, provider.StatusClicked},
			"delayed@example.com":      {provider.StatusSent, provider.StatusDelayed, provider.StatusDelivered},
			"failed@example.com":       {provider.StatusSent, provider.StatusFailed},
			"suppressed@example.com":   {provider.StatusSuppressed},
			"not-bounced@example.com":  {provider.StatusSent, provider.StatusDelivered},
			"Ana <opened@example.com>": {provider.StatusSent, provider.StatusDelivered, provider.StatusOpened},
		} {
			r := newReceiver(t, ok)
			now := newClock()
			s := start(t, r.config(), sandbox.Deps{Now: now.Now})
			sent := call(t, s, "POST", "/emails", email(to))
			require.Equal(t, 200, sent.status, sent.body)
			settle(t, s)
			var got []provider.Status
			for i, w := range r.all() {
				require.NoError(t, w.err)
				ev, err := resend.ParseWebhook(w.body)
				require.NoError(t, err)
				require.Equal(t, ids(t, sent.body)[0], ev.ProviderMessageID)
				require.Equal(t, []string{to}, ev.Recipients)
				require.Equal(t, now.Now().Add(time.Duration(i)*time.Millisecond), ev.OccurredAt)
				got = append(got, ev.Status)
			}
			require.Equal(t, want, got, to)
			require.EqualValues(t, len(want), s.Counters().WebhooksDelivered)
		}
	})

	t.Run("AreWhatResendDescribes", func(t *testing.T) {
		t.Parallel()
		schemas := providertest.Schemas(t)
		r := newReceiver(t, ok)
		s := start(t, r.config(), sandbox.Deps{})
		for _, local := range []string{"bounced", "soft", "complained", "clicked", "delayed", "failed", "suppressed"} {
			call(t, s, "POST", "/emails", email(local+"@example.com"))
		}
		settle(t, s)
		kinds := map[string]string{
			"email.sent": "EmailSentEvent", "email.delivered": "EmailDeliveredEvent", "email.bounced": "EmailBouncedEvent",
			"email.complained": "EmailComplainedEvent", "email.opened": "EmailOpenedEvent", "email.clicked": "EmailClickedEvent",
			"email.delivery_delayed": "EmailDeliveryDelayedEvent", "email.failed": "EmailFailedEvent", "email.suppressed": "EmailSuppressedEvent",
		}
		seen := map[string]bool{}
		for _, w := range r.all() {
			var e struct{ Type string }
			require.NoError(t, json.Unmarshal(w.body, &e))
			providertest.Conforms(t, schemas, kinds[e.Type], w.body)
			seen[e.Type] = true
		}
		require.Len(t, seen, len(kinds))
	})

	t.Run("ComeOncePerEventOfEveryMessageAndNotForReplays", func(t *testing.T) {
		t.Parallel()
		r := newReceiver(t, ok)
		s := start(t, r.config(), sandbox.Deps{})
		for range 2 {
			call(t, s, "POST", "/emails/batch", batch("a@example.com", "rejected@example.com", "b@example.com"),
				"Idempotency-Key", "k", "x-batch-validation", "permissive")
		}
		settle(t, s)
		seen := map[string]bool{}
		for _, w := range r.all() {
			seen[w.id] = true
		}
		require.Len(t, r.all(), 4)
		require.Len(t, seen, 4)
	})

	t.Run("ComeAgainWithTheSameIdAndBytesUntilA2xx", func(t *testing.T) {
		t.Parallel()
		r := newReceiver(t, func(n int) int { return []int{500, 404, 302, 200}[min(n, 3)] })
		s := start(t, r.config(), sandbox.Deps{})
		call(t, s, "POST", "/emails", email("suppressed@example.com")) // one event
		settle(t, s)
		got := r.all()
		require.Len(t, got, 4)
		for _, w := range got {
			require.NoError(t, w.err)
			require.Equal(t, got[0].id, w.id)
			require.Equal(t, string(got[0].body), string(w.body))
		}
		c := s.Counters()
		require.EqualValues(t, 1, c.WebhooksDelivered)
		require.EqualValues(t, 3, c.WebhooksFailed)
	})

	t.Run("AreGivenUpAfterEightAttempts", func(t *testing.T) {
		t.Parallel()
		r := newReceiver(t, func(int) int { return http.StatusServiceUnavailable })
		cfg := r.config()
		cfg.Webhook.Speed = 1e9
		s := start(t, cfg, sandbox.Deps{})
		call(t, s, "POST", "/emails", email("suppressed@example.com"))
		settle(t, s)
		require.Len(t, r.all(), 8)
		c := s.Counters()
		require.EqualValues(t, 1, c.WebhooksGivenUp)
		require.Zero(t, c.WebhooksDelivered)
		require.Zero(t, c.WebhooksPending)
	})

	t.Run("FindANewTargetMeanwhile", func(t *testing.T) {
		t.Parallel()
		gone := newReceiver(t, func(int) int { return http.StatusGone })
		r := newReceiver(t, ok)
		cfg := gone.config()
		cfg.Webhook.Speed = 100
		s := start(t, cfg, sandbox.Deps{})
		call(t, s, "POST", "/emails", email("suppressed@example.com"))
		require.Eventually(t, func() bool { return len(gone.all()) == 1 }, 20*time.Second, time.Millisecond)
		require.NoError(t, s.SetWebhook(r.URL, r.secret))
		settle(t, s)
		require.Len(t, r.all(), 1)
		require.NoError(t, r.all()[0].err)
	})

	t.Run("AreDroppedBeyondTheirBound", func(t *testing.T) {
		t.Parallel()
		r := newReceiver(t, ok)
		cfg := r.config()
		cfg.Webhook.MaxPending, cfg.Webhook.DeliveryDelay = 3, time.Hour
		s := start(t, cfg, sandbox.Deps{})
		call(t, s, "POST", "/emails/batch", batch("a@example.com", "b@example.com", "c@example.com", "d@example.com"))
		require.EqualValues(t, 8, int(s.Counters().WebhooksDropped)+s.Counters().WebhooksPending+int(s.Counters().WebhooksDelivered))
		require.Positive(t, s.Counters().WebhooksDropped)
		stop(t, s) // does not wait for the hour
	})

	t.Run("AreNoneWithoutATarget", func(t *testing.T) {
		t.Parallel()
		s := start(t, sandbox.Config{Rate: many}, sandbox.Deps{})
		call(t, s, "POST", "/emails", email("a@example.com"))
		require.Zero(t, s.Counters().WebhooksPending)
		settle(t, s)
	})
}
