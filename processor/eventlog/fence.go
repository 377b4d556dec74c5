package eventlog

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/softcrum/carril/internal/db/processordb"
	"github.com/softcrum/carril/internal/pg"
	"github.com/softcrum/carril/internal/stream"
)

// keys are a batch's keys on their way through the fence.
type keys struct {
	rows        []row
	first       []int // places of each key's first row, in the order of the ids
	again       []row // rows that repeat a key of the batch
	fresh, seen []int // of first: not seen lately, and seen
	copied      pg.CopyRow
}

// keysOf makes what the fence needs of rows. What was seen before is a guess.
func (h *Handler) keysOf(rows []row) *keys {
	k := &keys{rows: rows}
	k.first, k.again = firsts(rows)
	if h.recent == nil {
		return k
	}
	if k.fresh, k.seen = h.recent.split(rows, k.first); len(k.fresh) < copyFrom {
		return k
	}
	k.copied = pg.Made(len(k.fresh) * keyBytes)
	for _, at := range k.fresh {
		r := &rows[at]
		k.copied = k.copied.Columns(5).UUID(r.TenantID).UUID(r.EventID).Bytes(r.BodyHash).Time(r.OccurredAt).Time(r.ReceivedAt)
	}
	k.copied = k.copied.End()
	return k
}

// keyBytes are a key's in a COPY.
const keyBytes = 2 + 5*4 + 16 + 16 + 32 + 8 + 8

// winners gives, of each key, the first event that the database had not seen when
// the keys were taken (FS-CORE-0006 §3). The same key with another body is a
// conflict that the tenant can look up, never a second effect.
func (h *Handler) winners(ctx context.Context, tx pgx.Tx, b *stream.Batch, k *keys, lost map[uuid.UUID]bool) ([]row, error) {
	if len(lost) == 0 && len(k.again) == 0 {
		return k.rows, nil
	}
	again := slices.Clone(k.again)
	winners := make([]row, 0, len(k.first))
	first := slices.Sorted(slices.Values(k.first)) // in the records' order from here on
	for _, at := range first {
		if lost[k.rows[at].EventID] {
			again = append(again, k.rows[at])
		} else {
			winners = append(winners, k.rows[at])
		}
	}
	return winners, h.recordConflicts(ctx, tx, b, again)
}

// firsts gives the places of each key's first row, in the order of the ids, which
// is the order that they are locked in, and the rows that repeat one.
func firsts(rows []row) (first []int, again []row) {
	order := make([]int, len(rows))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(x, y int) int {
		return cmp.Or(bytes.Compare(rows[x].EventID[:], rows[y].EventID[:]), cmp.Compare(x, y))
	})
	first = order[:0]
	for _, at := range order {
		if n := len(first); n > 0 && rows[first[n-1]].EventID == rows[at].EventID {
			again = append(again, rows[at])
			continue
		}
		first = append(first, at)
	}
	return first, again
}

// copyFrom is the number of keys from which a COPY, with its savepoint, is
// cheaper than an INSERT.
const copyFrom = 200

// takeKeys takes the keys' first rows, and gives those that were taken before.
//
// An INSERT that passes over conflicts costs twice what a COPY does, which fails
// as a whole on the first. A repeat nearly always follows its original within
// seconds, so a large batch copies what was not seen lately and inserts the rest;
// where an older repeat turns up all the same, the savepoint is rolled back,
// everything is inserted, and COPY rests for a while.
func (h *Handler) takeKeys(ctx context.Context, tx pgx.Tx, k *keys) (lost map[uuid.UUID]bool, err error) {
	if k.copied == nil || h.recent.rests() {
		return insertKeys(ctx, tx, k.rows, k.first)
	}
	copied, err := copyKeys(ctx, tx, k)
	if err != nil {
		return nil, err
	}
	if !copied {
		h.recent.collided()
		return insertKeys(ctx, tx, k.rows, k.first)
	}
	return insertKeys(ctx, tx, k.rows, k.seen)
}

// copyKeys takes keys that should all be free; copied is false where one was not.
func copyKeys(ctx context.Context, tx pgx.Tx, k *keys) (copied bool, err error) {
	const sql = `COPY core.event_keys (tenant_id, event_id, body_hash, occurred_at, received_at) FROM STDIN BINARY`
	err = pg.CopyBlock(ctx, tx, sql, k.copied)
	if pg.FaultOf(err) == pg.FaultRace {
		if err := pg.UndoBlock(ctx, tx); err != nil {
			return false, fmt.Errorf("go back to a savepoint: %w", err)
		}
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("copy %d event keys: %w", len(k.fresh), err)
	}
	return true, nil
}

// insertKeys takes those keys that are free.
func insertKeys(ctx context.Context, tx pgx.Tx, rows []row, first []int) (lost map[uuid.UUID]bool, err error) {
	n := len(first)
	if n == 0 {
		return nil, nil
	}
	p := processordb.InsertEventKeysParams{Events: make([]uuid.UUID, n), Tenants: make([]uuid.UUID, n), BodyHashes: make([][]byte, n),
		Occurred: make([]time.Time, n), Received: make([]time.Time, n)}
	for i, at := range first {
		r := rows[at]
		p.Events[i], p.Tenants[i], p.BodyHashes[i], p.Occurred[i], p.Received[i] = r.EventID, r.TenantID, r.BodyHash, r.OccurredAt, r.ReceivedAt
	}
	won, err := processordb.New(tx).InsertEventKeys(ctx, p)
	if err != nil {
		return nil, fmt.Errorf("take %d event keys: %w", n, err)
	}
	if len(won) == n {
		return nil, nil
	}
	lost = make(map[uuid.UUID]bool, n)
	for _, id := range p.Events {
		lost[id] = true
	}
	for _, id := range won {
		delete(lost, id)
	}
	return lost, nil
}

const (
	// recentKeys is about 30 MB of them.
	recentKeys = 500_000
	// restBatches is how many large batches insert after a COPY has failed.
	restBatches = 20
)

// recent remembers the keys of the last events, to guess which batches hold a
// repeat. It may be wrong either way: the table alone decides. It is safe for
// concurrent use.
type recent struct {
	half int

	mu       sync.Mutex
	now, old map[uuid.UUID]struct{}
	resting  int
}

func newRecent(n int) *recent { return &recent{half: n / 2, now: map[uuid.UUID]struct{}{}} }

// split parts keys into those not seen lately and those that were, and remembers
// all.
func (r *recent) split(rows []row, first []int) (fresh, seen []int) {
	fresh = make([]int, 0, len(first))
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, at := range first {
		id := rows[at].EventID
		_, ok := r.now[id]
		if !ok {
			_, ok = r.old[id]
			if len(r.now) >= r.half {
				r.old, r.now = r.now, make(map[uuid.UUID]struct{}, r.half)
			}
			r.now[id] = struct{}{}
		}
		if ok {
			seen = append(seen, at)
		} else {
			fresh = append(fresh, at)
		}
	}
	return fresh, seen
}

// rests says whether a large batch should insert, and counts it.
func (r *recent) rests() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	rest := r.resting > 0
	if rest {
		r.resting--
	}
	return rest
}

func (r *recent) collided() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.resting = restBatches
}
