package blast

import (
	"context"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/softcrum/carril/internal/gates"
	"github.com/softcrum/carril/internal/identifier"
)

// resolveSQL finds whom a row names and where that person gets messages of the
// channel. A merged contact is whom it became.
const resolveSQL = `WITH RECURSIVE u AS (
    SELECT n, coalesce(i.contact_id, c.contact_id) AS contact
    FROM unnest($2::text[], $3::text[], $4::uuid[]) WITH ORDINALITY AS v(kind, value, id, n)
    LEFT JOIN core.contact_identifiers i ON v.kind <> '' AND i.tenant_id = $1 AND i.kind = v.kind AND i.value = v.value
    LEFT JOIN core.contacts c ON v.kind = '' AND c.tenant_id = $1 AND c.contact_id = v.id
), w AS (
    SELECT n, contact, 0 AS depth FROM u WHERE contact IS NOT NULL
    UNION ALL
    SELECT w.n, m.into_contact, depth + 1 FROM w JOIN core.contact_merges m ON m.tenant_id = $1 AND m.from_contact = w.contact AND m.undone_at IS NULL WHERE depth < 16
), p AS (
    SELECT DISTINCT ON (n) n, contact FROM w ORDER BY n, depth DESC
)
SELECT p.n, p.contact, coalesce(a.value, ''), $5 <> '' AND EXISTS (SELECT FROM core.contact_identifiers o
        WHERE o.tenant_id = $1 AND o.kind = $5 AND o.value = ($6::text[])[p.n] AND o.contact_id = p.contact)
FROM p JOIN core.contacts c ON c.tenant_id = $1 AND c.contact_id = p.contact AND c.erased_at IS NULL
LEFT JOIN LATERAL (SELECT i.value FROM core.contact_identifiers i WHERE i.tenant_id = $1 AND i.contact_id = p.contact AND i.kind = $5
    ORDER BY i.created_at DESC, i.value LIMIT 1) a ON true`

// resolve gives the recipients of the rows that may be taken, and writes to the
// others why they may not. An address beside another identifier must be that
// contact's own: its consent is no consent of somebody else's.
func resolve(ctx context.Context, tx pgx.Tx, b *Blast, chunk []*row) ([]recipient, error) {
	var asked []*row
	var kinds, values, given []string
	var contacts []uuid.UUID
	for _, r := range chunk {
		kind, value, contact, address, ok := r.named(b.Channel)
		if !ok {
			continue
		}
		asked, kinds, values, contacts, given = append(asked, r), append(kinds, kind), append(values, value), append(contacts, contact), append(given, address)
	}
	if len(asked) == 0 {
		return nil, nil
	}
	rows, err := tx.Query(ctx, resolveSQL, b.tenant, kinds, values, contacts, identifier.OfChannel(b.Channel), given)
	if err != nil {
		return nil, fmt.Errorf("find contacts: %w", err)
	}
	found := make([]*recipient, len(asked))
	var n int64
	var contact uuid.UUID
	var address string
	var own bool
	_, err = pgx.ForEachRow(rows, []any{&n, &contact, &address, &own}, func() error {
		r := asked[n-1]
		if given[n-1] != "" {
			address = given[n-1]
			if !own {
				r.reason, r.col = ForeignAddress, "address"
			}
		}
		normal, ok := gates.Normalize(b.Channel, address)
		if !ok && r.reason == "" {
			r.reason, r.col = NoAddress, ""
		}
		found[n-1] = &recipient{contact: contact, address: normal, variables: r.variables}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("find contacts: %w", err)
	}
	var out []recipient
	for i, r := range asked {
		if found[i] == nil {
			r.reason, r.col = UnknownContact, kinds[i]
			if kinds[i] == "" {
				r.col = "contact_id"
			} else if kinds[i] != "external_id" {
				r.col = "address"
			}
		}
		if r.reason == "" {
			out = append(out, *found[i])
		}
	}
	return out, nil
}

// named gives the identifier that a row names its contact by, and the address
// that it gives beside it; ok is false where the row says itself that it cannot
// be taken.
func (r *row) named(channel string) (kind, value string, contact uuid.UUID, address string, ok bool) {
	if r.reason != "" {
		return "", "", uuid.Nil, "", false
	}
	bad := func(reason, col string) (string, string, uuid.UUID, string, bool) {
		r.reason, r.col = reason, col
		return "", "", uuid.Nil, "", false
	}
	if r.address != "" {
		if address, ok = gates.Normalize(channel, r.address); !ok {
			return bad(BadAddress, "address")
		}
	}
	switch by, v := r.who(); {
	case v == "":
		return bad(NoIdentifier, "")
	case by == "contact_id":
		if contact, ok = r.contact(); !ok {
			return bad(BadContactID, "contact_id")
		}
		return "", "", contact, address, true
	case by == identifier.ExternalID:
		id, err := identifier.Normalize(by, v)
		if err != nil {
			return bad(UnknownContact, by)
		}
		return by, id, uuid.Nil, address, true
	}
	return identifier.OfChannel(channel), address, uuid.Nil, address, true
}
