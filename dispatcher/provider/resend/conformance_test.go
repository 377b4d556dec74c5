package resend_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/softcrum/carril/dispatcher/provider"
	"github.com/softcrum/carril/dispatcher/provider/providertest"
	"github.com/softcrum/carril/dispatcher/provider/resend"
)

const testKey = "re_canary_0123456789"

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func newAdapter(t testing.TB, base string) *resend.Adapter {
	t.Helper()
	a, err := resend.New(resend.Config{APIKey: resend.NewKey(testKey), BaseURL: base}, resend.Deps{})
	require.NoError(t, err)
	t.Cleanup(a.Close)
	return a
}

func TestConformance(t *testing.T) {
	t.Parallel()
	providertest.Run(t, func(t *testing.T) providertest.Subject {
		backend := providertest.NewHTTPBackend(t, dialect{})
		return providertest.Subject{
			Provider:    newAdapter(t, backend.URL),
			Backend:     backend,
			Unreachable: newAdapter(t, "http://"+providertest.UnusedAddress(t)),
			Private:     []string{testKey, "canary_0123456789"},
		}
	})
}

// dialect is Resend's, with messages that repeat what they were sent.
type dialect struct{}

func (dialect) Parse(r *http.Request, body []byte) (string, []uuid.UUID, error) {
	switch {
	case r.Header.Get("Authorization") != "Bearer "+testKey:
		return "", nil, errors.New("no key")
	case r.Header.Get("User-Agent") == "":
		return "", nil, errors.New("no user agent")
	case r.URL.Path == "/emails/batch" && r.Header.Get("X-Batch-Validation") != "permissive":
		return "", nil, errors.New("not permissive")
	}
	type message struct {
		Tags []struct{ Name, Value string }
	}
	messages := make([]message, 1)
	into := any(&messages[0])
	if r.URL.Path == "/emails/batch" {
		into = &messages
	}
	if err := json.Unmarshal(body, into); err != nil {
		return "", nil, fmt.Errorf("read the body: %w", err)
	}
	sends := make([]uuid.UUID, len(messages))
	for i, m := range messages {
		if len(m.Tags) != 2 || m.Tags[0].Name != "send_id" || m.Tags[1].Name != "tenant_id" {
			return "", nil, fmt.Errorf("tags of message %d", i)
		}
		sends[i] = uuid.MustParse(m.Tags[0].Value)
	}
	return r.Header.Get("Idempotency-Key"), sends, nil
}

func (dialect) Success(r *http.Request, ids []string) []byte {
	if r.URL.Path == "/emails" {
		if len(ids) == 0 {
			return []byte(`{}`)
		}
		return fmt.Appendf(nil, `{"id":%q}`, ids[0])
	}
	data, refused := []map[string]string{}, []map[string]any{}
	for i, id := range ids {
		if id == "" {
			refused = append(refused, map[string]any{"index": i, "message": fmt.Sprintf("Invalid `to`: rcpt-%d@example.com", i)})
			continue
		}
		data = append(data, map[string]string{"id": id})
	}
	body, err := json.Marshal(map[string]any{"data": data, "errors": refused})
	if err != nil {
		panic(err)
	}
	return body
}

func (dialect) Failure(kind providertest.Kind, status int) (int, []byte, bool) {
	var name string
	switch kind {
	case providertest.Permanent:
		status, name = 409, "invalid_idempotent_request"
	case providertest.Throttled:
		status, name = 429, "rate_limit_exceeded"
	case providertest.DailyQuota:
		status, name = 429, "daily_quota_exceeded"
	case providertest.MonthlyQuota:
		status, name = 429, "monthly_quota_exceeded"
	case providertest.AccountRefused:
		status, name = 403, "invalid_api_key"
	case providertest.SenderRefused:
		status, name = 403, "validation_error"
	case providertest.InFlight:
		status, name = 409, "concurrent_idempotent_requests"
	case providertest.ErrorInSuccess:
		return 200, envelope(422, "missing_required_field"), true
	case providertest.ServerError, providertest.AcceptThenError:
		name = "application_error"
	case providertest.ItemFailures:
		return 0, nil, true
	default:
		return 0, nil, false
	}
	return status, envelope(status, name), true
}

// envelope repeats all that an error must not.
func envelope(status int, name string) []byte {
	message := "refused <rcpt-0@example.com> for \"Subject canary 0\" under " + testKey
	body, err := json.Marshal(map[string]any{"statusCode": status, "name": name, "message": message})
	if err != nil {
		panic(err)
	}
	return body
}

var _ provider.Provider = (*resend.Adapter)(nil)
