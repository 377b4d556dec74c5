package eventlog_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/softcrum/carril/internal/deadletter"
	"github.com/softcrum/carril/internal/ids"
	"github.com/softcrum/carril/internal/outbox"
	"github.com/softcrum/carril/internal/stream"
	"github.com/softcrum/carril/internal/testkit"
	"github.com/softcrum/carril/internal/testkit/ledger"
	"github.com/softcrum/carril/processor/stagetest"
	"github.com/softcrum/carril/schemas"
)

// TestADeadLetterReplayedLands is I44: what an event died of is mended, and its
// replay is appended once, however often it is asked for and published.
func TestADeadLetterReplayedLands(t *testing.T) {
	t.Parallel()
	b := stagetest.New(t)
	later := ids.New() // a tenant that is not there yet
	e := b.Event("k", "a.b", time.Now(), anybody, `{"n": 1}`)
	e.TenantID, e.EventID = later, ids.Event(later, "k")
	stagetest.SendTraced(b, schemas.TopicEvents, "core.event.accepted", e.EventID, "", e)
	run(b)
	b.Await(1, `SELECT count(*) FROM core.dead_letters WHERE class = 'unknown_tenant' AND event_id = $1`, e.EventID)
	require.Zero(t, b.Count(`SELECT count(*) FROM core.event_keys`))

	b.Exec(`INSERT INTO core.tenants (tenant_id, slug, name, plan_id) VALUES ($1, 'later', 'later', 'starter')`, later)
	ctx, cancel := context.WithCancel(context.Background())
	relayed := make(chan struct{})
	go func() {
		defer close(relayed)
		_ = deadletter.Relay(ctx, deadletter.RelayDeps{Pool: b.Side, Sink: outbox.ClientSink{Client: b.Producer}, Topic: b.Kafka.Topic, Holder: "test", Log: testkit.Logger(t)})
	}()
	t.Cleanup(func() { cancel(); <-relayed })
	store := deadletter.New(b.Side, nil)
	var id uuid.UUID
	require.NoError(t, b.Side.QueryRow(t.Context(), `SELECT dead_letter_id FROM core.dead_letters`).Scan(&id))
	for range 2 {
		_, err := store.Replay(t.Context(), deadletter.Filter{IDs: []uuid.UUID{id}}, "ana", "", 0)
		require.NoError(t, err)
	}
	// The stage may still remember that it knew no such tenant: then it dies
	// again, as another dead letter, and is replayed again.
	b.Eventually("the event lands", func() bool {
		if b.Count(eventCount) == 1 {
			return true
		}
		if n := b.Count(`SELECT count(*) FROM core.dead_letters WHERE status = 'open'`); n > 0 {
			_, err := store.Replay(t.Context(), deadletter.Filter{Stage: "append"}, "ana", "", n)
			require.NoError(t, err)
		}
		return false
	})
	require.Equal(t, 1, b.Count(`SELECT count(*) FROM core.tracked_events WHERE occurred_at > '-infinity' AND event_id = $1`, e.EventID))
	stagetest.Read[schemas.EventTracked](b, schemas.TopicEventTracked, 1)
}

// TestDatabaseRestoredAndKafkaNot is I40: 600 events are appended, the database
// goes back to when there were 300, and the operator says so. What was
// acknowledged is there once, lanes are contiguous and relayed, and a cursor of
// the older incarnation can be told where it is safe.
func TestDatabaseRestoredAndKafkaNot(t *testing.T) {
	t.Parallel()
	b := stagetest.New(t)
	book := ledger.Open(t)
	send := func(from, to int) {
		var es []schemas.Event
		for i := from; i < to; i++ {
			props := fmt.Sprintf(`{"n": %d}`, i)
			e := b.Event(fmt.Sprintf("k%04d", i), "a.b", time.Now(), anybody, props)
			es = append(es, e)
			book.Sent(ledger.Request{Tenant: e.TenantID.String(), Key: e.IdempotencyKey, OrderKey: "all", Seq: int64(i), Body: ledger.Body("a.b", props),
				Outcome: ledger.Accepted(e.EventID.String())})
		}
		stagetest.Send(b, schemas.TopicEvents, b.Tenant, es...)
	}
	send(0, 300)
	stop := run(b)
	b.Await(300, eventCount)
	stagetest.Read[schemas.EventTracked](b, schemas.TopicEventTracked, 300)
	stop()
	backup := backUp(b)
	send(300, 600)
	stop = run(b)
	b.Await(600, eventCount)
	stop()
	backup.restore()
	require.Equal(t, 300, b.Count(eventCount))
	before := b.Count(`SELECT counter FROM core.outbox_lanes WHERE store = 'events' AND producer LIKE 'stage:append/%' AND counter > 0`)

	done, err := stream.Restored(t.Context(), b.Side, "ana")
	require.NoError(t, err)
	require.Positive(t, done.Positions)
	require.Equal(t, 1, b.Count(`SELECT count(*) FROM core.database_restores WHERE restored_by = 'ana'`))
	require.Equal(t, 1, b.Count(`SELECT count(*) FROM core.outbox_lanes WHERE incarnation = 2 AND restored_counter = $1 AND store = 'events' AND counter > 0`, before))
	run(b)
	b.Await(600, eventCount)
	send(600, 650) // and life goes on
	b.Await(650, eventCount)
	stagetest.Read[schemas.EventTracked](b, schemas.TopicEventTracked, 650)
	b.Eventually("the relays are through", func() bool {
		return b.Count(`SELECT count(*) FROM core.outbox_lanes l JOIN core.outbox_cursors c USING (lane) WHERE c.cursor < l.counter AND l.producer LIKE 'stage:%'`) == 0
	})
	conn, err := pgx.ConnectConfig(t.Context(), b.Side.Config().ConnConfig)
	require.NoError(t, err)
	defer conn.Close(context.WithoutCancel(t.Context()))
	d, err := ledger.Read(t.Context(), conn)
	require.NoError(t, err)
	d.Lanes = only(d.Lanes, "events") // nobody relays the contacts' here
	book.Promise("events that the restore took away", 300, 600-300)
	book.Judge(d, nil)
}

func only(lanes []ledger.Lane, store string) (out []ledger.Lane) {
	for _, l := range lanes {
		if l.Store == store {
			out = append(out, l)
		}
	}
	return out
}

// backUp copies the bench's database as it is; restore puts the copy in its
// place. Nobody may be connected at either moment.
type dbBackup struct {
	b     *stagetest.Bench
	name  string
	admin *pgx.ConnConfig
}

func backUp(b *stagetest.Bench) dbBackup {
	b.T.Helper()
	c := dbBackup{b, b.Pool.Config().ConnConfig.Database, b.Pool.Config().ConnConfig.Copy()}
	c.admin.Database = "postgres"
	c.exec(`CREATE DATABASE ` + c.name + `_backup TEMPLATE ` + c.name + ` STRATEGY wal_log`)
	b.T.Cleanup(func() { c.exec(`DROP DATABASE IF EXISTS ` + c.name + `_backup WITH (FORCE)`) })
	return c
}

func (c dbBackup) restore() {
	c.b.T.Helper()
	c.exec(`DROP DATABASE ` + c.name + ` WITH (FORCE)`)
	c.exec(`ALTER DATABASE ` + c.name + `_backup RENAME TO ` + c.name)
}

func (c dbBackup) exec(sql string) {
	c.b.T.Helper()
	c.b.Pool.Reset()
	c.b.Side.Reset()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	conn, err := pgx.ConnectConfig(ctx, c.admin)
	require.NoError(c.b.T, err)
	defer conn.Close(ctx)
	for {
		_, err = conn.Exec(ctx, sql)
		if err == nil || ctx.Err() != nil {
			break
		}
		time.Sleep(50 * time.Millisecond) // a session that is just ending
	}
	require.NoError(c.b.T, err, sql)
}
