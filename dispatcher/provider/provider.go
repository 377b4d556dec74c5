// Package provider is the contract between the rails and whoever carries a
// message the last mile. It owns the request, the result and the closed set of
// error classes; each adapter (resend, smtp, sms) lives in a folder of its own
// and passes providertest, the one suite for all. When and how fast to send is
// the rail's business.
package provider

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
)

// Message is one rendered message to one recipient.
type Message struct {
	SendID   uuid.UUID
	TenantID uuid.UUID
	From     string // "Name <local@domain>" or an address
	ReplyTo  string // empty: none
	To       string // one bare address; its form depends on the channel
	Subject  string
	HTML     string
	Text     string
	Headers  map[string]string
}

// Frozen is the exact body of one provider request. A retry of an uncertain
// attempt sends these bytes again, unchanged, under the same key
// (FS-MSG-0005 §6).
type Frozen struct {
	Endpoint string // the adapter's own name for the route, e.g. "batch"
	Body     []byte // bytes as they go over the wire, before transfer encoding
	Count    int    // messages in the body, in order
}

// Request is a frozen body and the idempotency key that belongs to it for life.
type Request struct {
	Frozen
	IdempotencyKey string // 1 to 256 characters
}

// Result is the provider's answer to a request that it took, whole or in part.
// Items has one entry per message of the request, in the request's order; it is
// nil beside an error. Limits is set whenever there was an answer, beside an
// error too: a 429 says most about them.
type Result struct {
	Items  []Item
	Limits Limits
}

// Item is the outcome of one message. Exactly one of the fields is set.
type Item struct {
	ProviderMessageID string
	Err               *Error // a failure of this message alone; its class is ClassPermanent unless the provider says otherwise
}

// Limits is what the provider's headers said of its own state. Where it said
// nothing, Limit and Reset are 0 and the others -1: start from NoLimits.
type Limits struct {
	Limit       int           // requests per window
	Remaining   int           // requests left in the window; -1 when not stated
	Reset       time.Duration // until the window ends
	DailyUsed   int           // messages of today's quota used; -1 when not stated
	MonthlyUsed int           // messages of the month's quota used; -1 when not stated
}

// NoLimits is the state of a provider that said nothing of it.
func NoLimits() Limits { return Limits{Remaining: -1, DailyUsed: -1, MonthlyUsed: -1} }

// Capabilities says what an adapter's provider can do.
type Capabilities struct {
	Channel         string        // "email", "sms"
	IdempotencyKeys bool          // the same key and body within KeyLife is one effect
	KeyLife         time.Duration // how long the provider remembers a key
	Batch           bool          // has an endpoint for many messages a request
	MaxBatch        int           // messages a request; 1 without Batch
	MaxBodyBytes    int           // of one request's body
	RatePerSecond   float64       // the provider's stated default, in requests
}

// Provider sends frozen requests. Implementations are safe for concurrent use.
type Provider interface {
	Name() string
	Capabilities() Capabilities
	// Freeze renders messages to the bytes of one request; one message goes to
	// the single endpoint only where batch is false. It is pure: the same
	// messages give the same bytes. A message that can never be sent is a
	// *MessageError: fail that one and freeze the others.
	Freeze(msgs []Message, batch bool) (Frozen, error)
	// Send makes one attempt. A failure of the request as a whole is an *Error
	// with a class; a failure of single messages stands in the result.
	// It never retries by itself and honours ctx's deadline.
	Send(ctx context.Context, r Request) (Result, error)
}

// Class is what a failure means to the rail; the set is closed and is the
// metric label.
type Class string

const (
	// ClassPermanent fails the message for good.
	ClassPermanent Class = "permanent"
	// ClassRetryable is a failure known not to have been taken, worth another try.
	ClassRetryable Class = "retryable"
	// ClassThrottled was refused for rate or quota; wait Error.RetryAfter. No attempt is counted.
	ClassThrottled Class = "throttled"
	// ClassUncertain may have been taken: timeout, reset, 5xx after the body left.
	ClassUncertain Class = "uncertain"
	// ClassSender is a refusal of this tenant's sender or domain.
	ClassSender Class = "sender"
	// ClassConfiguration is a refusal of the account itself: stop the rail, alarm.
	ClassConfiguration Class = "configuration"
)

// Classes lists every class, for metrics that pre-initialise their labels.
func Classes() []Class {
	return []Class{ClassPermanent, ClassRetryable, ClassThrottled, ClassUncertain, ClassSender, ClassConfiguration}
}

// Error is a classified provider failure. Detail carries no recipient, no
// content and no credential.
type Error struct {
	Class      Class
	Code       string        // the provider's own name for it, or ours: "timeout", "reset"
	Status     int           // HTTP or SMTP status; 0 when there was no answer
	RetryAfter time.Duration // ClassThrottled: clamped to [1 s, 15 min]; 0 when the provider named none
	Quota      bool          // ClassThrottled: a daily or monthly quota, not the rate
	Divisible  bool          // ClassPermanent of a whole batch for what is likely one message's fault: freeze its halves anew
	Recipient  bool          // ClassRetryable for a reason of this recipient alone, as greylisting: it says nothing about the provider's health
	Detail     string
	Err        error
}

func (e *Error) Error() string {
	s := fmt.Sprintf("provider: %s (%s)", e.Code, e.Class)
	if e.Status != 0 {
		s = fmt.Sprintf("provider: %d %s (%s)", e.Status, e.Code, e.Class)
	}
	if e.Detail != "" {
		s += ": " + e.Detail
	}
	return s
}

func (e *Error) Unwrap() error { return e.Err }

// MessageError is Freeze's refusal of one message of several. Index is its place
// among them; the reason is of ClassPermanent.
type MessageError struct {
	Index  int
	Reason *Error
}

func (e *MessageError) Error() string {
	return fmt.Sprintf("freeze message %d: %v", e.Index, e.Reason)
}

func (e *MessageError) Unwrap() error { return e.Reason }

// ClassOf gives err's class; an error that is no *Error is uncertain, the only
// safe assumption.
func ClassOf(err error) Class {
	var e *Error
	if errors.As(err, &e) {
		return e.Class
	}
	return ClassUncertain
}
