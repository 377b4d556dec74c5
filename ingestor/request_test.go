package ingestor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"

	"github.com/softcrum/carril/ingestor/message"
	"github.com/softcrum/carril/internal/httpserver"
	"github.com/softcrum/carril/internal/ids"
	"github.com/softcrum/carril/internal/kafka"
	"github.com/softcrum/carril/schemas"
)

const messagesPath = "/v1/messaging/messages"

// code is a good request for a message.
func code(key, category string) string {
	return fmt.Sprintf(`{"idempotency_key":%q,"channel":"email","category":%q,"recipients":[{"external_id":"c-1"},{"address":"ana@example.com"}],
		"template_id":"code","variables":{"code":"493021"},"expires_at":"2026-11-01T12:10:00Z"}`, key, category)
}

func TestMessages(t *testing.T) {
	t.Parallel()
	f := newFront(t, Config{}, httpserver.Config{}, nil)
	t.Run("Answers202WithTheRequestsID", func(t *testing.T) {
		resp, body := f.post(t, messagesPath, code("invoice-889", "transactional"))
		id := ids.Request(tenantID, "invoice-889")
		require.Equal(t, http.StatusAccepted, resp.StatusCode, body)
		require.JSONEq(t, fmt.Sprintf(`{"request_id":"%s","correlation_id":"%s"}`, id, id), body)
		require.NotEqual(t, ids.Event(tenantID, "invoice-889"), id)
		got := f.queue.asked[0]
		require.Equal(t, id, got.RequestID)
		require.Equal(t, "c1", got.CellID)
		require.Equal(t, now, got.ReceivedAt)
		require.InDelta(t, 1, testutil.ToFloat64(f.api.metrics.requests.WithLabelValues("transactional")), 0)
		require.InDelta(t, 2, testutil.ToFloat64(f.api.metrics.recipients.WithLabelValues("transactional")), 0)
		_, again := f.post(t, messagesPath, code("invoice-889", "transactional"))
		require.Equal(t, body, again)
	})
	t.Run("TakesTheKeyFromTheHeader", func(t *testing.T) {
		bare := strings.Replace(code("x", "product"), `"idempotency_key":"x",`, "", 1)
		_, body := f.post(t, messagesPath, bare, "Idempotency-Key", `"h-1"`)
		require.Contains(t, body, ids.Request(tenantID, "h-1").String())
		resp, body := f.post(t, messagesPath, code("x", "product"), "Idempotency-Key", "h-1")
		requireProblem(t, resp, body, http.StatusUnprocessableEntity, "idempotency_key_mismatch")
	})
	t.Run("IsForTenantsThatMay", func(t *testing.T) {
		for key, want := range map[string]string{"ck_live_reader": "missing_permission", "ck_live_operator": "tenant_required", "ck_live_disabled": "tenant_disabled"} {
			resp, body := f.post(t, messagesPath, code("x", "product"), "Authorization", "Bearer "+key)
			requireProblem(t, resp, body, http.StatusForbidden, want)
		}
		resp, body := f.post(t, messagesPath, code("x", "product"), "Authorization", "")
		requireProblem(t, resp, body, http.StatusUnauthorized, "invalid_key")
	})
	t.Run("RefusesWhatIsNoMessage", func(t *testing.T) { // the contract holds each answer against its list of codes
		for change, want := range map[[2]string]string{
			{`"ana@example.com"`, `"a@b.c\r\nBcc: x@y.z"`}:         "400 invalid_recipient", // bad inputs 48
			{`"variables"`, `"send_at":null,"variables"`}:          "400 unknown_field",
			{`"493021"`, `"\u0000"`}:                               "400 nul_character",
			{`"transactional"`, `"urgent"`}:                        "422 invalid_category",
			{`"email"`, `"pigeon"`}:                                "422 unknown_channel",
			{`"template_id":"code",`, ``}:                          "422 content_or_template",
			{`"493021"`, `"` + strings.Repeat("1", 33_000) + `"`}:  "413 message_too_large",
			{`"493021"`, `"` + strings.Repeat("1", 600_000) + `"`}: "413 body_too_large",
		} {
			resp, body := f.post(t, messagesPath, strings.Replace(code("bad", "transactional"), change[0], change[1], 1))
			var status int
			var name string
			_, err := fmt.Sscan(want, &status, &name)
			require.NoError(t, err)
			requireProblem(t, resp, body, status, name)
		}
		require.InDelta(t, 1, testutil.ToFloat64(f.api.metrics.refused.WithLabelValues(message.InvalidRecipient)), 0)
	})
	t.Run("AnswersA503WhenTheQueueIsAway", func(t *testing.T) {
		f := newFront(t, Config{}, httpserver.Config{}, nil)
		f.queue.fail = func(context.Context) error { return &EnqueueError{EnqueueAway, errors.New("no broker")} }
		resp, body := f.post(t, messagesPath, code("x", "product"))
		requireProblem(t, resp, body, http.StatusServiceUnavailable, "queue_unavailable")
		require.NotEmpty(t, resp.Header.Get("Retry-After"))
		require.InDelta(t, 1, testutil.ToFloat64(f.api.metrics.failures.WithLabelValues(string(EnqueueAway))), 0)
		f.queue.fail = func(context.Context) error { return &EnqueueError{EnqueueTooLarge, errors.New("too large")} }
		resp, body = f.post(t, messagesPath, code("x", "product"))
		requireProblem(t, resp, body, http.StatusRequestEntityTooLarge, "message_too_large")
	})
}

// TestMessagesOnKafka is the request as the stage behind the topic reads it.
func TestMessagesOnKafka(t *testing.T) {
	t.Parallel()
	r := newRig(t, Config{}, ProducerConfig{})
	const trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
	for category, topic := range map[string]string{"transactional": schemas.TopicRequestedTransactional, "marketing": schemas.TopicRequestedMarketing} {
		t.Run("PartsTheRailsAtTheRequest/"+category, func(t *testing.T) { // architecture §3, I1
			resp, body := r.post(t, messagesPath, code("k-"+category, category), "traceparent", trace)
			require.Equal(t, http.StatusAccepted, resp.StatusCode, body)
			rec := r.read(t, topic, 1)[0]
			require.Equal(t, tenantID.String(), string(rec.Key))
			id := ids.Request(tenantID, "k-"+category)
			headers := map[string]string{}
			for _, h := range rec.Headers {
				headers[h.Key] = string(h.Value)
			}
			require.Equal(t, map[string]string{
				"ce_specversion": "1.0", "ce_id": id.String(), "ce_type": "messaging.requested", "ce_source": kafka.Source(tenantID),
				"ce_time": "2026-11-01T12:00:00Z", "ce_subject": category, "content-type": "application/avro",
				"correlation_id": id.String(), "traceparent": trace,
			}, headers)
			var n schemas.NotificationRequested
			require.NoError(t, r.codec.Decode(t.Context(), topic, rec.Value, &n))
			require.Equal(t, id, n.RequestID)
			require.Equal(t, category, n.Category)
			require.Nil(t, n.OriginEventID)
			require.Nil(t, n.ContactID)
			require.Equal(t, "code", *n.TemplateID)
			var asked []map[string]string
			require.NoError(t, json.Unmarshal([]byte(n.Recipients), &asked))
			require.Equal(t, []map[string]string{{"external_id": "c-1"}, {"address": "ana@example.com"}}, asked)
		})
	}
	t.Run("AnswersA503WhileTheBrokerIsAwayAndTheRetryHasTheSameID", func(t *testing.T) {
		r := newRig(t, Config{EnqueueTimeout: 500 * time.Millisecond}, ProducerConfig{})
		r.broker.Blackhole()
		resp, body := r.post(t, messagesPath, code("k-1", "transactional"))
		requireProblem(t, resp, body, http.StatusServiceUnavailable, "queue_unavailable")
		require.NotEmpty(t, resp.Header.Get("Retry-After"))
		r.broker.Pass()
		require.Eventually(t, func() bool { return r.status(messagesPath, code("k-1", "transactional")) == http.StatusAccepted }, waitFor, tick)
		rec := r.read(t, schemas.TopicRequestedTransactional, 1)[0]
		require.Equal(t, ids.Request(tenantID, "k-1").String(), kafka.Header(rec, "ce_id"))
	})
}
