package identity

import (
	"cmp"
	"hash/maphash"
	"slices"
	"sync"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgtype"
)

// Places remembers where in core.contact_identifiers a row was last seen. A look
// at a known place costs PostgreSQL a fifth of a descent through the index, and
// cannot mislead: what stands there is read in the transaction, under its
// snapshot, with its whole key. A row that was moved by a merge, deleted by an
// erasure or rolled back is not seen at its old place, another row that took the
// place answers for itself alone, and the index is asked for whatever was not
// found. So nothing has to be told of a change, whoever makes it.
//
// It is safe for concurrent use.
type Places struct {
	seed maphash.Seed
	size int
	mu   sync.Mutex
	// Pairs of slots; a key belongs to one pair, by its hash. So no text is kept,
	// nothing grows, and the collector has nothing to follow. nil until the first.
	slots []slot
}

// slot is a place (block and offset) with 16 bits of its key's hash: two keys that
// share those and the pair share a place, where at most one of them stands; the
// other is looked up. Zero: empty, for no row has the offset 0.
type slot uint64

func (s slot) tag() uint16 { return uint16(s >> 48) }

func (s slot) spot() uint64 { return uint64(s) & (1<<48 - 1) }

// DefaultPlaces take 32 MB, and keep 97 of a hundred where a million are asked for
// in turn.
const DefaultPlaces = 4 << 20

// NewPlaces makes a memory of at least n places; 0: DefaultPlaces. Of those that
// fall on one pair, the two that were asked for last are kept.
func NewPlaces(n int) *Places {
	if n <= 0 {
		n = DefaultPlaces
	}
	size := 2
	for size < n {
		size *= 2
	}
	return &Places{seed: maphash.MakeSeed(), size: size}
}

// pair gives the slots of a key and its tag.
func (p *Places) pair(k key) (pair []slot, tag uint16) {
	h := maphash.Comparable(p.seed, k)
	at := h & uint64(p.size-1) &^ 1
	return p.slots[at : at+2], uint16(h >> 48)
}

// placed is an identifier and the place where it was last seen.
type placed struct {
	spot uint64
	id   *ident
}

// known gives those keys that it knows a place of, in the order of the places; two
// may share one, where at most one of them stands.
func (p *Places) known(ids []*ident) []placed {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.slots == nil {
		return nil
	}
	known := make([]placed, 0, len(ids))
	for _, id := range ids {
		pair, tag := p.pair(id.key)
		if pair[0] == 0 || pair[0].tag() != tag {
			if pair[1] == 0 || pair[1].tag() != tag {
				continue
			}
			pair[0], pair[1] = pair[1], pair[0]
		}
		known = append(known, placed{pair[0].spot(), id})
	}
	slices.SortFunc(known, func(x, y placed) int { return cmp.Compare(x.spot, y.spot) })
	return known
}

// spot is a place as a number, in the order of the table.
func spot(block uint32, offset uint16) uint64 { return uint64(block)<<16 | uint64(offset) }

func (p placed) tid() pgtype.TID {
	return pgtype.TID{BlockNumber: uint32(p.spot >> 16), OffsetNumber: uint16(p.spot), Valid: true}
}

func (p *Places) remember(k key, at pgtype.TID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.slots == nil {
		p.slots = make([]slot, p.size)
	}
	pair, tag := p.pair(k)
	if pair[0] != 0 && pair[0].tag() != tag {
		pair[1] = pair[0]
	}
	pair[0] = slot(uint64(tag)<<48 | spot(at.BlockNumber, at.OffsetNumber))
}

// ident is an identifier of a batch, one for all the inputs that carry it.
type ident struct {
	key
	found   bool
	contact uuid.UUID // as stored, where found
	owner   *person   // in the batch; nil: nobody yet
}
