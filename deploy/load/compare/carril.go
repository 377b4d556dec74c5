package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

// providerSecret signs what the provider reports to Carril.
const providerSecret = "whsec_Y2FycmlsLWNvbXBhcmUtcHJvdmlkZXItMDAwMDE="

// carrilSystem is Carril through its HTTP API: a front door, the stages and the
// maintenance in a process each, and the rails in as many as the others have.
type carrilSystem struct {
	o        options
	provider string
	addr     string // of the front door
	run      string // the database, and the prefix of topics and keys
	environ  []string
	roles    []*process
	blaster  string // API keys
	coder    string
}

// carrilWithProvider starts the provider too: it reports to the front door,
// without which a blast waits for the outcomes of its first messages.
func (o options) carrilWithProvider(ctx context.Context, l *ledger) (system, error) {
	if o.Sandbox != "" {
		return nil, errors.New("its provider must report to it: leave -sandbox out")
	}
	if os.Getenv("CARRIL_KAFKA_BROKERS") == "" || os.Getenv("CARRIL_REGISTRY_URL") == "" || o.Redis == "" || o.Postgres == "" {
		return nil, errors.New("it needs CARRIL_KAFKA_BROKERS, CARRIL_REGISTRY_URL, -redis and -postgres")
	}
	port, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	s := &carrilSystem{o: o, addr: port.Addr().String(), run: runName()}
	if err := port.Close(); err != nil {
		return nil, err
	}
	if err := os.Setenv("CARRIL_SANDBOX_WEBHOOK_SECRET", providerSecret); err != nil {
		return nil, err
	}
	if err := o.startProvider(ctx, l, "--webhook-url", "http://"+s.addr+"/v1/providers/resend/webhooks"); err != nil {
		return nil, err
	}
	s.provider = l.url
	return s, nil
}

func (s *carrilSystem) prepare(ctx context.Context) error {
	if err := s.execute(ctx, s.o.Postgres, "CREATE DATABASE "+s.run); err != nil {
		return fmt.Errorf("make a database: %w", err)
	}
	database, err := url.Parse(s.o.Postgres)
	if err != nil {
		return err
	}
	database.Path = "/" + s.run
	s.environ = append(os.Environ(), "CARRIL_POSTGRES_URL="+database.String(), "CARRIL_POSTGRES_DIRECT_URL="+database.String(), "CARRIL_REDIS_URL="+s.o.Redis,
		"CARRIL_KAFKA_PREFIX="+s.run+".", "CARRIL_REDIS_PREFIX="+s.run+":", "CARRIL_KAFKA_SINGLE_NODE=true", "CARRIL_LOG_LEVEL=warn",
		"CARRIL_RESEND_URL="+s.provider, "CARRIL_RESEND_KEY=re_compare_0123456789", "CARRIL_RESEND_WEBHOOK_SECRETS="+providerSecret,
		fmt.Sprintf("CARRIL_RESEND_RATE=%g", s.o.Profile.ProviderRate), "CARRIL_WEBHOOK_KEY=AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=")
	if _, err := s.command(ctx, "migrate", "all"); err != nil {
		return err
	}
	tenant := func(slug, scope string) (id, key string, err error) {
		if id, err = s.command(ctx, "tenant", "create", slug, "--plan", "scale"); err == nil {
			key, err = s.command(ctx, "key", "create", "--tenant", slug, "--scopes", scope)
		}
		return id, key, err
	}
	var a, b string
	if a, s.blaster, err = tenant("blaster", "messaging.blasts.write"); err != nil {
		return err
	}
	if b, s.coder, err = tenant("coder", "messaging.messages.write"); err != nil {
		return err
	}
	if err := s.seed(ctx, database.String(), a, b); err != nil {
		return err
	}
	for _, args := range [][]string{{"maintain"}, {"process"}, {"ingest", "--addr", s.addr}} {
		p, err := s.o.start(ctx, "carril-"+args[0], s.environ, s.o.Carril, append(args, "--json")...)
		if err != nil {
			return err
		}
		s.roles = append(s.roles, p)
	}
	return nil
}

// seed writes what is there before anybody blasts: senders, a template, and
// people who have agreed to be written to.
func (s *carrilSystem) seed(ctx context.Context, database, a, b string) error {
	for _, q := range []struct {
		sql  string
		args []any
	}{
		{`INSERT INTO messaging.senders (tenant_id, channel, sender, domain, verified) SELECT t::uuid, 'email', 'Shop <shop@example.com>', 'example.com', true FROM unnest($1::text[]) t`, []any{[]string{a, b}}},
		{`INSERT INTO messaging.templates (tenant_id, template_id, version, channel, subject, text) VALUES ($1::uuid, 'news', 1, 'email', 'Hello', 'This is our news.')`, []any{a}},
		{`WITH people AS (
    INSERT INTO core.contacts (tenant_id, contact_id, cell_id, known) SELECT $1::uuid, md5('person-' || n)::uuid, 'cell-1', true FROM generate_series(0, $2::int - 1) n
), identifiers AS (
    INSERT INTO core.contact_identifiers (tenant_id, kind, value, contact_id) SELECT $1::uuid, 'email', 'person-' || n || '@example.com', md5('person-' || n)::uuid FROM generate_series(0, $2::int - 1) n
)
INSERT INTO messaging.consents (tenant_id, contact_id, channel, purpose, granted, source)
SELECT $1::uuid, md5('person-' || n)::uuid, 'email', 'marketing', true, 'compare' FROM generate_series(0, $2::int - 1) n`, []any{a, s.o.Profile.Blast}},
		{`ANALYZE core.contacts, core.contact_identifiers, messaging.consents`, nil},
	} {
		if err := s.execute(ctx, database, q.sql, q.args...); err != nil {
			return fmt.Errorf("write the people: %w", err)
		}
	}
	return nil
}

func (s *carrilSystem) execute(ctx context.Context, database, sql string, args ...any) error {
	conn, err := pgx.Connect(ctx, database)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	_, err = conn.Exec(ctx, sql, args...)
	return err
}

func (s *carrilSystem) command(ctx context.Context, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, s.o.Carril, args...)
	var said bytes.Buffer
	cmd.Env, cmd.Stderr = s.environ, &said
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("carril %s: %w: %s", strings.Join(args, " "), err, said.String())
	}
	return strings.TrimSpace(string(out)), nil
}

func (s *carrilSystem) worker(ctx context.Context, i int) (*process, error) {
	environ := append(slices.Clone(s.environ), fmt.Sprintf("CARRIL_INSTANCE_ID=%s-%d", s.run, i), fmt.Sprintf("CARRIL_MARKETING_WORKERS=%d", s.o.Profile.share(i)))
	return s.o.start(ctx, fmt.Sprintf("carril-dispatch-%d", i), environ, s.o.Carril, "dispatch", "--json")
}

func (s *carrilSystem) code(ctx context.Context, n int) error {
	_, err := s.post(ctx, "messages", s.coder, map[string]any{"idempotency_key": fmt.Sprintf("code-%d", n), "channel": "email", "category": "transactional",
		"recipients": []any{map[string]any{"address": codeAddress(n)}}, "content": map[string]any{"subject": "Hello", "text": "493021 is your code."}})
	return err
}

func (s *carrilSystem) blast(ctx context.Context) error {
	raw, err := s.post(ctx, "blasts", s.blaster, map[string]any{"idempotency_key": "news", "name": "news", "channel": "email", "template_id": "news",
		"audience": map[string]any{"type": "contacts"}})
	if err != nil {
		return err
	}
	var made struct {
		ID string `json:"blast_id"`
	}
	if err := json.Unmarshal(raw, &made); err != nil {
		return err
	}
	_, err = s.post(ctx, "blasts/"+made.ID+"/start", s.blaster, map[string]any{})
	return err
}

func (s *carrilSystem) post(ctx context.Context, path, key string, body any) ([]byte, error) {
	raw, err := json.Marshal(body)
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+s.addr+"/v1/messaging/"+path, bytes.NewReader(raw))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Authorization", "Bearer "+key)
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	said, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	if err == nil && resp.StatusCode/100 != 2 {
		err = fmt.Errorf("%s: status %d: %.300s", path, resp.StatusCode, said)
	}
	return said, err
}

// close drops the database and the topics; the subjects in the registry stay,
// and a few keys in Redis have an end of their own.
func (s *carrilSystem) close(ctx context.Context) error {
	for _, p := range s.roles {
		p.stop()
	}
	return errors.Join(s.dropTopics(ctx), s.execute(ctx, s.o.Postgres, "DROP DATABASE IF EXISTS "+s.run+" WITH (FORCE)"))
}

func (s *carrilSystem) dropTopics(ctx context.Context) error {
	client, err := kgo.NewClient(kgo.SeedBrokers(strings.Split(os.Getenv("CARRIL_KAFKA_BROKERS"), ",")...))
	if err != nil {
		return err
	}
	defer client.Close()
	admin := kadm.NewClient(client)
	topics, err := admin.ListTopics(ctx)
	if err != nil {
		return fmt.Errorf("list the topics to drop: %w", err)
	}
	ours := slices.DeleteFunc(topics.Names(), func(name string) bool { return !strings.HasPrefix(name, s.run+".") })
	if len(ours) == 0 {
		return nil
	}
	dropped, err := admin.DeleteTopics(ctx, ours...)
	return errors.Join(err, dropped.Error())
}
