package smtp_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"mime"
	"mime/multipart"
	"mime/quotedprintable"
	"net/mail"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/softcrum/carril/dispatcher/provider"
	"github.com/softcrum/carril/dispatcher/provider/providertest"
	"github.com/softcrum/carril/dispatcher/provider/smtp"
)

// message is the i-th of a few that differ; its id says 2026-11-22 10:00:00.
func message(i int) provider.Message {
	id := uuid.UUID{0x01, 0xa2, 0x02, 0xb2, 0xc5, 0x00, 0x80, 0, 0x80}
	id[15] = byte(i)
	return provider.Message{
		SendID: id, TenantID: uuid.UUID{15: 9}, From: "Shop <shop@sender.example.com>", ReplyTo: "care@sender.example.com",
		To: fmt.Sprintf("ana-%d@example.com", i), Subject: "Your code is 4711", HTML: "<p>4711</p>", Text: "4711",
	}
}

func offline(t testing.TB) *smtp.Adapter {
	t.Helper()
	a, err := smtp.New(smtp.Config{Addr: "127.0.0.1:1"}, smtp.Deps{})
	require.NoError(t, err)
	return a
}

// freeze gives the transaction's commands and its message, read.
func freeze(t require.TestingT, a *smtp.Adapter, m provider.Message) (commands, raw string, read *mail.Message) {
	frozen, err := a.Freeze([]provider.Message{m}, false)
	require.NoError(t, err)
	commands, raw, ok := strings.Cut(string(frozen.Body), "DATA\r\n")
	require.True(t, ok)
	read, err = mail.ReadMessage(strings.NewReader(raw))
	require.NoError(t, err)
	return commands, raw, read
}

// parts gives the decoded parts of a message by their type.
func parts(t require.TestingT, m *mail.Message) map[string]string {
	kind, params, err := mime.ParseMediaType(m.Header.Get("Content-Type"))
	require.NoError(t, err)
	out := map[string]string{}
	if kind != "multipart/alternative" {
		body, err := io.ReadAll(quotedprintable.NewReader(m.Body))
		require.NoError(t, err)
		return map[string]string{kind: string(body)}
	}
	r := multipart.NewReader(m.Body, params["boundary"])
	for {
		p, err := r.NextPart()
		if errors.Is(err, io.EOF) {
			return out
		}
		require.NoError(t, err)
		body, err := io.ReadAll(p) // NextPart decodes quoted-printable by itself
		require.NoError(t, err)
		out[strings.Split(p.Header.Get("Content-Type"), ";")[0]] = string(body)
	}
}

func TestFreeze(t *testing.T) {
	t.Parallel()
	a := offline(t)

	t.Run("WritesOneMailTransaction", func(t *testing.T) {
		t.Parallel()
		commands, _, m := freeze(t, a, message(1))
		require.Equal(t, "MAIL FROM:<shop@sender.example.com>\r\nRCPT TO:<ana-1@example.com>\r\n", commands)
		require.Equal(t, `"Shop" <shop@sender.example.com>`, m.Header.Get("From"))
		require.Equal(t, "<ana-1@example.com>", m.Header.Get("To"))
		require.Equal(t, "<care@sender.example.com>", m.Header.Get("Reply-To"))
		require.Equal(t, "<"+message(1).SendID.String()+"@sender.example.com>", m.Header.Get("Message-Id"))
		require.Equal(t, message(1).SendID.String(), m.Header.Get("Carril-Send-Id"))
		require.Equal(t, message(1).TenantID.String(), m.Header.Get("Carril-Tenant-Id"))
		date, err := m.Header.Date()
		require.NoError(t, err)
		require.True(t, date.Equal(time.Date(2026, 11, 22, 10, 0, 0, 0, time.UTC)), date)
		require.Equal(t, map[string]string{"text/plain": "4711", "text/html": "<p>4711</p>"}, parts(t, m))
	})

	t.Run("HasOnePartWhereThereIsOne", func(t *testing.T) {
		t.Parallel()
		for _, c := range []struct{ html, text, kind string }{{"<p>x</p>", "", "text/html"}, {"", "x", "text/plain"}} {
			m := message(1)
			m.HTML, m.Text = c.html, c.text
			_, _, read := freeze(t, a, m)
			require.Equal(t, map[string]string{c.kind: c.html + c.text + "\r\n"}, parts(t, read))
		}
	})

	t.Run("RefusesWhatWouldBeAnotherHeaderOrCommand", func(t *testing.T) {
		t.Parallel() // bad-inputs rows 48 and 49
		for code, change := range map[string]func(*provider.Message){
			"invalid_recipient":     func(m *provider.Message) { m.To = "a@example.com>\r\nRCPT TO:<b@example.com" },
			"invalid_recipient ":    func(m *provider.Message) { m.To = "a@example.com, b@example.com" },
			"invalid_recipient  ":   func(m *provider.Message) { m.To = "Ana <a@example.com>" },
			"invalid_recipient   ":  func(m *provider.Message) { m.To = "a@[127.0.0.1]" },
			"invalid_recipient    ": func(m *provider.Message) { m.To = strings.Repeat("a", 65) + "@example.com" },
			"invalid_from_address":  func(m *provider.Message) { m.From = "a@example.com\nBcc: b@example.com" },
			"invalid_from_address ": func(m *provider.Message) { m.From = "" },
			"invalid_reply_to":      func(m *provider.Message) { m.ReplyTo = "nobody" },
			"invalid_header":        func(m *provider.Message) { m.Headers = map[string]string{"X-A": "b\r\nBcc: c@example.com"} },
			"invalid_header ":       func(m *provider.Message) { m.Headers = map[string]string{"X-A\r\nBcc": "c@example.com"} },
			"invalid_header  ":      func(m *provider.Message) { m.Headers = map[string]string{"bCC": "c@example.com"} },
			"invalid_header   ":     func(m *provider.Message) { m.Headers = map[string]string{"Message-ID": "<x>"} },
			"invalid_header    ":    func(m *provider.Message) { m.Headers = map[string]string{"Carril-Send-Id": "x"} },
			"invalid_header     ":   func(m *provider.Message) { m.Headers = map[string]string{"X-A": strings.Repeat("a", 1000)} },
			"missing_subject":       func(m *provider.Message) { m.Subject = " \r\n" },
			"missing_content":       func(m *provider.Message) { m.HTML, m.Text = "", "" },
			"missing_id":            func(m *provider.Message) { m.SendID = uuid.Nil },
			"message_too_large":     func(m *provider.Message) { m.Text = strings.Repeat("a", 25_000_000) },
		} {
			m := message(1)
			change(&m)
			_, err := a.Freeze([]provider.Message{m}, false)
			var merr *provider.MessageError
			require.ErrorAs(t, err, &merr, code)
			require.Equal(t, strings.TrimSpace(code), merr.Reason.Code)
			require.NotContains(t, err.Error(), "example.com")
		}
	})

	t.Run("MakesOneLineOfASubject", func(t *testing.T) {
		t.Parallel()
		m := message(1)
		m.Subject = "Hello\r\nBcc: b@example.com"
		_, _, read := freeze(t, a, m)
		require.Equal(t, "Hello Bcc: b@example.com", read.Header.Get("Subject"))
		require.Empty(t, read.Header.Get("Bcc"))
	})

	t.Run("CarriesNamesAndDomainsOfAllLanguages", func(t *testing.T) {
		t.Parallel()
		m := message(1)
		m.From, m.To, m.Subject = `"Tienda Ñandú, S. A." <hola@añil.example>`, "ana@例え.example", "Тест: código 😀"
		commands, raw, read := freeze(t, a, m)
		require.Equal(t, "MAIL FROM:<hola@xn--ail-7ma.example>\r\nRCPT TO:<ana@xn--r8jz45g.example>\r\n", commands)
		require.Equal(t, -1, strings.IndexFunc(raw, func(r rune) bool { return r > 0x7e }), "seven bits")
		from, err := read.Header.AddressList("From")
		require.NoError(t, err)
		require.Equal(t, "Tienda Ñandú, S. A.", from[0].Name)
		subject, err := new(mime.WordDecoder).DecodeHeader(read.Header.Get("Subject"))
		require.NoError(t, err)
		require.Equal(t, m.Subject, subject)
	})
}

// TestFrozenMessages holds, whatever a message says: it is the same bytes each
// time, seven bits in lines that a relay takes, and reads back as it was meant.
func TestFrozenMessages(t *testing.T) {
	t.Parallel()
	a := offline(t)
	rapid.Check(t, func(t *rapid.T) {
		m := message(rapid.IntRange(0, 255).Draw(t, "id"))
		text := rapid.Custom(func(t *rapid.T) string {
			return rapid.SampledFrom([]string{"", ".", "..\n.", "\r\n.\r\n", "\n", "--=_", "=", " \n", "é", "From here", "QUIT\r\n"}).Draw(t, "piece") + rapid.String().Draw(t, "text")
		})
		m.Text, m.HTML = text.Draw(t, "text")+"x", "<p>"+text.Draw(t, "html")
		m.Subject = "s" + rapid.String().Draw(t, "subject")
		m.Headers = map[string]string{"X-One": rapid.StringMatching(`[ -~]{0,300}`).Draw(t, "header"), "X-Two": "é" + rapid.StringMatching(`[a-zé ]{0,200}`).Draw(t, "other")}
		first, err := a.Freeze([]provider.Message{m}, false)
		if err != nil { // a word too long for a line
			require.Equal(t, provider.ClassPermanent, provider.ClassOf(err))
			return
		}
		again, err := a.Freeze([]provider.Message{m}, false)
		require.NoError(t, err)
		require.Equal(t, first, again)
		_, raw, read := freeze(t, a, m)
		for line := range strings.SplitSeq(raw, "\r\n") {
			require.LessOrEqual(t, len(line), 998)
			require.NotContains(t, line, "\r")
			require.NotContains(t, line, "\n")
			require.Equal(t, -1, strings.IndexFunc(line, func(r rune) bool { return r > 0x7e || r == utf8.RuneError || r == 0 }))
		}
		got := parts(t, read)
		require.Equal(t, lines(m.Text), lines(got["text/plain"]))
		require.Equal(t, lines(m.HTML), lines(got["text/html"]))
		require.Len(t, read.Header, 12)
	})
}

// lines makes one kind of line break of all, and of what is not UTF-8 what the
// adapter does.
func lines(s string) string {
	s = strings.ToValidUTF8(s, "\uFFFD")
	return strings.NewReplacer("\r\n", "\n", "\r", "\n").Replace(s)
}

func TestDots(t *testing.T) {
	t.Parallel()

	t.Run("AreStuffedSoThatTheBytesArriveAsTheyWereFrozen", func(t *testing.T) {
		t.Parallel()
		relay := providertest.NewSMTPBackend(t, providertest.SMTPOptions{Extensions: []string{"8BITMIME"}})
		a := newAdapter(t, relay, nil)
		for i, text := range []string{".", "..", ".\r\n.", "a\r\n.\r\nQUIT\r\n", "\n.\n", strings.Repeat(".\r\n", 5000), "a.", ".a" + strings.Repeat("b", 5000)} {
			m := message(i)
			m.Text, m.HTML = text, ""
			frozen, err := a.Freeze([]provider.Message{m}, false)
			require.NoError(t, err)
			_, perr := attempt(t, a, m)
			require.Nil(t, perr)
			require.True(t, bytes.Equal(frozen.Body, relay.Requests()[i].Body), "%q", text)
		}
		require.Len(t, relay.IDs(), 8)
	})
}

func TestThaw(t *testing.T) {
	t.Parallel()

	t.Run("RefusesWhatFreezeDidNotWrite", func(t *testing.T) {
		t.Parallel()
		a := offline(t)
		for _, body := range []string{"", "MAIL FROM:<a@b>\r\n", "MAIL FROM:<a@b>\r\nRCPT TO:<c@d>\r\nDATA\r\nno end", "RCPT TO:<a@b>\r\nMAIL FROM:<c@d>\r\nDATA\r\nx\r\n",
			"MAIL FROM:a@b\r\nRCPT TO:<c@d>\r\nDATA\r\nx\r\n", "MAIL FROM:<a@b>\r\nRCPT TO:<c@d>\nRSET>\r\nDATA\r\nx\r\n"} {
			_, err := a.Send(t.Context(), provider.Request{Frozen: provider.Frozen{Endpoint: smtp.EndpointTransaction, Body: []byte(body), Count: 1}, IdempotencyKey: "k"})
			require.Equal(t, provider.ClassPermanent, provider.ClassOf(err), "%q", body)
		}
		_, err := a.Send(t.Context(), provider.Request{Frozen: provider.Frozen{Endpoint: "emails", Body: []byte("{}"), Count: 1}, IdempotencyKey: "k"})
		require.Equal(t, provider.ClassPermanent, provider.ClassOf(err))
	})
}
