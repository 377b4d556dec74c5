package identity

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/softcrum/carril/internal/db/processordb"
	"github.com/softcrum/carril/internal/pg"
)

// write brings the batch's people into the database. Keys are sorted before
// they are locked. Another writer may have taken an identifier meanwhile: then
// the whole batch is tried again on fresh reads.
func (b *batch) write(ctx context.Context, tx pgx.Tx) error {
	if err := b.writeContacts(ctx, tx); err != nil {
		return err
	}
	if err := b.attachAll(ctx, tx); err != nil {
		return err
	}
	if err := b.writeMerges(ctx, tx); err != nil {
		return err
	}
	return b.writeConflicts(ctx, tx)
}

func (b *batch) writeContacts(ctx context.Context, tx pgx.Tx) error {
	b.out.Created = len(b.created)
	if len(b.created) > 0 {
		if err := b.makeContacts(ctx, tx); err != nil {
			return fmt.Errorf("make %d contacts: %w", len(b.created), err)
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
	if err := processordb.New(tx).MarkContactsKnown(ctx, risen); err != nil {
		return fmt.Errorf("mark %d contacts known: %w", len(risen.Contacts), err)
	}
	return nil
}

// copyFrom is the number of rows from which a COPY is cheaper than an INSERT.
const copyFrom = 100

// makeContacts writes the new people, all at the batch's own time: the older of
// two survives a merge.
func (b *batch) makeContacts(ctx context.Context, tx pgx.Tx) error {
	if len(b.created) < copyFrom {
		made := processordb.InsertContactsParams{CreatedAt: b.now}
		for _, p := range b.created {
			made.Tenants, made.Contacts = append(made.Tenants, p.tenant), append(made.Contacts, p.id)
			made.Cells, made.Known = append(made.Cells, p.cell), append(made.Known, p.known)
		}
		return processordb.New(tx).InsertContacts(ctx, made)
	}
	const sql = `COPY core.contacts (tenant_id, contact_id, cell_id, known, created_at) FROM STDIN BINARY`
	return pg.Copy(ctx, tx, sql, len(b.created), func(row pg.CopyRow, i int) pg.CopyRow {
		p := b.created[i]
		return row.Columns(5).UUID(p.tenant).UUID(p.id).Text(p.cell).Bool(p.known).Time(b.now)
	})
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
