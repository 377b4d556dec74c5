package identity

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// traits of a contact while they are worked on.
type traits struct {
	values map[string]json.RawMessage
	times  map[string]time.Time
	dirty  bool
}

// keepTraits applies the batch's traits and the merges' shares, and collects
// what changed. The last occurred_at wins a key, null deletes it.
func (b *batch) keepTraits(ctx context.Context, tx pgx.Tx, at []*person) error {
	affected := map[*person]int{} // by the input that touched it last
	for p, i := range b.touched {
		affected[p.root()] = max(affected[p.root()], i)
	}
	for i, in := range b.inputs {
		if in.Traits != "" && in.Traits != "{}" {
			affected[at[i].root()] = i
		}
	}
	if len(affected) == 0 && len(b.merges) == 0 {
		return nil
	}
	have, err := b.loadTraits(ctx, tx, affected)
	if err != nil {
		return err
	}
	for _, m := range b.merges {
		have[m.into.root()].takeAll(have[m.from])
	}
	for i, in := range b.inputs {
		if t := have[at[i].root()]; t != nil {
			b.applyTraits(i, in, t)
		}
	}
	if err := b.writeTraits(ctx, tx, have); err != nil {
		return err
	}
	return b.collectChanges(affected, have)
}

func (b *batch) applyTraits(i int, in Input, t *traits) {
	if in.Traits == "" || in.Traits == "{}" {
		return
	}
	var set map[string]json.RawMessage
	if err := json.Unmarshal([]byte(in.Traits), &set); err != nil {
		b.out.Warnings = append(b.out.Warnings, Warning{in.TenantID, in.EventID, "refused_traits", map[string]string{"reason": "not an object"}})
		return
	}
	if n := t.apply(set, in.OccurredAt); n > 0 {
		b.out.Warnings = append(b.out.Warnings, Warning{in.TenantID, in.EventID, "traits_capped",
			map[string]string{"refused": fmt.Sprint(n), "limit": fmt.Sprintf("%d keys, %d bytes", MaxTraitKeys, MaxTraitBytes)}})
	}
}

// apply sets what is newer than what stands; it gives the number of traits
// refused because the contact is full. Keys go in order, so that a replay
// refuses the same ones.
func (t *traits) apply(set map[string]json.RawMessage, at time.Time) (refused int) {
	keys := make([]string, 0, len(set))
	for k := range set {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	size := t.size()
	for _, k := range keys {
		if old, ok := t.times[k]; ok && old.After(at) {
			continue
		}
		v := set[k]
		if bytes.Equal(bytes.TrimSpace(v), []byte("null")) {
			if _, ok := t.values[k]; ok {
				size -= len(k) + len(t.values[k])
			}
			delete(t.values, k)
			t.times[k], t.dirty = at, true
			continue
		}
		grown := size + len(v)
		if old, ok := t.values[k]; ok {
			grown -= len(old)
		} else {
			grown += len(k)
			if len(t.values) >= MaxTraitKeys {
				refused++
				continue
			}
		}
		if grown > MaxTraitBytes {
			refused++
			continue
		}
		size = grown
		t.values[k], t.times[k], t.dirty = v, at, true
	}
	return refused
}

func (t *traits) size() int {
	n := 0
	for k, v := range t.values {
		n += len(k) + len(v)
	}
	return n
}

// takeAll merges another contact's traits in, key by key, the newer winning.
func (t *traits) takeAll(from *traits) {
	if t == nil || from == nil || t == from {
		return
	}
	for k, v := range from.values {
		if at := from.times[k]; !t.times[k].After(at) {
			t.apply(map[string]json.RawMessage{k: v}, at)
		}
	}
}

func (b *batch) loadTraits(ctx context.Context, tx pgx.Tx, affected map[*person]int) (map[*person]*traits, error) {
	have := map[*person]*traits{}
	byID := map[uuid.UUID]*person{}
	var tenants, contacts []uuid.UUID
	want := func(p *person) {
		if have[p] != nil {
			return
		}
		have[p] = &traits{values: map[string]json.RawMessage{}, times: map[string]time.Time{}}
		if !p.isNew {
			byID[p.id] = p
			tenants, contacts = append(tenants, p.tenant), append(contacts, p.id)
		}
	}
	for p := range affected {
		want(p)
	}
	for _, m := range b.merges {
		want(m.from)
		want(m.into.root())
	}
	if len(contacts) == 0 {
		return have, nil
	}
	const sql = `SELECT c.contact_id, c.traits, c.trait_times FROM core.contacts c
JOIN unnest($1::uuid[], $2::uuid[]) AS u(tenant_id, contact_id) ON c.tenant_id = u.tenant_id AND c.contact_id = u.contact_id
ORDER BY c.tenant_id, c.contact_id FOR NO KEY UPDATE OF c`
	rows, err := tx.Query(ctx, sql, tenants, contacts)
	if err != nil {
		return nil, fmt.Errorf("read traits: %w", err)
	}
	defer rows.Close()
	for rows.Next() {
		var id uuid.UUID
		var values, times []byte
		if err := rows.Scan(&id, &values, &times); err != nil {
			return nil, fmt.Errorf("read traits: %w", err)
		}
		t := have[byID[id]]
		if err := json.Unmarshal(values, &t.values); err != nil {
			return nil, fmt.Errorf("read traits of a contact: %w", err)
		}
		if err := json.Unmarshal(times, &t.times); err != nil {
			return nil, fmt.Errorf("read trait times of a contact: %w", err)
		}
	}
	return have, rows.Err()
}

func (b *batch) writeTraits(ctx context.Context, tx pgx.Tx, have map[*person]*traits) error {
	var tenants, contacts []uuid.UUID
	var values, times []string
	for p, t := range have {
		if !t.dirty || p.into != nil {
			continue
		}
		v, err := json.Marshal(t.values)
		if err != nil {
			return fmt.Errorf("write traits: %w", err)
		}
		tm, err := json.Marshal(t.times)
		if err != nil {
			return fmt.Errorf("write trait times: %w", err)
		}
		tenants, contacts, values, times = append(tenants, p.tenant), append(contacts, p.id), append(values, string(v)), append(times, string(tm))
	}
	if len(contacts) == 0 {
		return nil
	}
	const sql = `UPDATE core.contacts c SET traits = u.traits::jsonb, trait_times = u.times::jsonb, updated_at = now()
FROM unnest($1::uuid[], $2::uuid[], $3::text[], $4::text[]) AS u(tenant_id, contact_id, traits, times)
WHERE c.tenant_id = u.tenant_id AND c.contact_id = u.contact_id`
	if _, err := tx.Exec(ctx, sql, tenants, contacts, values, times); err != nil {
		return fmt.Errorf("write traits of %d contacts: %w", len(contacts), err)
	}
	return nil
}

func (b *batch) collectChanges(affected map[*person]int, have map[*person]*traits) error {
	for _, m := range b.merges {
		in, into := b.inputs[m.cause], m.into.root().id
		b.out.Changes = append(b.out.Changes, Change{TenantID: in.TenantID, CellID: in.CellID, ContactID: m.from.id, Kind: "merged",
			Into: &into, Traits: json.RawMessage("{}"), CauseEventID: in.EventID, CorrelationID: in.CorrelationID})
	}
	for p, i := range affected {
		if p.into != nil || !p.known { // anonymous contacts are no news to a mirror
			continue
		}
		v, err := json.Marshal(have[p].values)
		if err != nil {
			return fmt.Errorf("collect a contact change: %w", err)
		}
		in := b.inputs[i]
		b.out.Changes = append(b.out.Changes, Change{TenantID: p.tenant, CellID: p.cell, ContactID: p.id, Kind: "identified",
			Traits: v, CauseEventID: in.EventID, CorrelationID: in.CorrelationID})
	}
	return nil
}
