package webhook

import (
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/softcrum/carril/dispatcher/webhook/guard"
	"github.com/softcrum/carril/dispatcher/webhook/seal"
	"github.com/softcrum/carril/schemas"
)

// Config of the dispatcher; zero values take the defaults. Bounds are of this
// process: N replicas do N times as much.
type Config struct {
	Concurrency int     // attempts to one endpoint at once; default 16. A failing one has fewer
	Rate        float64 // attempts to one endpoint a second; default 500
	InFlight    int     // attempts at once in all; default 1,024
	QueueItems  int     // deliveries to one endpoint in memory; default 512
	QueueBytes  int64   // bodies in memory in all; default 64 MiB

	Lease time.Duration // of a row in memory; default 45 s. What a killed process held waits for its end

	Retries       []time.Duration // waits after the first attempt, the second, …; default 5 s, 5 min, 30 min, 2 h, 5 h, 10 h, 10 h, each ±20 %
	MaxRetryAfter time.Duration   // longest wait that a Retry-After may ask for; default 24 h
	DisableAfter  time.Duration   // of nothing but failures; default 5 days
	DisableGap    time.Duration   // without attempts, after which those begin anew; default 13 h, above the longest wait
	OwnWait       time.Duration   // until what failed for a reason of ours is tried again; default 30 s

	BreakAfter int           // failures in a row that open an endpoint's breaker; default 5
	BreakMin   time.Duration // until a first probe, doubled for each that fails; default 5 s
	BreakMax   time.Duration // default 1 min

	Sweep time.Duration // between looks at the table for what is due; default 1 s
	Keep  time.Duration // how old a pending delivery can be; at most what the partitions are kept; default 30 days
	Drain time.Duration // longest that attempts may finish when the process stops; default 10 s

	UserAgent string // default "Carril-Webhooks/1"
}

func (c Config) withDefaults() Config {
	setDefault(&c.Concurrency, 16)
	setDefault(&c.Rate, 500)
	setDefault(&c.InFlight, 1024)
	setDefault(&c.QueueItems, 512)
	setDefault(&c.QueueBytes, 64<<20)
	setDefault(&c.Lease, 45*time.Second)
	if c.Retries == nil {
		c.Retries = []time.Duration{5 * time.Second, 5 * time.Minute, 30 * time.Minute, 2 * time.Hour, 5 * time.Hour, 10 * time.Hour, 10 * time.Hour}
	}
	setDefault(&c.MaxRetryAfter, 24*time.Hour)
	setDefault(&c.DisableAfter, 5*24*time.Hour)
	setDefault(&c.DisableGap, 13*time.Hour)
	setDefault(&c.OwnWait, 30*time.Second)
	setDefault(&c.BreakAfter, 5)
	setDefault(&c.BreakMin, 5*time.Second)
	setDefault(&c.BreakMax, time.Minute)
	setDefault(&c.Sweep, time.Second)
	setDefault(&c.Keep, 30*24*time.Hour)
	setDefault(&c.Drain, 10*time.Second)
	setDefault(&c.UserAgent, "Carril-Webhooks/1")
	return c
}

// margin is how much of a lease must be left beyond an attempt's deadline, for
// the clocks and for the row to be written.
const margin = 5 * time.Second

func (c Config) validate(deadline time.Duration) error {
	if c.Concurrency < 1 || c.Rate <= 0 || c.InFlight < 1 || c.QueueItems < 1 || c.QueueBytes < 1 || c.BreakAfter < 1 {
		return errors.New("webhooks: a limit is below 1")
	}
	if c.Lease < deadline+2*margin {
		return fmt.Errorf("webhooks: a lease of %s is too short for attempts of %s: want %s", c.Lease, deadline, deadline+2*margin)
	}
	return nil
}

// Deps is what the dispatcher works with.
type Deps struct {
	Pool    *pgxpool.Pool // for leases and results; not the stage's own, whose transactions must not wait for it
	Codec   *schemas.Codec
	Guard   *guard.Guard
	Keys    *seal.Keys
	Log     *slog.Logger
	Metrics prometheus.Registerer
}
