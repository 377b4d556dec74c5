package main

import (
	"context"
	"fmt"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/softcrum/carril/cmd/carril/app"
	"github.com/softcrum/carril/ingestor/apikey"
)

type keyCmd struct {
	List   keyListCmd   `cmd:"" help:"List keys by their ids, which rotate and revoke take; no key can be read again."`
	Create keyCreateCmd `cmd:"" help:"Make a key; it is printed once."`
	Rotate keyRotateCmd `cmd:"" help:"Make a key like another, which goes on for a while; the new one is printed once."`
	Revoke keyRevokeCmd `cmd:"" help:"End a key for good, on every replica within 2 s."`
}

type keyCreateCmd struct {
	Tenant  string        `required:"" help:"Slug or id of the tenant; - for an operator's key."`
	Scopes  []string      `default:"core.events.write" help:"What the key may do, separated by commas."`
	Name    line          `help:"Name for people."`
	Env     string        `enum:"live,test,dev" default:"live" help:"Stands in the key: live, test, dev."`
	Expires time.Duration `help:"Life of the key, e.g. 2160h; for ever when 0."`
	Rate    int           `help:"Events a second that the key may send, within its tenant's plan; the plan alone when 0."`
	Burst   int           `help:"Events that it may send at once; two seconds of --rate when 0."`
}

func (c keyCreateCmd) Run(e *environment) error {
	if c.Rate < 0 || c.Burst < 0 || c.Rate == 0 && c.Burst > 0 {
		return fmt.Errorf("%w: --rate must be positive, and --burst goes with it", app.ErrConfig)
	}
	if c.Expires < 0 {
		return fmt.Errorf("%w: --expires must not be negative; 0 is for ever", app.ErrConfig)
	}
	if err := app.CheckScopes(c.Scopes); err != nil {
		return err
	}
	return e.withDatabase(func(ctx context.Context, pool *pgxpool.Pool) error {
		n := apikey.New{Env: c.Env, Scopes: c.Scopes, Name: string(c.Name), Rate: apikey.Rate{PerSecond: c.Rate, Burst: c.Burst}}
		var err error
		if n.TenantID, err = keyOwner(ctx, pool, c.Tenant); err != nil {
			return err
		}
		if c.Expires > 0 {
			n.ExpiresAt = time.Now().Add(c.Expires)
		}
		text, k, err := apikey.NewPostgres(pool).Create(ctx, n)
		if err != nil {
			return err
		}
		fmt.Fprintf(e.err, "key %s made; it is shown once and cannot be read again\n", k.ID)
		fmt.Fprintln(e.out, text)
		return nil
	})
}

// keyOwner is the tenant that is named; uuid.Nil for -, which is operators.
func keyOwner(ctx context.Context, pool *pgxpool.Pool, name string) (uuid.UUID, error) {
	if name == "-" {
		return uuid.Nil, nil
	}
	return app.FindTenant(ctx, pool, name)
}

type keyRotateCmd struct {
	Key     string        `arg:"" help:"The key's id, or the key itself."`
	Overlap time.Duration `default:"24h" help:"How long the old key still works; 0 ends it at once."`
}

func (c keyRotateCmd) Run(e *environment) error {
	if c.Overlap < 0 {
		return fmt.Errorf("%w: --overlap must not be negative", app.ErrConfig)
	}
	return e.withDatabase(func(ctx context.Context, pool *pgxpool.Pool) error {
		old := keyID(c.Key)
		text, k, err := apikey.NewPostgres(pool).Rotate(ctx, old, c.Overlap)
		if err != nil {
			return err
		}
		fmt.Fprintf(e.err, "key %s made; it is shown once and cannot be read again; %s works until %s\n", k.ID, old,
			time.Now().Add(c.Overlap).UTC().Format(time.RFC3339))
		fmt.Fprintln(e.out, text)
		return nil
	})
}

// keyID is the id of a key that is named by it or by the whole of it.
func keyID(name string) string {
	if k, ok := apikey.Parse(name); ok {
		return k.ID
	}
	return name
}

type keyRevokeCmd struct {
	Key string `arg:"" help:"The key's id, or the key itself."`
}

func (c keyRevokeCmd) Run(e *environment) error {
	return e.withDatabase(func(ctx context.Context, pool *pgxpool.Pool) error {
		id := keyID(c.Key)
		if err := apikey.NewPostgres(pool).Revoke(ctx, id); err != nil {
			return err
		}
		fmt.Fprintf(e.err, "key %s is revoked\n", id)
		return nil
	})
}

type keyListCmd struct {
	Tenant string `required:"" help:"Slug or id of the tenant; - for operators' keys."`
	Ended  bool   `help:"Those that are revoked or expired, too."`
	JSON   bool   `name:"json" help:"Print one JSON object."`
}

func (c keyListCmd) Run(e *environment) error {
	return e.withDatabase(func(ctx context.Context, pool *pgxpool.Pool) error {
		tenant, err := keyOwner(ctx, pool, c.Tenant)
		if err != nil {
			return err
		}
		keys, err := apikey.NewPostgres(pool).List(ctx, tenant, c.Ended)
		if err != nil {
			return err
		}
		if c.JSON {
			return printJSON(e, map[string]any{"keys": keys})
		}
		w := tabwriter.NewWriter(e.out, 0, 4, 2, ' ', 0)
		fmt.Fprintln(w, "KEY\tENV\tSTATE\tENDS\tLAST USED\tCREATED\tSCOPES\tNAME")
		for _, k := range keys {
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", k.ID, k.Env, k.State(time.Now()), stamp(k.Ends()), stamp(k.LastUsedAt), stamp(&k.CreatedAt),
				strings.Join(k.Scopes, ","), k.Name)
		}
		return w.Flush()
	})
}

// stamp is a time for people; - for none.
func stamp(t *time.Time) string {
	if t == nil {
		return "-"
	}
	return t.UTC().Format(time.RFC3339)
}
