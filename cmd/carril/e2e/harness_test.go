package e2e

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/softcrum/carril/internal/testkit"
)

// binary is the product, built once for all tests.
var binary string

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "carril-e2e-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	binary = filepath.Join(dir, "carril")
	if os.Getenv("CARRIL_DEVSTACK_CHILD") == "" {
		if out, err := exec.Command("go", "build", "-tags", buildTags, "-o", binary, "..").CombinedOutput(); err != nil {
			fmt.Fprintf(os.Stderr, "build the product: %v\n%s", err, out)
			os.Exit(1)
		}
	}
	testkit.Main(m, func() error { return os.RemoveAll(dir) })
}

// ready is the product's ready line.
type ready struct {
	Ready   bool   `json:"ready"`
	API     string `json:"api"`
	Ops     string `json:"ops"`
	Key     string `json:"key"`
	Sandbox string `json:"sandbox"`
}

// process is one running command of the product.
type process struct {
	t    *testing.T
	name string
	cmd  *exec.Cmd
	log  *syncBuffer
	said chan struct{} // closed once the ready line was read
	done chan struct{}
	ready
}

type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *syncBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *syncBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

// start runs a long-lived command until it says ready.
func start(t *testing.T, env []string, args ...string) *process {
	t.Helper()
	p := launch(t, env, args...)
	p.awaitReady(90 * time.Second)
	return p
}

func launch(t *testing.T, env []string, args ...string) *process {
	t.Helper()
	return launchCmd(t, env, args[0], exec.Command(binary, append(args, "--json")...))
}

func launchCmd(t *testing.T, env []string, name string, cmd *exec.Cmd) *process {
	t.Helper()
	p := &process{t: t, name: name, cmd: cmd, log: &syncBuffer{}, said: make(chan struct{}), done: make(chan struct{})}
	p.cmd.Env = append(os.Environ(), env...)
	p.cmd.Stderr = p.log
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := p.cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, p.cmd.Start())
	go func() {
		defer close(p.done)
		s := bufio.NewScanner(out)
		for s.Scan() {
			if !p.Ready && json.Unmarshal(s.Bytes(), &p.ready) == nil && p.Ready {
				close(p.said)
			}
		}
		_ = p.cmd.Wait()
	}()
	t.Cleanup(func() {
		p.kill()
		if t.Failed() {
			t.Logf("--- %s\n%s", p.name, tail(p.log.String(), 40))
		}
	})
	return p
}

// awaitReady waits for the ready line, or fails with what the process said.
func (p *process) awaitReady(within time.Duration) {
	p.t.Helper()
	select {
	case <-p.said:
	case <-p.done:
		require.Fail(p.t, p.name+" ended before it was ready", tail(p.log.String(), 20))
	case <-time.After(within):
		require.Fail(p.t, p.name+" is not ready", tail(p.log.String(), 20))
	}
}

func tail(s string, n int) string {
	lines := strings.Split(strings.TrimSpace(s), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}

// kill ends the process as kill -9 does, and waits for it.
func (p *process) kill() {
	_ = p.cmd.Process.Kill() // it may have ended
	<-p.done
}

// stop asks the process to end and gives its exit code.
func (p *process) stop() int {
	p.t.Helper()
	require.NoError(p.t, p.cmd.Process.Signal(syscall.SIGTERM))
	select {
	case <-p.done:
	case <-time.After(40 * time.Second):
		require.Fail(p.t, p.name+" did not stop")
	}
	return p.cmd.ProcessState.ExitCode()
}

// command runs a short command and gives its standard output.
func command(t *testing.T, env []string, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, binary, args...)
	cmd.Env = append(os.Environ(), env...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	require.NoError(t, err, "carril %s: %s", strings.Join(args, " "), stderr.String())
	return strings.TrimSpace(string(out))
}

// database is a connection for the test's own look-ups, made anew when lost.
type database struct {
	t   *testing.T
	url string
}

func (d database) count(sql string, args ...any) int {
	d.t.Helper()
	n, err := d.tryCount(sql, args...)
	require.NoError(d.t, err, sql)
	return n
}

func (d database) tryCount(sql string, args ...any) (n int, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	conn, err := pgx.Connect(ctx, d.url)
	if err != nil {
		return 0, err
	}
	defer conn.Close(ctx)
	err = conn.QueryRow(ctx, sql, args...).Scan(&n)
	return n, err
}

func (d database) await(n int, within time.Duration, sql string, args ...any) {
	d.t.Helper()
	got := -1
	eventually(d.t, within, func() bool {
		v, err := d.tryCount(sql, args...)
		if err == nil {
			got = v
		}
		return got >= n
	}, func() string { return fmt.Sprintf("%d of %d: %s", got, n, sql) })
	require.Equal(d.t, n, d.count(sql, args...), sql)
}

func eventually(t *testing.T, within time.Duration, ok func() bool, what func() string) {
	t.Helper()
	deadline := time.Now().Add(within)
	for !ok() {
		if time.Now().After(deadline) {
			require.Fail(t, "not in time", what())
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// ledger is what the client knows of each event that it sent.
type ledger struct {
	mu  sync.Mutex
	ids map[string]string // key -> id of its 202
	bad []string
}

func newLedger() *ledger { return &ledger{ids: map[string]string{}} }

func (l *ledger) acked() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.ids)
}

func (l *ledger) has(key string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	_, ok := l.ids[key]
	return ok
}

// record keeps a 202; the same key must always give the same id.
func (l *ledger) record(key, id string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if old, ok := l.ids[key]; ok && old != id {
		l.bad = append(l.bad, fmt.Sprintf("%s: %s, then %s", key, old, id))
	}
	l.ids[key] = id
}

var client = &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{MaxIdleConnsPerHost: 64}}

// insist asks again where there was no answer or the broker was too slow for one,
// as every caller must, and gives the first status that says something else.
func insist(ask func() int) int {
	for deadline := time.Now().Add(2 * time.Minute); ; time.Sleep(100 * time.Millisecond) {
		if status := ask(); status != 0 && status != http.StatusServiceUnavailable || time.Now().After(deadline) {
			return status
		}
	}
}

// post sends one invoice.paid event and records a 202. It gives the status, 0
// when there was no answer.
func post(api, key, idem, email string, at time.Time, l *ledger) int {
	body := fmt.Sprintf(`{"event_name":"invoice.paid","idempotency_key":%q,"occurred_at":%q,"identifiers":{"email":%q},"properties":{"invoice":%q,"total":12.5}}`,
		idem, at.UTC().Format(time.RFC3339Nano), email, idem)
	req, err := http.NewRequest(http.MethodPost, api+"/v1/core/track", strings.NewReader(body))
	if err != nil {
		return 0
	}
	req.Header.Set("Authorization", "Bearer "+key)
	req.Header.Set("Content-Type", "application/json")
	resp, err := client.Do(req)
	if err != nil {
		return 0
	}
	defer resp.Body.Close()
	b, _ := io.ReadAll(resp.Body)
	var answer struct {
		EventID string `json:"event_id"`
	}
	if resp.StatusCode == http.StatusAccepted {
		if json.Unmarshal(b, &answer) != nil || answer.EventID == "" {
			return 0
		}
		l.record(idem, answer.EventID)
	}
	return resp.StatusCode
}

// postAll sends keys[i] for every key without a 202, over several connections;
// it stops when stop is closed.
func postAll(api func() (addr, key string), keys []string, at time.Time, l *ledger, stop <-chan struct{}) {
	work := make(chan string)
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			for k := range work {
				addr, key := api()
				post(addr, key, k, k+"@example.com", at, l)
			}
		})
	}
	for _, k := range keys {
		if l.has(k) {
			continue
		}
		select {
		case work <- k:
		case <-stop:
			close(work)
			wg.Wait()
			return
		}
	}
	close(work)
	wg.Wait()
}

func keysOf(n int) []string {
	keys := make([]string, n)
	for i := range keys {
		keys[i] = fmt.Sprintf("invoice-%06d", i)
	}
	return keys
}

func getJSON(t *testing.T, url string, into any) {
	t.Helper()
	resp, err := client.Get(url)
	require.NoError(t, err)
	defer resp.Body.Close()
	require.Equal(t, http.StatusOK, resp.StatusCode, url)
	require.NoError(t, json.NewDecoder(resp.Body).Decode(into))
}

// one reads a single value.
func (d database) one(into any, sql string, args ...any) error {
	return d.row([]any{into}, sql, args...)
}

// row reads a single row.
func (d database) row(into []any, sql string, args ...any) error {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	conn, err := pgx.Connect(ctx, d.url)
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	return conn.QueryRow(ctx, sql, args...).Scan(into...)
}
