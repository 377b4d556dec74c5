package rail_test

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/softcrum/carril/dispatcher/provider"
	"github.com/softcrum/carril/dispatcher/rail"
	"github.com/softcrum/carril/dispatcher/sends"
	"github.com/softcrum/carril/internal/deadletter"
	"github.com/softcrum/carril/schemas"
)

func TestFirstSend(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	id := b.enqueue(job{subject: "Your code"})[0]
	b.start(setup{})
	b.await(1, "sent")
	require.Equal(t, 1, b.fake.delivered(id))
	require.Equal(t, map[string]int{"queued": 1, "sent": 1}, b.history(id))
	require.Equal(t, []string{"messaging.message.sent"}, b.changes(1)[id])
	require.Equal(t, 1, b.count(`SELECT count(*) FROM messaging.sends WHERE requested_at > now() - interval '1 day' AND send_id = $1 AND correlation_id <> '' AND origin_event_id IS NOT NULL`, id))
	require.Equal(t, 1, b.count(`SELECT count(*) FROM messaging.provider_messages WHERE send_id = $1`, id))
}

// A code goes from its topic to the provider, and its status comes back.
func TestStatusComesBack(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.statuses()
	b.start(setup{})
	id := b.enqueue(job{subject: "Your code"})[0]
	b.await(1, "sent")
	b.report(event{id: "ev-1", status: provider.StatusDelivered, message: "m-" + id.String()})
	b.report(event{id: "ev-1", status: provider.StatusDelivered, message: "m-" + id.String()}) // FS-MSG-0003 AC4
	b.report(event{id: "ev-2", status: provider.StatusHardBounce, send: id, tenant: b.tenant})
	b.eventually("both events are recorded", func() bool { return len(b.history(id)) == 4 })
	require.Equal(t, map[string]int{"queued": 1, "sent": 1, "delivered": 1, "bounced": 1}, b.history(id))
	require.ElementsMatch(t, []string{"messaging.message.sent", "messaging.message.delivered", "messaging.message.bounced"}, b.changes(3)[id])
	// FS-MSG-0003 AC6
	require.Equal(t, 1, b.count(`SELECT count(*) FROM messaging.suppressions WHERE tenant_id = $1 AND reason = 'hard_bounce' AND send_id = $2`, b.tenant, id))
}

// FS-MSG-0005 AC6, I2, I18
func TestDuplicates(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	sent := b.enqueue(make([]job, 20)...)
	b.repeatTopic(3)
	_, stop := b.start(setup{})
	b.await(20, "sent")
	stop()
	b.repeatTopic(2)
	_, stop = b.start(setup{})
	more := b.enqueue(job{})
	b.await(21, "sent")
	b.drained()
	stop()
	for _, id := range append(sent, more...) {
		require.Equal(t, 1, b.fake.delivered(id))
		require.Equal(t, 1, b.fake.keysOf(id))
	}
	requests, _ := b.fake.count()
	require.Equal(t, 21, requests, "a record of a finished job costs no request")
}

// TestLateTokens holds requests up between their tokens and the provider, as a slow
// database or a machine that stands does. Let go together they would arrive
// together, and be refused; they take other tokens, and come apart as those do.
func TestLateTokens(t *testing.T) {
	t.Parallel()
	for _, r := range []string{schemas.RailTransactional, schemas.RailMarketing} {
		t.Run(r, func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			const jobs = 4
			for range jobs {
				if r == schemas.RailMarketing {
					b.enqueueBatch(b.tenant, 2, nil)
				} else {
					b.enqueue(job{})
				}
			}
			var all sync.WaitGroup
			all.Add(jobs)
			var held atomic.Int32
			b.start(setup{rail: r, rate: 10, hook: func(at rail.Point) {
				if at == rail.PointToken && held.Add(1) <= jobs {
					all.Done()
					all.Wait()
					time.Sleep(400 * time.Millisecond) // the last of them is late too
				}
			}})
			b.eventually("all have arrived", func() bool { n, _ := b.fake.count(); return n == jobs })
			b.fake.mu.Lock()
			defer b.fake.mu.Unlock()
			took := b.fake.requests[jobs-1].at.Sub(b.fake.requests[0].at)
			require.Greater(t, took, 150*time.Millisecond, "a ninth of a second apart, as they were granted")
		})
	}
}

// FS-MSG-0005 AC3
func TestThrottled(t *testing.T) {
	t.Parallel()
	t.Run("DropsNothingAndCountsNoAttempt", func(t *testing.T) {
		t.Parallel()
		b := newBench(t)
		var refused atomic.Int32
		b.fake.set(func(n int, r provider.Request) (provider.Result, error) {
			if n <= 6 {
				refused.Add(1)
				return provider.Result{}, &provider.Error{Class: provider.ClassThrottled, Status: 429, Code: "rate_limit_exceeded", RetryAfter: time.Second}
			}
			return b.fake.take(r)
		})
		all := b.enqueue(make([]job, 15)...)
		b.start(setup{cfg: func(c *rail.Config) { c.Concurrency = 3 }})
		b.await(15, "sent")
		require.Positive(t, refused.Load())
		for _, id := range all {
			require.Equal(t, 1, b.fake.delivered(id))
		}
		require.Zero(t, b.count(`SELECT coalesce(sum(attempts), 0)::int FROM core.processed_jobs WHERE id_time > now() - interval '1 day' AND worker = 'rail:email.transactional'`))
		require.Zero(t, b.count(`SELECT count(*) FROM core.dead_letters`))
	})
	// I47, the claim's part: what was refused is refrozen, with its gates asked
	t.Run("RefreezesWhatWasRefused", func(t *testing.T) {
		t.Parallel()
		b := newBench(t)
		tenant := b.tenant
		suppressed := ""
		b.fake.next(func(provider.Request) (provider.Result, error) {
			b.exec(`INSERT INTO messaging.suppressions (tenant_id, channel, address, reason) VALUES ($1, 'email', $2, 'manual')`, tenant, suppressed)
			return provider.Result{}, &provider.Error{Class: provider.ClassThrottled, Status: 429, Code: "rate_limit_exceeded", RetryAfter: time.Second}
		})
		_, all := b.enqueueBatch(tenant, 5, func(i int, j *job) {
			if i == 2 {
				j.address, suppressed = "gone@example.com", "gone@example.com"
			}
		})
		b.start(setup{rail: schemas.RailMarketing})
		b.await(1, "sent")
		for i, id := range all {
			if i == 2 {
				require.Zero(t, b.fake.delivered(id))
				require.Equal(t, map[string]int{"queued": 1, "failed": 1}, b.history(id))
				continue
			}
			require.Equal(t, 1, b.fake.delivered(id))
			require.Equal(t, 2, b.fake.keysOf(id), "a new generation has a new key")
		}
	})
}

func TestUncertain(t *testing.T) {
	t.Parallel()
	// I15
	t.Run("SendsTheSameBytesUnderTheSameKey", func(t *testing.T) {
		t.Parallel()
		b := newBench(t)
		b.sweep()
		b.fake.next(func(r provider.Request) (provider.Result, error) {
			b.exec(`INSERT INTO messaging.suppressions (tenant_id, channel, address, reason) VALUES ($1, 'email', 'gone@example.com', 'manual')`, b.tenant)
			return b.fake.takenButLost(r)
		})
		_, all := b.enqueueBatch(b.tenant, 100, func(i int, j *job) {
			if i == 50 {
				j.address = "gone@example.com"
			}
		})
		b.start(setup{rail: schemas.RailMarketing})
		b.await(1, "sent")
		for _, id := range all {
			require.Equal(t, 1, b.fake.delivered(id))
			require.Equal(t, 1, b.fake.keysOf(id))
		}
		requests, _ := b.fake.count()
		require.Equal(t, 2, requests)
	})

	// I16
	t.Run("IsForAPersonWhereTheProviderKnowsNoKeys", func(t *testing.T) {
		t.Parallel()
		b := newBench(t)
		b.sweep()
		b.fake.caps.IdempotencyKeys = false
		b.fake.next(b.fake.takenButLost)
		id := b.enqueue(job{})[0]
		b.start(setup{})
		b.await(1, "needs_review")
		require.Equal(t, 1, b.fake.delivered(id))
		require.Equal(t, 1, b.count(`SELECT count(*) FROM core.dead_letters WHERE class = 'outcome_unknown' AND send_id = $1`, id))
		require.NotContains(t, b.history(id), "failed")
	})

	// A provider's event settles what we could not.
	t.Run("IsSettledByTheProvidersEvent", func(t *testing.T) {
		t.Parallel()
		b := newBench(t)
		b.statuses()
		b.sweep()
		b.fake.caps.IdempotencyKeys = false
		b.fake.next(b.fake.takenButLost)
		id := b.enqueue(job{})[0]
		b.start(setup{})
		b.await(1, "needs_review")
		b.report(event{id: "e1", status: provider.StatusDelivered, send: id, tenant: b.tenant})
		b.await(1, "sent")
	})

	// I46
	for name, second := range map[string]provider.Error{
		"429":            {Class: provider.ClassThrottled, Status: 429, Code: "rate_limit_exceeded", RetryAfter: time.Second},
		"401":            {Class: provider.ClassConfiguration, Status: 401, Code: "invalid_api_key"},
		"sender refused": {Class: provider.ClassSender, Status: 403, Code: "domain_not_verified"},
		"retryable":      {Class: provider.ClassRetryable, Status: 503, Code: "unavailable"},
	} {
		t.Run("KeepsItsKeyWhenTheSecondAnswerIs"+name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			b.sweep()
			b.fake.next(b.fake.takenButLost, fails(second))
			_, all := b.enqueueBatch(b.tenant, 10, nil)
			b.start(setup{rail: schemas.RailMarketing, cfg: func(c *rail.Config) { c.Recheck = 50 * time.Millisecond }})
			if second.Class == provider.ClassSender {
				b.await(1, "held")
				b.exec(`UPDATE messaging.senders SET paused_at = NULL WHERE tenant_id = $1`, b.tenant)
			}
			b.await(1, "sent")
			for _, id := range all {
				require.Equal(t, 1, b.fake.delivered(id))
				require.Equal(t, 1, b.fake.keysOf(id))
			}
		})
	}

	// The bytes go after a day; that their outcome was never known does not.
	t.Run("IsForAPersonOnceItsBytesAreGone", func(t *testing.T) {
		t.Parallel()
		b := newBench(t)
		b.fake.next(b.fake.takenButLost, fails(provider.Error{Class: provider.ClassConfiguration, Status: 401, Code: "invalid_api_key"}))
		b.fake.set(func(int, provider.Request) (provider.Result, error) {
			return provider.Result{}, &provider.Error{Class: provider.ClassConfiguration, Status: 401, Code: "invalid_api_key"}
		})
		id := b.enqueue(job{})[0]
		_, stop := b.start(setup{cfg: func(c *rail.Config) { c.Recheck, c.Budget = 50*time.Millisecond, time.Minute }})
		b.eventually("the key is refused after the loss", func() bool { n, _ := b.fake.count(); return n >= 3 })
		stop()
		b.exec(`DELETE FROM messaging.send_requests WHERE created_at > now() - interval '1 day'`)
		b.fake.set(nil)
		b.start(setup{})
		b.await(1, "needs_review")
		require.Equal(t, 1, b.fake.delivered(id))
		require.Equal(t, 1, b.fake.keysOf(id))
	})

	t.Run("IsForAPersonWhenAPermanentRefusalFollows", func(t *testing.T) {
		t.Parallel()
		b := newBench(t)
		b.sweep()
		b.fake.next(b.fake.takenButLost, fails(provider.Error{Class: provider.ClassPermanent, Status: 409, Code: "invalid_idempotent_request"}))
		id := b.enqueue(job{})[0]
		b.start(setup{})
		b.await(1, "needs_review")
		require.Equal(t, 1, b.fake.keysOf(id))
	})
}

// FS-MSG-0005 AC7
func TestExhausted(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.sweep()
	b.fake.set(func(_ int, r provider.Request) (provider.Result, error) {
		return provider.Result{}, &provider.Error{Class: provider.ClassRetryable, Status: 503, Code: "unavailable"}
	})
	id := b.enqueue(job{})[0]
	b.start(setup{cfg: func(c *rail.Config) { c.Tries, c.Backoff, c.BackoffMax = 4, time.Millisecond, 4*time.Millisecond }})
	b.await(1, "dead")
	require.Equal(t, 1, b.count(`SELECT count(*) FROM core.dead_letters WHERE class = 'exhausted' AND reason = 'unavailable' AND send_id = $1 AND tenant_id = $2`, id, b.tenant))
	require.Equal(t, map[string]int{"queued": 1, "failed": 1}, b.history(id))
	requests, _ := b.fake.count()
	require.Equal(t, 4, requests)
	require.Equal(t, []string{"messaging.message.failed"}, b.changes(1)[id])
}

// FS-MSG-0005 §7: what was given up goes again once a person says so, as a new
// generation; what may have gone stays with the person.
func TestReplay(t *testing.T) {
	t.Parallel()
	replay := func(b *bench, want int) deadletter.Done {
		store := deadletter.New(b.pool, sends.Replays{})
		done, err := store.Replay(t.Context(), deadletter.Filter{Status: deadletter.StatusOpen, Stage: "rail:email." + schemas.RailTransactional}, "ops", "", want)
		require.NoError(t, err)
		return done
	}
	t.Run("SendsAMessageThatWasGivenUp", func(t *testing.T) {
		t.Parallel()
		b := newBench(t)
		b.sweep()
		b.fake.set(func(_ int, r provider.Request) (provider.Result, error) {
			return provider.Result{}, &provider.Error{Class: provider.ClassRetryable, Status: 503, Code: "unavailable"}
		})
		id := b.enqueue(job{})[0]
		b.start(setup{cfg: func(c *rail.Config) { c.Tries, c.Backoff, c.BackoffMax = 2, time.Millisecond, 4*time.Millisecond }})
		b.await(1, "dead")
		require.Len(t, replay(b, 1).Changed, 1) // the provider is still away: given up again, under a dead letter of its own
		b.eventually("a second dead letter", func() bool { return b.count(`SELECT count(*) FROM core.dead_letters WHERE send_id = $1`, id) == 2 })
		b.await(1, "dead")
		b.fake.set(func(_ int, r provider.Request) (provider.Result, error) { return b.fake.take(r) })
		require.Len(t, replay(b, 1).Changed, 1, "the one that is open")
		b.await(1, "sent")
		require.Equal(t, 1, b.fake.delivered(id))
		h := b.history(id)
		require.Equal(t, [2]int{2, 1}, [2]int{h["failed"], h["sent"]}, "%v", h)
		require.Zero(t, b.count(`SELECT count(*) FROM core.dead_letters WHERE status = 'open'`))
	})
	t.Run("LeavesWhatMayHaveGoneToAPerson", func(t *testing.T) {
		t.Parallel()
		b := newBench(t)
		b.sweep()
		b.fake.caps.IdempotencyKeys = false
		b.fake.next(b.fake.takenButLost)
		id := b.enqueue(job{})[0]
		b.start(setup{})
		b.await(1, "needs_review")
		done := replay(b, 1)
		require.Empty(t, done.Changed)
		require.ErrorIs(t, done.Refused[0].Err, deadletter.ErrSend)
		require.Equal(t, 1, b.fake.delivered(id))
	})
	t.Run("SendsOnlyTheMessageOfABatchThatWasGivenUp", func(t *testing.T) {
		t.Parallel()
		b := newBench(t)
		b.sweep()
		b.fake.set(func(_ int, r provider.Request) (provider.Result, error) { return b.fake.takeBut(r, "never") })
		_, all := b.enqueueBatch(b.tenant, 10, func(i int, j *job) {
			if i == 4 || i == 6 {
				j.subject = "never"
			}
		})
		b.start(setup{rail: schemas.RailMarketing, cfg: func(c *rail.Config) { c.Tries, c.Backoff = 2, time.Millisecond }})
		b.await(1, "dead")
		b.fake.set(func(_ int, r provider.Request) (provider.Result, error) { return b.fake.take(r) })
		for _, i := range []int{4, 6} { // one after the other: the batch is sent in between
			var letter uuid.UUID
			require.NoError(t, b.pool.QueryRow(t.Context(), `SELECT dead_letter_id FROM core.dead_letters WHERE send_id = $1`, all[i]).Scan(&letter))
			store := deadletter.New(b.pool, sends.Replays{})
			done, err := store.Replay(t.Context(), deadletter.Filter{IDs: []uuid.UUID{letter}}, "ops", "", 0)
			require.NoError(t, err)
			require.Len(t, done.Changed, 1, done.Refused)
			b.eventually("it has arrived", func() bool { return b.fake.delivered(all[i]) == 1 })
			b.await(1, "sent")
		}
		for _, id := range all {
			require.Equal(t, 1, b.fake.delivered(id))
		}
		require.Empty(t, b.fake.twice())
	})
}

// F32
func TestMixedResults(t *testing.T) {
	t.Parallel()
	t.Run("FailsTheRefusedMessagesOfABatchAlone", func(t *testing.T) {
		t.Parallel()
		b := newBench(t)
		_, all := b.enqueueBatch(b.tenant, 10, func(i int, j *job) {
			switch i {
			case 3:
				j.subject = "refused"
			case 7:
				j.subject = "unfreezable"
			}
		})
		b.start(setup{rail: schemas.RailMarketing})
		b.await(1, "sent")
		for i, id := range all {
			if i == 3 || i == 7 {
				require.Equal(t, map[string]int{"queued": 1, "failed": 1}, b.history(id))
				continue
			}
			require.Equal(t, map[string]int{"queued": 1, "sent": 1}, b.history(id))
		}
	})
	t.Run("FindsTheOneThatMakesAStrictBatchFail", func(t *testing.T) {
		t.Parallel()
		b := newBench(t)
		b.fake.set(func(_ int, r provider.Request) (provider.Result, error) {
			if hasSubject(r, "poison") {
				return provider.Result{}, &provider.Error{Class: provider.ClassPermanent, Status: 422, Code: "invalid_parameter", Divisible: true}
			}
			return b.fake.take(r)
		})
		_, all := b.enqueueBatch(b.tenant, 16, func(i int, j *job) {
			if i == 11 {
				j.subject = "poison"
			}
		})
		b.start(setup{rail: schemas.RailMarketing})
		b.await(1, "sent")
		for i, id := range all {
			if i == 11 {
				require.Zero(t, b.fake.delivered(id))
				require.Equal(t, map[string]int{"queued": 1, "failed": 1}, b.history(id))
				continue
			}
			require.Equal(t, 1, b.fake.delivered(id))
		}
	})
	t.Run("FailsAPermanentRefusalWithoutARetry", func(t *testing.T) {
		t.Parallel()
		b := newBench(t)
		b.fake.next(fails(provider.Error{Class: provider.ClassPermanent, Status: 422, Code: "invalid_to"}))
		id := b.enqueue(job{})[0]
		b.start(setup{})
		b.await(1, "failed")
		require.Equal(t, map[string]int{"queued": 1, "failed": 1}, b.history(id))
	})
}

func TestGatesAtTheClaim(t *testing.T) {
	t.Parallel()
	// FS-MSG-0003 AC1
	t.Run("LeaveAReasonAndNoSend", func(t *testing.T) {
		t.Parallel()
		b := newBench(t)
		b.exec(`INSERT INTO messaging.suppressions (tenant_id, channel, address, reason) VALUES ($1, 'email', 'gone@example.com', 'complaint')`, b.tenant)
		past := time.Now().Add(-time.Second)
		all := b.enqueue(job{address: "Gone@example.com"}, job{expires: &past}, job{})
		b.start(setup{})
		b.await(1, "sent")
		b.await(1, "blocked")
		b.await(1, "expired")
		require.Equal(t, 1, b.count(`SELECT count(*) FROM messaging.sends WHERE requested_at > now() - interval '1 day'`))
		require.Equal(t, 1, b.count(`SELECT count(*) FROM messaging.decisions WHERE received_at > now() - interval '1 day' AND outcome = 'blocked' AND gate = 'suppression' AND reason = 'suppressed_complaint' AND send_id IS NULL`))
		require.Zero(t, b.fake.delivered(all[0]))
		require.Empty(t, b.history(all[0]))
	})
	// I30, the rail's part
	t.Run("HoldAPausedSenderAloneAndLetItGoAfterwards", func(t *testing.T) {
		t.Parallel()
		b := newBench(t)
		b.sweep()
		other := b.addTenant("other")
		b.fake.set(func(_ int, r provider.Request) (provider.Result, error) {
			if hasSender(r, "acme") && b.count(`SELECT count(*) FROM messaging.senders WHERE tenant_id = $1 AND pause_reason IS NULL`, b.tenant) == 1 {
				return provider.Result{}, &provider.Error{Class: provider.ClassSender, Status: 403, Code: "domain_not_verified"}
			}
			return b.fake.take(r)
		})
		b.start(setup{cfg: func(c *rail.Config) { c.Concurrency = 1 }})
		b.enqueue(job{}, job{}, job{})
		b.await(3, "held")
		b.enqueue(job{tenant: other}, job{tenant: other})
		b.await(2, "sent")
		b.exec(`UPDATE messaging.senders SET paused_at = NULL WHERE tenant_id = $1`, b.tenant)
		b.await(5, "sent")
	})
	t.Run("HoldWhatNobodyHasVerifiedUntilSomebodyHas", func(t *testing.T) {
		t.Parallel()
		b := newBench(t)
		b.sweep()
		b.exec(`UPDATE messaging.senders SET verified = false WHERE tenant_id = $1`, b.tenant)
		b.start(setup{})
		all := b.enqueue(job{}, job{})
		b.await(2, "held")
		require.Empty(t, b.history(all[0]))
		b.exec(`UPDATE messaging.senders SET verified = true WHERE tenant_id = $1`, b.tenant)
		b.await(2, "sent")
	})
}

// FS-MSG-0005 §9
func TestWrongRail(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	bad := b.enqueue(job{category: "marketing"})[0]
	b.produce(&kgo.Record{Topic: b.kafka.Topic("notif.email.transactional"), Value: []byte("not a record")})
	good := b.enqueue(job{})[0]
	b.start(setup{})
	b.await(1, "sent")
	b.await(1, "dead")
	require.Equal(t, 1, b.fake.delivered(good))
	require.Zero(t, b.fake.delivered(bad))
	b.eventually("both are dead letters", func() bool { return b.count(`SELECT count(*) FROM core.dead_letters`) == 2 })
	require.Equal(t, 1, b.count(`SELECT count(*) FROM core.dead_letters WHERE class = 'wrong_rail' AND send_id = $1`, bad))
	require.Equal(t, 1, b.count(`SELECT count(*) FROM core.dead_letters WHERE class = 'undecodable' AND record_value = 'not a record'`))
	b.drained()
}

// FS-MSG-0005 §5
func TestRefusals(t *testing.T) {
	t.Parallel()
	single := newFake()
	single.caps.Batch = false
	_, err := sends.New(sends.Config{Channel: "email", Rail: schemas.RailMarketing, Provider: "fake"}, sends.Deps{Providers: map[string]provider.Provider{"fake": single}})
	require.ErrorContains(t, err, "no batch endpoint")
	store, err := sends.New(sends.Config{Channel: "email", Rail: schemas.RailTransactional, Provider: "fake"}, sends.Deps{Providers: map[string]provider.Provider{"fake": single}})
	require.NoError(t, err)
	_, err = rail.New(rail.Config{Channel: "email", Rail: "urgent"}, rail.Deps{Store: store})
	require.ErrorContains(t, err, "a channel has two")
	_, err = rail.New(rail.Config{Channel: "email", Rail: schemas.RailMarketing}, rail.Deps{Store: store})
	require.Error(t, err)
	batch, err := sends.New(sends.Config{Channel: "email", Rail: schemas.RailMarketing, Provider: "fake"}, sends.Deps{Providers: map[string]provider.Provider{"fake": newFake()}})
	require.NoError(t, err)
	_, err = rail.New(rail.Config{Channel: "email", Rail: schemas.RailMarketing}, rail.Deps{Store: batch})
	require.ErrorContains(t, err, "yield")
}

// I19, I45: a job that another worker holds is left to it.
func TestLiveLease(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.sweep()
	arrived, goOn := make(chan struct{}), make(chan struct{})
	b.fake.next(func(r provider.Request) (provider.Result, error) {
		close(arrived)
		<-goOn
		return b.fake.take(r)
	})
	id := b.enqueue(job{})[0]
	b.start(setup{asker: "first"})
	<-arrived
	b.repeatTopic(1) // the same worker gets it again, and a second one gets all of it
	second := b.enqueue(make([]job, 4)...)
	b.start(setup{asker: "second"})
	b.await(4, "sent")
	close(goOn)
	b.await(5, "sent")
	b.drained()
	require.Equal(t, 1, b.fake.delivered(id))
	requests, _ := b.fake.count()
	require.Equal(t, 5, requests)
	for _, s := range second {
		require.Equal(t, 1, b.fake.delivered(s))
	}
}

func TestCredits(t *testing.T) {
	t.Parallel()
	credits := func(n int) func(*sends.Config) { return func(c *sends.Config) { c.Credits = n } }
	waiting := func(n int, category string) []job {
		out := make([]job, n)
		for i := range out {
			out[i] = job{state: "waiting", category: category}
		}
		return out
	}
	t.Run("AreRefilledByWhoFinishes", func(t *testing.T) {
		t.Parallel()
		b := newBench(t)
		b.enqueue(waiting(30, "transactional")...)
		b.enqueue(job{}) // no sweep: the one that finishes wakes the others
		b.start(setup{store: credits(4)})
		b.await(31, "sent")
	})
	// I51
	t.Run("AreRefilledByTheSweepWhenNobodyFinishes", func(t *testing.T) {
		t.Parallel()
		b := newBench(t)
		b.start(setup{store: credits(4)})
		b.sweepWith(credits(4))
		b.enqueue(waiting(10, "transactional")...)
		b.await(10, "sent")
	})
	t.Run("GoToTransactionalBeforeProduct", func(t *testing.T) {
		t.Parallel()
		b := newBench(t)
		product := b.enqueue(waiting(20, "product")...)
		codes := b.enqueue(waiting(5, "transactional")...)
		b.enqueue(job{})
		b.start(setup{store: credits(2), cfg: func(c *rail.Config) { c.Concurrency = 1 }})
		b.await(26, "sent")
		place := map[uuid.UUID]int{}
		for i, id := range b.fake.order {
			place[id] = i
		}
		behind := 0
		for _, p := range product {
			if place[p] < place[codes[4]] {
				behind++
			}
		}
		require.LessOrEqual(t, behind, 1)
	})
	// I52
	t.Run("ComeBackHoweverAJobLeaves", func(t *testing.T) {
		t.Parallel()
		b := newBench(t)
		past := time.Now().Add(-time.Minute)
		b.exec(`INSERT INTO messaging.suppressions (tenant_id, channel, address, reason) VALUES ($1, 'email', 'gone@example.com', 'complaint')`, b.tenant)
		b.fake.caps.IdempotencyKeys = false
		b.fake.set(func(_ int, r provider.Request) (provider.Result, error) {
			switch {
			case hasSubject(r, "fails"):
				return provider.Result{}, &provider.Error{Class: provider.ClassPermanent, Code: "no"}
			case hasSubject(r, "unknown"):
				return b.fake.takenButLost(r)
			case hasSubject(r, "dies"):
				return provider.Result{}, &provider.Error{Class: provider.ClassRetryable, Code: "unavailable"}
			}
			return b.fake.take(r)
		})
		b.sweepWith(credits(5))
		b.enqueue(job{address: "gone@example.com"}, job{expires: &past}, job{subject: "fails"}, job{subject: "unknown"}, job{subject: "dies"})
		b.enqueue(waiting(10, "transactional")...)
		b.start(setup{store: credits(5), cfg: func(c *rail.Config) { c.Tries = 2 }})
		b.await(10, "sent")
		for state, n := range map[string]int{"blocked": 1, "expired": 1, "failed": 1, "needs_review": 1, "dead": 1} {
			b.await(n, state)
		}
	})
}

// I54: the window of the retries stands still while the job waits for others.
func TestRetryWindowStandsStill(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.sweep()
	b.fake.next(fails(provider.Error{Class: provider.ClassRetryable, Status: 500, Code: "boom"}))
	var revoked atomic.Bool
	revoked.Store(true)
	b.fake.set(func(n int, r provider.Request) (provider.Result, error) {
		if revoked.Load() {
			return provider.Result{}, &provider.Error{Class: provider.ClassConfiguration, Status: 401, Code: "invalid_api_key"}
		}
		return provider.Result{}, &provider.Error{Class: provider.ClassRetryable, Status: 500, Code: "boom"}
	})
	id := b.enqueue(job{})[0]
	b.start(setup{cfg: func(c *rail.Config) {
		c.Recheck, c.TryFor, c.Tries = 100*time.Millisecond, 1500*time.Millisecond, 100
	}})
	b.eventually("the key is refused several times", func() bool { n, _ := b.fake.count(); return n >= 20 })
	require.Equal(t, 1, b.count(`SELECT attempts FROM core.processed_jobs WHERE id_time > now() - interval '1 day' AND job_id = $1`, id))
	waited := b.count(`SELECT extract(epoch FROM waited)::int FROM core.processed_jobs WHERE id_time > now() - interval '1 day' AND job_id = $1`, id)
	require.GreaterOrEqual(t, waited, 1)
	revoked.Store(false)
	b.fake.next(b.fake.take)
	b.await(1, "sent") // although the window is long over by the clock
}

// I30, I49: a tenant behind its own bucket is parked, and keeps nobody.
func TestTenantBehindItsOwnBucket(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.exec(`INSERT INTO messaging.rate_limit_buckets (scope, provider, tenant_id, rail, capacity, refill_per_second) VALUES ('tenant', 'fake', $1, 'transactional', 1, 4)`, b.tenant)
	other := b.addTenant("other")
	b.sweep()
	b.enqueue(make([]job, 60)...)
	b.start(setup{})
	b.eventually("the backlog is parked", func() bool {
		return b.count(`SELECT count(*) FROM core.processed_jobs WHERE id_time > now() - interval '1 day' AND state = 'parked' AND reason = 'tenant_bucket'`) > 20
	})
	b.eventually("the backlog has left the topic", func() bool { return b.position() >= 60 }) // what is unparked comes into it all the while
	theirs := b.enqueue(job{tenant: other})[0]
	b.eventually("the other tenant's code is there", func() bool { return b.fake.delivered(theirs) == 1 })
	require.Less(t, b.count(`SELECT count(*) FROM core.processed_jobs WHERE id_time > now() - interval '1 day' AND state = 'sent' AND tenant_id = $1`, b.tenant), 60)
	b.await(61, "sent") // each in its time
	require.Empty(t, b.fake.twice())
}

func hasSubject(r provider.Request, subject string) bool {
	return contains(r.Body, fmt.Sprintf(`"Subject":%q`, subject))
}
func hasSender(r provider.Request, slug string) bool { return contains(r.Body, slug+"@example.com") }
