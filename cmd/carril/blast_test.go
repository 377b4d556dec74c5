package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/softcrum/carril/cmd/carril/app"
	"github.com/softcrum/carril/dispatcher/blast"
	"github.com/softcrum/carril/internal/pg"
	"github.com/softcrum/carril/internal/testkit"
)

// TestBlastCommands takes a blast through its life by hand.
func TestBlastCommands(t *testing.T) {
	url := testkit.Postgres(t)
	t.Setenv("CARRIL_POSTGRES_URL", url)
	pool, err := pg.Open(t.Context(), pg.Config{URL: url, MaxConns: 2})
	require.NoError(t, err)
	defer pool.Close()
	tenant, err := app.CreateTenant(t.Context(), pool, "acme", "Acme", "starter", "cell-1")
	require.NoError(t, err)
	for _, sql := range []string{
		`INSERT INTO messaging.senders (tenant_id, channel, sender, verified) VALUES ($1, 'email', 'acme@example.com', true) ON CONFLICT (tenant_id, channel) DO UPDATE SET verified = true`,
		`INSERT INTO messaging.templates (tenant_id, template_id, version, channel, subject, text) VALUES ($1, 'news', 1, 'email', 'News', 'Hi {{ name }}')`,
		`INSERT INTO core.contacts (tenant_id, contact_id, cell_id, known) SELECT $1, md5('k' || i)::uuid, 'c1', true FROM generate_series(1, 3) i`,
		`INSERT INTO core.contact_identifiers (tenant_id, kind, value, contact_id) SELECT $1, 'email', 'p' || i || '@example.com', md5('k' || i)::uuid FROM generate_series(1, 3) i`,
	} {
		_, err := pool.Exec(t.Context(), sql, tenant)
		require.NoError(t, err)
	}
	run := func(args ...string) string {
		t.Helper()
		code, out, errs := try(append([]string{"blast", args[0], "--tenant", "acme"}, args[1:]...)...)
		require.Zero(t, code, errs)
		return out
	}
	id := strings.TrimSpace(run("create", "--name", "Spring", "--template", "news", "--key", "k-1"))
	require.Equal(t, id, strings.TrimSpace(run("create", "--name", "Spring", "--template", "news", "--key", "k-1")))

	file := filepath.Join(t.TempDir(), "people.csv")
	require.NoError(t, os.WriteFile(file, []byte("Correo;Nombre\np1@example.com;Ana\np2@example.com;Leo\nstranger@example.com;x\n"), 0o600))
	out := run("upload", id, file, "--columns", "Correo=address;Nombre=name", "--json")
	var up struct {
		Upload  blast.Upload   `json:"upload"`
		BadRows []blast.BadRow `json:"bad_rows"`
	}
	require.NoError(t, json.Unmarshal([]byte(out), &up))
	require.Equal(t, int64(2), up.Upload.Taken)
	require.Equal(t, []blast.BadRow{{Row: 4, Column: "address", Reason: blast.UnknownContact}}, up.BadRows)
	require.Regexp(t, `taken +2\n`, run("upload", id, file, "--columns", "Correo=address;Nombre=name"))
	bad := filepath.Join(t.TempDir(), "old.csv")
	require.NoError(t, os.WriteFile(bad, []byte("email\nLe\xf3n\n"), 0o600))
	code, _, errs := try("blast", "upload", "--tenant", "acme", id, bad)
	require.Equal(t, exitFailed, code)
	require.Contains(t, errs, "beyond row 2: not_utf8")

	require.Regexp(t, `recipients +2\n`, run("dry-run", id))
	require.NotContains(t, run("dry-run", id), "quota")
	t.Run("KnowsTheQuota", func(t *testing.T) {
		redisURL, prefix := testkit.Redis(t)
		_, err := pool.Exec(t.Context(), `INSERT INTO messaging.consents (tenant_id, contact_id, channel, granted, source) SELECT $1, md5('k' || i)::uuid, 'email', true, 'test' FROM generate_series(1, 3) i`, tenant)
		require.NoError(t, err)
		t.Setenv("CARRIL_REDIS_PREFIX", prefix)
		t.Setenv("CARRIL_RESEND_DAY_QUOTA", "2")
		require.Contains(t, run("dry-run", id), "cannot be seen now", "no Redis is known")
		code, out, errs := try("blast", "dry-run", "--tenant", "acme", id, "--redis-url="+redisURL)
		require.Zero(t, code, errs)
		require.Regexp(t, `quota of the day +0 of 2 used, 1 left for marketing\nfits +false\ndays needed +2\n`, out)
		code, _, errs = try("blast", "start", "--tenant", "acme", id, "--redis-url="+redisURL)
		require.Equal(t, exitFailed, code)
		require.Contains(t, errs, "quota_exceeded")
		require.Contains(t, errs, "with --over-quota to spread it over 2 days")
		code, _, errs = try("blast", "start", "--tenant", "acme", id, "--redis-url="+redisURL, "--over-quota", "--at="+time.Now().Add(48*time.Hour).UTC().Format(time.RFC3339))
		require.Zero(t, code, errs)
		require.Contains(t, errs, "days needed: 2")
		_, err = pool.Exec(t.Context(), `UPDATE messaging.blasts SET state = 'draft', start_at = NULL WHERE blast_id = $1`, id)
		require.NoError(t, err)
		_, err = pool.Exec(t.Context(), `INSERT INTO messaging.rate_limit_buckets (scope, provider, capacity, refill_per_second, day_quota) VALUES ('global', 'resend', 1, 1, 0)`)
		require.NoError(t, err)
		require.NotContains(t, run("dry-run", id), "quota", "the row wins over the setting")
	})
	require.Contains(t, run("list"), id)
	code, _, errs = try("blast", "pause", "--tenant", "acme", id)
	require.Equal(t, exitFailed, code)
	require.Contains(t, errs, "cannot_pause")
	run("start", id)
	run("pause", id)
	require.Contains(t, run("show", id), "paused (by_hand), 0 of 2, 2 pending")
	code, out, _ = try("blast", "watch", "--tenant", "acme", id)
	require.Equal(t, exitFailed, code)
	require.Contains(t, out, "paused")
	run("resume", id)
	_, err = pool.Exec(t.Context(), `UPDATE messaging.blasts SET state = 'done', finished_at = now() WHERE blast_id = $1`, id)
	require.NoError(t, err)
	_, err = pool.Exec(t.Context(), `UPDATE messaging.blast_recipients SET outcome = 'sent', marks = 65 WHERE blast_id = $1`, id)
	require.NoError(t, err)
	require.Contains(t, run("watch", id), "done, 2 of 2, 2 sent")
	var rep blast.Report
	require.NoError(t, json.Unmarshal([]byte(run("report", id, "--json")), &rep))
	require.Equal(t, [2]int64{2, 2}, [2]int64{rep.Sent, rep.Delivered})
	require.Regexp(t, `delivered +2\n`, run("report", id))
	code, _, errs = try("blast", "cancel", "--tenant", "acme", id)
	require.Equal(t, exitFailed, code)
	require.Contains(t, errs, "cannot_cancel")
	code, _, errs = try("blast", "allow", "--tenant", "acme")
	require.Equal(t, exitFailed, code)
	require.Contains(t, errs, "is not stopped")
	code, _, _ = try("blast", "create", "--tenant", "acme", "--name", "x", "--template", "none")
	require.Equal(t, exitUsage, code)
}
