// Package rules is the stage that decides what an event means: each rule of
// its tenant whose condition holds gives points and asks for messages. It reads
// core.event.tracked and writes the points ledger and notification requests; it
// neither resolves channels nor sends.
//
// The ledger's unique (tenant, event, rule) is the stage's natural fence: a
// rule fires once for an event, whatever the number of its records. A rule that
// gives no points has an entry of zero.
package rules

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/softcrum/carril/schemas"
)

// Stage names the stage, its group carril.rules and its positions.
const Stage = "rules"

// DefaultMaxAge is how old an event may be and still cause a message: nobody
// wants a receipt for an invoice of two years ago.
const DefaultMaxAge = 24 * time.Hour

// Rule is a rule as the stage runs it.
type Rule struct {
	ID         uuid.UUID
	Version    int
	EventName  string
	Condition  string
	Actions    []Action
	ValidFrom  time.Time
	ValidUntil time.Time
	program    *program
}

// Action is one consequence of a rule.
type Action struct {
	Type            string            `json:"type"`                       // points or notify
	Points          int64             `json:"points,omitempty"`           // points: may be negative
	Channel         string            `json:"channel,omitempty"`          // notify
	Category        string            `json:"category,omitempty"`         // notify: transactional, product or marketing
	TemplateID      string            `json:"template_id,omitempty"`      // notify
	TemplateVersion int32             `json:"template_version,omitempty"` // notify; 0: the newest
	MaxAge          string            `json:"max_age,omitempty"`          // notify; a duration with its unit, default 24h
	ExpiresAfter    string            `json:"expires_after,omitempty"`    // notify; a duration after the event is processed
	Variables       map[string]string `json:"variables,omitempty"`        // notify; constants beside the event's own
}

// Validate says what is wrong with an action, for whoever writes a rule.
func (a Action) Validate() error {
	switch a.Type {
	case "points":
		if a.Points == 0 {
			return fmt.Errorf("a points action needs points other than 0")
		}
		return nil
	case "notify":
		return a.validateNotify()
	}
	return fmt.Errorf("unknown action %q: points or notify", a.Type)
}

func (a Action) validateNotify() error {
	if a.Channel == "" || a.TemplateID == "" {
		return fmt.Errorf("a notify action needs a channel and a template_id")
	}
	if _, ok := schemas.RailOf(a.Category); !ok {
		return fmt.Errorf("unknown category %q: transactional, product or marketing", a.Category)
	}
	for name, d := range map[string]string{"max_age": a.MaxAge, "expires_after": a.ExpiresAfter} {
		if d == "" {
			continue
		}
		if v, err := time.ParseDuration(d); err != nil || v <= 0 {
			return fmt.Errorf("%s %q is not a positive duration with its unit", name, d)
		}
	}
	return nil
}

func (a Action) maxAge() time.Duration {
	if d, err := time.ParseDuration(a.MaxAge); err == nil {
		return d
	}
	return DefaultMaxAge
}

// Compile checks a rule and makes it ready to run.
func Compile(r Rule) (*Rule, error) {
	if len(r.Actions) == 0 {
		return nil, fmt.Errorf("a rule needs an action")
	}
	for i, a := range r.Actions {
		if err := a.Validate(); err != nil {
			return nil, fmt.Errorf("action %d: %w", i, err)
		}
	}
	p, err := compile(r.Condition)
	if err != nil {
		return nil, fmt.Errorf("condition: %w", err)
	}
	r.program = p
	return &r, nil
}

// points is what one firing of the rule gives.
func (r *Rule) points() int64 {
	var n int64
	for _, a := range r.Actions {
		if a.Type == "points" {
			n += a.Points
		}
	}
	return n
}

// matches says whether the rule fires on an event; the error is the
// condition's own at run time, such as a property that is not there.
func (r *Rule) matches(e *schemas.EventTracked) (bool, error) {
	if r.EventName != e.EventName || e.OccurredAt.Before(r.ValidFrom) || !e.OccurredAt.Before(r.ValidUntil) {
		return false, nil
	}
	return r.program.eval(e)
}

// variables are what a template sees of the event.
func (a Action) variables(e *schemas.EventTracked, points int64) (string, error) {
	v, err := json.Marshal(map[string]any{
		"properties": json.RawMessage(e.Payload),
		"event":      map[string]any{"id": e.EventID, "name": e.EventName, "occurred_at": e.OccurredAt},
		"points":     points,
		"constants":  a.Variables,
	})
	if err != nil {
		return "", fmt.Errorf("variables of a notification: %w", err)
	}
	return string(v), nil
}
