// Package benchmarks is what `carril bench` measures: parts of the platform, as
// they really run, each against a baseline in the same run. It brings up what a
// benchmark stands on (the services that the settings name, else an embedded
// stack of its own; topics under a random prefix, a database of its own), and
// leaves nothing behind. How load is made and figures are kept is the business
// of internal/bench; flags and output are the command's.
//
// A figure is for people and for comparison within one run; nothing here passes
// or fails on a time.
package benchmarks

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"time"

	"github.com/softcrum/carril/cmd/carril/app"
	"github.com/softcrum/carril/internal/bench"
)

// Config is what a benchmark is told. Fields that it has no use for are
// ignored.
type Config struct {
	Settings app.Settings // where the services are; what it does not name is embedded

	Duration    time.Duration // of a measurement and its baseline together; default 10 s
	Rate        float64       // operations a second in an open loop; 0: the benchmark's own way
	Connections int           // that the generator keeps; 0: the benchmark's own number
	Ladder      bool          // track, identify: climb the rates of an open loop to the knee
	Payload     int           // bytes of an event's body; default 400

	Events   int // append, backlog: how many wait; default 200,000
	Contacts int // append, backlog: how many people they are about; default a tenth of Events
	Blast    int // blast-vs-otp: messages of the blast; default 20,000
	// Partitions of each topic, for effect; 0: the deployment's own counts. Fewer
	// make larger batches: what two cores have is few transactions.
	Partitions int
	Bursts     time.Duration // blast-vs-otp: how often ten codes are asked for at once; 0: never
	Processes  int           // blast-vs-otp: how many dispatch, beside this one; 0 or 1: this one does
	Workers    int           // blast-vs-otp: of the marketing rail, over all processes; 0: the setting's, in each
	Plot       string        // blast-vs-otp: a file for a plot of the latencies, as SVG; empty: none
	Program    string        // what is run as a further process; default this one's own file
	// ProviderRates are measured one after the other by blast-vs-otp; empty:
	// ProviderRate alone.
	ProviderRates []float64
	// ProviderRate is what the provider takes, in requests a second; 0: 5 for
	// blast-vs-otp, no limit elsewhere.
	ProviderRate float64

	Progress io.Writer    // a terminal shows progress; anything else nothing
	Log      *slog.Logger // of the roles that are measured
}

func (c Config) withDefaults() Config {
	def := func(n *int, v int) {
		if *n == 0 {
			*n = v
		}
	}
	if c.Duration == 0 {
		c.Duration = 10 * time.Second
	}
	def(&c.Payload, 400)
	def(&c.Events, 200_000)
	def(&c.Contacts, max(1, c.Events/10))
	def(&c.Blast, 20_000)
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	return c
}

// Benchmark measures one thing.
type Benchmark func(ctx context.Context, cfg Config) (*bench.Report, error)

// All gives every benchmark, in the order of an event's way. The one that has
// a figure a second has six times as long.
func All() []Benchmark {
	long := func(ctx context.Context, cfg Config) (*bench.Report, error) {
		cfg.Duration *= 6
		cfg.ProviderRates, cfg.Bursts = []float64{5, 500}, 15*time.Second
		return BlastVsOTP(ctx, cfg)
	}
	return []Benchmark{Track, Identify, Batch, Append, E2E, Effect, long, Webhooks}
}

// run is one benchmark at work: its site, and what it shows meanwhile.
type run struct {
	Config
	*site
	progress *bench.Progress
}

// measure opens a site, lets f measure on it, and closes it whatever happened.
func measure(ctx context.Context, cfg Config, name string, want siteConfig, f func(ctx context.Context, r *run, rep *bench.Report) error) (rep *bench.Report, err error) {
	cfg = cfg.withDefaults()
	progress := bench.NewProgress(cfg.Progress)
	end := progress.Phase(name+": starting", nil)
	s, err := openSite(ctx, cfg, want)
	end()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	defer func() {
		if cerr := s.close(); err == nil && cerr != nil {
			err = fmt.Errorf("%s: %w", name, cerr)
		}
	}()
	rep = &bench.Report{Bench: name, Machine: s.machine, Settings: map[string]any{"duration": cfg.Duration.String(), "payload_bytes": cfg.Payload}}
	if err := f(ctx, &run{Config: cfg, site: s, progress: progress}, rep); err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return rep, nil
}
