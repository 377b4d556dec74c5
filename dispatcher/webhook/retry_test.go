package webhook_test

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/softcrum/carril/dispatcher/webhook"
	"github.com/softcrum/carril/dispatcher/webhook/guard"
	"github.com/softcrum/carril/internal/signature"
	"github.com/softcrum/carril/schemas"
)

// quick is a ladder, a breaker and waits that a test can see through.
func quick(retries int) webhook.Config {
	cfg := webhook.Config{Retries: make([]time.Duration, retries), BreakMin: 20 * time.Millisecond, BreakMax: 40 * time.Millisecond, OwnWait: 50 * time.Millisecond, Drain: 10 * time.Second}
	for i := range cfg.Retries {
		cfg.Retries[i] = 20 * time.Millisecond
	}
	return cfg
}

func TestRetries(t *testing.T) {
	t.Parallel()

	t.Run("TheSameBytesUnderTheSameIdUntilItIsTaken", func(t *testing.T) { // field report 34
		t.Parallel()
		m := newMirror(t, quick(5))
		var asked atomic.Int64
		s := newSink(t, func(w http.ResponseWriter, _ *http.Request) {
			if asked.Add(1) < 3 {
				w.WriteHeader(http.StatusInternalServerError)
				fmt.Fprint(w, strings.Repeat("why? ", 1000))
			}
		})
		_, secret := m.endpoint(m.tenant, s.URL)
		m.run()
		send(m, schemas.TopicEventTracked, m.tenant, m.event(m.tenant, "k", "c"))
		m.awaitState("delivered", 1)
		got := s.requests()
		require.Len(t, got, 3)
		for _, r := range got {
			require.Equal(t, got[0].body, r.body)
			require.Equal(t, got[0].id, r.id)
			_, err := signature.Verify([]signature.Secret{secret}, r.header, []byte(r.body), r.at)
			require.NoError(t, err)
		}
		require.Equal(t, "1:status:500:1024 2:status:500:1024 3:delivered:200:0", value[string](m.bench,
			`SELECT string_agg(concat_ws(':', attempt, class, status, coalesce(length(answer), 0)), ' ' ORDER BY attempt) FROM core.webhook_attempts WHERE at > now() - interval '1 day'`))
		require.Equal(t, 3, m.count(`SELECT attempts FROM core.webhook_deliveries`))
	})

	t.Run("WhatIsAlwaysRefusedEnds", func(t *testing.T) { // field report 30
		t.Parallel()
		m := newMirror(t, quick(2))
		s := newSink(t, status(http.StatusForbidden))
		m.endpoint(m.tenant, s.URL)
		m.run()
		send(m, schemas.TopicEventTracked, m.tenant, m.event(m.tenant, "k", "c"), m.event(m.tenant, "k2", "c"))
		m.awaitState("failed", 2)
		require.Equal(t, 6, s.count(), "three attempts each, and no more")
		require.Equal(t, 6, m.count(`SELECT sum(attempts) FROM core.webhook_deliveries WHERE last_error = 'status 403' AND next_attempt <= now()`))
		ids := map[string]int{}
		for i, r := range s.requests() {
			ids[r.id]++
			require.Equal(t, i < 3, r.id == s.requests()[0].id, "the second of a contact waits for the first")
		}
		require.Len(t, ids, 2)
	})

	t.Run("GoneDisablesAndCancelsAndIsTold", func(t *testing.T) {
		t.Parallel()
		m := newMirror(t, quick(1000))
		gone, fine := newSink(t, status(http.StatusInternalServerError)), newSink(t, nil)
		e, _ := m.endpoint(m.tenant, gone.URL)
		m.endpoint(m.tenant, fine.URL)
		m.run()
		send(m, schemas.TopicEventTracked, m.tenant, m.events(m.tenant, "a", 10)...)
		m.awaitState("delivered", 10)
		gone.will(status(http.StatusGone))
		m.eventually("disabled", func() bool {
			got, err := m.store.Get(t.Context(), m.tenant, e.ID)
			require.NoError(t, err)
			return got.DisabledReason == webhook.DisabledGone
		})
		m.eventually("nothing pending", func() bool {
			return m.count(`SELECT count(*) FROM core.webhook_deliveries WHERE state = 'pending'`) == 0
		})
		require.Equal(t, 10, m.count(`SELECT count(*) FROM core.webhook_deliveries WHERE endpoint_id = $1 AND state IN ('failed', 'cancelled')`, e.ID))
		require.Equal(t, e.ID.String(), value[string](m.bench, `SELECT detail->>'endpoint_id' FROM core.warnings WHERE tenant_id = $1 AND kind = 'webhook_endpoint_disabled'`, m.tenant))
		before := gone.count()
		send(m, schemas.TopicEventTracked, m.tenant, m.events(m.tenant, "b", 10)...)
		m.awaitState("delivered", 20)
		require.Equal(t, before, gone.count(), "a disabled endpoint hears nothing")
		gone.will(nil)
		_, err := m.store.Enable(t.Context(), m.tenant, e.ID)
		require.NoError(t, err)
		send(m, schemas.TopicEventTracked, m.tenant, m.event(m.tenant, "c", "c"))
		m.awaitState("delivered", 22)
	})

	t.Run("FailingForLongDisables_AGapDoesNot", func(t *testing.T) { // P9
		t.Parallel()
		cfg := quick(1000)
		cfg.DisableAfter, cfg.DisableGap = time.Hour, 30*time.Minute
		m := newMirror(t, cfg)
		s := newSink(t, status(http.StatusInternalServerError))
		e, _ := m.endpoint(m.tenant, s.URL)
		stop := m.run()
		send(m, schemas.TopicEventTracked, m.tenant, m.event(m.tenant, "k", "c"))
		const failing = `SELECT count(*) FROM core.webhook_endpoints WHERE failing_since > now() - interval '10 minutes' AND disabled_at IS NULL`
		m.await(1, failing)
		stop()
		m.exec(`UPDATE core.webhook_endpoints SET failing_since = now() - interval '3 days', last_failed_at = now() - interval '2 days'`) // an outage of ours
		stop = m.run()
		m.await(1, failing)
		stop()
		m.exec(`UPDATE core.webhook_endpoints SET failing_since = now() - interval '61 minutes', last_failed_at = now() - interval '10 minutes'`)
		stop = m.run()
		m.eventually("disabled", func() bool {
			got, err := m.store.Get(t.Context(), m.tenant, e.ID)
			require.NoError(t, err)
			return got.DisabledReason == webhook.DisabledFailing
		})
		m.awaitState("cancelled", 1)
		stop()

		_, err := m.store.Enable(t.Context(), m.tenant, e.ID)
		require.NoError(t, err)
		m.exec(`UPDATE core.webhook_endpoints SET failing_since = now() - interval '40 minutes', last_failed_at = now()`)
		s.will(nil)
		m.run()
		send(m, schemas.TopicEventTracked, m.tenant, m.event(m.tenant, "k2", "c"))
		m.await(1, `SELECT count(*) FROM core.webhook_endpoints WHERE failing_since IS NULL AND disabled_at IS NULL`)
	})

	t.Run("EachMisbehaviourIsAFailureOfItsOwnClass", func(t *testing.T) { // F33, field reports 31 and 33
		t.Parallel()
		m := newMirrorWith(t, webhook.Config{Retries: []time.Duration{}}, guard.Config{Deadline: 5 * time.Second}, nil) // only the drip may take longer
		var redirected atomic.Int64
		elsewhere := newSink(t, func(http.ResponseWriter, *http.Request) { redirected.Add(1) })
		closed := newSink(t, nil)
		closed.Close()
		for name, answer := range map[string]http.HandlerFunc{
			"redirect":         func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, elsewhere.URL, http.StatusFound) },
			"timeout":          drip,
			"reset":            reset,
			"malformed_answer": babble,
			"status":           status(http.StatusBadGateway),
			"throttled":        status(http.StatusTooManyRequests),
			"delivered":        huge,
			"refused":          nil,
		} {
			url := closed.URL
			if answer != nil {
				url = newSink(t, answer).URL
			}
			_, _, err := m.store.Create(t.Context(), m.tenant, webhook.Draft{URL: url, EventTypes: []string{"*"}, Description: name})
			require.NoError(t, err)
		}
		m.run()
		send(m, schemas.TopicEventTracked, m.tenant, m.event(m.tenant, "k", "c"))
		m.awaitState("failed", 7)
		m.awaitState("delivered", 1)
		require.Zero(t, m.count(`SELECT count(*) FROM core.webhook_attempts a JOIN core.webhook_endpoints e USING (endpoint_id) WHERE a.class <> e.description`))
		require.Equal(t, 8, m.count(`SELECT count(*) FROM core.webhook_attempts`))
		require.Zero(t, redirected.Load())
	})

	t.Run("RetryAfterIsHonouredUpward", func(t *testing.T) {
		t.Parallel()
		m := newMirror(t, quick(5))
		s := newSink(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Retry-After", "600")
			w.WriteHeader(http.StatusServiceUnavailable)
		})
		m.endpoint(m.tenant, s.URL)
		m.run()
		send(m, schemas.TopicEventTracked, m.tenant, m.events(m.tenant, "k", 30)...)
		m.await(30, `SELECT count(*) FROM core.webhook_deliveries WHERE state = 'pending' AND lease IS NULL AND next_attempt > now() + interval '9 minutes'`)
		require.LessOrEqual(t, s.count(), 8, "the whole endpoint is left alone, not only what was refused")
	})

	t.Run("ANameThatTurnedInwardFailsAndEnds", func(t *testing.T) { // bad inputs row 65
		t.Parallel()
		r := &turning{answer: netip.MustParseAddr("93.184.215.14")}
		m := newMirrorWith(t, quick(2), guard.Config{}, r)
		var connected atomic.Int64
		s := newSink(t, func(http.ResponseWriter, *http.Request) { connected.Add(1) })
		_, port, err := net.SplitHostPort(s.Listener.Addr().String())
		require.NoError(t, err)
		m.endpoint(m.tenant, "http://hooks.example.com:"+port+"/")
		r.set(netip.MustParseAddr("10.0.0.8"))
		m.run()
		send(m, schemas.TopicEventTracked, m.tenant, m.event(m.tenant, "k", "c"))
		m.awaitState("failed", 1)
		require.Equal(t, 3, m.count(`SELECT count(*) FROM core.webhook_attempts WHERE class = 'address_not_allowed' AND status IS NULL`))
		require.Zero(t, connected.Load())
	})

	t.Run("AnOutageOfOursCostsNothing", func(t *testing.T) { // P9
		t.Parallel()
		r := &turning{err: &net.DNSError{Err: "server misbehaving", IsTemporary: true}}
		m := newMirrorWith(t, quick(0), guard.Config{}, r)
		s := newSink(t, nil)
		_, port, err := net.SplitHostPort(s.Listener.Addr().String())
		require.NoError(t, err)
		m.endpoint(m.tenant, "http://hooks.example.com:"+port+"/")
		m.run()
		send(m, schemas.TopicEventTracked, m.tenant, m.event(m.tenant, "k", "c"))
		m.eventually("asked again and again", func() bool { return r.asked.Load() > 4 })
		require.Zero(t, m.count(`SELECT count(*) FROM core.webhook_attempts`))
		require.Equal(t, 1, m.count(`SELECT count(*) FROM core.webhook_deliveries WHERE attempts = 0 AND state = 'pending' AND last_error = 'dns_unavailable'`))
		require.Equal(t, 1, m.count(`SELECT count(*) FROM core.webhook_endpoints WHERE failing_since IS NULL`))
		r.set(netip.MustParseAddr("127.0.0.1"))
		m.awaitState("delivered", 1)
		require.Equal(t, 1, s.count())
	})

	t.Run("HeadersAndBothSecretsOfARotation", func(t *testing.T) {
		t.Parallel()
		m := newMirror(t, webhook.Config{})
		s := newSink(t, nil)
		d := draft(s.URL)
		d.Headers = map[string]string{"Authorization": "Bearer t0ken"}
		e, first, err := m.store.Create(t.Context(), m.tenant, d)
		require.NoError(t, err)
		second, _, err := m.store.Rotate(t.Context(), m.tenant, e.ID)
		require.NoError(t, err)
		m.run()
		send(m, schemas.TopicEventTracked, m.tenant, m.event(m.tenant, "k", "c"))
		m.awaitState("delivered", 1)
		got := s.requests()[0]
		require.Equal(t, "Bearer t0ken", got.header.Get("Authorization"))
		for _, secret := range []signature.Secret{first, second} {
			_, err := signature.Verify([]signature.Secret{secret}, got.header, []byte(got.body), time.Now())
			require.NoError(t, err)
		}
		m.exec(`UPDATE core.webhook_endpoints SET secrets = jsonb_set(secrets, '{1,until}', '"2020-01-01T00:00:00Z"')`)
		m.eventually("the old secret is over", func() bool {
			send(m, schemas.TopicEventTracked, m.tenant, m.event(m.tenant, fmt.Sprint("again-", s.count()), "c"))
			rs := s.requests()
			last := rs[len(rs)-1]
			_, err := signature.Verify([]signature.Secret{second}, last.header, []byte(last.body), last.at)
			require.NoError(t, err)
			_, err = signature.Verify([]signature.Secret{first}, last.header, []byte(last.body), last.at)
			return err != nil
		})
	})
}

// turning is a resolver whose answer changes.
type turning struct {
	asked  atomic.Int64
	mu     sync.Mutex
	answer netip.Addr
	err    error
}

func (r *turning) set(a netip.Addr) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.answer, r.err = a, nil
}

func (r *turning) LookupNetIP(context.Context, string, string) ([]netip.Addr, error) {
	r.asked.Add(1)
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.err != nil {
		return nil, r.err
	}
	return []netip.Addr{r.answer}, nil
}

func drip(w http.ResponseWriter, r *http.Request) {
	for r.Context().Err() == nil {
		_, _ = w.Write([]byte("x"))
		w.(http.Flusher).Flush()
		time.Sleep(20 * time.Millisecond)
	}
}

func reset(w http.ResponseWriter, _ *http.Request) {
	conn, _, err := w.(http.Hijacker).Hijack()
	if err == nil {
		_ = conn.(*net.TCPConn).SetLinger(0)
		conn.Close()
	}
}

func babble(w http.ResponseWriter, _ *http.Request) {
	conn, buf, err := w.(http.Hijacker).Hijack()
	if err == nil {
		fmt.Fprint(buf, "220 smtp.example.com ready\r\n")
		buf.Flush()
		conn.Close()
	}
}

func huge(w http.ResponseWriter, r *http.Request) {
	chunk := []byte(strings.Repeat("x", 64<<10))
	for range 100 {
		if _, err := w.Write(chunk); err != nil || r.Context().Err() != nil {
			return
		}
	}
}
