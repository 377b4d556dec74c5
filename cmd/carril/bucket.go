package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/softcrum/carril/cmd/carril/app"
	"github.com/softcrum/carril/dispatcher/bucket"
)

type bucketCmd struct {
	List  bucketListCmd  `cmd:"" help:"List what is configured, every default in force, and how the providers' buckets stand."`
	Set   bucketSetCmd   `cmd:"" help:"Configure one bucket; it holds within a second, without a restart."`
	Reset bucketResetCmd `cmd:"" help:"Remove a bucket's configuration: its default is in force again."`
}

func (bucketCmd) Help() string {
	return `A request takes two tokens or none: one of its provider's bucket, which is what the
provider allows, and one of its tenant's on its rail, which is what is fair. A provider's
bucket is 90 % of its stated rate, one request at a time, unless configured; a tenant has
none of its own unless one is set for it or for every tenant. The most particular row
holds: a tenant's on one rail, a tenant's, every tenant's on one rail, every tenant's.

  carril bucket list
  carril bucket set --provider resend --rate 9 --capacity 2
  carril bucket set --provider resend --tenant acme --rail marketing --rate 1
  carril bucket reset --provider resend --tenant acme --rail marketing

No tenant's key reaches any of it (FS-MSG-0005).`
}

// bucketPlace names one bucket; every command about one begins so.
type bucketPlace struct {
	Provider    string `required:"" help:"Name of the provider."`
	Tenant      string `help:"Slug or id of the tenant; without it and --every-tenant, the provider's own bucket." xor:"whose"`
	EveryTenant bool   `help:"The bucket of each tenant that has no row of its own." xor:"whose"`
	Rail        string `help:"transactional or marketing, of a tenant's; each of both when empty." enum:",transactional,marketing" default:""`
}

// find checks what can be without the database, and looks the tenant up.
func (c bucketPlace) find(ctx context.Context, e *environment, pool *pgxpool.Pool) (at bucket.Place, err error) {
	at = bucket.Place{Scope: bucket.ScopeGlobal, Provider: c.Provider, Rail: c.Rail}
	if c.Tenant == "" && !c.EveryTenant {
		return at, nil
	}
	at.Scope = bucket.ScopeTenant
	if c.EveryTenant {
		return at, nil
	}
	id, err := app.FindTenant(ctx, pool, c.Tenant)
	at.Tenant = &id
	return at, err
}

func (c bucketPlace) check(e *environment) error {
	if c.Rail != "" && c.Tenant == "" && !c.EveryTenant {
		return fmt.Errorf("%w: rail: the provider's own bucket serves both rails; name a --tenant or --every-tenant", app.ErrConfig)
	}
	return knownProvider(e, c.Provider)
}

func knownProvider(e *environment, name string) error {
	if _, ok := e.set.Stated()[name]; !ok {
		return fmt.Errorf("%w: provider: there is no %q; there are %s", app.ErrConfig, name, strings.Join(providerNames(e), ", "))
	}
	return nil
}

func providerNames(e *environment) []string { return slices.Sorted(maps.Keys(e.set.Stated())) }

// change does something to one bucket and prints what it was and what it is.
func (c bucketPlace) change(e *environment, do func(ctx context.Context, pool *pgxpool.Pool, at bucket.Place, s bucket.Stated) (before, after bucket.Row, err error)) error {
	if err := c.check(e); err != nil {
		return err
	}
	return e.withDatabase(func(ctx context.Context, pool *pgxpool.Pool) error {
		at, err := c.find(ctx, e, pool)
		if err != nil {
			return err
		}
		before, after, err := do(ctx, pool, at, e.set.Stated()[c.Provider])
		var refused *bucket.RefusedError
		if errors.As(err, &refused) {
			return fmt.Errorf("%w: %w", app.ErrConfig, err)
		}
		if err != nil {
			return err
		}
		fmt.Fprintf(e.out, "%s: %s -> %s\n", c.named(), e.inWords(before), e.inWords(after))
		return nil
	})
}

func (c bucketPlace) named() string {
	out := c.Provider
	switch {
	case c.Tenant != "":
		out += ", tenant " + c.Tenant
	case c.EveryTenant:
		out += ", every tenant"
	}
	if c.Rail != "" {
		out += ", " + c.Rail
	}
	return out
}

// inWords says what a row grants.
func (e *environment) inWords(r bucket.Row) string {
	if r.Rate == 0 {
		return "no bucket"
	}
	out := fmt.Sprintf("%s/s, capacity %s", number(r.Rate), number(r.Capacity))
	if r.Scope == bucket.ScopeGlobal {
		for _, q := range []struct {
			name string
			n    *int
		}{{"day quota", r.DayQuota}, {"month quota", r.MonthQuota}} {
			if q.n != nil {
				out += fmt.Sprintf(", %s %s", q.name, quotaInWords(*q.n))
			}
		}
		if r.Reserve != nil {
			out += ", reserve " + number(*r.Reserve)
		}
	}
	if r.UpdatedAt.IsZero() {
		out += " (default)"
	}
	return out
}

func quotaInWords(n int) string {
	if n == 0 {
		return "none"
	}
	return fmt.Sprint(n)
}

func number(v float64) string { return fmt.Sprintf("%.6g", v) }

type bucketSetCmd struct {
	bucketPlace
	Rate       *float64 `help:"Tokens a second; as it is when left out."`
	Capacity   *float64 `help:"Tokens that may go at once, at least 1."`
	DayQuota   *int     `help:"Messages that the provider's account takes a UTC day; 0 is no limit."`
	MonthQuota *int     `help:"Messages that the provider's account takes a month; 0 is no limit."`
	Reserve    *float64 `help:"Share of these quotas that marketing leaves to transactional, from 0 to below 1."`
	Force      bool     `help:"Take a rate above the one that the provider is said to allow: the rest comes back as 429s, and blocks everybody."`
}

func (bucketSetCmd) Help() string {
	return `One row is made, or changed in what is given; it is printed as it was and as it is.
Quotas and the reserve are of the provider's account, and go with its own bucket alone.
Every running process hears of it at once. Counters stay as they are: they live in Redis.`
}

func (c bucketSetCmd) Run(e *environment) error {
	if c.Rate == nil && c.Capacity == nil && c.DayQuota == nil && c.MonthQuota == nil && c.Reserve == nil {
		return fmt.Errorf("%w: nothing to set: give --rate, --capacity, --day-quota, --month-quota or --reserve", app.ErrConfig)
	}
	return c.change(e, func(ctx context.Context, pool *pgxpool.Pool, at bucket.Place, s bucket.Stated) (before, after bucket.Row, err error) {
		return bucket.Set(ctx, pool, at, s, bucket.Change{Rate: c.Rate, Capacity: c.Capacity, DayQuota: c.DayQuota, MonthQuota: c.MonthQuota, Reserve: c.Reserve, Force: c.Force})
	})
}

type bucketResetCmd struct{ bucketPlace }

func (c bucketResetCmd) Run(e *environment) error { return c.change(e, bucket.Reset) }

type bucketListCmd struct {
	Provider string `help:"Of one provider."`
	Tenant   string `help:"What holds for one tenant: its own rows, every tenant's, the providers'."`
	JSON     bool   `name:"json" help:"Print one JSON object."`
}

func (bucketListCmd) Help() string {
	return `Rows marked (default) are not configured. A provider's bucket is shown with how it stands
in Redis: the share of its rate that is used (below 1 after a 429), until when the provider
has asked for silence, how many codes wait for it, and its quotas as used/limit with the
reserve that marketing leaves. What cannot be seen is named, and the rest listed all the same.`
}

// bucketLine is a bucket as it is listed.
type bucketLine struct {
	Scope      string      `json:"scope"` // global: the provider's own
	Provider   string      `json:"provider"`
	TenantID   *uuid.UUID  `json:"tenant_id,omitempty"` // absent of scope tenant: every tenant without a row of its own
	Tenant     string      `json:"tenant,omitempty"`
	Rail       string      `json:"rail,omitempty"` // absent: both
	Rate       float64     `json:"rate_per_second"`
	Capacity   float64     `json:"capacity"`
	IntervalMS float64     `json:"interval_ms"` // between two tokens
	Default    bool        `json:"default"`
	DayQuota   *int        `json:"day_quota,omitempty"` // of scope global; 0 is none
	MonthQuota *int        `json:"month_quota,omitempty"`
	Reserve    *float64    `json:"reserve,omitempty"`
	Live       *bucketLive `json:"live,omitempty"` // absent where Redis cannot be seen
}

type bucketLive struct {
	RateFactor   float64    `json:"rate_factor"`
	BlockedUntil *time.Time `json:"blocked_until,omitempty"`
	Waiters      int        `json:"waiters"`
	DayUsed      int        `json:"day_used"`
	MonthUsed    int        `json:"month_used"`
}

// buckets is the answer of bucket list.
type buckets struct {
	Buckets   []bucketLine `json:"buckets"`
	CannotSee []string     `json:"cannot_see,omitempty"`
}

func (c bucketListCmd) Run(e *environment) error {
	if c.Provider != "" {
		if err := knownProvider(e, c.Provider); err != nil {
			return err
		}
	}
	return e.withDatabase(func(ctx context.Context, pool *pgxpool.Pool) error {
		var tenant *uuid.UUID
		if c.Tenant != "" {
			id, err := app.FindTenant(ctx, pool, c.Tenant)
			if err != nil {
				return err
			}
			tenant = &id
		}
		rows, err := bucket.List(ctx, pool)
		if err != nil {
			return err
		}
		limiter, done, err := app.WatchBuckets(e.set, pool)
		if err != nil {
			return err
		}
		defer done()
		if err := limiter.Load(ctx); err != nil {
			return err
		}
		list := c.lines(e, rows, tenant)
		list.look(ctx, limiter)
		if c.JSON {
			return json.NewEncoder(e.out).Encode(list)
		}
		return e.printBuckets(list)
	})
}

// lines puts the rows beside the defaults that are in force.
func (c bucketListCmd) lines(e *environment, rows []bucket.Row, tenant *uuid.UUID) (out buckets) {
	own := map[string]bool{}
	for _, r := range rows {
		own[r.Provider] = own[r.Provider] || r.Scope == bucket.ScopeGlobal && r.Rail == ""
	}
	for _, name := range providerNames(e) {
		if !own[name] {
			rows = append(rows, bucket.Default(name, e.set.Stated()[name]))
		}
	}
	slices.SortStableFunc(rows, func(a, b bucket.Row) int {
		return strings.Compare(a.Scope+"\x00"+a.Provider, b.Scope+"\x00"+b.Provider)
	})
	out.Buckets = []bucketLine{}
	for _, r := range rows {
		if c.Provider != "" && r.Provider != c.Provider || tenant != nil && r.Tenant != nil && *r.Tenant != *tenant {
			continue
		}
		out.Buckets = append(out.Buckets, bucketLine{Scope: r.Scope, Provider: r.Provider, TenantID: r.Tenant, Tenant: r.Slug, Rail: r.Rail,
			Rate: r.Rate, Capacity: r.Capacity, IntervalMS: 1000 / r.Rate, Default: r.UpdatedAt.IsZero()})
	}
	return out
}

// look adds how the providers' buckets stand, as far as Redis says.
func (b *buckets) look(ctx context.Context, limiter *bucket.Limiter) {
	for i := range b.Buckets {
		l := &b.Buckets[i]
		if l.Scope != bucket.ScopeGlobal || l.Rail != "" {
			continue
		}
		q := limiter.Quotas(l.Provider)
		l.DayQuota, l.MonthQuota, l.Reserve = &q.Day, &q.Month, &q.Reserve
		if len(b.CannotSee) > 0 {
			continue // Redis is away: one wait for it is enough
		}
		levels, err := limiter.Levels(ctx, l.Provider)
		if err != nil {
			b.CannotSee = []string{"redis: rate factors, blocks, waiters and what is used of quotas (" + err.Error() + ")"}
			continue
		}
		l.Live = &bucketLive{RateFactor: levels.Current / levels.Rate, Waiters: len(levels.Waiters), DayUsed: levels.DayUsed, MonthUsed: levels.MonthUsed}
		if levels.Blocked > 0 {
			l.Live.BlockedUntil = new(time.Now().Add(levels.Blocked).UTC().Truncate(time.Second))
		}
	}
}

func (e *environment) printBuckets(list buckets) error {
	for _, what := range list.CannotSee {
		fmt.Fprintln(e.err, "cannot see", what)
	}
	w := tabwriter.NewWriter(e.out, 0, 4, 2, ' ', 0)
	fmt.Fprintln(w, "SCOPE\tPROVIDER\tTENANT\tRAIL\tRATE\tCAPACITY\tINTERVAL\tFACTOR\tBLOCKED UNTIL\tWAITERS\tDAY\tMONTH\tRESERVE\t")
	for _, l := range list.Buckets {
		tenant, rail, note := "", l.Rail, ""
		if l.Scope == bucket.ScopeTenant {
			tenant = "every"
			if l.TenantID != nil {
				tenant = strings.TrimSpace(l.Tenant + " " + l.TenantID.String())
			}
			if rail == "" {
				rail = "each"
			}
		}
		if l.Default {
			note = "(default)"
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s/s\t%s\t%s\t%s\t%s\n", l.Scope, l.Provider, tenant, rail, number(l.Rate), number(l.Capacity),
			time.Duration(l.IntervalMS*float64(time.Millisecond)).Round(100*time.Microsecond), strings.Join(l.state(), "\t"), note)
	}
	return w.Flush()
}

// state gives the columns from the factor to the reserve.
func (l bucketLine) state() []string {
	out := []string{"", "", "", "", "", ""}
	if l.DayQuota == nil {
		return out
	}
	used := []string{"?", "?"}
	if v := l.Live; v != nil {
		out[0], out[1], out[2] = fmt.Sprintf("%.2f", v.RateFactor), "-", fmt.Sprint(v.Waiters)
		if v.BlockedUntil != nil {
			out[1] = v.BlockedUntil.Format(time.RFC3339)
		}
		used = []string{fmt.Sprint(v.DayUsed), fmt.Sprint(v.MonthUsed)}
	} else {
		out[0], out[1], out[2] = "?", "?", "?"
	}
	for i, limit := range []int{*l.DayQuota, *l.MonthQuota} {
		out[3+i] = used[i] + "/" + quotaInWords(limit)
	}
	if *l.DayQuota > 0 || *l.MonthQuota > 0 {
		out[5] = number(*l.Reserve)
	}
	return out
}
