package webhook

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/softcrum/carril/internal/stream"
	"github.com/softcrum/carril/schemas"
)

// Stage names the stage, its group carril.webhooks and its positions.
const Stage = "webhooks"

// Topics are what the stage reads.
func Topics() []string { return []string{schemas.TopicEventTracked, schemas.TopicMessage} }

// early is how long before an endpoint's creation, by clocks that may differ,
// an event may have been received and still be for it: a stage that begins its
// topic anew must not tell a new endpoint of a fortnight.
const early = 15 * time.Minute

// stage turns records into deliveries.
type stage struct{ d *Dispatcher }

// Decode reads a record and renders what endpoints will get.
func (s stage) Decode(ctx context.Context, r *kgo.Record) (any, error) {
	e, err := s.decode(ctx, r)
	if errors.Is(err, schemas.ErrRegistryAway) {
		return nil, err
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", stream.ErrPoison, err)
	}
	return &e, nil
}

func (s stage) decode(ctx context.Context, r *kgo.Record) (event, error) {
	if strings.HasSuffix(r.Topic, schemas.TopicMessage) {
		var m schemas.MessageStatusChanged
		if err := s.d.deps.Codec.Decode(ctx, schemas.TopicMessage, r.Value, &m); err != nil {
			return event{}, err
		}
		return messageEvent(&m)
	}
	var e schemas.EventTracked
	if err := s.d.deps.Codec.Decode(ctx, schemas.TopicEventTracked, r.Value, &e); err != nil {
		return event{}, err
	}
	return trackedEvent(&e)
}

// Apply writes a delivery for each record and endpoint that subscribes to it.
// Nothing is sent inside the transaction: what this process may attempt at once
// is leased to it, and handed to the endpoints' lanes when it has committed.
func (s stage) Apply(ctx context.Context, tx pgx.Tx, b *stream.Batch) error {
	began := time.Now()
	ds, err := s.deliveries(ctx, tx, b)
	if err != nil || len(ds) == 0 {
		return err
	}
	since := s.d.sinceFor(began, ds)
	busy, err := elsewhere(ctx, tx, since, endpointsOf(ds), s.d.me)
	if err != nil {
		return err
	}
	var behind map[string]bool
	if len(busy) > 0 {
		if behind, err = stalled(ctx, tx, since, queuesOf(ds, busy)); err != nil {
			return err
		}
	}
	s.d.lanes.reserve(ds, busy)
	for _, d := range ds {
		d.leaseEnd = began.Add(s.d.cfg.Lease)
	}
	fresh, err := insert(ctx, tx, ds, behind, s.d.me, s.d.cfg.Lease)
	if err != nil {
		return err
	}
	ds = slices.DeleteFunc(ds, func(d *delivery) bool { return !fresh[d.id] })
	b.OnCommit(func() { s.d.lanes.hand(ds) })
	return nil
}

// deliveries are the batch's events times the endpoints that want them, in the
// records' order.
func (s stage) deliveries(ctx context.Context, tx pgx.Tx, b *stream.Batch) ([]*delivery, error) {
	tenants := map[uuid.UUID]bool{}
	for _, r := range b.Records {
		e, ok := r.Value.(*event)
		if !ok {
			return nil, fmt.Errorf("record of another stage: %T", r.Value)
		}
		tenants[e.tenant] = true
	}
	subs, err := subscribers(ctx, tx, keysOf(tenants))
	if err != nil || len(subs) == 0 {
		return nil, err
	}
	var ds []*delivery
	oldest := s.d.horizon(time.Now()).Add(time.Hour) // what is older is never looked for again
	for _, r := range b.Records {
		e := r.Value.(*event)
		for _, sub := range subs[e.tenant] {
			if e.received.After(oldest) && e.received.After(sub.created.Add(-early)) && matches(sub.types, e.eventType) {
				ds = append(ds, newDelivery(*e, sub.id, r.Offset))
			}
		}
	}
	return ds, nil
}

// MakePartitions makes the days that the records' deliveries go to.
func (s stage) MakePartitions(ctx context.Context, pool *pgxpool.Pool, records []stream.Record) error {
	days := map[time.Time]bool{time.Now().UTC().Truncate(24 * time.Hour): true}
	for _, r := range records {
		if e, ok := r.Value.(*event); ok {
			days[e.received.Truncate(24*time.Hour)] = true
		}
	}
	for day := range days {
		if _, err := pool.Exec(ctx, `SELECT core.ensure_partition('core.webhook_deliveries', $1)`, day); err != nil {
			return fmt.Errorf("make the partition of webhook deliveries of %s: %w", day.Format(time.DateOnly), err)
		}
	}
	return nil
}

func endpointsOf(ds []*delivery) []uuid.UUID {
	seen := map[uuid.UUID]bool{}
	for _, d := range ds {
		seen[d.endpoint] = true
	}
	return keysOf(seen)
}

// queuesOf are the order keys of endpoints that have rows elsewhere, in one
// order for every transaction that locks them.
func queuesOf(ds []*delivery, busy map[uuid.UUID]bool) []string {
	seen := map[string]bool{}
	for _, d := range ds {
		if busy[d.endpoint] {
			seen[d.orderKey] = true
		}
	}
	return slices.Sorted(maps.Keys(seen))
}

func keysOf(set map[uuid.UUID]bool) []uuid.UUID {
	return slices.SortedFunc(maps.Keys(set), func(a, b uuid.UUID) int { return bytes.Compare(a[:], b[:]) })
}
