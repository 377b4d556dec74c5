package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/softcrum/carril/cmd/carril/app"
	"github.com/softcrum/carril/internal/gates"
	"github.com/softcrum/carril/internal/pg"
	"github.com/softcrum/carril/internal/testkit"
	"github.com/softcrum/carril/processor/rules"
)

// TestRulesCommands writes a rule, its next version, and tries one over events.
func TestRulesCommands(t *testing.T) {
	url := testkit.Postgres(t)
	t.Setenv("CARRIL_POSTGRES_URL", url)
	pool, err := pg.Open(t.Context(), pg.Config{URL: url, MaxConns: 2})
	require.NoError(t, err)
	defer pool.Close()
	tenant, err := app.CreateTenant(t.Context(), pool, "acme", "Acme", "starter", "cell-1")
	require.NoError(t, err)
	_, err = pool.Exec(t.Context(), `INSERT INTO core.tracked_events (tenant_id, event_id, cell_id, contact_id, kind, event_name, properties, occurred_at, occurred_offset, received_at,
    idempotency_key, correlation_id, retention_months, historical, lane, lane_seq)
SELECT $1, gen_random_uuid(), 'cell-1', gen_random_uuid(), 'track', 'invoice.paid', jsonb_build_object('total', i), now() - interval '1 minute', 0, now(), 'k' || i, 'c', 13, false, 1, i
FROM generate_series(1, 10) i`, tenant)
	require.NoError(t, err)

	file := filepath.Join(t.TempDir(), "rule.json")
	require.NoError(t, os.WriteFile(file, []byte(`{"name":"r","event_name":"invoice.paid","condition":"properties.total > 7","actions":[{"type":"points","points":5}]}`), 0o600))
	id := uuid.NewString()
	code, out, errs := try("rules", "put", "--tenant", "acme", id, file)
	require.Zero(t, code, errs)
	require.Contains(t, out, `"version": 1`)
	code, out, errs = try("rules", "list", "--tenant", "acme")
	require.Zero(t, code, errs)
	require.Contains(t, out, id)
	code, out, errs = try("rules", "show", "--tenant", "acme", id)
	require.Zero(t, code, errs)
	require.Contains(t, out, `properties.total > 7`)

	from := time.Now().Add(-time.Hour).UTC().Format(time.RFC3339)
	for _, args := range [][]string{{file}, {"--rule", id}} {
		code, out, errs = try(append([]string{"rules", "test", "--tenant", "acme", "--from", from, "--json"}, args...)...)
		require.Zero(t, code, errs)
		var rep rules.Report
		require.NoError(t, json.Unmarshal([]byte(out), &rep))
		require.Equal(t, 10, rep.Seen)
		require.Equal(t, 3, rep.Fired)
		require.EqualValues(t, 15, rep.Points)
	}
	code, out, errs = try("rules", "test", "--tenant", "acme", "--from", from, file)
	require.Zero(t, code, errs)
	require.Contains(t, out, "events of its name")

	bad := filepath.Join(t.TempDir(), "bad.json")
	require.NoError(t, os.WriteFile(bad, []byte(`{"event_name":"invoice.paid","condition":"properties.total >","actions":[{"type":"points","points":5}]}`), 0o600))
	fax, pattern := filepath.Join(t.TempDir(), "fax.json"), filepath.Join(t.TempDir(), "pattern.json")
	require.NoError(t, os.WriteFile(fax, []byte(`{"event_name":"invoice.paid","actions":[{"type":"notify","channel":"fax","category":"product","template_id":"t"}]}`), 0o600))
	require.NoError(t, os.WriteFile(pattern, []byte(`{"event_name":"invoice.paid","condition":"properties.s.matches('(')","actions":[{"type":"points","points":5}]}`), 0o600))
	for name, args := range map[string][]string{
		"UnknownChannel": {"rules", "put", "--tenant", "acme", id, fax},
		"BadPattern":     {"rules", "test", "--tenant", "acme", "--from", from, pattern},
		"NoFile":         {"rules", "test", "--tenant", "acme", "--from", from},
		"BothNamed":      {"rules", "test", "--tenant", "acme", "--from", from, "--rule", id, file},
		"NotATime":       {"rules", "test", "--tenant", "acme", "--from", "yesterday", file},
		"Backwards":      {"rules", "test", "--tenant", "acme", "--from", "2030-01-02", "--to", "2030-01-01", file},
		"BadCondition":   {"rules", "test", "--tenant", "acme", "--from", from, bad},
		"FileIsMissing":  {"rules", "put", "--tenant", "acme", id, "/nowhere.json"},
	} {
		t.Run(name, func(t *testing.T) {
			code, out, errs := try(args...)
			require.Equal(t, exitUsage, code, errs)
			require.Empty(t, out)
		})
	}
	code, _, errs = try("rules", "test", "--tenant", "acme", "--from", from, "--rule", uuid.NewString())
	require.Equal(t, exitFailed, code)
	require.Contains(t, errs, "has no rule")
}

func TestSenderCommands(t *testing.T) {
	url := testkit.Postgres(t)
	t.Setenv("CARRIL_POSTGRES_URL", url)
	pool, err := pg.Open(t.Context(), pg.Config{URL: url, MaxConns: 2})
	require.NoError(t, err)
	defer pool.Close()
	tenant, err := app.CreateTenant(t.Context(), pool, "acme", "Acme", "starter", "cell-1")
	require.NoError(t, err)
	_, err = gates.NewStore(pool).PutSender(t.Context(), tenant, "email", "Shop <shop@example.com>", nil, "example.com")
	require.NoError(t, err)

	code, _, errs := try("sender", "verify", "--tenant", "acme", "rival.example.com")
	require.Equal(t, exitFailed, code, "the sender's domain is another")
	require.Contains(t, errs, "no such sender")
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"list"}, "false"}, {[]string{"verify", "example.com"}, "true"},
		{[]string{"pause", "--reason", "abuse"}, "abuse"}, {[]string{"resume"}, "-"},
	} {
		code, out, errs := try(append([]string{"sender", c.args[0], "--tenant", "acme"}, c.args[1:]...)...)
		require.Zero(t, code, errs)
		require.Contains(t, out, "shop@example.com")
		require.Contains(t, out, c.want)
	}

	code, out, errs := try("sender", "set", "--tenant", "acme", "+15005550006")
	require.Zero(t, code, errs)
	require.Contains(t, out, "sms")
	require.Contains(t, out, "+15005550006")
	require.Contains(t, out, "true", "a number of the platform's needs nobody to verify it")
	code, _, errs = try("sender", "set", "--tenant", "acme", "--channel", "email", "Shop <shop@rival.example.com>")
	require.Equal(t, exitUsage, code)
	require.Contains(t, errs, "sets its sender of email itself")
}
