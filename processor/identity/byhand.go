package identity

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/softcrum/carril/internal/db/processordb"
	"github.com/softcrum/carril/internal/ids"
)

// Refusal says why an operator's merge or its undoing is not made.
type Refusal struct{ Code, Detail string }

func (r *Refusal) Error() string { return r.Code + ": " + r.Detail }

// Codes of refusals.
const (
	CodeNotFound       = "contact_not_found"
	CodeSame           = "same_contact"
	CodeErased         = "contact_erased"
	CodeTwoExternalIDs = "two_external_ids"
	CodeNotMerged      = "not_merged"
	CodeBusy           = "contact_busy"
)

// ByHand is a merge that an operator makes or undoes.
type ByHand struct {
	TenantID uuid.UUID
	From     uuid.UUID // a merge: resolved to whom it became; an undoing: as named
	Into     uuid.UUID // of a merge; it survives
	By, Why  string
	// Force merges two people with an external_id each: who knows that a tenant gave
	// one person two may say so, and events with either are that person's from then.
	Force bool
}

// Merge makes one contact of two inside tx, and gives what changed. The error is
// a *Refusal where it must not be made.
func Merge(ctx context.Context, tx pgx.Tx, h ByHand) ([]Change, error) {
	from, into, err := lockRoots(ctx, tx, h)
	if err != nil {
		return nil, err
	}
	db := processordb.New(tx)
	external, err := db.HaveExternalID(ctx, processordb.HaveExternalIDParams{TenantID: h.TenantID, Contacts: []uuid.UUID{from.ContactID, into.ContactID}})
	if err != nil {
		return nil, fmt.Errorf("look for external ids: %w", err)
	}
	if len(external) == 2 && !h.Force {
		return nil, &Refusal{CodeTwoExternalIDs, "both contacts have an external_id; two are never one person unless an operator forces it"}
	}
	err = db.InsertMergeByHand(ctx, processordb.InsertMergeByHandParams{TenantID: h.TenantID, FromContact: from.ContactID, IntoContact: into.ContactID,
		MergedBy: h.By, Reason: h.Why})
	if err != nil {
		return nil, fmt.Errorf("record a merge: %w", err)
	}
	err = db.MoveIdentifiers(ctx, processordb.MoveIdentifiersParams{TenantID: h.TenantID, FromContact: from.ContactID, IntoContact: into.ContactID})
	if err != nil {
		return nil, fmt.Errorf("move a merged contact's identifiers: %w", err)
	}
	if from.Known && !into.Known {
		if err := db.MarkContactsKnown(ctx, processordb.MarkContactsKnownParams{Tenants: []uuid.UUID{h.TenantID}, Contacts: []uuid.UUID{into.ContactID}}); err != nil {
			return nil, fmt.Errorf("mark a contact known: %w", err)
		}
	}
	kept, gone, err := bothTraits(into, from)
	if err != nil {
		return nil, err
	}
	kept.takeAll(gone)
	if err := writeOne(ctx, db, h.TenantID, into.ContactID, kept); err != nil {
		return nil, err
	}
	return h.changes(from, into, "merged", &into.ContactID, json.RawMessage("{}"), kept, from.Known || into.Known)
}

// Unmerge undoes the merge in force of a contact inside tx, and gives what
// changed. The contact takes back the identifiers that it, and who was merged
// into it, brought along, and its traits as they were; what came after the merge
// stays with the survivor, events and points too. A trait that the survivor has
// from the merge leaves it; what it had under that name before is not known.
func Unmerge(ctx context.Context, tx pgx.Tx, h ByHand) ([]Change, error) {
	db := processordb.New(tx)
	root, err := rootOf(ctx, db, h.TenantID, h.From)
	if err != nil {
		return nil, err
	}
	if root == h.From {
		return nil, &Refusal{CodeNotMerged, "the contact is not merged into another"}
	}
	from, holder, err := lockPair(ctx, db, h.TenantID, h.From, root)
	if err != nil {
		return nil, err
	}
	if again, err := rootOf(ctx, db, h.TenantID, h.From); err != nil || again != root {
		return nil, cmpErr(err, &Refusal{CodeBusy, "the contact is being merged right now; try again"})
	}
	if n, err := db.UndoMerge(ctx, processordb.UndoMergeParams{TenantID: h.TenantID, FromContact: h.From, UndoneBy: h.By, Reason: h.Why}); err != nil || n != 1 {
		return nil, cmpErr(err, &Refusal{CodeNotMerged, "the contact is not merged into another"})
	}
	family, err := db.Family(ctx, processordb.FamilyParams{ContactID: h.From, TenantID: h.TenantID})
	if err != nil {
		return nil, fmt.Errorf("read a contact's merges: %w", err)
	}
	if _, err = db.ReturnIdentifiers(ctx, processordb.ReturnIdentifiersParams{ContactID: h.From, TenantID: h.TenantID, Holder: root, Family: family}); err != nil {
		return nil, fmt.Errorf("give identifiers back: %w", err)
	}
	kept, own, err := bothTraits(holder, from)
	if err != nil {
		return nil, err
	}
	kept.dropAll(own)
	if err := writeOne(ctx, db, h.TenantID, root, kept); err != nil {
		return nil, err
	}
	for _, c := range []*processordb.LockContactsRow{&from, &holder} {
		if c.Known, err = db.JudgeKnown(ctx, processordb.JudgeKnownParams{TenantID: h.TenantID, ContactID: c.ContactID}); err != nil {
			return nil, fmt.Errorf("judge whether a contact is known: %w", err)
		}
	}
	return h.changes(from, holder, "unmerged", nil, from.Traits, kept, holder.Known)
}

// changes tells of the one that was merged or freed, then of the survivor.
func (h ByHand) changes(from, into processordb.LockContactsRow, kind string, at *uuid.UUID, traits json.RawMessage, kept *traits, known bool) ([]Change, error) {
	correlation := ids.New().String()
	out := []Change{{TenantID: h.TenantID, CellID: from.CellID, ContactID: from.ContactID, Kind: kind, Into: at, Traits: traits, CorrelationID: correlation}}
	if !known {
		return out, nil
	}
	v, err := json.Marshal(kept.values)
	if err != nil {
		return nil, fmt.Errorf("collect a contact change: %w", err)
	}
	return append(out, Change{TenantID: h.TenantID, CellID: into.CellID, ContactID: into.ContactID, Kind: "identified", Traits: v, CorrelationID: correlation}), nil
}

func cmpErr(err error, otherwise *Refusal) error {
	if err != nil {
		return err
	}
	return otherwise
}

// rootOf follows a contact's merges to the one that stands.
func rootOf(ctx context.Context, db *processordb.Queries, tenant, contact uuid.UUID) (uuid.UUID, error) {
	rows, err := db.ResolveMerges(ctx, processordb.ResolveMergesParams{Tenants: []uuid.UUID{tenant}, Contacts: []uuid.UUID{contact}})
	if err != nil {
		return uuid.Nil, fmt.Errorf("resolve a contact: %w", err)
	}
	if len(rows) == 0 {
		return uuid.Nil, &Refusal{CodeNotFound, "there is no such contact"}
	}
	return rows[0].At, nil
}

// lockRoots finds whom both contacts of a merge became and locks them; a merge
// that gets in between is followed.
func lockRoots(ctx context.Context, tx pgx.Tx, h ByHand) (from, into processordb.LockContactsRow, err error) {
	db := processordb.New(tx)
	for range 5 {
		a, err := rootOf(ctx, db, h.TenantID, h.From)
		if err != nil {
			return from, into, err
		}
		b, err := rootOf(ctx, db, h.TenantID, h.Into)
		if err != nil {
			return from, into, err
		}
		if a == b {
			return from, into, &Refusal{CodeSame, "both are one contact already"}
		}
		if from, into, err = lockPair(ctx, db, h.TenantID, a, b); err != nil {
			return from, into, err
		}
		again, err := rootOf(ctx, db, h.TenantID, a)
		if err != nil {
			return from, into, err
		}
		other, err := rootOf(ctx, db, h.TenantID, b)
		if err != nil {
			return from, into, err
		}
		if again == a && other == b {
			return from, into, nil
		}
	}
	return from, into, &Refusal{CodeBusy, "the contacts are being merged right now; try again"}
}

func lockPair(ctx context.Context, db *processordb.Queries, tenant, a, b uuid.UUID) (x, y processordb.LockContactsRow, err error) {
	rows, err := db.LockContacts(ctx, processordb.LockContactsParams{TenantID: tenant, Contacts: []uuid.UUID{a, b}})
	if err != nil {
		return x, y, fmt.Errorf("lock two contacts: %w", err)
	}
	for _, r := range rows {
		if r.ErasedAt != nil {
			return x, y, &Refusal{CodeErased, "a contact that was erased stays as it is"}
		}
	}
	i, j := slices.IndexFunc(rows, func(r processordb.LockContactsRow) bool { return r.ContactID == a }),
		slices.IndexFunc(rows, func(r processordb.LockContactsRow) bool { return r.ContactID == b })
	if i < 0 || j < 0 {
		return x, y, errors.New("lock two contacts: one is gone")
	}
	return rows[i], rows[j], nil
}

func bothTraits(into, from processordb.LockContactsRow) (a, b *traits, err error) {
	if a, err = readTraits(into.Traits, into.TraitTimes); err != nil {
		return nil, nil, err
	}
	b, err = readTraits(from.Traits, from.TraitTimes)
	return a, b, err
}

func readTraits(values, times []byte) (*traits, error) {
	t := &traits{values: map[string]json.RawMessage{}, times: map[string]time.Time{}}
	if err := json.Unmarshal(values, &t.values); err != nil {
		return nil, fmt.Errorf("read traits of a contact: %w", err)
	}
	if err := json.Unmarshal(times, &t.times); err != nil {
		return nil, fmt.Errorf("read trait times of a contact: %w", err)
	}
	return t, nil
}

// dropAll takes out what came from another contact: the same value, of the same
// time.
func (t *traits) dropAll(of *traits) {
	for k, v := range of.values {
		if bytes.Equal(t.values[k], v) && t.times[k].Equal(of.times[k]) {
			delete(t.values, k)
			delete(t.times, k)
			t.dirty = true
		}
	}
}

func writeOne(ctx context.Context, db *processordb.Queries, tenant, contact uuid.UUID, t *traits) error {
	return writeTraits(ctx, db, map[*person]*traits{{tenant: tenant, id: contact}: t})
}
