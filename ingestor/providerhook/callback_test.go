package providerhook_test

import (
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/softcrum/carril/ingestor/providerhook"
	"github.com/softcrum/carril/internal/signature"
)

const callbackURL = "https://carril.example.com/v1/providers/sms/webhooks"

// newCallbacks is a bundle whose source signs with its URL, under two tokens of
// which the second ends in an hour.
func newCallbacks(t *testing.T) (b *bundle, newer, older signature.Secret) {
	t.Helper()
	parse := func(s string) signature.Secret {
		secret, err := signature.ParseToken(s)
		require.NoError(t, err)
		return secret
	}
	newer, older = parse("newer-token-0123456789"), parse("older-token-0123456789")
	b = newBundle(t, func(c *providerhook.Config) {
		c.Sources = []providerhook.Source{{
			Provider: "sms", Verifier: providerhook.SignedURL, URL: callbackURL,
			Secrets: []providerhook.Secret{{Secret: newer}, {Secret: older, Until: time.Date(2026, 11, 22, 11, 0, 0, 0, time.UTC)}},
			ReferCallback: func(query url.Values, body []byte) (providerhook.Reference, string) {
				send, _ := uuid.Parse(query.Get("send_id"))
				form, _ := url.ParseQuery(string(body))
				if form.Get("MessageSid") == "" {
					return providerhook.Reference{SendID: send}, ""
				}
				return providerhook.Reference{SendID: send, ProviderMessageID: form.Get("MessageSid")}, form.Get("MessageSid") + ":" + form.Get("MessageStatus")
			},
		}}
	})
	return b, newer, older
}

func posted(query, kind, body, sum string) *http.Request {
	r := httptest.NewRequest(http.MethodPost, "http://10.0.0.7:8080/v1/providers/sms/webhooks"+query, strings.NewReader(body))
	r.Header.Set("Content-Type", kind)
	if sum != "" {
		r.Header.Set(signature.HeaderURL, sum)
	}
	return r
}

func TestCallback(t *testing.T) {
	t.Parallel()
	const formType = "application/x-www-form-urlencoded"
	send := uuid.New()
	query := "?send_id=" + send.String()
	form := url.Values{"MessageSid": {"SM1"}, "MessageStatus": {"delivered"}}

	t.Run("IsEnqueuedUnderEitherTokenInEitherForm", func(t *testing.T) {
		t.Parallel()
		b, newer, older := newCallbacks(t)
		for i, by := range []signature.Secret{newer, older} {
			w := b.do(posted(query, formType, form.Encode(), signature.SignURL(by, callbackURL+query, form)))
			require.Equal(t, http.StatusOK, w.Code, w.Body.String())
			got := b.queue.all()[i]
			require.Equal(t, "sms", got.Provider)
			require.Equal(t, "SM1:delivered", got.ProviderEventID, "a repeat has the same id")
			require.Equal(t, send, got.SendID)
			require.Equal(t, "SM1", got.ProviderMessageID)
			require.Equal(t, form.Encode(), string(got.RawBody))
		}
		object := `{"MessageSid":"SM1"}`
		target := signature.URLOf(callbackURL+query, []byte(object))
		w := b.do(posted(strings.TrimPrefix(target, callbackURL), "application/json", object, signature.SignURL(newer, target, nil)))
		require.Equal(t, http.StatusOK, w.Code, w.Body.String())
		require.Len(t, b.queue.all()[2].ProviderEventID, 64, "without an id of its own, its bytes are one")
	})

	t.Run("IsRefusedWithoutAWriteWhereItDoesNotVerify", func(t *testing.T) {
		t.Parallel() // FS-MSG-0003 AC5
		b, newer, older := newCallbacks(t)
		good := signature.SignURL(newer, callbackURL+query, form)
		for name, r := range map[string]*http.Request{
			"no signature":   posted(query, formType, form.Encode(), ""),
			"another body":   posted(query, formType, strings.Replace(form.Encode(), "delivered", "failed", 1), good),
			"another send":   posted("?send_id="+uuid.NewString(), formType, form.Encode(), good),
			"the seen host":  posted(query, formType, form.Encode(), signature.SignURL(newer, "http://10.0.0.7:8080/v1/providers/sms/webhooks"+query, form)),
			"another token":  posted(query, formType, form.Encode(), signature.SignURL(b.secret, callbackURL+query, form)),
			"a form as JSON": posted(query, "application/json", form.Encode(), good),
			"a Svix webhook": func() *http.Request {
				r := b.signed(form.Encode(), newer)
				r.URL.Path = "/v1/providers/sms/webhooks"
				return r
			}(),
		} {
			w := b.refused(r, http.StatusUnauthorized, "invalid_signature")
			require.Equal(t, "SignedURL", w.Header().Get("WWW-Authenticate"), name)
		}
		b.now = b.now.Add(2 * time.Hour)
		b.refused(posted(query, formType, form.Encode(), signature.SignURL(older, callbackURL+query, form)), http.StatusUnauthorized, "invalid_signature")
	})

	t.Run("NeedsItsURL", func(t *testing.T) {
		t.Parallel()
		for _, bad := range []string{"", "carril.example.com", "https://carril.example.com/x?y=1"} {
			_, err := providerhook.New(providerhook.Config{Sources: []providerhook.Source{{
				Provider: "sms", Verifier: providerhook.SignedURL, URL: bad, Secrets: []providerhook.Secret{{Secret: signature.NewSecret()}},
			}}}, providerhook.Deps{Queue: &queue{}})
			require.ErrorContains(t, err, "needs the URL")
		}
	})
}
