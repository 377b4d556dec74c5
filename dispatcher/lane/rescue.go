package lane

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/softcrum/carril/internal/lease"
	"github.com/softcrum/carril/internal/outbox"
)

// Rescue publishes what dead holders of the leases prefix:0, prefix:1, … left in
// their lanes; it gives the number of lanes that it emptied. A process that
// starts in another's place takes another number, so nobody else would.
func Rescue(ctx context.Context, prefix, holder string, deps Deps) (n int, err error) {
	const sql = `SELECT l.name FROM core.leases l JOIN core.outbox_lanes o ON o.producer = l.name AND o.store = 'outbox'
JOIN core.outbox_cursors c ON c.lane = o.lane AND c.consumer = 'relay'
WHERE starts_with(l.name, $1 || ':') AND l.until < clock_timestamp() AND c.cursor < o.counter ORDER BY l.name`
	rows, err := deps.Pool.Query(ctx, sql, prefix)
	if err != nil {
		return 0, fmt.Errorf("find lanes of dead holders: %w", err)
	}
	names, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return 0, fmt.Errorf("find lanes of dead holders: %w", err)
	}
	for _, name := range names {
		l, err := lease.Take(ctx, deps.Pool, lease.Config{Name: name, Holder: holder, Life: time.Minute})
		if errors.Is(err, lease.ErrHeld) {
			continue
		}
		if err != nil {
			return n, err
		}
		err = empty(ctx, name, l, deps)
		if e := l.Release(context.WithoutCancel(ctx), deps.Pool); err == nil {
			err = e
		}
		if err != nil {
			return n, fmt.Errorf("empty lane %s: %w", name, err)
		}
		n++
	}
	return n, nil
}

// empty relays a lane until it holds nothing more. Its former holder, should it
// wake, is fenced by the epoch.
func empty(ctx context.Context, name string, held *lease.Lease, deps Deps) error {
	ctx, cancel := context.WithTimeout(ctx, 45*time.Second)
	defer cancel()
	l, err := outbox.Open(ctx, deps.Pool, name, outbox.StoreOutbox, held.Epoch)
	if err != nil {
		return err
	}
	pub := outbox.NewPublisher(l, outbox.PublisherConfig{}, outbox.PublisherDeps{Pool: deps.Pool, Sink: deps.Sink,
		Source: outbox.TableSource{Pool: deps.Pool}, Topic: deps.Topic, Log: deps.Log})
	rctx, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- pub.Run(rctx) }()
	defer func() {
		stop()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			deps.Log.Warn("the relay of a rescued lane ended by itself", "lane", l.ID, "error", err)
		}
	}()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case err := <-ended:
			ended <- err
			return err
		case <-tick.C:
		}
		const sql = `SELECT c.cursor >= o.counter FROM core.outbox_lanes o JOIN core.outbox_cursors c ON c.lane = o.lane AND c.consumer = 'relay' WHERE o.lane = $1`
		var done bool
		if err := deps.Pool.QueryRow(ctx, sql, l.ID).Scan(&done); err != nil || done {
			return err
		}
	}
}
