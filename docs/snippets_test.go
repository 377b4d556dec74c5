package docs

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/softcrum/carril/ingestor"
	"github.com/softcrum/carril/ingestor/apikey"
	"github.com/softcrum/carril/ingestor/manage"
	"github.com/softcrum/carril/internal/httpserver"
	"github.com/softcrum/carril/internal/ids"
	"github.com/softcrum/carril/internal/signature"
	"github.com/softcrum/carril/internal/taxonomy"
	"github.com/softcrum/carril/schemas"
)

const snippetKey = "ck_test_snippet"

// door is the API in this process: it keeps what it is given, and can be
// unavailable first.
type door struct {
	mu       sync.Mutex
	tenant   uuid.UUID
	failures int
	keys     []string // idempotency keys, as they came into the queue
	schemas  []string // event names that got a schema
}

func (d *door) Verify(_ context.Context, text string) (*apikey.Principal, error) {
	if text != snippetKey {
		return nil, apikey.ErrInvalid
	}
	return &apikey.Principal{KeyID: "k", TenantID: d.tenant, Tenant: apikey.Tenant{CellID: "c1", RetentionMonths: 1200},
		Scopes: []string{apikey.ScopeEventsWrite, apikey.ScopeMessagesWrite, manage.ScopeTaxonomy}}, nil
}

func (d *door) take(key string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.failures > 0 {
		d.failures--
		return &ingestor.EnqueueError{Class: ingestor.EnqueueAway, Err: fmt.Errorf("away")}
	}
	d.keys = append(d.keys, strings.Clone(key))
	return nil
}

func (d *door) Enqueue(_ context.Context, records []ingestor.Record) error {
	for _, r := range records {
		if err := d.take(r.Event.IdempotencyKey); err != nil {
			return err
		}
	}
	return nil
}

func (d *door) Request(_ context.Context, n *schemas.NotificationRequested, _ string) error {
	return d.take(*n.IdempotencyKey)
}

func (d *door) Put(_ context.Context, _ uuid.UUID, event string, mode taxonomy.Mode, text string) (taxonomy.Installed, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.schemas = append(d.schemas, event)
	return taxonomy.Installed{EventName: event, Version: 1, Mode: mode, Schema: []byte(text)}, nil
}

func (d *door) Get(context.Context, uuid.UUID, string) (taxonomy.Installed, error) {
	return taxonomy.Installed{}, taxonomy.ErrNone
}
func (d *door) List(context.Context, uuid.UUID) ([]taxonomy.Installed, error) { return nil, nil }
func (d *door) Delete(context.Context, uuid.UUID, string) error               { return taxonomy.ErrNone }

// open serves the door until the test ends, and gives its address.
func (d *door) open(t *testing.T) string {
	t.Helper()
	api, err := ingestor.New(ingestor.Config{}, ingestor.Deps{Keys: d, Queue: d, Requests: d, Channels: []string{"email"}, Metrics: prometheus.NewRegistry()})
	require.NoError(t, err)
	r := httpserver.NewRouter()
	api.Mount(r)
	manage.New(manage.Deps{Keys: d, Taxonomy: d}).Mount(r)
	s, err := httpserver.New(httpserver.Config{Addr: "127.0.0.1:0"}, r, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	addr, err := s.Start(context.Background())
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Stop(context.Background())) })
	return "http://" + addr
}

// blocks are the page's code blocks of a language.
func blocks(t *testing.T, language string) []string {
	t.Helper()
	page, err := os.ReadFile("integrators.md")
	require.NoError(t, err)
	var out []string
	for _, m := range regexp.MustCompile("(?ms)^```"+language+"\n(.*?)^```$").FindAllStringSubmatch(string(page), -1) {
		out = append(out, m[1])
	}
	require.NotEmpty(t, out, language)
	return out
}

// run runs a program with the page's two variables.
func run(t *testing.T, api string, name string, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Env = append(os.Environ(), "API="+api, "KEY="+snippetKey)
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	return string(out)
}

// TestSnippets runs the programs of the page: each finds the queue away at
// first, tries again under the same key and is answered with 202.
func TestSnippets(t *testing.T) {
	t.Parallel()
	for _, l := range []struct {
		language, tool, file, key string
		needs                     []string // succeeds where the tool can run it
		args                      []string // before the file's name
	}{
		{"js", "node", "track.js", "node/invoice-891", []string{"-e", "fetch; AbortSignal.timeout"}, nil},
		{"python", "python3", "track.py", "python/invoice-892", []string{"--version"}, nil},
		{"go", "go", "main.go", "go/invoice-893", []string{"version"}, []string{"run"}},
		{"php", "php", "track.php", "php/invoice-894", []string{"-r", "exit(function_exists('curl_init') ? 0 : 1);"}, nil},
	} {
		t.Run(l.language, func(t *testing.T) {
			t.Parallel()
			all := slices.DeleteFunc(blocks(t, l.language), isVerify)
			require.Len(t, all, 1)
			if err := exec.Command(l.tool, l.needs...).Run(); err != nil {
				t.Skipf("%s is not on this machine: its snippet is not run", l.tool)
			}
			file := filepath.Join(t.TempDir(), l.file)
			require.NoError(t, os.WriteFile(file, []byte(all[0]), 0o600))
			d := &door{tenant: uuid.New(), failures: 1}
			out := run(t, d.open(t), l.tool, append(slices.Clone(l.args), file)...)
			require.Equal(t, []string{l.key}, d.keys)
			require.Equal(t, ids.Event(d.tenant, l.key).String(), strings.TrimSpace(out))
		})
	}
}

func isVerify(block string) bool { return strings.Contains(block, "def verify(") }

// TestVerify has the page's function judge requests that are signed as ours are.
func TestVerify(t *testing.T) {
	t.Parallel()
	if err := exec.Command("python3", "-c", "str.removeprefix").Run(); err != nil {
		t.Skip("python3 is not on this machine, or older than 3.9: its snippet is not run")
	}
	found := slices.DeleteFunc(blocks(t, "python"), func(b string) bool { return !isVerify(b) })
	require.Len(t, found, 1)
	const call = `
import os, sys
headers = {name: os.environ[name.replace("-", "_")] for name in ("webhook-id", "webhook-timestamp", "webhook-signature")}
print(verify(os.environ["SECRET"], headers, sys.stdin.buffer.read()))
`
	file := filepath.Join(t.TempDir(), "verify.py")
	require.NoError(t, os.WriteFile(file, []byte(found[0]+call), 0o600))
	ours, older, theirs := signature.NewSecret(), signature.NewSecret(), signature.NewSecret()
	const body = `{"type":"core.event.tracked","data":{"note":"ñ"}}`
	now := time.Now()
	for name, c := range map[string]struct {
		by   []signature.Secret
		at   time.Time
		body string
		want string
	}{
		"Ours":            {[]signature.Secret{ours}, now, body, "True"},
		"OursBesideOlder": {[]signature.Secret{older, ours}, now, body, "True"},
		"AnothersSecret":  {[]signature.Secret{theirs, older}, now, body, "False"},
		"AnotherBody":     {[]signature.Secret{ours}, now, body + " ", "False"},
		"Repeated":        {[]signature.Secret{ours}, now.Add(-time.Hour), body, "False"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cmd := exec.Command("python3", file)
			cmd.Env = append(os.Environ(), "SECRET="+ours.Reveal(), "webhook_id=evt_1", fmt.Sprint("webhook_timestamp=", c.at.Unix()),
				"webhook_signature="+signature.SignAll(c.by, "evt_1", c.at, []byte(body)))
			cmd.Stdin = strings.NewReader(c.body)
			out, err := cmd.CombinedOutput()
			require.NoError(t, err, "%s", out)
			require.Equal(t, c.want, strings.TrimSpace(string(out)))
		})
	}
}

// TestCurl runs the page's shell blocks, one after the other.
func TestCurl(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("curl"); err != nil {
		t.Skip("curl is not on this machine: its snippets are not run")
	}
	d := &door{tenant: uuid.New()}
	api := d.open(t)
	for _, block := range blocks(t, "sh") {
		if strings.HasPrefix(block, "export API=") {
			continue // the test's own
		}
		if strings.Contains(block, "--retry") {
			d.failures = 1
		}
		out := run(t, api, "bash", "-euo", "pipefail", "-c", strings.ReplaceAll(block, "curl -sS", "curl -sS -w '\\nstatus %{http_code}'"))
		want := fmt.Sprint("status ", http.StatusAccepted)
		if strings.Contains(block, "-X PUT") {
			want = fmt.Sprint("status ", http.StatusOK)
		}
		require.Contains(t, out, want, block)
	}
	require.Equal(t, []string{"pos-17/invoice-889", "pos-17/invoice-890", "crm/c-102938/7", "web/1", "web/2", "login/8f14e45f"}, d.keys)
	require.Equal(t, []string{"order.placed"}, d.schemas)
}
