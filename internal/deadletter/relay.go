package deadletter

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/softcrum/carril/internal/lease"
	"github.com/softcrum/carril/internal/outbox"
)

// producer names the lane that replayed records go out by; many write it, and
// one process at a time relays it.
const producer = "dlq/0"

// RelayDeps is what the relay works with.
type RelayDeps struct {
	Pool   *pgxpool.Pool // reaches PostgreSQL directly
	Sink   outbox.Sink
	Topic  func(name string) string // puts the deployment's prefix before a name
	Holder string                   // who this process is, for people
	Log    *slog.Logger
}

// Relay publishes what was replayed, whenever this process has the lane's lease,
// until ctx ends.
func Relay(ctx context.Context, d RelayDeps) error {
	return lease.Run(ctx, d.Pool, lease.Config{Name: "relay:" + producer, Holder: d.Holder}, d.Log, func(ctx context.Context, l *lease.Lease) error {
		lane, err := outbox.Open(ctx, d.Pool, producer, outbox.StoreOutbox, l.Epoch)
		if err != nil {
			return err
		}
		// Nobody wakes it: a person replays now and then, from another process.
		return outbox.NewPublisher(lane, outbox.PublisherConfig{Poll: time.Second}, outbox.PublisherDeps{Pool: d.Pool, Sink: d.Sink,
			Source: outbox.TableSource{Pool: d.Pool}, Topic: d.Topic, Log: d.Log}).Run(ctx)
	})
}

// AwaitPublished waits until the relay has passed what was replayed; false when
// ctx ended before: it goes out as soon as a `carril process` runs.
func (s *Store) AwaitPublished(ctx context.Context, d Done) (bool, error) {
	if d.LastSeq == 0 {
		return true, nil
	}
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		var cursor int64
		err := s.pool.QueryRow(ctx, `SELECT cursor FROM core.outbox_cursors WHERE lane = $1 AND consumer = 'relay'`, d.Lane).Scan(&cursor)
		switch {
		case ctx.Err() != nil:
			return false, nil
		case err != nil:
			return false, fmt.Errorf("ask how far the relay is: %w", err)
		case cursor >= d.LastSeq:
			return true, nil
		}
		select {
		case <-ctx.Done():
			return false, nil
		case <-tick.C:
		}
	}
}
