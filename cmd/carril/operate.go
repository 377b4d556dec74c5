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
