package webhook

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/softcrum/carril/internal/pg"
)

// result is a verdict to be written.
type result struct {
	it      *delivery
	verdict verdict
	head    *delivery // it was released because this one is to be tried again first
	health  health
}

// settler writes results in groups: whatever has come together while the last
// group was written. While the database is away it waits, and holds up whoever
// brings more than it may keep.
type settler struct {
	d    *Dispatcher
	pool *pgxpool.Pool
	log  *slog.Logger

	mu      sync.Mutex
	space   sync.Cond
	pending []result
	arrived chan struct{} // holds one signal
	ended   bool          // nothing is written any more
}

const (
	maxGroup   = 500    // results of one transaction
	maxPending = 10_000 // results in memory before attempts are held up
)

func newSettler(d *Dispatcher) *settler {
	s := &settler{d: d, pool: d.deps.Pool, log: d.log, arrived: make(chan struct{}, 1)}
	s.space.L = &s.mu
	return s
}

// add takes results over.
func (s *settler) add(rs ...result) {
	if len(rs) == 0 {
		return
	}
	s.mu.Lock()
	for len(s.pending) >= maxPending && !s.ended {
		s.space.Wait()
	}
	s.pending = append(s.pending, rs...)
	s.mu.Unlock()
	select {
	case s.arrived <- struct{}{}:
	default:
	}
}

func (s *settler) take() []result {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := min(len(s.pending), maxGroup)
	group := s.pending[:n:n]
	s.pending = s.pending[n:]
	s.space.Broadcast()
	return group
}

// run writes until stop is closed and nothing is left, or ctx ends.
func (s *settler) run(ctx context.Context, stop <-chan struct{}) {
	defer s.end()
	for {
		group := s.take()
		if len(group) > 0 {
			if !s.write(ctx, group) {
				return
			}
			continue
		}
		select {
		case <-ctx.Done():
			return
		case <-s.arrived:
		case <-stop:
			select {
			case <-s.arrived: // it came before the end
			default:
				return
			}
		}
	}
}

func (s *settler) end() {
	s.mu.Lock()
	s.ended = true
	s.space.Broadcast()
	s.mu.Unlock()
}

// write brings a group into the table, and does not give up while it is merely
// away. A row that the database refuses is left out alone: its lease ends, and
// it is tried again. False: ctx ended first.
func (s *settler) write(ctx context.Context, group []result) bool {
	for backoff := 50 * time.Millisecond; ; backoff = min(2*backoff, 2*time.Second) {
		err := s.writeOnce(ctx, group)
		if err == nil {
			return true
		}
		if ctx.Err() != nil {
			return false
		}
		switch pg.FaultOf(err) {
		case pg.FaultPartition:
			err = errors.Join(err, pg.EnsurePartitions(ctx, s.pool, time.Now()))
		case pg.FaultData, pg.FaultNone:
			if len(group) == 1 {
				s.log.Error("a webhook's result was refused", "delivery_id", group[0].it.id, "error", err)
				return true
			}
			half := len(group) / 2
			return s.write(ctx, group[:half]) && s.write(ctx, group[half:])
		}
		s.log.Warn("webhook results wait", "count", len(group), "error", err, "backoff", backoff)
		select {
		case <-ctx.Done():
			return false
		case <-time.After(backoff):
		}
	}
}

func (s *settler) writeOnce(ctx context.Context, group []result) error {
	tctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	var moved []uuid.UUID // endpoints that have rows to claim now
	err := pgx.BeginFunc(tctx, s.pool, func(tx pgx.Tx) error {
		moved = nil
		done := map[uuid.UUID]bool{}
		var ended []string
		for _, layer := range layers(group) {
			written, err := s.update(tctx, tx, layer, done)
			if err != nil {
				return err
			}
			ended = append(ended, finished(layer, written)...)
			maps.Copy(done, written)
		}
		var err error
		if moved, err = promote(tctx, tx, s.d.since(time.Now()), ended); err != nil {
			return err
		}
		return logAttempts(tctx, tx, group)
	})
	if err != nil {
		return fmt.Errorf("write %d webhook results: %w", len(group), err)
	}
	s.after(ctx, group, moved)
	return nil
}

// after does what must not hold the rows' locks.
func (s *settler) after(ctx context.Context, group []result, moved []uuid.UUID) {
	for _, r := range group {
		s.d.metrics.settled(r)
		if err := s.d.note(ctx, r); err != nil {
			s.log.Warn("a webhook endpoint's record could not be written", "endpoint_id", r.it.endpoint, "error", err)
		}
		if r.verdict.outcome == released && r.verdict.wait == 0 {
			moved = append(moved, r.it.endpoint)
		}
	}
	s.d.lanes.poke(moved)
}

// layers puts results that must be written one after the other into statements
// of their own: those that wait for another's, and a second of one delivery.
func layers(group []result) [][]result {
	var out [][]result
	seen := map[uuid.UUID]int{}
	for _, r := range group {
		at := seen[r.it.id]
		if r.head != nil {
			at = max(at, 1)
		}
		for len(out) <= at {
			out = append(out, nil)
		}
		out[at] = append(out[at], r)
		seen[r.it.id] = at + 1
	}
	return out
}

// finished are the queues whose head came to its end and may have others that
// wait for it: only rows that had to be claimed do.
func finished(rs []result, done map[uuid.UUID]bool) []string {
	seen := map[string]bool{}
	var out []string
	for _, r := range rs {
		q := r.it.orderKey
		final := r.verdict.outcome == delivered || r.verdict.outcome == failed
		if final && r.it.claimed && done[r.it.id] && !seen[q] {
			seen[q] = true
			out = append(out, q)
		}
	}
	return out
}

const updateSQL = `INSERT INTO core.webhook_deliveries AS d (` + rowColumns + `, attempts, next_attempt, last_error)
SELECT ` + sameRow + `, r.state, r.counted, CASE WHEN r.behind OR r.state = 'delivered' THEN NULL ELSE statement_timestamp() + r.wait END, nullif(r.error, '')
FROM unnest($4::timestamptz[], $5::uuid[], $6::text[], $7::integer[], $8::interval[], $9::boolean[], $10::text[])
    AS r(created_at, delivery_id, state, counted, wait, behind, error)
CROSS JOIN LATERAL (SELECT * FROM core.webhook_deliveries w
    WHERE w.created_at >= $1 AND w.created_at <= $2 AND w.created_at = r.created_at AND w.delivery_id = r.delivery_id LIMIT 1) x
ON CONFLICT (created_at, delivery_id) DO UPDATE SET state = EXCLUDED.state, attempts = d.attempts + EXCLUDED.attempts,
    next_attempt = EXCLUDED.next_attempt, lease = NULL, lease_until = NULL,
    delivered_at = CASE WHEN EXCLUDED.state = 'delivered' THEN statement_timestamp() END,
    last_error = CASE WHEN EXCLUDED.state = 'delivered' THEN NULL ELSE coalesce(EXCLUDED.last_error, d.last_error) END
WHERE d.state = 'pending' AND (d.lease = $3 OR EXCLUDED.state = 'delivered')
RETURNING d.delivery_id`

// update writes the rows. A row that another process has leased meanwhile is
// left to it, unless it was delivered: that is true whoever holds it. behind
// says which heads were put off in this transaction: what is released behind one
// of them has no time of its own until the head is done.
func (s *settler) update(ctx context.Context, tx pgx.Tx, rs []result, heads map[uuid.UUID]bool) (map[uuid.UUID]bool, error) {
	if len(rs) == 0 {
		return nil, nil
	}
	n := len(rs)
	created, id, state, counted := make([]time.Time, n), make([]uuid.UUID, n), make([]string, n), make([]int32, n)
	wait, behind, cause := make([]time.Duration, n), make([]bool, n), make([]string, n)
	from, to := rs[0].it.createdAt, rs[0].it.createdAt
	for i, r := range rs {
		created[i], id[i], state[i], wait[i], cause[i] = r.it.createdAt, r.it.id, r.verdict.state(), r.verdict.wait, r.verdict.cause()
		behind[i] = r.head != nil && heads[r.head.id]
		if r.verdict.asked {
			counted[i] = 1
		}
		if created[i].Before(from) {
			from = created[i]
		}
		if created[i].After(to) {
			to = created[i]
		}
	}
	rows, err := tx.Query(ctx, updateSQL, from, to, s.d.me, created, id, state, counted, wait, behind, cause)
	if err != nil {
		return nil, err
	}
	return collectSet[uuid.UUID](rows, "update")
}

// promote gives the next row of each queue its turn, where it has no time of its
// own, and says whose rows they are.
func promote(ctx context.Context, tx pgx.Tx, since time.Time, queues []string) ([]uuid.UUID, error) {
	if len(queues) == 0 {
		return nil, nil
	}
	const sql = `INSERT INTO core.webhook_deliveries AS d (` + rowColumns + `)
SELECT ` + sameRow + `, 'pending' FROM unnest($2::text[]) q
CROSS JOIN LATERAL (SELECT * FROM core.webhook_deliveries w
    WHERE w.created_at >= $1 AND w.order_key = q AND w.state = 'pending' ORDER BY w.seq LIMIT 1) x
WHERE x.next_attempt IS NULL
ON CONFLICT (created_at, delivery_id) DO UPDATE SET next_attempt = statement_timestamp()
WHERE d.state = 'pending' AND d.next_attempt IS NULL
RETURNING d.endpoint_id`
	slices.Sort(queues)
	queues = slices.Compact(queues)
	rows, err := tx.Query(ctx, sql, since, queues)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
}

// logAttempts writes what was asked of endpoints and what they answered.
func logAttempts(ctx context.Context, tx pgx.Tx, group []result) error {
	const sql = `INSERT INTO core.webhook_attempts (at, delivery_id, endpoint_id, tenant_id, event_id, event_type, attempt, status, class, duration_ms, answer)
SELECT now(), * FROM unnest($1::uuid[], $2::uuid[], $3::uuid[], $4::uuid[], $5::text[], $6::integer[], $7::integer[], $8::text[], $9::integer[], $10::bytea[])`
	var delivery, endpoint, tenant, event []uuid.UUID
	var eventType, class []string
	var attempt, took []int32
	var status []*int32
	var answer [][]byte
	for _, r := range group {
		if !r.verdict.asked {
			continue
		}
		delivery, endpoint, tenant, event = append(delivery, r.it.id), append(endpoint, r.it.endpoint), append(tenant, r.it.tenant), append(event, r.it.eventID)
		eventType, class = append(eventType, r.it.eventType), append(class, r.verdict.class)
		attempt, took = append(attempt, int32(r.it.attempts+1)), append(took, int32(r.verdict.took.Milliseconds()))
		status, answer = append(status, statusOf(r.verdict)), append(answer, r.verdict.answer)
	}
	if len(delivery) == 0 {
		return nil
	}
	_, err := tx.Exec(ctx, sql, delivery, endpoint, tenant, event, eventType, attempt, status, class, took, answer)
	return err
}

func statusOf(v verdict) *int32 {
	if v.status == 0 {
		return nil
	}
	return new(int32(v.status))
}

// state is the row's state after a verdict.
func (v verdict) state() string {
	switch v.outcome {
	case delivered:
		return "delivered"
	case failed:
		return "failed"
	case cancelled:
		return "cancelled"
	}
	return "pending"
}

// cause is what the row says of the last failure.
func (v verdict) cause() string {
	if v.status != 0 && v.outcome != delivered {
		return fmt.Sprintf("%s %d", v.class, v.status)
	}
	return v.class
}
