package app

import (
	"context"
	"time"

	"github.com/softcrum/carril/internal/lease"
	"github.com/softcrum/carril/internal/outbox"
	"github.com/softcrum/carril/processor/eventlog"
	"github.com/softcrum/carril/processor/partition"
)

// startContactRelays offers this process as the relay of the contact lanes;
// one process of N has each lane at a time.
func (a *App) startContactRelays() {
	for n := range eventlog.ContactLaneCount {
		producer := eventlog.ContactProducer(n)
		a.stack.Go(lifecyclePart("relay "+producer, func(ctx context.Context) error {
			return outbox.RunOrdered(ctx, outbox.OrderedConfig{Producer: producer, Holder: owner(), Kafka: a.kafka}, a.direct, a.log)
		}))
	}
}

// startMaintain runs the jobs of which one process of N is active.
func (a *App) startMaintain(context.Context) error {
	parts := partition.NewJob(partition.JobConfig{}, a.direct, a.log, a.reg, time.Now)
	a.stack.Go(lifecyclePart("partitions", func(ctx context.Context) error {
		return lease.Run(ctx, a.direct, lease.Config{Name: "maintain:partitions", Holder: owner()}, a.log, func(ctx context.Context, _ *lease.Lease) error {
			return parts.Run(ctx)
		})
	}))
	return nil
}
