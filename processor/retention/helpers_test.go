package retention_test

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/softcrum/carril/internal/ids"
	"github.com/softcrum/carril/internal/testkit"
	"github.com/softcrum/carril/processor/partition"
	"github.com/softcrum/carril/processor/retention"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// store is an exporter that keeps objects in memory. before and after are asked
// around every call, with its name.
type store struct {
	pool *pgxpool.Pool

	mu            sync.Mutex
	objects       map[string]string // one text a manifest
	leaves        map[string]retention.Leaf
	before, after func(call string) error
	n             int
}

func newStore(pool *pgxpool.Pool) *store {
	ok := func(string) error { return nil }
	return &store{pool: pool, objects: map[string]string{}, leaves: map[string]retention.Leaf{}, before: ok, after: ok}
}

type querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

func text(ctx context.Context, db querier, table string) (string, int64, error) {
	rows, err := db.Query(ctx, `SELECT to_jsonb(t)::text FROM `+table+` t ORDER BY 1`)
	if err != nil {
		return "", 0, err
	}
	lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
	return strings.Join(lines, "\n"), int64(len(lines)), err
}

func digest(text string, rows int64) retention.Digest {
	return retention.Digest{Rows: rows, SHA256: sha256.Sum256([]byte(text))}
}

func (s *store) Export(ctx context.Context, l retention.Leaf) (manifest string, d retention.Digest, err error) {
	if err := s.before("export"); err != nil {
		return "", d, err
	}
	content, n, err := text(ctx, s.pool, l.Table)
	if err != nil {
		return "", d, err
	}
	s.mu.Lock()
	s.n++
	manifest = fmt.Sprintf("%s/%s/%d/%s/%d.json", l.Parent, l.From.Format("2006-01"), l.OID, l.Run, s.n)
	_, exists := s.objects[manifest]
	s.objects[manifest], s.leaves[manifest] = content, l
	s.mu.Unlock()
	if exists {
		return "", d, errors.New("an object was written over")
	}
	return manifest, digest(content, n), s.after("export")
}

func (s *store) Verify(_ context.Context, manifest string) (retention.Digest, error) {
	if err := s.before("verify"); err != nil {
		return retention.Digest{}, err
	}
	s.mu.Lock()
	content, ok := s.objects[manifest]
	s.mu.Unlock()
	if !ok {
		return retention.Digest{}, errors.New("no such object")
	}
	n := int64(0)
	if content != "" {
		n = int64(strings.Count(content, "\n")) + 1
	}
	return digest(content, n), s.after("verify")
}

func (s *store) DigestTable(ctx context.Context, tx pgx.Tx, table string) (retention.Digest, error) {
	if err := s.before("digest"); err != nil {
		return retention.Digest{}, err
	}
	content, n, err := text(ctx, tx, table)
	return digest(content, n), errors.Join(err, s.after("digest"))
}

func (s *store) Discard(_ context.Context, manifest string) error {
	if err := s.before("discard"); err != nil {
		return err
	}
	s.mu.Lock()
	delete(s.objects, manifest)
	s.mu.Unlock()
	return s.after("discard")
}

// now is the tests' clock: leaves of class 13 up to September 2025 are due.
var now = time.Date(2026, 11, 15, 12, 0, 0, 0, time.UTC)

// due lies in the newest month of class 13 that is due.
var due = time.Date(2025, 9, 30, 23, 59, 59, 999_000_000, time.UTC)

// bench is a database of the test's own, a job over it and its storage.
type bench struct {
	*testing.T
	pool   *pgxpool.Pool
	store  *store
	job    *retention.Job
	tenant uuid.UUID
	lane   int
	seq    int
	clock  time.Time
	cfg    retention.Config
}

func newBench(t *testing.T) *bench {
	t.Helper()
	b := &bench{T: t, pool: testkit.Pool(t), tenant: ids.New(), clock: now}
	b.store = newStore(b.pool)
	b.exec(`INSERT INTO core.tenants (tenant_id, slug, name, plan_id) VALUES ($1, 'acme', 'Acme', 'starter')`, b.tenant)
	b.exec(`INSERT INTO core.outbox_lanes (producer, store) VALUES ('test', 'events')`)
	b.exec(`INSERT INTO core.outbox_cursors (lane, consumer) SELECT lane, 'relay' FROM core.outbox_lanes`)
	b.lane = b.count(`SELECT lane FROM core.outbox_lanes`)
	b.restart()
	return b
}

// restart is another process: a new job over the same database and storage.
func (b *bench) restart() {
	b.job = retention.NewJob(b.cfg, retention.Deps{Pool: b.pool, Exporter: b.store, Log: testkit.Logger(b.T), Now: func() time.Time { return b.clock }})
}

// asApplication goes on with no more than the application's role may.
func (b *bench) asApplication() *pgxpool.Pool {
	b.Helper()
	cfg := b.pool.Config()
	cfg.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, `SET ROLE carril_app`)
		return err
	}
	app, err := pgxpool.NewWithConfig(context.Background(), cfg)
	require.NoError(b.T, err)
	b.Cleanup(app.Close)
	b.pool, b.store.pool = app, app
	b.restart()
	return app
}

func (b *bench) exec(sql string, args ...any) {
	b.Helper()
	_, err := b.pool.Exec(context.Background(), sql, args...)
	require.NoError(b.T, err)
}

func (b *bench) count(sql string, args ...any) int {
	b.Helper()
	var n int
	require.NoError(b.T, b.pool.QueryRow(context.Background(), sql, args...).Scan(&n))
	return n
}

func (b *bench) text(sql string, args ...any) (s string) {
	b.Helper()
	require.NoError(b.T, b.pool.QueryRow(context.Background(), sql, args...).Scan(&s))
	return s
}

// event appends an event as the stage does, published or not.
func (b *bench) event(key string, at time.Time, class int, published bool) {
	b.Helper()
	b.eventOf(b.tenant, key, at, at, class, published)
}

func (b *bench) eventOf(tenant uuid.UUID, key string, at, received time.Time, class int, published bool) {
	b.Helper()
	_, err := partition.Make(context.Background(), b.pool, retention.Events, at, int16(class))
	require.NoError(b.T, err)
	id := ids.Event(tenant, key)
	b.seq++
	b.exec(`INSERT INTO core.event_keys (tenant_id, event_id, body_hash, occurred_at, received_at) VALUES ($1, $2, '\x00', $3, $4)`, tenant, id, at, received)
	b.exec(`INSERT INTO core.tracked_events (tenant_id, event_id, cell_id, contact_id, kind, event_name, properties, occurred_at, occurred_offset, received_at,
    idempotency_key, correlation_id, retention_months, lane, lane_seq)
VALUES ($1, $2, 'cell-1', $2, 'track', 'invoice.paid', '{"name":"Ana"}', $3, 0, $4, $5, 'c', $6, $7, $8)`, tenant, id, at, received, key, class, b.lane, b.seq)
	b.exec(`INSERT INTO core.event_spans (lane, first_seq, last_seq, min_occurred, max_occurred, tenant_ids) VALUES ($1, $2, $2, $3, $3, ARRAY[$4]::uuid[])`,
		b.lane, b.seq, at, tenant)
	b.exec(`UPDATE core.outbox_lanes SET counter = $2 WHERE lane = $1`, b.lane, b.seq)
	if published {
		b.publish()
	}
}

// publish brings the relay's cursor to the counter.
func (b *bench) publish() {
	b.Helper()
	b.exec(`UPDATE core.outbox_cursors SET cursor = $2 WHERE lane = $1 AND consumer = 'relay'`, b.lane, b.seq)
}

// run runs the job once, without a failure.
func (b *bench) run() retention.Result {
	b.Helper()
	res, err := b.job.RunOnce(context.Background())
	require.NoError(b.T, err)
	return res
}

// exports are the contents of the exports that stand, of leaves that are gone.
func (b *bench) exports(parent string) []string {
	b.Helper()
	rows, err := b.pool.Query(context.Background(), `SELECT object FROM core.retention_ledger WHERE state = 'dropped' AND parent = $1 ORDER BY detached_at`, parent)
	require.NoError(b.T, err)
	manifests, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(b.T, err)
	out := make([]string, len(manifests))
	for i, m := range manifests {
		out[i] = b.store.objects[m]
	}
	return out
}

const (
	attached     = `SELECT count(*) FROM core.tracked_events WHERE occurred_at > '-infinity'`
	everywhere   = `SELECT count(*) FROM (SELECT event_id FROM core.tracked_events WHERE occurred_at > '-infinity' UNION ALL SELECT event_id FROM core.detached(NULL::core.tracked_events, '-infinity', 'infinity', NULL)) e`
	monthlyCount = `SELECT coalesce(sum(count), 0) FROM core.monthly_counts WHERE source = 'events' AND month = '2025-09-01' AND name = 'invoice.paid'`
)
