package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/softcrum/carril/cmd/carril/app"
	"github.com/softcrum/carril/ingestor/apikey"
	"github.com/softcrum/carril/ingestor/manage"
	"github.com/softcrum/carril/internal/kafka"
	"github.com/softcrum/carril/internal/pg"
	"github.com/softcrum/carril/migrations"
)

// beside fills the stores' addresses from a `carril dev` that runs on this
// machine, where none were given.
func (e *environment) beside() {
	if e.set.PostgresURL != "" {
		return
	}
	env, err := app.ReadEnv(filepath.Join(defaultData, "env"))
	if err != nil {
		return
	}
	e.set.PostgresURL, e.set.RegistryURL, e.set.RedisURL = env["CARRIL_POSTGRES_URL"], env["CARRIL_REGISTRY_URL"], env["CARRIL_REDIS_URL"]
	e.set.KafkaBrokers = strings.Split(env["CARRIL_KAFKA_BROKERS"], ",")
	if e.set.StorageURL == "" {
		e.set.StorageURL = env["CARRIL_STORAGE_URL"]
	}
	e.fromDev = true
}

// database opens a small pool for a command, and sees that it answers.
func (e *environment) database(ctx context.Context) (*pgxpool.Pool, error) {
	return e.databaseOf(ctx, 2)
}

// databaseOf is database with so many connections.
func (e *environment) databaseOf(ctx context.Context, conns int32) (*pgxpool.Pool, error) {
	e.beside()
	if e.set.PostgresURL == "" {
		return nil, fmt.Errorf("%w: CARRIL_POSTGRES_URL is not set, and no `carril dev` has run in this folder", app.ErrConfig)
	}
	pool, err := pg.Open(ctx, pg.Config{URL: e.set.PostgresURL, MaxConns: conns})
	if err != nil {
		return nil, fmt.Errorf("%w: %w", app.ErrConfig, err)
	}
	pctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	if err := pool.Ping(pctx); err != nil {
		pool.Close()
		if e.fromDev {
			return nil, fmt.Errorf("the database of `carril dev` does not answer: start it again with `make run`")
		}
		return nil, fmt.Errorf("PostgreSQL does not answer: %w", err)
	}
	return pool, nil
}

type migrateCmd struct {
	All    migrateAllCmd    `cmd:"" default:"1" help:"Migrate the database, then the topics."`
	DB     migrateDBCmd     `cmd:"" name:"db" help:"Migrate the database and make its partitions."`
	Topics migrateTopicsCmd `cmd:"" help:"Create the topics and register their schemas."`
}

type migrateAllCmd struct{}
type migrateDBCmd struct{}

type migrateTopicsCmd struct {
	Print    bool `help:"Print the topics as they would be created; change nothing."`
	Verify   bool `help:"Check the topics; change nothing. Exit 1 when one is not as it must be."`
	Embedded bool `help:"Use the small partition counts of the embedded broker."`
}

func (migrateAllCmd) Run(e *environment) error {
	if err := (migrateDBCmd{}).Run(e); err != nil {
		return err
	}
	return migrateTopicsCmd{}.Run(e)
}

func (migrateDBCmd) Run(e *environment) error {
	ctx, stop := signals()
	defer stop()
	url := e.set.PostgresDirectURL
	if url == "" {
		url = e.set.PostgresURL
	}
	if url == "" {
		return fmt.Errorf("%w: CARRIL_POSTGRES_URL is not set", app.ErrConfig)
	}
	if err := migrations.Up(ctx, url); err != nil {
		return err
	}
	fmt.Fprintln(e.err, "database is at this version")
	return nil
}

func (c migrateTopicsCmd) Run(e *environment) error {
	ctx, stop := signals()
	defer stop()
	kc, err := e.set.KafkaConfig()
	if err != nil {
		return err
	}
	specs := kc.Specs(e.set.Channels, c.Embedded)
	if c.Print {
		return e.printTopics(specs)
	}
	cl, err := kc.NewProducer()
	if err != nil {
		return fmt.Errorf("%w: %w", app.ErrConfig, err)
	}
	defer cl.Close()
	adm := kadm.NewClient(cl)
	if c.Verify {
		return kafka.VerifyTopics(ctx, adm, specs)
	}
	if err := app.MigrateTopics(ctx, e.set, adm, specs); err != nil {
		return err
	}
	fmt.Fprintf(e.err, "%d topics are there, their schemas registered\n", len(specs))
	return nil
}

func (e *environment) printTopics(specs []kafka.Spec) error {
	w := tabwriter.NewWriter(e.out, 0, 4, 2, ' ', 0)
	fmt.Fprintln(w, "TOPIC\tPARTITIONS\tREPLICAS\tSETTINGS")
	for _, s := range specs {
		var settings []string
		for _, k := range []string{"cleanup.policy", "retention.ms", "min.insync.replicas", "message.timestamp.type", "unclean.leader.election.enable"} {
			if v, ok := s.Configs[k]; ok {
				settings = append(settings, k+"="+v)
			}
		}
		fmt.Fprintf(w, "%s\t%d\t%d\t%s\n", s.Name, s.Partitions, s.Replicas, strings.Join(settings, " "))
	}
	return w.Flush()
}

type tenantCmd struct {
	Create tenantCreateCmd `cmd:"" help:"Make a tenant."`
	List   tenantListCmd   `cmd:"" help:"List tenants."`
	Set    tenantSetCmd    `cmd:"" help:"Change a tenant's settings."`
}

type tenantCreateCmd struct {
	Slug string `arg:"" help:"Short name: lower-case letters, digits and -."`
	Name line   `help:"Name for people; the slug when empty."`
	Plan string `default:"starter" help:"starter, growth or scale."`
	Cell why    `default:"cell-1" help:"The shard that the tenant lives in."`
}

func (c tenantCreateCmd) Run(e *environment) error {
	ctx, stop := signals()
	defer stop()
	pool, err := e.database(ctx)
	if err != nil {
		return err
	}
	defer pool.Close()
	if c.Name == "" {
		c.Name = line(c.Slug)
	}
	id, err := app.CreateTenant(ctx, pool, c.Slug, string(c.Name), c.Plan, string(c.Cell))
	if err != nil {
		return err
	}
	fmt.Fprintln(e.out, id)
	return nil
}

type tenantListCmd struct{}

func (tenantListCmd) Run(e *environment) error {
	ctx, stop := signals()
	defer stop()
	pool, err := e.database(ctx)
	if err != nil {
		return err
	}
	defer pool.Close()
	rows, err := pool.Query(ctx, `SELECT tenant_id::text, slug, plan_id, cell_id, created_at FROM core.tenants ORDER BY slug`)
	if err != nil {
		return fmt.Errorf("list tenants: %w", err)
	}
	w := tabwriter.NewWriter(e.out, 0, 4, 2, ' ', 0)
	fmt.Fprintln(w, "TENANT\tSLUG\tPLAN\tCELL\tCREATED")
	var id, slug, plan, cell string
	var at time.Time
	_, err = pgx.ForEachRow(rows, []any{&id, &slug, &plan, &cell, &at}, func() error {
		_, err := fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", id, slug, plan, cell, at.UTC().Format(time.RFC3339))
		return err
	})
	return errors.Join(err, w.Flush())
}

type keyCmd struct {
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
	ctx, stop := signals()
	defer stop()
	pool, err := e.database(ctx)
	if err != nil {
		return err
	}
	defer pool.Close()
	n := apikey.New{Env: c.Env, Scopes: c.Scopes, Name: string(c.Name), Rate: apikey.Rate{PerSecond: c.Rate, Burst: c.Burst}}
	if c.Tenant != "-" {
		if n.TenantID, err = app.FindTenant(ctx, pool, c.Tenant); err != nil {
			return err
		}
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
}

type keyRotateCmd struct {
	Key     string        `arg:"" help:"The key's id, or the key itself."`
	Overlap time.Duration `default:"24h" help:"How long the old key still works; 0 ends it at once."`
}

func (c keyRotateCmd) Run(e *environment) error {
	if c.Overlap < 0 {
		return fmt.Errorf("%w: --overlap must not be negative", app.ErrConfig)
	}
	ctx, stop := signals()
	defer stop()
	pool, err := e.database(ctx)
	if err != nil {
		return err
	}
	defer pool.Close()
	old := keyID(c.Key)
	text, k, err := apikey.NewPostgres(pool).Rotate(ctx, old, c.Overlap)
	if err != nil {
		return err
	}
	fmt.Fprintf(e.err, "key %s made; it is shown once and cannot be read again; %s works until %s\n", k.ID, old,
		time.Now().Add(c.Overlap).UTC().Format(time.RFC3339))
	fmt.Fprintln(e.out, text)
	return nil
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
	ctx, stop := signals()
	defer stop()
	pool, err := e.database(ctx)
	if err != nil {
		return err
	}
	defer pool.Close()
	id := keyID(c.Key)
	if err := apikey.NewPostgres(pool).Revoke(ctx, id); err != nil {
		return err
	}
	fmt.Fprintf(e.err, "key %s is revoked\n", id)
	return nil
}

type traceCmd struct {
	Event uuid.UUID `arg:"" help:"The event_id of a 202."`
	JSON  bool      `name:"json" help:"Print one JSON object."`
}

func (c traceCmd) Run(e *environment) error {
	ctx, stop := signals()
	defer stop()
	pool, err := e.database(ctx)
	if err != nil {
		return err
	}
	defer pool.Close()
	t, err := manage.TraceEvent(ctx, pool, uuid.Nil, c.Event)
	if errors.Is(err, manage.ErrNotFound) {
		return fmt.Errorf("no event %s: it was never accepted, or is not appended yet", c.Event)
	}
	if err != nil {
		return err
	}
	if c.JSON {
		return json.NewEncoder(e.out).Encode(t)
	}
	app.PrintTrace(e.out, t)
	return nil
}
