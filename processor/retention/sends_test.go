package retention_test

import (
	"context"
	"encoding/json"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/softcrum/carril/internal/ids"
	"github.com/softcrum/carril/processor/partition"
	"github.com/softcrum/carril/processor/retention"
)

// send writes a send with its history: status, generation, status, generation, …
func (b *bench) send(at time.Time, class int, history ...any) uuid.UUID {
	b.Helper()
	id := ids.New()
	for _, parent := range []string{retention.Sends, retention.History} {
		_, err := partition.Make(context.Background(), b.pool, parent, at, int16(class))
		require.NoError(b.T, err)
	}
	b.exec(`INSERT INTO messaging.sends (requested_at, retention_months, tenant_id, send_id, cell_id, request_id, recipient_index, contact_id, channel, category,
    provider, address, content, correlation_id, origin_event_id) VALUES ($1, $2, $3, $4, 'cell-1', $4, 0, $4, 'email', 'marketing', 'resend', 'ana@example.com', '{}', 'c', $4)`,
		at, class, b.tenant, id)
	for i := 0; i < len(history); i += 2 {
		b.exec(`INSERT INTO messaging.send_status_history (requested_at, retention_months, tenant_id, send_id, status, provider, provider_event_id, generation, occurred_at)
VALUES ($1, $2, $3, $4, $5, 'resend', $6, $7, $1)`, at, class, b.tenant, id, history[i], uuid.NewString(), history[i+1])
	}
	return id
}

func TestSends(t *testing.T) {
	counts := func(b *bench) map[string]int {
		b.Helper()
		var raw []byte
		require.NoError(b.T, b.pool.QueryRow(context.Background(), `SELECT coalesce(jsonb_object_agg(name || ' ' || status, count), '{}') FROM core.monthly_counts
			WHERE source = 'sends' AND month = '2025-09-01'`).Scan(&raw))
		out := map[string]int{}
		require.NoError(b.T, json.Unmarshal(raw, &out))
		return out
	}

	t.Run("GoWithTheirHistoryAndLeaveCountsByFinalStatus", func(t *testing.T) { // FS-MSG-0003 §7
		t.Parallel()
		b := newBench(t)
		b.send(due, 13, "queued", 1, "sent", 1, "delivered", 1)
		b.send(due, 13, "queued", 1, "delivered", 1, "sent", 1) // in any order
		b.send(due, 13, "queued", 1, "failed", 1, "sent", 2)    // a later generation went out
		b.send(due, 13, "queued", 1, "sent", 1, "failed", 2)
		b.send(due, 13)
		b.send(due, 37, "queued", 1)
		res := b.run()
		require.Len(t, res.Dropped, 2)
		require.Empty(t, res.Held)
		require.Equal(t, map[string]int{"email/marketing delivered": 2, "email/marketing sent": 1, "email/marketing failed": 1, "email/marketing queued": 1}, counts(b))
		require.Equal(t, 1, b.count(`SELECT count(*) FROM messaging.sends WHERE requested_at > '-infinity'`))
		require.Equal(t, 1, b.count(`SELECT count(*) FROM messaging.send_status_history WHERE requested_at > '-infinity'`))
		require.Len(t, b.exports(retention.Sends), 1)
		require.Len(t, b.exports(retention.History), 1)
	})

	t.Run("AHistoryWaitsForItsSends", func(t *testing.T) {
		t.Parallel()
		b := newBench(t)
		b.send(due, 13, "queued", 1, "sent", 1, "bounced", 1)
		b.dies("exported") // sends come first: they are exported and not dropped
		require.Equal(t, retention.Sends, b.text(`SELECT parent FROM core.retention_ledger`))
		require.Equal(t, 3, b.count(`SELECT count(*) FROM messaging.send_status_history WHERE requested_at > '-infinity'`))
		b.restart()
		require.Len(t, b.run().Dropped, 2)
		require.Equal(t, map[string]int{"email/marketing bounced": 1}, counts(b))
	})

	t.Run("AreCountedThoughTheirHistoryIsDetached", func(t *testing.T) {
		t.Parallel()
		b := newBench(t)
		b.send(due, 13, "queued", 1, "sent", 1)
		b.exec(`SELECT core.detach_leaf('messaging.send_status_history', 'messaging.send_status_history_202509_r13', gen_random_uuid())`)
		require.Len(t, b.run().Dropped, 2)
		require.Equal(t, map[string]int{"email/marketing sent": 1}, counts(b))
	})

	t.Run("OfAGrownPlanMoveWithTheOrderOfTheirHistory", func(t *testing.T) {
		t.Parallel()
		b := newBench(t)
		id := b.send(due, 13, "queued", 1, "sent", 1)
		const arrivals = `SELECT string_agg(arrival || status, ',' ORDER BY arrival) FROM messaging.send_status_history WHERE requested_at > '-infinity' AND send_id = $1`
		before := b.text(arrivals, id)
		b.exec(`UPDATE core.tenants SET plan_id = 'scale'`)
		require.EqualValues(t, 3, b.run().Moved)
		require.Equal(t, before, b.text(arrivals, id))
		require.Equal(t, 1, b.count(`SELECT count(*) FROM messaging.sends WHERE requested_at = $1 AND retention_months = 37 AND address IS NOT NULL`, due))
		require.Empty(t, counts(b))
	})
}

func TestTrim(t *testing.T) {
	t.Run("DaysOfWorkGoWhenNothingOfThemIsOpen", func(t *testing.T) {
		t.Parallel()
		b := newBench(t)
		b.clock = time.Now()
		long := b.clock.AddDate(0, 0, -60).UTC()
		tables := []string{"core.outbox", "core.processed_jobs", "messaging.send_requests", "core.webhook_deliveries", "core.webhook_attempts"}
		for _, parent := range tables {
			for d := range 2 {
				_, err := partition.Make(t.Context(), b.pool, parent, long.AddDate(0, 0, -d), 0)
				require.NoError(t, err)
			}
		}
		b.exec(`INSERT INTO core.outbox_lanes (producer, store) VALUES ('derived', 'outbox')`)
		b.exec(`INSERT INTO core.outbox_cursors (lane, consumer, cursor) SELECT lane, 'relay', 7 FROM core.outbox_lanes WHERE producer = 'derived'`)
		b.exec(`INSERT INTO core.outbox (written_at, lane, lane_seq, topic, key, value, headers) SELECT $1, lane, 8, 't', '', '', '[]' FROM core.outbox_lanes WHERE producer = 'derived'`, long)
		b.exec(`INSERT INTO core.processed_jobs (id_time, worker, job_id, state) VALUES ($1, 'rail:email.marketing', gen_random_uuid(), 'needs_review'),
			($1 - interval '1 day', 'rail:email.marketing', gen_random_uuid(), 'sent')`, long)
		b.exec(`INSERT INTO core.webhook_deliveries (created_at, delivery_id, endpoint_id, tenant_id, order_key, seq, event_type, event_id, body, state)
			VALUES ($1, gen_random_uuid(), gen_random_uuid(), $2, 'k', 1, 'e', gen_random_uuid(), '', 'pending')`, long, b.tenant)
		res := b.run()
		for _, parent := range tables {
			require.Positive(t, res.Trimmed[parent], parent)
		}
		require.Len(t, res.Held, 3, "%v", res.Held) // an unpublished message, a job under review, a pending delivery
		b.exec(`UPDATE core.outbox_cursors SET cursor = 8 WHERE cursor = 7`)
		b.exec(`UPDATE core.processed_jobs SET state = 'dead' WHERE id_time = $1`, long)
		b.exec(`UPDATE core.webhook_deliveries SET state = 'failed' WHERE created_at = $1`, long)
		require.Empty(t, b.run().Held)
		require.Zero(t, b.count(`SELECT count(*) FROM core.partitioned_tables p CROSS JOIN LATERAL core.partition_tree(p.parent) t WHERE p.step = 'day' AND t.upper_bound < $1`,
			b.clock.AddDate(0, 0, -45)))
		require.Empty(t, missing(b), "what is needed now stands")
	})

	t.Run("SpansGoWithTheirLeavesAndNotBefore", func(t *testing.T) {
		t.Parallel()
		b := newBench(t)
		b.event("gone", due, 13, true)
		b.event("stays", now, 37, true)
		b.event("later", due, 13, true)
		const spans = `SELECT count(*) FROM core.event_spans`
		b.run()
		require.Equal(t, 3, b.count(spans), "leaves of longer classes stand in the month, and the successor")
		b.clock = now.AddDate(3, 0, 0) // all leaves of September 2025 are gone
		b.run()
		require.Equal(t, 2, b.count(spans), "the one whose month stands, and what came after it in its lane")
		require.Zero(t, b.count(`SELECT count(*) FROM core.event_spans WHERE first_seq = 1`))
	})

	t.Run("WhatTenantsLookUpStaysForTheirPlan", func(t *testing.T) {
		t.Parallel()
		b := newBench(t)
		b.cfg.Page = 2
		b.restart()
		other := ids.New()
		b.exec(`INSERT INTO core.tenants (tenant_id, slug, name, plan_id) VALUES ($1, 'other', 'Other', 'scale')`, other)
		for _, tenant := range []uuid.UUID{b.tenant, other} {
			for i := range 5 {
				b.exec(`INSERT INTO core.warnings (tenant_id, warning_id, kind, detail, recorded_at) VALUES ($1, gen_random_uuid(), 'k', '{}', $2)`, tenant, now.AddDate(0, -14, -i))
				b.exec(`INSERT INTO core.idempotency_conflicts (tenant_id, event_id, body_hash, received_at, recorded_at) VALUES ($1, gen_random_uuid(), '', $2, $2)`, tenant, now.AddDate(0, -14, -i))
			}
			b.exec(`INSERT INTO core.warnings (tenant_id, warning_id, kind, detail, recorded_at) VALUES ($1, gen_random_uuid(), 'k', '{}', $2)`, tenant, now.AddDate(0, -12, 0))
		}
		b.run()
		require.Equal(t, 1, b.count(`SELECT count(*) FROM core.warnings WHERE tenant_id = $1`, b.tenant))
		require.Zero(t, b.count(`SELECT count(*) FROM core.idempotency_conflicts WHERE tenant_id = $1`, b.tenant))
		require.Equal(t, 6, b.count(`SELECT count(*) FROM core.warnings WHERE tenant_id = $1`, other))
		require.Equal(t, 5, b.count(`SELECT count(*) FROM core.idempotency_conflicts WHERE tenant_id = $1`, other))
	})
}

func missing(b *bench) []partition.Gap {
	b.Helper()
	gaps, err := partition.Missing(context.Background(), b.pool, time.Now())
	require.NoError(b.T, err)
	var ahead []partition.Gap
	for _, g := range gaps {
		if g.Steps >= 0 {
			ahead = append(ahead, g)
		}
	}
	return ahead
}
