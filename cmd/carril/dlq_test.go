package main

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/softcrum/carril/internal/testkit"
)

// TestDlq goes the way of an operator: list, show, dry run, confirm, again.
func TestDlq(t *testing.T) {
	url := testkit.Postgres(t)
	t.Setenv("CARRIL_POSTGRES_URL", url)
	conn, err := pgx.Connect(t.Context(), url)
	require.NoError(t, err)
	defer conn.Close(t.Context())
	const record, send = "0198c0de-0000-7000-8000-000000000001", "0198c0de-0000-7000-8000-000000000002"
	_, err = conn.Exec(t.Context(), `INSERT INTO core.tenants (tenant_id, slug, name, plan_id) VALUES ('0198c0de-0000-7000-8000-00000000000a', 'acme', 'Acme', 'starter')`)
	require.NoError(t, err)
	_, err = conn.Exec(t.Context(), `INSERT INTO core.dead_letters (dead_letter_id, stage, class, reason, tenant_id, topic, topic_partition, topic_offset, record_value, record_headers)
VALUES ($1, 'append', 'undecodable', 'malformed record', '0198c0de-0000-7000-8000-00000000000a', 'core.events', 0, 41, 'v', '[]')`, record)
	require.NoError(t, err)
	_, err = conn.Exec(t.Context(), `INSERT INTO core.dead_letters (dead_letter_id, stage, class, reason, send_id) VALUES ($1, 'rail:email.transactional', 'exhausted', 'gave up', gen_random_uuid())`, send)
	require.NoError(t, err)

	steps := []struct {
		args string
		code int
		out  string
		errs string
	}{
		{args: "dlq list", out: "core.events/0@41"},
		{args: "dlq list --stage append --json", out: `"dead_letter_id":"` + record + `"`},
		{args: "dlq list --tenant nobody", code: exitUsage, errs: "no tenant"},
		{args: "dlq list --since yesterday", code: exitUsage, errs: `--since "yesterday" is no time`},
		{args: "dlq list --since 1h --until 2h", code: exitUsage, errs: "--since lies before --until"},
		{args: "dlq show " + record, out: `"class": "undecodable"`},
		{args: "dlq show 0198c0de-0000-7000-8000-000000000009", code: exitFailed, errs: "no such dead letter"},
		{args: "dlq replay", code: exitUsage, errs: "by id, or by stage"},
		{args: "dlq replay --stage append", code: exitUsage, errs: "--dry-run"},
		{args: "dlq replay --stage append " + record, code: exitUsage, errs: "not by both"},
		{args: "dlq replay --tenant acme --since 1h --dry-run", out: "1", errs: "--yes 1"},
		{args: "dlq replay --stage append --dry-run --json", out: `{"chosen":1,"changed":[],"refused":[]}`},
		{args: "dlq replay --stage append --yes 2", code: exitFailed, errs: "1 now, 2 confirmed"},
		{args: "dlq replay --wait 0s --by ana --stage append --yes 1", out: record, errs: "as soon as a `carril process` runs"},
		{args: "dlq replay --wait 0s " + record, code: exitFailed, errs: "replayed by ana"},
		{args: "dlq replay --json --wait 0s " + send, code: exitFailed, out: `"reason":"it is a message's`, errs: "1 of 1 were refused"},
		{args: "dlq discard " + send, code: exitUsage, errs: "note"},
		{args: "dlq discard --note arrived " + send, out: send},
		{args: "dlq list --status discarded", out: send},
		{args: "dlq list", out: "ID"},
		{args: "dlq replay --help", out: "--dry-run"},
		{args: "dlq --help", out: "Find the reason, mend it, then replay"},
		{args: "positions restored", code: exitUsage, errs: "confirm-restore"},
		{args: "positions restored --confirm-restore --by ana", errs: "lanes go on"},
		{args: "positions translate append core.events 0", code: exitUsage, errs: "one of --offset and --at"},
		{args: "positions translate --help", out: "Stop the stage first"},
	}
	for _, s := range steps {
		code, out, errs := try(strings.Fields(s.args)...)
		require.Equal(t, s.code, code, "%s: %s", s.args, errs)
		require.Contains(t, out, s.out, s.args)
		require.Contains(t, errs, s.errs, s.args)
	}
	var at time.Time
	require.NoError(t, conn.QueryRow(t.Context(), `SELECT status_at FROM core.dead_letters WHERE dead_letter_id = $1 AND status = 'replayed' AND status_by = 'ana'`, record).Scan(&at))
	_, out, _ := try("dlq", "list", "--json")
	require.Empty(t, out, "none is open")
	code, out, _ := try("dlq", "list", "--status", "all", "--json")
	require.Zero(t, code)
	for line := range strings.Lines(out) {
		require.True(t, json.Valid([]byte(line)))
	}
}
