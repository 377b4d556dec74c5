// Package rule is what a tenant's rule is: its versions, its condition in CEL,
// its actions and its cap, checked and compiled; and where they are kept. The
// management API writes rules, the rules stage runs them; what a firing does is
// the stage's.
package rule

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"cel.dev/cel-go/cel"
	"github.com/google/uuid"

	"github.com/softcrum/carril/internal/oneline"
	"github.com/softcrum/carril/schemas"
)

// DefaultMaxAge is how old an event may be and still cause a message: nobody
// wants a receipt for an invoice of two years ago.
const DefaultMaxAge = 24 * time.Hour

// Limits of a rule.
const (
	MaxName    = 200 // bytes, of each name in it
	MaxActions = 10
	MaxPoints  = 1_000_000_000 // of one action, either way
	MaxCap     = 1_000_000
)

// Rule is one version of a rule.
type Rule struct {
	ID        uuid.UUID `json:"rule_id"`
	Version   int       `json:"version"`
	Name      string    `json:"name"` // for people
	EventName string    `json:"event_name"`
	Condition string    `json:"condition"` // CEL; "true": always
	Actions   []Action  `json:"actions"`
	// ValidFrom and ValidUntil bound the occurred_at of events that this version
	// judges, the end excluded; nil: no bound.
	ValidFrom  *time.Time `json:"valid_from,omitempty"`
	ValidUntil *time.Time `json:"valid_until,omitempty"`
	Enabled    bool       `json:"enabled"`
	Cap        *Cap       `json:"cap,omitempty"` // nil: none
	CreatedAt  time.Time  `json:"created_at,omitzero"`
	program    *program
}

// Cap bounds how often a rule fires for one contact.
type Cap struct {
	Count  int    `json:"count"`            // at most so many
	Window string `json:"window,omitempty"` // within any time of this length, by occurred_at; empty: for ever
}

// Within is the cap's window; 0: for ever.
func (c Cap) Within() time.Duration {
	d, _ := time.ParseDuration(c.Window) // Compile has checked it
	return d
}

func (c Cap) validate() error {
	if c.Count < 1 || c.Count > MaxCap {
		return invalid("/cap/count", "count is 1 to %d", MaxCap)
	}
	if c.Window == "" {
		return nil
	}
	if d, err := time.ParseDuration(c.Window); err != nil || d < time.Second {
		return invalid("/cap/window", "window is a duration with its unit, at least 1s: 24h")
	}
	return nil
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

// Invalid says what is wrong with a rule and where in it.
type Invalid struct {
	Pointer string // JSON pointer into the rule
	Detail  string
}

func (e *Invalid) Error() string { return strings.TrimPrefix(e.Pointer+": "+e.Detail, ": ") }

func invalid(pointer, format string, args ...any) error {
	return &Invalid{pointer, fmt.Sprintf(format, args...)}
}

func (a Action) validate(at string) error {
	switch a.Type {
	case "points":
		if a.Points == 0 || a.Points > MaxPoints || a.Points < -MaxPoints {
			return invalid(at+"/points", "points are a number other than 0, at most %d either way", MaxPoints)
		}
		if a.Channel != "" || a.TemplateID != "" {
			return invalid(at, "an action gives points or notifies: write two")
		}
		return nil
	case "notify":
		return a.validateNotify(at)
	}
	return invalid(at+"/type", "an action is points or notify")
}

func (a Action) validateNotify(at string) error {
	if a.Points != 0 {
		return invalid(at, "an action gives points or notifies: write two")
	}
	if a.Channel == "" {
		return invalid(at+"/channel", "a notify action needs a channel")
	}
	if a.TemplateID == "" {
		return invalid(at+"/template_id", "a notify action needs a template_id")
	}
	for _, t := range [][2]string{{"channel", a.Channel}, {"template_id", a.TemplateID}} {
		if len(t[1]) > MaxName {
			return invalid(at+"/"+t[0], "at most %d bytes", MaxName)
		}
	}
	if a.TemplateVersion < 0 {
		return invalid(at+"/template_version", "a template's version is positive; without one it is the newest")
	}
	if _, ok := schemas.RailOf(a.Category); !ok {
		return invalid(at+"/category", "a category is transactional, product or marketing")
	}
	for _, d := range [][2]string{{"max_age", a.MaxAge}, {"expires_after", a.ExpiresAfter}} {
		if d[1] == "" {
			continue
		}
		if v, err := time.ParseDuration(d[1]); err != nil || v <= 0 {
			return invalid(at+"/"+d[0], "a positive duration with its unit: 24h")
		}
	}
	return nil
}

// Age is how old an event may be for this action to notify.
func (a Action) Age() time.Duration {
	if d, err := time.ParseDuration(a.MaxAge); err == nil {
		return d
	}
	return DefaultMaxAge
}

// Compile checks a rule and makes it ready to run. What is wrong with it is an
// *Invalid.
func Compile(r Rule) (*Rule, error) { return r.compiled() }

// Check is Compile for a rule that is written: it refuses a pattern, a time and
// a duration in its condition that cannot be read as well. A rule that was written
// before goes on: the rest of its condition may hold.
func Check(r Rule) (*Rule, error) {
	return r.compiled(cel.ASTValidators(cel.ValidateRegexLiterals(), cel.ValidateTimestampLiterals(), cel.ValidateDurationLiterals()))
}

func (r Rule) compiled(more ...cel.EnvOption) (*Rule, error) {
	if err := r.validate(); err != nil {
		return nil, err
	}
	p, err := compile(r.Condition, more...)
	if err != nil {
		return nil, invalid("/condition", "%s", err)
	}
	r.program = p
	return &r, nil
}

func (r Rule) validate() error {
	if !oneline.Fits(r.Name, MaxName) {
		return invalid("/name", "a name is one line of at most %d bytes", MaxName)
	}
	if len(r.Actions) == 0 || len(r.Actions) > MaxActions {
		return invalid("/actions", "a rule has 1 to %d actions", MaxActions)
	}
	for i, a := range r.Actions {
		if err := a.validate(fmt.Sprintf("/actions/%d", i)); err != nil {
			return err
		}
	}
	if err := r.window(); err != nil {
		return err
	}
	if r.Cap != nil {
		return r.Cap.validate()
	}
	return nil
}

// window refuses a rule that no event could meet.
func (r Rule) window() error {
	if r.ValidFrom != nil && r.ValidUntil != nil && !r.ValidFrom.Before(*r.ValidUntil) {
		return invalid("/valid_until", "valid_until lies after valid_from, which is now where a later version does not say it")
	}
	return nil
}

// Points is what one firing of the rule gives.
func (r *Rule) Points() int64 {
	var n int64
	for _, a := range r.Actions {
		if a.Type == "points" {
			n += a.Points
		}
	}
	return n
}

// Judges says whether this version is the one for events of a time.
func (r *Rule) Judges(occurred time.Time) bool {
	return (r.ValidFrom == nil || !occurred.Before(*r.ValidFrom)) && (r.ValidUntil == nil || occurred.Before(*r.ValidUntil))
}

// Holds says whether the rule's condition holds for an event of its name and
// time. The error is one of ErrCost, ErrAbsent, ErrNotBool and ErrFailed, for a
// condition that has no answer: it then holds not.
func (r *Rule) Holds(e *schemas.EventTracked) (bool, error) { return r.program.eval(e) }

// Versions are the versions of one rule, newest first, all compiled.
type Versions []*Rule

// For gives the version that judges an event: of those whose window holds its
// occurred_at the newest, so that an event that comes late meets the rule as it
// stood when it happened. Nil: none, or the rule is switched off, which its newest
// version says for all.
func (v Versions) For(e *schemas.EventTracked) *Rule {
	if len(v) == 0 || !v[0].Enabled {
		return nil
	}
	for _, r := range v {
		if !r.Judges(e.OccurredAt) {
			continue
		}
		if r.EventName == e.EventName {
			return r
		}
		return nil // the version for that time is about other events
	}
	return nil
}

// TemplateVariables are what a template sees of the event, as JSON.
func (a Action) TemplateVariables(e *schemas.EventTracked, points int64) (string, error) {
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
