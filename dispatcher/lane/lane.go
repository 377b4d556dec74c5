// Package lane runs the dispatcher's jobs of which one process of N is active:
// it holds a lease, and under the lease's epoch an outbox lane with its relay,
// so that a holder that lost the lease can publish nothing more. The sweep, the
// feeder and the matcher of provider events run in it.
package lane

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/softcrum/carril/internal/lease"
	"github.com/softcrum/carril/internal/outbox"
)

// Config names a job.
type Config struct {
	Name   string        // of the lease and the lane, e.g. "sweep:email"
	Holder string        // who this process is, for people
	Life   time.Duration // of the lease; default 5 s
}

// Deps is what a job's lane works with.
type Deps struct {
	Pool  *pgxpool.Pool // reaches PostgreSQL directly
	Sink  outbox.Sink
	Topic func(name string) string // puts the deployment's prefix before a name
	Log   *slog.Logger
}

// Work is one turn: it ends with its context, or with an error, after which the
// lease is taken anew.
type Work func(ctx context.Context, l outbox.Lane, pub *outbox.Publisher) error

// Run does work whenever this process has the lease, until ctx ends.
func Run(ctx context.Context, cfg Config, deps Deps, work Work) error {
	if deps.Log == nil {
		deps.Log = slog.New(slog.DiscardHandler)
	}
	return lease.Run(ctx, deps.Pool, lease.Config{Name: cfg.Name, Holder: cfg.Holder, Life: cfg.Life}, deps.Log,
		func(ctx context.Context, held *lease.Lease) error {
			l, err := outbox.Open(ctx, deps.Pool, cfg.Name, outbox.StoreOutbox, held.Epoch)
			if err != nil {
				return err
			}
			pub := outbox.NewPublisher(l, outbox.PublisherConfig{}, outbox.PublisherDeps{Pool: deps.Pool, Sink: deps.Sink,
				Source: outbox.TableSource{Pool: deps.Pool}, Topic: deps.Topic, Log: deps.Log})
			wctx, cancel := context.WithCancel(ctx)
			defer cancel()
			relayed := make(chan error, 1)
			go func() {
				relayed <- pub.Run(wctx)
				cancel()
			}()
			err = work(wctx, l, pub)
			cancel()
			if r := <-relayed; r != nil && !errors.Is(r, context.Canceled) {
				err = errors.Join(err, r)
			}
			return err
		})
}
