package signature_test

import (
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/softcrum/carril/internal/signature"
)

const callback = "https://carril.example.com/v1/providers/sms/webhooks?send_id=1"

func token(t *testing.T, s string) signature.Secret {
	t.Helper()
	secret, err := signature.ParseToken(s)
	require.NoError(t, err)
	return secret
}

func carried(kind, sum string) http.Header {
	return http.Header{"Content-Type": {kind}, signature.HeaderURL: {sum}}
}

func TestSignURL(t *testing.T) {
	t.Parallel()

	t.Run("IsWhatAnotherToolComputes", func(t *testing.T) {
		t.Parallel() // by openssl: printf '%s' "$URL$PARAMS" | openssl dgst -sha1 -hmac 1234567890123456 -binary | base64
		form := url.Values{"CallSid": {"CA1234567890ABCDE"}, "Caller": {"+14158675309"}, "Digits": {"1234"}, "From": {"+14158675309"}, "To": {"+18005551212"}}
		require.Equal(t, "wF9MuQDFJj973cftEXjb32VWEvY=", signature.SignURL(token(t, "1234567890123456"), "https://mycompany.example.com/myapp.php?foo=1&bar=2", form))
	})

	t.Run("IsVerifiedWithAnyTokenThatHolds", func(t *testing.T) {
		t.Parallel()
		older, newer := token(t, "older-token-0123456789"), token(t, "newer-token-0123456789")
		form := url.Values{"MessageSid": {"SM1"}, "MessageStatus": {"delivered"}, "Empty": {""}, "Twice": {"b", "a"}}
		for _, by := range []signature.Secret{older, newer} {
			require.NoError(t, signature.VerifyURL([]signature.Secret{newer, older}, callback, carried("application/x-www-form-urlencoded; charset=utf-8", signature.SignURL(by, callback, form)), []byte(form.Encode())))
			body := []byte(`{"MessageSid":"SM1"}`)
			target := signature.URLOf(callback, body)
			require.NoError(t, signature.VerifyURL([]signature.Secret{newer, older}, target, carried("application/json", signature.SignURL(by, target, nil)), body))
		}
		require.Equal(t, signature.ErrMismatch, signature.VerifyURL([]signature.Secret{newer}, callback, carried("application/x-www-form-urlencoded", signature.SignURL(older, callback, form)), []byte(form.Encode())))
	})

	t.Run("CoversAllThatArrives", func(t *testing.T) {
		t.Parallel()
		secret := token(t, "token-canary-0123456789")
		form := url.Values{"MessageSid": {"SM1"}, "MessageStatus": {"sent"}}
		body, object := form.Encode(), `{"MessageSid":"SM1"}`
		target := signature.URLOf(callback, []byte(object))
		sum, jsonSum := signature.SignURL(secret, callback, form), signature.SignURL(secret, target, nil)
		const formType, jsonType = "application/x-www-form-urlencoded", "application/json"
		for name, c := range map[string]struct {
			target, body string
			headers      http.Header
			want         error
		}{
			"another value":              {callback, strings.Replace(body, "sent", "delivered", 1), carried(formType, sum), signature.ErrMismatch},
			"one parameter more":         {callback, body + "&To=x", carried(formType, sum), signature.ErrMismatch},
			"one parameter less":         {callback, "MessageSid=SM1", carried(formType, sum), signature.ErrMismatch},
			"another query":              {callback + "2", body, carried(formType, sum), signature.ErrMismatch},
			"another host":               {strings.Replace(callback, "carril", "other", 1), body, carried(formType, sum), signature.ErrMismatch},
			"a form called JSON":         {callback, body, carried(jsonType, sum), signature.ErrMismatch},
			"a form without a type":      {callback, body, carried("", sum), signature.ErrMismatch},
			"another JSON":               {target, object + " ", carried(jsonType, jsonSum), signature.ErrMismatch},
			"JSON without its digest":    {callback, object, carried(jsonType, signature.SignURL(secret, callback, nil)), signature.ErrMismatch},
			"JSON's signature on a form": {target, body, carried(formType, jsonSum), signature.ErrMismatch},
			"no signature":               {callback, body, http.Header{"Content-Type": {formType}}, signature.ErrMissingHeader},
			"two signatures":             {callback, body, http.Header{"Content-Type": {formType}, signature.HeaderURL: {sum, sum}}, signature.ErrRepeatedHeader},
			"no Base64":                  {callback, body, carried(formType, "!"), signature.ErrMalformedSignature},
			"a short one":                {callback, body, carried(formType, "AAAA"), signature.ErrMalformedSignature},
			"an empty one":               {callback, body, carried(formType, ""), signature.ErrMalformedSignature},
			"no form at all":             {callback, "%zz", carried(formType, sum), signature.ErrMalformedSignature},
		} {
			require.Equal(t, c.want, signature.VerifyURL([]signature.Secret{secret}, c.target, c.headers, []byte(c.body)), name)
		}
		require.Equal(t, signature.ErrNoSecrets, signature.VerifyURL([]signature.Secret{{}}, callback, carried(formType, sum), []byte(body)))
	})

	t.Run("TakesNoTokenThatAnybodyKnows", func(t *testing.T) {
		t.Parallel()
		for _, s := range []string{"", "short", strings.Repeat("x", 32), "a token with spaces 0123", strings.Repeat("ab", 100)} {
			_, err := signature.ParseToken(s)
			require.ErrorIs(t, err, signature.ErrWeakSecret)
		}
	})
}
