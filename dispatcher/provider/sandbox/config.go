// Package sandbox is a provider that sends nothing: it serves Resend's API, and
// one for text messages of the form that Twilio's has, as far as sending goes,
// with their limits, quotas, idempotency, errors and signed reports, and
// misbehaves on demand. It keeps in memory what it was asked and what it took, for tests and for the eyes of a developer. It is the default
// provider of `carril dev`, and what `carril sandbox` runs. It shares no code
// with the adapter that talks to it, so that one cannot hide a fault of the
// other.
package sandbox

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"net/url"
	"time"

	"github.com/softcrum/carril/internal/signature"
)

// Config is what the sandbox is told. The zero value is a fresh Resend account
// on a free loopback port.
type Config struct {
	// Addr is where Start listens; empty is 127.0.0.1:0, a free port. An address
	// that is not loopback needs AllowRemote: whoever reaches the sandbox reads
	// every message.
	Addr        string
	AllowRemote bool

	// APIKeys are accepted; empty accepts any key that begins with "re_".
	APIKeys []string
	// UnverifiedDomains are sender domains that are answered with 403.
	UnverifiedDomains []string

	// Rate is how many requests a window takes over all keys, as Resend counts
	// by team; 0 is 5.
	Rate int
	// Window is the rate's; 0 is 1 s.
	Window time.Duration
	// DailyQuota and MonthlyQuota are in messages, by UTC day and month; 0 is none.
	DailyQuota, MonthlyQuota int
	// Latency is added before an accepted request is taken; 0 is none.
	Latency time.Duration
	// KeyLife is how long an idempotency key is remembered; 0 is 24 h.
	KeyLife time.Duration

	Webhook WebhookConfig

	// SMSTokens authenticate with the text message API, and the first of them signs
	// its callbacks; empty accepts any token of 16 characters, which then signs.
	SMSTokens []string
	// SMSRate is how many text messages a window takes; 0 is 10.
	SMSRate int

	// MaxKeys, MaxRequests, MaxReceipts and MaxContents bound what is remembered
	// of each: the oldest go first, the counters go on. 0 is 250,000 keys, 200
	// contents, and 100,000 of the others.
	MaxKeys, MaxRequests, MaxReceipts, MaxContents int
}

// WebhookConfig says how the sandbox reports what becomes of messages.
type WebhookConfig struct {
	// URL takes the webhooks; empty sends none. See SetWebhook too.
	URL string
	// Secrets sign each webhook, all of them; required where URL is set.
	Secrets []signature.Secret
	// DeliveryDelay lies between a message's events, the first of which
	// (email.sent) goes at once; 0 is 1 s, negative is none.
	DeliveryDelay time.Duration
	// Speed divides the waits of Resend's retry schedule (5 s, 5 min, 30 min,
	// 2 h, 5 h, 10 h, 10 h); 0 is 1, as Resend does.
	Speed float64
	// Timeout bounds one attempt; 0 is 15 s.
	Timeout time.Duration
	// Workers is how many attempts go at once; 0 is 8.
	Workers int
	// MaxPending bounds the events that wait to go; 0 is 200,000. What finds no
	// place is dropped and counted.
	MaxPending int
}

// Deps is what the sandbox works with.
type Deps struct {
	// Now is the clock of windows, quotas and keys; nil is time.Now.
	Now func() time.Time
	// Logger takes failures of the sandbox itself; nil is silence.
	Logger *slog.Logger
}

func (c Config) withDefaults() Config {
	c.Addr = orString(c.Addr, "127.0.0.1:0")
	c.Rate = or(c.Rate, 5)
	c.SMSRate = or(c.SMSRate, 10)
	c.Window = or(c.Window, time.Second)
	c.KeyLife = or(c.KeyLife, 24*time.Hour)
	c.MaxKeys = or(c.MaxKeys, 250_000)
	c.MaxRequests = or(c.MaxRequests, 100_000)
	c.MaxReceipts = or(c.MaxReceipts, 100_000)
	c.MaxContents = or(c.MaxContents, 200)
	c.Webhook.DeliveryDelay = max(0, or(c.Webhook.DeliveryDelay, time.Second))
	c.Webhook.Speed = or(c.Webhook.Speed, 1)
	c.Webhook.Timeout = or(c.Webhook.Timeout, 15*time.Second)
	c.Webhook.Workers = or(c.Webhook.Workers, 8)
	c.Webhook.MaxPending = or(c.Webhook.MaxPending, 200_000)
	return c
}

func or[T int | float64 | time.Duration](v, otherwise T) T {
	if v == 0 {
		return otherwise
	}
	return v
}

func orString(v, otherwise string) string {
	if v == "" {
		return otherwise
	}
	return v
}

// validate looks at a config with its defaults filled in. Errors name settings,
// not values.
func (c Config) validate() error {
	for name, v := range map[string]int64{
		"rate": int64(c.Rate), "sms_rate": int64(c.SMSRate), "window": int64(c.Window), "key_life": int64(c.KeyLife), "max_keys": int64(c.MaxKeys),
		"max_requests": int64(c.MaxRequests), "max_receipts": int64(c.MaxReceipts), "max_contents": int64(c.MaxContents),
		"webhook.timeout": int64(c.Webhook.Timeout), "webhook.workers": int64(c.Webhook.Workers),
		"webhook.max_pending": int64(c.Webhook.MaxPending),
	} {
		if v < 1 {
			return fmt.Errorf("%s is not positive", name)
		}
	}
	for name, v := range map[string]int64{
		"daily_quota": int64(c.DailyQuota), "monthly_quota": int64(c.MonthlyQuota), "latency": int64(c.Latency),
	} {
		if v < 0 {
			return fmt.Errorf("%s is negative", name)
		}
	}
	if !(c.Webhook.Speed >= 0.001 && c.Webhook.Speed <= 1e9) { // NaN too
		return errors.New("webhook.speed is not within 0.001 and 1e9")
	}
	if err := c.checkAddr(); err != nil {
		return err
	}
	return checkWebhook(c.Webhook.URL, c.Webhook.Secrets)
}

func (c Config) checkAddr() error {
	host, _, err := net.SplitHostPort(c.Addr)
	if err != nil {
		return errors.New("addr is not HOST:PORT")
	}
	ip, err := netip.ParseAddr(host)
	if host == "localhost" || err == nil && ip.IsLoopback() || c.AllowRemote {
		return nil
	}
	return errors.New("addr is not loopback, and remote access was not allowed")
}

func checkWebhook(target string, secrets []signature.Secret) error {
	if target == "" {
		return nil
	}
	u, err := url.Parse(target)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return errors.New("webhook.url is not an http or https URL")
	}
	for _, s := range secrets {
		if s.IsZero() {
			return errors.New("webhook.secrets holds an empty secret")
		}
	}
	if len(secrets) == 0 {
		return errors.New("webhook.url needs webhook.secrets")
	}
	return nil
}
