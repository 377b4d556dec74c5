// Package lease gives one of N processes the right to do something, by the
// database's clock (core.leases). A lease carries an epoch that rises with each
// new holder: who writes under it fences its predecessor by that number, never
// by the time. Maintenance jobs and the rails' process slots hold leases.
package lease

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/softcrum/carril/internal/db/streamdb"
)

// ErrHeld says that another holder's lease lives.
var ErrHeld = errors.New("lease is held by another")

// ErrLost says that another holder has taken the lease.
var ErrLost = errors.New("lease was taken by another")

// Config of a lease; zero values take the defaults.
type Config struct {
	Name   string
	Holder string        // who this is, for people
	Life   time.Duration // until it may be taken when it is no longer renewed; default 5 s
}

func (c Config) withDefaults() Config {
	if c.Life == 0 {
		c.Life = 5 * time.Second
	}
	return c
}

// Lease is held until it is released, or taken after it ran out.
type Lease struct {
	Name  string
	Epoch int64
	cfg   Config
}

// Take takes a lease that nobody holds, under a new epoch, or gives ErrHeld.
func Take(ctx context.Context, pool *pgxpool.Pool, cfg Config) (*Lease, error) {
	cfg = cfg.withDefaults()
	epoch, err := streamdb.New(pool).TakeLease(ctx, streamdb.TakeLeaseParams{Name: cfg.Name, Holder: cfg.Holder, Life: cfg.Life})
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, fmt.Errorf("take lease %s: %w", cfg.Name, ErrHeld)
	}
	if err != nil {
		return nil, fmt.Errorf("take lease %s: %w", cfg.Name, err)
	}
	return &Lease{Name: cfg.Name, Epoch: epoch, cfg: cfg}, nil
}

// TakeSlot takes the first free of the leases prefix:0 to prefix:n-1, and gives
// its number.
func TakeSlot(ctx context.Context, pool *pgxpool.Pool, prefix string, n int, cfg Config) (*Lease, int, error) {
	free, err := streamdb.New(pool).FreeSlots(ctx, streamdb.FreeSlotsParams{Prefix: prefix, N: int32(n)})
	if err != nil {
		return nil, 0, fmt.Errorf("find a free slot of %s: %w", prefix, err)
	}
	for _, i := range free {
		cfg.Name = fmt.Sprintf("%s:%d", prefix, i)
		l, err := Take(ctx, pool, cfg)
		if errors.Is(err, ErrHeld) {
			continue
		}
		return l, int(i), err
	}
	return nil, 0, fmt.Errorf("take one of %d slots of %s: %w", n, prefix, ErrHeld)
}

// Renew extends the lease, also after it ran out, as long as nobody took it.
func (l *Lease) Renew(ctx context.Context, pool *pgxpool.Pool) error {
	renewed, err := streamdb.New(pool).RenewLease(ctx, streamdb.RenewLeaseParams{Name: l.Name, Epoch: l.Epoch, Life: l.cfg.Life})
	if err != nil {
		return fmt.Errorf("renew lease %s: %w", l.Name, err)
	}
	if renewed == 0 {
		return fmt.Errorf("renew lease %s: %w", l.Name, ErrLost)
	}
	return nil
}

// Release gives the lease up, so that the next need not wait for its end.
func (l *Lease) Release(ctx context.Context, pool *pgxpool.Pool) error {
	if err := streamdb.New(pool).ReleaseLease(ctx, streamdb.ReleaseLeaseParams{Name: l.Name, Epoch: l.Epoch}); err != nil {
		return fmt.Errorf("release lease %s: %w", l.Name, err)
	}
	return nil
}

// Keep renews the lease until ctx ends (nil) or it is lost (ErrLost). Trouble of
// the database is waited out: the epoch, not the renewal, is the safety.
func (l *Lease) Keep(ctx context.Context, pool *pgxpool.Pool) error {
	tick := time.NewTicker(l.cfg.Life / 5)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		rctx, cancel := context.WithTimeout(ctx, l.cfg.Life)
		err := l.Renew(rctx, pool)
		cancel()
		if errors.Is(err, ErrLost) {
			return err
		}
	}
}

// Run does work while it holds the lease, and again whenever it gets it, until
// ctx ends. work gets a context that ends with the lease.
func Run(ctx context.Context, pool *pgxpool.Pool, cfg Config, log *slog.Logger, work func(ctx context.Context, l *Lease) error) error {
	cfg = cfg.withDefaults()
	for ctx.Err() == nil {
		l, err := Take(ctx, pool, cfg)
		if err == nil {
			err = l.hold(ctx, pool, work)
		}
		if err != nil && !errors.Is(err, ErrHeld) && ctx.Err() == nil {
			log.Warn("leased work stopped and is tried again", "lease", cfg.Name, "error", err)
		}
		t := time.NewTimer(cfg.Life / 5)
		select {
		case <-ctx.Done():
			t.Stop()
		case <-t.C:
		}
	}
	return nil
}

func (l *Lease) hold(ctx context.Context, pool *pgxpool.Pool, work func(context.Context, *Lease) error) error {
	wctx, cancel := context.WithCancel(ctx)
	defer cancel()
	lost := make(chan error, 1)
	go func() {
		lost <- l.Keep(wctx, pool)
		cancel()
	}()
	err := work(wctx, l)
	cancel()
	if kept := <-lost; kept != nil {
		return kept
	}
	rctx, done := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
	defer done()
	if e := l.Release(rctx, pool); e != nil && err == nil && ctx.Err() == nil {
		err = e
	}
	if ctx.Err() != nil {
		return nil
	}
	return err
}
