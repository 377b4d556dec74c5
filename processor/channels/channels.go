// Package channels is the stage that decides whether an asked-for message may
// go (resolveChannels of FS-MSG-0001, FS-MSG-0003 §1): it fences the request,
// finds each recipient and address, asks the gates, and either writes a job for
// the channel's rail or records the reason. A blocked message leaves a decision
// and no send. It reads messaging.requested.{transactional,marketing}, one
// instance each, so that a million marketing requests never stand before a
// code.
package channels

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/softcrum/carril/internal/gates"
	"github.com/softcrum/carril/internal/ids"
	"github.com/softcrum/carril/internal/stream"
	"github.com/softcrum/carril/processor/eventlog"
	"github.com/softcrum/carril/processor/partition"
	"github.com/softcrum/carril/processor/tenants"
	"github.com/softcrum/carril/schemas"
)

// StageFor names the stage of a rail.
func StageFor(rail string) string { return "channels-" + rail }

// TopicFor names the request topic of a rail.
func TopicFor(rail string) string {
	if rail == schemas.RailMarketing {
		return schemas.TopicRequestedMarketing
	}
	return schemas.TopicRequestedTransactional
}

// Deps of the stage.
type Deps struct {
	Codec      *schemas.Codec
	Tenants    *tenants.Cache
	Partitions *partition.Maker
	Contacts   *eventlog.ContactLanes
	Metrics    prometheus.Registerer
	Now        func() time.Time
	Channels   []string // that have rails
	// Credits is how many transactional jobs of one tenant may stand in a rail's
	// topic; the rest waits in the database. Default 200.
	Credits int
}

// Handler is the channels stage of one rail.
type Handler struct {
	deps     Deps
	rail     string
	outcomes *prometheus.CounterVec
	repeats  prometheus.Counter
}

// New makes the stage's handler for a rail.
func New(rail string, deps Deps) *Handler {
	if deps.Credits == 0 {
		deps.Credits = 200
	}
	h := &Handler{deps: deps, rail: rail,
		outcomes: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "carril_channels_decisions_total",
			Help: "Recipients decided, by outcome: queued, or the gate's reason.", ConstLabels: prometheus.Labels{"rail": rail}}, []string{"outcome"})}
	h.repeats = prometheus.NewCounter(prometheus.CounterOpts{Name: "carril_channels_idempotency_conflicts_total",
		Help: "Requests for messages under a key that came before with another body.", ConstLabels: prometheus.Labels{"rail": rail}})
	deps.Metrics.MustRegister(h.outcomes, h.repeats)
	return h
}

// Decode reads a request. One whose category belongs to the other rail is
// refused: a marketing job never rides the transactional rail (FS-MSG-0005 §9).
func (h *Handler) Decode(ctx context.Context, r *kgo.Record) (any, error) {
	var n schemas.NotificationRequested
	err := h.deps.Codec.Decode(ctx, TopicFor(h.rail), r.Value, &n)
	if errors.Is(err, schemas.ErrMalformed) {
		return nil, fmt.Errorf("%w: %w", stream.ErrPoison, err)
	}
	if err != nil {
		return nil, err
	}
	if rail, ok := schemas.RailOf(n.Category); !ok || rail != h.rail {
		return nil, fmt.Errorf("%w: category %q does not ride the %s rail", stream.ErrPoison, n.Category, h.rail)
	}
	return &n, nil
}

// recipient is one message asked for, on its way to a decision.
type recipient struct {
	req       *schemas.NotificationRequested
	from      *kgo.Record // the request's
	index     int
	first     time.Time // the request's first received_at
	class     int16
	origin    uuid.UUID
	rule      *uuid.UUID
	asked     askedRecipient
	contact   uuid.UUID
	address   string
	variables json.RawMessage
	template  int
	gate      gates.Gate
	reason    gates.Reason // empty: it goes
}

// What shuts a message out before the gates are asked.
const (
	gateRequest gates.Gate = "request"

	unknownContact  gates.Reason = "unknown_contact"
	unknownChannel  gates.Reason = "unknown_channel"
	templateMissing gates.Reason = "template_missing"
	tooOld          gates.Reason = "too_old" // the origin event is older than the action's max_age
)

// block shuts a message out, once: the first reason counts.
func (r *recipient) block(g gates.Gate, why gates.Reason) {
	if r.reason == "" {
		r.gate, r.reason = g, why
	}
}

func (r recipient) sendID() uuid.UUID {
	return ids.Send(r.req.TenantID, r.req.RequestID, r.first, r.index, r.req.Channel)
}

// askedRecipient is how a caller names a recipient.
type askedRecipient struct {
	ContactID  *uuid.UUID      `json:"contact_id,omitempty"`
	ExternalID string          `json:"external_id,omitempty"`
	Address    string          `json:"address,omitempty"`
	Variables  json.RawMessage `json:"variables,omitempty"`
}

// Apply decides every recipient of the batch's new requests.
func (h *Handler) Apply(ctx context.Context, tx pgx.Tx, b *stream.Batch) error {
	reqs, err := h.fence(ctx, tx, b)
	if err != nil || len(reqs) == 0 {
		return err
	}
	rs, err := h.recipients(ctx, b, reqs)
	if err != nil {
		return err
	}
	if err := h.findContacts(ctx, tx, b, rs); err != nil {
		return err
	}
	if err := h.findAddresses(ctx, tx, rs); err != nil {
		return err
	}
	if err := h.findTemplates(ctx, tx, rs); err != nil {
		return err
	}
	if err := h.askGates(ctx, tx, rs); err != nil {
		return err
	}
	if err := h.decide(ctx, tx, rs); err != nil {
		return err
	}
	if err := h.enqueue(ctx, tx, b, rs); err != nil {
		return err
	}
	b.OnCommit(func() { h.count(rs) })
	return nil
}

func (h *Handler) count(rs []*recipient) {
	for _, r := range rs {
		outcome := "queued"
		if r.reason != "" {
			outcome = string(r.reason)
		}
		h.outcomes.WithLabelValues(outcome).Inc()
	}
}

// request is a new request with what the fence and the tenant say of it.
type request struct {
	*schemas.NotificationRequested
	from  *kgo.Record
	first time.Time
	class int16
}

// recipients spreads requests over their recipients, in order.
func (h *Handler) recipients(ctx context.Context, b *stream.Batch, reqs []request) ([]*recipient, error) {
	var rs []*recipient
	for _, q := range reqs {
		asked := []askedRecipient{{ContactID: q.ContactID}}
		if q.ContactID == nil {
			if err := json.Unmarshal([]byte(q.Recipients), &asked); err != nil {
				return nil, fmt.Errorf("%w: recipients: %w", stream.ErrPoison, err)
			}
		}
		origin := ids.PlatformEvent(q.RequestID)
		if q.OriginEventID != nil {
			origin = *q.OriginEventID
		}
		for i, a := range asked {
			r := &recipient{req: q.NotificationRequested, from: q.from, index: i, first: q.first, class: q.class, origin: origin, asked: a,
				variables: json.RawMessage(q.Variables)}
			if len(a.Variables) > 0 {
				r.variables = a.Variables
			}
			if !slices.Contains(h.deps.Channels, q.Channel) {
				r.block(gateRequest, unknownChannel)
			}
			if q.RuleID != nil {
				if id, err := uuid.Parse(*q.RuleID); err == nil {
					r.rule = &id
				}
			}
			rs = append(rs, r)
		}
	}
	return rs, nil
}

// askGates asks what may still stand in a message's way. A no that waits (a
// paused sender) is asked again by the claim; the message is queued.
func (h *Handler) askGates(ctx context.Context, tx pgx.Tx, rs []*recipient) error {
	var subjects []gates.Subject
	var who []*recipient
	for _, r := range rs {
		if age := r.req.MaxAgeSeconds; age != nil && r.req.OriginOccurredAt != nil &&
			h.deps.Now().Sub(*r.req.OriginOccurredAt) > time.Duration(*age)*time.Second {
			r.block(gateRequest, tooOld)
		}
		if r.reason != "" {
			continue
		}
		subjects = append(subjects, gates.Subject{TenantID: r.req.TenantID, ContactID: r.contact, Channel: r.req.Channel,
			Category: r.req.Category, Address: r.address, ExpiresAt: r.req.ExpiresAt})
		who = append(who, r)
	}
	verdicts, err := gates.Ask(ctx, tx, subjects)
	if err != nil {
		return err
	}
	for i, v := range verdicts {
		if !v.Open && !v.Reason.Waits() {
			who[i].block(v.Gate, v.Reason)
		}
	}
	return nil
}

// fence keeps the requests that the database has not seen, each with the
// received_at that it keeps for ever: a retry through another replica, two
// seconds later, is the same send. A key that came with another body before is
// recorded, and nothing is sent for it.
func (h *Handler) fence(ctx context.Context, tx pgx.Tx, b *stream.Batch) ([]request, error) {
	var reqs, again []request
	seen := map[uuid.UUID]bool{}
	for i, rec := range b.Records {
		n, ok := rec.Value.(*schemas.NotificationRequested)
		if !ok {
			return nil, fmt.Errorf("record of another stage: %T", rec.Value)
		}
		t, err := h.deps.Tenants.Get(ctx, n.TenantID)
		if errors.Is(err, tenants.ErrUnknown) {
			b.Reject(i, "unknown_tenant", "no such tenant", stream.Ref{})
			continue
		}
		if err != nil {
			return nil, err
		}
		q := request{n, rec.Record, n.ReceivedAt.Truncate(time.Millisecond), t.RetentionMonths}
		if seen[n.RequestID] {
			again = append(again, q)
			continue
		}
		seen[n.RequestID] = true
		reqs = append(reqs, q)
	}
	if len(reqs) == 0 {
		return nil, nil
	}
	won, err := insertKeys(ctx, tx, reqs)
	if err != nil {
		return nil, err
	}
	fresh := reqs[:0]
	for _, q := range reqs {
		if won[q.RequestID] {
			fresh = append(fresh, q)
		} else {
			again = append(again, q)
		}
	}
	return fresh, h.recordConflicts(ctx, tx, b, again)
}
