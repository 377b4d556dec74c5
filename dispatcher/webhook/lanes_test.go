package webhook_test

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/softcrum/carril/dispatcher/webhook"
	"github.com/softcrum/carril/dispatcher/webhook/guard"
	"github.com/softcrum/carril/internal/ids"
	"github.com/softcrum/carril/schemas"
)

// hang makes a handler that answers nothing until the test lets go.
func hang(t testing.TB) (h http.HandlerFunc, letGo func()) {
	held := make(chan struct{})
	letGo = sync.OnceFunc(func() { close(held) })
	t.Cleanup(letGo)
	return func(_ http.ResponseWriter, r *http.Request) {
		select {
		case <-held:
		case <-r.Context().Done():
		}
	}, letGo
}

func TestLanes(t *testing.T) {
	t.Parallel()

	t.Run("ADeadEndpointHoldsUpNobody", func(t *testing.T) { // field report 29, F33
		t.Parallel()
		const n = 400
		m := newMirrorWith(t, webhook.Config{}, guard.Config{Deadline: 2 * time.Minute}, nil)
		m.cfg.Lease = 3 * time.Minute
		silence, letGo := hang(t)
		dead, fine, other := newSink(t, silence), newSink(t, nil), newSink(t, nil)
		m.endpoint(m.tenant, dead.URL)
		m.endpoint(m.tenant, fine.URL)
		neighbour := m.addTenant("neighbour")
		m.endpoint(neighbour, other.URL)
		m.run()
		send(m, schemas.TopicEventTracked, m.tenant, m.events(m.tenant, "a", n)...)
		send(m, schemas.TopicEventTracked, neighbour, m.events(neighbour, "b", n)...)
		m.awaitState("delivered", 2*n)
		require.Equal(t, n, fine.count())
		require.Equal(t, n, other.count())
		require.Equal(t, n, m.count(`SELECT count(*) FROM core.webhook_deliveries WHERE state = 'pending' AND attempts = 0`), "the partition went on: every row is there")
		require.Positive(t, dead.count())
		require.LessOrEqual(t, dead.count(), 16, "and no attempt to the dead one has ended yet")
		letGo()
	})

	t.Run("WhatFindsNoRoomIsClaimed", func(t *testing.T) {
		t.Parallel()
		cfg := quick(3)
		cfg.QueueItems, cfg.Concurrency = 4, 2
		m := newMirror(t, cfg)
		s := newSink(t, nil)
		m.endpoint(m.tenant, s.URL)
		m.run()
		send(m, schemas.TopicEventTracked, m.tenant, m.events(m.tenant, "a", 300)...)
		m.awaitState("delivered", 300)
		require.Equal(t, 300, s.count())
	})

	t.Run("EachContactIsToldInOrder", func(t *testing.T) {
		t.Parallel()
		cfg := quick(50)
		cfg.QueueItems = 40
		m := newMirror(t, cfg)
		var asked atomic.Int64
		s := newSink(t, func(w http.ResponseWriter, _ *http.Request) {
			if asked.Add(1)%5 == 0 {
				w.WriteHeader(http.StatusInternalServerError)
				return
			}
			w.Header().Set("X-Taken", "yes")
		})
		taken := record(s)
		m.endpoint(m.tenant, s.URL)
		stop := m.run()
		const contacts, each = 12, 30
		for i := range each {
			for c := range contacts {
				send(m, schemas.TopicEventTracked, m.tenant, m.event(m.tenant, fmt.Sprintf("%d/%d", c, i), fmt.Sprint("contact-", c)))
			}
			if i == each/2 { // and another process takes over in between
				stop()
				stop = m.run()
			}
		}
		m.awaitState("delivered", contacts*each)
		requireOrder(t, taken(), contacts, each)
	})

	t.Run("TwoProcessesShareABacklogAndKeepTheOrder", func(t *testing.T) {
		t.Parallel()
		m := newMirror(t, quick(50))
		var asked atomic.Int64
		s := newSink(t, func(w http.ResponseWriter, _ *http.Request) {
			if asked.Add(1)%7 == 0 {
				w.WriteHeader(http.StatusInternalServerError)
				return
			}
			w.Header().Set("X-Taken", "yes")
		})
		taken := record(s)
		m.endpoint(m.tenant, s.URL)
		stopLoop := m.consume(m.dispatcher(m.cfg)) // nobody runs its lanes: all of it waits
		const contacts, each = 20, 15
		for i := range each {
			for c := range contacts {
				send(m, schemas.TopicEventTracked, m.tenant, m.event(m.tenant, fmt.Sprintf("%d/%d", c, i), fmt.Sprint("contact-", c)))
			}
		}
		m.await(contacts*each, `SELECT count(*) FROM core.webhook_deliveries WHERE lease IS NULL`)
		stopLoop()
		background(t, m.dispatcher(m.cfg).Run)
		background(t, m.dispatcher(m.cfg).Run)
		m.awaitState("delivered", contacts*each)
		requireOrder(t, taken(), contacts, each)
	})

	t.Run("OneEventGoesToManyEndpoints", func(t *testing.T) {
		t.Parallel()
		cfg := quick(3)
		cfg.Lease = time.Hour // what is leased and not handed over would never go
		m := newMirror(t, cfg)
		s := newSink(t, nil)
		for range 30 {
			m.endpoint(m.tenant, s.URL)
		}
		send(m, schemas.TopicEventTracked, m.tenant, m.events(m.tenant, "a", 100)...) // one batch, several statements
		m.run()
		m.awaitState("delivered", 3000)
		require.Equal(t, 3000, s.count())
	})

	t.Run("OnePoisonousContactHoldsUpItselfAlone", func(t *testing.T) {
		t.Parallel()
		cfg := quick(0)
		cfg.Retries = []time.Duration{time.Hour, 20 * time.Millisecond}
		m := newMirror(t, cfg)
		s := newSink(t, nil)
		bad := m.event(m.tenant, "bad-0", "bad")
		s.will(func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("webhook-id") == m.idOf(bad) {
				w.WriteHeader(http.StatusUnprocessableEntity)
			}
		})
		m.endpoint(m.tenant, s.URL)
		m.run()
		send(m, schemas.TopicEventTracked, m.tenant, bad)
		m.await(1, `SELECT count(*) FROM core.webhook_deliveries WHERE attempts = 1 AND state = 'pending'`)
		for i := 1; i <= 40; i++ {
			send(m, schemas.TopicEventTracked, m.tenant, m.event(m.tenant, fmt.Sprintf("bad-%d", i), "bad"), m.event(m.tenant, fmt.Sprintf("good-%d", i), fmt.Sprint(i%4)))
		}
		m.awaitState("delivered", 40)
		require.Equal(t, 41, m.count(byState, "pending"))
		require.Equal(t, 40, m.count(`SELECT count(*) FROM core.webhook_deliveries WHERE next_attempt IS NULL AND state = 'pending'`), "those behind have no time of their own")
		m.exec(`UPDATE core.webhook_deliveries SET next_attempt = now() WHERE attempts = 1 AND state = 'pending'`)
		s.will(nil)
		m.awaitState("delivered", 81)
		last := s.requests()[s.count()-41:]
		for i, r := range last {
			require.Contains(t, r.body, fmt.Sprintf(`"corr-bad-%d"`, i))
		}
	})

	t.Run("AProcessKilledBeforeItsAttemptLosesNothing", func(t *testing.T) {
		t.Parallel()
		m := newMirror(t, quick(3))
		s := newSink(t, nil)
		m.endpoint(m.tenant, s.URL)
		first := m.dispatcher(m.cfg)
		stopRun := background(t, first.Run)
		first.Die()
		stopLoop := m.consume(first)
		send(m, schemas.TopicEventTracked, m.tenant, m.events(m.tenant, "a", 20)...)
		m.await(20, `SELECT count(*) FROM core.webhook_deliveries WHERE state = 'pending' AND lease IS NOT NULL AND lease_until > now()`)
		stopLoop()
		stopRun()
		require.Zero(t, s.count())

		m.run()
		send(m, schemas.TopicEventTracked, m.tenant, m.event(m.tenant, "behind", "a-0"))
		for i := range 3 { // each of them only after the one before it: whoever would break in had the time
			send(m, schemas.TopicEventTracked, m.tenant, m.event(m.tenant, fmt.Sprint("later-", i), "later"))
			m.awaitState("delivered", i+1)
		}
		require.Equal(t, 3, s.count(), "what is leased is left alone, and what stands behind it too")
		m.exec(`UPDATE core.webhook_deliveries SET lease_until = now() WHERE lease_until > now() AND state = 'pending'`) // the lease ends
		m.awaitState("delivered", 24)
		seen := map[string]int{}
		for _, r := range s.requests() {
			seen[r.id]++
		}
		require.Len(t, seen, 24)
		require.Equal(t, 24, s.count(), "each once")
	})

	t.Run("AProcessKilledAfterItsAttemptRepeatsItUnderTheSameId", func(t *testing.T) { // P3
		t.Parallel()
		m := newMirror(t, quick(3))
		m.cfg.Drain = 50 * time.Millisecond
		var first *webhook.Dispatcher
		s := newSink(t, nil)
		m.endpoint(m.tenant, s.URL)
		first = m.dispatcher(m.cfg)
		s.will(func(http.ResponseWriter, *http.Request) { first.Die() })
		stopRun := background(t, first.Run)
		stopLoop := m.consume(first)
		send(m, schemas.TopicEventTracked, m.tenant, m.event(m.tenant, "k", "c"))
		m.eventually("attempted", func() bool { return s.count() == 1 })
		stopLoop()
		stopRun()
		require.Equal(t, 1, m.count(byState, "pending"))
		s.will(nil)
		m.exec(`UPDATE core.webhook_deliveries SET lease_until = now()`)
		m.run()
		m.awaitState("delivered", 1)
		got := s.requests()
		require.Len(t, got, 2)
		require.Equal(t, got[0].id, got[1].id)
		require.Equal(t, got[0].body, got[1].body)
	})

	t.Run("ALeaseThatIsLostIsLeftToItsNewHolder_ButDeliveredIsDelivered", func(t *testing.T) {
		t.Parallel()
		m := newMirror(t, quick(3))
		answers := make(chan int)
		s := newSink(t, func(w http.ResponseWriter, r *http.Request) {
			select {
			case status := <-answers:
				w.WriteHeader(status)
			case <-r.Context().Done():
			}
		})
		m.endpoint(m.tenant, s.URL)
		m.run()
		for i, status := range []int{http.StatusInternalServerError, http.StatusOK} {
			e := m.event(m.tenant, fmt.Sprint(i), fmt.Sprint(i))
			send(m, schemas.TopicEventTracked, m.tenant, e)
			m.eventually("attempted", func() bool { return s.count() == i+1 })
			m.exec(`UPDATE core.webhook_deliveries SET lease = $2 WHERE event_id = $1`, e.EventID, ids.New())
			answers <- status
			m.await(i+1, `SELECT count(*) FROM core.webhook_attempts`)
			require.Equal(t, i, m.count(`SELECT count(*) FROM core.webhook_deliveries WHERE event_id = $1 AND state = 'delivered' AND attempts = 1`, e.EventID))
			require.Equal(t, 1-i, m.count(`SELECT count(*) FROM core.webhook_deliveries WHERE event_id = $1 AND state = 'pending' AND attempts = 0 AND lease IS NOT NULL`, e.EventID))
		}
	})

	t.Run("AStopGivesEverythingBackAndCostsNothing", func(t *testing.T) { // P9, P10
		t.Parallel()
		cfg := quick(0)
		cfg.Drain = 2 * time.Second // as long again is what it has to write with
		m := newMirror(t, cfg)
		silence, letGo := hang(t)
		s := newSink(t, silence)
		m.endpoint(m.tenant, s.URL)
		stop := m.run()
		send(m, schemas.TopicEventTracked, m.tenant, m.events(m.tenant, "a", 50)...)
		m.await(50, `SELECT count(*) FROM core.webhook_deliveries`)
		m.eventually("attempts run", func() bool { return s.count() > 0 })
		stop()
		require.Equal(t, 50, m.count(`SELECT count(*) FROM core.webhook_deliveries WHERE state = 'pending' AND attempts = 0 AND lease IS NULL AND next_attempt <= now()`))
		require.Zero(t, m.count(`SELECT count(*) FROM core.webhook_attempts`))
		letGo()
		s.will(nil)
		m.run()
		m.awaitState("delivered", 50)
	})

	t.Run("ADatabaseThatIsAwayDelaysResultsAndRepeatsNothing", func(t *testing.T) { // P8, P9
		t.Parallel()
		m := newMirror(t, quick(3))
		s := newSink(t, nil)
		e, _ := m.endpoint(m.tenant, s.URL)
		proxy, d := m.behindProxy(m.cfg)
		background(t, d.Run)
		m.consume(d)
		send(m, schemas.TopicEventTracked, m.tenant, m.event(m.tenant, "warm", "c")) // so that the endpoint is known
		m.awaitState("delivered", 1)
		proxy.Refuse()
		send(m, schemas.TopicEventTracked, m.tenant, m.events(m.tenant, "a", 20)...)
		m.eventually("attempted", func() bool { return s.count() == 21 })
		require.Equal(t, 20, m.count(byState, "pending"))
		proxy.Pass()
		m.awaitState("delivered", 21)
		require.Equal(t, 21, s.count())
		require.Equal(t, 1, m.count(`SELECT count(*) FROM core.webhook_endpoints WHERE endpoint_id = $1 AND failing_since IS NULL`, e.ID))
	})

	t.Run("ARecordFromBeforeThePartitionsMakesThem", func(t *testing.T) { // F25
		t.Parallel()
		m := newMirror(t, quick(3))
		s := newSink(t, nil)
		m.endpoint(m.tenant, s.URL)
		m.exec(`UPDATE core.webhook_endpoints SET created_at = now() - interval '20 days'`)
		m.run()
		old := m.event(m.tenant, "old", "c")
		old.ReceivedAt = old.ReceivedAt.Add(-13 * 24 * time.Hour)
		send(m, schemas.TopicEventTracked, m.tenant, old, m.event(m.tenant, "new", "c"))
		m.awaitState("delivered", 2)
	})

	t.Run("ANewEndpointIsNotToldOfTheFortnight", func(t *testing.T) {
		t.Parallel()
		m := newMirror(t, quick(3))
		s := newSink(t, nil)
		m.endpoint(m.tenant, s.URL)
		m.run()
		old := m.event(m.tenant, "old", "c")
		old.ReceivedAt = old.ReceivedAt.Add(-time.Hour)
		send(m, schemas.TopicEventTracked, m.tenant, old, m.event(m.tenant, "new", "c"))
		m.awaitState("delivered", 1)
		require.Contains(t, s.requests()[0].body, "corr-new")
	})

	t.Run("APoisonRecordIsADeadLetterAndTheRestArrives", func(t *testing.T) { // F14
		t.Parallel()
		m := newMirror(t, quick(3))
		s := newSink(t, nil)
		m.endpoint(m.tenant, s.URL)
		m.run()
		topic := m.kafka.Topic(schemas.TopicEventTracked)
		require.NoError(t, m.producer.ProduceSync(t.Context(), &kgo.Record{Topic: topic, Key: []byte(m.tenant.String()), Value: []byte("garbage")}).FirstErr())
		broken := m.event(m.tenant, "broken", "c")
		broken.Payload = `{"a":`
		send(m, schemas.TopicEventTracked, m.tenant, broken, m.event(m.tenant, "fine", "c"))
		m.awaitState("delivered", 1)
		m.await(2, `SELECT count(*) FROM core.dead_letters WHERE stage = 'webhooks'`)
	})
}

// requireOrder wants each contact's events once and in order.
func requireOrder(t *testing.T, got []received, contacts, each int) {
	t.Helper()
	next := make([]int, contacts)
	for _, r := range got {
		_, key, _ := strings.Cut(r.body, `"correlation_id":"corr-`)
		var c, i int
		_, err := fmt.Sscanf(key, "%d/%d", &c, &i)
		require.NoError(t, err)
		require.Equal(t, next[c], i, "contact %d", c)
		next[c]++
	}
	for c, n := range next {
		require.Equal(t, each, n, "contact %d", c)
	}
}

// idOf is the id under which an event goes to the one endpoint of the bench.
func (m *mirror) idOf(e schemas.EventTracked) string {
	var id [16]byte
	if err := m.pool.QueryRow(m.t.Context(), `SELECT endpoint_id FROM core.webhook_endpoints`).Scan(&id); err != nil {
		return ""
	}
	return ids.WebhookDelivery(id, e.EventID, webhook.TypeTracked, e.ReceivedAt).String()
}

// record keeps the requests that a sink's answer took, in the order in which it
// took them.
func record(s *sink) (taken func() []received) {
	var mu sync.Mutex
	var got []received
	inner := s.answer
	s.answer = func(w http.ResponseWriter, r *http.Request) {
		seen := s.last(r.Header.Get("webhook-id"))
		inner(w, r)
		if w.Header().Get("X-Taken") != "" {
			mu.Lock()
			got = append(got, seen)
			mu.Unlock()
		}
	}
	return func() []received {
		mu.Lock()
		defer mu.Unlock()
		return got
	}
}

func (s *sink) last(id string) received {
	rs := s.requests()
	for i := len(rs) - 1; i >= 0; i-- {
		if rs[i].id == id {
			return rs[i]
		}
	}
	return received{}
}
