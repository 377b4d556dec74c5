package resend_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/softcrum/carril/dispatcher/provider"
	"github.com/softcrum/carril/dispatcher/provider/providertest"
)

func message() provider.Message {
	return provider.Message{
		SendID:   uuid.MustParse("019aaaaa-0000-8000-8000-000000000001"),
		TenantID: uuid.MustParse("019bbbbb-0000-8000-8000-000000000002"),
		From:     "Shop <shop@sender.example.com>",
		ReplyTo:  "care@sender.example.com",
		To:       "ana@example.com",
		Subject:  "Your receipt",
		HTML:     `<a href="https://example.com/?a=1&b=2">Hi</a>`,
		Text:     "Hi",
		Headers:  map[string]string{"X-B": "2", "X-A": "1"},
	}
}

const frozenMessage = `{"from":"Shop <shop@sender.example.com>","to":["ana@example.com"],"subject":"Your receipt",` +
	`"html":"<a href=\"https://example.com/?a=1&b=2\">Hi</a>","text":"Hi","reply_to":"care@sender.example.com",` +
	`"headers":{"X-A":"1","X-B":"2"},"tags":[{"name":"send_id","value":"019aaaaa-0000-8000-8000-000000000001"},` +
	`{"name":"tenant_id","value":"019bbbbb-0000-8000-8000-000000000002"}]}`

func TestFreeze(t *testing.T) {
	t.Parallel()
	a := newAdapter(t, "")

	t.Run("GivesTheExactBytesOfASingleRequest", func(t *testing.T) {
		t.Parallel()
		f, err := a.Freeze([]provider.Message{message()}, false)
		require.NoError(t, err)
		require.Equal(t, frozenMessage, string(f.Body))
		require.Equal(t, "emails", f.Endpoint)
		require.Equal(t, 1, f.Count)
	})

	t.Run("GivesABareArrayForABatchEvenOfOne", func(t *testing.T) {
		t.Parallel()
		f, err := a.Freeze([]provider.Message{message()}, true)
		require.NoError(t, err)
		require.Equal(t, "["+frozenMessage+"]", string(f.Body))
		require.Equal(t, "batch", f.Endpoint)
	})

	t.Run("RefusesWhatCanNeverBeSent", func(t *testing.T) {
		t.Parallel()
		for name, c := range map[string]struct {
			change func(*provider.Message)
			code   string
		}{
			"bad-inputs row 48, Bcc":     {func(m *provider.Message) { m.To = "a@b.c\r\nBcc: x@y.z" }, "invalid_recipient"},
			"bad-inputs row 48, SMTP":    {func(m *provider.Message) { m.To = "a@b.c>\r\nDATA" }, "invalid_recipient"},
			"bad-inputs row 51, name":    {func(m *provider.Message) { m.To = "Name <a@b.c>" }, "invalid_recipient"},
			"bad-inputs row 51, literal": {func(m *provider.Message) { m.To = "a@[127.0.0.1]" }, "invalid_recipient"},
			"bad-inputs row 51, space":   {func(m *provider.Message) { m.To = "a@b.c " }, "invalid_recipient"},
			"two recipients":             {func(m *provider.Message) { m.To = "a@b.c,d@e.f" }, "invalid_recipient"},
			"no recipient":               {func(m *provider.Message) { m.To = "" }, "invalid_recipient"},
			"no sender":                  {func(m *provider.Message) { m.From = "" }, "invalid_from_address"},
			"a sender of two lines":      {func(m *provider.Message) { m.From = "A\n <a@b.c>" }, "invalid_from_address"},
			"a reply address of words":   {func(m *provider.Message) { m.ReplyTo = "nobody" }, "invalid_reply_to"},
			"no subject":                 {func(m *provider.Message) { m.Subject = " \n" }, "missing_subject"},
			"no content":                 {func(m *provider.Message) { m.HTML, m.Text = "", "" }, "missing_content"},
			"no send id":                 {func(m *provider.Message) { m.SendID = uuid.Nil }, "missing_id"},
			"no tenant id":               {func(m *provider.Message) { m.TenantID = uuid.Nil }, "missing_id"},
			"a second recipient header":  {func(m *provider.Message) { m.Headers = map[string]string{"bCC": "x@y.z"} }, "invalid_header"},
			"a header of two lines":      {func(m *provider.Message) { m.Headers = map[string]string{"X-A": "1\r\nBcc: x@y.z"} }, "invalid_header"},
			"a header name of two":       {func(m *provider.Message) { m.Headers = map[string]string{"X-A: 1\r\nBcc": "x"} }, "invalid_header"},
			"a header without a name":    {func(m *provider.Message) { m.Headers = map[string]string{"": "x"} }, "invalid_header"},
		} {
			m := message()
			c.change(&m)
			_, err := a.Freeze([]provider.Message{message(), m}, true)
			var merr *provider.MessageError
			require.ErrorAs(t, err, &merr, name)
			require.Equal(t, 1, merr.Index, name)
			require.Equal(t, c.code, merr.Reason.Code, name)
		}
	})

	t.Run("KeepsASubjectToOneLine", func(t *testing.T) {
		t.Parallel() // bad-inputs row 49
		m := message()
		m.Subject = "hi\r\nBcc: x@y.z\n"
		f, err := a.Freeze([]provider.Message{m}, false)
		require.NoError(t, err)
		require.Contains(t, string(f.Body), `"subject":"hi Bcc: x@y.z"`)
	})

	t.Run("RefusesABodyBeyondTheLimitAndSaysThatHalvesMayGo", func(t *testing.T) {
		t.Parallel()
		m := message()
		m.HTML = strings.Repeat("a", 21_000_000)
		_, err := a.Freeze([]provider.Message{m}, true)
		require.NoError(t, err)
		_, err = a.Freeze([]provider.Message{m, m}, true)
		var perr *provider.Error
		require.ErrorAs(t, err, &perr)
		require.Equal(t, "request_too_large", perr.Code)
		require.True(t, perr.Divisible)
	})

	t.Run("WritesWhatResendDescribes", func(t *testing.T) {
		t.Parallel()
		schemas := providertest.Schemas(t)
		rapid.Check(t, func(rt *rapid.T) {
			m := message()
			m.Subject = "x" + rapid.String().Draw(rt, "subject")
			m.HTML = "x" + rapid.String().Draw(rt, "html")
			m.ReplyTo = rapid.SampledFrom([]string{"", "care@example.com"}).Draw(rt, "reply to")
			f, err := a.Freeze([]provider.Message{m, message()}, true)
			require.NoError(rt, err)
			var items []json.RawMessage
			require.NoError(rt, json.Unmarshal(f.Body, &items))
			for _, item := range items {
				providertest.Conforms(t, schemas, "SendEmailRequest", item)
			}
		})
	})
}
