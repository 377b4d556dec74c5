// Command compare puts one profile (a tenant's blast beside another tenant's
// one-time codes) before one provider through Carril and through what else one
// would take for the job: asynq, River, and a token bucket behind one queue.
// README.md says how each is set up and how to run it.
//
// The harness asks for codes and for the blast, keeps the time of each promise,
// and reads the rest from the provider's ledger. Each system has worker
// processes of its own, one of which is killed in the middle of the blast.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/softcrum/carril/internal/bench"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	var err error
	if raw := os.Getenv(workerEnv); raw != "" {
		err = work(ctx, raw)
	} else {
		err = compare(ctx, os.Args[1:])
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "compare:", err)
		os.Exit(1)
	}
}

// options is what the harness is told.
type options struct {
	Systems  []string
	Carril   string // the binary: it serves the provider, and is a row
	Sandbox  string // a provider that runs already; empty: one is started for each system
	Redis    string
	Postgres string

	Profile profile
	JSON    bool
	Plot    string
	Logs    string // a folder for what the processes say; empty: nowhere
}

func parse(args []string) (options, error) {
	o := options{}
	f := flag.NewFlagSet("compare", flag.ContinueOnError)
	systems := f.String("systems", "carril,asynq,asynq-shared,river,river-shared,fifo", "what to measure, in order")
	f.StringVar(&o.Carril, "carril", "../../../bin/carril", "the carril binary; CARRIL_* names its services")
	f.StringVar(&o.Sandbox, "sandbox", "", "URL of a `carril sandbox` that runs already; one is started for each system when empty. Carril's row needs one of its own")
	f.StringVar(&o.Redis, "redis", os.Getenv("CARRIL_REDIS_URL"), "Redis for asynq, fifo, shared buckets and Carril")
	f.StringVar(&o.Postgres, "postgres", os.Getenv("CARRIL_POSTGRES_URL"), "PostgreSQL for River and Carril; each makes a schema or a database of its own")
	p := &o.Profile
	f.IntVar(&p.Blast, "blast", 20_000, "messages of the blast")
	f.Float64Var(&p.Rate, "rate", 1, "codes a second")
	f.DurationVar(&p.Duration, "duration", 40*time.Second, "of the codes beside the blast")
	f.DurationVar(&p.Idle, "idle", 10*time.Second, "of the codes before it")
	f.DurationVar(&p.Bursts, "bursts", 15*time.Second, "how often ten codes are asked for at once; 0: never")
	f.Float64Var(&p.ProviderRate, "provider-rate", 5, "requests a second that the provider takes")
	f.IntVar(&p.Workers, "workers", 64, "of the blast, over all processes")
	f.IntVar(&p.Processes, "processes", 3, "worker processes")
	f.BoolVar(&p.Kill, "kill", true, "kill a worker process in the middle of the blast, and start it again")
	f.DurationVar(&p.Stall, "stall", 150*time.Second, "without a message at the provider until what is missing counts as lost")
	f.BoolVar(&o.JSON, "json", false, "print one JSON object")
	f.StringVar(&o.Plot, "plot", "", "draw each code's latency there, as SVG")
	f.StringVar(&o.Logs, "logs", "", "a folder for what the processes say")
	if err := f.Parse(args); err != nil {
		return o, err
	}
	o.Systems = strings.Split(*systems, ",")
	if p.Blast < 1 || p.Blast > 90_000 || !(p.Rate > 0) || !(p.ProviderRate >= 1) || p.Workers < p.Processes || p.Processes < 1 {
		return o, errors.New("blast must be 1 to 90000, which the provider can remember; rate, provider-rate and processes positive; and each process needs a worker")
	}
	return o, nil
}

func compare(ctx context.Context, args []string) error {
	o, err := parse(args)
	if err != nil {
		return err
	}
	rep, plot, err := o.run(ctx)
	if err != nil {
		return err
	}
	if o.Plot != "" {
		file, err := os.Create(o.Plot)
		if err != nil {
			return fmt.Errorf("draw the plot: %w", err)
		}
		if err := errors.Join(plot.WriteSVG(file), file.Close()); err != nil {
			return err
		}
	}
	if o.JSON {
		return json.NewEncoder(os.Stdout).Encode(rep)
	}
	return rep.write(os.Stdout)
}

// run measures the systems one after the other.
func (o options) run(ctx context.Context) (report, bench.Plot, error) {
	rep := report{Profile: o.Profile}
	plot := bench.Plot{Title: fmt.Sprintf("One-time codes beside a blast of %d at %g requests a second", o.Profile.Blast, o.Profile.ProviderRate)}
	for _, name := range o.Systems {
		fmt.Fprintln(os.Stderr, "compare:", name)
		row, panel, err := o.measure(ctx, name)
		if err != nil {
			return rep, plot, fmt.Errorf("%s: %w", name, err)
		}
		rep.Rows = append(rep.Rows, row)
		plot.Panels = append(plot.Panels, panel)
	}
	return rep, plot, nil
}

// system is what is compared.
type system interface {
	// prepare makes what it stores in, for this run alone.
	prepare(ctx context.Context) error
	// worker starts worker process i, and returns when it can take work.
	worker(ctx context.Context, i int) (*process, error)
	// code promises one code: once it has returned, the code must arrive.
	code(ctx context.Context, n int) error
	// blast promises the whole blast.
	blast(ctx context.Context) error
	// close removes what prepare made.
	close(ctx context.Context) error
}

func (o options) system(name, provider string) (system, error) {
	switch name {
	case "asynq", "asynq-shared":
		return newAsynq(o, provider, name == "asynq-shared")
	case "river", "river-shared":
		return newRiver(o, provider, name == "river-shared")
	case "fifo":
		return newFIFO(o, provider)
	}
	return nil, errors.New("no such system: carril, asynq, asynq-shared, river, river-shared or fifo")
}
