package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/softcrum/carril/dispatcher/provider/sandbox"
	"github.com/softcrum/carril/internal/devstack"
	"github.com/softcrum/carril/internal/pg"
	"github.com/softcrum/carril/internal/signature"
	"github.com/softcrum/carril/migrations"
)

// Dev is the whole product in one process on embedded parts, with a demo
// tenant, a provider sandbox and a receiver of its own webhooks.
type Dev struct {
	*App
	Demo     *Demo
	Sandbox  *sandbox.Server
	Receiver string // where the demo's webhooks arrive
	Embedded []string

	dir   string
	stack *devstack.Stack
	recv  *receiver
}

// StartDev starts it on a data folder. What set names replaces the embedded
// part of its kind.
func StartDev(ctx context.Context, set Settings, dir string, log *slog.Logger) (*Dev, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, fmt.Errorf("find the data folder: %w", err)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("make the data folder: %w", err)
	}
	d := &Dev{dir: dir}
	if err := d.start(ctx, set, log); err != nil {
		return nil, errors.Join(err, d.Stop())
	}
	return d, nil
}

func (d *Dev) start(ctx context.Context, set Settings, log *slog.Logger) (err error) {
	if err := d.startParts(ctx, &set, d.dir, log); err != nil {
		return err
	}
	if err := d.prepare(ctx, &set, d.dir); err != nil {
		return err
	}
	if d.App, err = Start(ctx, set, AllRoles(), log); err != nil {
		return err
	}
	secret, err := signature.ParseSecret(d.Demo.ProviderSecret)
	if err != nil {
		return fmt.Errorf("read the demo's secrets: %w", err)
	}
	if err := d.Sandbox.SetWebhook(d.API+"/v1/providers/resend/webhooks", secret); err != nil {
		return fmt.Errorf("point the sandbox's webhooks here: %w", err)
	}
	d.Sandbox.SetCallbacks(d.API)
	return d.subscribe(ctx)
}

// startParts brings up what set does not name.
func (d *Dev) startParts(ctx context.Context, set *Settings, dir string, log *slog.Logger) error {
	var err error
	d.stack, err = devstack.Start(ctx, devstack.Config{Dir: dir, KafkaBrokers: set.KafkaBrokers, RegistryURL: set.RegistryURL,
		PostgresURL: set.PostgresURL, RedisURL: set.RedisURL, StorageURL: set.StorageURL, Log: log})
	if errors.Is(err, devstack.ErrInUse) {
		return fmt.Errorf("%w: another `carril dev` runs on %s", err, dir)
	}
	if err != nil {
		return err
	}
	if _, embedded := d.stack.Embedded[devstack.Kafka]; embedded {
		set.KafkaSingleNode = true
	}
	set.KafkaBrokers, set.RegistryURL, set.PostgresURL = d.stack.KafkaBrokers, d.stack.RegistryURL, d.stack.PostgresURL
	set.RedisURL, set.StorageURL = d.stack.RedisURL, d.stack.StorageURL
	for _, what := range d.stack.Embedded {
		d.Embedded = append(d.Embedded, what)
	}
	slices.Sort(d.Embedded)
	if set.InstanceID == "" {
		set.InstanceID = "dev" // a restart gets its partitions back at once
	}
	return writeEnv(filepath.Join(dir, "env"), *set)
}

// writeEnv lets other commands find this process's parts.
func writeEnv(path string, set Settings) error {
	lines := []string{
		"CARRIL_KAFKA_BROKERS=" + strings.Join(set.KafkaBrokers, ","), fmt.Sprintf("CARRIL_KAFKA_SINGLE_NODE=%t", set.KafkaSingleNode),
		"CARRIL_REGISTRY_URL=" + set.RegistryURL, "CARRIL_POSTGRES_URL=" + set.PostgresURL, "CARRIL_REDIS_URL=" + set.RedisURL,
		"CARRIL_STORAGE_URL=" + set.StorageURL,
	}
	if err := os.WriteFile(path, []byte(strings.Join(lines, "\n")+"\n"), 0o600); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}

// ReadEnv reads what writeEnv wrote, for commands beside a running `carril dev`.
func ReadEnv(path string) (map[string]string, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	env := map[string]string{}
	for line := range strings.Lines(string(b)) {
		if k, v, ok := strings.Cut(strings.TrimSpace(line), "="); ok {
			env[k] = v
		}
	}
	return env, nil
}

// prepare migrates, seeds the demo, and starts what stands in for the world
// outside: the provider and the receiver.
func (d *Dev) prepare(ctx context.Context, set *Settings, dir string) error {
	if err := migrations.Up(ctx, set.direct()); err != nil {
		return err
	}
	kc, err := set.KafkaConfig()
	if err != nil {
		return err
	}
	cl, err := kc.NewProducer()
	if err != nil {
		return err
	}
	defer cl.Close()
	_, embedded := d.stack.Embedded[devstack.Kafka]
	if err := MigrateTopics(ctx, *set, kadm.NewClient(cl), kc.Specs(set.Channels, embedded)); err != nil {
		return err
	}
	if err := d.seedDemo(ctx, *set, dir); err != nil {
		return err
	}
	d.Sandbox, err = sandbox.New(sandbox.Config{Rate: int(set.ResendRate), SMSRate: int(set.SMSRate), SMSTokens: []string{d.Demo.ProviderKey}, APIKeys: []string{d.Demo.ProviderKey},
		Webhook: sandbox.WebhookConfig{DeliveryDelay: 50 * time.Millisecond}}, sandbox.Deps{})
	if err != nil {
		return fmt.Errorf("make the provider sandbox: %w", err)
	}
	if err := d.Sandbox.Start(ctx); err != nil {
		return fmt.Errorf("start the provider sandbox: %w", err)
	}
	d.recv = &receiver{}
	if d.Receiver, err = d.recv.start(); err != nil {
		return err
	}
	set.ResendURL, set.ResendKey, set.ResendSecrets = d.Sandbox.URL(), d.Demo.ProviderKey, []string{d.Demo.ProviderSecret}
	// Text messages go to the sandbox as well, where the channel is asked for; it
	// reports to wherever the API comes to listen.
	set.SMSURL, set.SMSAccount, set.SMSToken, set.SMSKey = d.Sandbox.URL(), "ACdemo", d.Demo.ProviderKey, ""
	set.SMSCallbackURL, set.SMSTokens = "http://127.0.0.1/v1/providers/sms/webhooks", nil
	set.WebhookKey = d.Demo.WebhookKey
	// The demo's receiver is on this machine, without a certificate.
	set.WebhookPrivate, set.WebhookHTTP, set.WebhookAnyPort = append(set.WebhookPrivate, "127.0.0.0/8"), true, true
	return nil
}

func (d *Dev) seedDemo(ctx context.Context, set Settings, dir string) error {
	var err error
	if d.Demo, err = loadDemo(dir); err != nil {
		return err
	}
	var pool *pgxpool.Pool
	if pool, err = pg.Open(ctx, pg.Config{URL: set.PostgresURL, MaxConns: 2}); err != nil {
		return err
	}
	defer pool.Close()
	if err := d.Demo.seed(ctx, pool); err != nil {
		return err
	}
	return d.Demo.save(dir)
}

// Failed gives the first failure of a role or of an embedded part.
func (d *Dev) Failed() <-chan error {
	out := make(chan error, 1)
	go func() {
		select {
		case err := <-d.App.Failed():
			out <- err
		case err := <-d.stack.Failed():
			out <- err
		}
	}()
	return out
}

// Stop ends roles first, then what they stood on.
func (d *Dev) Stop() error {
	var errs []error
	if d.App != nil {
		errs = append(errs, d.App.Stop())
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if d.Sandbox != nil {
		errs = append(errs, d.Sandbox.Stop(ctx))
	}
	if d.recv != nil {
		errs = append(errs, d.recv.stop(ctx))
	}
	if d.stack != nil {
		errs = append(errs, d.stack.Stop(ctx))
	}
	return errors.Join(errs...)
}

// Curl is the request to copy: an invoice that was paid.
func (d *Dev) Curl() string {
	return fmt.Sprintf(`curl -s %s/v1/core/track \
  -H 'Authorization: Bearer %s' -H 'Content-Type: application/json' \
  -d '{"event_name":"invoice.paid","idempotency_key":"invoice-'$RANDOM'","occurred_at":"'$(date -u +%%Y-%%m-%%dT%%H:%%M:%%SZ)'",
       "identifiers":{"email":"ana@example.com"},"properties":{"invoice":"889","total":42.50}}'`, d.API, d.Demo.Key)
}
