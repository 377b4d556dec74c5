package rail_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/softcrum/carril/dispatcher/blast"
	"github.com/softcrum/carril/dispatcher/feeder"
	"github.com/softcrum/carril/dispatcher/provider"
	"github.com/softcrum/carril/dispatcher/rail"
	"github.com/softcrum/carril/dispatcher/sends"
	"github.com/softcrum/carril/internal/ids"
	"github.com/softcrum/carril/schemas"
)

// campaign is a blast on a rail under test.
type campaign struct {
	*bench
	store *blast.Store
	id    uuid.UUID
	of    uuid.UUID // its tenant
}

// campaign makes a running blast whose subjects the test chooses.
func (b *bench) campaign(n int, subject func(i int) string) *campaign {
	b.t.Helper()
	c := &campaign{b, blast.New(blast.Config{}, b.pool), ids.New(), b.tenant}
	b.exec(`INSERT INTO messaging.templates (tenant_id, template_id, version, channel, subject, html) VALUES ($1, 'spring', 1, 'email', '{{ subject }}', '<p>Hi</p>') ON CONFLICT DO NOTHING`, b.tenant)
	b.exec(`INSERT INTO messaging.blasts (blast_id, tenant_id, channel, name, template_id, template_version, state, recipients, origin_event_id, correlation_id, started_at)
VALUES ($1, $2, 'email', 'b', 'spring', 1, 'running', $3, $4, 'c', now())`, c.id, b.tenant, n, ids.New())
	subjects := make([]string, n)
	for i := range subjects {
		if subjects[i] = "Spring"; subject != nil {
			subjects[i] = subject(i)
		}
	}
	b.exec(`INSERT INTO messaging.blast_recipients (blast_id, position, contact_id, address, variables)
SELECT $1, n - 1, md5('of' || n)::uuid, 'r' || (n - 1) || '@example.com', jsonb_build_object('subject', s) FROM unnest($2::text[]) WITH ORDINALITY AS u(s, n)`, c.id, subjects)
	b.exec(`INSERT INTO messaging.consents (tenant_id, contact_id, channel, granted, source) SELECT $1, md5('of' || n)::uuid, 'email', true, 'test' FROM generate_series(1, $2::int) n
ON CONFLICT DO NOTHING`, b.tenant, n)
	return c
}

// get reads the blast and holds its counts against its recipients.
func (c *campaign) get() *blast.Blast {
	c.t.Helper()
	b, err := c.store.Get(context.Background(), c.of, c.id)
	require.NoError(c.t, err)
	require.Equal(c.t, b.Recipients, b.Progress.Sum())
	return b
}

func (c *campaign) is(state string) func() bool {
	return func() bool { return c.get().State == state }
}

// standing counts the tenant's credits in use.
func (c *campaign) standing() int { return c.batches("in_topic") + c.batches("claimed") }

// sampled looks at the blast all the time until the test ends or stop is called,
// which gives how often.
func (c *campaign) sampled() (stop func() int) {
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	looks, wrong := 0, ""
	wg.Go(func() {
		for ctx.Err() == nil {
			b, err := c.store.Get(ctx, c.of, c.id)
			if err == nil {
				looks++
				if b.Progress.Sum() != b.Recipients {
					wrong = fmt.Sprintf("%+v", b.Progress)
				}
			}
		}
	})
	var once sync.Once
	end := func() int {
		once.Do(func() { cancel(); wg.Wait() })
		require.Empty(c.t, wrong)
		return looks
	}
	c.t.Cleanup(func() { once.Do(func() { cancel(); wg.Wait() }) })
	return end
}

func TestBlastAccounting(t *testing.T) {
	t.Parallel()
	// Field report 17: "finished" at 2,061 of 5,239.
	t.Run("AddsUpAllTheTimeWithOnePercentErrors", func(t *testing.T) {
		t.Parallel()
		b := newBench(t)
		b.sweep()
		const n = 1_200
		c := b.campaign(n, func(i int) string {
			switch i % 100 {
			case 17:
				return "refused"
			case 63:
				return "never"
			}
			return "Spring"
		})
		b.fake.set(func(_ int, r provider.Request) (provider.Result, error) { return b.fake.takeBut(r, "never") })
		looks := c.sampled()
		b.feed(func(f *feeder.Config) { f.First.After, f.Watch = -1, 50*time.Millisecond })
		b.start(setup{rail: schemas.RailMarketing, cfg: func(c *rail.Config) { c.Tries, c.Backoff = 2, time.Millisecond }})
		b.eventually("the blast is done", c.is(blast.Done))
		require.Positive(t, looks())
		p := c.get().Progress
		require.Equal(t, [4]int64{n - 24, 12, 12, 0}, [4]int64{p.Sent, p.Failed, p.Dead, p.Pending})
		require.Empty(t, b.fake.twice())
		rep, err := c.store.Report(t.Context(), b.tenant, c.id)
		require.NoError(t, err)
		require.Equal(t, map[string]map[string]int64{"failed": {"invalid_to": 12}, "dead": {"unavailable": 12}}, rep.Reasons)

		// A replay moves dead to pending, and the blast runs until they have their end.
		rows, err := b.pool.Query(t.Context(), `SELECT job_id FROM core.processed_jobs WHERE id_time > now() - interval '1 day' AND worker = 'rail:email.marketing' AND state = 'dead'`)
		require.NoError(t, err)
		jobs, err := pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
		require.NoError(t, err)
		require.NoError(t, pgx.BeginFunc(t.Context(), b.pool, func(tx pgx.Tx) error {
			for _, job := range jobs {
				if err := sends.ReopenBlast(t.Context(), tx, "rail:email.marketing", job, uuid.Nil); err != nil {
					return err
				}
			}
			return nil
		}))
		again := c.get()
		require.Equal(t, [3]any{blast.Running, int64(0), int64(12)}, [3]any{again.State, again.Progress.Dead, again.Progress.Pending})
	})
	// Field report 18: three to five copies after a resume.
	t.Run("ReachesNobodyTwiceWhenKilledAtFortyPercentAndResumed", func(t *testing.T) {
		t.Parallel()
		b := newBench(t)
		b.sweep()
		addr := b.serveFake()
		c := b.campaign(200, nil)
		b.feed(func(f *feeder.Config) { f.Batch, f.First.After, f.Watch = 10, -1, 50*time.Millisecond })
		child := b.child(addr, true)
		child.Rail, child.Point, child.Nth = schemas.RailMarketing, rail.PointAnswered, 8
		b.runUntilKilled(child)
		_, err := c.store.Pause(t.Context(), b.tenant, c.id)
		require.NoError(t, err)
		_, err = c.store.Resume(t.Context(), b.tenant, c.id)
		require.NoError(t, err)
		child.Point = ""
		stop := b.runChild(child)
		b.eventually("the blast is done", c.is(blast.Done))
		stop()
		require.Equal(t, int64(200), c.get().Progress.Sent)
		require.Empty(t, b.fake.twice())
		_, people := b.fake.count()
		require.Equal(t, 200, people)
	})
	// Field report 24: one bad address, and the other 99 again and again. Field
	// report 23: two workers, one job.
	t.Run("FailsTheOneBadAddressOfAHundredWithTwoWorkers", func(t *testing.T) {
		t.Parallel()
		b := newBench(t)
		c := b.campaign(300, func(i int) string {
			if i == 42 {
				return "refused"
			}
			return "Spring"
		})
		b.feed(func(f *feeder.Config) { f.First.After, f.Watch = -1, 50*time.Millisecond })
		b.start(setup{rail: schemas.RailMarketing})
		b.start(setup{rail: schemas.RailMarketing, asker: "p2"})
		b.eventually("the blast is done", c.is(blast.Done))
		p := c.get().Progress
		require.Equal(t, [2]int64{299, 1}, [2]int64{p.Sent, p.Failed})
		requests, people := b.fake.count()
		require.Equal(t, [2]int{3, 299}, [2]int{requests, people})
		require.Empty(t, b.fake.twice())
	})
	// Field report 25: the loop never advances.
	t.Run("GoesOnBehindAHundredThatAreSuppressed", func(t *testing.T) {
		t.Parallel()
		b := newBench(t)
		c := b.campaign(250, nil)
		b.exec(`INSERT INTO messaging.suppressions (tenant_id, channel, address, reason) SELECT $1, 'email', 'r' || i || '@example.com', 'hard_bounce' FROM generate_series(0, 99) i`, b.tenant)
		b.feed(func(f *feeder.Config) { f.First.After, f.Watch = -1, 50*time.Millisecond })
		b.start(setup{rail: schemas.RailMarketing})
		b.eventually("the blast is done", c.is(blast.Done))
		p := c.get().Progress
		require.Equal(t, [2]int64{150, 100}, [2]int64{p.Sent, p.Blocked})
		rep, err := c.store.Report(t.Context(), b.tenant, c.id)
		require.NoError(t, err)
		require.Equal(t, map[string]map[string]int64{"blocked": {"suppressed_hard_bounce": 100}}, rep.Reasons)
	})
	// I20, by hand and again and again: credits come back, and what a resume brings
	// back never fills the topic with more than its share.
	t.Run("IsExactThroughPausesWithFiftyBatchesInTheTopic", func(t *testing.T) {
		t.Parallel()
		b := newBench(t)
		b.sweep()
		c := b.campaign(400, nil)
		b.feed(func(f *feeder.Config) { f.Batch, f.InTopic, f.First.After, f.Watch = 2, 50, -1, 50*time.Millisecond })
		looks := c.sampled()
		b.eventually("the topic has its share", func() bool { return b.batches("in_topic") == 50 })
		for range 3 {
			_, err := c.store.Pause(t.Context(), b.tenant, c.id)
			require.NoError(t, err)
			_, stop := b.start(setup{rail: schemas.RailMarketing})
			b.eventually("the credits are back", func() bool { return c.standing() == 0 })
			before, _ := b.fake.count()
			require.Zero(t, before, "nothing is sent while it is paused")
			stop()
			require.Equal(t, 50, b.batches("held"))
			_, err = c.store.Resume(t.Context(), b.tenant, c.id)
			require.NoError(t, err)
			b.eventually("what was held is in the topic", func() bool { return b.batches("held") == 0 })
			require.Equal(t, 50, c.standing())
		}
		b.start(setup{rail: schemas.RailMarketing})
		b.eventually("the blast is done", c.is(blast.Done))
		require.Positive(t, looks())
		require.Equal(t, int64(400), c.get().Progress.Sent)
		require.Empty(t, b.fake.twice())
	})
	t.Run("CountsABatchThatNobodyCouldRead", func(t *testing.T) {
		t.Parallel()
		b := newBench(t)
		c := b.campaign(40, nil)
		b.feed(func(f *feeder.Config) { f.Batch, f.First.After = 20, -1 })
		b.eventually("all is in the topic", func() bool { return b.batches("in_topic") == 2 })
		var job uuid.UUID
		require.NoError(t, b.pool.QueryRow(t.Context(), `SELECT job_id FROM core.processed_jobs WHERE id_time > now() - interval '1 day' AND worker = 'rail:email.marketing' LIMIT 1`).Scan(&job))
		store, err := sends.New(sends.Config{Channel: "email", Rail: schemas.RailMarketing, Provider: "fake"}, sends.Deps{Pool: b.pool, Codec: b.codec, Providers: map[string]provider.Provider{"fake": b.fake}})
		require.NoError(t, err)
		for range 2 {
			require.NoError(t, store.Refuse(t.Context(), sends.Refusal{Class: "unreadable", Reason: "no Avro", JobID: job, Topic: "notif.email.marketing", Record: &kgo.Record{Value: []byte("x")}}))
			p := c.get().Progress
			require.Equal(t, [2]int64{20, 20}, [2]int64{p.Dead, p.Pending})
		}
	})
	t.Run("CancelsAtOnceWhatWaitsAndTheTopicAtItsClaim", func(t *testing.T) {
		t.Parallel()
		b := newBench(t)
		c := b.campaign(1_000, nil)
		b.feed(func(f *feeder.Config) { f.Batch, f.InTopic, f.First.After = 10, 3, -1 })
		b.eventually("some is in the topic", func() bool { return b.batches("in_topic") == 3 })
		_, err := c.store.Cancel(t.Context(), b.tenant, c.id)
		require.NoError(t, err)
		p := c.get().Progress
		require.Equal(t, [3]int64{970, 30, 30}, [3]int64{p.Cancelled, p.Pending, p.Queued})
		b.start(setup{rail: schemas.RailMarketing})
		b.eventually("the topic is cancelled too", func() bool { return c.get().Progress.Cancelled == 1_000 })
		requests, _ := b.fake.count()
		require.Zero(t, requests)
	})
}

// I56: deliveries are reported at once, bounces long after; everybody shares one
// account.
func TestABlastOfBadAddressesIsPausedEarly(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.statuses()
	c := b.campaign(3_000, nil)
	reg := prometheus.NewRegistry()
	b.metrics = feeder.NewMetrics(reg, []string{"email"})
	shows := func(what string, lines ...string) {
		t.Helper()
		b.eventually("the metrics show "+what, func() bool {
			text := exposed(t, reg)
			return !slices.ContainsFunc(lines, func(l string) bool { return !strings.Contains(text, l+"\n") })
		})
	}
	unfed := b.feed(func(f *feeder.Config) { f.Watch, f.Measure = 50*time.Millisecond, 50*time.Millisecond })
	shows("five batches that nobody takes", `carril_blasts{channel="email",state="running"} 1`, `carril_blast_recipients_pending{channel="email",state="running"} 3000`,
		`carril_feeder_credits_used{channel="email"} 5`, `carril_feeder_credits_used_most{channel="email"} 5`, `carril_feeder_credits_limit{channel="email"} 50`,
		`carril_blast_drain_seconds{channel="email"} +Inf`)
	b.start(setup{rail: schemas.RailMarketing})
	reported := func() int64 {
		rep, err := c.store.Report(t.Context(), b.tenant, c.id)
		require.NoError(t, err)
		return rep.Delivered + rep.Bounced
	}
	b.eventually("the first are sent", func() bool { return c.get().Progress.Sent == 500 })
	b.fake.mu.Lock()
	first := append([]uuid.UUID{}, b.fake.order...)
	b.fake.mu.Unlock()
	for i, send := range first {
		if i%12 != 0 {
			b.report(event{id: "d-" + send.String(), status: provider.StatusDelivered, send: send, tenant: b.tenant})
		}
	}
	b.eventually("the deliveries are reported", func() bool { return reported() == 458 })
	shows("who has no outcome yet", `carril_blast_sends{channel="email",outcome="reported"} 458`, `carril_blast_sends{channel="email",outcome="unreported"} 42`,
		`carril_feeder_credits_used{channel="email"} 0`, `carril_blast_trips_total{channel="email",reason="bounces"} 0`)
	require.NotContains(t, exposed(t, reg), b.tenant.String())
	time.Sleep(500 * time.Millisecond) // it must not go on: there is nothing to wait for but time
	require.Equal(t, int64(500), c.get().Progress.Sent)
	for i, send := range first {
		if i%12 == 0 {
			b.report(event{id: "b-" + send.String(), status: provider.StatusHardBounce, send: send, tenant: b.tenant})
		}
	}
	b.eventually("the blast is paused", c.is(blast.Paused))
	got := c.get()
	require.Equal(t, "bounces", *got.StateReason)
	require.GreaterOrEqual(t, got.Progress.Sent, int64(500))
	require.LessOrEqual(t, got.Progress.Sent, int64(1_000))
	require.Empty(t, b.fake.twice())
	shows("the breaker", `carril_blast_trips_total{channel="email",reason="bounces"} 1`, `carril_blasts{channel="email",state="paused"} 1`, `carril_blasts{channel="email",state="running"} 0`,
		`carril_blast_drain_seconds{channel="email"} 0`)
	b.exec(`UPDATE messaging.blasts SET state = 'running', judged_from = now() WHERE blast_id = $1`, c.id)
	b.exec(`INSERT INTO messaging.tenant_rails (tenant_id, channel, rail, paused_at, paused_by) VALUES ($1, 'email', 'marketing', now(), 'breaker')
ON CONFLICT (tenant_id, channel, rail) DO UPDATE SET paused_at = now(), paused_by = 'breaker'`, b.tenant)
	shows("a stopped tenant", `carril_blasts{channel="email",state="held"} 1`, `carril_blast_tenants_stopped{channel="email"} 1`)
	unfed()
	text := exposed(t, reg)
	require.Contains(t, text, `carril_blasts{channel="email",state="held"} 0`, "whoever feeds it now says how it stands")
	require.Contains(t, text, `carril_blast_trips_total{channel="email",reason="bounces"} 1`)
}

// exposed is what a scrape of the registry gives.
func exposed(t *testing.T, reg *prometheus.Registry) string {
	t.Helper()
	w := httptest.NewRecorder()
	promhttp.HandlerFor(reg, promhttp.HandlerOpts{}).ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/metrics", nil))
	require.Equal(t, http.StatusOK, w.Code)
	return w.Body.String()
}

// Two blasts of one tenant: the small one does not wait behind the large one.
// Counted in requests, which are what is scarce.
func TestASmallBlastGoesOutBesideALargeOne(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	large := b.campaign(2_000, func(int) string { return "large" })
	b.feed(func(f *feeder.Config) { f.Batch, f.InTopic, f.First.After, f.Watch = 2, 6, -1, 50*time.Millisecond })
	b.eventually("the large one is under way", func() bool { return b.batches("in_topic") == 6 })
	small := b.campaign(120, func(int) string { return "small" })
	b.start(setup{rail: schemas.RailMarketing, cfg: func(c *rail.Config) { c.Concurrency = 1 }})
	b.eventually("the small one is done", small.is(blast.Done))
	b.fake.mu.Lock()
	last := 0
	of := map[uuid.UUID]bool{}
	at := small.get().StartedAt.UTC().Truncate(time.Millisecond)
	for i := range 120 {
		of[ids.Send(b.tenant, small.id, at, i, "email")] = true
	}
	for i, r := range b.fake.requests {
		if of[r.sends[0]] {
			last = i + 1
		}
	}
	b.fake.mu.Unlock()
	require.LessOrEqual(t, last, 132, "alone it takes 60 requests")
	require.Equal(t, blast.Running, large.get().State)
}

// takeBut takes a request without the messages of a subject, which fail for a
// reason that may pass.
func (f *fake) takeBut(r provider.Request, subject string) (provider.Result, error) {
	var msgs []provider.Message
	if err := json.Unmarshal(r.Body, &msgs); err != nil {
		return provider.Result{}, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	res := provider.Result{Limits: provider.Limits{Remaining: -1, DailyUsed: -1, MonthlyUsed: -1}}
	for _, m := range msgs {
		switch m.Subject {
		case subject:
			res.Items = append(res.Items, provider.Item{Err: &provider.Error{Class: provider.ClassRetryable, Code: "unavailable"}})
		case "refused":
			res.Items = append(res.Items, provider.Item{Err: &provider.Error{Class: provider.ClassPermanent, Code: "invalid_to"}})
		default:
			f.got[m.SendID]++
			res.Items = append(res.Items, provider.Item{ProviderMessageID: "m-" + m.SendID.String()})
		}
	}
	return res, nil
}
