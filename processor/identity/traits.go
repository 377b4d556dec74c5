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

	"github.com/softcrum/carril/internal/db/processordb"
	"github.com/softcrum/carril/internal/stream"
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
		if hasTraits(in) {
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
	if err := writeTraits(ctx, processordb.New(tx), have); err != nil {
		return err
	}
	return b.collectChanges(affected, have)
}

func hasTraits(in Input) bool { return in.Traits != "" && in.Traits != "{}" }

func (b *batch) applyTraits(i int, in Input, t *traits) {
	if !hasTraits(in) {
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
	var stored processordb.LockTraitsParams
	want := func(p *person) {
		if have[p] != nil {
			return
		}
		have[p] = &traits{values: map[string]json.RawMessage{}, times: map[string]time.Time{}}
		if !p.isNew {
			byID[p.id] = p
			stored.Tenants, stored.Contacts = append(stored.Tenants, p.tenant), append(stored.Contacts, p.id)
		}
	}
	for p := range affected {
		want(p)
	}
	for _, m := range b.merges {
		want(m.from)
		want(m.into.root())
	}
	if len(stored.Contacts) == 0 {
		return have, nil
	}
	rows, err := processordb.New(tx).LockTraits(ctx, stored)
	if err != nil {
		return nil, fmt.Errorf("read traits: %w", err)
	}
	for _, r := range rows {
		if r.Erased {
			return nil, fmt.Errorf("%w: a contact was erased while it was changed", stream.ErrWait)
		}
		t, err := readTraits(r.Traits, r.TraitTimes)
		if err != nil {
			return nil, err
		}
		have[byID[r.ContactID]] = t
	}
	return have, nil
}

func writeTraits(ctx context.Context, db *processordb.Queries, have map[*person]*traits) error {
	var rows processordb.WriteTraitsParams
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
		rows.Tenants, rows.Contacts = append(rows.Tenants, p.tenant), append(rows.Contacts, p.id)
		rows.Traits, rows.TraitTimes = append(rows.Traits, string(v)), append(rows.TraitTimes, string(tm))
	}
	if len(rows.Contacts) == 0 {
		return nil
	}
	if err := db.WriteTraits(ctx, rows); err != nil {
		return fmt.Errorf("write traits of %d contacts: %w", len(rows.Contacts), err)
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
