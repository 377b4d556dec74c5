package identity

import (
	"hash/maphash"
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
	half int
	seed maphash.Seed

	mu sync.Mutex
	// By the key's hash: two keys that share one share a place, where at most one
	// of them stands; the other is looked up. So no text is kept, and the
	// collector has nothing to follow.
	now, old map[uint64]pgtype.TID
}

// DefaultPlaces is about 30 MB of places.
const DefaultPlaces = 1_000_000

// NewPlaces makes a memory of at most n places; 0: DefaultPlaces. What was not
// asked for while half as many others were goes first.
func NewPlaces(n int) *Places {
	if n <= 0 {
		n = DefaultPlaces
	}
	return &Places{half: max(1, n/2), seed: maphash.MakeSeed(), now: map[uint64]pgtype.TID{}}
}

// known gives the places of those keys that it knows, and which of them each was
// asked for; of two that share one, the last: the other is looked up.
func (p *Places) known(ids []*ident) (at []pgtype.TID, who map[uint64]*ident) {
	at, who = make([]pgtype.TID, 0, len(ids)), make(map[uint64]*ident, len(ids))
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, id := range ids {
		h := maphash.Comparable(p.seed, id.key)
		place, ok := p.now[h]
		if !ok {
			if place, ok = p.old[h]; ok {
				p.put(h, place)
			}
		}
		if ok {
			at = append(at, place)
			who[spot(place.BlockNumber, place.OffsetNumber)] = id
		}
	}
	return at, who
}

// spot is a place as a number.
func spot(block uint32, offset uint16) uint64 { return uint64(block)<<16 | uint64(offset) }

func (p *Places) remember(k key, at pgtype.TID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.put(maphash.Comparable(p.seed, k), at)
}

func (p *Places) put(hash uint64, at pgtype.TID) {
	if len(p.now) >= p.half {
		p.old, p.now = p.now, make(map[uint64]pgtype.TID, p.half)
	}
	p.now[hash] = at
}

// ident is an identifier of a batch, one for all the inputs that carry it.
type ident struct {
	key
	found   bool
	contact uuid.UUID // as stored, where found
	owner   *person   // in the batch; nil: nobody yet
}
