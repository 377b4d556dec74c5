package app

import (
	"context"
	"errors"
	"time"

	"github.com/google/uuid"

	"github.com/softcrum/carril/ingestor/manage"
	"github.com/softcrum/carril/internal/lease"
	"github.com/softcrum/carril/processor/erasure"
	"github.com/softcrum/carril/processor/eventlog"
)

// startErasures runs the jobs that forget people: one process of N is active.
func (a *App) startErasures(ctx context.Context) error {
	lanes, err := eventlog.OpenContactLanes(ctx, a.side, a.codec, nil)
	if err != nil {
		return err
	}
	pool, err := a.wholePool(ctx, "erasure", a.set.direct(), 3)
	if err != nil {
		return err
	}
	arch, err := a.archive(ctx)
	if err != nil {
		return err
	}
	var exports erasure.Exports // none are stored where there is no storage
	if arch != nil {
		exports = arch
	}
	deps := erasure.Deps{Pool: pool, Lanes: lanes, Exports: exports, Now: time.Now, Log: a.log, Metrics: erasure.NewMetrics(a.reg)}
	for name, run := range map[string]func(context.Context) error{
		"erasure":   erasure.NewJob(erasure.Config{}, deps).Run,
		"anonymous": erasure.NewClock(erasure.ClockConfig{}, erasure.Config{}, deps).Run,
	} {
		a.stack.Go(lifecyclePart(name, func(ctx context.Context) error {
			return lease.Run(ctx, a.direct, lease.Config{Name: "maintain:" + name, Holder: owner()}, a.log, func(ctx context.Context, _ *lease.Lease) error {
				return run(ctx)
			})
		}))
	}
	return nil
}

// erasures takes the API's requests for erasure.
func (a *App) erasures(ctx context.Context) (erasures, error) {
	lanes, err := eventlog.OpenContactLanes(ctx, a.side, a.codec, nil)
	if err != nil {
		return erasures{}, err
	}
	return erasures{erasure.NewDesk(erasure.Config{}, erasure.Deps{Pool: a.side, Lanes: lanes, Log: a.log})}, nil
}

// erasures is the desk as the API knows it.
type erasures struct{ desk *erasure.Desk }

// Request erases a contact.
func (e erasures) Request(ctx context.Context, tenant, contact uuid.UUID, by string) (uuid.UUID, error) {
	id, err := e.desk.Request(ctx, tenant, contact, by)
	if errors.Is(err, erasure.ErrNotFound) {
		return id, manage.ErrNotFound
	}
	return id, err
}
