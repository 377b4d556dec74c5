package identity

import (
	"strings"
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

	mu       sync.Mutex
	now, old map[key]pgtype.TID
}

// DefaultPlaces is about 30 MB of places.
const DefaultPlaces = 200_000

// NewPlaces makes a memory of at most n places; 0: DefaultPlaces. What was not
// asked for while half as many others were goes first.
func NewPlaces(n int) *Places {
	if n <= 0 {
		n = DefaultPlaces
	}
	return &Places{half: max(1, n/2), now: map[key]pgtype.TID{}}
}

// known gives the places of those keys that it knows.
func (p *Places) known(ids []*ident) []pgtype.TID {
	at := make([]pgtype.TID, 0, len(ids))
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, id := range ids {
		place, ok := p.now[id.key]
		if !ok {
			if place, ok = p.old[id.key]; ok {
				p.put(id.key, place)
			}
		}
		if ok {
			at = append(at, place)
		}
	}
	return at
}

func (p *Places) remember(k key, at pgtype.TID) {
	k.kind, k.value = strings.Clone(k.kind), strings.Clone(k.value) // not the record that they are part of
	p.mu.Lock()
	defer p.mu.Unlock()
	p.put(k, at)
}

func (p *Places) put(k key, at pgtype.TID) {
	if len(p.now) >= p.half {
		p.old, p.now = p.now, make(map[key]pgtype.TID, p.half)
	}
	p.now[k] = at
}

// ident is an identifier of a batch, one for all the inputs that carry it.
type ident struct {
	key
	found   bool
	contact uuid.UUID // as stored, where found
	owner   *person   // in the batch; nil: nobody yet
}
