package retention_test

import (
	"context"
	"fmt"
	"os"
	"regexp"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/softcrum/carril/internal/ids"
	"github.com/softcrum/carril/internal/testkit"
	"github.com/softcrum/carril/processor/partition"
)

// request writes what a request for one message leaves beside its send.
func (b *bench) request(at time.Time, class int) uuid.UUID {
	b.Helper()
	id := ids.New()
	_, err := partition.Make(context.Background(), b.pool, "messaging.decisions", at, 0)
	require.NoError(b.T, err)
	b.exec(`INSERT INTO messaging.request_keys (tenant_id, request_id, body_hash, received_at) VALUES ($1, $2, '\x00', $3)`, b.tenant, id, at)
	b.exec(`INSERT INTO messaging.decisions (received_at, tenant_id, request_id, recipient_index, channel, contact_id, origin_event_id, correlation_id, outcome, send_id)
VALUES ($1, $2, $3, 0, 'email', $3, $3, 'c', 'queued', $3)`, at, b.tenant, id)
	b.exec(`INSERT INTO messaging.provider_messages (sent_at, provider, provider_message_id, send_id, tenant_id, retention_months, generation)
VALUES ($1, 'resend', $2, $3, $4, $5, 1)`, at, id.String(), id, b.tenant, class)
	return id
}

func TestGrowth(t *testing.T) {
	t.Parallel()
	const (
		keys      = `SELECT count(*) FROM messaging.request_keys`
		decisions = `SELECT count(*) FROM messaging.decisions WHERE received_at > '-infinity'`
		messages  = `SELECT count(*) FROM messaging.provider_messages`
		letters   = `SELECT count(*) FROM core.dead_letters`
	)

	t.Run("WhatLeadsToSendsGoesWithThem", func(t *testing.T) {
		t.Parallel()
		b := newBench(t)
		b.exec(`UPDATE core.tenants SET plan_id = (SELECT plan_id FROM core.plans WHERE retention_months = 13)`)
		b.cfg.Page = 2 // several pages
		b.restart()
		for range 5 {
			b.request(due, 13)
		}
		b.request(due, 25) // the send of a plan that was longer
		b.request(now, 13)
		b.send(due, 25, "queued", 1)
		res := b.run()
		require.Equal(t, 1, b.count(keys), "the newer one")
		require.Equal(t, 7, b.count(decisions), "a send of the month stands")
		require.Contains(t, fmt.Sprint(res.Held), "sends of the same month go first")
		require.Equal(t, 7, b.count(messages), "not a month after their class")
		b.clock = now.AddDate(0, 1, 0)
		b.run()
		require.Equal(t, 2, b.count(messages), "the longer class, and the newer one")
		b.clock = now.AddDate(1, 0, 0) // the longer class is due as well
		b.run()
		require.Equal(t, 1, b.count(decisions))
		require.Equal(t, 1, b.count(`SELECT count(*) FROM messaging.decisions WHERE received_at > $1`, due))
	})

	t.Run("ALongerPlanOfAnyTenantKeepsTheFence", func(t *testing.T) {
		t.Parallel()
		b := newBench(t)
		b.exec(`INSERT INTO core.tenants (tenant_id, slug, name, plan_id) VALUES ($1, 'long', 'Long', (SELECT plan_id FROM core.plans WHERE retention_months = 37))`, ids.New())
		b.request(due, 13)
		b.run()
		require.Equal(t, 1, b.count(keys))
		require.Equal(t, 1, b.count(decisions))
	})

	t.Run("RecipientsOfAnOldBlastGoAndItsReportStays", func(t *testing.T) {
		t.Parallel()
		b := newBench(t)
		b.exec(`UPDATE core.tenants SET plan_id = (SELECT plan_id FROM core.plans WHERE retention_months = 13)`)
		b.cfg.Page = 3
		b.restart()
		blast := func(ended time.Time) uuid.UUID {
			id := ids.New()
			b.exec(`INSERT INTO messaging.blasts (blast_id, tenant_id, channel, name, template_id, template_version, state, recipients, fed, origin_event_id, correlation_id, started_at, finished_at)
VALUES ($1, $2, 'email', 'news', 'news', 1, 'done', 10, 10, $1, 'c', $3::timestamptz - interval '1 hour', $3)`, id, b.tenant, ended)
			b.exec(`INSERT INTO messaging.blast_recipients (blast_id, position, address, outcome) SELECT $1, n, 'p' || n || '@example.com', 'sent' FROM generate_series(0, 9) n`, id)
			b.exec(`INSERT INTO messaging.blast_uploads (blast_id, upload_id, state) VALUES ($1, $1, 'done')`, id)
			b.exec(`INSERT INTO messaging.blast_upload_rows (blast_id, upload_id, row, col, reason) VALUES ($1, $1, 1, 'address', 'no_address')`, id)
			return id
		}
		old, young := blast(now.AddDate(0, -13, -1)), blast(now.AddDate(0, -13, 1))
		for _, i := range []int{1, 2} {
			b.exec(`INSERT INTO messaging.suppressions (tenant_id, channel, address, reason, created_at) VALUES ($1, 'email', $2, 'unsubscribe', $3)`, b.tenant, fmt.Sprintf("p%d@example.com", i), now)
		}
		const (
			left = `SELECT messaging.blast_unsubscribed($1)`
			sent = `SELECT sum(n) FROM messaging.blast_counts WHERE blast_id = $1 AND what = 'sent'`
			who  = `SELECT count(*) FROM messaging.blast_recipients WHERE blast_id = $1`
		)
		require.Equal(t, 2, b.count(left, old))
		require.Equal(t, int64(10), b.run().Trimmed["messaging.blast_recipients"])
		require.Zero(t, b.count(who, old))
		require.Zero(t, b.count(`SELECT count(*) FROM messaging.blast_uploads WHERE blast_id = $1`, old))
		require.Equal(t, 10, b.count(who, young))
		for _, id := range []uuid.UUID{old, young} {
			require.Equal(t, 2, b.count(left, id))
			require.Equal(t, 10, b.count(sent, id))
		}
	})

	t.Run("ClosedDeadLettersGoAndOpenOnesStay", func(t *testing.T) {
		t.Parallel()
		b := newBench(t)
		for _, l := range []struct {
			status string
			closed any
		}{{"open", nil}, {"replayed", now.AddDate(0, 0, -91)}, {"discarded", now.AddDate(0, 0, -91)}, {"replayed", now.AddDate(0, 0, -89)}} {
			b.exec(`INSERT INTO core.dead_letters (dead_letter_id, stage, class, reason, status, status_at, created_at) VALUES ($1, 'append', 'refused', 'why', $2, $3, $4)`,
				ids.New(), l.status, l.closed, now.AddDate(-2, 0, 0))
		}
		b.run()
		require.Equal(t, 1, b.count(letters+` WHERE status = 'open'`))
		require.Equal(t, 1, b.count(letters+` WHERE status <> 'open'`))
	})

	t.Run("NeedsNoMoreThanTheApplicationsRole", func(t *testing.T) {
		t.Parallel()
		b := newBench(t)
		b.exec(`UPDATE core.tenants SET plan_id = (SELECT plan_id FROM core.plans WHERE retention_months = 13)`)
		b.request(due, 13)
		b.clock = now.AddDate(0, 1, 0)
		b.asApplication()
		res := b.run()
		delete(res.Trimmed, "core.outbox") // empty days
		require.Equal(t, map[string]int64{"messaging.request_keys": 1, "messaging.decisions": 1, "messaging.provider_messages": 1}, res.Trimmed)
	})
}

// Whoever adds a table says how its rows go, or why they stay.
func TestEveryTableSaysHowItsRowsGo(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../docs/operators.md")
	require.NoError(t, err)
	said := map[string]bool{}
	for _, row := range regexp.MustCompile("(?m)^\\| `(?:core|messaging)\\.[^|]*\\|").FindAllString(string(text), -1) {
		for _, name := range regexp.MustCompile(`(?:core|messaging)\.[a-z_]+`).FindAllString(row, -1) {
			said[name] = true
		}
	}
	rows, err := testkit.Pool(t).Query(t.Context(), `SELECT n.nspname || '.' || c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname IN ('core', 'messaging') AND c.relkind IN ('r', 'p') AND NOT c.relispartition`)
	require.NoError(t, err)
	have, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(t, err)
	require.NotEmpty(t, have)
	for _, name := range have {
		require.True(t, said[name], "docs/operators.md does not say how the rows of %s go", name)
		delete(said, name)
	}
	require.Empty(t, said, "tables that are not there")
}
