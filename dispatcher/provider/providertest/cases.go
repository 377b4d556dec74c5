package providertest

import (
	"bytes"
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/softcrum/carril/dispatcher/provider"
)

func testStates(t *testing.T, b *bench) {
	b.run(t, "CapabilitiesThatAgreeWithEachOther", OK, func(s *subject) {
		require.NotEmpty(s.t, s.Provider.Name())
		require.NotEmpty(s.t, s.caps.Channel)
		require.Positive(s.t, s.caps.MaxBodyBytes)
		require.Positive(s.t, s.caps.RatePerSecond)
		require.Equal(s.t, s.caps.IdempotencyKeys, s.caps.KeyLife > 0)
		if s.caps.Batch {
			require.Greater(s.t, s.caps.MaxBatch, 1)
		} else {
			require.Equal(s.t, 1, s.caps.MaxBatch)
		}
	})
}

func testFreeze(t *testing.T, b *bench) {
	b.run(t, "IsPure", OK, func(s *subject) {
		first, err := s.Provider.Freeze(s.messages(s.size()), s.caps.Batch)
		require.NoError(s.t, err)
		for range 20 { // a map's order would show
			again, err := s.Provider.Freeze(s.messages(s.size()), s.caps.Batch)
			require.NoError(s.t, err)
			require.Equal(s.t, first, again)
		}
		require.Equal(s.t, s.size(), first.Count)
		s.physical(0)
	})

	b.run(t, "RefusesNoMessageAndTooMany", OK, func(s *subject) {
		for _, n := range []int{0, s.caps.MaxBatch + 1} {
			_, err := s.Provider.Freeze(s.messages(n), s.caps.Batch)
			require.Equal(s.t, provider.ClassPermanent, provider.ClassOf(err), n)
		}
		_, err := s.Provider.Freeze(s.messages(2), false)
		require.Equal(s.t, provider.ClassPermanent, provider.ClassOf(err))
	})

	b.run(t, "TakesTheLargestBatch", OK, func(s *subject) {
		frozen, err := s.Provider.Freeze(s.messages(s.caps.MaxBatch), s.caps.Batch)
		require.NoError(s.t, err)
		require.Equal(s.t, s.caps.MaxBatch, frozen.Count)
	})

	b.run(t, "NamesTheMessageThatCannotBeSent", OK, func(s *subject) {
		msgs := s.messages(s.size())
		last := len(msgs) - 1
		msgs[last].To += "\r\nBcc: other@example.com" // bad-inputs row 48
		_, err := s.Provider.Freeze(msgs, s.caps.Batch)
		var merr *provider.MessageError
		require.ErrorAs(s.t, err, &merr)
		require.Equal(s.t, last, merr.Index)
		require.Equal(s.t, provider.ClassPermanent, merr.Reason.Class)
		require.NotContains(s.t, err.Error(), "example.com")
	})
}

func testAccepts(t *testing.T, b *bench) {
	b.run(t, "OneMessage", OK, func(s *subject) {
		r := s.freeze(1)
		res, err := s.send(r)
		s.succeeds(res, err, 1)
		s.physical(1)
		got := s.Backend.Requests()[0]
		if s.caps.IdempotencyKeys {
			require.Equal(s.t, r.IdempotencyKey, got.Key)
		}
		if got.Body != nil {
			require.True(s.t, bytes.Equal(r.Body, got.Body), "the frozen bytes are the bytes sent")
		}
	})

	b.run(t, "ABatchInOrder", OK, func(s *subject) {
		n := s.size()
		res, err := s.send(s.freeze(n))
		s.succeeds(res, err, n)
		s.physical(1)
	})

	b.run(t, "ABatchWithFailuresInPlace", ItemFailures, func(s *subject) {
		for _, items := range [][]int{{0}, {4}, {1, 3}, {0, 1, 2, 3, 4}} { // field report 24
			s.Backend.Enact(Behaviour{Kind: ItemFailures, Items: items})
			refused := map[int]bool{}
			for _, i := range items {
				refused[i] = true
			}
			sub := &subject{Subject: s.renumbered(fmt.Sprint(items)), t: s.t, caps: s.caps}
			r := sub.freeze(5)
			r.IdempotencyKey += fmt.Sprint(items)
			res, err := sub.send(r)
			require.NoError(s.t, err)
			sub.items(res, 5, refused)
		}
	})

	b.run(t, "ManyAtOnce", OK, func(s *subject) {
		var wg sync.WaitGroup
		errs := make([]error, 32)
		for i := range errs {
			frozen, err := s.Provider.Freeze([]provider.Message{s.Message(i)}, false)
			require.NoError(s.t, err)
			wg.Go(func() {
				_, errs[i] = s.send(provider.Request{Frozen: frozen, IdempotencyKey: fmt.Sprint("many-", i)})
			})
		}
		wg.Wait()
		for _, err := range errs {
			require.NoError(s.t, err)
		}
		s.once(len(errs))
	})
}

// renumbered gives the same messages under other ids.
func (s *subject) renumbered(salt string) Subject {
	out := s.Subject
	out.Message = func(i int) provider.Message {
		m := s.Message(i)
		m.SendID = uuid.NewSHA1(m.SendID, []byte(salt))
		return m
	}
	return out
}

func testRefusals(t *testing.T, b *bench) {
	for kind, want := range map[Kind]provider.Class{
		Permanent:      provider.ClassPermanent,
		ErrorInSuccess: provider.ClassPermanent, // faults F32
		AccountRefused: provider.ClassConfiguration,
		SenderRefused:  provider.ClassSender,
		InFlight:       provider.ClassUncertain, // the first under this key is still out
	} {
		b.run(t, string(kind), kind, func(s *subject) {
			s.Backend.Enact(Behaviour{Kind: kind})
			res, err := s.send(s.freeze(s.size()))
			s.fails(res, err, want)
			s.physical(1)
			s.once(0)
			s.recovers()
		})
	}
}

// testWaits holds an adapter to faults F29: a wait is named, clamped, and no
// attempt of its own follows.
func testWaits(t *testing.T, b *bench) {
	far := "Fri, 31 Dec 9999 23:59:59 GMT"
	for value, want := range map[string]time.Duration{
		"0":                             time.Second,
		"5":                             5 * time.Second,
		"-5":                            time.Second,
		"1e9":                           provider.MaxRetryAfter,
		"99999999999999999999":          provider.MaxRetryAfter,
		far:                             provider.MaxRetryAfter,
		"Sun, 22 Nov 2020 10:00:30 GMT": time.Second,
		"soon":                          0,
	} {
		b.run(t, "Named_"+value, NamedWait, func(s *subject) {
			s.Backend.Enact(Behaviour{Kind: Throttled, RetryAfter: &value})
			res, err := s.send(s.freeze(s.size()))
			perr := s.failure(res, err, provider.ClassThrottled)
			require.Equal(s.t, want, perr.RetryAfter)
			require.False(s.t, perr.Quota)
			s.physical(1)
			s.once(0)
			s.recovers()
		})
	}

	b.run(t, "Unnamed", Throttled, func(s *subject) {
		s.Backend.Enact(Behaviour{Kind: Throttled})
		res, err := s.send(s.freeze(s.size()))
		require.Zero(s.t, s.failure(res, err, provider.ClassThrottled).RetryAfter)
		s.physical(1)
	})

	for _, kind := range []Kind{DailyQuota, MonthlyQuota} {
		b.run(t, string(kind), kind, func(s *subject) {
			s.Backend.Enact(Behaviour{Kind: kind})
			res, err := s.send(s.freeze(s.size()))
			require.True(s.t, s.failure(res, err, provider.ClassThrottled).Quota)
			s.physical(1)
			s.once(0)
		})
	}
}

// testUnclear holds an adapter to the safe assumption: an answer that does not
// say what became of the messages leaves them uncertain (faults F31).
func testUnclear(t *testing.T, b *bench) {
	for _, status := range []int{500, 502, 503, 504, 599} {
		b.run(t, fmt.Sprint("ServerError_", status), ServerError, func(s *subject) {
			s.Backend.Enact(Behaviour{Kind: ServerError, Status: status})
			res, err := s.send(s.freeze(s.size()))
			require.Equal(s.t, status, s.failure(res, err, provider.ClassUncertain).Status)
			s.physical(1)
			s.recovers()
		})
	}
	for _, kind := range []Kind{AcceptThenError, HugeBody, Unparsable, Short} {
		b.run(t, string(kind), kind, func(s *subject) {
			s.Backend.Enact(Behaviour{Kind: kind, Status: 502})
			r := s.freeze(s.size())
			res, err := s.send(r)
			s.fails(res, err, provider.ClassUncertain)
			s.physical(1)
			s.repeats(r, 0)
		})
	}
}

// repeats sends the request again and wants no message twice, where the provider
// has keys to see that by; others is how many messages went before it.
func (s *subject) repeats(r provider.Request, others int) {
	s.t.Helper()
	if !s.caps.IdempotencyKeys {
		return
	}
	res, err := s.send(r)
	s.succeeds(res, err, r.Count)
	s.once(r.Count + others)
}

// testCut ends the connection under an attempt that follows another one, so
// that it goes over a connection in use: there, clients like to try again by
// themselves.
func testCut(t *testing.T, b *bench) {
	for _, kind := range []Kind{AcceptThenReset, AcceptThenClose, Reset} {
		b.run(t, string(kind), kind, func(s *subject) {
			s.recovers()
			s.Backend.Enact(Behaviour{Kind: kind})
			r := s.freeze(s.size())
			res, err := s.send(r)
			s.fails(res, err, provider.ClassUncertain)
			s.physical(2)
			s.repeats(r, 1)
		})
	}

	b.run(t, "NothingListens", OK, func(s *subject) {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		res, err := s.Unreachable.Send(ctx, s.freeze(s.size()))
		s.fails(res, err, provider.ClassRetryable) // it never left
		s.physical(0)
	})
}

func testKeys(t *testing.T, b *bench) {
	if !b.keys {
		return
	}
	b.run(t, "TheSameRequestIsOneEffect", OK, func(s *subject) {
		r := s.freeze(s.size())
		var first []provider.Item
		for range 3 {
			res, err := s.send(r)
			s.succeeds(res, err, r.Count)
			if first == nil {
				first = res.Items
			}
			require.Equal(s.t, first, res.Items)
		}
		s.once(r.Count)
	})

	b.run(t, "TheSameRequestAtOnceIsOneEffect", OK, func(s *subject) {
		r := s.freeze(s.size())
		var wg sync.WaitGroup
		errs := make([]error, 16)
		for i := range errs {
			wg.Go(func() { _, errs[i] = s.send(r) })
		}
		wg.Wait()
		for _, err := range errs {
			if err != nil { // another of them was being worked on
				require.Equal(s.t, provider.ClassUncertain, provider.ClassOf(err), "%v", err)
			}
		}
		res, err := s.send(r)
		s.succeeds(res, err, r.Count)
		s.once(r.Count)
	})

	b.run(t, "AnotherPayloadUnderAKeyIsRefusedForGood", OK, func(s *subject) {
		r := s.freeze(1)
		res, err := s.send(r)
		s.succeeds(res, err, 1)
		other, err := s.Provider.Freeze([]provider.Message{s.Message(7)}, false)
		require.NoError(s.t, err)
		res, err = s.send(provider.Request{Frozen: other, IdempotencyKey: r.IdempotencyKey})
		s.fails(res, err, provider.ClassPermanent)
		s.once(1)
	})
}

func testContext(t *testing.T, b *bench) {
	b.run(t, "CanceledBeforeItLeft", OK, func(s *subject) {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		res, err := s.Provider.Send(ctx, s.freeze(s.size()))
		s.fails(res, err, provider.ClassRetryable)
		require.ErrorIs(s.t, err, context.Canceled)
		s.physical(0)
		s.recovers()
	})

	for _, kind := range []Kind{AcceptThenHang, SlowDrip} {
		b.run(t, "CanceledIn_"+string(kind), kind, func(s *subject) {
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			s.Backend.Enact(Behaviour{Kind: kind, Reached: cancel})
			r := s.freeze(s.size())
			res, err := s.Provider.Send(ctx, r)
			s.fails(res, err, provider.ClassUncertain)
			s.physical(1)
			s.repeats(r, 0)
		})

		b.run(t, "DeadlineIn_"+string(kind), kind, func(s *subject) {
			over := make(chan struct{})
			s.Backend.Enact(Behaviour{Kind: kind, Reached: func() { close(over) }})
			r := s.freeze(s.size())
			res, err := s.Provider.Send(deadlineOn{context.Background(), over}, r)
			perr := s.failure(res, err, provider.ClassUncertain)
			require.Equal(s.t, s.Timeout, perr.Code)
			require.ErrorIs(s.t, err, context.DeadlineExceeded)
			s.physical(1)
			s.repeats(r, 0)
		})
	}
}

// deadlineOn is a context whose deadline passes when a signal comes, so that a
// case need not guess how long a request takes to arrive.
type deadlineOn struct {
	context.Context //nolint:containedctx // it is a context itself
	over            <-chan struct{}
}

func (d deadlineOn) Done() <-chan struct{} { return d.over }

func (d deadlineOn) Err() error {
	select {
	case <-d.over:
		return context.DeadlineExceeded
	default:
		return nil
	}
}
