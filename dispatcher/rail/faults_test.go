package rail_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/softcrum/carril/dispatcher/provider"
	"github.com/softcrum/carril/dispatcher/provider/providertest"
	"github.com/softcrum/carril/dispatcher/provider/resend"
	"github.com/softcrum/carril/dispatcher/provider/sandbox"
	"github.com/softcrum/carril/dispatcher/provider/smtp"
	"github.com/softcrum/carril/dispatcher/rail"
	"github.com/softcrum/carril/dispatcher/sends"
	"github.com/softcrum/carril/schemas"
)

// sandboxed gives the real adapter before a sandbox.
func sandboxed(t *testing.T, timeout time.Duration) (*sandbox.Server, *resend.Adapter) {
	t.Helper()
	s, err := sandbox.New(sandbox.Config{Rate: 1_000_000}, sandbox.Deps{})
	require.NoError(t, err)
	require.NoError(t, s.Start(t.Context()))
	a, err := resend.New(resend.Config{APIKey: resend.NewKey("re_canary_0123456789"), BaseURL: s.URL(), Timeout: timeout}, resend.Deps{})
	require.NoError(t, err)
	t.Cleanup(func() {
		a.Close()
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		require.NoError(t, s.Stop(ctx))
	})
	return s, a
}

// took counts how often the sandbox took each send.
func took(s *sandbox.Server) map[string]int {
	out := map[string]int{}
	for _, r := range s.Receipts() {
		if !r.Replay {
			out[r.SendID]++
		}
	}
	return out
}

func (b *bench) attempts() int {
	return b.count(`SELECT coalesce(sum(attempts), 0)::int FROM core.processed_jobs WHERE id_time > now() - interval '1 day' AND starts_with(worker, 'rail:')`)
}

// F29: a 429 in whatever words slows the whole rail down, burns no attempt and
// is followed by no storm.
func TestThrottledInEveryForm(t *testing.T) {
	t.Parallel()
	throttled := func(value string, times int) sandbox.Fault {
		f := sandbox.Fault{Kind: sandbox.FaultStatus, Status: 429, Name: "rate_limit_exceeded", Times: times}
		if value != "absent" {
			f.RetryAfter = &value
		}
		return f
	}

	for _, value := range []string{"0", "-5", "1", "soon", "absent", "Sun, 22 Nov 2020 10:00:30 GMT"} {
		t.Run("ShortAndNoStormAfter_"+value, func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			b.sweep()
			s, a := sandboxed(t, 0)
			require.NoError(t, s.Inject(throttled(value, 2)))
			all := b.enqueue(make([]job, 10)...)
			b.start(setup{provider: a, rate: 20, cfg: func(c *rail.Config) { c.Concurrency = 4 }})
			b.await(10, "sent")
			require.Zero(t, b.attempts())
			require.Len(t, s.Requests(), 12, "each refusal costs the request that it refused")
			for _, id := range all {
				require.Equal(t, 1, took(s)[id.String()])
			}
		})
	}

	for _, value := range []string{"1e9", "99999999999999999999", "Fri, 31 Dec 9999 23:59:59 GMT"} {
		t.Run("LongIsAQuarterOfAnHour_"+value, func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			b.sweep()
			s, a := sandboxed(t, 0)
			require.NoError(t, s.Inject(throttled(value, 1)))
			b.enqueue(make([]job, 3)...)
			b.start(setup{provider: a, rate: 5, cfg: func(c *rail.Config) { c.Concurrency = 1 }})
			d := b.healthDeps("resend")
			var blocked time.Duration
			b.eventually("the provider is left alone", func() bool {
				l, err := d.Buckets.Levels(t.Context(), "resend")
				blocked = l.Blocked
				return err == nil && blocked > 0
			})
			require.LessOrEqual(t, blocked, provider.MaxRetryAfter)
			require.Greater(t, blocked, provider.MaxRetryAfter-2*time.Minute)
			require.Zero(t, b.attempts())
			require.Len(t, s.Requests(), 1)
			require.Zero(t, b.count(`SELECT count(*) FROM core.dead_letters`))
		})
	}

	t.Run("LeavesWhatGoesByAnotherProviderAlone", func(t *testing.T) {
		t.Parallel()
		b := newBench(t)
		b.sweep()
		s, a := sandboxed(t, 0)
		require.NoError(t, s.Inject(throttled("1e9", 1)))
		other := second()
		b.enqueue(job{})
		b.start(setup{provider: a, rate: 5})
		b.eventually("the first is throttled", func() bool { return len(s.Requests()) == 1 })
		_, ids := b.enqueueBatch(b.tenant, 3, nil)
		b.start(setup{provider: other, rail: schemas.RailMarketing})
		b.await(1, "sent")
		everybodyOnce(t, ids, other)
	})
}

// F31: what may have been taken goes again under its key, and counts once.
func TestAmbiguousAnswers(t *testing.T) {
	t.Parallel()
	for _, kind := range []sandbox.FaultKind{sandbox.FaultAcceptThenHang, sandbox.FaultAcceptThenReset, sandbox.FaultAcceptThenClose,
		sandbox.FaultAcceptThenStatus, sandbox.FaultSlowDrip, sandbox.FaultUnparsable, sandbox.FaultHugeBody} {
		t.Run("CountOnceWhereTheProviderKnowsKeys_"+string(kind), func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			b.sweep()
			s, a := sandboxed(t, 5*time.Second) // what is not broken must be answered within it
			require.NoError(t, s.Inject(sandbox.Fault{Kind: kind, Status: 502, Times: 2}))
			all := b.enqueue(make([]job, 5)...)
			b.start(setup{provider: a, cfg: func(c *rail.Config) { c.BackoffMax = 200 * time.Millisecond }})
			b.await(5, "sent")
			require.Len(t, s.Requests(), 7)
			for _, id := range all {
				require.Equal(t, 1, took(s)[id.String()])
			}
		})
	}

	// The same at a relay: cut behind the final dot, a transactional message goes
	// again once, as the policy has it; before the dot it was not taken.
	for name, cut := range map[string]providertest.Behaviour{
		"reset": {Kind: providertest.AcceptThenReset}, "close": {Kind: providertest.AcceptThenClose}, "unparsable": {Kind: providertest.Unparsable},
	} {
		t.Run(fmt.Sprint("GoToARelayOnceMore_", name), func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			b.sweep()
			relay, a := relayed(t)
			relay.Enact(cut)
			all := b.enqueue(make([]job, 3)...)
			b.start(setup{provider: a, store: func(c *sends.Config) { c.UncertainRepeats = 1 }, cfg: func(c *rail.Config) { c.BackoffMax = 200 * time.Millisecond }})
			b.await(3, "sent")
			require.Len(t, relay.Requests(), 4)
			total := 0
			for _, id := range all {
				n := len(relay.IDs()[id])
				require.GreaterOrEqual(t, n, 1)
				require.LessOrEqual(t, n, 2)
				total += n
			}
			require.Equal(t, 4, total, "one of them twice, which is what the policy accepts")
		})
	}

	t.Run("AreForAPersonWhereThePolicySaysSo", func(t *testing.T) {
		t.Parallel()
		b := newBench(t)
		b.sweep()
		relay, a := relayed(t)
		relay.Enact(providertest.Behaviour{Kind: providertest.AcceptThenReset})
		b.enqueue(job{})
		b.start(setup{provider: a})
		b.await(1, "needs_review")
		require.Len(t, relay.Requests(), 1)
	})
}

// F32 at a relay: each refusal ends as what it is, and none is tried again.
func TestRelayRefusals(t *testing.T) {
	t.Parallel()

	t.Run("FailTheirMessageAlone", func(t *testing.T) {
		t.Parallel()
		b := newBench(t)
		b.sweep()
		relay, a := relayed(t)
		relay.On(providertest.AtRcpt, "550 5.1.1 No such user")
		all := b.enqueue(make([]job, 4)...)
		b.start(setup{provider: a, cfg: func(c *rail.Config) { c.Concurrency = 1 }})
		b.await(3, "sent")
		b.await(1, "failed")
		failed := uuid.Nil
		for _, id := range all {
			if len(relay.IDs()[id]) == 0 {
				failed = id
			}
		}
		require.Equal(t, 1, b.history(failed)["failed"])
		require.Equal(t, 1, b.count(`SELECT count(*) FROM messaging.send_status_history WHERE requested_at > now() - interval '1 day' AND send_id = $1 AND reason = 'recipient_refused'`, failed))
		require.Len(t, relay.Requests(), 4)
	})

	t.Run("OfTheSenderHoldItsTenantAlone", func(t *testing.T) {
		t.Parallel()
		b := newBench(t)
		b.sweep()
		relay, a := relayed(t)
		relay.On(providertest.AtMail, "550 5.7.1 Not yours")
		b.enqueue(job{})
		b.start(setup{provider: a})
		b.await(1, "held")
		b.exec(`UPDATE messaging.senders SET paused_at = NULL WHERE tenant_id = $1`, b.tenant)
		b.await(1, "sent")
	})

	t.Run("OfTheAccountWaitForWhoeverRepairsIt", func(t *testing.T) {
		t.Parallel() // PDF-012G: SMTP_AUTH_FAILED
		b := newBench(t)
		b.sweep()
		relay, a := relayed(t)
		relay.On(providertest.AtAuth, "535 5.7.8 Bad credentials")
		relay.On(providertest.AtAuth, "535 5.7.8 Bad credentials")
		b.enqueue(job{})
		b.start(setup{provider: a, cfg: func(c *rail.Config) { c.Recheck = 100 * time.Millisecond }})
		b.await(1, "sent")
		require.Zero(t, b.attempts())
	})

	t.Run("ForAWhileAreTriedAgain", func(t *testing.T) {
		t.Parallel()
		b := newBench(t)
		b.sweep()
		relay, a := relayed(t)
		for range 7 {
			relay.On(providertest.AtRcpt, "450 4.7.1 Greylisted")
		}
		id := b.enqueue(job{})[0]
		b.start(setup{provider: a, cfg: func(c *rail.Config) { c.Tries, c.BackoffMax = 100, 50*time.Millisecond }})
		b.await(1, "sent")
		require.Len(t, relay.IDs()[id], 1)
		require.Equal(t, 7, b.attempts())
		require.True(t, strings.HasPrefix(relay.IDs()[id][0], id.String()))
	})
}

// relayed gives the real adapter before a relay.
func relayed(t *testing.T) (*providertest.SMTPBackend, *smtp.Adapter) {
	t.Helper()
	relay := providertest.NewSMTPBackend(t, providertest.SMTPOptions{})
	a, err := smtp.New(smtp.Config{Addr: relay.Addr, User: providertest.SMTPUser, Password: smtp.NewPassword(providertest.SMTPPassword)}, smtp.Deps{RootCAs: relay.Roots})
	require.NoError(t, err)
	t.Cleanup(a.Close)
	return relay, a
}
