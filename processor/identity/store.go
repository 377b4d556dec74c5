package identity

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/softcrum/carril/internal/db/processordb"
	"github.com/softcrum/carril/internal/stream"
)

// load reads who owns the batch's identifiers, and those people.
func (b *batch) load(ctx context.Context, tx pgx.Tx) error {
	var keys processordb.OwnersOfIdentifiersParams
	seen := map[key]bool{}
	for i, in := range b.inputs {
		for _, id := range b.ids[i] {
			k := key{in.TenantID, id.kind, id.value}
			if !seen[k] {
				seen[k] = true
				keys.Tenants, keys.Kinds, keys.Values = append(keys.Tenants, in.TenantID), append(keys.Kinds, id.kind), append(keys.Values, id.value)
			}
		}
	}
	if len(keys.Tenants) == 0 {
		return nil
	}
	owners, err := processordb.New(tx).OwnersOfIdentifiers(ctx, keys)
	if err != nil {
		return fmt.Errorf("look identifiers up: %w", err)
	}
	for _, o := range owners {
		p := b.people[o.ContactID]
		if p == nil {
			p = &person{tenant: o.TenantID, cell: o.CellID, id: o.ContactID, known: o.Known, wasKnown: o.Known, created: o.CreatedAt,
				external: map[string]bool{}}
			for _, e := range o.External {
				p.external[e] = true
			}
			b.people[p.id] = p
		}
		b.owners[key{o.TenantID, o.Kind, o.Value}] = p
	}
	return nil
}

// write brings the batch's people into the database. Keys are sorted before
// they are locked. Another writer may have taken an identifier meanwhile: then
// the whole batch is tried again on fresh reads.
func (b *batch) write(ctx context.Context, tx pgx.Tx) error {
	if err := b.writeContacts(ctx, tx); err != nil {
		return err
	}
	if err := b.writeIdentifiers(ctx, tx); err != nil {
		return err
	}
	if err := b.writeMerges(ctx, tx); err != nil {
		return err
	}
	return b.writeConflicts(ctx, tx)
}

func (b *batch) writeContacts(ctx context.Context, tx pgx.Tx) error {
	db := processordb.New(tx)
	made := processordb.InsertContactsParams{CreatedAt: b.now}
	for _, p := range b.created {
		made.Tenants, made.Contacts = append(made.Tenants, p.tenant), append(made.Contacts, p.id)
		made.Cells, made.Known = append(made.Cells, p.cell), append(made.Known, p.known)
	}
	b.out.Created = len(made.Contacts)
	if len(made.Contacts) > 0 {
		if err := db.InsertContacts(ctx, made); err != nil {
			return fmt.Errorf("make %d contacts: %w", len(made.Contacts), err)
		}
	}
	var risen processordb.MarkContactsKnownParams
	for p := range b.touched {
		if !p.isNew && p.known && !p.wasKnown {
			risen.Contacts, risen.Tenants = append(risen.Contacts, p.id), append(risen.Tenants, p.tenant)
		}
	}
	if len(risen.Contacts) == 0 {
		return nil
	}
	if err := db.MarkContactsKnown(ctx, risen); err != nil {
		return fmt.Errorf("mark %d contacts known: %w", len(risen.Contacts), err)
	}
	return nil
}

func (b *batch) writeIdentifiers(ctx context.Context, tx pgx.Tx) error {
	if len(b.added) == 0 {
		return nil
	}
	slices.SortFunc(b.added, func(x, y addition) int {
		return cmp.Or(slices.Compare(x.tenant[:], y.tenant[:]), cmp.Compare(x.kind, y.kind), cmp.Compare(x.value, y.value))
	})
	var rows processordb.AttachIdentifiersParams
	for _, a := range b.added {
		rows.Tenants, rows.Contacts = append(rows.Tenants, a.tenant), append(rows.Contacts, a.owner.root().id)
		rows.Kinds, rows.Values = append(rows.Kinds, a.kind), append(rows.Values, a.value)
	}
	attached, err := processordb.New(tx).AttachIdentifiers(ctx, rows)
	if err != nil {
		return fmt.Errorf("attach %d identifiers: %w", len(rows.Values), err)
	}
	if int(attached) != len(rows.Values) {
		return fmt.Errorf("%w: an identifier was taken by another writer", stream.ErrWait)
	}
	return nil
}

func (b *batch) writeMerges(ctx context.Context, tx pgx.Tx) error {
	db := processordb.New(tx)
	for _, m := range b.merges {
		in := b.inputs[m.cause]
		into := m.into.root()
		err := db.InsertMerge(ctx, processordb.InsertMergeParams{
			TenantID: in.TenantID, FromContact: m.from.id, IntoContact: into.id, CauseEventID: in.EventID})
		if err != nil {
			return fmt.Errorf("record a merge: %w", err)
		}
		err = db.MoveIdentifiers(ctx, processordb.MoveIdentifiersParams{TenantID: in.TenantID, FromContact: m.from.id, IntoContact: into.id})
		if err != nil {
			return fmt.Errorf("move a merged contact's identifiers: %w", err)
		}
	}
	b.out.Merged = len(b.merges)
	return nil
}

func (b *batch) writeConflicts(ctx context.Context, tx pgx.Tx) error {
	for _, c := range b.clashes {
		in := b.inputs[c.input]
		err := processordb.New(tx).RecordIdentityConflict(ctx, processordb.RecordIdentityConflictParams{
			TenantID: in.TenantID, EventID: in.EventID, Contacts: c.contacts})
		if err != nil {
			return fmt.Errorf("record an identity conflict: %w", err)
		}
	}
	return nil
}
