package main

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"runtime/pprof"
	"slices"
	"time"

	"github.com/softcrum/carril/cmd/carril/app"
	"github.com/softcrum/carril/cmd/carril/benchmarks"
	"github.com/softcrum/carril/internal/bench"
)

// benchCmd measures parts of the platform, each against a baseline in the same
// run.
type benchCmd struct {
	Track  benchTrackCmd  `cmd:"" help:"Single events at the front door, to the 202."`
	Ident  benchIdentCmd  `cmd:"" name:"identify" help:"Single identifies at the front door, to the 202."`
	Batch  benchBatchCmd  `cmd:"" help:"Batches of 500 events at the front door, to the 202."`
	Append benchAppendCmd `cmd:"" help:"The append stage, over events that wait."`
	Behind benchBehindCmd `cmd:"" name:"backlog" help:"The front door while the processor catches up, and while PostgreSQL is away."`
	E2E    benchE2ECmd    `cmd:"" name:"e2e" help:"An event's way through everything, from its 202 to the provider's request."`
	Effect benchEffectCmd `cmd:"" name:"effect" help:"An event's effect, from its 202 to points and a queued notification."`
	Blast  benchBlastCmd  `cmd:"" name:"blast-vs-otp" help:"One tenant's one-time codes beside another tenant's blast."`
	Hooks  benchHooksCmd  `cmd:"" name:"webhooks" help:"Outbound webhooks, from an appended event to its arrival."`
	All    benchAllCmd    `cmd:"" help:"All of them, one after the other; one JSON object a line with --json."`
}

// Help is what `carril bench --help` says beside the list.
func (benchCmd) Help() string {
	return `Each benchmark measures a part as it really runs, and a baseline in the same run, in turn or back to back, so that
their ratio says what the platform costs on whatever machine this is. Times alone say little and never pass or fail.

What CARRIL_KAFKA_BROKERS, CARRIL_REGISTRY_URL, CARRIL_POSTGRES_URL and CARRIL_REDIS_URL name is used: topics under a
random prefix and a database of its own, removed at the end. What they do not name is embedded for the run, on
temporary data that is not synced to disk. The load generator shares the cores with what it measures.`
}

// benchFlags are what all benchmarks take.
type benchFlags struct {
	JSON     bool          `name:"json" help:"Print one JSON object."`
	Duration time.Duration `default:"10s" help:"Of the measurement and its baseline together."`
	Payload  int           `name:"payload-bytes" default:"400" help:"Size of an event's body."`
	Profile  string        `name:"cpu-profile" help:"Write a CPU profile of this process there, for go tool pprof." placeholder:"FILE"`
}

func (f benchFlags) config(e *environment) (benchmarks.Config, error) {
	if f.Duration <= 0 {
		return benchmarks.Config{}, fmt.Errorf("%w: duration must be positive", app.ErrConfig)
	}
	return benchmarks.Config{Settings: e.set, Duration: f.Duration, Payload: f.Payload, Progress: e.err, Log: benchLogger(e.err, e.set.LogLevel)}, nil
}

// benchLogger is quiet but for errors: what the measured roles say of
// themselves is not what was asked for, unless it is (--log-level debug).
func benchLogger(w io.Writer, level string) *slog.Logger {
	if level != "debug" {
		level = "error"
	}
	return newLogger(w, level)
}

// benchLoad is how load is made.
type benchLoad struct {
	Rate        float64 `help:"Events a second in an open loop: latency counts from when each request was due. A closed loop, for the most that it can do, when 0."`
	Connections int     `help:"Connections of the generator; the benchmark's own number when 0."`
}

func (l benchLoad) into(c *benchmarks.Config) error {
	if l.Rate < 0 || l.Connections < 0 {
		return fmt.Errorf("%w: rate and connections must not be negative", app.ErrConfig)
	}
	c.Rate, c.Connections = l.Rate, l.Connections
	return nil
}

type benchTrackCmd struct {
	benchFlags
	benchLoad
	Ladder bool `help:"Offer one rate after the other up to the knee; each takes the duration."`
}

type benchIdentCmd struct{ benchTrackCmd }

// benchBehindCmd takes the rate that is offered meanwhile.
type benchBehindCmd struct {
	benchFlags
	benchLoad
	Events int `default:"200000" help:"Events that wait for the processor, up to 5,000,000."`
}

type benchBatchCmd struct {
	benchFlags
	benchLoad
}

type benchE2ECmd struct {
	benchFlags
	benchLoad
	ProviderRate float64 `help:"Requests a second that the provider takes; no limit when 0."`
}

// benchEffectCmd is the requirement's measure (FS-CORE-0006 AC5).
type benchEffectCmd struct {
	benchFlags
	Rate         float64 `default:"2000" help:"Events a second in an open loop, each of which fires a rule."`
	Connections  int     `help:"Connections of the generator; the benchmark's own number when 0."`
	ProviderRate float64 `default:"10" help:"Requests a second that the provider takes meanwhile."`
	Partitions   int     `help:"Partitions of each topic; the deployment's own counts when 0. Few make large batches, which is what few cores want."`
}

func (c benchEffectCmd) Run(e *environment) error {
	cfg, err := c.config(e)
	if err != nil {
		return err
	}
	if !(c.Rate > 0) || !(c.ProviderRate >= 1) || c.Connections < 0 || c.Partitions < 0 || c.Partitions > 100 {
		return fmt.Errorf("%w: rate must be positive, provider-rate at least 1, connections not negative, partitions up to 100", app.ErrConfig)
	}
	cfg.Rate, cfg.ProviderRate, cfg.Connections, cfg.Partitions = c.Rate, c.ProviderRate, c.Connections, c.Partitions
	return e.bench(c.benchFlags, cfg, benchmarks.Effect)
}

// benchBlastCmd has a longer duration than the others: a code a second gives
// few figures in ten.
type benchBlastCmd struct {
	JSON         bool          `name:"json" help:"Print one JSON object."`
	Duration     time.Duration `default:"60s" help:"Of the codes beside the blast and of those before it together."`
	Payload      int           `name:"payload-bytes" default:"400" help:"Size of an event's body."`
	Profile      string        `name:"cpu-profile" help:"Write a CPU profile of this process there, for go tool pprof." placeholder:"FILE"`
	Rate         float64       `default:"1" help:"Codes a second."`
	Bursts       time.Duration `default:"15s" help:"How often ten codes are asked for at once, reported apart; never when 0."`
	Blast        int           `default:"20000" help:"Messages of the blast, up to 1,000,000."`
	ProviderRate []float64     `default:"5,500" help:"Requests a second that the provider takes; a batch of marketing messages is one. Each of several has a baseline and a blast of its own."`
	Processes    int           `default:"0" help:"Processes that dispatch, beside this one; this one does when 0 or 1."`
	Workers      int           `default:"64" help:"Requests of the marketing rail that may be on their way at once, over all processes."`
	Plot         string        `help:"Draw each code's latency over time there, as SVG." placeholder:"FILE"`
}

type benchHooksCmd struct {
	benchFlags
	benchLoad
}

type benchAppendCmd struct {
	benchFlags
	Events   int `default:"200000" help:"Events that wait to be appended, up to 5,000,000."`
	Contacts int `help:"People that they are about; a tenth of the events when 0."`
}

func (c benchTrackCmd) Run(e *environment) error { return c.run(e, benchmarks.Track) }
func (c benchIdentCmd) Run(e *environment) error { return c.run(e, benchmarks.Identify) }

func (c benchTrackCmd) run(e *environment, b benchmarks.Benchmark) error {
	cfg, err := c.config(e)
	if err == nil {
		err = c.into(&cfg)
	}
	if err != nil {
		return err
	}
	if cfg.Ladder = c.Ladder; c.Ladder && c.Rate > 0 {
		return fmt.Errorf("%w: a ladder has its own rates", app.ErrConfig)
	}
	return e.bench(c.benchFlags, cfg, b)
}

func (c benchBehindCmd) Run(e *environment) error {
	cfg, err := c.config(e)
	if err == nil {
		err = c.into(&cfg)
	}
	if err == nil && (c.Events < 1 || c.Events > 5_000_000) {
		err = fmt.Errorf("%w: events must be 1 to 5000000", app.ErrConfig)
	}
	if err != nil {
		return err
	}
	cfg.Events = c.Events
	return e.bench(c.benchFlags, cfg, benchmarks.Backlog)
}

func (c benchBatchCmd) Run(e *environment) error {
	return e.load(c.benchFlags, c.benchLoad, benchmarks.Batch)
}

func (c benchE2ECmd) Run(e *environment) error {
	cfg, err := c.config(e)
	if err == nil {
		err = c.into(&cfg)
	}
	if err != nil {
		return err
	}
	cfg.ProviderRate = c.ProviderRate
	return e.bench(c.benchFlags, cfg, benchmarks.E2E)
}

func (c benchBlastCmd) Run(e *environment) error {
	f := benchFlags{JSON: c.JSON, Duration: c.Duration, Payload: c.Payload, Profile: c.Profile}
	cfg, err := f.config(e)
	if err != nil {
		return err
	}
	if !(c.Rate > 0) || c.Blast < 1 || c.Blast > 1_000_000 || c.Bursts < 0 || len(c.ProviderRate) == 0 ||
		slices.ContainsFunc(c.ProviderRate, func(r float64) bool { return !(r >= 1 && r <= 100_000) }) {
		return fmt.Errorf("%w: rate must be positive, provider-rate 1 to 100000, blast 1 to 1000000, bursts not negative", app.ErrConfig)
	}
	if c.Processes < 0 || c.Processes > 16 || c.Workers < 1 || c.Workers > 1024 {
		return fmt.Errorf("%w: processes must be 0 to 16, workers 1 to 1024", app.ErrConfig)
	}
	if c.Plot != "" { // found out before the minutes that it takes
		if err := os.WriteFile(c.Plot, nil, 0o600); err != nil {
			return fmt.Errorf("%w: plot: %w", app.ErrConfig, err)
		}
	}
	cfg.Rate, cfg.Blast, cfg.ProviderRates, cfg.Bursts = c.Rate, c.Blast, c.ProviderRate, c.Bursts
	cfg.Processes, cfg.Workers, cfg.Plot = c.Processes, c.Workers, c.Plot
	return e.bench(f, cfg, benchmarks.BlastVsOTP)
}

func (c benchHooksCmd) Run(e *environment) error {
	return e.load(c.benchFlags, c.benchLoad, benchmarks.Webhooks)
}

func (c benchAppendCmd) Run(e *environment) error {
	tuneMemory(app.Roles{Process: true}, os.Getenv) // it is the stage's process
	cfg, err := c.config(e)
	if err != nil {
		return err
	}
	if c.Events < 1 || c.Events > 5_000_000 || c.Contacts < 0 || c.Contacts > c.Events {
		return fmt.Errorf("%w: events must be 1 to 5000000, contacts at most as many", app.ErrConfig)
	}
	cfg.Events, cfg.Contacts = c.Events, c.Contacts
	return e.bench(c.benchFlags, cfg, benchmarks.Append)
}

func (e *environment) load(f benchFlags, l benchLoad, b benchmarks.Benchmark) error {
	cfg, err := f.config(e)
	if err == nil {
		err = l.into(&cfg)
	}
	if err != nil {
		return err
	}
	return e.bench(f, cfg, b)
}

// bench runs benchmarks in turn until one fails or a signal comes.
func (e *environment) bench(f benchFlags, cfg benchmarks.Config, list ...benchmarks.Benchmark) error {
	ctx, stop := signals()
	defer stop()
	done, err := profile(f.Profile)
	if err != nil {
		return err
	}
	for _, b := range list {
		rep, err := b(ctx, cfg)
		if ctx.Err() != nil {
			return errors.Join(errInterrupted, err, done())
		}
		if err != nil {
			return errors.Join(err, done())
		}
		if err := write(e.out, rep, f.JSON); err != nil {
			return errors.Join(fmt.Errorf("print the report: %w", err), done())
		}
	}
	return done()
}

// profile writes a CPU profile to path until done; to nowhere where it is empty.
func profile(path string) (done func() error, err error) {
	if path == "" {
		return func() error { return nil }, nil
	}
	f, err := os.Create(path)
	if err != nil {
		return nil, fmt.Errorf("%w: cpu-profile: %w", app.ErrConfig, err)
	}
	if err := pprof.StartCPUProfile(f); err != nil {
		return nil, errors.Join(fmt.Errorf("profile: %w", err), f.Close())
	}
	return func() error { pprof.StopCPUProfile(); return f.Close() }, nil
}

var errInterrupted = errors.New("interrupted; nothing of it is left behind")

func write(w io.Writer, rep *bench.Report, asJSON bool) error {
	if asJSON {
		return rep.WriteJSON(w)
	}
	return rep.WriteTable(w)
}

type benchAllCmd struct{ benchFlags }

func (c benchAllCmd) Run(e *environment) error {
	cfg, err := c.config(e)
	if err != nil {
		return err
	}
	return e.bench(c.benchFlags, cfg, benchmarks.All()...)
}
