package benchmarks

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/softcrum/carril/cmd/carril/app"
	"github.com/softcrum/carril/dispatcher/provider/sandbox"
	"github.com/softcrum/carril/dispatcher/webhook/seal"
	"github.com/softcrum/carril/internal/signature"
)

// reporters is how many reports the provider sends at once. With eight it reported at
// 600 a second, whatever it took: the reports of a faster blast came long after it, and
// what they cost was not in the figures.
const reporters = 64

// unlimited is a provider's rate that nothing here reaches.
const unlimited = 100_000

// wholeConfig is how the platform is started.
type wholeConfig struct {
	rate      float64 // requests a second that the provider takes
	requests  int     // how many of them it remembers; default 1,000
	processes int     // that dispatch, beside this one; 0 or 1: this one does
	workers   int     // of the marketing rail over all processes; 0: the setting's, in each
}

// whole is the whole platform in this process, or with its dispatch in
// processes of their own, and a provider that sends nothing.
type whole struct {
	*app.App
	provider *sandbox.Server
	secret   string // signs what the provider reports
	set      app.Settings
	children []*child
}

// startWhole starts all roles against a sandbox.
func (r *run) startWhole(ctx context.Context, cfg wholeConfig) (*whole, error) {
	w := &whole{}
	const key = "re_bench"
	if cfg.requests == 0 {
		cfg.requests = 1000
	}
	var err error
	w.provider, err = sandbox.New(sandbox.Config{Rate: max(1, int(cfg.rate)), APIKeys: []string{key}, MaxReceipts: 4 << 20, MaxRequests: cfg.requests, MaxContents: 10,
		Webhook: sandbox.WebhookConfig{DeliveryDelay: 50 * time.Millisecond, Workers: reporters}},
		sandbox.Deps{Logger: r.Log})
	if err != nil {
		return nil, fmt.Errorf("make the provider sandbox: %w", err)
	}
	if err := w.provider.Start(ctx); err != nil {
		return nil, fmt.Errorf("start the provider sandbox: %w", err)
	}
	w.set = r.set
	w.set.ResendURL, w.set.ResendKey, w.set.ResendRate = w.provider.URL(), key, cfg.rate
	w.secret = signature.NewSecret().Reveal()
	w.set.ResendSecrets = []string{w.secret}
	w.set.WebhookKey = seal.NewKey()
	if cfg.workers > 0 {
		w.set.Workers = cfg.workers
	}
	roles := app.AllRoles()
	roles.Dispatch = cfg.processes < 2
	if w.App, err = app.Start(ctx, w.set, roles, r.Log); err != nil {
		return nil, errors.Join(err, w.stop())
	}
	if !roles.Dispatch {
		if err := w.startChildren(ctx, r.Config, cfg); err != nil {
			return nil, errors.Join(err, w.stop())
		}
	}
	return w, nil
}

// wait waits for a moment, unless something of the platform fails meanwhile.
func (w *whole) wait(ctx context.Context, d time.Duration) error {
	for _, c := range w.children {
		select {
		case <-c.ended:
			return fmt.Errorf("a dispatch process ended: %s", c.lastWords())
		default:
		}
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case err := <-w.Failed():
		return fmt.Errorf("a role ended: %w", err)
	case <-time.After(d):
		return nil
	}
}

func (w *whole) stop() error {
	errs := []error{w.stopChildren()}
	if w.App != nil {
		errs = append(errs, w.Stop())
	}
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	return errors.Join(append(errs, w.provider.Stop(ctx))...)
}

// seedRule gives a tenant a template, a sender, and the rule that an event of
// the benchmarks gives points and asks for a message of a category.
func (s *site) seedRule(ctx context.Context, t tenant, category string) error {
	const sql = `
WITH template AS (
    INSERT INTO messaging.templates (tenant_id, template_id, version, channel, subject, html, text) VALUES ($1, 'receipt', 1, 'email',
        'Thank you: invoice {{ properties.invoice | default: "received" }}',
        '<p>We received your payment. You have earned {{ points }} points.</p>',
        'We received your payment. You have earned {{ points }} points.')
), sender AS (
    INSERT INTO messaging.senders (tenant_id, channel, sender, domain, verified) VALUES ($1, 'email', 'Shop <shop@example.com>', 'example.com', true)
)
INSERT INTO core.rules (tenant_id, rule_id, version, name, event_name, actions) VALUES ($1, $2, 1, 'points and a message', $3,
    jsonb_build_array(jsonb_build_object('type', 'points', 'points', 10),
        jsonb_build_object('type', 'notify', 'channel', 'email', 'category', $4::text, 'template_id', 'receipt')))`
	if _, err := s.pool.Exec(ctx, sql, t.id, uuid.New(), eventName, category); err != nil {
		return fmt.Errorf("seed a tenant: %w", err)
	}
	return nil
}

// receipts gives when the provider was first asked for each send.
func (w *whole) receipts() map[string]time.Time {
	first := map[string]time.Time{}
	for _, r := range w.provider.Receipts() {
		if at, ok := first[r.SendID]; !ok || r.At.Before(at) {
			first[r.SendID] = r.At
		}
	}
	return first
}

// received waits until the provider has taken n messages in all, while it takes
// any: stall says how long it may take none. It gives how many there are.
func (w *whole) received(ctx context.Context, n uint64, stall time.Duration) (uint64, error) {
	have, since := uint64(0), time.Now()
	for {
		got := w.provider.Counters().Accepted
		if got >= n {
			return got, nil
		}
		if got > have {
			have, since = got, time.Now()
		}
		if time.Since(since) > stall {
			return got, nil
		}
		select {
		case <-ctx.Done():
			return got, ctx.Err()
		case err := <-w.Failed():
			return got, fmt.Errorf("a role ended: %w", err)
		case <-time.After(200 * time.Microsecond):
		}
	}
}
