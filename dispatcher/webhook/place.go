package webhook

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"maps"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/softcrum/carril/internal/ids"
)

// delivery is one event for one endpoint: a row, and what of it is in memory.
type delivery struct {
	createdAt time.Time // the row's partition; the id begins with it
	id        uuid.UUID
	endpoint  uuid.UUID
	tenant    uuid.UUID
	eventID   uuid.UUID
	eventType string
	orderKey  string // of the endpoint and what the event is about
	seq       int64
	body      []byte

	attempts int       // counted so far
	claimed  bool      // from the table: rows may wait for its end
	leased   bool      // to this process
	leaseEnd time.Time // by our clock, never later than the database's
}

func newDelivery(e event, endpoint uuid.UUID, seq int64) *delivery {
	id := ids.WebhookDelivery(endpoint, e.id, e.eventType, e.received)
	return &delivery{createdAt: ids.Time(id), id: id, endpoint: endpoint, tenant: e.tenant, eventID: e.id, eventType: e.eventType,
		orderKey: orderKey(endpoint, e.about), seq: seq, body: e.body}
}

// orderKey names the queue of an endpoint in which the events about one contact,
// or one send, stand. It holds the endpoint too, so that one short column finds
// the queue: with two, a planner without statistics takes the wrong index.
func orderKey(endpoint, about uuid.UUID) string {
	sum := sha256.Sum256(append(endpoint[:], about[:]...))
	return base64.RawURLEncoding.EncodeToString(sum[:16])
}

// subscriber is an endpoint as the stage sees it.
type subscriber struct {
	id      uuid.UUID
	types   []string
	created time.Time
}

// subscribers reads the enabled endpoints of tenants inside the batch's own
// transaction: an endpoint that exists hears of every event taken in after it.
func subscribers(ctx context.Context, tx pgx.Tx, tenants []uuid.UUID) (map[uuid.UUID][]subscriber, error) {
	const sql = `SELECT tenant_id, endpoint_id, event_types, created_at FROM core.webhook_endpoints
WHERE tenant_id = ANY($1) AND disabled_at IS NULL AND delivery = 'single' ORDER BY endpoint_id`
	rows, err := tx.Query(ctx, sql, tenants)
	if err != nil {
		return nil, fmt.Errorf("read webhook endpoints: %w", err)
	}
	out := map[uuid.UUID][]subscriber{}
	var tenant uuid.UUID
	var s subscriber
	_, err = pgx.ForEachRow(rows, []any{&tenant, &s.id, &s.types, &s.created}, func() error {
		out[tenant] = append(out[tenant], s)
		s.types = nil
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read webhook endpoints: %w", err)
	}
	return out, nil
}

// elsewhere says which endpoints have rows that this process does not hold: in
// another's memory, waiting for a retry, or waiting for room.
func elsewhere(ctx context.Context, tx pgx.Tx, since time.Time, endpoints []uuid.UUID, me uuid.UUID) (map[uuid.UUID]bool, error) {
	const sql = `SELECT e FROM unnest($2::uuid[]) e CROSS JOIN LATERAL (SELECT FROM core.webhook_deliveries d
    WHERE d.created_at >= $1 AND d.endpoint_id = e AND d.state = 'pending' AND d.lease IS DISTINCT FROM $3 LIMIT 1) one`
	rows, err := tx.Query(ctx, sql, since, endpoints, me)
	if err != nil {
		return nil, fmt.Errorf("look for webhooks that wait: %w", err)
	}
	return collectSet[uuid.UUID](rows, "look for webhooks that wait")
}

// stalled says which queues' heads wait for a time to come. Their rows stay
// locked until the batch commits: a row that is written behind one of them is
// seen by whoever ends it.
func stalled(ctx context.Context, tx pgx.Tx, since time.Time, queues []string) (map[string]bool, error) {
	const sql = `SELECT q FROM unnest($2::text[]) q
CROSS JOIN LATERAL (SELECT d.next_attempt FROM core.webhook_deliveries d
    WHERE d.created_at >= $1 AND d.order_key = q AND d.state = 'pending' ORDER BY d.seq LIMIT 1 FOR SHARE) head
WHERE head.next_attempt IS NULL OR head.next_attempt > statement_timestamp()`
	rows, err := tx.Query(ctx, sql, since, queues)
	if err != nil {
		return nil, fmt.Errorf("look for stalled webhooks: %w", err)
	}
	return collectSet[string](rows, "look for stalled webhooks")
}

func collectSet[T comparable](rows pgx.Rows, what string) (map[T]bool, error) {
	out := map[T]bool{}
	var one T
	if _, err := pgx.ForEachRow(rows, []any{&one}, func() error { out[one] = true; return nil }); err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	return out, nil
}

// Bounds of one INSERT: an event goes to many endpoints, and its body with it.
const (
	maxInsertRows  = 2_000
	maxInsertBytes = 4 << 20
)

// insert writes deliveries and gives the ids of those that are new. behind are
// the queues in which a row has no time of its own.
func insert(ctx context.Context, tx pgx.Tx, ds []*delivery, behind map[string]bool, me uuid.UUID, lease time.Duration) (map[uuid.UUID]bool, error) {
	fresh := make(map[uuid.UUID]bool, len(ds))
	for len(ds) > 0 {
		n, bytes := 0, 0
		for n < len(ds) && n < maxInsertRows && (n == 0 || bytes+len(ds[n].body) <= maxInsertBytes) {
			bytes += len(ds[n].body)
			n++
		}
		written, err := insertSome(ctx, tx, ds[:n], behind, me, lease)
		if err != nil {
			return nil, err
		}
		maps.Copy(fresh, written)
		ds = ds[n:]
	}
	return fresh, nil
}

func insertSome(ctx context.Context, tx pgx.Tx, ds []*delivery, behind map[string]bool, me uuid.UUID, lease time.Duration) (map[uuid.UUID]bool, error) {
	const sql = `INSERT INTO core.webhook_deliveries (created_at, delivery_id, endpoint_id, tenant_id, order_key, seq, event_type, event_id, body,
    state, next_attempt, lease, lease_until)
SELECT r.created_at, r.delivery_id, r.endpoint_id, r.tenant_id, r.order_key, r.seq, r.event_type, r.event_id, r.body,
    'pending', CASE WHEN r.behind THEN NULL ELSE statement_timestamp() END,
    CASE WHEN r.leased THEN $12::uuid END, CASE WHEN r.leased THEN statement_timestamp() + $13::interval END
FROM unnest($1::timestamptz[], $2::uuid[], $3::uuid[], $4::uuid[], $5::text[], $6::bigint[], $7::text[], $8::uuid[], $9::bytea[], $10::boolean[], $11::boolean[])
    AS r(created_at, delivery_id, endpoint_id, tenant_id, order_key, seq, event_type, event_id, body, behind, leased)
ON CONFLICT DO NOTHING RETURNING delivery_id`
	n := len(ds)
	created, id, endpoint, tenant := make([]time.Time, n), make([]uuid.UUID, n), make([]uuid.UUID, n), make([]uuid.UUID, n)
	key, seq, eventType, eventID := make([]string, n), make([]int64, n), make([]string, n), make([]uuid.UUID, n)
	body, waits, leased := make([][]byte, n), make([]bool, n), make([]bool, n)
	for i, d := range ds {
		created[i], id[i], endpoint[i], tenant[i], key[i], seq[i] = d.createdAt, d.id, d.endpoint, d.tenant, d.orderKey, d.seq
		eventType[i], eventID[i], body[i], waits[i], leased[i] = d.eventType, d.eventID, d.body, behind[d.orderKey], d.leased
	}
	rows, err := tx.Query(ctx, sql, created, id, endpoint, tenant, key, seq, eventType, eventID, body, waits, leased, me, lease)
	if err != nil {
		return nil, fmt.Errorf("write %d webhook deliveries: %w", n, err)
	}
	return collectSet[uuid.UUID](rows, fmt.Sprintf("write %d webhook deliveries", n))
}
