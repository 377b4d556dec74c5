package resend_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/softcrum/carril/dispatcher/provider"
	"github.com/softcrum/carril/dispatcher/provider/resend"
)

const (
	sendID   = "019aaaaa-0000-8000-8000-000000000001"
	tenantID = "019bbbbb-0000-8000-8000-000000000002"
)

func webhook(kind, more string) []byte {
	return fmt.Appendf(nil, `{"type":%q,"created_at":"2026-11-22T23:41:12.126Z","data":{"email_id":"em_1",
		"created_at":"2026-11-22T23:41:11.894719+00:00","from":"Shop <shop@example.com>","to":["ana@example.com"],
		"subject":"s","tags":{"send_id":%q,"tenant_id":%q}%s}}`, kind, sendID, tenantID, more)
}

func TestParseWebhook(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 11, 22, 23, 41, 12, 126_000_000, time.UTC)

	t.Run("ReadsEveryTypeOfAnOutboundEmail", func(t *testing.T) {
		t.Parallel()
		for _, c := range []struct {
			kind, more string
			status     provider.Status
			reason     string
		}{
			{"email.sent", "", provider.StatusSent, ""},
			{"email.delivered", "", provider.StatusDelivered, ""},
			{"email.delivery_delayed", "", provider.StatusDelayed, ""},
			{"email.opened", "", provider.StatusOpened, ""},
			{"email.clicked", `,"click":{"ipAddress":"192.0.2.1","link":"https://example.com","timestamp":"x","userAgent":"u"}`, provider.StatusClicked, ""},
			{"email.complained", "", provider.StatusComplained, ""},
			{"email.bounced", `,"bounce":{"type":"Permanent","subType":"NoEmail","message":"550 <ana@example.com> unknown","diagnosticCode":["x"]}`, provider.StatusHardBounce, "Permanent/NoEmail: 550 [redacted] unknown"},
			{"email.bounced", `,"bounce":{"type":"Permanent","subType":"Suppressed"}`, provider.StatusHardBounce, "Permanent/Suppressed"},
			{"email.bounced", `,"bounce":{"type":"Transient","subType":"MailboxFull","message":"full"}`, provider.StatusSoftBounce, "Transient/MailboxFull: full"},
			{"email.bounced", `,"bounce":{"type":"Undetermined","subType":"Undetermined"}`, provider.StatusSoftBounce, "Undetermined/Undetermined"},
			{"email.bounced", `,"bounce":{"type":"SomethingNew","subType":7}`, provider.StatusSoftBounce, "SomethingNew"},
			{"email.bounced", `,"bounce":"odd"`, provider.StatusSoftBounce, ""},
			{"email.bounced", "", provider.StatusSoftBounce, ""},
			{"email.failed", `,"failed":{"reason":"reached_daily_quota"}`, provider.StatusFailed, "reached_daily_quota"},
			{"email.suppressed", `,"suppressed":{"reason":"previous_complaint","type":"OnAccountSuppressionList","message":"ana@example.com is suppressed"}`, provider.StatusSuppressed, "previous_complaint: [redacted] is suppressed"},
			{"email.scheduled", "", "", ""},
			{"email.received", "", "", ""},
			{"email.something_new", `,"extra":{"deep":[1,2,{"a":null}]}`, "", ""},
		} {
			got, err := resend.ParseWebhook(webhook(c.kind, c.more))
			require.NoError(t, err, c.kind)
			want := provider.Event{
				Type: c.kind, Status: c.status, Reason: c.reason, OccurredAt: at, ProviderMessageID: "em_1",
				SendID: uuid.MustParse(sendID), TenantID: uuid.MustParse(tenantID), Recipients: []string{"ana@example.com"},
			}
			require.Empty(t, cmp.Diff(want, got), c.kind+c.more)
			if c.status != "" {
				require.Contains(t, provider.Statuses(), c.status)
			}
		}
	})

	t.Run("ReadsTagsAsAnObjectAndAsAnArray", func(t *testing.T) {
		t.Parallel()
		for name, tags := range map[string]string{
			"object":           `{"send_id":"` + sendID + `","tenant_id":"` + tenantID + `"}`,
			"object with more": `{"a":1,"send_id":"` + sendID + `","b":null,"tenant_id":"` + tenantID + `"}`,
			"array":            `[{"name":"send_id","value":"` + sendID + `"},{"name":"tenant_id","value":"` + tenantID + `"}]`,
			"array with more":  `[7,null,{"name":"x"},{"name":"send_id","value":"` + sendID + `"},{"name":"tenant_id","value":"` + tenantID + `"},"y"]`,
		} {
			got, err := resend.ParseWebhook([]byte(`{"type":"email.sent","data":{"tags":` + tags + `}}`))
			require.NoError(t, err)
			require.Equal(t, sendID, got.SendID.String(), name)
			require.Equal(t, tenantID, got.TenantID.String(), name)
		}
		for _, tags := range []string{`null`, `"x"`, `{}`, `[]`, `{"send_id":"x"}`, `{"send_id":{"a":1}}`, `{"send_id":"urn:uuid:` + sendID + `"}`, `{"send_id":"{` + sendID + `}"}`} {
			got, err := resend.ParseWebhook([]byte(`{"type":"email.sent","data":{"tags":` + tags + `}}`))
			require.NoError(t, err)
			require.Equal(t, uuid.Nil, got.SendID, tags)
		}
	})

	t.Run("ReadsBothWaysOfWritingATime", func(t *testing.T) {
		t.Parallel()
		for text, want := range map[string]time.Time{
			"2026-11-22T23:41:12.126Z":         at,
			"2026-11-22T23:41:11.894719+00:00": time.Date(2026, 11, 22, 23, 41, 11, 894_719_000, time.UTC),
			"2026-11-22T20:41:12.126-03:00":    at,
			"2023-10-06 23:47:56.678+00":       time.Date(2023, 10, 6, 23, 47, 56, 678_000_000, time.UTC),
			"2023-10-06 23:47:56.678+00:00":    time.Date(2023, 10, 6, 23, 47, 56, 678_000_000, time.UTC),
			"yesterday":                        {},
		} {
			for _, body := range []string{`{"type":"email.sent","created_at":%q}`, `{"type":"email.sent","data":{"created_at":%q}}`} {
				got, err := resend.ParseWebhook(fmt.Appendf(nil, body, text))
				require.NoError(t, err)
				require.Equal(t, want, got.OccurredAt, text)
			}
		}
	})

	t.Run("LeavesOutWhatHasAnotherShape", func(t *testing.T) {
		t.Parallel() // bad-inputs row 81
		for _, body := range []string{
			`{"type":"email.opened"}`, `{"type":"email.opened","data":null}`, `{"type":"email.opened","data":[1]}`,
			`{"type":"email.opened","data":{"email_id":7,"to":{"a":1},"tags":false,"created_at":[]},"created_at":1763855000}`,
		} {
			got, err := resend.ParseWebhook([]byte(body))
			require.NoError(t, err, body)
			require.Empty(t, cmp.Diff(provider.Event{Type: "email.opened", Status: provider.StatusOpened}, got), body)
		}
		got, err := resend.ParseWebhook([]byte(`{"type":"email.sent","data":{"to":"ana@example.com"}}`))
		require.NoError(t, err)
		require.Equal(t, []string{"ana@example.com"}, got.Recipients)
	})

	t.Run("IgnoresWhatIsNoEmail", func(t *testing.T) {
		t.Parallel()
		for _, kind := range []string{"contact.created", "domain.updated", "suppression.added", "x"} {
			got, err := resend.ParseWebhook(webhook(kind, ""))
			require.NoError(t, err)
			require.Empty(t, cmp.Diff(provider.Event{Type: kind, OccurredAt: at}, got))
		}
	})

	t.Run("RefusesWhatIsNoEvent", func(t *testing.T) {
		t.Parallel()
		for _, body := range []string{``, `null`, `[]`, `"x"`, `{}`, `{"type":""}`, `{"type":7}`, `{"type":"email.sent"`, `{"type":"email.sent"}x`, strings.Repeat(`{"a":`, 20000)} {
			_, err := resend.ParseWebhook([]byte(body))
			require.Error(t, err, body)
		}
	})
}

func FuzzParseWebhook(f *testing.F) {
	f.Add(webhook("email.bounced", `,"bounce":{"type":"Permanent","subType":"General","message":"m"}`))
	f.Add([]byte(`{"type":"email.sent","data":{"tags":[{"name":"send_id","value":"x"}],"to":"a"}}`))
	f.Add([]byte(`{"type":"contact.created","data":{}}`))
	f.Add([]byte(`[{"type":"email.sent"}]`))
	f.Add(documented("email.delivered"))
	f.Fuzz(func(t *testing.T, body []byte) {
		if got, ok := resend.Quick(body); ok {
			want, err := resend.ParseSlowly(body)
			require.NoError(t, err)
			require.Empty(t, cmp.Diff(want, got))
		}
		got, err := resend.ParseWebhook(body)
		if err != nil {
			require.Empty(t, cmp.Diff(provider.Event{}, got))
			return
		}
		require.NotEmpty(t, got.Type)
		require.LessOrEqual(t, len(got.Reason), 300)
		if got.Status != "" {
			require.Contains(t, provider.Statuses(), got.Status)
			require.True(t, strings.HasPrefix(got.Type, "email."))
		}
	})
}
