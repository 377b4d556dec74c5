package sends

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/softcrum/carril/dispatcher/provider"
	"github.com/softcrum/carril/internal/stream"
	"github.com/softcrum/carril/schemas"
)

// StageStatuses names the status stage: its group, positions and lanes.
const StageStatuses = "statuses"

// Parser reads a provider's webhook body, which the front door has verified.
type Parser func(body []byte) (provider.Event, error)

// Statuses is the status stage (stream.Handler over messaging.provider_events):
// it brings each event of a provider to its send, once, and writes the
// suppression that a hard bounce or a complaint asks for in the same
// transaction (FS-MSG-0003 §5, §6). What it cannot match yet it puts aside.
type Statuses struct {
	codec   *schemas.Codec
	parsers map[string]Parser
	metrics *StatusMetrics
}

// NewStatuses makes the stage; parsers are by provider name, metrics may be nil.
func NewStatuses(codec *schemas.Codec, parsers map[string]Parser, metrics *StatusMetrics) *Statuses {
	return &Statuses{codec: codec, parsers: parsers, metrics: metrics}
}

// report is a provider's event, read.
type report struct {
	provider, id string
	receivedAt   time.Time
	body         []byte
	event        provider.Event
	tries        int
}

// Decode reads a record and the webhook in it.
func (h *Statuses) Decode(ctx context.Context, r *kgo.Record) (any, error) {
	var rec schemas.ProviderEvent
	err := h.codec.Decode(ctx, schemas.TopicProviderEvents, r.Value, &rec)
	switch {
	case errors.Is(err, schemas.ErrMalformed):
		return nil, fmt.Errorf("%w: %w", stream.ErrPoison, err)
	case err != nil:
		return nil, err
	}
	rep := &report{provider: rec.Provider, id: rec.ProviderEventID, receivedAt: rec.ReceivedAt, body: rec.Body}
	return rep, h.read(rep, rec.SendID, rec.TenantID, rec.ProviderMessageID)
}

// read parses a report's body; tags that the front door read already count
// where the body's are missing.
func (h *Statuses) read(rep *report, send, tenant *uuid.UUID, message *string) error {
	parse, ok := h.parsers[rep.provider]
	if !ok {
		return fmt.Errorf("%w: events of provider %q are unknown here", stream.ErrPoison, rep.provider)
	}
	ev, err := parse(rep.body)
	if err != nil {
		return fmt.Errorf("%w: %w", stream.ErrPoison, err)
	}
	if ev.SendID == uuid.Nil && send != nil {
		ev.SendID = *send
	}
	if ev.TenantID == uuid.Nil && tenant != nil {
		ev.TenantID = *tenant
	}
	if ev.ProviderMessageID == "" && message != nil {
		ev.ProviderMessageID = *message
	}
	if ev.OccurredAt.IsZero() {
		ev.OccurredAt = rep.receivedAt
	}
	rep.event = ev
	return nil
}

// Apply writes what the batch's events say.
func (h *Statuses) Apply(ctx context.Context, tx pgx.Tx, b *stream.Batch) error {
	reports := make([]*report, 0, len(b.Records))
	for _, r := range b.Records {
		reports = append(reports, r.Value.(*report))
	}
	res, err := h.match(ctx, tx, reports)
	if err != nil {
		return err
	}
	if err := putAside(ctx, tx, res.unmatched); err != nil {
		return err
	}
	b.Emit(res.changes...)
	b.OnCommit(func() { h.count(res) })
	return nil
}

// MakePartitions makes what the sends of the batch need: a late event belongs
// to the month of its send (stream.PartitionMaker).
func (h *Statuses) MakePartitions(ctx context.Context, pool *pgxpool.Pool, records []stream.Record) error {
	for _, r := range records {
		send := r.Value.(*report).event.SendID
		if send == uuid.Nil {
			continue
		}
		s := Store{deps: Deps{Pool: pool}}
		if err := s.EnsurePartitions(ctx, Ref{JobID: send}); err != nil {
			return err
		}
	}
	return nil
}

// StatusMetrics of the status stage and the matcher.
type StatusMetrics struct {
	events     *prometheus.CounterVec
	suppressed *prometheus.CounterVec
}

// NewStatusMetrics registers them.
func NewStatusMetrics(reg prometheus.Registerer) *StatusMetrics {
	m := &StatusMetrics{
		events:     prometheus.NewCounterVec(prometheus.CounterOpts{Name: "carril_status_events_total", Help: "Events of providers, by what became of them."}, []string{"outcome"}),
		suppressed: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "carril_suppressions_total", Help: "Addresses suppressed after a provider's event, by why."}, []string{"reason"}),
	}
	reg.MustRegister(m.events, m.suppressed)
	for _, o := range []string{"recorded", "repeated", "ignored", "unmatched"} {
		m.events.WithLabelValues(o)
	}
	for _, r := range []string{"hard_bounce", "complaint"} {
		m.suppressed.WithLabelValues(r)
	}
	return m
}

func (h *Statuses) count(r matched) {
	m := h.metrics
	if m == nil {
		return
	}
	m.events.WithLabelValues("recorded").Add(float64(r.recorded))
	m.events.WithLabelValues("repeated").Add(float64(r.repeated))
	m.events.WithLabelValues("ignored").Add(float64(r.ignored))
	m.events.WithLabelValues("unmatched").Add(float64(len(r.unmatched)))
	for why, n := range r.suppressed {
		m.suppressed.WithLabelValues(why).Add(float64(n))
	}
}
