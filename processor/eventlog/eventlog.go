// Package eventlog is the stage that turns accepted events into rows: it
// drops duplicates at the storage fence (core.event_keys), asks identity who
// each event is about, and appends to core.tracked_events (FS-CORE-0006 §3–7).
// The rows are their own outbox: what was appended is published to
// core.event.tracked from memory after the commit, and from the table by
// whoever takes the partition over. Rules and webhooks read that topic.
package eventlog

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/softcrum/carril/internal/db/processordb"
	"github.com/softcrum/carril/internal/kafka"
	"github.com/softcrum/carril/internal/outbox"
	"github.com/softcrum/carril/internal/stream"
	"github.com/softcrum/carril/processor/identity"
	"github.com/softcrum/carril/processor/partition"
	"github.com/softcrum/carril/processor/tenants"
	"github.com/softcrum/carril/schemas"
)

// Stages of the append: live events, and imports at low priority.
const (
	Stage           = "append"
	StageHistorical = "append-historical"
)

// NameIdentified is the event name of an identify.
const NameIdentified = "core.contact.identified"

// Deps of the stage.
type Deps struct {
	Codec      *schemas.Codec
	Tenants    *tenants.Cache
	Partitions *partition.Maker
	Contacts   *ContactLanes
	Log        *slog.Logger
	Metrics    *Metrics // nil: not measured
	Taxonomy   Taxonomy // nil: no event is judged
}

// Metrics of the stage, for both of its topics.
type Metrics struct {
	conflicts  prometheus.Counter
	violations prometheus.Counter
}

// NewMetrics registers the stage's metrics.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	m := &Metrics{
		conflicts: prometheus.NewCounter(prometheus.CounterOpts{Name: "carril_append_idempotency_conflicts_total",
			Help: "Events under a key that came before with another body."}),
		violations: prometheus.NewCounter(prometheus.CounterOpts{Name: "carril_append_taxonomy_violations_total",
			Help: "Appended events that do not match the schema in force for their name."}),
	}
	reg.MustRegister(m.conflicts, m.violations)
	return m
}

// Handler is the append stage; it serves both topics of events.
type Handler struct {
	deps     Deps
	identity *identity.Resolver
	recent   *recent // nil: every key is inserted
}

// New makes the stage's handler.
func New(deps Deps) *Handler {
	return &Handler{deps, identity.NewResolver(identity.NewPlaces(0)), newRecent(recentKeys)}
}

// Decode reads an accepted event.
func (h *Handler) Decode(ctx context.Context, r *kgo.Record) (any, error) {
	e := &accepted{}
	err := h.deps.Codec.Decode(ctx, schemas.TopicEvents, r.Value, &e.Event)
	switch {
	case errors.Is(err, schemas.ErrMalformed):
		return nil, fmt.Errorf("%w: %w", stream.ErrPoison, err)
	case err != nil:
		return nil, err
	case e.Kind != "track" && e.Kind != "identify":
		return nil, fmt.Errorf("%w: unknown kind of event", stream.ErrPoison)
	case e.CorrelationID == "" || e.EventName == "" && e.Kind == "track" || len(e.BodyHash) == 0:
		return nil, fmt.Errorf("%w: event without correlation id, name or body hash", stream.ErrPoison)
	}
	e.identifiers = identity.Read(e.Identifiers)
	return e, nil
}

// accepted is an event as Decode leaves it: whatever needs no database is done
// there, ahead of the transaction.
type accepted struct {
	schemas.Event
	identifiers *identity.Identifiers
}

// row is an event on its way into the table.
type row struct {
	*schemas.Event
	read    *identity.Identifiers
	index   int
	from    *kgo.Record // nil: an event of the platform's own
	class   int16
	contact uuid.UUID
}

func newRow(e *accepted, i int, r stream.Record, class int16) row {
	return row{Event: &e.Event, read: e.identifiers, index: i, from: r.Record, class: class}
}

func (r row) name() string {
	if r.Kind == "identify" {
		return NameIdentified
	}
	return r.EventName
}

// Fence implements stream.Fencer: it takes the keys of the batch's events.
func (h *Handler) Fence(ctx context.Context, tx pgx.Tx, b *stream.Batch) error {
	a, err := h.ready(ctx, b)
	if err != nil {
		return err
	}
	b.Prepared = a
	if a.lost, err = h.takeKeys(ctx, tx, a.keys); err != nil || !b.Ahead || len(a.lost) > 0 {
		return err
	}
	return h.identity.Look(ctx, tx, a.people)
}

// Apply appends the batch's new events.
func (h *Handler) Apply(ctx context.Context, tx pgx.Tx, b *stream.Batch) error {
	a, ok := b.Prepared.(*ahead)
	if !ok {
		return fmt.Errorf("append a batch whose keys were not taken: %T", b.Prepared)
	}
	if err := h.ensureMonths(ctx, a.rows); err != nil {
		return err
	}
	winners, err := h.winners(ctx, tx, b, a.keys, a.lost)
	if err != nil || len(winners) == 0 {
		return err
	}
	if len(winners) < len(a.rows) { // the rest was made for all of them
		a = h.parted(winners)
	}
	taken, err := b.QueueEvents(ctx, len(winners))
	if err != nil {
		return err
	}
	out, err := h.identity.ResolvePrepared(ctx, tx, a.people)
	if err != nil {
		return err
	}
	if out.Merged > 0 {
		b.OnCommit(h.identity.Merged)
	}
	for i := range winners {
		winners[i].contact = out.Contacts[i]
		if out.Erased != nil && out.Erased[i] {
			winners[i].Event = emptied(winners[i].Event)
		}
	}
	if slices.Contains(out.Erased, true) { // what was made ahead says who they were
		a.rows, a.events = winners, makeEvents(winners)
	}
	if err := writeWarnings(ctx, tx, append(out.Warnings, h.judge(b, winners)...)); err != nil {
		return err
	}
	// What is published of people is made while PostgreSQL is busy with the events.
	var news map[int][]outbox.Message
	var failed error
	var made sync.WaitGroup
	made.Go(func() { news, failed = h.deps.Contacts.make(ctx, out.Changes) })
	err = h.append(ctx, tx, b, a, taken)
	made.Wait()
	if err = cmp.Or(err, failed); err != nil {
		return err
	}
	return h.deps.Contacts.append(ctx, tx, b, news)
}

// known keeps the events of tenants that exist, with their retention class.
func (h *Handler) known(ctx context.Context, b *stream.Batch) ([]row, error) {
	rows := make([]row, 0, len(b.Records))
	for i, r := range b.Records {
		e, ok := r.Value.(*accepted)
		if !ok {
			return nil, fmt.Errorf("record of another stage: %T", r.Value)
		}
		t, err := h.deps.Tenants.Get(ctx, e.TenantID)
		if errors.Is(err, tenants.ErrUnknown) {
			b.Reject(i, "unknown_tenant", "no such tenant", stream.Ref{TenantID: e.TenantID, EventID: e.EventID})
			continue
		}
		if err != nil {
			return nil, err
		}
		rows = append(rows, newRow(e, i, r, t.RetentionMonths))
	}
	return rows, nil
}

func (h *Handler) ensureMonths(ctx context.Context, rows []row) error {
	type leaf struct {
		year  int
		month time.Month
		class int16
	}
	var last leaf // of nearly all of a batch
	for _, r := range rows {
		year, month, _ := r.OccurredAt.UTC().Date()
		if l := (leaf{year, month, r.class}); l != last {
			if err := h.deps.Partitions.Ensure(ctx, "core.tracked_events", r.OccurredAt, r.class); err != nil {
				return err
			}
			last = l
		}
	}
	return nil
}

// MakePartitions makes what a refused batch lacked, whatever the cache says.
func (h *Handler) MakePartitions(ctx context.Context, pool *pgxpool.Pool, records []stream.Record) error {
	h.deps.Partitions.Forget()
	for _, r := range records {
		e, ok := r.Value.(*accepted)
		if !ok {
			continue
		}
		t, err := h.deps.Tenants.Get(ctx, e.TenantID)
		if errors.Is(err, tenants.ErrUnknown) {
			continue
		}
		if err != nil {
			return err
		}
		if err := h.deps.Partitions.Ensure(ctx, "core.tracked_events", e.OccurredAt, t.RetentionMonths); err != nil {
			return err
		}
	}
	if err := processordb.New(pool).EnsurePartitionsNow(ctx); err != nil {
		return fmt.Errorf("make partitions: %w", err)
	}
	return nil
}

// emptied is an event of a person who was erased after it was received: it is
// counted, and says nothing (FS-MSG-0003 §8).
func emptied(e *schemas.Event) *schemas.Event {
	out := *e
	out.Payload, out.IdempotencyKey = "{}", ""
	return &out
}

func inputs(rows []row) []identity.Input {
	in := make([]identity.Input, len(rows))
	for i, r := range rows {
		in[i] = identity.Input{TenantID: r.TenantID, CellID: r.CellID, EventID: r.EventID, CorrelationID: r.CorrelationID,
			Identifiers: r.Identifiers, Read: r.read, OccurredAt: r.OccurredAt, ReceivedAt: r.ReceivedAt}
		if r.Kind == "identify" {
			in[i].Traits = r.Payload
		}
	}
	return in
}

// Tracked is the record of an appended event.
func Tracked(r *schemas.Event, name, kind string, contact uuid.UUID, lane int32, seq int64) schemas.EventTracked {
	return schemas.EventTracked{
		EventID: r.EventID, TenantID: r.TenantID, CellID: r.CellID, ContactID: contact, Kind: kind, EventName: name,
		OccurredAt: r.OccurredAt, OccurredOffset: r.OccurredOffset, ReceivedAt: r.ReceivedAt, CorrelationID: r.CorrelationID,
		IdempotencyKey: r.IdempotencyKey, Payload: r.Payload, Historical: r.Historical, Lane: lane, LaneSeq: seq,
	}
}

// Message frames an appended event for core.event.tracked.
func Message(ctx context.Context, codec *schemas.Codec, e *schemas.EventTracked) (outbox.Message, error) {
	value, err := codec.Encode(ctx, nil, schemas.TopicEventTracked, e)
	if err != nil {
		return outbox.Message{}, waitFor(err)
	}
	return message(e, address{[]byte(e.TenantID.String()), kafka.Source(e.TenantID)}, value), nil
}

// address is what all messages of a tenant have in common.
type address struct {
	key    []byte
	source string
}

func message(e *schemas.EventTracked, a address, value []byte) outbox.Message {
	return outbox.Message{
		Topic: schemas.TopicEventTracked, Key: a.key, Value: value,
		Headers: kafka.Event{ID: e.EventID.String(), Type: "core.event.tracked", Source: a.source,
			Subject: e.EventName, Time: e.OccurredAt, CorrelationID: e.CorrelationID}.Headers(),
	}
}

// waitFor makes a registry that is away something to wait for.
func waitFor(err error) error {
	if errors.Is(err, schemas.ErrRegistryAway) {
		return fmt.Errorf("%w: %w", stream.ErrWait, err)
	}
	return err
}

// span is what a transaction appended.
type span struct {
	min, max time.Time
	tenants  []uuid.UUID
}

func spanOf(rows []row) span {
	s := span{min: rows[0].OccurredAt, max: rows[0].OccurredAt}
	seen := map[uuid.UUID]bool{}
	for _, r := range rows {
		if r.OccurredAt.Before(s.min) {
			s.min = r.OccurredAt
		}
		if r.OccurredAt.After(s.max) {
			s.max = r.OccurredAt
		}
		if !seen[r.TenantID] {
			seen[r.TenantID] = true
			s.tenants = append(s.tenants, r.TenantID)
		}
	}
	return s
}
