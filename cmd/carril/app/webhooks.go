package app

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/softcrum/carril/dispatcher/webhook"
	"github.com/softcrum/carril/dispatcher/webhook/guard"
	"github.com/softcrum/carril/dispatcher/webhook/seal"
)

// webhookGuard says which addresses webhooks may go to.
func (s *Settings) webhookGuard() (*guard.Guard, error) {
	var cfg guard.Config
	for _, cidr := range s.WebhookPrivate {
		p, err := netip.ParsePrefix(cidr)
		if err != nil {
			return nil, configError("webhook-private-targets", "has %q, which is no CIDR range", cidr)
		}
		cfg.Private = append(cfg.Private, p)
	}
	cfg.AnyPort, cfg.AllowHTTP = s.WebhookAnyPort, s.WebhookHTTP
	g, err := guard.New(cfg, nil)
	if err != nil {
		return nil, fmt.Errorf("%w: webhook-private-targets: %w", ErrConfig, err)
	}
	return g, nil
}

// webhookKeys seal endpoints' secrets at rest.
func (s *Settings) webhookKeys() (*seal.Keys, error) {
	if s.WebhookKey == "" {
		return nil, configError("webhook-key", "is not set")
	}
	k, err := seal.Parse(s.WebhookKey)
	if err != nil {
		return nil, configError("webhook-key", "is not 32 bytes in Base64")
	}
	return k, nil
}

// startWebhooks turns events into deliveries and attempts them.
func (a *App) startWebhooks(ctx context.Context) error {
	g, err := a.set.webhookGuard()
	if err != nil {
		return err
	}
	keys, err := a.set.webhookKeys()
	if err != nil {
		return err
	}
	pool, err := a.pool(ctx, "webhooks", a.set.PostgresURL, 8)
	if err != nil {
		return err
	}
	d, err := webhook.New(webhook.Config{}, webhook.Deps{Pool: pool, Codec: a.codec, Guard: g, Keys: keys, Log: a.log, Metrics: a.reg})
	if err != nil {
		return err
	}
	a.onChange("core.webhook_endpoints", d.Forget)
	a.stack.Go(lifecyclePart("webhook deliveries", d.Run))
	return a.startStage(ctx, stage{webhook.Stage, webhook.Topics(), d.Handler(), nil, 6})
}

// subscribe makes the demo's endpoint point at its receiver, whose port is a
// new one at each start.
func (d *Dev) subscribe(ctx context.Context) error {
	g, err := d.set.webhookGuard()
	if err != nil {
		return err
	}
	keys, err := d.set.webhookKeys()
	if err != nil {
		return err
	}
	store := webhook.NewStore(webhook.StoreConfig{}, webhook.StoreDeps{Pool: d.side, Guard: g, Keys: keys})
	have, err := store.List(ctx, d.Demo.TenantID, [16]byte{}, 100)
	if err != nil {
		return err
	}
	if i := slices.IndexFunc(have, func(e webhook.Endpoint) bool { return e.Description == demoEndpoint }); i >= 0 && d.Demo.EndpointSecret != "" {
		_, err := store.Update(ctx, d.Demo.TenantID, have[i].ID, webhook.Change{URL: &d.Receiver})
		return errors.Join(err, d.recv.expect(d.Demo.EndpointSecret))
	}
	_, secret, err := store.Create(ctx, d.Demo.TenantID, webhook.Draft{URL: d.Receiver, Description: demoEndpoint, EventTypes: []string{"*"}})
	if err != nil {
		return fmt.Errorf("subscribe the demo's receiver: %w", err)
	}
	d.Demo.EndpointSecret = secret.Reveal()
	return errors.Join(d.recv.expect(d.Demo.EndpointSecret), d.Demo.save(d.dir))
}

const demoEndpoint = "the demo's own receiver"
