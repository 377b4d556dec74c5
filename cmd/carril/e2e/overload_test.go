package e2e

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/softcrum/carril/internal/testkit"
)

// valve is a broker whose answers to produce requests wait as long as it says.
type valve struct {
	cluster *kfake.Cluster
	delay   atomic.Int64 // nanoseconds of an answer
	shut    atomic.Pointer[chan struct{}]
	waiting atomic.Int64 // produce requests that wait
}

func newValve(t *testing.T) *valve {
	t.Helper()
	v := &valve{}
	var err error
	v.cluster, err = kfake.NewCluster(kfake.NumBrokers(1))
	require.NoError(t, err)
	t.Cleanup(v.cluster.Close)
	v.cluster.ControlKey(int16(kmsg.Produce), func(kmsg.Request) (kmsg.Response, error, bool) {
		v.cluster.KeepControl()
		if wait := v.shut.Load(); wait != nil || v.delay.Load() > 0 {
			v.cluster.SleepControl(func() { v.sleep(wait) })
		}
		return nil, nil, false
	})
	return v
}

func (v *valve) sleep(shut *chan struct{}) {
	v.waiting.Add(1)
	defer v.waiting.Add(-1)
	if shut != nil {
		<-*shut
		return
	}
	time.Sleep(time.Duration(v.delay.Load()))
}

// close stops every answer until open.
func (v *valve) close() {
	c := make(chan struct{})
	v.shut.Store(&c)
}

func (v *valve) open() {
	v.delay.Store(0)
	if c := v.shut.Swap(nil); c != nil {
		close(*c)
	}
}

// edge is one ingest role in a process of its own, on a broker of the test's.
type edge struct {
	*process
	kafka *valve
	key   string
	db    database
	env   []string
}

func newEdge(t *testing.T, under ...string) *edge {
	t.Helper()
	e := &edge{kafka: newValve(t), db: database{t, testkit.Postgres(t)}}
	redis, prefix := testkit.Redis(t)
	e.env = []string{
		"CARRIL_KAFKA_BROKERS=" + e.kafka.cluster.ListenAddrs()[0], "CARRIL_KAFKA_PREFIX=" + strings.ReplaceAll(prefix, ":", "."), "CARRIL_KAFKA_SINGLE_NODE=true",
		"CARRIL_REGISTRY_URL=" + testkit.Registry(t), "CARRIL_POSTGRES_URL=" + e.db.url, "CARRIL_REDIS_URL=" + redis, "CARRIL_REDIS_PREFIX=" + prefix,
		"CARRIL_ADDR=127.0.0.1:0",
	}
	cmd := func(args ...string) string { return command(t, e.env, args...) }
	cmd("migrate", "topics", "--embedded")
	c := &cluster{t: t, db: e.db}
	c.exec(`INSERT INTO core.plans (plan_id, retention_months, events_per_second, events_burst) VALUES ('wide', 13, 10000000, 20000000)`)
	cmd("tenant", "create", "acme", "--plan", "wide")
	e.key = cmd("key", "create", "--tenant", "acme", "--scopes", "core.events.write,core.events.read")
	e.process = launchAs(t, e.env, append(under, binary), "ingest")
	e.awaitReady(90 * time.Second)
	return e
}

// rss is the process's memory in bytes.
func (e *edge) rss(t *testing.T) int64 {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", e.cmd.Process.Pid))
	require.NoError(t, err)
	pages, err := strconv.ParseInt(strings.Fields(string(b))[1], 10, 64)
	require.NoError(t, err)
	return pages * int64(os.Getpagesize())
}

// refusal is what a test keeps of an answer.
type refusal struct {
	status int
	code   string
	fault  string // what is wrong with it; "": nothing
}

func (e *edge) send(cl *http.Client, path string, body []byte) refusal {
	req, err := http.NewRequest(http.MethodPost, e.API+path, bytes.NewReader(body))
	if err != nil {
		return refusal{fault: err.Error()}
	}
	req.Header.Set("Authorization", "Bearer "+e.key)
	req.Header.Set("Content-Type", "application/json")
	resp, err := cl.Do(req)
	if err != nil {
		return refusal{fault: err.Error()}
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		return refusal{fault: err.Error()}
	}
	return judge(resp, b)
}

// judge sees that a refusal is typed and says when to come back.
func judge(resp *http.Response, body []byte) refusal {
	r := refusal{status: resp.StatusCode}
	if r.status == http.StatusAccepted {
		return r
	}
	var p struct{ Code, Type, Instance string }
	if resp.Header.Get("Content-Type") != "application/problem+json" || json.Unmarshal(body, &p) != nil || p.Code == "" || p.Instance == "" {
		r.fault = "no problem+json: " + string(body)
		return r
	}
	r.code = p.Code
	if (r.status == http.StatusServiceUnavailable || r.status == http.StatusTooManyRequests) && resp.Header.Get("Retry-After") == "" {
		r.fault = "no Retry-After"
	}
	return r
}

// batchBody is 500 events of about a kilobyte.
func batchBody(at time.Time, seed string) []byte {
	items := make([]string, 500)
	for i := range items {
		items[i] = fmt.Sprintf(`{"type":"track","event_name":"invoice.paid","idempotency_key":"%s-%d","occurred_at":%q,"identifiers":{"external_id":"c-%d"},"properties":{"note":%q}}`,
			seed, i, at.UTC().Format(time.RFC3339), i, strings.Repeat("n", 800))
	}
	return []byte(`{"events":[` + strings.Join(items, ",") + `]}`)
}

func singleBody(key string) []byte {
	return fmt.Appendf(nil, `{"event_name":"invoice.paid","idempotency_key":%q,"occurred_at":%q,"identifiers":{"external_id":"c"},"properties":{}}`,
		key, time.Now().UTC().Format(time.RFC3339))
}

// overloadFor is a few seconds in `make test` and as long as one likes by the
// variable.
func overloadFor(t *testing.T) time.Duration {
	t.Helper()
	if s := os.Getenv("CARRIL_TEST_OVERLOAD"); s != "" {
		d, err := time.ParseDuration(s)
		require.NoError(t, err)
		return d
	}
	return 6 * time.Second
}

func patientClient(conns int) *http.Client {
	return &http.Client{Timeout: 40 * time.Second, Transport: &http.Transport{MaxIdleConnsPerHost: conns, MaxConnsPerHost: conns}}
}

// TestOverload offers a front door far more than its broker takes: the broker is
// slow for a while, then stands still.
func TestOverload(t *testing.T) { // faults P13
	const conns, most = 400, 512 << 20
	e := newEdge(t)
	cl := patientClient(conns)
	defer cl.CloseIdleConnections()
	require.Eventually(t, func() bool { return e.send(cl, "/v1/core/track", singleBody("before")).status == 202 }, 30*time.Second, 50*time.Millisecond)
	t.Logf("resident before: %d MiB", e.rss(t)>>20)

	e.kafka.delay.Store(int64(300 * time.Millisecond))
	length := overloadFor(t)
	ctx, cancel := context.WithTimeout(t.Context(), length)
	defer cancel()
	time.AfterFunc(length/3, e.kafka.close)
	var mu sync.Mutex
	outcomes, faults, closed := map[string]int{}, []string{}, ""
	var wg sync.WaitGroup
	for w := range conns {
		wg.Go(func() {
			body := batchBody(time.Now(), fmt.Sprint("w", w))
			for ctx.Err() == nil {
				r := e.send(cl, "/v1/core/batch", body)
				mu.Lock()
				switch outcomes[fmt.Sprint(r.status, " ", r.code)]++; {
				case r.status == 0: // closed by the HTTP parser, whose deadlines a starved machine passes
					closed = r.fault
				case r.fault != "":
					faults = append(faults, r.fault)
				}
				mu.Unlock()
			}
		})
	}
	peak := e.peak(ctx, t)
	wg.Wait()
	peak = max(peak, e.rss(t))
	e.kafka.open()
	healed := time.Now()
	require.Eventually(t, func() bool {
		return e.send(cl, "/v1/core/track", singleBody(fmt.Sprint("after", time.Now().UnixNano()))).status == 202
	},
		20*time.Second, 20*time.Millisecond)
	t.Logf("%s of overload over %d connections: %v; peak resident %d MiB; the next 202 came %s after the broker was back",
		length, conns, outcomes, peak>>20, time.Since(healed).Round(time.Millisecond))
	require.Empty(t, faults)
	refused := outcomes["503 queue_unavailable"] + outcomes["503 overloaded"]
	require.Less(t, 4*outcomes["0 "], refused, "hardly any connection is closed without an answer: %s", closed)
	require.Positive(t, refused, "it was an overload")
	require.Less(t, peak, int64(most))
	for i := range 50 {
		require.Equal(t, 202, insist(func() int { return e.send(cl, "/v1/core/track", singleBody(fmt.Sprint("normal", i))).status }))
	}
	require.Zero(t, e.stop())
}

// peak samples the process's memory until ctx ends.
func (e *edge) peak(ctx context.Context, t *testing.T) (peak int64) {
	t.Helper()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			peak = max(peak, e.rss(t))
		case <-ctx.Done():
			return peak
		}
	}
}

func (e *edge) readyz(t *testing.T) (status int, body string) {
	t.Helper()
	resp, err := client.Get(e.Ops + "/readyz")
	if err != nil {
		return 0, ""
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	return resp.StatusCode, string(b)
}

func TestSIGTERMAnswersWhatIsInFlight(t *testing.T) { // faults P10, F38
	e := newEdge(t)
	cl := patientClient(50)
	defer cl.CloseIdleConnections()
	require.Equal(t, 202, insist(func() int { return e.send(cl, "/v1/core/track", singleBody("before")).status }))
	status, body := e.readyz(t)
	require.Equal(t, http.StatusOK, status, body)
	e.kafka.close()
	answers := make(chan refusal, 20)
	for i := range 20 {
		go func() { answers <- e.send(cl, "/v1/core/track", singleBody(fmt.Sprint("flight", i))) }()
	}
	// All of them are taken in, each with the first 4 KiB of its body: one that
	// comes after the signal finds nobody.
	eventually(t, 30*time.Second, func() bool { return e.kafka.waiting.Load() > 0 && e.gauge(t, "carril_ingest_held_bytes") >= 20*4<<10 },
		func() string { return "not every request waits for the broker" })
	require.NoError(t, e.cmd.Process.Signal(syscall.SIGTERM))
	eventually(t, 30*time.Second, func() bool {
		status, body = e.readyz(t)
		return status == http.StatusServiceUnavailable && strings.Contains(body, "stopping")
	}, func() string { return "still ready: " + body })
	eventually(t, 30*time.Second, func() bool {
		c, err := net.DialTimeout("tcp", strings.TrimPrefix(e.API, "http://"), time.Second)
		if err == nil {
			_ = c.Close()
		}
		return err != nil
	}, func() string { return "something new is taken" })
	e.kafka.open()
	for range 20 {
		r := <-answers
		require.Empty(t, r.fault)
		require.Contains(t, []int{202, 503}, r.status, r.code) // 503 where the broker came back too late for it
	}
	select {
	case <-e.done:
	case <-time.After(40 * time.Second):
		require.Fail(t, "it did not stop")
	}
	require.Zero(t, e.cmd.ProcessState.ExitCode())
}

func TestSIGTERMAtAnyTime(t *testing.T) { // faults P10, F38
	ended := func(t *testing.T, p *process) int {
		t.Helper()
		select {
		case <-p.done:
		case <-time.After(40 * time.Second):
			require.Fail(t, "it did not stop", tail(p.log.String(), 20))
		}
		return p.cmd.ProcessState.ExitCode()
	}
	t.Run("WhileItWaitsForItsStores", func(t *testing.T) {
		p := launch(t, []string{"CARRIL_KAFKA_BROKERS=" + testkit.Addr(t), "CARRIL_REGISTRY_URL=http://" + testkit.Addr(t),
			"CARRIL_POSTGRES_URL=postgres://u@" + testkit.Addr(t) + "/d", "CARRIL_REDIS_URL=redis://" + testkit.Addr(t), "CARRIL_ADDR=127.0.0.1:0"}, "ingest")
		eventually(t, 30*time.Second, func() bool { return strings.Contains(p.log.String(), "waiting for a dependency") }, func() string { return p.log.String() })
		require.NoError(t, p.cmd.Process.Signal(syscall.SIGTERM))
		require.Zero(t, ended(t, p))
	})
	t.Run("ASecondOneEndsItAtOnce", func(t *testing.T) {
		e := newEdge(t)
		cl := patientClient(1)
		defer cl.CloseIdleConnections()
		require.Equal(t, 202, insist(func() int { return e.send(cl, "/v1/core/track", singleBody("before")).status }))
		c, err := net.Dial("tcp", strings.TrimPrefix(e.API, "http://"))
		require.NoError(t, err)
		defer c.Close()
		_, err = io.WriteString(c, "POST /v1/core/track HTTP/1.1\r\nHost: h\r\n") // a request that would be waited for
		require.NoError(t, err)
		require.NoError(t, e.cmd.Process.Signal(syscall.SIGTERM))
		eventually(t, 30*time.Second, func() bool {
			status, body := e.readyz(t)
			return status == 0 || strings.Contains(body, "stopping")
		}, func() string { return "still ready" })
		require.NoError(t, e.cmd.Process.Signal(syscall.SIGTERM))
		require.Equal(t, -1, ended(t, e.process), "by the signal, with a connection that a shutdown waits seconds for")
	})
	t.Run("WhileABodyIsOnItsWay", func(t *testing.T) {
		e := newEdge(t)
		body := singleBody("slow")
		c, err := net.Dial("tcp", strings.TrimPrefix(e.API, "http://"))
		require.NoError(t, err)
		defer c.Close()
		_, err = fmt.Fprintf(c, "POST /v1/core/track HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s",
			e.key, len(body), body[:10])
		require.NoError(t, err)
		eventually(t, 30*time.Second, func() bool { return e.gauge(t, "carril_ingest_held_bytes") > 0 }, func() string { return "the body is not being read" })
		require.NoError(t, e.cmd.Process.Signal(syscall.SIGTERM))
		eventually(t, 30*time.Second, func() bool { _, body := e.readyz(t); return strings.Contains(body, "stopping") }, func() string { return "still ready" })
		_, err = c.Write(body[10:])
		require.NoError(t, err)
		resp, err := http.ReadResponse(bufio.NewReader(c), nil)
		require.NoError(t, err)
		defer resp.Body.Close()
		require.Equal(t, http.StatusAccepted, resp.StatusCode)
		require.Zero(t, ended(t, e.process))
	})
}

// gauge reads a metric without labels.
func (e *edge) gauge(t *testing.T, name string) float64 {
	t.Helper()
	resp, err := client.Get(e.Ops + "/metrics")
	require.NoError(t, err)
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	for line := range strings.Lines(string(b)) {
		if v, ok := strings.CutPrefix(line, name+" "); ok {
			f, err := strconv.ParseFloat(strings.TrimSpace(v), 64)
			require.NoError(t, err)
			return f
		}
	}
	return 0
}

// TestIdleClientsWithFewFiles holds 2,000 connections open to a process that may
// open 256 files.
func TestIdleClientsWithFewFiles(t *testing.T) { // faults F41
	e := newEdge(t, "bash", "-c", `ulimit -n 256 && exec "$0" "$@"`)
	cl := patientClient(1)
	defer cl.CloseIdleConnections()
	require.Equal(t, 202, insist(func() int { return e.send(cl, "/v1/core/track", singleBody("first")).status }))
	idle := make([]net.Conn, 0, 2_000)
	shut := func() {
		for _, c := range idle {
			_ = c.Close()
		}
		idle = nil
	}
	defer shut()
	for range 2_000 {
		c, err := net.DialTimeout("tcp", strings.TrimPrefix(e.API, "http://"), 10*time.Second)
		require.NoError(t, err)
		idle = append(idle, c)
	}
	t.Run("TheProbesStillAnswer", func(t *testing.T) {
		for range 20 {
			status, body := e.readyz(t)
			require.Equal(t, http.StatusOK, status, body)
		}
		var health map[string]any
		getJSON(t, e.Ops+"/healthz", &health)
	})
	t.Run("AnOpenConnectionIsServed", func(t *testing.T) {
		require.Equal(t, 202, insist(func() int { return e.send(cl, "/v1/core/track", singleBody("second")).status }))
	})
	t.Run("ANewOneIsRefusedInJSON", func(t *testing.T) {
		other := patientClient(1)
		defer other.CloseIdleConnections()
		r := e.send(other, "/v1/core/track", singleBody("third"))
		require.Empty(t, r.fault)
		require.Equal(t, "too_many_connections", r.code)
	})
	shut()
	t.Run("AndServedOnceTheyAreGone", func(t *testing.T) {
		other := patientClient(1)
		defer other.CloseIdleConnections()
		eventually(t, 30*time.Second, func() bool { return e.send(other, "/v1/core/track", singleBody("fourth")).status == 202 },
			func() string { return "refused for ever" })
	})
	require.Zero(t, e.stop())
}

// TestKeysAndPlansOnTwoReplicas changes keys and plans beside two running doors,
// which cache both for 30 s.
func TestKeysAndPlansOnTwoReplicas(t *testing.T) {
	e := newEdge(t)
	doors := []*edge{e, {process: start(t, e.env, "ingest"), key: e.key}}
	cl := patientClient(4)
	defer cl.CloseIdleConnections()
	each := func(t *testing.T, what string, ok func(e *edge) bool) {
		t.Helper()
		began := time.Now()
		for _, d := range doors {
			eventually(t, 15*time.Second, func() bool { return ok(d) }, func() string { return what }) // half of what the cache alone would take
		}
		t.Logf("%s on both replicas after %s", what, time.Since(began).Round(time.Millisecond))
	}
	use := func(d *edge, key string) int {
		q := *d
		q.key = key
		return q.send(cl, "/v1/core/track", singleBody(fmt.Sprint(time.Now().UnixNano()))).status
	}
	policy := func(d *edge, key string) string {
		req, err := http.NewRequest(http.MethodGet, d.API+"/v1/core/limits", nil)
		require.NoError(t, err)
		req.Header.Set("Authorization", "Bearer "+key)
		resp, err := cl.Do(req)
		require.NoError(t, err)
		defer resp.Body.Close()
		_, _ = io.Copy(io.Discard, resp.Body)
		return resp.Header.Get("RateLimit-Policy")
	}
	t.Run("ARevokedKeyIsRefused", func(t *testing.T) { // FS-CORE-0006 §1
		key := command(t, e.env, "key", "create", "--tenant", "acme", "--rate", "50")
		each(t, "a new key is taken", func(d *edge) bool { return use(d, key) == 202 })
		id := strings.Split(key, "_")[2]
		require.Contains(t, command(t, e.env, "key", "list", "--tenant", "acme"), id)
		command(t, e.env, "key", "revoke", id)
		require.NotContains(t, command(t, e.env, "key", "list", "--tenant", "acme"), id)
		require.Contains(t, command(t, e.env, "key", "list", "--tenant", "acme", "--ended", "--json"), id)
		each(t, "a revoked key is refused", func(d *edge) bool { return use(d, key) == 401 })
	})
	t.Run("ARotatedKeyWorksBesideItsSuccessor", func(t *testing.T) {
		old := command(t, e.env, "key", "create", "--tenant", "acme", "--scopes", "core.events.write,core.events.read", "--rate", "5", "--burst", "7")
		next := command(t, e.env, "key", "rotate", old, "--overlap", "1h")
		for _, key := range []string{old, next} {
			each(t, "a key of a rotation is taken", func(d *edge) bool { return use(d, key) == 202 })
			require.Contains(t, policy(e, key), `"key";q=7;w=2`)
		}
		command(t, e.env, "key", "rotate", next, "--overlap", "0s")
		each(t, "a key rotated without overlap is refused", func(d *edge) bool { return use(d, next) == 401 })
		require.Equal(t, 202, use(e, old))
	})
	t.Run("AChangedPlanIsFollowed", func(t *testing.T) { // FS-CORE-0006 §10
		each(t, "the plan is known", func(d *edge) bool { return policy(d, e.key) == `"plan";q=20000000;w=2` })
		(&cluster{t: t, db: e.db}).exec(`UPDATE core.plans SET events_per_second = 30, events_burst = 90 WHERE plan_id = 'wide'`)
		each(t, "a changed plan is followed", func(d *edge) bool { return policy(d, e.key) == `"plan";q=90;w=3` })
	})
}

// launchAs runs a command of the product under others.
func launchAs(t *testing.T, env, prefix []string, args ...string) *process {
	t.Helper()
	return launchCmd(t, env, args[0], exec.Command(prefix[0], append(prefix[1:], append(args, "--json")...)...))
}
