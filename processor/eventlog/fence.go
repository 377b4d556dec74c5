package eventlog

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
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
	// Ids are hashes: their first eight bytes decide nearly always.
	type ordered struct {
		head uint64
		at   int
	}
	order := make([]ordered, len(rows))
	for i := range rows {
		order[i] = ordered{binary.BigEndian.Uint64(rows[i].EventID[:8]), i}
	}
	slices.SortFunc(order, func(x, y ordered) int {
		if x.head != y.head {
			return cmp.Compare(x.head, y.head)
		}
		return cmp.Or(bytes.Compare(rows[x.at].EventID[8:], rows[y.at].EventID[8:]), cmp.Compare(x.at, y.at))
	})
	first = make([]int, 0, len(rows))
	for _, o := range order {
		if n := len(first); n > 0 && rows[first[n-1]].EventID == rows[o.at].EventID {
			again = append(again, rows[o.at])
			continue
		}
		first = append(first, o.at)
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
	// recentKeys take 16 MB. Of the last quarter of a million, 97 of a hundred are
	// known; of what came within seconds, all.
	recentKeys = 1 << 21
	// restBatches is how many large batches insert after a COPY has failed.
	restBatches = 20
)

// recent remembers the keys of the last events, to guess which batches hold a
// repeat. It may be wrong either way: the table alone decides. It is safe for
// concurrent use.
type recent struct {
	size int

	mu sync.Mutex
	// Pairs of slots, each with half an id, the last of a pair first: an id is a
	// hash, and half of one enough to tell it from others. nil until the first.
	slots   []uint64
	resting int
}

// newRecent remembers in n slots, a power of two.
func newRecent(n int) *recent { return &recent{size: n} }

// split parts keys into those not seen lately and those that were, and remembers
// all.
func (r *recent) split(rows []row, first []int) (fresh, seen []int) {
	fresh = make([]int, 0, len(first))
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.slots == nil {
		r.slots = make([]uint64, r.size)
	}
	for _, at := range first {
		if r.note(&rows[at].EventID) {
			seen = append(seen, at)
		} else {
			fresh = append(fresh, at)
		}
	}
	return fresh, seen
}

// note remembers an id, and says whether it was there.
func (r *recent) note(id *uuid.UUID) (there bool) {
	half := binary.BigEndian.Uint64(id[8:]) // never 0, which is an empty slot: a UUID's variant stands in it
	pair := r.slots[half%uint64(len(r.slots))&^1:][:2]
	there = pair[0] == half || pair[1] == half
	if pair[0] != half {
		pair[0], pair[1] = half, pair[0]
	}
	return there
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
