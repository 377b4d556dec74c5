package sandbox_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/softcrum/carril/dispatcher/provider/sandbox"
)

func TestFaults(t *testing.T) {
	t.Parallel()

	t.Run("AreMetInOrderByTheirEndpoint", func(t *testing.T) {
		t.Parallel()
		s := start(t, sandbox.Config{Rate: many}, sandbox.Deps{})
		set := call(t, s, "POST", "/sandbox/faults", `[
			{"kind":"status","status":429,"name":"rate_limit_exceeded","retry_after":"-5","endpoint":"batch"},
			{"kind":"status","status":503,"times":2},
			{"kind":"error_in_success","status":422,"name":"invalid_parameter"}]`, "Content-Type", "application/json; charset=utf-8")
		require.Equal(t, 201, set.status, set.body)
		require.Equal(t, 503, call(t, s, "POST", "/emails", email("a@example.com")).status)
		throttled := call(t, s, "POST", "/emails/batch", batch("a@example.com"))
		require.Equal(t, 429, throttled.status)
		require.Equal(t, "-5", throttled.header.Get("Retry-After"))
		require.Equal(t, 503, call(t, s, "POST", "/emails/batch", batch("a@example.com")).status)
		require.Contains(t, call(t, s, "GET", "/sandbox/faults", "").body, "error_in_success")
		require.Equal(t, 401, call(t, s, "POST", "/emails", email("a@example.com"), "Authorization", "").status) // meets none
		require.Equal(t, 204, call(t, s, "DELETE", "/sandbox/faults", "").status)
		require.Equal(t, 200, call(t, s, "POST", "/emails", email("a@example.com")).status)
		require.EqualValues(t, 3, s.Counters().Faults)
	})

	t.Run("AreRefusedWhereTheyAreNone", func(t *testing.T) {
		t.Parallel()
		s := start(t, sandbox.Config{}, sandbox.Deps{})
		for body, kind := range map[string]string{
			`{"kind":"status"}`:                         "text/plain", // what a form of somebody's page can post
			`{"kind":"explode"}`:                        "application/json",
			`{"kind":"status","status":200}`:            "application/json",
			`{"kind":"status","endpoint":"/audiences"}`: "application/json",
			`{"kind":"status","times":-1}`:              "application/json",
			`{`:                                         "application/json",
		} {
			require.GreaterOrEqual(t, call(t, s, "POST", "/sandbox/faults", body, "Content-Type", kind).status, 400, body)
		}
		require.Equal(t, "[]", call(t, s, "GET", "/sandbox/faults", "").body)
		require.Error(t, s.Inject(sandbox.Fault{Kind: "explode"}))
	})

	t.Run("SayInTheLedgerWhatWasAnswered", func(t *testing.T) {
		t.Parallel()
		s := start(t, sandbox.Config{Rate: many}, sandbox.Deps{})
		for _, c := range []struct {
			fault    sandbox.Fault
			answer   string
			receipts int
		}{
			{sandbox.Fault{Kind: sandbox.FaultAcceptThenReset}, "reset", 1},
			{sandbox.Fault{Kind: sandbox.FaultAcceptThenClose}, "close", 1},
			{sandbox.Fault{Kind: sandbox.FaultAcceptThenStatus, Status: 502}, "502", 1},
			{sandbox.Fault{Kind: sandbox.FaultReset}, "reset", 0},
			{sandbox.Fault{Kind: sandbox.FaultStatus, Status: 429, Name: "monthly_quota_exceeded"}, "429", 0},
			{sandbox.Fault{Kind: sandbox.FaultUnparsable}, "200", 1},
		} {
			require.NoError(t, s.Inject(c.fault))
			before := len(s.Receipts())
			_ = post(t.Context(), s, email("a@example.com"))
			requests := s.Requests()
			last := requests[len(requests)-1]
			require.Equal(t, c.fault.Kind, last.Fault)
			require.Equal(t, c.answer, last.Answer)
			receipts := s.Receipts()[before:]
			require.Len(t, receipts, c.receipts, c.fault.Kind)
			for _, r := range receipts {
				require.Equal(t, c.answer, r.Answer)
				require.Equal(t, last.Seq, r.Request)
			}
		}
	})

	t.Run("RepeatTheOriginalAnswerAfterALostOne", func(t *testing.T) {
		t.Parallel()
		s := start(t, sandbox.Config{Rate: many}, sandbox.Deps{})
		require.NoError(t, s.Inject(sandbox.Fault{Kind: sandbox.FaultAcceptThenReset}))
		require.Error(t, post(t.Context(), s, email("a@example.com"), "Idempotency-Key", "k"))
		got := call(t, s, "POST", "/emails", email("a@example.com"), "Idempotency-Key", "k")
		require.Equal(t, []string{s.Receipts()[0].MessageID}, ids(t, got.body))
		require.EqualValues(t, 1, s.Counters().Accepted)
	})

	t.Run("HangUntilTheSandboxStops", func(t *testing.T) {
		t.Parallel()
		for _, kind := range []sandbox.FaultKind{sandbox.FaultHang, sandbox.FaultAcceptThenHang, sandbox.FaultSlowDrip} {
			s := start(t, sandbox.Config{Rate: many}, sandbox.Deps{})
			hangs := make(chan struct{})
			require.NoError(t, s.Inject(sandbox.Fault{Kind: kind, DelayMS: 3_600_000, Reached: func() { close(hangs) }}))
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				_ = post(context.Background(), s, email("a@example.com")) // cut short, or empty
			}()
			<-hangs
			stop(t, s)
			stop(t, s) // harmless twice
			<-ended
		}
	})

	t.Run("DripTheRightAnswerToWhoWaits", func(t *testing.T) {
		t.Parallel()
		s := start(t, sandbox.Config{Rate: many}, sandbox.Deps{})
		require.NoError(t, s.Inject(sandbox.Fault{Kind: sandbox.FaultSlowDrip, DelayMS: 1}))
		got := call(t, s, "POST", "/emails", email("a@example.com"))
		require.Len(t, ids(t, got.body), 1)
	})
}

// post makes a request whose answer may never come.
func post(ctx context.Context, s *sandbox.Server, body string, headers ...string) error {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.URL()+"/emails", strings.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Authorization", "Bearer "+testKey)
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	resp, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(req)
	if err != nil {
		return err
	}
	_, err = io.ReadAll(resp.Body)
	return errors.Join(err, resp.Body.Close())
}
