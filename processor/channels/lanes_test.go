package channels_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/softcrum/carril/internal/testkit/ledger"
	"github.com/softcrum/carril/processor/stagetest"
	"github.com/softcrum/carril/schemas"
)

// TestOneBatchOfSeveralLanes is I37: a batch writes platform events, contact
// changes and jobs, some of its records are bad and cause it to be rolled back and
// halved, and each lane is contiguous in its own table, from 1 to what it has
// given out.
func TestOneBatchOfSeveralLanes(t *testing.T) {
	t.Parallel()
	const n = 120
	b := newBench(t)
	var requests []schemas.NotificationRequested
	for i := range n {
		r := asked(b, fmt.Sprintf("K%03d", i), "transactional", fmt.Sprintf("new-%03d@example.com", i))
		if i == 50 { // PostgreSQL refuses it in the middle of the batch
			r.CorrelationID = "nul\x00"
		}
		requests = append(requests, r)
	}
	stagetest.Send(b, schemas.TopicRequestedTransactional, b.Tenant, requests...)
	run(b, schemas.RailTransactional, 200)
	b.Await(n-1, `SELECT count(*) FROM core.processed_jobs WHERE worker = 'rail:email.transactional' AND id_time > '-infinity'`)
	require.Equal(t, 1, b.Count(`SELECT count(*) FROM core.dead_letters`))
	stagetest.Read[schemas.SendJob](b, schemas.RailTopic("email", "transactional"), n-1)
	stagetest.Read[schemas.EventTracked](b, schemas.TopicEventTracked, n-1)

	conn, err := pgx.ConnectConfig(t.Context(), b.Side.Config().ConnConfig)
	require.NoError(t, err)
	defer conn.Close(context.WithoutCancel(t.Context()))
	d, err := ledger.Read(t.Context(), conn)
	require.NoError(t, err)
	for store, want := range map[string]int64{"events": n - 1, "outbox": 2 * (n - 1)} { // jobs, and contacts in their own lane
		var sum int64
		for _, l := range d.Lanes {
			if l.Store == store {
				sum += l.Counter
				require.Equal(t, l.Counter, l.Count, "lane %d", l.Lane)
				require.Equal(t, min(1, l.Counter), l.First)
				require.Equal(t, l.Counter, l.Last)
			}
		}
		require.Equal(t, want, sum, store)
	}
	require.Equal(t, 2, b.Count(`SELECT count(DISTINCT lane) FROM core.outbox WHERE written_at > '-infinity'`), "jobs and contacts")
	require.Zero(t, b.Count(`SELECT count(*) FROM (SELECT lane FROM core.tracked_events WHERE occurred_at > '-infinity' INTERSECT SELECT lane FROM core.outbox WHERE written_at > '-infinity') x`))
	require.False(t, strings.Contains(ledger.Text(ledger.Check(ledger.Evidence{Dump: d}), 50), "holds"), "no lane has a gap")
}
