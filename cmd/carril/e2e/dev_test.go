package e2e

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/softcrum/carril/cmd/carril/app"
)

// devDatabase finds the database of a `carril dev` on a data folder.
func devDatabase(t *testing.T, data string) database {
	t.Helper()
	env, err := app.ReadEnv(filepath.Join(data, "env"))
	require.NoError(t, err)
	return database{t, env["CARRIL_POSTGRES_URL"]}
}

// dataFolder is removed when the test is over; what a killed process left
// running ends by itself a moment later and may still write.
func dataFolder(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "carril-dev-")
	require.NoError(t, err)
	t.Cleanup(func() {
		eventually(t, time.Minute, func() bool { return os.RemoveAll(dir) == nil }, func() string { return "remove " + dir })
	})
	return dir
}

func startDev(t *testing.T, data string) *process {
	t.Helper()
	return start(t, nil, "dev", "--quiet", "--data", data, "--addr", "127.0.0.1:0")
}

// TestDevShowsTheTimelineOfACurl is a newcomer's first minute: the printed
// request is answered 202 and its trace runs through to the webhook.
func TestDevShowsTheTimelineOfACurl(t *testing.T) {
	t.Parallel()
	data := dataFolder(t)
	p := startDev(t, data)
	l := newLedger()
	require.Equal(t, 202, insist(func() int { return post(p.API, p.Key, "invoice-1", "ana@example.com", time.Now(), l) }))
	id := l.ids["invoice-1"]
	env := []string{"CARRIL_POSTGRES_URL=" + devDatabase(t, data).url}
	var steps []string
	eventually(t, time.Minute, func() bool {
		out, err := tryCommand(env, "trace", id, "--json")
		if err != nil {
			return false
		}
		var trace struct {
			EventID string                  `json:"event_id"`
			Steps   []struct{ Step string } `json:"steps"`
		}
		require.NoError(t, json.Unmarshal([]byte(out), &trace))
		steps = nil
		for _, s := range trace.Steps {
			steps = append(steps, s.Step)
		}
		all := strings.Join(steps, " ")
		for _, want := range []string{"accepted", "appended", "points", "requested", "queued", "sent", "delivered", "webhook_delivered"} {
			if !strings.Contains(all, want) {
				return false
			}
		}
		return true
	}, func() string { return strings.Join(steps, " ") })
	require.Zero(t, p.stop(), "SIGTERM ends it with 0")
}

// TestDevSurvivesKillMinusNine posts 10,000 events, kills the whole product in
// the middle, starts it again and reposts what got no answer.
func TestDevSurvivesKillMinusNine(t *testing.T) {
	t.Parallel()
	const n = 10_000
	data, keys, at, l := dataFolder(t), keysOf(n), time.Now().Add(-time.Minute), newLedger()
	p := startDev(t, data)
	first := p.Key
	halfway := make(chan struct{})
	go func() {
		defer close(halfway)
		for l.acked() < n/2 {
			select {
			case <-p.done:
				return
			case <-time.After(5 * time.Millisecond):
			}
		}
	}()
	stop := make(chan struct{})
	go func() {
		<-halfway
		p.kill()
		close(stop)
	}()
	postAll(func() (string, string) { return p.API, first }, keys, at, l, stop)
	<-stop
	require.Less(t, l.acked(), n, "it was killed in the middle")

	p = startDev(t, data)
	require.Equal(t, first, p.Key, "the same key still works")
	for range 50 { // passes over what got no answer
		if postAll(func() (string, string) { return p.API, p.Key }, keys, at, l, nil); l.acked() == n {
			break
		}
	}
	require.Equal(t, n, l.acked())
	require.Empty(t, l.bad, "a key always gives the same id")
	db := devDatabase(t, data)
	db.await(n, 3*time.Minute, `SELECT count(*) FROM core.tracked_events WHERE occurred_at > '-infinity' AND event_name = 'invoice.paid'`)
	db.await(n, 3*time.Minute, `SELECT count(*) FROM core.points_ledger`)
	require.Equal(t, n, db.count(`SELECT count(DISTINCT idempotency_key) FROM core.tracked_events WHERE occurred_at > '-infinity' AND event_name = 'invoice.paid'`))
	require.Equal(t, n*10, db.count(`SELECT sum(balance)::int FROM core.points_balances`))
	db.await(n, 3*time.Minute, `SELECT count(*) FROM messaging.decisions WHERE outcome = 'queued'`)
	require.Zero(t, db.count(`SELECT count(*) FROM core.dead_letters`))
	for key, id := range l.ids { // every acknowledged id is the id of its key's row
		require.NotEmpty(t, id, key)
	}
	require.Equal(t, n, idsFound(t, db, l))
}

// TestDevOnAFolderInUse says what is wrong, and harms nobody.
func TestDevOnAFolderInUse(t *testing.T) {
	t.Parallel()
	data := dataFolder(t)
	startDev(t, data)
	_, err := tryCommand(nil, "dev", "--quiet", "--data", data, "--addr", "127.0.0.1:0")
	var exit *exec.ExitError
	require.ErrorAs(t, err, &exit)
	require.Equal(t, 1, exit.ExitCode())
	require.Contains(t, string(exit.Stderr), "is in use by another process")
	require.NotContains(t, string(exit.Stderr), "panic")
}
