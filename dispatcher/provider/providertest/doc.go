// Package providertest is the one suite that every provider adapter passes. It
// owns what an adapter must make of a server that misbehaves: which class each
// failure has, that one Send is one attempt, that a batch's results come back in
// the request's order, that errors carry nothing private. An adapter's test
// brings a Backend, which is its provider's protocol spoken by a server that
// does as it is told; HTTPBackend is most of one for a provider with an HTTP
// API, SMTPBackend is a relay. Tests alone import this package.
package providertest

import (
	"github.com/google/uuid"

	"github.com/softcrum/carril/dispatcher/provider"
)

// Kind is a way to behave.
type Kind string

// The kinds.
const (
	OK              Kind = "ok"                // take every message
	Permanent       Kind = "permanent"         // refuse the request for good
	ItemFailures    Kind = "item_failures"     // take it but for Behaviour.Items
	Throttled       Kind = "throttled"         // refuse for the rate, with Behaviour.RetryAfter
	NamedWait       Kind = "named_wait"        // asked of Supports alone: Throttled can say for how long
	DailyQuota      Kind = "daily_quota"       // refuse for the day's quota
	MonthlyQuota    Kind = "monthly_quota"     // refuse for the month's quota
	AccountRefused  Kind = "account_refused"   // refuse the credential
	SenderRefused   Kind = "sender_refused"    // refuse the message's sender
	ServerError     Kind = "server_error"      // fail with Behaviour.Status, taking nothing
	AcceptThenError Kind = "accept_then_error" // take it, then fail with Behaviour.Status
	AcceptThenHang  Kind = "accept_then_hang"  // take it, then say nothing
	AcceptThenReset Kind = "accept_then_reset" // take it, then reset the connection
	AcceptThenClose Kind = "accept_then_close" // take it, then close the connection without a byte
	Reset           Kind = "reset"             // reset the connection, taking nothing
	SlowDrip        Kind = "slow_drip"         // take it, then answer a byte at a time, without end
	HugeBody        Kind = "huge_body"         // take it, then answer far too much
	ErrorInSuccess  Kind = "error_in_success"  // refuse for good under the status of success
	Unparsable      Kind = "unparsable"        // take it, then answer success with what is no answer
	Short           Kind = "short"             // take it, then answer for one message less
	InFlight        Kind = "in_flight"         // refuse since the same key is being worked on
)

// Behaviour is what a backend does with one physical request.
type Behaviour struct {
	Kind Kind
	// Items are the places of the messages that ItemFailures refuses.
	Items []int
	// RetryAfter is the header that Throttled sends, as it stands; nil sends none.
	RetryAfter *string
	// Status is what ServerError and AcceptThenError answer; 0 is 500.
	Status int
	// Reached, if any, is called by AcceptThenHang once nothing more will come, and
	// by SlowDrip once its first byte is out.
	Reached func()
}

// Request is one physical request as the backend saw it.
type Request struct {
	Key  string // its idempotency key; empty where the protocol has none
	Body []byte // nil where the protocol has no body of its own
}

// Backend is a provider's server under orders. It is safe for concurrent use.
type Backend interface {
	// Supports says whether the protocol can behave so at all.
	Supports(Kind) bool
	// Enact makes the next physical requests behave so, one each; after them the
	// backend is as OK.
	Enact(...Behaviour)
	// Requests gives every physical request since the start, in order.
	Requests() []Request
	// IDs gives the provider's ids of each message taken; more than one for a
	// send is a message that was sent twice.
	IDs() map[uuid.UUID][]string
}

// Subject is an adapter and the backend that it talks to.
type Subject struct {
	Provider provider.Provider
	Backend  Backend
	// Unreachable is the same adapter before an address where nothing listens.
	Unreachable provider.Provider
	// Message gives the i-th message to send; nil is an email to
	// "rcpt-i@example.com".
	Message func(i int) provider.Message
	// Private are texts that no error may repeat, beside the messages' own.
	Private []string
	// Timeout is the code of an attempt whose deadline passed; empty is "timeout".
	Timeout string
}
