package rules

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/softcrum/carril/internal/db/processordb"
	"github.com/softcrum/carril/internal/ids"
	"github.com/softcrum/carril/internal/kafka"
	"github.com/softcrum/carril/internal/outbox"
	"github.com/softcrum/carril/internal/rule"
	"github.com/softcrum/carril/internal/stream"
	"github.com/softcrum/carril/schemas"
)

// Deps of the stage.
type Deps struct {
	Codec   *schemas.Codec
	Rules   *Cache
	Metrics prometheus.Registerer
	Now     func() time.Time
}

// Handler is the rules stage.
type Handler struct {
	deps   Deps
	fired  prometheus.Counter
	capped prometheus.Counter
	failed *prometheus.CounterVec
}

// New makes the stage's handler.
func New(deps Deps) *Handler {
	h := &Handler{deps: deps,
		fired:  prometheus.NewCounter(prometheus.CounterOpts{Name: "carril_rules_fired_total", Help: "Rules fired, once an event."}),
		capped: prometheus.NewCounter(prometheus.CounterOpts{Name: "carril_rules_capped_total", Help: "Firings that the rule's cap for the contact held back."}),
		failed: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "carril_rules_failed_total", Help: "Conditions that had no answer, by cause; the rule did not fire."}, []string{"cause"}),
	}
	deps.Metrics.MustRegister(h.fired, h.capped, h.failed)
	return h
}

// Decode reads a tracked event.
func (h *Handler) Decode(ctx context.Context, r *kgo.Record) (any, error) {
	var e schemas.EventTracked
	err := h.deps.Codec.Decode(ctx, schemas.TopicEventTracked, r.Value, &e)
	if errors.Is(err, schemas.ErrMalformed) {
		return nil, fmt.Errorf("%w: %w", stream.ErrPoison, err)
	}
	if err != nil {
		return nil, err
	}
	return &e, nil
}

// firing is one rule on one event.
type firing struct {
	event *schemas.EventTracked
	from  *kgo.Record // the event's
	rule  *rule.Rule

	capped bool // its cap holds it back
}

type firingKey struct{ event, rule uuid.UUID }

// failure is a condition that had no answer for an event.
type failure struct {
	event *schemas.EventTracked
	rule  *rule.Rule
	cause error
}

// Apply runs the tenant's rules over the batch. Imports fire none, and the
// platform's own events none.
func (h *Handler) Apply(ctx context.Context, tx pgx.Tx, b *stream.Batch) error {
	fired, failed, err := h.fire(ctx, b)
	if err != nil {
		return err
	}
	if err := h.warn(ctx, tx, b, failed); err != nil {
		return err
	}
	if len(fired) == 0 {
		return nil
	}
	if err := hold(ctx, tx, fired); err != nil {
		return err
	}
	won, err := enter(ctx, tx, fired)
	if err != nil {
		return err
	}
	winners := fired[:0]
	held := 0
	for _, f := range fired {
		switch k := (firingKey{f.event.EventID, f.rule.ID}); {
		case !won[k]:
		case f.capped:
			held++
		default:
			winners = append(winners, f)
		}
	}
	if err := balance(ctx, tx, winners); err != nil {
		return err
	}
	for _, f := range winners {
		if err := h.request(ctx, b, f); err != nil {
			return err
		}
	}
	b.OnCommit(func() {
		h.fired.Add(float64(len(winners)))
		h.capped.Add(float64(held))
	})
	return nil
}

// fire gives what the batch's events fire, an event and rule once, and which
// conditions had no answer.
func (h *Handler) fire(ctx context.Context, b *stream.Batch) (fired []firing, failed []failure, err error) {
	seen := map[firingKey]bool{}
	for _, r := range b.Records {
		e, ok := r.Value.(*schemas.EventTracked)
		if !ok {
			return nil, nil, fmt.Errorf("record of another stage: %T", r.Value)
		}
		if !fires(e) {
			continue
		}
		all, err := h.deps.Rules.of(ctx, e.TenantID, e.EventName)
		if err != nil {
			return nil, nil, err
		}
		for _, versions := range all {
			rl := versions.For(e)
			if rl == nil || seen[firingKey{e.EventID, rl.ID}] {
				continue
			}
			switch ok, err := rl.Holds(e); {
			case err != nil:
				failed = append(failed, failure{e, rl, err})
			case ok:
				seen[firingKey{e.EventID, rl.ID}] = true // the same event may come twice in one batch
				fired = append(fired, firing{event: e, from: r.Record, rule: rl})
			}
		}
	}
	return fired, failed, nil
}

// fires says whether an event can fire a rule at all.
func fires(e *schemas.EventTracked) bool { return !e.Historical && e.Kind != "platform" }

// warn tells tenants of conditions that had no answer, each version once an
// hour: nothing of the event is said but its id.
func (h *Handler) warn(ctx context.Context, tx pgx.Tx, b *stream.Batch, failed []failure) error {
	if len(failed) == 0 {
		return nil
	}
	hour := h.deps.Now().UTC().Truncate(time.Hour).Format(time.RFC3339)
	var rows processordb.WarnOfRulesParams
	seen := map[uuid.UUID]bool{}
	for _, f := range failed {
		id := uuid.NewSHA1(f.rule.ID, fmt.Appendf(nil, "%s %d %s", f.cause, f.rule.Version, hour))
		if seen[id] {
			continue
		}
		seen[id] = true
		detail, err := json.Marshal(map[string]any{"rule_id": f.rule.ID, "rule_version": f.rule.Version, "cause": f.cause.Error()})
		if err != nil {
			return fmt.Errorf("detail of a warning: %w", err)
		}
		rows.Tenants, rows.Warnings = append(rows.Tenants, f.event.TenantID), append(rows.Warnings, id)
		rows.Events, rows.Details = append(rows.Events, f.event.EventID), append(rows.Details, string(detail))
	}
	if err := processordb.New(tx).WarnOfRules(ctx, rows); err != nil {
		return fmt.Errorf("warn of %d conditions: %w", len(rows.Warnings), err)
	}
	b.OnCommit(func() {
		for _, f := range failed {
			h.failed.WithLabelValues(f.cause.Error()).Inc()
		}
	})
	return nil
}

// enter writes the ledger, the stage's fence, in one order; it gives what is
// new.
func enter(ctx context.Context, tx pgx.Tx, fired []firing) (map[firingKey]bool, error) {
	sorted := slices.Clone(fired)
	slices.SortFunc(sorted, func(a, b firing) int {
		return cmp.Or(bytes.Compare(a.event.EventID[:], b.event.EventID[:]), bytes.Compare(a.rule.ID[:], b.rule.ID[:]))
	})
	n := len(sorted)
	rows := processordb.EnterPointsParams{
		Tenants: make([]uuid.UUID, n), Events: make([]uuid.UUID, n), Rules: make([]uuid.UUID, n), Contacts: make([]uuid.UUID, n),
		Points: make([]int64, n), Correlations: make([]string, n), Occurred: make([]time.Time, n),
		Versions: make([]int32, n), Outcomes: make([]string, n)}
	for i, f := range sorted {
		rows.Tenants[i], rows.Events[i], rows.Rules[i], rows.Contacts[i] = f.event.TenantID, f.event.EventID, f.rule.ID, f.event.ContactID
		rows.Correlations[i], rows.Occurred[i], rows.Versions[i] = f.event.CorrelationID, f.event.OccurredAt, int32(f.rule.Version)
		if rows.Outcomes[i] = "capped"; !f.capped {
			rows.Outcomes[i], rows.Points[i] = "fired", f.rule.Points()
		}
	}
	entered, err := processordb.New(tx).EnterPoints(ctx, rows)
	if err != nil {
		return nil, fmt.Errorf("enter %d firings: %w", n, err)
	}
	won := map[firingKey]bool{}
	for _, e := range entered {
		won[firingKey{e.EventID, e.RuleID}] = true
	}
	return won, nil
}

// balance adds the new points to their contacts' balances.
func balance(ctx context.Context, tx pgx.Tx, winners []firing) error {
	type holder struct{ tenant, contact uuid.UUID }
	sums := map[holder]int64{}
	for _, f := range winners {
		if p := f.rule.Points(); p != 0 {
			sums[holder{f.event.TenantID, f.event.ContactID}] += p
		}
	}
	if len(sums) == 0 {
		return nil
	}
	holders := make([]holder, 0, len(sums))
	for h := range sums {
		holders = append(holders, h)
	}
	slices.SortFunc(holders, func(a, b holder) int {
		return cmp.Or(bytes.Compare(a.tenant[:], b.tenant[:]), bytes.Compare(a.contact[:], b.contact[:]))
	})
	n := len(holders)
	rows := processordb.AddPointsParams{Tenants: make([]uuid.UUID, n), Contacts: make([]uuid.UUID, n), Points: make([]int64, n)}
	for i, h := range holders {
		rows.Tenants[i], rows.Contacts[i], rows.Points[i] = h.tenant, h.contact, sums[h]
	}
	if err := processordb.New(tx).AddPoints(ctx, rows); err != nil {
		return fmt.Errorf("add points of %d contacts: %w", len(holders), err)
	}
	return nil
}

// request emits what a firing asks to be sent.
func (h *Handler) request(ctx context.Context, b *stream.Batch, f firing) error {
	for i, a := range f.rule.Actions {
		if a.Type != "notify" {
			continue
		}
		m, err := h.message(ctx, f, i, a)
		if err != nil {
			return err
		}
		m.Headers = kafka.Traced(m.Headers, f.from)
		b.Emit(m)
	}
	return nil
}

func (h *Handler) message(ctx context.Context, f firing, index int, a rule.Action) (outbox.Message, error) {
	vars, err := a.TemplateVariables(f.event, f.rule.Points())
	if err != nil {
		return outbox.Message{}, err
	}
	e, now := f.event, h.deps.Now().UTC()
	sum := sha256.Sum256([]byte(vars))
	maxAge := int64(a.Age().Seconds())
	rec := schemas.NotificationRequested{
		RequestID: ids.RuleRequest(e.EventID, f.rule.ID, index), TenantID: e.TenantID, CellID: e.CellID, Category: a.Category,
		Channel: a.Channel, Origin: "rule", OriginEventID: &e.EventID, CorrelationID: e.CorrelationID, BodyHash: sum[:],
		ReceivedAt: now, OriginOccurredAt: &e.OccurredAt, RuleID: new(f.rule.ID.String()), ContactID: &e.ContactID, Recipients: "[]",
		TemplateID: &a.TemplateID, Variables: vars, MaxAgeSeconds: &maxAge,
	}
	if a.TemplateVersion > 0 {
		rec.TemplateVersion = &a.TemplateVersion
	}
	if d, err := time.ParseDuration(a.ExpiresAfter); err == nil {
		rec.ExpiresAt = new(now.Add(d))
	}
	return Requested(ctx, h.deps.Codec, &rec)
}

// Requested frames a notification request for the topic of its rail.
func Requested(ctx context.Context, codec *schemas.Codec, rec *schemas.NotificationRequested) (outbox.Message, error) {
	topic := schemas.TopicRequestedTransactional
	if rail, _ := schemas.RailOf(rec.Category); rail == schemas.RailMarketing {
		topic = schemas.TopicRequestedMarketing
	}
	value, err := codec.Encode(ctx, nil, topic, rec)
	if errors.Is(err, schemas.ErrRegistryAway) {
		return outbox.Message{}, fmt.Errorf("%w: %w", stream.ErrWait, err)
	}
	if err != nil {
		return outbox.Message{}, err
	}
	return outbox.Message{Topic: topic, Key: []byte(rec.TenantID.String()), Value: value,
		Headers: kafka.Event{ID: rec.RequestID.String(), Type: "messaging.requested", Source: kafka.Source(rec.TenantID),
			Subject: rec.Category, Time: rec.ReceivedAt, CorrelationID: rec.CorrelationID}.Headers()}, nil
}
