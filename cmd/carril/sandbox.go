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
	DailyQuota    int           `help:"Messages a day; 0 is none."`
	MonthlyQuota  int           `help:"Messages a month; 0 is none."`
	Latency       time.Duration `help:"Added to every accepted request."`
	WebhookURL    string        `help:"Where signed webhooks go; none when empty."`
	WebhookSecret string        `env:"CARRIL_SANDBOX_WEBHOOK_SECRET" help:"Their signing secret (whsec_…)."`
}

func (c sandboxCmd) Run(e *environment) error {
	cfg := sandbox.Config{Addr: c.Listen, AllowRemote: c.AllowRemote, Rate: c.Rate, DailyQuota: c.DailyQuota, MonthlyQuota: c.MonthlyQuota, Latency: c.Latency}
	if c.WebhookURL != "" {
		secret, err := signature.ParseSecret(c.WebhookSecret)
		if err != nil {
			return fmt.Errorf("%w: webhook-secret: %w", app.ErrConfig, err)
		}
		cfg.Webhook = sandbox.WebhookConfig{URL: c.WebhookURL, Secrets: []signature.Secret{secret}}
	}
	s, err := sandbox.New(cfg, sandbox.Deps{Logger: e.log})
	if err != nil {
		return fmt.Errorf("%w: %w", app.ErrConfig, err)
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
