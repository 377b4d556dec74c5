package rail_test

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/softcrum/carril/dispatcher/lane"
	"github.com/softcrum/carril/dispatcher/provider"
	"github.com/softcrum/carril/dispatcher/sends"
	"github.com/softcrum/carril/internal/ids"
	"github.com/softcrum/carril/internal/outbox"
	"github.com/softcrum/carril/internal/sendstatus"
	"github.com/softcrum/carril/internal/testkit"
)

// matcher runs the second look at unmatched events until the test ends.
func (b *bench) matcher(keep time.Duration) {
	b.t.Helper()
	pool, err := pgxpool.NewWithConfig(context.Background(), b.pool.Config())
	require.NoError(b.t, err)
	h := sends.NewStatuses(b.codec, map[string]sends.Parser{"fake": parseEvent}, nil)
	m := sends.NewMatcher(sends.MatcherConfig{Every: 20 * time.Millisecond, Keep: keep}, pool, h, testkit.Logger(b.t))
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = lane.Run(ctx, lane.Config{Name: "matcher", Life: time.Second}, lane.Deps{Pool: pool, Sink: outbox.ClientSink{Client: b.producer}, Topic: b.kafka.Topic, Log: testkit.Logger(b.t)}, m.Run)
	}()
	b.t.Cleanup(func() { cancel(); testkit.Ends(b.t, "the status stage", func() { <-done; pool.Close() }) })
}

func (b *bench) status(id uuid.UUID) string {
	b.t.Helper()
	at := ids.Time(id)
	got, err := sendstatus.Of(context.Background(), b.pool, []sendstatus.Ref{{SendID: id, RequestedAt: at}})
	require.NoError(b.t, err)
	return got[id].Status
}

// FS-MSG-0003 AC3, F34: any order, any repetition, the same answer.
func TestStatusesInAnyOrder(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.statuses()
	b.start(setup{})
	all := b.enqueue(make([]job, 12)...)
	b.await(12, "sent")
	story := []provider.Status{provider.StatusSent, provider.StatusDelayed, provider.StatusDelivered, provider.StatusOpened, provider.StatusClicked, provider.StatusComplained}
	rng := rand.New(rand.NewPCG(3, 4))
	at := time.Now().UTC().Truncate(time.Microsecond)
	for i, id := range all {
		order := rng.Perm(len(story))
		for _, s := range order {
			for range 1 + rng.IntN(3) { // the provider says it again, now and then under another id
				ev := event{id: fmt.Sprintf("e-%d-%s", i, story[s]), status: story[s], message: "m-" + id.String(), at: at.Add(time.Duration(s) * time.Second)}
				if rng.IntN(3) == 0 {
					ev.id = uuid.NewString()
				}
				b.report(ev)
			}
		}
	}
	for _, id := range all {
		// Ours and the provider's "sent" are two rows of one name: the whole is awaited, not the number of names.
		whole := map[string]int{"queued": 1, "sent": 2, "delayed": 1, "delivered": 1, "opened": 1, "clicked": 1, "complained": 1}
		b.eventually("all is recorded", func() bool { return maps.Equal(whole, b.history(id)) })
		require.Equal(t, "complained", b.status(id))
	}
	require.Equal(t, 12, b.count(`SELECT count(*) FROM messaging.suppressions WHERE tenant_id = $1 AND reason = 'complaint'`, b.tenant))
}

func TestUnmatchedEvents(t *testing.T) {
	t.Parallel()
	// F34: an event overtakes our own commit
	t.Run("FindTheirSendLater", func(t *testing.T) {
		t.Parallel()
		b := newBench(t)
		b.statuses()
		b.matcher(time.Hour)
		answered := make(chan struct{})
		b.fake.next(func(r provider.Request) (provider.Result, error) {
			<-answered
			return b.fake.take(r)
		})
		b.start(setup{})
		id := b.enqueue(job{})[0]
		b.await(1, "claimed")
		b.report(event{id: "early", status: provider.StatusDelivered, message: "m-" + id.String()}) // no tag: only the provider's id
		b.eventually("it is put aside", func() bool { return b.count(`SELECT count(*) FROM messaging.unmatched_events`) == 1 })
		close(answered)
		b.await(1, "sent")
		b.eventually("it is matched", func() bool { return b.status(id) == "delivered" })
		require.Zero(t, b.count(`SELECT count(*) FROM messaging.unmatched_events`))
		require.ElementsMatch(t, []string{"messaging.message.sent", "messaging.message.delivered"}, b.changes(2)[id])
	})
	t.Run("SuppressTheirAddressWhenTheSendIsLongGone", func(t *testing.T) {
		t.Parallel()
		b := newBench(t)
		b.statuses()
		b.matcher(time.Millisecond)
		gone := ids.Send(b.tenant, uuid.New(), time.Now(), 0, "email")
		b.report(event{id: "late", status: provider.StatusHardBounce, send: gone, tenant: b.tenant, recipients: []string{"Old@Example.com"}})
		b.report(event{id: "alien", status: provider.StatusHardBounce, send: gone, tenant: uuid.New(), recipients: []string{"x@example.com"}})
		b.eventually("the address is suppressed", func() bool {
			return b.count(`SELECT count(*) FROM messaging.suppressions WHERE tenant_id = $1 AND address = 'old@example.com'`, b.tenant) == 1
		})
		b.eventually("both are let go", func() bool { return b.count(`SELECT count(*) FROM core.dead_letters WHERE class = 'unmatched'`) == 2 })
		require.Equal(t, 1, b.count(`SELECT count(*) FROM messaging.suppressions`))
	})
}

func TestStatusTags(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.statuses()
	b.start(setup{})
	other := b.addTenant("other")
	all := b.enqueue(job{}, job{address: "X@Exämple.com"})
	b.await(2, "sent")
	// A tag of another tenant is nobody's.
	b.report(event{id: "forged", status: provider.StatusHardBounce, send: all[0], tenant: other})
	b.report(event{id: "real", status: provider.StatusHardBounce, send: all[1], tenant: b.tenant})
	b.eventually("the real one is recorded", func() bool { return b.status(all[1]) == "bounced" })
	require.Equal(t, "sent", b.status(all[0]))
	require.Equal(t, 1, b.count(`SELECT count(*) FROM messaging.suppressions`))
	require.Equal(t, 1, b.count(`SELECT count(*) FROM messaging.suppressions WHERE address = 'x@xn--exmple-cua.com'`), "in its normal form")
	// I17: what we gave up on may still have arrived.
	b.fake.next(fails(provider.Error{Class: provider.ClassPermanent, Code: "no"}))
	failed := b.enqueue(job{})[0]
	b.await(1, "failed")
	require.Equal(t, "failed", b.status(failed))
	b.report(event{id: "after all", status: provider.StatusDelivered, send: failed, tenant: b.tenant})
	b.eventually("it was delivered", func() bool { return b.status(failed) == "delivered" })
	// A type that concerns no send changes nothing.
	b.report(event{id: "noise", send: all[0], tenant: b.tenant})
	// A provider nobody knows is poison, and holds nobody up.
	b.report(event{id: "next", status: provider.StatusDelivered, send: all[0], tenant: b.tenant})
	b.eventually("the next one is recorded", func() bool { return b.status(all[0]) == "delivered" })
}

// The table of statuses and the code agree.
func TestStatusTable(t *testing.T) {
	t.Parallel()
	pool := testkit.Pool(t)
	rows, err := pool.Query(t.Context(), `SELECT status, rank, coalesce(event, '') FROM messaging.send_statuses`)
	require.NoError(t, err)
	defer rows.Close()
	n := 0
	for rows.Next() {
		var status, event string
		var rank int32
		require.NoError(t, rows.Scan(&status, &rank, &event))
		gotRank, gotEvent, ok := sends.StatusInfo(status)
		require.True(t, ok, status)
		require.Equal(t, rank, gotRank, status)
		require.Equal(t, event, gotEvent, status)
		n++
	}
	require.Equal(t, 10, n)
}
