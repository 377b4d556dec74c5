package providertest

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/softcrum/carril/dispatcher/provider"
)

// Run runs the suite, with a fresh subject for each case.
func Run(t *testing.T, fresh func(t *testing.T) Subject) {
	t.Helper()
	one := fresh(t) // says what its protocol has: what it has not is no case
	for name, test := range map[string]func(*testing.T, *bench){
		"States":   testStates,
		"Freeze":   testFreeze,
		"Accepts":  testAccepts,
		"Refusals": testRefusals,
		"Waits":    testWaits,
		"Unclear":  testUnclear,
		"Cut":      testCut,
		"Keys":     testKeys,
		"Context":  testContext,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, &bench{fresh: fresh, supports: one.Backend.Supports, keys: one.Provider.Capabilities().IdempotencyKeys})
		})
	}
}

// bench makes subjects for the cases of one group.
type bench struct {
	fresh    func(t *testing.T) Subject
	supports func(Kind) bool
	keys     bool // the provider has idempotency keys
}

// subject is a Subject with what the cases need of it.
type subject struct {
	Subject
	t    *testing.T
	caps provider.Capabilities
}

func (b *bench) run(t *testing.T, name string, kind Kind, test func(s *subject)) {
	t.Helper()
	if !b.supports(kind) {
		return
	}
	t.Run(name, func(t *testing.T) {
		t.Parallel()
		s := &subject{Subject: b.fresh(t), t: t}
		if s.Message == nil {
			s.Message = email
		}
		if s.Timeout == "" {
			s.Timeout = "timeout"
		}
		s.caps = s.Provider.Capabilities()
		test(s)
	})
}

// email is the i-th message; its id is its number, so that messages are equal
// from one call to the next.
func email(i int) provider.Message {
	return provider.Message{
		SendID:   uuid.NewSHA1(uuid.NameSpaceOID, fmt.Appendf(nil, "send %d", i)),
		TenantID: uuid.NewSHA1(uuid.NameSpaceOID, []byte("tenant")),
		From:     "Shop <shop@sender.example.com>",
		ReplyTo:  "care@sender.example.com",
		To:       fmt.Sprintf("rcpt-%d@example.com", i),
		Subject:  fmt.Sprintf("Subject canary %d", i),
		HTML:     fmt.Sprintf("<p>HTML canary %d &amp; more</p>", i),
		Text:     fmt.Sprintf("Text canary %d", i),
		Headers:  map[string]string{"X-Order": "1", "List-Unsubscribe": "<https://example.com/u>"},
	}
}

func (s *subject) messages(n int) []provider.Message {
	out := make([]provider.Message, n)
	for i := range out {
		out[i] = s.Message(i)
	}
	return out
}

// size is how many messages a request of the suite holds where it can hold many.
func (s *subject) size() int {
	if s.caps.Batch {
		return min(5, s.caps.MaxBatch)
	}
	return 1
}

func (s *subject) freeze(n int) provider.Request {
	s.t.Helper()
	frozen, err := s.Provider.Freeze(s.messages(n), s.caps.Batch && n > 1)
	require.NoError(s.t, err)
	return provider.Request{Frozen: frozen, IdempotencyKey: "key-" + s.t.Name()}
}

// send makes one attempt, under a deadline that is only there to end a hang.
func (s *subject) send(r provider.Request) (provider.Result, error) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	return s.Provider.Send(ctx, r)
}

// fails wants an error of this class that says nothing private.
func (s *subject) fails(res provider.Result, err error, want provider.Class) {
	s.t.Helper()
	_ = s.failure(res, err, want)
}

// failure is fails for who looks at the error too.
func (s *subject) failure(res provider.Result, err error, want provider.Class) *provider.Error {
	s.t.Helper()
	require.Error(s.t, err)
	var perr *provider.Error
	require.ErrorAs(s.t, err, &perr)
	require.Equal(s.t, want, perr.Class, "%v", err)
	require.Equal(s.t, want, provider.ClassOf(err))
	require.NotEmpty(s.t, perr.Code)
	require.Nil(s.t, res.Items)
	if want != provider.ClassThrottled {
		require.Zero(s.t, perr.RetryAfter)
		require.False(s.t, perr.Quota)
	}
	s.discreet(err)
	return perr
}

// discreet looks for anything private in an error and all that it wraps.
func (s *subject) discreet(err error) {
	s.t.Helper()
	for e := err; e != nil; e = errors.Unwrap(e) {
		text := fmt.Sprintf("%v %+v %#v", e, e, e)
		for i := range s.size() {
			m := s.Message(i)
			for _, private := range []string{m.To, m.Subject, m.HTML, m.Text} {
				if private != "" {
					require.NotContains(s.t, text, private)
				}
			}
		}
		for _, private := range s.Private {
			require.NotContains(s.t, text, private)
		}
	}
}

// succeeds wants an id for every message, and those that the backend gave.
func (s *subject) succeeds(res provider.Result, err error, n int) {
	s.t.Helper()
	require.NoError(s.t, err)
	s.items(res, n, nil)
}

func (s *subject) items(res provider.Result, n int, refused map[int]bool) {
	s.t.Helper()
	require.Len(s.t, res.Items, n)
	taken := s.Backend.IDs()
	for i, item := range res.Items {
		if refused[i] {
			require.NotNil(s.t, item.Err, "message %d", i)
			require.Equal(s.t, provider.ClassPermanent, item.Err.Class)
			require.Empty(s.t, item.ProviderMessageID)
			require.Empty(s.t, taken[s.Message(i).SendID])
			s.discreet(item.Err)
			continue
		}
		require.Nil(s.t, item.Err, "message %d", i)
		require.NotEmpty(s.t, item.ProviderMessageID)
		require.Equal(s.t, []string{item.ProviderMessageID}, taken[s.Message(i).SendID], "message %d", i)
	}
}

// recovers wants the adapter to work as before once the backend does.
func (s *subject) recovers() {
	s.t.Helper()
	frozen, err := s.Provider.Freeze([]provider.Message{s.Message(900)}, false)
	require.NoError(s.t, err)
	res, err := s.send(provider.Request{Frozen: frozen, IdempotencyKey: "key-of-another"})
	require.NoError(s.t, err)
	require.Len(s.t, res.Items, 1)
	require.NotEmpty(s.t, res.Items[0].ProviderMessageID)
}

// physical wants so many requests to have reached the backend.
func (s *subject) physical(n int) {
	s.t.Helper()
	require.Len(s.t, s.Backend.Requests(), n, "physical requests")
}

// once wants no message to have been taken more than once.
func (s *subject) once(n int) {
	s.t.Helper()
	taken := s.Backend.IDs()
	require.Len(s.t, taken, n)
	for id, ids := range taken {
		require.Len(s.t, ids, 1, "send %s", id)
	}
}
