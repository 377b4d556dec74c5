package identity

import (
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/softcrum/carril/internal/db/processordb"
	"github.com/softcrum/carril/internal/pg"
	"github.com/softcrum/carril/internal/stream"
)

// These are not sqlc's, which knows no ctid.
const (
	// The rows that a transaction has written behind a block.
	ownRows = `SELECT ctid, tenant_id, kind, value, contact_id FROM core.contact_identifiers
WHERE ctid >= $1::tid AND xmin = pg_current_xact_id()::xid`
	endOfTable     = `SELECT pg_relation_size('core.contact_identifiers') / current_setting('block_size')::bigint`
	ownersAtPlaces = `SELECT ctid, tenant_id, kind, value, contact_id FROM core.contact_identifiers WHERE ctid = ANY($1::tid[])`
	// OFFSET 0 keeps the planner at one descent a key, whatever it thinks of the
	// table's size.
	ownersByKey = `SELECT i.ctid, u.tenant_id, u.kind, u.value, i.contact_id
FROM ROWS FROM (unnest($1::uuid[]), unnest($2::text[]), unnest($3::text[])) AS u(tenant_id, kind, value)
CROSS JOIN LATERAL (SELECT x.ctid, x.contact_id FROM core.contact_identifiers x
    WHERE x.tenant_id = u.tenant_id AND x.kind = u.kind AND x.value = u.value OFFSET 0) i`
	// Identifiers are attached in the order of the arrays, which the caller sorts:
	// so are the keys locked. Fewer rows than given: another writer took one.
	attach = `INSERT INTO core.contact_identifiers (tenant_id, kind, value, contact_id)
SELECT t, k, v, c FROM ROWS FROM (unnest($1::uuid[]), unnest($2::text[]), unnest($3::text[]), unnest($4::uuid[])) AS u(t, k, v, c)
ON CONFLICT DO NOTHING RETURNING ctid, tenant_id, kind, value, contact_id`
)

// load finds the owners of the batch's identifiers and reads those people who may
// change.
func (b *batch) load(ctx context.Context, tx pgx.Tx) error {
	if len(b.idents) == 0 {
		return nil
	}
	find := b.find
	if b.looked {
		find = b.findMore
	}
	if err := find(ctx, tx); err != nil {
		return err
	}
	if err := b.refuseErased(ctx, tx); err != nil {
		return err
	}
	return b.loadPeople(ctx, tx)
}

// find looks identifiers up: first where they were last seen, then by key.
func (b *batch) find(ctx context.Context, tx pgx.Tx) error {
	if _, err := b.findAtPlaces(ctx, tx, b.distinct); err != nil {
		return err
	}
	left := ownerless(b.distinct)
	if err := b.noteEnd(ctx, tx, len(left)); err != nil {
		return err
	}
	return b.findByKey(ctx, tx, left)
}

// findMore looks, of identifiers that were looked up ahead, at those alone that had
// no owner and have got a place since.
func (b *batch) findMore(ctx context.Context, tx pgx.Tx) error {
	none := ownerless(b.distinct)
	if err := b.noteEnd(ctx, tx, len(none)); err != nil {
		return err
	}
	known, err := b.findAtPlaces(ctx, tx, none)
	if err != nil {
		return err
	}
	left := make([]*ident, 0, len(known))
	for _, p := range known {
		left = append(left, p.id)
	}
	return b.findByKey(ctx, tx, ownerless(left))
}

// findAtPlaces gives those that have a place.
func (b *batch) findAtPlaces(ctx context.Context, tx pgx.Tx, ids []*ident) (known []placed, err error) {
	if b.places == nil || len(ids) == 0 {
		return nil, nil
	}
	known = b.places.known(ids)
	if len(known) == 0 {
		return nil, nil
	}
	return known, readPlaces(ctx, tx, known)
}

func (b *batch) findByKey(ctx context.Context, tx pgx.Tx, ids []*ident) error {
	if len(ids) == 0 {
		return nil
	}
	// In the index's order, so that neighbours are found on the same page.
	slices.SortFunc(ids, func(x, y *ident) int { return x.compare(y.key) })
	tenants, kinds, values := make([]uuid.UUID, len(ids)), make([]string, len(ids)), make([]string, len(ids))
	for i, id := range ids {
		tenants[i], kinds[i], values[i] = id.tenant, id.kind, id.value
	}
	return b.readOwners(ctx, tx, tenants, kinds, values)
}

func ownerless(ids []*ident) (none []*ident) {
	for _, id := range ids {
		if !id.found {
			none = append(none, id)
		}
	}
	return none
}

// readPlaces notes who owns what stands where it was last seen; at a place may
// stand what nobody asked for. It reads the rows as they come: there are some for
// every event. PostgreSQL reads them in the order of their places, as they are
// asked for; whatever comes otherwise is searched for.
func readPlaces(ctx context.Context, tx pgx.Tx, known []placed) error {
	at := make(pgtype.FlatArray[pgtype.TID], len(known))
	for i, p := range known {
		at[i] = p.tid()
	}
	rows, err := tx.Query(ctx, ownersAtPlaces, at)
	if err != nil {
		return fmt.Errorf("look identifiers up where they were: %w", err)
	}
	defer rows.Close()
	next := 0
	for rows.Next() {
		v := rows.RawValues()
		place, tenant, contact := v[0], v[1], v[4]
		if len(place) != 6 || len(tenant) != 16 || len(contact) != 16 { // not binary: the look-up by key serves
			continue
		}
		here := spot(binary.BigEndian.Uint32(place), binary.BigEndian.Uint16(place[4:]))
		if next == len(known) || known[next].spot != here {
			next, _ = slices.BinarySearchFunc(known, here, func(p placed, s uint64) int { return cmp.Compare(p.spot, s) })
		}
		for ; next < len(known) && known[next].spot == here; next++ {
			id := known[next].id
			if uuid.UUID(tenant) == id.tenant && string(v[2]) == id.kind && string(v[3]) == id.value {
				id.found, id.contact = true, uuid.UUID(contact)
			}
		}
	}
	if err := rows.Err(); err != nil {
		return fmt.Errorf("look identifiers up where they were: %w", err)
	}
	return nil
}

// readOwners notes who owns what, by key, and learns the places.
func (b *batch) readOwners(ctx context.Context, tx pgx.Tx, tenants []uuid.UUID, kinds, values []string) error {
	err := owners(ctx, tx, func(k key, contact uuid.UUID, at pgtype.TID) {
		id := b.idents[k]
		if id == nil {
			return
		}
		id.found, id.contact = true, contact
		if b.places != nil {
			b.places.remember(k, at)
		}
	}, ownersByKey, tenants, kinds, values)
	if err != nil {
		return fmt.Errorf("look identifiers up: %w", err)
	}
	return nil
}

func owners(ctx context.Context, tx pgx.Tx, each func(k key, contact uuid.UUID, at pgtype.TID), sql string, args ...any) error {
	rows, err := tx.Query(ctx, sql, args...)
	if err != nil {
		return err
	}
	var k key
	var contact uuid.UUID
	var at pgtype.TID
	_, err = pgx.ForEachRow(rows, []any{&at, &k.tenant, &k.kind, &k.value, &contact}, func() error {
		each(k, contact, at)
		return nil
	})
	return err
}

// loadPeople makes the owners people of the batch. What is stored of them is
// read only for those whom an input may change or compare: of an input whose
// identifiers are all one contact's already, and which has no traits, nothing
// more than that contact's id is ever asked.
func (b *batch) loadPeople(ctx context.Context, tx pgx.Tx) error {
	var want processordb.LoadContactsParams
	asked := map[*person]bool{}
	for i, in := range b.inputs {
		plain := b.plain(i)
		for _, id := range b.ids[i] {
			if !id.found {
				continue
			}
			p := b.people[id.contact]
			if p == nil {
				p = &person{tenant: in.TenantID, cell: in.CellID, id: id.contact, known: true, wasKnown: true}
				b.people[p.id] = p
			}
			id.owner = p
			if !plain && !asked[p] {
				asked[p] = true
				want.Tenants, want.Contacts = append(want.Tenants, p.tenant), append(want.Contacts, p.id)
			}
		}
	}
	if len(want.Contacts) == 0 {
		return nil
	}
	return b.readPeople(ctx, tx, want)
}

func (b *batch) readPeople(ctx context.Context, tx pgx.Tx, want processordb.LoadContactsParams) error {
	rows, err := processordb.New(tx).LoadContacts(ctx, want)
	if err != nil {
		return fmt.Errorf("read %d contacts: %w", len(want.Contacts), err)
	}
	if len(rows) != len(want.Contacts) {
		return fmt.Errorf("%w: a contact went while its identifiers were read", stream.ErrWait)
	}
	for _, c := range rows {
		p := b.people[c.ContactID]
		p.cell, p.known, p.wasKnown, p.created, p.attached = c.CellID, c.Known, c.Known, c.CreatedAt, int(c.Attached)
		p.external = make(map[string]bool, len(c.External))
		for _, e := range c.External {
			p.external[e] = true
		}
	}
	return nil
}

// plain says that an input changes nobody: its identifiers are all known to be
// one contact's, and it has no traits.
func (b *batch) plain(i int) bool {
	ids := b.ids[i]
	if hasTraits(b.inputs[i]) || len(ids) == 0 {
		return false
	}
	for _, id := range ids {
		if !id.found || id.contact != ids[0].contact {
			return false
		}
	}
	return true
}

// attachAll writes the batch's new identifiers and learns their places.
func (b *batch) attachAll(ctx context.Context, tx pgx.Tx) error {
	if len(b.added) == 0 {
		return nil
	}
	slices.SortFunc(b.added, func(x, y addition) int { return x.compare(y.key) })
	n := len(b.added)
	if n >= copyFrom {
		return b.copyIdentifiers(ctx, tx)
	}
	tenants, contacts, kinds, values := make([]uuid.UUID, n), make([]uuid.UUID, n), make([]string, n), make([]string, n)
	for i, a := range b.added {
		tenants[i], contacts[i], kinds[i], values[i] = a.tenant, a.owner.root().id, a.kind, a.value
	}
	attached := 0
	err := owners(ctx, tx, func(k key, _ uuid.UUID, at pgtype.TID) {
		attached++
		if b.places != nil {
			b.places.remember(k, at)
		}
	}, attach, tenants, kinds, values, contacts)
	if err != nil {
		return fmt.Errorf("attach %d identifiers: %w", n, err)
	}
	if attached != n {
		return fmt.Errorf("%w: an identifier was taken by another writer", stream.ErrWait)
	}
	return nil
}

// copyIdentifiers fails as a whole where another writer took one, and with it the
// transaction: the batch is tried again on fresh reads, as it would be after an
// INSERT that came short.
func (b *batch) copyIdentifiers(ctx context.Context, tx pgx.Tx) error {
	const sql = `COPY core.contact_identifiers (tenant_id, kind, value, contact_id) FROM STDIN BINARY`
	err := pg.Copy(ctx, tx, sql, len(b.added), func(row pg.CopyRow, i int) pg.CopyRow {
		a := b.added[i]
		return row.Columns(4).UUID(a.tenant).Text(a.kind).Text(a.value).UUID(a.owner.root().id)
	})
	switch {
	case err == nil:
		return b.learnCopied(ctx, tx)
	case pg.FaultOf(err) == pg.FaultRace:
		return fmt.Errorf("%w: an identifier was taken by another writer", stream.ErrWait)
	}
	return fmt.Errorf("attach %d identifiers: %w", len(b.added), err)
}

// noteEnd asks where the table ends, with the look-up that follows, where many
// identifiers may be new.
func (b *batch) noteEnd(ctx context.Context, tx pgx.Tx, unknown int) error {
	if b.places == nil || unknown < copyFrom {
		return nil
	}
	err := pg.Queue(ctx, tx, func(row pgx.Row) error { return row.Scan(&b.end) }, endOfTable)
	if err != nil {
		return fmt.Errorf("ask where identifiers end: %w", err)
	}
	return nil
}

// learnCopied finds the places of what a COPY, which tells none, has written: most
// of it stands behind the table's former end. What lies elsewhere is learnt at its
// first look-up by key.
func (b *batch) learnCopied(ctx context.Context, tx pgx.Tx) error {
	if b.places == nil || b.end == nil {
		return nil
	}
	err := owners(ctx, tx, func(k key, _ uuid.UUID, at pgtype.TID) { b.places.remember(k, at) },
		ownRows, pgtype.TID{BlockNumber: uint32(max(0, *b.end-1)), Valid: true})
	if err != nil {
		return fmt.Errorf("find %d identifiers where they were written: %w", len(b.added), err)
	}
	return nil
}
