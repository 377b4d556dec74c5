package identity

import (
	"context"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/softcrum/carril/internal/ids"
)

// Resolver is Resolve with a memory of where identifiers stand. It is safe for
// concurrent use.
type Resolver struct {
	places *Places
	merges atomic.Int64 // batches with one that were committed here
}

// NewResolver makes a resolver; one a process serves all its partitions.
func NewResolver(p *Places) *Resolver { return &Resolver{places: p} }

// Resolve does what the function does.
func (r *Resolver) Resolve(ctx context.Context, tx pgx.Tx, inputs []Input) (*Outcome, error) {
	return Prepare(inputs).resolve(ctx, tx, r.places)
}

// ResolvePrepared does what Resolve does for inputs that were prepared ahead. It
// uses p up.
func (r *Resolver) ResolvePrepared(ctx context.Context, tx pgx.Tx, p *Prepared) (*Outcome, error) {
	if p.b.looked && r.merges.Load() != p.merges { // its people may be others by now
		p.forget()
	}
	return p.resolve(ctx, tx, r.places)
}

// Look finds the owners of prepared inputs' identifiers ahead of ResolvePrepared,
// while batches before theirs are still in the database. Whoever had an owner has
// it still, unless people were merged meanwhile: of a merge that is committed here
// Merged must be told before ResolvePrepared is asked, and all is looked up again;
// one that is made elsewhere at that moment might as well have come a moment later.
// Who had none may have been made by a batch before: what it attached has a place
// by then, and is looked up there.
func (r *Resolver) Look(ctx context.Context, tx pgx.Tx, p *Prepared) error {
	p.merges = r.merges.Load()
	p.b.places = r.places
	if err := p.b.find(ctx, tx); err != nil {
		return err
	}
	p.b.looked = true
	return nil
}

// Merged tells of a committed batch that has merged people.
func (r *Resolver) Merged() { r.merges.Add(1) }

// Resolve finds or makes the contact of each input, in order: an identify
// followed by a track of the same person in one batch sees it. It writes
// contacts, identifiers, merges, conflicts and traits inside tx.
func Resolve(ctx context.Context, tx pgx.Tx, inputs []Input) (*Outcome, error) {
	return Prepare(inputs).resolve(ctx, tx, nil)
}

// Prepared are inputs whose identifiers are read and made distinct: what
// identity can do before its transaction begins. It serves one call.
type Prepared struct {
	b      *batch
	merges int64 // that the resolver knew of when its owners were looked up
}

// forget drops what Look has found.
func (p *Prepared) forget() {
	p.b.looked, p.b.end = false, nil
	for _, id := range p.b.distinct {
		id.found, id.contact = false, uuid.Nil
	}
}

// Prepare reads inputs ahead.
func Prepare(inputs []Input) *Prepared {
	b := &batch{inputs: inputs, out: &Outcome{Contacts: make([]uuid.UUID, len(inputs))}, idents: make(map[key]*ident, 2*len(inputs))}
	b.parse()
	return &Prepared{b: b}
}

func (p *Prepared) resolve(ctx context.Context, tx pgx.Tx, places *Places) (*Outcome, error) {
	b, inputs := p.b, p.b.inputs
	b.now, b.places = time.Now().UTC(), places
	b.people, b.touched = make(map[uuid.UUID]*person, len(inputs)), map[*person]int{}
	if err := b.load(ctx, tx); err != nil {
		return nil, err
	}
	at := make([]*person, len(inputs))
	for i := range inputs {
		at[i] = b.resolve(i)
	}
	if err := b.write(ctx, tx); err != nil {
		return nil, err
	}
	b.out.Erased = b.erased
	for i, p := range at {
		b.out.Contacts[i] = p.root().id
	}
	if err := b.keepTraits(ctx, tx, at); err != nil {
		return nil, err
	}
	return b.out, nil
}

// batch is the state of one Resolve.
type batch struct {
	inputs   []Input
	now      time.Time
	places   *Places    // nil: identifiers are looked up by key alone
	ids      [][]*ident // by input, strongest kind first
	out      *Outcome
	idents   map[key]*ident
	distinct []*ident // of idents
	people   map[uuid.UUID]*person
	created  []*person
	merges   []merge
	added    []addition
	touched  map[*person]int // people whose known state rose, by the input that did it
	clashes  []clash
	end      *int64 // blocks that identifiers filled before the batch; nil: not asked
	erased   []bool // by input; nil: none
	looked   bool   // its identifiers, ahead
}

type merge struct {
	from, into *person
	cause      int
}

type addition struct {
	key
	owner *person
}

type clash struct {
	input    int
	contacts []uuid.UUID
}

func (b *batch) parse() {
	b.ids = make([][]*ident, len(b.inputs))
	var slab []ident // one allocation for many
	for i, in := range b.inputs {
		read := in.Read
		if read == nil {
			read = Read(in.Identifiers)
		}
		b.ids[i] = make([]*ident, len(read.ids))
		for j, id := range read.ids {
			k := key{in.TenantID, id.kind, id.value}
			known := b.idents[k]
			if known == nil {
				if len(slab) == 0 {
					slab = make([]ident, 256)
				}
				known, slab = &slab[0], slab[1:]
				known.key = k
				b.idents[k], b.distinct = known, append(b.distinct, known)
			}
			b.ids[i][j] = known
		}
		if len(read.refused) > 0 {
			b.out.Warnings = append(b.out.Warnings, Warning{in.TenantID, in.EventID, "refused_identifier", read.refused})
		}
	}
}

// resolve decides whose one event is.
func (b *batch) resolve(i int) *person {
	in := b.inputs[i]
	var few [4]*person
	found := few[:0]
	for _, id := range b.ids[i] {
		if id.owner != nil {
			found = appendOnce(found, id.owner.root())
		}
	}
	target := b.target(i, found)
	var clashed []uuid.UUID
	for _, other := range found {
		if other = other.root(); other == target.root() {
			continue
		}
		if len(other.external) > 0 && len(target.root().external) > 0 {
			clashed = append(clashed, other.id)
			continue
		}
		b.merge(target.root(), other, i)
	}
	if len(clashed) > 0 {
		b.clashes = append(b.clashes, clash{i, append(clashed, target.root().id)})
		b.out.Warnings = append(b.out.Warnings, Warning{in.TenantID, in.EventID, "identity_conflict",
			map[string]string{"reason": "two external_ids are never one person"}})
	}
	b.attach(i, target.root())
	return target.root()
}

// target picks who the event is about, before merges. The owner of the event's
// external_id is it; else one that has no external_id yet and may take it; else
// somebody new. Without an external_id: the known before the anonymous, the
// older before the younger.
func (b *batch) target(i int, found []*person) *person {
	in := b.inputs[i]
	for _, id := range b.ids[i] {
		if id.kind != KindExternalID {
			continue
		}
		if id.owner != nil {
			return id.owner.root()
		}
		var free []*person
		for _, p := range found {
			if len(p.external) == 0 {
				free = append(free, p)
			}
		}
		p := b.oldest(in, free)
		p.external[id.value] = true // before merges are decided: it is somebody else's no more
		return p
	}
	return b.oldest(in, found)
}

// oldest gives the best of the people, or somebody new where there is none.
func (b *batch) oldest(in Input, found []*person) *person {
	if len(found) == 0 {
		return b.create(in)
	}
	best := found[0]
	for _, p := range found[1:] {
		best = survivor(best, p)
	}
	return best
}

// survivor of two people that are one: the known one, then the older.
func survivor(a, b *person) *person {
	switch {
	case a.known != b.known:
		if a.known {
			return a
		}
		return b
	case b.created.Before(a.created), b.created.Equal(a.created) && b.id.String() < a.id.String():
		return b
	}
	return a
}

func (b *batch) create(in Input) *person {
	p := &person{tenant: in.TenantID, cell: in.CellID, id: ids.New(), created: b.now, external: map[string]bool{}, isNew: true}
	b.people[p.id] = p
	b.created = append(b.created, p)
	return p
}

func (b *batch) merge(x, y *person, cause int) {
	keep := survivor(x, y)
	gone := x
	if keep == x {
		gone = y
	}
	gone.into = keep
	keep.known = keep.known || gone.known
	keep.attached += gone.attached
	for e := range gone.external {
		keep.external[e] = true
	}
	b.merges = append(b.merges, merge{from: gone, into: keep, cause: cause})
	b.touched[keep] = cause
}

// attach gives the event's unowned identifiers to its person.
func (b *batch) attach(i int, p *person) {
	refused := 0
	for _, id := range b.ids[i] {
		if id.kind != KindAnonymous && !p.known {
			p.known = true
			b.touched[p] = i
		}
		if id.owner != nil {
			continue
		}
		if p.attached >= MaxIdentifiers && id.kind != KindExternalID {
			refused++
			continue
		}
		id.owner = p
		p.attached++
		b.added = append(b.added, addition{id.key, p})
		b.touched[p] = i
		if id.kind == KindExternalID {
			p.external[id.value] = true
		}
	}
	if in := b.inputs[i]; refused > 0 {
		b.out.Warnings = append(b.out.Warnings, Warning{in.TenantID, in.EventID, "identifiers_capped",
			map[string]string{"refused": strconv.Itoa(refused), "limit": strconv.Itoa(MaxIdentifiers)}})
	}
}

func appendOnce(ps []*person, p *person) []*person {
	for _, q := range ps {
		if q == p {
			return ps
		}
	}
	return append(ps, p)
}
