package sandbox_test

import (
	"net/http"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/softcrum/carril/dispatcher/provider/providertest"
	"github.com/softcrum/carril/dispatcher/provider/resend"
	"github.com/softcrum/carril/dispatcher/provider/sandbox"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const testKey = "re_canary_0123456789"

func newAdapter(t testing.TB, base string) *resend.Adapter {
	t.Helper()
	a, err := resend.New(resend.Config{APIKey: resend.NewKey(testKey), BaseURL: base}, resend.Deps{})
	require.NoError(t, err)
	t.Cleanup(a.Close)
	return a
}

// The real adapter passes its suite against the sandbox too: what the sandbox
// does on demand is what the suite's own server does.
func TestConformance(t *testing.T) {
	t.Parallel()
	providertest.Run(t, func(t *testing.T) providertest.Subject {
		s := start(t, sandbox.Config{Rate: 1_000_000}, sandbox.Deps{})
		return providertest.Subject{
			Provider:    newAdapter(t, s.URL()),
			Backend:     backend{s},
			Unreachable: newAdapter(t, "http://"+providertest.UnusedAddress(t)),
			Private:     []string{testKey},
		}
	})
}

// backend gives the sandbox the suite's orders.
type backend struct{ *sandbox.Server }

func (b backend) Supports(kind providertest.Kind) bool {
	_, ok := faultFor(providertest.Behaviour{Kind: kind})
	return ok || kind == providertest.OK || kind == providertest.NamedWait
}

func (b backend) Enact(list ...providertest.Behaviour) {
	for _, behaviour := range list {
		if f, ok := faultFor(behaviour); ok {
			if err := b.Inject(f); err != nil {
				panic(err)
			}
		}
	}
}

func (b backend) Requests() []providertest.Request {
	var out []providertest.Request
	for _, r := range b.Server.Requests() {
		out = append(out, providertest.Request{Key: r.Key})
	}
	return out
}

func (b backend) IDs() map[uuid.UUID][]string {
	out := map[uuid.UUID][]string{}
	for _, r := range b.Receipts() {
		if !r.Replay {
			id := uuid.MustParse(r.SendID)
			out[id] = append(out[id], r.MessageID)
		}
	}
	return out
}

func faultFor(b providertest.Behaviour) (sandbox.Fault, bool) {
	f := sandbox.Fault{
		Kind: sandbox.FaultStatus, Status: b.Status, Items: b.Items, RetryAfter: b.RetryAfter, Reached: b.Reached,
		Message: "refused <rcpt-0@example.com> \"Subject canary 0\" " + testKey,
	}
	switch b.Kind {
	case providertest.Permanent:
		f.Status, f.Name = http.StatusUnprocessableEntity, "invalid_parameter"
	case providertest.Throttled:
		f.Status, f.Name = http.StatusTooManyRequests, "rate_limit_exceeded"
	case providertest.DailyQuota:
		f.Status, f.Name = http.StatusTooManyRequests, "daily_quota_exceeded"
	case providertest.MonthlyQuota:
		f.Status, f.Name = http.StatusTooManyRequests, "monthly_quota_exceeded"
	case providertest.AccountRefused:
		f.Status, f.Name = http.StatusForbidden, "suspended_api_key"
	case providertest.SenderRefused:
		f.Status, f.Name = http.StatusForbidden, "validation_error"
	case providertest.InFlight:
		f.Status, f.Name = http.StatusConflict, "concurrent_idempotent_requests"
	case providertest.ServerError:
	case providertest.ErrorInSuccess:
		f.Kind, f.Status, f.Name = sandbox.FaultErrorInSuccess, http.StatusUnprocessableEntity, "invalid_parameter"
	case providertest.ItemFailures:
		f.Kind = sandbox.FaultPartial
	case providertest.AcceptThenError:
		f.Kind = sandbox.FaultAcceptThenStatus
	case providertest.AcceptThenHang:
		f.Kind = sandbox.FaultAcceptThenHang
	case providertest.AcceptThenReset:
		f.Kind = sandbox.FaultAcceptThenReset
	case providertest.AcceptThenClose:
		f.Kind = sandbox.FaultAcceptThenClose
	case providertest.Reset:
		f.Kind = sandbox.FaultReset
	case providertest.SlowDrip:
		f.Kind = sandbox.FaultSlowDrip
	case providertest.HugeBody:
		f.Kind = sandbox.FaultHugeBody
	case providertest.Unparsable:
		f.Kind = sandbox.FaultUnparsable
	case providertest.Short:
		f.Kind = sandbox.FaultShort
	default:
		return sandbox.Fault{}, false
	}
	return f, true
}
