package app

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/softcrum/carril/ingestor/apikey"
	"github.com/softcrum/carril/internal/signature"
)

// Demo is what `carril dev` keeps beside its data, so that the same key and
// the same secrets work after a restart. The file is the owner's alone.
type Demo struct {
	TenantID       uuid.UUID `json:"tenant_id"`
	Key            string    `json:"key"`
	OperatorKey    string    `json:"operator_key"`
	ProviderKey    string    `json:"provider_key"`
	ProviderSecret string    `json:"provider_secret"` // signs the sandbox's webhooks
	EndpointSecret string    `json:"endpoint_secret"` // signs ours to the demo receiver
	WebhookKey     string    `json:"webhook_key"`     // encrypts endpoint secrets at rest
}

const demoFile = "demo.json"

// demoScopes is what the demo key may do.
var demoScopes = []string{"core.events.write", "core.events.read", "core.contacts.read", "core.contacts.erase", "core.taxonomy.manage", "core.rules.manage", "messaging.templates.manage", "messaging.senders.manage", "messaging.consents.manage", "messaging.suppressions.manage", "messaging.messages.write", "messaging.blasts.write", "messaging.sends.read", "webhooks.manage"}

// loadDemo reads the demo's secrets, or makes them.
func loadDemo(dir string) (*Demo, error) {
	path := filepath.Join(dir, demoFile)
	b, err := os.ReadFile(path)
	if err == nil {
		var d Demo
		if err := json.Unmarshal(b, &d); err != nil {
			return nil, fmt.Errorf("read %s: %w", path, err)
		}
		return &d, nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("read the demo's secrets: %w", err)
	}
	return &Demo{ProviderKey: "re_" + random(24), ProviderSecret: signature.NewSecret().Reveal(),
		WebhookKey: base64.StdEncoding.EncodeToString(randomBytes(32))}, nil
}

func (d *Demo) save(dir string) error {
	b, err := json.MarshalIndent(d, "", "  ")
	if err != nil {
		return fmt.Errorf("keep the demo's secrets: %w", err)
	}
	path := filepath.Join(dir, demoFile)
	if err := os.WriteFile(path+".new", b, 0o600); err != nil {
		return fmt.Errorf("keep the demo's secrets: %w", err)
	}
	return os.Rename(path+".new", path)
}

func randomBytes(n int) []byte {
	b := make([]byte, n)
	_, _ = rand.Read(b) // never fails: it ends the program instead
	return b
}

func random(n int) string { return base64.RawURLEncoding.EncodeToString(randomBytes(n)) }

// seed makes the demo tenant with a key, a template, a sender and one rule, as
// far as they are missing.
func (d *Demo) seed(ctx context.Context, pool *pgxpool.Pool) error {
	err := pool.QueryRow(ctx, `SELECT tenant_id FROM core.tenants WHERE slug = 'demo'`).Scan(&d.TenantID)
	if errors.Is(err, pgx.ErrNoRows) {
		d.TenantID, err = CreateTenant(ctx, pool, "demo", "Demo", "scale", "cell-1")
	}
	if err != nil {
		return err
	}
	if d.Key, err = keepKey(ctx, pool, d.Key, apikey.New{TenantID: d.TenantID, Env: "dev", Scopes: demoScopes, Name: "demo"}); err != nil {
		return err
	}
	d.OperatorKey, err = keepKey(ctx, pool, d.OperatorKey, apikey.New{Env: "dev", Scopes: []string{"messaging.queues.read"}, Name: "demo operator"})
	if err != nil {
		return err
	}
	const sql = `
WITH template AS (
    INSERT INTO messaging.templates (tenant_id, template_id, version, channel, subject, html, text) VALUES ($1, 'receipt', 1, 'email',
        'Thank you: invoice {{ properties.invoice | default: "received" }}',
        '<p>We received your payment. You have earned {{ points }} points.</p>',
        'We received your payment. You have earned {{ points }} points.')
    ON CONFLICT DO NOTHING
), sender AS (
    INSERT INTO messaging.senders (tenant_id, channel, sender, domain, verified) VALUES ($1, 'email', 'Demo Shop <shop@example.com>', 'example.com', true)
    ON CONFLICT DO NOTHING
), number AS (
    INSERT INTO messaging.senders (tenant_id, channel, sender, verified) VALUES ($1, 'sms', '+15005550006', true)
    ON CONFLICT DO NOTHING
)
INSERT INTO core.rules (tenant_id, rule_id, version, name, event_name, actions) VALUES ($1, $2, 1, 'points and a receipt for a paid invoice', 'invoice.paid',
    '[{"type":"points","points":10},{"type":"notify","channel":"email","category":"transactional","template_id":"receipt"}]')
ON CONFLICT DO NOTHING`
	if _, err := pool.Exec(ctx, sql, d.TenantID, uuid.NewSHA1(d.TenantID, []byte("demo rule"))); err != nil {
		return fmt.Errorf("seed the demo tenant: %w", err)
	}
	return nil
}

// keepKey gives the key if the database still knows it, else a new one.
func keepKey(ctx context.Context, pool *pgxpool.Pool, text string, n apikey.New) (string, error) {
	store := apikey.NewPostgres(pool)
	if k, ok := apikey.Parse(text); ok {
		rec, err := store.Lookup(ctx, k.ID)
		if err == nil && rec.Hash == k.Hash && rec.RevokedAt.IsZero() && rec.TenantID == n.TenantID {
			return text, nil
		}
		if err != nil && !errors.Is(err, apikey.ErrNoKey) {
			return "", fmt.Errorf("look up the demo key: %w", err)
		}
	}
	text, _, err := store.Create(ctx, n)
	return text, err
}
