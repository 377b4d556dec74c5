// Package providerhook is the door for providers' webhooks: it bounds and reads
// the raw body, verifies the signature over exactly those bytes, and enqueues
// what came. It owns which sources there are and which of their secrets hold. It
// leaves what an event means, its deduplication and its send to the status
// worker, which reads the queue; it fetches nothing and writes nothing itself.
// The front door mounts Handler at Route.
package providerhook

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/softcrum/carril/internal/signature"
)

// Route is where Handler is to be mounted, for every method: it answers 405 by
// itself. It reads {provider} with http.Request.PathValue.
const Route = "/v1/providers/{provider}/webhooks"

// Verifier names a way of signing; the set is closed, and there is none that
// accepts what it cannot verify.
type Verifier string

// The verifiers. The first two are one: both read either family of headers, and
// the names are there for whoever knows his provider by one of them. SignedURL is
// for callbacks signed with the URL that they are posted to (signature.VerifyURL).
const (
	StandardWebhooks Verifier = "standard-webhooks"
	Svix             Verifier = "svix"
	SignedURL        Verifier = "signed-url"
)

// Event is one verified webhook.
type Event struct {
	Provider        string
	ProviderEventID string    // the signed id: what to dedupe on
	ReceivedAt      time.Time // ours
	RawBody         []byte    // the bytes that were signed
	Reference
}

// Reference is what an event says of the message that it is about; anything may
// be absent.
type Reference struct {
	SendID, TenantID  uuid.UUID
	ProviderMessageID string
}

// Queue keeps events for the status worker. Enqueue returns nil once an event
// cannot be lost any more.
type Queue interface {
	Enqueue(ctx context.Context, e Event) error
}

// Secret verifies one source until it is replaced.
type Secret struct {
	signature.Secret
	// Until is when a replaced secret stops to hold; zero is never.
	Until time.Time
}

// Source is one provider that may call.
type Source struct {
	// Provider is its name in the path: lower-case letters, digits and dashes.
	Provider string
	Verifier Verifier
	// Secrets are tried all; at least one must hold.
	Secrets []Secret
	// Refer reads a verified body; nil reads nothing. It must bear any input.
	Refer func(body []byte) Reference
	// URL is where the provider posts to, as it sees us, without a query; required
	// with SignedURL and of no use otherwise.
	URL string
	// ReferCallback stands for Refer with SignedURL, where the query says as much as
	// the body; it gives the event's id too, which such callbacks do not carry.
	// Without an id, an event's bytes are its identity.
	ReferCallback func(query url.Values, body []byte) (ref Reference, eventID string)
}

// Config is what the handler is told.
type Config struct {
	Sources []Source
	// MaxBody is in bytes; 0 is 900 KiB, which stays below a broker's usual limit
	// of 1 MiB a record.
	MaxBody int64
	// Timeout bounds Enqueue; 0 is 2 s.
	Timeout time.Duration
	// RetryAfter is what a 503 asks the provider to wait, in whole seconds; 0 is 5 s.
	RetryAfter time.Duration
}

// Deps is what the handler works with. Queue is required.
type Deps struct {
	Queue Queue
	// Now is the clock of tolerance and of secrets; nil is time.Now.
	Now func() time.Time
	// Registerer takes the metrics; nil is none.
	Registerer prometheus.Registerer
	// Logger takes what could not be enqueued; nil is silence.
	Logger *slog.Logger
}

const (
	defaultMaxBody    = 900 << 10
	defaultTimeout    = 2 * time.Second
	defaultRetryAfter = 5 * time.Second
	maxSecrets        = 8 // each costs a hash of the body
)

func (c Config) withDefaults() Config {
	if c.MaxBody == 0 {
		c.MaxBody = defaultMaxBody
	}
	if c.Timeout == 0 {
		c.Timeout = defaultTimeout
	}
	if c.RetryAfter == 0 {
		c.RetryAfter = defaultRetryAfter
	}
	return c
}

func (c Config) validate(now time.Time) error {
	switch {
	case c.MaxBody < 0:
		return errors.New("max_body is negative")
	case c.Timeout < 0:
		return errors.New("timeout is negative")
	case c.RetryAfter < time.Second:
		return errors.New("retry_after is below 1 s")
	case len(c.Sources) == 0:
		return errors.New("there is no source")
	}
	seen := map[string]bool{}
	for _, s := range c.Sources {
		if seen[s.Provider] {
			return fmt.Errorf("source %q is there twice", s.Provider)
		}
		seen[s.Provider] = true
		if err := s.validate(now); err != nil {
			return fmt.Errorf("source %q: %w", s.Provider, err)
		}
	}
	return nil
}

func (s Source) validate(now time.Time) error {
	const letters = "abcdefghijklmnopqrstuvwxyz0123456789-"
	if s.Provider == "" || len(s.Provider) > 32 || strings.Trim(s.Provider, letters) != "" || s.Provider == unknownProvider {
		return errors.New("provider is no name of lower-case letters, digits and dashes, or it is taken")
	}
	switch s.Verifier {
	case StandardWebhooks, Svix:
	case SignedURL:
		if u, err := url.Parse(s.URL); err != nil || u.Host == "" || u.RawQuery != "" {
			return fmt.Errorf("verifier %s needs the URL that is signed, without a query", s.Verifier)
		}
	default:
		return fmt.Errorf("unknown verifier %q, want %s, %s or %s", s.Verifier, StandardWebhooks, Svix, SignedURL)
	}
	return validateSecrets(s.Secrets, now)
}

func validateSecrets(secrets []Secret, now time.Time) error {
	for _, s := range secrets {
		if s.IsZero() {
			return errors.New("secrets hold an empty one")
		}
	}
	switch {
	case len(secrets) > maxSecrets:
		return fmt.Errorf("more than %d secrets", maxSecrets)
	case len(holding(secrets, now)) == 0:
		return errors.New("no secret holds")
	}
	return nil
}

// holding gives the secrets that verify at a time.
func holding(secrets []Secret, now time.Time) []signature.Secret {
	out := make([]signature.Secret, 0, len(secrets))
	for _, s := range secrets {
		if s.Until.IsZero() || now.Before(s.Until) {
			out = append(out, s.Secret)
		}
	}
	return out
}
