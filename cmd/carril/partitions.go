package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/softcrum/carril/cmd/carril/app"
	"github.com/softcrum/carril/internal/lease"
	"github.com/softcrum/carril/processor/partition"
	"github.com/softcrum/carril/processor/retention"
)

type partitionsCmd struct {
	List   partitionsListCmd   `cmd:"" help:"List partitions with their bounds, classes, rows and sizes."`
	Ensure partitionsEnsureCmd `cmd:"" help:"Make what is missing around now, or for one instant."`
	Repair partitionsRepairCmd `cmd:"" help:"Move rows out of DEFAULT partitions, which must be empty."`
}

type partitionsListCmd struct {
	Table string `arg:"" optional:"" help:"One table, e.g. core.tracked_events; all when empty."`
	JSON  bool   `name:"json" help:"Print one JSON array."`
}

func (partitionsListCmd) Help() string {
	return `Events, sends and histories are partitioned by month, each month by retention class: one leaf holds what plans keep for so many months. ` +
		`Tables of work are partitioned by day. Bounds are UTC and read from the database's catalog. ` +
		`Rows are what the statistics estimate, exact for DEFAULT; sizes include indexes.

A row in DEFAULT had no partition to go to: it is an incident, which maintenance repairs by itself (see repair). ` +
		`"detached" is a leaf on its way to storage: see carril retention status.`
}

func (c partitionsListCmd) Run(e *environment) error {
	return e.withDatabase(func(ctx context.Context, pool *pgxpool.Pool) error {
		ps, err := partition.List(ctx, pool, c.Table)
		if err != nil {
			return err
		}
		if len(ps) == 0 {
			return fmt.Errorf("%s is no time-partitioned table", c.Table)
		}
		if c.JSON {
			return json.NewEncoder(e.out).Encode(ps)
		}
		return e.printPartitions(ps)
	})
}

func (e *environment) printPartitions(ps []partition.Partition) error {
	w := tabwriter.NewWriter(e.out, 0, 4, 2, ' ', 0)
	fmt.Fprintln(w, "PARTITION\tFROM\tTO\tMONTHS\tROWS\tSIZE\t")
	for _, p := range ps {
		from, to, class, note := "", "", "", ""
		if p.From != nil && p.To != nil {
			from, to = p.From.UTC().Format(time.DateOnly), p.To.UTC().Format(time.DateOnly)
		}
		if p.RetentionMonths != nil {
			class = fmt.Sprint(*p.RetentionMonths)
		}
		switch {
		case p.Default && p.Rows > 0:
			note = "DEFAULT, must be empty: carril partitions repair"
		case p.Default:
			note = "DEFAULT"
		case p.Detached:
			note = "detached"
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%d\t%s\t%s\n", p.Name, from, to, class, p.Rows, size(p.Bytes), note)
	}
	return w.Flush()
}

func size(bytes int64) string {
	for _, u := range []struct {
		name string
		of   int64
	}{{"GB", 1 << 30}, {"MB", 1 << 20}, {"kB", 1 << 10}} {
		if bytes >= u.of {
			return fmt.Sprintf("%.1f %s", float64(bytes)/float64(u.of), u.name)
		}
	}
	return fmt.Sprintf("%d B", bytes)
}

type partitionsEnsureCmd struct {
	Table string `help:"With --at: the table, e.g. core.tracked_events."`
	At    string `help:"Make the partition of --table for this instant alone, as 2027-03-01 or 2027-03-01T00:00:00Z."`
	Class int16  `help:"With --at: also a leaf of this retention class, in months."`
}

func (partitionsEnsureCmd) Help() string {
	return `Makes what every table should have around now: months three ahead and one behind, days as the table says, each month with a leaf for every retention class. ` +
		`carril maintain does the same every ten minutes, and a writer makes what it lacks by itself; this is for a database that nobody maintains. ` +
		`Readers and writers go on meanwhile. Nothing is ever dropped.`
}

func (c partitionsEnsureCmd) Run(e *environment) error {
	if (c.At == "") != (c.Table == "") || c.Class < 0 || c.Class > 0 && c.At == "" {
		return fmt.Errorf("%w: --table and --at go together, --class with both", app.ErrConfig)
	}
	var at time.Time
	if c.At != "" {
		var err error
		if at, err = parseWhen("--at", c.At); err != nil {
			return err
		}
	}
	return e.withDatabase(func(ctx context.Context, pool *pgxpool.Pool) error {
		if c.Table != "" {
			made, err := partition.Make(ctx, pool, c.Table, at, c.Class)
			if errors.Is(err, partition.ErrNoTable) {
				return fmt.Errorf("%s is no time-partitioned table", c.Table)
			}
			if err != nil {
				return err
			}
			fmt.Fprintln(e.err, map[bool]string{true: "made", false: "was there already"}[made])
			return nil
		}
		made, err := partition.EnsureAhead(ctx, pool, time.Now())
		if err != nil {
			return err
		}
		fmt.Fprintf(e.err, "%d partitions made\n", made)
		return nil
	})
}

type partitionsRepairCmd struct{}

func (partitionsRepairCmd) Help() string {
	return `Where a month is missing, rows go to DEFAULT rather than be refused, and the month cannot be made while they lie there. ` +
		`Repair makes the month apart, moves its rows into it and attaches it, in one transaction a month; append-only tables stay so for everybody else. ` +
		`carril maintain does this at once when a row goes astray. Exit 1 when rows are left.`
}

func (partitionsRepairCmd) Run(e *environment) error {
	return e.withDatabase(func(ctx context.Context, pool *pgxpool.Pool) error {
		strays, err := partition.Strays(ctx, pool)
		if err != nil {
			return err
		}
		for _, s := range strays {
			fmt.Fprintf(e.out, "%s: %d rows of %s\n", s.Table, s.Rows, s.From.UTC().Format(time.DateOnly))
		}
		if len(strays) == 0 {
			fmt.Fprintln(e.err, "all DEFAULT partitions are empty")
			return nil
		}
		moved, left, err := partition.Repair(ctx, pool, strays)
		fmt.Fprintf(e.err, "%d rows moved\n", moved)
		if err == nil && len(left) > 0 {
			err = errors.New("rows are left in DEFAULT: try again")
		}
		return err
	})
}

type retentionCmd struct {
	Status retentionStatusCmd `cmd:"" help:"Show what is due, what is on its way and what went lately."`
	Run    retentionRunCmd    `cmd:"" help:"Run it now; --dry-run shows what it would take."`
}

type retentionStatusCmd struct {
	Recent int  `default:"10" help:"How many of what went lately."`
	JSON   bool `name:"json" help:"Print one JSON object."`
}

func (retentionStatusCmd) Help() string {
	return `A leaf is due when all of its month is older than its class. It is detached, exported to storage, read back, and dropped only when it still equals what was read back; monthly counts stay. ` +
		`A leaf waits while a relay has not published its events, while the sends of its history stand, and where no storage is set (CARRIL_STORAGE_URL).`
}

func (c retentionStatusCmd) Run(e *environment) error {
	return e.withDatabase(func(ctx context.Context, pool *pgxpool.Pool) error {
		job, done, err := e.retention(pool)
		if err != nil {
			return err
		}
		defer done()
		s, err := job.Status(ctx, c.Recent)
		if err != nil {
			return err
		}
		if c.JSON {
			return json.NewEncoder(e.out).Encode(s)
		}
		return e.printRetention(s)
	})
}

func (e *environment) retention(pool *pgxpool.Pool) (job *retention.Job, done func(), err error) {
	exporter, done, err := app.LeafExporter(e.set, pool, e.log)
	if err != nil {
		return nil, nil, err
	}
	return retention.NewJob(retention.Config{}, retention.Deps{Pool: pool, Exporter: exporter, Log: e.log}), done, nil
}

func (e *environment) printRetention(s *retention.Status) error {
	if !s.Storage {
		fmt.Fprintln(e.err, retention.ErrNoStorage)
	}
	w := tabwriter.NewWriter(e.out, 0, 4, 2, ' ', 0)
	fmt.Fprintln(w, "TABLE\tFROM\tTO\tMONTHS\tSTATE\tROWS\t")
	for _, d := range s.Due {
		fmt.Fprintf(w, "%s\t%s\t%s\t%d\t%s\t\t%s\n", d.Table, d.From.Format(time.DateOnly), d.To.Format(time.DateOnly), d.RetentionMonths, "due", d.Waits)
	}
	for _, l := range append(s.Open, s.Gone...) {
		rows, note := "", []string{}
		if l.Rows != nil {
			rows = fmt.Sprint(*l.Rows)
		}
		for _, n := range []string{l.Manifest, l.Trouble} {
			if n != "" {
				note = append(note, n)
			}
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%d\t%s\t%s\t%s\n", l.Table, l.From.Format(time.DateOnly), l.To.Format(time.DateOnly), l.RetentionMonths, l.State, rows, strings.Join(note, "; "))
	}
	return w.Flush()
}

type retentionRunCmd struct {
	DryRun bool `help:"Show what is due and change nothing."`
}

func (retentionRunCmd) Help() string {
	return `Does what carril maintain does every hour, under the same lease: it refuses while another process is at it. ` +
		`It may be stopped at any moment: the next run goes on where the ledger says that it stood. Exit 1 when a step failed.`
}

func (c retentionRunCmd) Run(e *environment) error {
	if c.DryRun {
		return retentionStatusCmd{}.Run(e)
	}
	return e.withDatabase(func(ctx context.Context, pool *pgxpool.Pool) error {
		job, done, err := e.retention(pool)
		if err != nil {
			return err
		}
		defer done()
		l, err := lease.Take(ctx, pool, lease.Config{Name: retention.Lease, Holder: "carril retention run"})
		if errors.Is(err, lease.ErrHeld) {
			return errors.New("another process is at it: see carril retention status")
		}
		if err != nil {
			return err
		}
		return e.runRetention(ctx, pool, job, l)
	})
}

// runRetention runs once while the lease is kept.
func (e *environment) runRetention(ctx context.Context, pool *pgxpool.Pool, job *retention.Job, l *lease.Lease) error {
	wctx, cancel := context.WithCancel(ctx)
	kept := make(chan error, 1)
	go func() {
		kept <- l.Keep(wctx, pool)
		cancel()
	}()
	res, err := job.RunOnce(wctx)
	cancel()
	err = errors.Join(err, <-kept, l.Release(context.WithoutCancel(ctx), pool))
	for _, t := range res.Dropped {
		fmt.Fprintf(e.out, "%s\tdropped\n", t)
	}
	for _, h := range res.Held {
		fmt.Fprintf(e.out, "%s\twaits: %s\n", h.Table, h.Reason)
	}
	fmt.Fprintf(e.err, "%d leaves dropped, %d due, %d detached, %d rows moved to a longer class\n", len(res.Dropped), res.Due, res.Open, res.Moved)
	return err
}

// withDatabase runs a command over a small pool.
func (e *environment) withDatabase(do func(ctx context.Context, pool *pgxpool.Pool) error) error {
	ctx, stop := signals()
	defer stop()
	pool, err := e.databaseOf(ctx, 4)
	if err != nil {
		return err
	}
	defer pool.Close()
	return do(ctx, pool)
}
