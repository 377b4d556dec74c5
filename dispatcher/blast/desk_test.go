package blast

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/softcrum/carril/internal/ids"
	"github.com/softcrum/carril/internal/testkit"
)

// desk is a store over a database of the test's own, with a tenant that has a
// template and a verified sender.
type desk struct {
	*Store
	t      testing.TB
	pool   *pgxpool.Pool
	tenant uuid.UUID
}

func newDesk(t testing.TB) *desk {
	t.Helper()
	d := &desk{t: t, pool: testkit.Pool(t), tenant: ids.New()}
	d.Store = New(Config{}, d.pool)
	d.exec(`INSERT INTO core.tenants (tenant_id, slug, name, plan_id) VALUES ($1, 'acme', 'acme', 'starter')`, d.tenant)
	d.exec(`INSERT INTO messaging.senders (tenant_id, channel, sender, verified) VALUES ($1, 'email', 'acme@example.com', true)`, d.tenant)
	d.exec(`INSERT INTO messaging.templates (tenant_id, template_id, version, channel, subject, html) VALUES ($1, 'news', 1, 'email', 'News', '<p>Hi {{ name }}</p>')`, d.tenant)
	return d
}

func (d *desk) exec(sql string, args ...any) {
	d.t.Helper()
	_, err := d.pool.Exec(context.Background(), sql, args...)
	require.NoError(d.t, err)
}

func (d *desk) count(sql string, args ...any) (n int64) {
	d.t.Helper()
	require.NoError(d.t, d.pool.QueryRow(context.Background(), sql, args...).Scan(&n))
	return n
}

// contacts makes n known contacts with an external_id and an address each, and a
// consent.
func (d *desk) contacts(n int) {
	d.t.Helper()
	d.exec(`WITH c AS (
    INSERT INTO core.contacts (tenant_id, contact_id, cell_id, known, traits)
    SELECT $1, md5('contact' || i)::uuid, 'cell-1', true, jsonb_build_object('tier', CASE WHEN i % 2 = 0 THEN 'gold' ELSE 'none' END) FROM generate_series(1, $2::int) i RETURNING 1
) SELECT 1`, d.tenant, n)
	d.exec(`INSERT INTO core.contact_identifiers (tenant_id, kind, value, contact_id) SELECT $1, 'external_id', 'c-' || i, md5('contact' || i)::uuid FROM generate_series(1, $2::int) i`, d.tenant, n)
	d.exec(`INSERT INTO core.contact_identifiers (tenant_id, kind, value, contact_id) SELECT $1, 'email', 'p' || i || '@example.com', md5('contact' || i)::uuid FROM generate_series(1, $2::int) i`, d.tenant, n)
	d.exec(`INSERT INTO messaging.consents (tenant_id, contact_id, channel, granted, source) SELECT $1, md5('contact' || i)::uuid, 'email', true, 'test' FROM generate_series(1, $2::int) i`, d.tenant, n)
}

func (d *desk) contact(i int) (id uuid.UUID) {
	d.t.Helper()
	require.NoError(d.t, d.pool.QueryRow(context.Background(), `SELECT md5('contact' || $1::int)::uuid`, i).Scan(&id))
	return id
}

func (d *desk) draft(a Audience) *Blast {
	d.t.Helper()
	b, err := d.Create(context.Background(), d.tenant, "", Change{Name: new("spring"), TemplateID: new("news"), Audience: &a, Variables: json.RawMessage(`{"name":"friend"}`)})
	require.NoError(d.t, err)
	return b
}

// filled is a draft with recipients that no upload has brought.
func (d *desk) filled(n int) *Blast {
	d.t.Helper()
	b := d.draft(Audience{Type: FromUpload})
	d.exec(`INSERT INTO messaging.blast_recipients (blast_id, position, contact_id, address) SELECT $1, i, gen_random_uuid(), 'r' || i || '@example.com' FROM generate_series(0, $2::bigint - 1) i`, b.ID, n)
	d.exec(`UPDATE messaging.blasts SET recipients = $2 WHERE blast_id = $1`, b.ID, n)
	return b
}

// exact reads a blast and holds its counts against its recipients, row by row.
func (d *desk) exact(id uuid.UUID) *Blast {
	d.t.Helper()
	b, err := d.Get(context.Background(), d.tenant, id)
	require.NoError(d.t, err)
	require.Equal(d.t, b.Recipients, b.Progress.Sum(), "sent + failed + … + pending is the number of recipients")
	var raw []byte
	require.NoError(d.t, d.pool.QueryRow(context.Background(), `SELECT coalesce(jsonb_object_agg(o, n), '{}') FROM (
    SELECT CASE WHEN b.cancelled_from IS NOT NULL AND r.position >= b.cancelled_from THEN 'cancelled' ELSE coalesce(r.outcome, 'pending') END AS o, count(*) AS n
    FROM messaging.blast_recipients r JOIN messaging.blasts b USING (blast_id) WHERE r.blast_id = $1 GROUP BY 1) u`, id).Scan(&raw))
	rows := map[string]int64{}
	require.NoError(d.t, json.Unmarshal(raw, &rows))
	p := b.Progress
	for o, n := range map[string]int64{"sent": p.Sent, "failed": p.Failed, "expired": p.Expired, "blocked": p.Blocked, "cancelled": p.Cancelled, "needs_review": p.NeedsReview, "dead": p.Dead, "pending": p.Pending} {
		require.Equal(d.t, rows[o], n, "%s: %v", o, rows)
	}
	require.Equal(d.t, int64(0), d.count(`SELECT count(*) FROM (SELECT position, row_number() OVER (ORDER BY position) - 1 AS n FROM messaging.blast_recipients WHERE blast_id = $1) u WHERE position <> n`, id), "positions have no gaps")
	return b
}

func code(err error) string {
	if r, ok := err.(*Refusal); ok { //nolint:errorlint // as it comes
		return r.Code
	}
	return fmt.Sprint(err)
}
