package sms_test

import (
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/softcrum/carril/dispatcher/provider"
	"github.com/softcrum/carril/dispatcher/provider/providertest"
	"github.com/softcrum/carril/dispatcher/provider/sms"
)

// carrier answers every request as it is told.
type carrier func(*http.Request) (*http.Response, error)

func (c carrier) RoundTrip(r *http.Request) (*http.Response, error) { return c(r) }

func answering(status int, body string) carrier {
	return func(r *http.Request) (*http.Response, error) {
		if r.Body != nil {
			_, _ = io.Copy(io.Discard, r.Body)
			_ = r.Body.Close()
		}
		return &http.Response{StatusCode: status, Header: http.Header{}, Body: io.NopCloser(strings.NewReader(body)), Request: r}, nil
	}
}

func send(t testing.TB, c carrier) (provider.Result, error) {
	t.Helper()
	a, err := sms.New(config(""), sms.Deps{Transport: c})
	require.NoError(t, err)
	frozen, err := a.Freeze([]provider.Message{message(1)}, false)
	require.NoError(t, err)
	return a.Send(t.Context(), provider.Request{Frozen: frozen, IdempotencyKey: "k"})
}

// faults F32: what a refusal means stands in its code, and where the code is
// unknown in its status.
func TestAnswers(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		status int
		body   string
		class  provider.Class
		code   string
	}{
		"InvalidNumber":     {400, `{"code":21211,"status":400}`, provider.ClassPermanent, "invalid_recipient"},
		"OptedOut":          {400, `{"code":21610,"status":400}`, provider.ClassPermanent, "recipient_opted_out"},
		"NotOwned":          {400, `{"code":21606,"status":400}`, provider.ClassSender, "from_not_owned"},
		"InvalidFrom":       {400, `{"code":21212,"status":400}`, provider.ClassSender, "invalid_from"},
		"BadToken":          {401, `{"code":20003,"status":401}`, provider.ClassConfiguration, "authentication_failed"},
		"Suspended":         {403, `{"code":20005,"status":403}`, provider.ClassConfiguration, "account_not_active"},
		"NoSuchAccount":     {404, `{"code":20404,"status":404}`, provider.ClassConfiguration, "account_not_found"},
		"TooFast":           {429, `{"code":20429,"status":429}`, provider.ClassThrottled, "rate_limit_exceeded"},
		"QueueFull":         {400, `{"code":21611,"status":400}`, provider.ClassThrottled, "sender_queue_full"},
		"UnknownCode":       {400, `{"code":29999,"status":400}`, provider.ClassPermanent, "sms_29999"},
		"NoCode":            {400, `<html>`, provider.ClassPermanent, "http_400"},
		"Forbidden":         {403, ``, provider.ClassConfiguration, "http_403"},
		"Redirect":          {302, ``, provider.ClassConfiguration, "http_302"},
		"Unavailable":       {503, `{"code":20429,"status":503}`, provider.ClassUncertain, "rate_limit_exceeded"},
		"Conflict":          {409, ``, provider.ClassUncertain, "http_409"},
		"ErrorInSuccess":    {200, `{"code":21211,"status":400}`, provider.ClassPermanent, "invalid_recipient"},
		"WithoutAnID":       {201, `{"status":"queued"}`, provider.ClassUncertain, "unreadable_answer"},
		"NoJSON":            {201, `It works!`, provider.ClassUncertain, "unreadable_answer"},
		"AnIDOfAnotherSize": {201, `{"sid":"` + strings.Repeat("x", 200) + `"}`, provider.ClassUncertain, "unreadable_answer"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			res, err := send(t, answering(c.status, c.body))
			require.Equal(t, c.class, provider.ClassOf(err), "%v", err)
			var perr *provider.Error
			require.ErrorAs(t, err, &perr)
			require.Equal(t, c.code, perr.Code)
			require.Nil(t, res.Items)
		})
	}

	t.Run("MayRefuseWhatTheyTook", func(t *testing.T) {
		t.Parallel()
		res, err := send(t, answering(201, `{"sid":"SM1","status":"failed","error_code":21610}`))
		require.NoError(t, err)
		require.Equal(t, "recipient_opted_out", res.Items[0].Err.Code)
		require.Equal(t, provider.ClassPermanent, res.Items[0].Err.Class)
	})
}

func TestFreeze(t *testing.T) {
	t.Parallel()
	a := newAdapter(t, "")

	t.Run("WritesOneForm", func(t *testing.T) {
		t.Parallel()
		for from, field := range map[string]string{"+15005550006": "From", "Tienda": "From", "MG0123456789abcdef0123456789abcdef": "MessagingServiceSid"} {
			m := message(1)
			m.From, m.Text = from, " ¡Hola! Tu código es 4711 & +1=2 "
			frozen, err := a.Freeze([]provider.Message{m}, false)
			require.NoError(t, err)
			form, err := url.ParseQuery(string(frozen.Body))
			require.NoError(t, err)
			require.Equal(t, url.Values{
				"To": {"+50688880001"}, field: {from}, "Body": {"¡Hola! Tu código es 4711 & +1=2"},
				"StatusCallback": {"https://carril.example.com/v1/providers/sms/webhooks?send_id=" + m.SendID.String() + "&tenant_id=" + m.TenantID.String()},
			}, form)
		}
	})

	t.Run("TakesNumbersInE164Alone", func(t *testing.T) {
		t.Parallel()
		for _, to := range []string{"", "50688887777", "+0506888877", "+506 8888 7777", "+506-8888-7777", "tel:+50688887777", "+50688887777,+50688887778",
			"+1234", "+1234567890123456", "+50688887777\n", "whatsapp:+50688887777", "٠١٢٣٤٥٦٧"} {
			m := message(1)
			m.To = to
			refused(t, a, m, "invalid_recipient")
		}
	})

	t.Run("RefusesWhatNoMessageCarries", func(t *testing.T) {
		t.Parallel()
		for code, change := range map[string]func(*provider.Message){
			"invalid_from":      func(m *provider.Message) { m.From = "12345" },
			"invalid_from ":     func(m *provider.Message) { m.From = "A name that is long" },
			"invalid_from  ":    func(m *provider.Message) { m.From = "" },
			"invalid_from   ":   func(m *provider.Message) { m.From = "shop@example.com" },
			"missing_content":   func(m *provider.Message) { m.Text, m.HTML = " \n ", "<p>only HTML</p>" },
			"invalid_content":   func(m *provider.Message) { m.Text = "a\x00b" },
			"invalid_content ":  func(m *provider.Message) { m.Text = "a\xff" },
			"content_too_large": func(m *provider.Message) { m.Text = strings.Repeat("a", 1531) },
			"missing_id":        func(m *provider.Message) { m.TenantID = uuid.Nil },
		} {
			m := message(1)
			change(&m)
			refused(t, a, m, strings.TrimSpace(code))
		}
	})
}

func refused(t *testing.T, a *sms.Adapter, m provider.Message, code string) {
	t.Helper()
	_, err := a.Freeze([]provider.Message{m}, false)
	var merr *provider.MessageError
	require.ErrorAs(t, err, &merr, "%q", m.To)
	require.Equal(t, code, merr.Reason.Code)
	if m.To != "" {
		require.NotContains(t, err.Error(), m.To)
	}
}

func TestSegments(t *testing.T) {
	t.Parallel()

	t.Run("CountPlacesByTheirEncoding", func(t *testing.T) {
		t.Parallel()
		for _, c := range []struct {
			text     string
			want     int
			encoding sms.Encoding
		}{
			{"", 1, sms.GSM7},
			{strings.Repeat("a", 160), 1, sms.GSM7},
			{strings.Repeat("a", 161), 2, sms.GSM7},
			{strings.Repeat("a", 306), 2, sms.GSM7},
			{strings.Repeat("a", 307), 3, sms.GSM7},
			{strings.Repeat("ñ", 160), 1, sms.GSM7},
			{strings.Repeat("€", 80), 1, sms.GSM7},
			{strings.Repeat("€", 81), 2, sms.GSM7},
			{strings.Repeat("€", 153), 3, sms.GSM7}, // 76 fit in 153 places: none is cut in half
			{strings.Repeat("á", 70), 1, sms.UCS2},  // GSM-7 has à, not á
			{strings.Repeat("á", 71), 2, sms.UCS2},
			{strings.Repeat("😀", 35), 1, sms.UCS2},
			{strings.Repeat("😀", 36), 2, sms.UCS2},
			{strings.Repeat("😀", 67), 3, sms.UCS2}, // 33 a segment
			{"a" + strings.Repeat("ç", 70), 2, sms.UCS2},
		} {
			n, encoding := sms.Segments(c.text)
			require.Equal(t, c.encoding, encoding, "%q", c.text)
			require.Equal(t, c.want, n, "%q", c.text)
		}
	})

	t.Run("NeverGetFewerAsATextGrows", func(t *testing.T) {
		t.Parallel()
		rapid.Check(t, func(t *rapid.T) {
			a, b := rapid.StringN(0, 400, -1).Draw(t, "a"), rapid.String().Draw(t, "b")
			before, _ := sms.Segments(a)
			after, _ := sms.Segments(a + b)
			require.LessOrEqual(t, before, after)
		})
	})
}

func TestCallback(t *testing.T) {
	t.Parallel()
	sendID, tenantID := uuid.New(), uuid.New()
	query := url.Values{"send_id": {sendID.String()}, "tenant_id": {tenantID.String()}}

	t.Run("GivesOurStatuses", func(t *testing.T) {
		t.Parallel()
		for _, c := range []struct {
			status, code string
			want         provider.Status
			reason       string
		}{
			{"accepted", "", "", ""}, {"queued", "", "", ""}, {"sending", "", "", ""}, {"scheduled", "", "", ""}, {"never-heard-of", "", "", ""},
			{"sent", "", provider.StatusSent, ""},
			{"delivered", "", provider.StatusDelivered, ""},
			{"read", "", provider.StatusOpened, ""},
			{"undelivered", "30003", provider.StatusFailed, "undelivered: 30003"},
			{"undelivered", "30005", provider.StatusHardBounce, "undelivered: 30005"},
			{"undelivered", "30006", provider.StatusHardBounce, "undelivered: 30006"},
			{"undelivered", "21610", provider.StatusSuppressed, "undelivered: 21610"},
			{"failed", "30007", provider.StatusFailed, "failed: 30007"},
			{"canceled", "", provider.StatusFailed, "canceled"},
		} {
			form := url.Values{"MessageSid": {"SM1"}, "MessageStatus": {c.status}, "To": {"+50688887777"}, "From": {"+15005550006"}}
			object := map[string]any{"MessageSid": "SM1", "MessageStatus": c.status, "To": "+50688887777", "ErrorCode": nil}
			if c.code != "" {
				form.Set("ErrorCode", c.code)
				n, err := strconv.Atoi(c.code)
				require.NoError(t, err)
				object["ErrorCode"] = n
			}
			body, err := json.Marshal(object)
			require.NoError(t, err)
			for _, body := range [][]byte{[]byte(form.Encode()), body} {
				ev, err := sms.ParseCallback(body)
				require.NoError(t, err)
				require.Equal(t, c.want, ev.Status, "%s %s", c.status, c.code)
				require.Equal(t, c.reason, ev.Reason)
				require.Equal(t, "SM1", ev.ProviderMessageID)
				require.Equal(t, []string{"+50688887777"}, ev.Recipients)
				require.Equal(t, sms.Reference{SendID: sendID, TenantID: tenantID, ProviderMessageID: "SM1", EventID: "SM1:" + c.status}, sms.Refer(query, body))
			}
		}
	})

	t.Run("HasTheCarriersTimeWhereThereIsOne", func(t *testing.T) {
		t.Parallel()
		ev, err := sms.ParseCallback([]byte("SmsSid=SM1&SmsStatus=delivered&RawDlrDoneDate=2611221005"))
		require.NoError(t, err)
		require.Equal(t, time.Date(2026, 11, 22, 10, 5, 0, 0, time.UTC), ev.OccurredAt)
	})

	t.Run("IsNoneWithoutAMessageAndAStatus", func(t *testing.T) {
		t.Parallel()
		for _, body := range []string{"", "{}", "[]", "null", "MessageSid=SM1", "MessageStatus=sent", "%zz", `{"MessageSid":{"a":1}}`, "MessageSid=&MessageStatus=sent"} {
			_, err := sms.ParseCallback([]byte(body))
			require.Error(t, err, body)
			require.Empty(t, sms.Refer(nil, []byte(body)).EventID, body)
		}
	})

	t.Run("BearsAnyInput", func(t *testing.T) {
		t.Parallel()
		rapid.Check(t, func(t *rapid.T) {
			body := rapid.SliceOf(rapid.Byte()).Draw(t, "body")
			_, _ = sms.ParseCallback(body)
			_ = sms.Refer(url.Values{"send_id": {rapid.String().Draw(t, "id")}}, body)
		})
	})
}

func TestConfig(t *testing.T) {
	t.Parallel()

	t.Run("RefusesWhatCannotBe", func(t *testing.T) {
		t.Parallel()
		for want, change := range map[string]func(*sms.Config){
			"base_url":        func(c *sms.Config) { c.BaseURL = "http://api.example.com" },
			"base_url ":       func(c *sms.Config) { c.BaseURL = "https://user:pass@api.example.com" },
			"callback_url":    func(c *sms.Config) { c.CallbackURL = "http://carril.example.com/x" },
			"callback_url ":   func(c *sms.Config) { c.CallbackURL = "https://carril.example.com/x?y=1" },
			"account":         func(c *sms.Config) { c.Account = "../AC1" },
			"key":             func(c *sms.Config) { c.KeyID = "a:b" },
			"token":           func(c *sms.Config) { c.Token = sms.NewToken("short") },
			"max_segments":    func(c *sms.Config) { c.MaxSegments = 11 },
			"rate_per_second": func(c *sms.Config) { c.RatePerSecond = -1 },
			"max_conns":       func(c *sms.Config) { c.MaxConns = -1 },
			"timeout":         func(c *sms.Config) { c.Timeout = -1 },
		} {
			c := config("")
			change(&c)
			_, err := sms.New(c, sms.Deps{})
			require.ErrorContains(t, err, strings.TrimSpace(want))
			require.NotContains(t, err.Error(), testToken)
			require.NotContains(t, err.Error(), "pass@")
		}
	})

	t.Run("NeverPrintsTheToken", func(t *testing.T) {
		t.Parallel()
		c := config("")
		text, err := c.Token.MarshalText()
		require.NoError(t, err)
		require.NotContains(t, fmt.Sprintf("%v %+v %#v %s %q %s %v", c, c, c, c.Token, c.Token, text, c.Token.LogValue()), testToken)
	})

	t.Run("TakesAnotherTokenAtWork", func(t *testing.T) {
		t.Parallel()
		var seen []string
		a, err := sms.New(config(""), sms.Deps{Transport: carrier(func(r *http.Request) (*http.Response, error) {
			_, password, _ := r.BasicAuth()
			seen = append(seen, password)
			return answering(201, `{"sid":"SM1"}`)(r)
		})})
		require.NoError(t, err)
		frozen, err := a.Freeze([]provider.Message{message(1)}, false)
		require.NoError(t, err)
		for _, next := range []string{"another-token-0123456789", "bad"} {
			_, err = a.Send(t.Context(), provider.Request{Frozen: frozen, IdempotencyKey: "k"})
			require.NoError(t, err)
			require.Equal(t, next == "bad", a.SetToken(sms.NewToken(next)) != nil)
		}
		require.Equal(t, []string{testToken, "another-token-0123456789"}, seen)
	})
}

func TestGuard(t *testing.T) {
	t.Parallel()
	const base = "https://api.twilio.com"
	reached := 0
	guard := sms.Guard(t, base, testAccount, carrier(func(r *http.Request) (*http.Response, error) {
		reached++
		return answering(201, "{}")(r)
	}))
	path := "/2010-04-01/Accounts/" + testAccount

	t.Run("RefusesEverythingButTheSendingEndpoint", func(t *testing.T) {
		for _, r := range []struct{ method, url string }{
			{"GET", base + path + "/Messages.json"}, {"DELETE", base + path + "/Messages/SM1.json"}, {"POST", base + path + "/Messages/SM1.json"},
			{"POST", base + path + "/Calls.json"}, {"POST", base + path + "/IncomingPhoneNumbers.json"}, {"POST", base + path + ".json"},
			{"GET", base + path + "/Balance.json"}, {"POST", base + "/2010-04-01/Accounts.json"}, {"POST", base + "/2010-04-01/Accounts/AC2/Messages.json"},
			{"POST", base + path + "/Messages.json?x=1"}, {"POST", base + path + "/Messages.json/"}, {"POST", base + path + "/../Messages.json"},
			{"POST", base + path + "/%2e%2e/Messages.json"}, {"POST", base + path + "//Messages.json"}, {"POST", base + path + "/messages.json"},
			{"POST", "http://api.twilio.com" + path + "/Messages.json"}, {"POST", "https://api.twilio.com:444" + path + "/Messages.json"},
			{"POST", "https://other.example.com" + path + "/Messages.json"},
		} {
			req, err := http.NewRequestWithContext(t.Context(), r.method, r.url, strings.NewReader("x"))
			require.NoError(t, err)
			_, err = guard.RoundTrip(req)
			require.ErrorContains(t, err, "only the sending endpoint", "%s %s", r.method, r.url)
		}
		require.Zero(t, reached)
	})

	t.Run("PassesTheSendingEndpoint", func(t *testing.T) {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, base+path+"/Messages.json", strings.NewReader("x"))
		require.NoError(t, err)
		_, err = guard.RoundTrip(req)
		require.NoError(t, err)
		require.Equal(t, 1, reached)
		req.Host = "other.example.com"
		_, err = guard.RoundTrip(req)
		require.Error(t, err)
	})
}

// elsewhere are paths of such an API that do more than send one message. It
// writes them with capitals, and we write ours without.
var elsewhere = regexp.MustCompile(`(?i:twilio\.com/.)|/(Calls|IncomingPhoneNumbers|AvailablePhoneNumbers|Recordings|Keys|Tokens|Usage|Contacts|Verifications)(\.json|/)|^github\.com/twilio/`)

func TestRepository(t *testing.T) {
	t.Parallel()

	t.Run("NamesNoOtherPathOfTheAPI", func(t *testing.T) {
		t.Parallel()
		files := 0
		root := providertest.Root(t)
		require.NoError(t, filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			if name := d.Name(); d.IsDir() && path != root && (strings.HasPrefix(name, ".") || name == "testdata") {
				return filepath.SkipDir
			}
			if d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return nil
			}
			files++
			require.Empty(t, strays(t, path, nil), path)
			return nil
		}))
		require.Greater(t, files, 5)
	})

	t.Run("WouldBeCaughtIfItDid", func(t *testing.T) {
		t.Parallel()
		for src, want := range map[string]int{
			`package x; const p = "/2010-04-01/Accounts/AC1/Calls.json"`:  1,
			`package x; const p = "https://lookups.twilio.com/v2/Phones"`: 1,
			`package x; import _ "github.com/twilio/twilio-go"`:           1,
			`package x; const p = "https://api.twilio.com"`:               0,
			`package x; const p = "/v1/core/contacts/{contact_id}"`:       0,
		} {
			require.Len(t, strays(t, "x.go", []byte(src)), want, src)
		}
	})
}

func strays(t *testing.T, path string, src any) []string {
	t.Helper()
	if b, ok := src.([]byte); ok && b == nil {
		src = nil
	}
	file, err := parser.ParseFile(token.NewFileSet(), path, src, 0)
	require.NoError(t, err)
	var found []string
	ast.Inspect(file, func(n ast.Node) bool {
		if lit, ok := n.(*ast.BasicLit); ok && lit.Kind == token.STRING {
			if s, err := strconv.Unquote(lit.Value); err == nil && elsewhere.MatchString(s) {
				found = append(found, s)
			}
		}
		return true
	})
	return found
}
