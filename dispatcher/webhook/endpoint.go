package webhook

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/softcrum/carril/internal/oneline"
	"github.com/softcrum/carril/internal/signature"
)

// ErrNotFound says that the tenant has no such endpoint. An endpoint of another
// tenant is not found either.
var ErrNotFound = errors.New("webhook endpoint not found")

// Error is a typed refusal of what a tenant asked for. Pointer is the JSON
// pointer of the field at fault; Detail is for people. Refusals of the guard are
// *guard.Error; both have Problem.
type Error struct {
	Code    string
	Pointer string
	Detail  string
}

func (e *Error) Error() string { return e.Code + ": " + e.Detail }

// Problem gives the parts of a typed refusal, for an API's answer.
func (e *Error) Problem() (code, pointer, detail string) { return e.Code, e.Pointer, e.Detail }

func refuse(code, pointer, detail string) error { return &Error{code, pointer, detail} }

// Deliveries of an endpoint.
const (
	DeliverySingle = "single" // one event a request
	DeliveryBatch  = "batch"  // many; not offered yet
)

// Reasons for which an endpoint is disabled.
const (
	DisabledByTenant = "by_tenant"
	DisabledGone     = "gone"    // it answered 410
	DisabledFailing  = "failing" // nothing but failures for Config.DisableAfter
)

// Endpoint is where a tenant hears of its events.
type Endpoint struct {
	ID             uuid.UUID  `json:"endpoint_id"`
	TenantID       uuid.UUID  `json:"-"`
	URL            string     `json:"url"`
	Description    string     `json:"description"`
	EventTypes     []string   `json:"event_types"`
	Delivery       string     `json:"delivery"`
	HeaderNames    []string   `json:"header_names"` // of the tenant's own headers; values are never shown
	DisabledAt     *time.Time `json:"disabled_at"`
	DisabledReason string     `json:"disabled_reason,omitempty"`
	FailingSince   *time.Time `json:"failing_since"`
	CreatedAt      time.Time  `json:"created_at"`
	UpdatedAt      time.Time  `json:"updated_at"`
}

// Draft is an endpoint to be.
type Draft struct {
	URL         string            `json:"url"`
	Description string            `json:"description"` // at most 500 bytes
	EventTypes  []string          `json:"event_types"` // see EventTypes; "*" and "messaging.message.*" too
	Delivery    string            `json:"delivery"`    // default single
	Headers     map[string]string `json:"headers"`     // sent with every request
}

// Change is what becomes different; nil leaves a field as it is.
type Change struct {
	URL         *string           `json:"url"`
	Description *string           `json:"description"`
	EventTypes  []string          `json:"event_types"`
	Headers     map[string]string `json:"headers"` // all of them; empty: none
}

const maxDescription = 500

func checkDescription(s string) error {
	if !oneline.Fits(s, maxDescription) {
		return refuse("invalid_description", "/description", fmt.Sprintf("one line of at most %d bytes", maxDescription))
	}
	return nil
}

func checkDelivery(s string) error {
	switch s {
	case "", DeliverySingle:
		return nil
	case DeliveryBatch:
		return refuse("delivery_not_supported", "/delivery", "batch delivery is not offered yet; use single")
	}
	return refuse("invalid_delivery", "/delivery", "the delivery is single")
}

// sealedSecret is an element of core.webhook_endpoints.secrets, newest first.
type sealedSecret struct {
	Sealed string     `json:"sealed"`
	Until  *time.Time `json:"until"` // null: until it is rotated
}

func (s sealedSecret) alive(now time.Time) bool { return s.Until == nil || now.Before(*s.Until) }

// What is sealed is bound to its endpoint and its use.
func secretOwner(endpoint uuid.UUID) string {
	return "webhook-endpoint/" + endpoint.String() + "/secret"
}
func headersOwner(endpoint uuid.UUID) string {
	return "webhook-endpoint/" + endpoint.String() + "/headers"
}

// opener reads what was sealed; *seal.Keys is one.
type opener interface {
	Open(owner, sealed string) ([]byte, error)
}

func openSecrets(keys opener, endpoint uuid.UUID, sealed []sealedSecret, now time.Time) ([]signature.Secret, error) {
	var out []signature.Secret
	for _, s := range sealed {
		if !s.alive(now) {
			continue
		}
		plain, err := keys.Open(secretOwner(endpoint), s.Sealed)
		if err != nil {
			return nil, fmt.Errorf("open a signing secret: %w", err)
		}
		secret, err := signature.ParseSecret(string(plain))
		if err != nil {
			return nil, fmt.Errorf("open a signing secret: %w", err)
		}
		out = append(out, secret)
	}
	return out, nil
}

func openHeaders(keys opener, endpoint uuid.UUID, sealed []byte) (map[string]string, error) {
	if len(sealed) == 0 {
		return nil, nil
	}
	plain, err := keys.Open(headersOwner(endpoint), string(sealed))
	if err != nil {
		return nil, fmt.Errorf("open the headers: %w", err)
	}
	var headers map[string]string
	if err := json.Unmarshal(plain, &headers); err != nil {
		return nil, fmt.Errorf("read the headers: %w", err)
	}
	return headers, nil
}
