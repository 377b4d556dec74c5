package main

import (
	"context"
	"fmt"
	"time"

	"github.com/softcrum/carril/cmd/carril/app"
	"github.com/softcrum/carril/dispatcher/provider/sandbox"
	"github.com/softcrum/carril/internal/signature"
)

type sandboxCmd struct {
	roleFlags
	Listen        string        `default:"127.0.0.1:0" help:"Address to listen on."`
	AllowRemote   bool          `help:"Listen beyond loopback: whoever reaches it reads every message."`
	Rate          int           `default:"5" help:"Requests a second over all keys, as the provider counts by team."`
	TextRate      int           `default:"10" help:"Text messages a second."`
	DailyQuota    int           `help:"Messages a day; 0 is none."`
	MonthlyQuota  int           `help:"Messages a month; 0 is none."`
	Latency       time.Duration `help:"Added to every accepted request."`
	WebhookURL    string        `help:"Where signed webhooks go; none when empty."`
	WebhookSecret string        `env:"CARRIL_SANDBOX_WEBHOOK_SECRET" help:"Their signing secret (whsec_…)."`
	WebhookSpeed  float64       `default:"1" help:"Divides the waits between the attempts of a webhook that is not taken: 5 s, 5 min, 30 min, …"`
	TextToken     string        `env:"CARRIL_SANDBOX_TEXT_TOKEN" help:"Token of the text message API, which signs its callbacks; any of 16 characters when empty."`
	CallbackFront string        `help:"Where callbacks of text messages go, instead of the host that they name: http://HOST:PORT."`
	Faults        string        `help:"Faults that the first requests meet, as JSON; see below."`
}

// Help says what the sandbox does on demand.
func (sandboxCmd) Help() string {
	return `It serves the email API at /emails and /emails/batch, the text message API at /2010-04-01/Accounts/{account}/Messages.json,
what it took at /, and as JSON at /sandbox/receipts, /sandbox/requests, /sandbox/counters and /sandbox/messages/{id}.

Faults are met one request each, in order. POST /sandbox/faults (application/json) queues one or a list of them, GET shows
and DELETE drops what nothing has met yet; --faults queues them at the start:

  {"kind":"status","status":429,"name":"rate_limit_exceeded","retry_after":"soon","times":3}

Of a fault:

  kind         status             refuse with status, name, message; retry_after is the header as it stands: "0", "-5", "1e9", a date
               error_in_success   the same under 200
               reset, hang        take nothing, and reset the connection or say nothing
               partial            refuse the messages at items of a batch, take the others
               accept_then_status, accept_then_hang, accept_then_reset, accept_then_close
                                  take the messages, then fail so
               slow_drip          take them, answer a byte every delay_ms
               huge_body, unparsable, short
                                  take them, answer too much, a page, or for one message less
  endpoint     emails, batch or messages; all when absent
  times        how many requests meet it; 1 when absent

A quota is a status of 429 with the name daily_quota_exceeded or monthly_quota_exceeded (text messages: 63038), or
--daily-quota and --monthly-quota. What becomes of an email stands in its recipient's name (bounced@, soft@, complained@,
opened@, clicked@, delayed@, failed@, suppressed@, rejected@), of a text message in its number's end (0001 out of reach,
0002 no such handset, 0003 filtered, 0004 opted out).`
}

func (c sandboxCmd) Run(e *environment) error {
	cfg := sandbox.Config{Addr: c.Listen, AllowRemote: c.AllowRemote, Rate: c.Rate, DailyQuota: c.DailyQuota, MonthlyQuota: c.MonthlyQuota, Latency: c.Latency, SMSRate: c.TextRate}
	if c.TextToken != "" {
		cfg.SMSTokens = []string{c.TextToken}
	}
	if c.WebhookURL != "" {
		secret, err := signature.ParseSecret(c.WebhookSecret)
		if err != nil {
			return fmt.Errorf("%w: webhook-secret: %w", app.ErrConfig, err)
		}
		cfg.Webhook = sandbox.WebhookConfig{URL: c.WebhookURL, Secrets: []signature.Secret{secret}, Speed: c.WebhookSpeed}
	}
	s, err := sandbox.New(cfg, sandbox.Deps{Logger: e.log})
	if err != nil {
		return fmt.Errorf("%w: %w", app.ErrConfig, err)
	}
	s.SetCallbacks(c.CallbackFront)
	if c.Faults != "" {
		if err := s.InjectJSON([]byte(c.Faults)); err != nil {
			return fmt.Errorf("%w: faults: %w", app.ErrConfig, err)
		}
	}
	ctx, stop := signals()
	defer stop()
	if err := s.Start(ctx); err != nil {
		return err
	}
	e.ready(readyLine{Sandbox: s.URL()}, c.JSON)
	<-ctx.Done()
	sctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), e.set.Drain)
	defer cancel()
	return s.Stop(sctx)
}
