package benchmarks

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sr"

	"github.com/softcrum/carril/cmd/carril/app"
	"github.com/softcrum/carril/internal/bench"
	"github.com/softcrum/carril/internal/cores"
	"github.com/softcrum/carril/internal/devstack"
	"github.com/softcrum/carril/internal/kafka"
	"github.com/softcrum/carril/internal/pg"
	"github.com/softcrum/carril/internal/ratelimit"
	"github.com/softcrum/carril/migrations"
	"github.com/softcrum/carril/schemas"
)

// closeTimeout bounds the removal of what a benchmark made.
const closeTimeout = 30 * time.Second

// siteConfig says what a benchmark needs that others do not.
type siteConfig struct {
	partitions map[string]int32 // by topic; what is absent has the deployment's own count
}

// site is what a benchmark works on: services that are shared, or embedded for
// it alone, and in them topics, a database and tenants of its own.
type site struct {
	set     app.Settings // names the site's own database and prefix
	kafka   kafka.Config
	client  *kgo.Client
	adm     *kadm.Client
	pool    *pgxpool.Pool
	machine bench.Machine

	stack  *devstack.Stack
	undo   []func(context.Context) error // in order of making
	suffix string
}

// openSite brings everything up. ctx bounds the start alone.
func openSite(ctx context.Context, cfg Config, want siteConfig) (s *site, err error) {
	s = &site{set: cfg.Settings, suffix: randomName()}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.close())
		}
	}()
	for _, step := range []func() error{
		func() error { return s.startParts(ctx, cfg) },
		func() error { return s.makeDatabase(ctx) },
		func() error { return s.makeTopics(ctx, want) },
		func() error { return s.describe(ctx) },
	} {
		if err := step(); err != nil {
			return s, err
		}
	}
	return s, nil
}

// startParts embeds what the settings do not name, and moves the settings to
// names of the site's own.
func (s *site) startParts(ctx context.Context, cfg Config) error {
	set := &s.set
	var err error
	s.stack, err = devstack.Start(ctx, devstack.Config{Ephemeral: true, KafkaBrokers: set.KafkaBrokers, RegistryURL: set.RegistryURL,
		PostgresURL: set.PostgresURL, RedisURL: set.RedisURL, StorageURL: set.StorageURL, Log: cfg.Log})
	if err != nil {
		return err
	}
	s.undo = append(s.undo, s.stack.Stop)
	set.KafkaBrokers, set.RegistryURL, set.PostgresURL = s.stack.KafkaBrokers, s.stack.RegistryURL, s.stack.PostgresURL
	set.RedisURL, set.StorageURL = s.stack.RedisURL, s.stack.StorageURL
	set.KafkaPrefix += "bench-" + s.suffix + "."
	set.RedisPrefix += "bench-" + s.suffix + ":"
	s.undo = append(s.undo, s.dropKeys)
	set.InstanceID = "bench-" + s.suffix
	set.Addr, set.OpsAddr = "127.0.0.1:0", "127.0.0.1:0"
	set.Drain = min(set.Drain, 10*time.Second)
	return nil
}

func (s *site) embedded(p devstack.Part) bool {
	_, ok := s.stack.Embedded[p]
	return ok
}

// makeDatabase makes and migrates a database beside the one that the settings
// name.
func (s *site) makeDatabase(ctx context.Context) error {
	admin := s.set.PostgresDirectURL
	if admin == "" {
		admin = s.set.PostgresURL
	}
	name := "carril_bench_" + s.suffix
	if err := execute(ctx, admin, "CREATE DATABASE "+name); err != nil {
		return fmt.Errorf("make a database: %w", err)
	}
	s.undo = append(s.undo, func(ctx context.Context) error {
		return execute(ctx, admin, "DROP DATABASE IF EXISTS "+name+" WITH (FORCE)")
	})
	var err error
	if s.set.PostgresURL, err = withDatabase(s.set.PostgresURL, name); err != nil {
		return err
	}
	if s.set.PostgresDirectURL, err = withDatabase(admin, name); err != nil {
		return err
	}
	if err := migrations.Up(ctx, s.set.PostgresDirectURL); err != nil {
		return err
	}
	if s.pool, err = pg.Open(ctx, pg.Config{URL: s.set.PostgresURL, MaxConns: 4, ByKey: true}); err != nil {
		return err
	}
	s.undo = append(s.undo, func(context.Context) error { s.pool.Close(); return nil })
	return nil
}

func execute(ctx context.Context, url, sql string) error {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return fmt.Errorf("connect to PostgreSQL: %w", err)
	}
	defer conn.Close(context.WithoutCancel(ctx))
	_, err = conn.Exec(ctx, sql)
	return err
}

func withDatabase(raw, name string) (string, error) {
	u, err := url.Parse(raw)
	if err != nil {
		return "", fmt.Errorf("%w: postgres-url is not a URL", app.ErrConfig)
	}
	u.Path = "/" + name
	return u.String(), nil
}

// makeTopics makes every topic under the site's prefix, and registers the
// schemas.
func (s *site) makeTopics(ctx context.Context, want siteConfig) error {
	kc, err := s.set.KafkaConfig()
	if err != nil {
		return err
	}
	if s.client, err = kc.NewProducer(); err != nil {
		return fmt.Errorf("%w: %w", app.ErrConfig, err)
	}
	s.undo = append(s.undo, func(context.Context) error { s.client.Close(); return nil })
	s.adm = kadm.NewClient(s.client)
	brokers, err := s.adm.ListBrokers(ctx)
	if err != nil {
		return fmt.Errorf("ask Kafka for its brokers: %w", err)
	}
	// A benchmark keeps nothing: it may run where a deployment may not.
	s.set.KafkaSingleNode = s.set.KafkaSingleNode || len(brokers) < 3
	if s.kafka, err = s.set.KafkaConfig(); err != nil {
		return err
	}
	specs := s.kafka.Specs(s.set.Channels, s.embedded(devstack.Kafka))
	for i := range specs {
		if n, ok := want.partitions[s.kafka.Logical(specs[i].Name)]; ok {
			specs[i].Partitions = n
		}
	}
	s.undo = append(s.undo, s.dropSubjects, s.dropTopics)
	return app.MigrateTopics(ctx, s.set, s.adm, specs)
}

// makeTopic makes one more topic, with the settings of one of the platform's.
func (s *site) makeTopic(ctx context.Context, name, like string) (physical string, err error) {
	specs := s.kafka.Specs(s.set.Channels, s.embedded(devstack.Kafka))
	i := slices.IndexFunc(specs, func(sp kafka.Spec) bool { return sp.Name == s.kafka.Topic(like) })
	spec := specs[i]
	spec.Name = s.kafka.Topic(name)
	if _, err := kafka.CreateTopics(ctx, s.adm, []kafka.Spec{spec}); err != nil {
		return "", err
	}
	return spec.Name, kafka.WaitForTopics(ctx, s.adm, spec.Name)
}

// dropTopics drops what stands under the prefix: topics, and groups that nobody
// is in any more. An embedded broker is gone with all it had.
func (s *site) dropTopics(ctx context.Context) error {
	if s.embedded(devstack.Kafka) {
		return nil
	}
	ours := func(names []string) []string {
		return slices.DeleteFunc(names, func(n string) bool { return !strings.HasPrefix(n, s.set.KafkaPrefix) })
	}
	if groups, err := s.adm.ListGroups(ctx); err == nil {
		if names := ours(groups.Groups()); len(names) > 0 {
			_, _ = s.adm.DeleteGroups(ctx, names...) // one that a member has just left ends by itself
		}
	}
	topics, err := s.adm.ListTopics(ctx)
	if err != nil {
		return fmt.Errorf("list the topics to drop: %w", err)
	}
	if names := ours(topics.Names()); len(names) > 0 {
		dropped, err := s.adm.DeleteTopics(ctx, names...)
		if err = errors.Join(err, dropped.Error()); err != nil {
			return fmt.Errorf("drop the topics: %w", err)
		}
	}
	return nil
}

// dropSubjects takes the schemas out of a shared registry. One that lets nobody
// delete keeps them: a few subjects under a random prefix, that nothing reads.
func (s *site) dropSubjects(ctx context.Context) error {
	if s.embedded(devstack.Registry) {
		return nil
	}
	opts := []sr.ClientOpt{sr.URLs(s.set.RegistryURL)}
	if s.set.RegistryUser != "" {
		opts = append(opts, sr.BasicAuth(s.set.RegistryUser, s.set.RegistryPassword))
	}
	if s.set.RegistryToken != "" {
		opts = append(opts, sr.BearerToken(s.set.RegistryToken))
	}
	reg, err := sr.NewClient(opts...)
	if err != nil {
		return fmt.Errorf("make a client of the registry: %w", err)
	}
	for _, t := range schemas.Topics(s.set.Channels) {
		subject := schemas.Subject(s.kafka.Topic(t.Name))
		if _, err := reg.DeleteSubject(ctx, subject, sr.SoftDelete); err == nil {
			_, _ = reg.DeleteSubject(ctx, subject, sr.HardDelete)
		}
	}
	return nil
}

// describe says where the figures come from.
func (s *site) describe(ctx context.Context) error {
	s.machine = bench.Machine{Cores: cores.Given()}
	s.machine.Kafka = "embedded"
	if !s.embedded(devstack.Kafka) {
		var err error
		if s.machine.Kafka, err = kafkaVersion(ctx, s.adm); err != nil {
			return err
		}
	}
	var version string
	if err := s.pool.QueryRow(ctx, "SHOW server_version").Scan(&version); err != nil {
		return fmt.Errorf("ask PostgreSQL for its version: %w", err)
	}
	pgAs := "PostgreSQL " + strings.Fields(version)[0]
	if s.embedded(devstack.Postgres) {
		pgAs += " (embedded, without fsync)"
	}
	s.machine.Others = []string{pgAs}
	return nil
}

// dropKeys takes the site's counters out of a shared Redis.
func (s *site) dropKeys(ctx context.Context) error {
	if s.embedded(devstack.Redis) {
		return nil
	}
	cl, err := ratelimit.Open(s.set.RedisURL)
	if err != nil {
		return fmt.Errorf("open Redis to clear it: %w", err)
	}
	defer cl.Close()
	keys := cl.Scan(ctx, 0, s.set.RedisPrefix+"*", 1000).Iterator()
	for keys.Next(ctx) {
		if err := cl.Del(ctx, keys.Val()).Err(); err != nil {
			return fmt.Errorf("clear Redis: %w", err)
		}
	}
	return keys.Err()
}

// embeddedCluster is the cluster id of the embedded broker, which a running
// `carril dev` shares.
const embeddedCluster = "carril-embedded"

// kafkaVersion asks the broker; the protocol tells the release, never the patch.
func kafkaVersion(ctx context.Context, adm *kadm.Client) (string, error) {
	meta, err := adm.BrokerMetadata(ctx)
	if err != nil {
		return "", fmt.Errorf("ask Kafka for its brokers: %w", err)
	}
	if meta.Cluster == embeddedCluster {
		return "embedded", nil
	}
	brokers, err := adm.ApiVersions(ctx)
	if err != nil {
		return "", fmt.Errorf("ask Kafka for its version: %w", err)
	}
	for _, b := range brokers.Sorted() {
		if b.Err == nil {
			return strings.Replace(b.VersionGuess(), "v", "", 1), nil
		}
	}
	return "unknown", nil
}

// close undoes everything, newest first, also after a signal.
func (s *site) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	var errs []error
	for _, undo := range slices.Backward(s.undo) {
		errs = append(errs, undo(ctx))
	}
	s.undo = nil
	return errors.Join(errs...)
}

func randomName() string {
	b := make([]byte, 5)
	_, _ = rand.Read(b) // never fails
	return hex.EncodeToString(b)
}
