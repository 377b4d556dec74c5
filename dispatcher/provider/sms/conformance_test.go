package sms_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/softcrum/carril/dispatcher/provider"
	"github.com/softcrum/carril/dispatcher/provider/providertest"
	"github.com/softcrum/carril/dispatcher/provider/sms"
)

const (
	testToken   = "token-canary-0123456789"
	testAccount = "AC00000000000000000000000000000001"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func config(base string) sms.Config {
	return sms.Config{BaseURL: base, Account: testAccount, Token: sms.NewToken(testToken), CallbackURL: "https://carril.example.com/v1/providers/sms/webhooks"}
}

func newAdapter(t testing.TB, base string) *sms.Adapter {
	t.Helper()
	a, err := sms.New(config(base), sms.Deps{})
	require.NoError(t, err)
	t.Cleanup(a.Close)
	return a
}

// message is the i-th of a few that differ.
func message(i int) provider.Message {
	return provider.Message{
		SendID: uuid.NewSHA1(uuid.NameSpaceOID, fmt.Appendf(nil, "send %d", i)), TenantID: uuid.NewSHA1(uuid.NameSpaceOID, []byte("tenant")),
		From: "+15005550006", To: fmt.Sprintf("+5068888%04d", i), Text: fmt.Sprintf("Text canary %d", i),
	}
}

func TestConformance(t *testing.T) {
	t.Parallel()
	providertest.Run(t, func(t *testing.T) providertest.Subject {
		backend := providertest.NewHTTPBackend(t, dialect{})
		return providertest.Subject{
			Provider:    newAdapter(t, backend.URL),
			Backend:     backend,
			Unreachable: newAdapter(t, "http://"+providertest.UnusedAddress(t)),
			Message:     message,
			Private:     []string{testToken},
		}
	})
}

// dialect is the API's, with messages that repeat what they were sent.
type dialect struct{}

func (dialect) Parse(r *http.Request, body []byte) (string, []uuid.UUID, error) {
	user, password, _ := r.BasicAuth()
	switch {
	case user != testAccount || password != testToken:
		return "", nil, errors.New("no token")
	case r.Method != http.MethodPost || r.URL.Path != "/2010-04-01/Accounts/"+testAccount+"/Messages.json":
		return "", nil, errors.New("no such path")
	}
	form, err := url.ParseQuery(string(body))
	if err != nil {
		return "", nil, err
	}
	callback, err := url.Parse(form.Get("StatusCallback"))
	if err != nil {
		return "", nil, err
	}
	return "", []uuid.UUID{uuid.MustParse(callback.Query().Get("send_id"))}, nil
}

func (dialect) Success(_ *http.Request, ids []string) []byte {
	return fmt.Appendf(nil, `{"sid":%q,"status":"queued","error_code":null,"error_message":null,"num_segments":"1"}`, ids[0])
}

func (dialect) Failure(kind providertest.Kind, status int) (int, []byte, bool) {
	switch kind {
	case providertest.Permanent:
		return 400, envelope(400, 21211), true
	case providertest.Throttled:
		return 429, envelope(429, 20429), true
	case providertest.DailyQuota:
		return 429, envelope(429, 63038), true
	case providertest.AccountRefused:
		return 401, envelope(401, 20003), true
	case providertest.SenderRefused:
		return 400, envelope(400, 21606), true
	case providertest.ErrorInSuccess:
		return 200, envelope(400, 21610), true
	case providertest.ServerError, providertest.AcceptThenError:
		return status, envelope(status, 20500), true
	default:
		return 0, nil, false
	}
}

// envelope repeats all that an error must not.
func envelope(status, code int) []byte {
	message := "The number +50688880000 of 'Text canary 0' is refused under " + testToken
	body, err := json.Marshal(map[string]any{"status": status, "code": code, "message": message, "more_info": "https://example.com/" + fmt.Sprint(code)})
	if err != nil {
		panic(err)
	}
	return body
}
