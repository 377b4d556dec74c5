package identity

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/softcrum/carril/internal/stream"
)

// load reads who owns the batch's identifiers, and those people.
func (b *batch) load(ctx context.Context, tx pgx.Tx) error {
	var tenants []uuid.UUID
	var kinds, values []string
	seen := map[key]bool{}
	for i, in := range b.inputs {
		for _, id := range b.ids[i] {
			k := key{in.TenantID, id.kind, id.value}
			if !seen[k] {
				seen[k] = true
				tenants, kinds, values = append(tenants, in.TenantID), append(kinds, id.kind), append(values, id.value)
			}
		}
	}
	if len(tenants) == 0 {
		return nil
	}
	const sql = `SELECT i.tenant_id, i.kind, i.value, c.contact_id, c.cell_id, c.known, c.created_at,
    ARRAY(SELECT x.value FROM core.contact_identifiers x WHERE x.tenant_id = c.tenant_id AND x.contact_id = c.contact_id AND x.kind = 'external_id')
FROM unnest($1::uuid[], $2::text[], $3::text[]) AS u(tenant_id, kind, value)
JOIN core.contact_identifiers i USING (tenant_id, kind, value)
JOIN core.contacts c ON c.tenant_id = i.tenant_id AND c.contact_id = i.contact_id`
	rows, err := tx.Query(ctx, sql, tenants, kinds, values)
	if err != nil {
		return fmt.Errorf("look identifiers up: %w", err)
	}
	defer rows.Close()
	for rows.Next() {
		var k key
		p := &person{external: map[string]bool{}}
		var external []string
		if err := rows.Scan(&k.tenant, &k.kind, &k.value, &p.id, &p.cell, &p.known, &p.created, &external); err != nil {
			return fmt.Errorf("look identifiers up: %w", err)
		}
		if have := b.people[p.id]; have != nil {
			p = have
		} else {
			p.tenant, p.wasKnown = k.tenant, p.known
			for _, e := range external {
				p.external[e] = true
			}
			b.people[p.id] = p
		}
		b.owners[k] = p
	}
	return rows.Err()
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
	var tenants, contacts []uuid.UUID
	var cells []string
	var known []bool
	for _, p := range b.created {
		tenants, contacts, cells, known = append(tenants, p.tenant), append(contacts, p.id), append(cells, p.cell), append(known, p.known)
	}
	b.out.Created = len(contacts)
	if len(contacts) > 0 {
		const sql = `INSERT INTO core.contacts (tenant_id, contact_id, cell_id, known, created_at)
SELECT t, c, cell, k, $5 FROM unnest($1::uuid[], $2::uuid[], $3::text[], $4::bool[]) AS u(t, c, cell, k)`
		if _, err := tx.Exec(ctx, sql, tenants, contacts, cells, known, b.now); err != nil {
			return fmt.Errorf("make %d contacts: %w", len(contacts), err)
		}
	}
	var risen []uuid.UUID
	var risenTenants []uuid.UUID
	for p := range b.touched {
		if !p.isNew && p.known && !p.wasKnown {
			risen, risenTenants = append(risen, p.id), append(risenTenants, p.tenant)
		}
	}
	if len(risen) == 0 {
		return nil
	}
	const sql = `UPDATE core.contacts c SET known = true, updated_at = now()
FROM unnest($1::uuid[], $2::uuid[]) AS u(tenant_id, contact_id)
WHERE c.tenant_id = u.tenant_id AND c.contact_id = u.contact_id`
	if _, err := tx.Exec(ctx, sql, risenTenants, risen); err != nil {
		return fmt.Errorf("mark %d contacts known: %w", len(risen), err)
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
	var tenants, contacts []uuid.UUID
	var kinds, values []string
	for _, a := range b.added {
		tenants, contacts = append(tenants, a.tenant), append(contacts, a.owner.root().id)
		kinds, values = append(kinds, a.kind), append(values, a.value)
	}
	const sql = `INSERT INTO core.contact_identifiers (tenant_id, kind, value, contact_id)
SELECT * FROM unnest($1::uuid[], $2::text[], $3::text[], $4::uuid[])
ON CONFLICT DO NOTHING`
	tag, err := tx.Exec(ctx, sql, tenants, kinds, values, contacts)
	if err != nil {
		return fmt.Errorf("attach %d identifiers: %w", len(values), err)
	}
	if int(tag.RowsAffected()) != len(values) {
		return fmt.Errorf("%w: an identifier was taken by another writer", stream.ErrWait)
	}
	return nil
}

func (b *batch) writeMerges(ctx context.Context, tx pgx.Tx) error {
	for _, m := range b.merges {
		in := b.inputs[m.cause]
		into := m.into.root()
		const insert = `INSERT INTO core.contact_merges (tenant_id, from_contact, into_contact, cause_event_id, merged_at)
VALUES ($1, $2, $3, $4, clock_timestamp())`
		if _, err := tx.Exec(ctx, insert, in.TenantID, m.from.id, into.id, in.EventID); err != nil {
			return fmt.Errorf("record a merge: %w", err)
		}
		const move = `UPDATE core.contact_identifiers SET contact_id = $3 WHERE tenant_id = $1 AND contact_id = $2`
		if _, err := tx.Exec(ctx, move, in.TenantID, m.from.id, into.id); err != nil {
			return fmt.Errorf("move a merged contact's identifiers: %w", err)
		}
	}
	b.out.Merged = len(b.merges)
	return nil
}

func (b *batch) writeConflicts(ctx context.Context, tx pgx.Tx) error {
	for _, c := range b.clashes {
		in := b.inputs[c.input]
		const sql = `INSERT INTO core.identity_conflicts (tenant_id, event_id, contacts, reason)
VALUES ($1, $2, $3, 'external_id') ON CONFLICT DO NOTHING`
		if _, err := tx.Exec(ctx, sql, in.TenantID, in.EventID, c.contacts); err != nil {
			return fmt.Errorf("record an identity conflict: %w", err)
		}
	}
	return nil
}
