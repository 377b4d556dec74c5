package erasure

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/softcrum/carril/internal/db/processordb"
	"github.com/softcrum/carril/internal/identifier"
	"github.com/softcrum/carril/internal/ids"
	"github.com/softcrum/carril/processor/identity"
)

// Desk takes requests for erasure.
type Desk struct {
	cfg  Config
	deps Deps
}

// NewDesk makes a desk; of the Deps it needs Pool and Lanes.
func NewDesk(cfg Config, deps Deps) *Desk { return &Desk{cfg.withDefaults(), deps.withDefaults()} }

// errBusy says that the contact was merged while it was read.
var errBusy = errors.New("the contact is being merged; try again")

// Request erases a contact with all that were merged into it, and whom it was
// merged into: they are one person. When it returns, nothing is sent to the person
// any more, its identifiers are free, and what was received before brings nobody
// back; the Job does the rest. Asked again it gives the same erasure.
func (d *Desk) Request(ctx context.Context, tenant, contact uuid.UUID, by string) (id uuid.UUID, err error) {
	for range 5 {
		err = pgx.BeginFunc(ctx, d.deps.Pool, func(tx pgx.Tx) error {
			id, err = d.erase(ctx, tx, tenant, contact, by)
			return err
		})
		if !errors.Is(err, errBusy) {
			break
		}
	}
	if err != nil && !errors.Is(err, ErrNotFound) {
		err = fmt.Errorf("erase a contact: %w", err)
	}
	return id, err
}

func (d *Desk) erase(ctx context.Context, tx pgx.Tx, tenant, contact uuid.UUID, by string) (uuid.UUID, error) {
	db := processordb.New(tx)
	root, people, err := lockFamily(ctx, db, tenant, contact)
	if err != nil {
		return uuid.Nil, err
	}
	if slices.ContainsFunc(people, func(c processordb.LockContactsRow) bool { return c.ErasedAt != nil }) {
		id, err := db.ErasureOf(ctx, processordb.ErasureOfParams{TenantID: tenant, ContactID: root})
		return id, err
	}
	e := &erasing{db: db, tenant: tenant, root: root, id: ids.New()}
	for _, c := range people {
		e.contacts = append(e.contacts, c.ContactID)
	}
	if err := e.forget(ctx); err != nil {
		return uuid.Nil, err
	}
	if err := e.register(ctx, d.cfg, causeRequest, by); err != nil {
		return uuid.Nil, err
	}
	changes := make([]identity.Change, len(people))
	for i, c := range people {
		changes[i] = identity.Change{TenantID: tenant, CellID: c.CellID, ContactID: c.ContactID, Kind: "erased", Traits: json.RawMessage("{}"), CorrelationID: e.id.String()}
	}
	return e.id, d.deps.Lanes.Emit(ctx, tx, nil, changes)
}

// lockFamily locks a person's contacts against everybody who would attach to them
// or merge with them; the root is the one that stands.
func lockFamily(ctx context.Context, db *processordb.Queries, tenant, contact uuid.UUID) (root uuid.UUID, people []processordb.LockContactsRow, err error) {
	at, err := db.ResolveMerges(ctx, processordb.ResolveMergesParams{Tenants: []uuid.UUID{tenant}, Contacts: []uuid.UUID{contact}})
	if err != nil {
		return root, nil, fmt.Errorf("resolve a contact: %w", err)
	}
	if len(at) == 0 {
		return root, nil, ErrNotFound
	}
	root = at[0].At
	family, err := db.Family(ctx, processordb.FamilyParams{ContactID: root, TenantID: tenant})
	if err != nil {
		return root, nil, fmt.Errorf("read a contact's merges: %w", err)
	}
	if people, err = db.LockContacts(ctx, processordb.LockContactsParams{TenantID: tenant, Contacts: family}); err != nil {
		return root, nil, fmt.Errorf("lock a contact: %w", err)
	}
	// Who held one of them before us may have merged it.
	again, err := db.Family(ctx, processordb.FamilyParams{ContactID: root, TenantID: tenant})
	if err != nil {
		return root, nil, fmt.Errorf("read a contact's merges: %w", err)
	}
	still, err := db.ResolveMerges(ctx, processordb.ResolveMergesParams{Tenants: []uuid.UUID{tenant}, Contacts: []uuid.UUID{contact}})
	if err != nil {
		return root, nil, fmt.Errorf("resolve a contact: %w", err)
	}
	if !slices.Equal(family, again) || len(still) == 0 || still[0].At != root {
		return root, nil, errBusy
	}
	return root, people, nil
}

// erasing is an erasure while its first transaction runs.
type erasing struct {
	db       *processordb.Queries
	tenant   uuid.UUID
	root     uuid.UUID // uuid.Nil: many contacts, by the clock
	id       uuid.UUID
	contacts []uuid.UUID
	at       time.Time
}

// forget turns the person's identifiers into hashes wherever they stand for
// something that must outlive the person, and deletes them. The Job could not:
// afterwards nobody knows them.
func (e *erasing) forget(ctx context.Context) error {
	fresh := make([]byte, identifier.KeyBytes)
	if _, err := rand.Read(fresh); err != nil {
		return fmt.Errorf("make an erasure key: %w", err)
	}
	key, err := e.db.UseErasureKey(ctx, processordb.UseErasureKeyParams{TenantID: e.tenant, Key: fresh})
	if err != nil {
		return fmt.Errorf("use the tenant's erasure key: %w", err)
	}
	e.at = key.ErasedAt
	had, err := e.db.TakeIdentifiers(ctx, processordb.TakeIdentifiersParams{TenantID: e.tenant, Contacts: e.contacts})
	if err != nil {
		return fmt.Errorf("delete identifiers: %w", err)
	}
	var hashes [][]byte
	var kinds, addresses []string
	for _, i := range had {
		hashes = append(hashes, identifier.Hash(key.Key, i.Kind, i.Value))
		if i.Kind == identifier.Email || i.Kind == identifier.Phone {
			kinds, addresses = append(kinds, i.Kind), append(addresses, i.Value)
		}
	}
	if err := e.db.WriteTombstones(ctx, processordb.WriteTombstonesParams{TenantID: e.tenant, ErasedAt: e.at, ErasureID: e.id, Hashes: hashes}); err != nil {
		return fmt.Errorf("write tombstones: %w", err)
	}
	return e.beside(ctx, kinds, addresses)
}

// beside does the small stores that hold a person's addresses, consents and
// relations.
func (e *erasing) beside(ctx context.Context, kinds, addresses []string) error {
	type step struct {
		what string
		do   func() (int64, error)
	}
	for _, s := range []step{
		{"erase contacts", func() (int64, error) {
			return e.db.EraseContacts(ctx, processordb.EraseContactsParams{ErasedAt: e.at, TenantID: e.tenant, Contacts: e.contacts})
		}},
		{"hide suppressions", func() (int64, error) {
			return e.db.HideSuppressions(ctx, processordb.HideSuppressionsParams{TenantID: e.tenant, Addresses: addresses})
		}},
		{"keep withdrawn consents", func() (int64, error) {
			return e.db.KeepWithdrawals(ctx, processordb.KeepWithdrawalsParams{TenantID: e.tenant, Contacts: e.contacts, Kinds: kinds, Addresses: addresses})
		}},
		{"drop lifted suppressions", func() (int64, error) {
			return e.db.DropLifts(ctx, processordb.DropLiftsParams{TenantID: e.tenant, Addresses: addresses})
		}},
		{"drop consents", func() (int64, error) {
			return e.db.DropConsents(ctx, processordb.DropConsentsParams{TenantID: e.tenant, Contacts: e.contacts})
		}},
		{"drop identity conflicts", func() (int64, error) {
			return e.db.DropIdentityConflicts(ctx, processordb.DropIdentityConflictsParams{TenantID: e.tenant, Contacts: e.contacts})
		}},
		{"hush merges", func() (int64, error) {
			return e.db.HushMerges(ctx, processordb.HushMergesParams{TenantID: e.tenant, Contacts: e.contacts})
		}},
		{"hide recipients of blasts", func() (int64, error) {
			return e.db.HideBlastAddresses(ctx, processordb.HideBlastAddressesParams{ContactID: e.root, TenantID: e.tenant, Addresses: addresses})
		}},
	} {
		if _, err := s.do(); err != nil {
			return fmt.Errorf("%s: %w", s.what, err)
		}
	}
	return nil
}

// register leaves the erasure for the Job.
func (e *erasing) register(ctx context.Context, cfg Config, cause, by string) error {
	row := processordb.InsertErasureParams{ErasureID: e.id, TenantID: e.tenant, Contacts: e.contacts, Cause: cause, RequestedBy: by, ErasedAt: e.at}
	if e.root != uuid.Nil {
		row.ContactID = &e.root
	}
	if err := e.db.InsertErasure(ctx, row); err != nil {
		return fmt.Errorf("register an erasure: %w", err)
	}
	stores, within := cfg.stores(cause)
	due := make([]time.Time, len(stores))
	for i, d := range within {
		due[i] = e.at.Add(d)
	}
	if err := e.db.InsertErasureStores(ctx, processordb.InsertErasureStoresParams{ErasureID: e.id, Stores: stores, Due: due}); err != nil {
		return fmt.Errorf("register the stores of an erasure: %w", err)
	}
	err := e.db.StepErasureStore(ctx, processordb.StepErasureStoreParams{ErasureID: e.id, Store: StoreContacts, More: int64(len(e.contacts)), DoneAt: &e.at})
	if err != nil {
		return fmt.Errorf("note what was erased: %w", err)
	}
	return nil
}
