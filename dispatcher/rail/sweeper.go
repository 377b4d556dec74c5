package rail

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/softcrum/carril/dispatcher/lane"
	"github.com/softcrum/carril/dispatcher/sends"
	"github.com/softcrum/carril/internal/kafka"
	"github.com/softcrum/carril/internal/outbox"
)

// SweeperConfig of the sweep of one channel's rails; zero values take the
// defaults.
type SweeperConfig struct {
	Channel   string
	Holder    string
	Every     time.Duration // default 250 ms
	Reconcile time.Duration // how often lost records are looked for; default 30 s
	LostAfter time.Duration // how long a job must have stood in the topic first; default 2 min
	TrimAfter time.Duration // how long a finished record stays in its topic, at least the database's recovery point; default 24 h
	TrimEvery time.Duration // default 10 min
	Life      time.Duration // of the lease; default 5 s
}

// SweeperDeps is what a sweep works with.
type SweeperDeps struct {
	Pool   *pgxpool.Pool // reaches PostgreSQL directly
	Kafka  kafka.Config
	Admin  *kadm.Client
	Sink   outbox.Sink
	Stores []*sends.Store // the channel's rails
	Log    *slog.Logger
}

// Sweeper moves what no worker moves (sends.Store.Sweep), for one channel, in
// one process at a time. `carril maintain` runs it.
type Sweeper struct {
	cfg  SweeperConfig
	deps SweeperDeps
}

// NewSweeper makes the sweep of a channel.
func NewSweeper(cfg SweeperConfig, deps SweeperDeps) *Sweeper {
	cfg.Every = def(cfg.Every, 250*time.Millisecond)
	cfg.Reconcile = def(cfg.Reconcile, 30*time.Second)
	cfg.LostAfter = def(cfg.LostAfter, 2*time.Minute)
	cfg.TrimAfter = def(cfg.TrimAfter, 24*time.Hour)
	cfg.TrimEvery = def(cfg.TrimEvery, 10*time.Minute)
	if deps.Log == nil {
		deps.Log = slog.New(slog.DiscardHandler)
	}
	return &Sweeper{cfg, deps}
}

// Run sweeps whenever this process has the lease, until ctx ends.
func (s *Sweeper) Run(ctx context.Context) error {
	return lane.Run(ctx, lane.Config{Name: "sweep:" + s.cfg.Channel, Holder: s.cfg.Holder, Life: s.cfg.Life},
		lane.Deps{Pool: s.deps.Pool, Sink: s.deps.Sink, Topic: s.deps.Kafka.Topic, Log: s.deps.Log}, s.work)
}

func (s *Sweeper) work(ctx context.Context, l outbox.Lane, pub *outbox.Publisher) error {
	tick := time.NewTicker(s.cfg.Every)
	defer tick.Stop()
	reconciled, trimmed := time.Now(), time.Now()
	for {
		for _, store := range s.deps.Stores {
			if err := s.once(ctx, store, l, pub); err != nil {
				return err
			}
		}
		if time.Since(reconciled) >= s.cfg.Reconcile {
			reconciled = time.Now()
			s.rescue(ctx)
			for _, store := range s.deps.Stores {
				if err := s.reconcile(ctx, store, l, pub); err != nil && ctx.Err() == nil {
					s.deps.Log.Warn("lost records are not looked for", "rail", store.Worker(), "error", err)
				}
			}
		}
		if time.Since(trimmed) >= s.cfg.TrimEvery {
			trimmed = time.Now()
			for _, store := range s.deps.Stores {
				if err := s.trim(ctx, store); err != nil && ctx.Err() == nil {
					s.deps.Log.Warn("rail is not trimmed", "rail", store.Worker(), "error", err)
				}
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// rescue publishes what dead workers left, where no worker lives to do it.
func (s *Sweeper) rescue(ctx context.Context) {
	_, err := lane.Rescue(ctx, sends.SlotPrefix, s.cfg.Holder, lane.Deps{Pool: s.deps.Pool, Sink: s.deps.Sink, Topic: s.deps.Kafka.Topic, Log: s.deps.Log})
	if err != nil && ctx.Err() == nil {
		s.deps.Log.Warn("lanes of dead workers wait", "error", err)
	}
}

// once sweeps a rail. Only a lost lane ends the turn; other trouble waits for
// the next tick.
func (s *Sweeper) once(ctx context.Context, store *sends.Store, l outbox.Lane, pub *outbox.Publisher) error {
	sctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	res, err := store.Sweep(sctx, l)
	if res.Any() {
		pub.Wake()
		s.deps.Log.Debug("rail swept", "rail", store.Worker(), "expired", res.Expired, "recovered", res.Recovered, "unparked", res.Unparked,
			"unheld", res.Unheld, "filled", res.Filled)
	}
	switch {
	case errors.Is(err, outbox.ErrFenced):
		return err
	case err != nil && ctx.Err() == nil:
		s.deps.Log.Warn("sweep waits", "rail", store.Worker(), "error", err)
	}
	return nil
}

// reconcile enqueues again jobs whose record is gone: they have been in the
// topic since before a moment whose records are all finished.
func (s *Sweeper) reconcile(ctx context.Context, store *sends.Store, l outbox.Lane, pub *outbox.Publisher) error {
	rctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	before := time.Now().Add(-s.cfg.LostAfter)
	done, err := s.finishedUntil(rctx, store, before)
	if err != nil || !done {
		return err
	}
	n, err := store.Reconcile(rctx, l, before.Add(-s.cfg.LostAfter/2))
	if n > 0 {
		pub.Wake()
		s.deps.Log.Error("jobs whose records were lost are enqueued again", "rail", store.Worker(), "jobs", n)
	}
	return err
}

// finishedUntil says that every record appended before an instant is finished,
// on every partition.
func (s *Sweeper) finishedUntil(ctx context.Context, store *sends.Store, at time.Time) (bool, error) {
	topic := store.Topic()
	listed, err := s.deps.Admin.ListOffsetsAfterMilli(ctx, at.UnixMilli(), s.deps.Kafka.Topic(topic))
	if err != nil {
		return false, fmt.Errorf("list offsets of %s: %w", topic, err)
	}
	next, err := s.positions(ctx, store)
	if err != nil {
		return false, err
	}
	done, seen := true, 0
	listed.Each(func(o kadm.ListedOffset) {
		seen++
		err = errors.Join(err, o.Err)
		done = done && next[o.Partition] >= o.Offset
	})
	if err != nil || seen == 0 {
		return false, fmt.Errorf("offsets of %s, %d partitions answered: %w", topic, seen, err)
	}
	return done, nil
}

// positions reads where a rail's workers stand, by partition.
func (s *Sweeper) positions(ctx context.Context, store *sends.Store) (map[int32]int64, error) {
	rows, err := s.deps.Pool.Query(ctx, `SELECT partition, next_offset FROM core.stream_positions WHERE stage = $1 AND topic = $2`, store.Worker(), store.Topic())
	if err != nil {
		return nil, fmt.Errorf("read the positions of %s: %w", store.Worker(), err)
	}
	next := map[int32]int64{}
	var p int32
	var n int64
	if _, err := pgx.ForEachRow(rows, []any{&p, &n}, func() error { next[p] = n; return nil }); err != nil {
		return nil, fmt.Errorf("read the positions of %s: %w", store.Worker(), err)
	}
	return next, nil
}
