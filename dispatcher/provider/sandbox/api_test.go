package sandbox_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/softcrum/carril/dispatcher/provider/providertest"
	"github.com/softcrum/carril/dispatcher/provider/sandbox"
)

const many = 1_000_000 // a rate that nothing here reaches

func TestAPI(t *testing.T) {
	t.Parallel()

	t.Run("AnswersWhatResendDescribes", func(t *testing.T) {
		t.Parallel()
		s := start(t, sandbox.Config{}, sandbox.Deps{})
		one := call(t, s, "POST", "/emails", email("a@example.com"))
		require.Equal(t, 200, one.status)
		two := call(t, s, "POST", "/emails/batch", batch("a@example.com", "b@example.com"))
		require.Equal(t, 200, two.status)
		require.Len(t, ids(t, two.body), 2)
		require.NotEqual(t, ids(t, two.body)[0], ids(t, two.body)[1])
		schemas := providertest.Schemas(t)
		providertest.Conforms(t, schemas, "SendEmailResponse", []byte(one.body))
		providertest.Conforms(t, schemas, "CreateBatchEmailsResponse", []byte(two.body))
	})

	t.Run("RefusesAsResendDoes", func(t *testing.T) {
		t.Parallel()
		s := start(t, sandbox.Config{Rate: many, UnverifiedDomains: []string{"other.example.com"}}, sandbox.Deps{})
		good := email("a@example.com")
		with := func(old, replacement string) string {
			require.Contains(t, good, old)
			return strings.Replace(good, old, replacement, 1)
		}
		for _, c := range []struct {
			what, method, path, body string
			headers                  []string
			status                   int
			name                     string
		}{
			{"no key", "POST", "/emails", good, []string{"Authorization", ""}, 401, "missing_api_key"},
			{"no bearer", "POST", "/emails", good, []string{"Authorization", "Basic x"}, 401, "missing_api_key"},
			{"another key", "POST", "/emails", good, []string{"Authorization", "Bearer sk_x"}, 403, "invalid_api_key"},
			{"restricted", "POST", "/emails", good, []string{"Authorization", "Bearer re_restricted_1"}, 401, "restricted_api_key"},
			{"suspended", "POST", "/emails", good, []string{"Authorization", "Bearer re_suspended_1"}, 403, "suspended_api_key"},
			{"no user agent", "POST", "/emails", good, []string{"User-Agent", ""}, 403, ""},
			{"unknown path", "POST", "/audiences", "{}", nil, 404, "not_found"},
			{"contacts", "POST", "/contacts", "{}", nil, 404, "not_found"},
			{"method", "GET", "/emails", "", nil, 405, "method_not_allowed"},
			{"method of batch", "PUT", "/emails/batch", "[]", nil, 405, "method_not_allowed"},
			{"not JSON", "POST", "/emails", "{", nil, 400, "validation_error"},
			{"batch of no array", "POST", "/emails/batch", good, nil, 400, "validation_error"},
			{"an array for one", "POST", "/emails", "[" + good + "]", nil, 422, "invalid_parameter"},
			{"no from", "POST", "/emails", with(`"from"`, `"x"`), nil, 422, "missing_required_field"},
			{"no to", "POST", "/emails", with(`"to"`, `"x"`), nil, 422, "missing_required_field"},
			{"no subject", "POST", "/emails", with(`"subject"`, `"x"`), nil, 422, "missing_required_field"},
			{"no content", "POST", "/emails", with(`"html"`, `"x"`), nil, 422, "missing_required_field"},
			{"from", "POST", "/emails", with(`Shop <shop@example.com>`, `nobody`), nil, 422, "invalid_from_address"},
			{"to", "POST", "/emails", with(`a@example.com`, `nobody`), nil, 422, "invalid_parameter"},
			{"to of lines", "POST", "/emails", with(`a@example.com`, `a@example.com\r\nBcc: b@example.com`), nil, 422, "invalid_parameter"},
			{"to of a number", "POST", "/emails", with(`["a@example.com"]`, `7`), nil, 422, "invalid_parameter"},
			{"51 to", "POST", "/emails", with(`["a@example.com"]`, `[`+strings.Repeat(`"a@example.com",`, 50)+`"b@example.com"]`), nil, 422, "invalid_parameter"},
			{"tag", "POST", "/emails", with(`"t1"`, `"t 1"`), nil, 422, "invalid_parameter"},
			{"long tag", "POST", "/emails", with(`"t1"`, `"`+strings.Repeat("a", 257)+`"`), nil, 422, "invalid_parameter"},
			{"header of lines", "POST", "/emails", with(`"tags"`, `"headers":{"X-A":"1\r\nBcc: b"},"tags"`), nil, 422, "invalid_parameter"},
			{"rejected@", "POST", "/emails", email("rejected+1@example.com"), nil, 422, "invalid_parameter"},
			{"unverified", "POST", "/emails", with("shop@example.com", "shop@Other.example.com"), nil, 403, "validation_error"},
			{"empty batch", "POST", "/emails/batch", "[]", nil, 422, "invalid_parameter"},
			{"101 in a batch", "POST", "/emails/batch", "[" + strings.Repeat(good+",", 100) + good + "]", nil, 422, "invalid_parameter"},
			{"attachment in a batch", "POST", "/emails/batch", "[" + with(`"tags"`, `"attachments":[],"tags"`) + "]", nil, 422, "invalid_parameter"},
			{"schedule in a batch", "POST", "/emails/batch", "[" + with(`"tags"`, `"scheduled_at":"2027-01-01","tags"`) + "]", nil, 422, "invalid_parameter"},
			{"long key", "POST", "/emails", good, []string{"Idempotency-Key", strings.Repeat("k", 257)}, 400, "invalid_idempotency_key"},
		} {
			got := call(t, s, c.method, c.path, c.body, c.headers...)
			require.Equal(t, c.status, got.status, "%s: %s", c.what, got.body)
			require.Equal(t, c.name, got.name, c.what)
		}
		require.Zero(t, s.Counters().Accepted)
		require.Empty(t, s.Receipts())
		require.EqualValues(t, 2, s.Counters().UnknownPaths)
		require.Len(t, s.Requests(), int(s.Counters().Failed))
	})

	t.Run("TakesOnlyItsOwnKeysWhereItHasSome", func(t *testing.T) {
		t.Parallel()
		s := start(t, sandbox.Config{APIKeys: []string{"re_mine"}}, sandbox.Deps{})
		require.Equal(t, "invalid_api_key", call(t, s, "POST", "/emails", email("a@example.com")).name)
		require.Equal(t, 200, call(t, s, "POST", "/emails", email("a@example.com"), "Authorization", "Bearer re_mine").status)
	})

	t.Run("FailsAStrictBatchAsAWholeAndAPermissiveOneInPart", func(t *testing.T) {
		t.Parallel()
		s := start(t, sandbox.Config{Rate: many}, sandbox.Deps{})
		body := batch("a@example.com", "rejected@example.com", "b@example.com", "nobody")
		strict := call(t, s, "POST", "/emails/batch", body)
		require.Equal(t, 422, strict.status)
		require.Zero(t, s.Counters().Accepted)

		permissive := call(t, s, "POST", "/emails/batch", body, "x-batch-validation", "permissive")
		require.Equal(t, 200, permissive.status)
		var got struct {
			Data   []struct{ ID string }
			Errors []struct {
				Index   int
				Message string
			}
		}
		require.NoError(t, json.Unmarshal([]byte(permissive.body), &got))
		require.Len(t, got.Data, 2)
		require.Len(t, got.Errors, 2)
		require.Equal(t, 1, got.Errors[0].Index)
		require.Equal(t, 3, got.Errors[1].Index)
		receipts := s.Receipts()
		require.Len(t, receipts, 2)
		require.Equal(t, []string{"a@example.com", got.Data[0].ID}, []string{receipts[0].To, receipts[0].MessageID})
		require.Equal(t, []string{"b@example.com", got.Data[1].ID}, []string{receipts[1].To, receipts[1].MessageID})
		require.EqualValues(t, 2, s.Counters().Refused)
	})
}

func TestRate(t *testing.T) {
	t.Parallel()

	t.Run("IsOneForTheTeamOverAllKeysAndEndpoints", func(t *testing.T) {
		t.Parallel()
		now := newClock()
		s := start(t, sandbox.Config{}, sandbox.Deps{Now: now.Now})
		for i := range 5 {
			path, body := "/emails", email("a@example.com")
			if i%2 == 0 {
				path, body = "/emails/batch", batch("a@example.com", "b@example.com") // a batch is one request
			}
			got := call(t, s, "POST", path, body, "Authorization", fmt.Sprint("Bearer re_key_", i))
			require.Equal(t, 200, got.status)
			require.Equal(t, "5", got.header.Get("ratelimit-limit"))
			require.Equal(t, fmt.Sprint(4-i), got.header.Get("ratelimit-remaining"))
			require.Equal(t, "1", got.header.Get("ratelimit-reset"))
		}
		full := call(t, s, "POST", "/emails", email("a@example.com"))
		require.Equal(t, 429, full.status)
		require.Equal(t, "rate_limit_exceeded", full.name)
		require.Equal(t, "1", full.header.Get("retry-after"))
		require.Equal(t, "0", full.header.Get("ratelimit-remaining"))
		require.EqualValues(t, 1, s.Counters().RateLimited)
		now.Add(999 * time.Millisecond)
		require.Equal(t, 429, call(t, s, "POST", "/emails", email("a@example.com")).status)
		now.Add(time.Millisecond)
		require.Equal(t, 200, call(t, s, "POST", "/emails", email("a@example.com")).status)
	})

	t.Run("IsNotSpentByWhoHasNoKey", func(t *testing.T) {
		t.Parallel()
		now := newClock()
		s := start(t, sandbox.Config{Rate: 1, Window: time.Minute}, sandbox.Deps{Now: now.Now})
		require.Equal(t, 401, call(t, s, "POST", "/emails", "{}", "Authorization", "").status)
		got := call(t, s, "POST", "/emails", email("a@example.com"))
		require.Equal(t, 200, got.status)
		require.Equal(t, "2", got.header.Get("ratelimit-reset")) // 58 s into the minute
	})
}

func TestQuota(t *testing.T) {
	t.Parallel()
	now := newClock() // two seconds before a month's end
	s := start(t, sandbox.Config{Rate: many, DailyQuota: 3, MonthlyQuota: 5}, sandbox.Deps{Now: now.Now})
	send := func(n int) reply {
		to := make([]string, n)
		for i := range to {
			to[i] = "a@example.com"
		}
		return call(t, s, "POST", "/emails/batch", batch(to...))
	}

	require.Equal(t, "2", send(2).header.Get("x-resend-daily-quota"))
	over := send(2)
	require.Equal(t, "daily_quota_exceeded", over.name, "a batch is taken whole or not at all")
	require.Equal(t, "2", over.header.Get("retry-after"))
	require.Equal(t, "2", over.header.Get("x-resend-daily-quota"))
	require.Equal(t, 200, send(1).status)
	require.Equal(t, 429, send(1).status)

	now.Add(2 * time.Second) // another day, and another month
	first := send(3)
	require.Equal(t, 200, first.status)
	require.Equal(t, "3", first.header.Get("x-resend-daily-quota"))
	require.Equal(t, "3", first.header.Get("x-resend-monthly-quota"))
	now.Add(24 * time.Hour)
	require.Equal(t, 200, send(2).status)
	require.Equal(t, "monthly_quota_exceeded", send(1).name)
}

func TestIdempotency(t *testing.T) {
	t.Parallel()

	t.Run("GivesTheOriginalAnswerForTheSameRequest", func(t *testing.T) {
		t.Parallel()
		s := start(t, sandbox.Config{Rate: many}, sandbox.Deps{})
		for path, body := range map[string]string{
			"/emails":       email("a@example.com"),
			"/emails/batch": batch("a@example.com", "rejected@example.com", "b@example.com"),
		} {
			headers := []string{"Idempotency-Key", "key" + path, "x-batch-validation", "permissive"}
			first := call(t, s, "POST", path, body, headers...)
			again := call(t, s, "POST", path, body, headers...)
			require.Equal(t, first.body, again.body)
			require.Equal(t, 200, again.status)
		}
		require.EqualValues(t, 3, s.Counters().Accepted)
		require.EqualValues(t, 2, s.Counters().Replayed)
		receipts := s.Receipts()
		require.Len(t, receipts, 6) // each message of each physical request
		replays := 0
		for _, r := range receipts {
			if r.Replay {
				replays++
			}
			require.NotEmpty(t, r.BodySHA256)
			require.Equal(t, "t1", r.TenantID)
			require.Equal(t, "200", r.Answer)
		}
		require.Equal(t, 3, replays)
	})

	t.Run("RefusesAnotherPayload", func(t *testing.T) {
		t.Parallel()
		s := start(t, sandbox.Config{Rate: many}, sandbox.Deps{})
		require.Equal(t, 200, call(t, s, "POST", "/emails", email("a@example.com"), "Idempotency-Key", "k").status)
		require.Equal(t, "invalid_idempotent_request", call(t, s, "POST", "/emails", email("b@example.com"), "Idempotency-Key", "k").name)
		require.Equal(t, "invalid_idempotent_request", call(t, s, "POST", "/emails/batch", batch("a@example.com"), "Idempotency-Key", "k").name)
	})

	t.Run("RefusesAKeyThatIsBeingWorkedOn", func(t *testing.T) {
		t.Parallel()
		s := start(t, sandbox.Config{Rate: many, Latency: 300 * time.Millisecond}, sandbox.Deps{})
		var mu sync.Mutex
		names := map[string]int{}
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				got := call(t, s, "POST", "/emails", email("a@example.com"), "Idempotency-Key", "k")
				mu.Lock()
				defer mu.Unlock()
				names[got.name]++
			})
		}
		wg.Wait()
		require.Positive(t, names[""])
		require.Equal(t, 8, names[""]+names["concurrent_idempotent_requests"])
		require.EqualValues(t, 1, s.Counters().Accepted)
	})

	t.Run("ForgetsAKeyAfterADayAndAfterARefusal", func(t *testing.T) {
		t.Parallel()
		now := newClock()
		s := start(t, sandbox.Config{Rate: many}, sandbox.Deps{Now: now.Now})
		require.Equal(t, 422, call(t, s, "POST", "/emails", email("rejected@example.com"), "Idempotency-Key", "k").status)
		require.Equal(t, 200, call(t, s, "POST", "/emails", email("a@example.com"), "Idempotency-Key", "k").status)
		now.Add(24*time.Hour - time.Nanosecond)
		require.Equal(t, 409, call(t, s, "POST", "/emails", email("b@example.com"), "Idempotency-Key", "k").status)
		now.Add(time.Nanosecond)
		require.Equal(t, 200, call(t, s, "POST", "/emails", email("b@example.com"), "Idempotency-Key", "k").status)
	})

	t.Run("RemembersSoManyKeys", func(t *testing.T) {
		t.Parallel()
		s := start(t, sandbox.Config{Rate: many, MaxKeys: 2}, sandbox.Deps{})
		for _, key := range []string{"1", "2", "3", "3", "2", "1"} {
			require.Equal(t, 200, call(t, s, "POST", "/emails", email("a@example.com"), "Idempotency-Key", key).status)
		}
		require.EqualValues(t, 4, s.Counters().Accepted) // only 1 had been forgotten
	})
}

func TestStates(t *testing.T) {
	t.Parallel()

	t.Run("AreBoundedWhileTheCountersGoOn", func(t *testing.T) {
		t.Parallel()
		s := start(t, sandbox.Config{Rate: many, MaxReceipts: 3, MaxRequests: 2, MaxContents: 1}, sandbox.Deps{})
		for i := range 5 {
			call(t, s, "POST", "/emails", email(fmt.Sprintf("a%d@example.com", i)))
		}
		receipts := s.Receipts()
		require.Len(t, receipts, 3)
		require.Equal(t, []uint64{3, 4, 5}, []uint64{receipts[0].Seq, receipts[1].Seq, receipts[2].Seq})
		require.Equal(t, "a4@example.com", receipts[2].To)
		require.Len(t, s.Requests(), 2)
		require.Len(t, s.Contents(), 1)
		require.EqualValues(t, 5, s.Counters().Accepted)
		require.EqualValues(t, 5, s.Counters().Requests)
	})
}
