package blast

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/softcrum/carril/internal/gates"
	"github.com/softcrum/carril/internal/identifier"
)

// freezeChunk is how many contacts one transaction of a freeze looks at.
const freezeChunk = 1_000

// audienceReport is what a freeze has found, in contacts.
type audienceReport struct {
	Looked         int64 `json:"looked_at"`
	Taken          int64 `json:"taken"`
	FilteredOut    int64 `json:"filtered_out"`
	WithoutConsent int64 `json:"without_consent"`
	WithoutAddress int64 `json:"without_address"`
	Suppressed     int64 `json:"suppressed"`
	Duplicates     int64 `json:"duplicates"` // two contacts with one address
}

// candidate is a contact that a freeze looks at.
type candidate struct {
	Contact uuid.UUID
	Matches bool // the traits
	Granted bool // the newest consent, of the contact or of whom it has taken in
	Address *string
	Stopped bool // the address is suppressed
	address string
}

// candidates gives the next contacts in the order of their ids: all of them, so
// that a chunk is bounded whatever the filter lets through. Merged and erased
// contacts are nobody any more.
const candidatesSQL = `WITH c AS MATERIALIZED (
    SELECT c.tenant_id, c.contact_id, c.traits @> $4 AS matches FROM core.contacts c
    WHERE c.tenant_id = $1 AND c.contact_id > $2 AND c.erased_at IS NULL
        AND NOT EXISTS (SELECT FROM core.contact_merges m WHERE m.tenant_id = $1 AND m.from_contact = c.contact_id AND m.undone_at IS NULL)
    ORDER BY c.contact_id LIMIT $5
)
SELECT c.contact_id, c.matches, coalesce(k.granted, false), a.value,
    a.value IS NOT NULL AND EXISTS (SELECT FROM messaging.suppressions s WHERE s.tenant_id = $1 AND s.channel = $3 AND s.address = a.value)
FROM c
LEFT JOIN LATERAL (SELECT w.granted FROM (
        (SELECT k.granted, k.changed_at FROM messaging.consents k WHERE k.tenant_id = $1 AND k.contact_id = c.contact_id AND k.channel = $3 AND k.purpose = 'marketing'
            ORDER BY k.changed_at DESC LIMIT 1)
        UNION ALL
        (SELECT k.granted, k.changed_at FROM core.contact_merges m JOIN messaging.consents k ON k.tenant_id = $1 AND k.contact_id = m.from_contact
            WHERE m.tenant_id = $1 AND m.into_contact = c.contact_id AND m.undone_at IS NULL AND k.channel = $3 AND k.purpose = 'marketing'
            ORDER BY k.changed_at DESC LIMIT 1)
    ) w WHERE c.matches ORDER BY w.changed_at DESC LIMIT 1) k ON true
LEFT JOIN LATERAL (SELECT i.value FROM core.contact_identifiers i WHERE k.granted AND i.tenant_id = $1 AND i.contact_id = c.contact_id AND i.kind = $6
    ORDER BY i.created_at DESC, i.value LIMIT 1) a ON true
ORDER BY c.contact_id`

func candidates(ctx context.Context, db querier, tenant uuid.UUID, channel string, traits json.RawMessage, after uuid.UUID, limit int) ([]*candidate, error) {
	if traits == nil {
		traits = json.RawMessage(`{}`)
	}
	rows, err := db.Query(ctx, candidatesSQL, tenant, after, channel, traits, limit, identifier.OfChannel(channel))
	if err != nil {
		return nil, fmt.Errorf("look at contacts: %w", err)
	}
	list, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (*candidate, error) {
		var c candidate
		err := row.Scan(&c.Contact, &c.Matches, &c.Granted, &c.Address, &c.Stopped)
		return &c, err
	})
	if err != nil {
		return nil, fmt.Errorf("look at contacts: %w", err)
	}
	return list, nil
}

// sort counts a candidate and says whether it may be taken.
func (r *audienceReport) sort(c *candidate, channel string) bool {
	r.Looked++
	ok := false
	if c.Address != nil {
		c.address, ok = gates.Normalize(channel, *c.Address)
	}
	switch {
	case !c.Matches:
		r.FilteredOut++
	case !c.Granted:
		r.WithoutConsent++
	case !ok:
		r.WithoutAddress++
	case c.Stopped:
		r.Suppressed++
	default:
		return true
	}
	return false
}

// Prepare takes the next contacts into the audience of every preparing blast of
// a channel, a chunk a blast and transaction, and lets those go that are
// complete. more says that there is more to do. What it has done stands with
// the place where it goes on, so it may be killed anywhere.
func (s *Store) Prepare(ctx context.Context, channel string) (more bool, err error) {
	rows, err := s.pool.Query(ctx, `SELECT blast_id FROM messaging.blasts WHERE channel = $1 AND state = 'preparing' ORDER BY created_at`, channel)
	if err != nil {
		return false, fmt.Errorf("list blasts to prepare: %w", err)
	}
	blasts, err := pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
	if err != nil {
		return false, fmt.Errorf("list blasts to prepare: %w", err)
	}
	for _, id := range blasts {
		again, err := s.freeze(ctx, id)
		if err != nil {
			return more, fmt.Errorf("freeze an audience: %w", err)
		}
		more = more || again
	}
	return more, nil
}

func (s *Store) freeze(ctx context.Context, id uuid.UUID) (more bool, err error) {
	err = pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		var b Blast
		var after *uuid.UUID
		err := tx.QueryRow(ctx, `SELECT `+columns+`, b.prepare_after FROM messaging.blasts b WHERE b.blast_id = $1 AND b.state = 'preparing' FOR UPDATE SKIP LOCKED`, id).
			Scan(append(b.fields(), &after)...)
		if errors.Is(err, pgx.ErrNoRows) {
			return nil // paused, cancelled or another's meanwhile
		}
		if err != nil {
			return err
		}
		if after == nil {
			after = &uuid.Nil
		}
		list, err := candidates(ctx, tx, b.tenant, b.Channel, b.Audience.Traits, *after, freezeChunk)
		if err != nil {
			return err
		}
		var report audienceReport
		if err := json.Unmarshal(b.AudienceReport, &report); err != nil {
			return err
		}
		if more, err = s.takeChunk(ctx, tx, &b, list, &report); err != nil {
			return err
		}
		last := *after
		if len(list) > 0 {
			last = list[len(list)-1].Contact
		}
		const sql = `UPDATE messaging.blasts SET recipients = $2, prepare_after = $3, audience_report = $4, updated_at = now(),
    state = CASE WHEN $5 THEN state ELSE 'running' END, prepared_at = CASE WHEN $5 THEN NULL ELSE now() END WHERE blast_id = $1`
		_, err = tx.Exec(ctx, sql, id, b.Recipients, last, report, more)
		return err
	})
	return more, err
}

// takeChunk writes the candidates that may be taken; more is false once the
// last contact was looked at.
func (s *Store) takeChunk(ctx context.Context, tx pgx.Tx, b *Blast, list []*candidate, report *audienceReport) (more bool, err error) {
	var fit []recipient
	for _, c := range list {
		if report.sort(c, b.Channel) {
			fit = append(fit, recipient{contact: c.Contact, address: c.address, variables: json.RawMessage(`{}`)})
		}
	}
	full := false
	if room := MaxRecipients - b.Recipients; int64(len(fit)) > room {
		fit, full = fit[:room], true
	}
	taken, err := addRecipients(ctx, tx, b, fit)
	if err != nil {
		return false, err
	}
	report.Taken += int64(taken)
	report.Duplicates += int64(len(fit) - taken)
	return len(list) == freezeChunk && !full, nil
}

// recipient is somebody who may be taken into a blast.
type recipient struct {
	contact   uuid.UUID
	address   string // normalised
	variables json.RawMessage
	taken     bool
}

// addRecipients writes recipients whose address the blast has not yet, at the
// next positions, and raises b.Recipients, which the caller writes. The caller
// holds the blast's row: positions have no gaps, and nobody else adds.
func addRecipients(ctx context.Context, tx pgx.Tx, b *Blast, rs []recipient) (taken int, err error) {
	if len(rs) == 0 {
		return 0, nil
	}
	addresses := make([]string, len(rs))
	for i, r := range rs {
		addresses[i] = r.address
	}
	rows, err := tx.Query(ctx, `SELECT address FROM messaging.blast_recipients WHERE blast_id = $1 AND address = ANY($2)`, b.ID, addresses)
	if err != nil {
		return 0, fmt.Errorf("look for recipients: %w", err)
	}
	there, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return 0, fmt.Errorf("look for recipients: %w", err)
	}
	has := make(map[string]bool, len(there)+len(rs))
	for _, a := range there {
		has[a] = true
	}
	var positions []int64
	var contacts []uuid.UUID
	var variables []string
	var fresh []string
	for i := range rs {
		r := &rs[i]
		if has[r.address] {
			continue
		}
		has[r.address], r.taken = true, true
		positions, contacts = append(positions, b.Recipients), append(contacts, r.contact)
		fresh, variables = append(fresh, r.address), append(variables, string(r.variables))
		b.Recipients++
	}
	if len(positions) == 0 {
		return 0, nil
	}
	const sql = `INSERT INTO messaging.blast_recipients (blast_id, position, contact_id, address, variables)
SELECT $1, p, c, a, v::jsonb FROM unnest($2::bigint[], $3::uuid[], $4::text[], $5::text[]) AS u(p, c, a, v)`
	if _, err := tx.Exec(ctx, sql, b.ID, positions, contacts, fresh, variables); err != nil {
		return 0, fmt.Errorf("write recipients: %w", err)
	}
	return len(positions), nil
}
