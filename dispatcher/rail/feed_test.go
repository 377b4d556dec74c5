package rail_test

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/softcrum/carril/dispatcher/feeder"
	"github.com/softcrum/carril/dispatcher/provider"
	"github.com/softcrum/carril/dispatcher/sends"
	"github.com/softcrum/carril/internal/ids"
	"github.com/softcrum/carril/internal/outbox"
	"github.com/softcrum/carril/internal/testkit"
	"github.com/softcrum/carril/schemas"
)

// feed runs the feeder until the test ends or stop is called.
func (b *bench) feed(edit func(*feeder.Config)) (stop func()) {
	b.t.Helper()
	pool, err := pgxpool.NewWithConfig(context.Background(), b.pool.Config())
	require.NoError(b.t, err)
	store, err := sends.New(sends.Config{Channel: "email", Rail: schemas.RailMarketing, Provider: "fake"}, sends.Deps{Pool: pool, Codec: b.codec, Providers: map[string]provider.Provider{"fake": b.fake}})
	require.NoError(b.t, err)
	cfg := feeder.Config{Channel: "email", Every: 20 * time.Millisecond, Linger: 50 * time.Millisecond, LeaseLife: time.Second}
	if edit != nil {
		edit(&cfg)
	}
	f, err := feeder.New(cfg, feeder.Deps{Pool: pool, Store: store, Kafka: b.kafka, Sink: outbox.ClientSink{Client: b.producer}, Log: testkit.Logger(b.t), Metrics: b.metrics})
	require.NoError(b.t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); _ = f.Run(ctx) }()
	var once sync.Once
	stop = func() { once.Do(func() { cancel(); testkit.Ends(b.t, "the feeder", func() { <-done; pool.Close() }) }) }
	b.t.Cleanup(stop)
	return stop
}

// queueMarketing writes messages as the channels stage does.
func (b *bench) queueMarketing(tenant uuid.UUID, n int) (out []uuid.UUID) {
	b.t.Helper()
	for range n {
		m := b.message(job{tenant: tenant, category: "marketing"})
		b.exec(`INSERT INTO messaging.consents (tenant_id, contact_id, channel, granted, source) VALUES ($1, $2, 'email', true, 'test')`, tenant, m.ContactID)
		raw, err := json.Marshal(m)
		require.NoError(b.t, err)
		b.exec(`INSERT INTO messaging.marketing_queue (tenant_id, channel, send_id, payload) VALUES ($1, 'email', $2, $3)`, tenant, m.SendID, raw)
		out = append(out, m.SendID)
	}
	return out
}

// blast makes a blast with recipients.
func (b *bench) blast(tenant uuid.UUID, n int, state string) uuid.UUID {
	b.t.Helper()
	id := ids.New()
	b.exec(`INSERT INTO messaging.templates (tenant_id, template_id, version, channel, subject, html) VALUES ($1, 'news', 1, 'email', 'News', '<p>Hi {{ name }}</p>') ON CONFLICT DO NOTHING`, tenant)
	b.exec(`INSERT INTO messaging.blasts (blast_id, tenant_id, channel, name, template_id, template_version, state, recipients, origin_event_id, correlation_id)
VALUES ($1, $2, 'email', 'b', 'news', 1, $3, $4, $5, 'c')`, id, tenant, state, n, ids.New())
	for i := range n {
		contact := ids.New()
		b.exec(`INSERT INTO messaging.consents (tenant_id, contact_id, channel, granted, source) VALUES ($1, $2, 'email', true, 'test')`, tenant, contact)
		b.exec(`INSERT INTO messaging.blast_recipients (blast_id, position, contact_id, address, variables) VALUES ($1, $2, $3, $4, $5)`, id, i, contact,
			fmt.Sprintf("r%d@example.com", i), fmt.Sprintf(`{"name":"n%d"}`, i))
	}
	return id
}

func (b *bench) outcomes(blast uuid.UUID) map[string]int {
	b.t.Helper()
	rows, err := b.pool.Query(context.Background(), `SELECT coalesce(outcome, 'pending'), count(*)::int FROM messaging.blast_recipients WHERE blast_id = $1 GROUP BY 1`, blast)
	require.NoError(b.t, err)
	defer rows.Close()
	out := map[string]int{}
	for rows.Next() {
		var o string
		var n int
		require.NoError(b.t, rows.Scan(&o, &n))
		out[o] = n
	}
	return out
}

func (b *bench) batches(state string) int {
	return b.count(`SELECT count(*) FROM core.processed_jobs WHERE id_time > now() - interval '1 day' AND worker = 'rail:email.marketing' AND state = $1`, state)
}

func TestFeeder(t *testing.T) {
	t.Parallel()
	// FS-MSG-0005 AC4
	t.Run("FreezesBatchesOfAHundredThatGoToTheBatchEndpoint", func(t *testing.T) {
		t.Parallel()
		b := newBench(t)
		all := b.queueMarketing(b.tenant, 230)
		b.feed(nil)
		b.start(setup{rail: schemas.RailMarketing})
		b.await(3, "sent")
		requests, people := b.fake.count()
		require.Equal(t, 3, requests)
		require.Equal(t, 230, people)
		for _, id := range all {
			require.Equal(t, 1, b.fake.delivered(id))
		}
		require.Zero(t, b.count(`SELECT count(*) FROM messaging.marketing_queue`))
	})
	t.Run("TakesTenantsInTurnAndNoMoreOfOneThanItsShare", func(t *testing.T) {
		t.Parallel()
		b := newBench(t)
		other := b.addTenant("other")
		b.queueMarketing(b.tenant, 60)
		b.queueMarketing(other, 6)
		b.feed(func(c *feeder.Config) { c.Batch, c.InTopic, c.Round = 3, 4, 2 })
		b.eventually("both have theirs", func() bool { return b.batches("in_topic") == 6 })
		require.Equal(t, 4, b.count(`SELECT count(*) FROM core.processed_jobs WHERE id_time > now() - interval '1 day' AND tenant_id = $1`, b.tenant))
		b.start(setup{rail: schemas.RailMarketing})
		b.await(22, "sent")
	})
	t.Run("WaitsALittleForABatchToFill", func(t *testing.T) {
		t.Parallel()
		b := newBench(t)
		b.feed(func(c *feeder.Config) { c.Linger = 5 * time.Second }) // far above what it takes to queue ten
		b.queueMarketing(b.tenant, 5)
		b.queueMarketing(b.tenant, 5)
		b.start(setup{rail: schemas.RailMarketing})
		b.await(1, "sent")
		requests, people := b.fake.count()
		require.Equal(t, 1, requests)
		require.Equal(t, 10, people)
	})
	t.Run("LeavesAPausedTenantAlone", func(t *testing.T) {
		t.Parallel()
		b := newBench(t)
		b.exec(`INSERT INTO messaging.tenant_rails (tenant_id, channel, rail, paused_at) VALUES ($1, 'email', 'marketing', now())`, b.tenant)
		other := b.addTenant("other")
		b.queueMarketing(b.tenant, 5)
		b.queueMarketing(other, 5)
		b.feed(nil)
		b.start(setup{rail: schemas.RailMarketing})
		b.await(1, "sent")
		require.Equal(t, 5, b.count(`SELECT count(*) FROM messaging.marketing_queue WHERE tenant_id = $1`, b.tenant))
	})
}

func TestBlast(t *testing.T) {
	t.Parallel()
	// I20
	t.Run("IsHeldWhileItIsPausedAndCountedExactly", func(t *testing.T) {
		t.Parallel()
		b := newBench(t)
		b.sweep()
		b.exec(`INSERT INTO messaging.suppressions (tenant_id, channel, address, reason) VALUES ($1, 'email', 'r7@example.com', 'manual')`, b.tenant)
		id := b.blast(b.tenant, 100, "running")
		b.feed(func(c *feeder.Config) { c.Batch, c.InTopic, c.First.After = 2, 50, -1 })
		b.eventually("all batches are in the topic", func() bool { return b.batches("in_topic") == 50 })
		paused := make(chan struct{})
		var sentBefore int
		b.fake.next(b.fake.take, b.fake.take, func(r provider.Request) (provider.Result, error) {
			b.exec(`UPDATE messaging.blasts SET state = 'paused' WHERE blast_id = $1`, id)
			close(paused)
			return b.fake.take(r)
		})
		b.start(setup{rail: schemas.RailMarketing, cfg: nil})
		<-paused
		b.eventually("the rest is held", func() bool { return b.batches("in_topic")+b.batches("claimed") == 0 })
		sentBefore, _ = b.fake.count()
		require.LessOrEqual(t, sentBefore, 3+16, "no more than what was in hand")
		got := b.outcomes(id)
		require.Equal(t, 100, got["pending"]+got["sent"]+got["blocked"])
		b.exec(`UPDATE messaging.blasts SET state = 'running' WHERE blast_id = $1`, id)
		b.eventually("all has its outcome", func() bool { return b.outcomes(id)["pending"] == 0 })
		require.Equal(t, map[string]int{"sent": 99, "blocked": 1}, b.outcomes(id))
		require.Empty(t, b.fake.twice())
	})
	t.Run("EndsWhatIsLeftWhenItIsCancelled", func(t *testing.T) {
		t.Parallel()
		b := newBench(t)
		id := b.blast(b.tenant, 30, "running")
		b.feed(func(c *feeder.Config) { c.Batch, c.First.After = 10, -1 })
		b.eventually("all batches are in the topic", func() bool { return b.batches("in_topic") == 3 })
		b.exec(`UPDATE messaging.blasts SET state = 'cancelled' WHERE blast_id = $1`, id)
		b.start(setup{rail: schemas.RailMarketing})
		b.await(3, "cancelled")
		require.Equal(t, map[string]int{"cancelled": 30}, b.outcomes(id))
		requests, _ := b.fake.count()
		require.Zero(t, requests)
	})
	t.Run("WaitsForTheOutcomesOfItsFirstSends", func(t *testing.T) {
		t.Parallel()
		b := newBench(t)
		b.statuses()
		id := b.blast(b.tenant, 60, "running")
		b.feed(func(c *feeder.Config) { c.Batch, c.First.After, c.First.Least = 10, 20, time.Millisecond })
		b.start(setup{rail: schemas.RailMarketing})
		b.await(2, "sent")
		time.Sleep(300 * time.Millisecond) // it must not go on: nothing to wait for but time
		require.Equal(t, 40, b.outcomes(id)["pending"])
		for _, send := range b.fake.order[:17] {
			b.report(event{id: "d-" + send.String(), status: provider.StatusDelivered, send: send, tenant: b.tenant})
		}
		b.await(6, "sent")
		require.Equal(t, map[string]int{"sent": 60}, b.outcomes(id))
	})
	// I56
	t.Run("IsPausedByItsBounces", func(t *testing.T) {
		t.Parallel()
		b := newBench(t)
		b.statuses()
		id := b.blast(b.tenant, 300, "running")
		b.feed(func(c *feeder.Config) {
			c.Batch, c.First.After, c.Watch = 20, 100, 20*time.Millisecond
			c.First.Least = time.Millisecond
		})
		b.start(setup{rail: schemas.RailMarketing})
		b.await(5, "sent")
		for i, send := range b.fake.order[:95] {
			status := provider.StatusDelivered
			if i%12 == 0 {
				status = provider.StatusHardBounce
			}
			b.report(event{id: "o-" + send.String(), status: status, send: send, tenant: b.tenant})
		}
		b.eventually("the blast is paused", func() bool {
			return b.count(`SELECT count(*) FROM messaging.blasts WHERE blast_id = $1 AND state = 'paused' AND state_reason = 'bounces'`, id) == 1
		})
		_, people := b.fake.count()
		require.Less(t, people, 300)
	})
	t.Run("IsDoneWhenAllHasItsOutcome", func(t *testing.T) {
		t.Parallel()
		b := newBench(t)
		id := b.blast(b.tenant, 25, "running")
		b.feed(func(c *feeder.Config) { c.Watch = 20 * time.Millisecond })
		b.start(setup{rail: schemas.RailMarketing})
		b.eventually("the blast is done", func() bool {
			return b.count(`SELECT count(*) FROM messaging.blasts WHERE blast_id = $1 AND state = 'done'`, id) == 1
		})
		require.Equal(t, map[string]int{"sent": 25}, b.outcomes(id))
	})
}
