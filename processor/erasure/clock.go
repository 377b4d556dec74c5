package erasure

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/softcrum/carril/internal/db/processordb"
	"github.com/softcrum/carril/internal/ids"
)

// ClockConfig of the clock for anonymous contacts; zero values take the defaults.
type ClockConfig struct {
	Every time.Duration // default 1 h
	Page  int           // contacts looked at, and erased, in one transaction; default 500
	Pages int           // of one tenant in one run; default 200. The next run goes on behind them
}

// Clock erases anonymous contacts of tenants that set anonymous_retention_days:
// those that were never known, were made before that time and had no event since.
// Their identifiers and traits go at once, their events are emptied by the Job and
// stay as counts (FS-CORE-0006 q1). It leaves no tombstone: a device that comes
// back is a new contact. Exports keep what they have until they end.
type Clock struct {
	cfg    ClockConfig
	rest   Config
	deps   Deps
	behind map[uuid.UUID]uuid.UUID // where each tenant's walk stands
}

// NewClock makes the clock; of an erasure's Config it uses the times.
func NewClock(cfg ClockConfig, erasures Config, deps Deps) *Clock {
	if cfg.Every == 0 {
		cfg.Every = time.Hour
	}
	if cfg.Page == 0 {
		cfg.Page = 500
	}
	if cfg.Pages == 0 {
		cfg.Pages = 200
	}
	return &Clock{cfg, erasures.withDefaults(), deps.withDefaults(), map[uuid.UUID]uuid.UUID{}}
}

// Run works until ctx ends.
func (c *Clock) Run(ctx context.Context) error {
	tick := time.NewTicker(c.cfg.Every)
	defer tick.Stop()
	for {
		n, err := c.RunOnce(ctx)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			c.deps.Log.Error("anonymous contacts were not looked through", "purged", n, "error", err)
		case n > 0:
			c.deps.Log.Info("anonymous contacts were purged", "purged", n)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// RunOnce looks through every such tenant's contacts; it gives how many it erased.
func (c *Clock) RunOnce(ctx context.Context) (purged int, err error) {
	tenants, err := processordb.New(c.deps.Pool).AnonymousClocks(ctx)
	if err != nil {
		return 0, fmt.Errorf("find tenants with a clock: %w", err)
	}
	for _, t := range tenants {
		before := c.deps.Now().AddDate(0, 0, -int(t.Days))
		for range c.cfg.Pages {
			n, more, err := c.page(ctx, t.TenantID, before)
			purged += n
			if m := c.deps.Metrics; m != nil {
				m.purged.Add(float64(n))
			}
			if err != nil {
				return purged, fmt.Errorf("purge anonymous contacts: %w", err)
			}
			if !more {
				break
			}
		}
	}
	return purged, nil
}

// page looks at the next contacts of a tenant.
func (c *Clock) page(ctx context.Context, tenant uuid.UUID, before time.Time) (purged int, more bool, err error) {
	db := processordb.New(c.deps.Pool)
	found, err := db.PageAnonymous(ctx, processordb.PageAnonymousParams{TenantID: tenant, Behind: c.behind[tenant], Before: before, MaxRows: int32(c.cfg.Page)})
	if err != nil {
		return 0, false, fmt.Errorf("find anonymous contacts: %w", err)
	}
	if more = len(found) == c.cfg.Page; more {
		c.behind[tenant] = found[len(found)-1]
	} else {
		delete(c.behind, tenant) // from the beginning, next time
	}
	idle, err := idle(ctx, db, tenant, before, found)
	if err != nil || len(idle) == 0 {
		return 0, more, err
	}
	purged, err = c.purge(ctx, tenant, idle)
	return purged, more, err
}

// idle gives those of the contacts, with whom was merged into them, that had no
// event since a time.
func idle(ctx context.Context, db *processordb.Queries, tenant uuid.UUID, before time.Time, found []uuid.UUID) ([]uuid.UUID, error) {
	if len(found) == 0 {
		return nil, nil
	}
	rows, err := db.Families(ctx, processordb.FamiliesParams{Contacts: found, TenantID: tenant})
	if err != nil {
		return nil, fmt.Errorf("read merges: %w", err)
	}
	root, all := map[uuid.UUID]uuid.UUID{}, make([]uuid.UUID, len(rows))
	for i, r := range rows {
		root[r.ContactID], all[i] = r.Root, r.ContactID
	}
	active, err := db.ActiveSince(ctx, processordb.ActiveSinceParams{Since: before, TenantID: tenant, Contacts: all})
	if err != nil {
		return nil, fmt.Errorf("look for events: %w", err)
	}
	lives := map[uuid.UUID]bool{}
	for _, a := range active {
		lives[root[a]] = true
	}
	return slices.DeleteFunc(all, func(id uuid.UUID) bool { return lives[root[id]] }), nil
}

// purge erases contacts in one transaction, but for those that became known while
// they were looked at.
func (c *Clock) purge(ctx context.Context, tenant uuid.UUID, contacts []uuid.UUID) (n int, err error) {
	err = pgx.BeginFunc(ctx, c.deps.Pool, func(tx pgx.Tx) error {
		e := &erasing{db: processordb.New(tx), tenant: tenant, id: ids.New(), at: c.deps.Now()}
		people, err := e.db.LockContacts(ctx, processordb.LockContactsParams{TenantID: tenant, Contacts: contacts})
		if err != nil {
			return fmt.Errorf("lock anonymous contacts: %w", err)
		}
		for _, p := range people {
			if !p.Known && p.ErasedAt == nil {
				e.contacts = append(e.contacts, p.ContactID)
			}
		}
		merged, err := e.db.ResolveMerges(ctx, processordb.ResolveMergesParams{Tenants: slices.Repeat([]uuid.UUID{tenant}, len(e.contacts)), Contacts: e.contacts})
		if err != nil {
			return fmt.Errorf("read merges: %w", err)
		}
		for _, m := range merged { // into somebody else, meanwhile
			if !slices.Contains(e.contacts, m.At) {
				e.contacts = slices.DeleteFunc(e.contacts, func(id uuid.UUID) bool { return id == m.Asked })
			}
		}
		if n = len(e.contacts); n == 0 {
			return nil
		}
		if _, err := e.db.TakeIdentifiers(ctx, processordb.TakeIdentifiersParams{TenantID: tenant, Contacts: e.contacts}); err != nil {
			return fmt.Errorf("delete identifiers: %w", err)
		}
		if err := e.beside(ctx, nil, nil); err != nil {
			return err
		}
		return e.register(ctx, c.rest, causeAnonymous, "clock")
	})
	return n, err
}
