package apikey

import (
	"errors"
	"slices"
	"time"

	"github.com/google/uuid"
)

// Scopes of the runtime API: sending events (FS-CORE-0006, API), asking for
// messages, and reading the limits of both.
const (
	ScopeEventsWrite   = "core.events.write"
	ScopeMessagesWrite = "messaging.messages.write"
	ScopeEventsRead    = "core.events.read" // of which GET /v1/core/limits is the runtime API's
)

// Errors of Verify. ErrInvalid says nothing of why: a caller that could tell an
// unknown key from a revoked one could look for keys.
var (
	ErrInvalid        = errors.New("api key: not valid")
	ErrTenantDisabled = errors.New("api key: its tenant is disabled")
	ErrUnavailable    = errors.New("api key: the key store is away")
)

// ErrNoKey is a Store's answer for a key that does not exist.
var ErrNoKey = errors.New("api key: no such key")

// Principal is who stands behind a key. It is shared and must not be changed.
type Principal struct {
	KeyID    string
	Env      string
	TenantID uuid.UUID // uuid.Nil: an operator, who belongs to no tenant
	Scopes   []string
	Rate     Rate   // the key's own limit, beside its tenant's; zero: none
	Tenant   Tenant // zero for an operator
}

// Rate limits what may be sent, in events.
type Rate struct {
	PerSecond int
	Burst     int // at once
}

// Tenant is what the front door needs to know of a tenant.
type Tenant struct {
	Slug            string
	CellID          string
	PlanID          string
	RetentionMonths int  // the plan's; how far back occurred_at may lie
	EventsPerSecond int  // the plan's rate
	EventsBurst     int  // the plan's burst
	Clamp           bool // clock policy: move occurred_at into the window instead of refusing it
	Disabled        bool
}

// Can says whether the key has a scope.
func (p *Principal) Can(scope string) bool { return slices.Contains(p.Scopes, scope) }

// Record is a stored key with its tenant's settings.
type Record struct {
	Principal
	Hash      [32]byte
	ExpiresAt time.Time // zero: never
	RevokedAt time.Time // zero: not revoked
}

// alive says whether the key works at a time.
func (r *Record) alive(now time.Time) bool {
	return r.RevokedAt.IsZero() && (r.ExpiresAt.IsZero() || now.Before(r.ExpiresAt))
}
