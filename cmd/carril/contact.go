package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/user"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/softcrum/carril/cmd/carril/app"
	"github.com/softcrum/carril/ingestor/manage"
	"github.com/softcrum/carril/processor/contacts"
	"github.com/softcrum/carril/processor/erasure"
	"github.com/softcrum/carril/processor/eventlog"
	"github.com/softcrum/carril/processor/identity"
)

type contactCmd struct {
	Show    contactShowCmd    `cmd:"" help:"Show a contact, as merges left it."`
	Merge   contactMergeCmd   `cmd:"" help:"Make one contact of two; the second survives."`
	Unmerge contactUnmergeCmd `cmd:"" help:"Undo the merge of a contact."`
	Erase   contactEraseCmd   `cmd:"" help:"Erase a person for good: there is no way back. Shows what is still open; repeat it to see how far it is."`
}

// whose names the tenant and how its contacts are named.
type whose struct {
	Tenant string `required:"" help:"Slug or id of the tenant."`
}

// contactName is what a contact is called on the command line.
const contactName = "The contact's id, or KIND=VALUE, e.g. email=ana@example.com."

// desk opens what the commands work with.
func (w whose) desk(ctx context.Context, e *environment, lanes bool) (d contacts.Desk, tenant uuid.UUID, err error) {
	if d.Pool, err = e.database(ctx); err != nil {
		return d, tenant, err
	}
	defer func() {
		if err != nil {
			d.Pool.Close()
		}
	}()
	if tenant, err = app.FindTenant(ctx, d.Pool, w.Tenant); err != nil || !lanes {
		return d, tenant, err
	}
	codec, err := e.set.NewCodec()
	if err != nil {
		return d, tenant, err
	}
	d.Lanes, err = eventlog.OpenContactLanes(ctx, d.Pool, codec, nil)
	return d, tenant, err
}

// find gives the contact of a name.
func find(ctx context.Context, d contacts.Desk, tenant uuid.UUID, name string) (uuid.UUID, error) {
	if kind, value, ok := strings.Cut(name, "="); ok {
		return d.Find(ctx, tenant, kind, value)
	}
	id, err := uuid.Parse(name)
	if err != nil {
		return id, fmt.Errorf("%w: %q is neither a contact's id nor KIND=VALUE", app.ErrConfig, name)
	}
	return id, nil
}

type contactShowCmd struct {
	Whose   whose  `embed:""`
	Contact string `arg:"" help:"${contact_name}"`
}

func (c contactShowCmd) Run(e *environment) error {
	ctx, stop := signals()
	defer stop()
	d, tenant, err := c.Whose.desk(ctx, e, false)
	if err != nil {
		return err
	}
	defer d.Pool.Close()
	id, err := find(ctx, d, tenant, c.Contact)
	if err != nil {
		return err
	}
	shown, err := manage.FindContact(ctx, d.Pool, tenant, id)
	if errors.Is(err, manage.ErrNotFound) {
		return fmt.Errorf("the tenant has no contact %s", id)
	}
	if err != nil {
		return err
	}
	return printJSON(e, shown)
}

func printJSON(e *environment, v any) error {
	enc := json.NewEncoder(e.out)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	return enc.Encode(v)
}

// acting says who does something by hand, and why.
type acting struct {
	By     line `help:"Who does it; the user of this machine when empty."`
	Reason why  `required:"" help:"Why; it is kept with the merge. No personal data."`
}

func (a acting) name() string {
	if a.By != "" {
		return string(a.By)
	}
	if u, err := user.Current(); err == nil {
		return u.Username
	}
	return os.Getenv("USER")
}

type contactMergeCmd struct {
	Whose  whose  `embed:""`
	Acting acting `embed:""`
	From   string `arg:"" help:"${contact_name} It becomes the other."`
	Into   string `arg:"" help:"${contact_name} It survives."`
	Force  bool   `help:"Merge although both have an external_id: one person to whom the tenant gave two."`
}

func (c contactMergeCmd) Run(e *environment) error {
	ctx, stop := signals()
	defer stop()
	d, tenant, err := c.Whose.desk(ctx, e, true)
	if err != nil {
		return err
	}
	defer d.Pool.Close()
	h := identity.ByHand{TenantID: tenant, By: c.Acting.name(), Why: string(c.Acting.Reason), Force: c.Force}
	if h.From, err = find(ctx, d, tenant, c.From); err != nil {
		return err
	}
	if h.Into, err = find(ctx, d, tenant, c.Into); err != nil {
		return err
	}
	if err := d.Merge(ctx, h); err != nil {
		return err
	}
	// It may have become another before: that one survives.
	into, err := manage.FindContact(ctx, d.Pool, tenant, h.Into)
	if err != nil {
		return err
	}
	fmt.Fprintf(e.err, "%s is %s from now on; `carril contact unmerge` undoes it\n", h.From, survivor(into))
	return nil
}

// survivor names who a contact is, by its id and by whose it has become.
func survivor(c *manage.Contact) string {
	if c.MergedInto == nil {
		return c.ContactID.String()
	}
	return fmt.Sprintf("%s (%s was merged into it before)", c.MergedInto, c.ContactID)
}

type contactUnmergeCmd struct {
	Whose   whose     `embed:""`
	Acting  acting    `embed:""`
	Contact uuid.UUID `arg:"" help:"The id of the contact that was merged into another."`
}

func (c contactUnmergeCmd) Run(e *environment) error {
	ctx, stop := signals()
	defer stop()
	d, tenant, err := c.Whose.desk(ctx, e, true)
	if err != nil {
		return err
	}
	defer d.Pool.Close()
	if err := d.Unmerge(ctx, identity.ByHand{TenantID: tenant, From: c.Contact, By: c.Acting.name(), Why: string(c.Acting.Reason)}); err != nil {
		return err
	}
	fmt.Fprintf(e.err, "%s stands for itself again; what came while it was merged stays with the survivor\n", c.Contact)
	return nil
}

type contactEraseCmd struct {
	Whose   whose  `embed:""`
	Contact string `arg:"" help:"${contact_name} With it go whom it became and all who were merged into it."`
	By      line   `help:"Who asked for it; the user of this machine when empty."`
}

func (c contactEraseCmd) Run(e *environment) error {
	ctx, stop := signals()
	defer stop()
	d, tenant, err := c.Whose.desk(ctx, e, true)
	if err != nil {
		return err
	}
	defer d.Pool.Close()
	contact, err := find(ctx, d, tenant, c.Contact)
	if err != nil {
		return err
	}
	id, err := erasure.NewDesk(erasure.Config{}, erasure.Deps{Pool: d.Pool, Lanes: d.Lanes}).Request(ctx, tenant, contact, acting{By: c.By}.name())
	if errors.Is(err, erasure.ErrNotFound) {
		return fmt.Errorf("the tenant has no contact %s", contact)
	}
	if err != nil {
		return err
	}
	state, err := manage.FindErasure(ctx, d.Pool, tenant, id)
	if err != nil {
		return err
	}
	for _, s := range state.Stores {
		if s.DoneAt == nil {
			fmt.Fprintf(e.err, "open: %s, through by %s\n", s.Store, s.DueAt.Format(time.RFC3339))
		}
	}
	return printJSON(e, state)
}

type tenantSetCmd struct {
	Tenant    string `arg:"" help:"Slug or id of the tenant."`
	Anonymous *int   `name:"anonymous-retention-days" help:"Erase anonymous contacts that had no event for so many days; 0: never by this clock, the plan's retention alone."`
}

func (c tenantSetCmd) Run(e *environment) error {
	if c.Anonymous == nil || *c.Anonymous < 0 {
		return fmt.Errorf("%w: say --anonymous-retention-days N, not negative", app.ErrConfig)
	}
	ctx, stop := signals()
	defer stop()
	pool, err := e.database(ctx)
	if err != nil {
		return err
	}
	defer pool.Close()
	return setAnonymous(ctx, pool, c.Tenant, *c.Anonymous)
}

func setAnonymous(ctx context.Context, pool *pgxpool.Pool, name string, days int) error {
	tenant, err := app.FindTenant(ctx, pool, name)
	if err != nil {
		return err
	}
	if _, err := pool.Exec(ctx, `UPDATE core.tenants SET anonymous_retention_days = nullif($2, 0) WHERE tenant_id = $1`, tenant, days); err != nil {
		return fmt.Errorf("set a tenant's clock: %w", err)
	}
	return nil
}
