//go:build faults

package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/softcrum/carril/internal/kafka"
	"github.com/softcrum/carril/internal/testkit"
	books "github.com/softcrum/carril/internal/testkit/ledger"
)

// parts are the real services of the run, which these tests stop and start.
type parts struct {
	t   *testing.T
	dir string
}

func services(t *testing.T) parts {
	t.Helper()
	dir := os.Getenv("CARRIL_TEST_SERVICES_DIR")
	if dir == "" {
		t.Skip("CARRIL_TEST_SERVICES_DIR names no services that may be stopped: see `make test-faults`")
	}
	p := parts{t, dir}
	t.Cleanup(p.up) // whatever the test left
	return p
}

func (p parts) pid(part string) int {
	p.t.Helper()
	b, err := os.ReadFile(filepath.Join(p.dir, "pid", part))
	require.NoError(p.t, err)
	pid, err := strconv.Atoi(strings.Fields(string(b))[0])
	require.NoError(p.t, err)
	return pid
}

func (p parts) signal(part string, s syscall.Signal) {
	p.t.Helper()
	require.NoError(p.t, syscall.Kill(p.pid(part), s))
}

// end ends a part and waits until it is gone.
func (p parts) end(part string, s syscall.Signal) {
	p.t.Helper()
	pid := p.pid(part)
	require.NoError(p.t, syscall.Kill(pid, s))
	eventually(p.t, time.Minute, func() bool { return gone(pid) }, func() string { return part + " ends" })
}

func gone(pid int) bool {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return true
	}
	at := bytes.LastIndexByte(b, ')')
	return at < 0 || at+2 >= len(b) || b[at+2] == 'Z'
}

// up starts what does not run.
func (p parts) up() {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute) // services.sh gives up sooner
	defer cancel()
	for _, part := range []string{"kafka", "postgres", "redis", "registry"} {
		if b, err := os.ReadFile(filepath.Join(p.dir, "pid", part)); err == nil {
			if pid, err := strconv.Atoi(strings.Fields(string(b))[0]); err == nil && !gone(pid) {
				_ = syscall.Kill(pid, syscall.SIGCONT)
			}
		}
	}
	cmd := exec.CommandContext(ctx, "../../../deploy/services/services.sh", "up")
	cmd.Env = append(os.Environ(), "CARRIL_SERVICES_DIR="+p.dir)
	if out, err := cmd.CombinedOutput(); err != nil {
		p.t.Errorf("start the services again: %v\n%s", err, out)
	}
	// One that lives may still be recovering.
	for {
		conn, err := pgx.Connect(ctx, os.Getenv(testkit.EnvPostgresURL))
		if err == nil {
			_ = conn.Close(ctx)
			return
		}
		if ctx.Err() != nil {
			p.t.Errorf("PostgreSQL does not answer again: %v", err)
			return
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// faultRun is one row of the matrix: the product's front door and stages on real
// services, a load, and the ledger that judges it.
type faultRun struct {
	t     *testing.T
	row   string
	parts parts
	db    database
	env   []string
	kc    kafka.Config
	cl    *kgo.Client
	adm   *kadm.Client
	book  *books.Book
	rng   *rand.Rand
	proxy *testkit.Proxy // in front of PostgreSQL, for the stages
	begun time.Time

	apis     []string
	key      string
	tenant   string
	procs    []*process
	unknown  atomic.Int64
	failed   atomic.Int64
	acked    atomic.Int64
	healed   time.Time
	endLooks func()
	since    time.Time // looks before it are of a database that is gone
	figures  []string
}

func newFaultRun(t *testing.T, row string) *faultRun {
	t.Helper()
	p := services(t)
	seed := uint64(time.Now().UnixNano())
	if s, err := strconv.ParseUint(os.Getenv("CARRIL_TEST_SEED"), 10, 64); err == nil {
		seed = s
	}
	t.Logf("seed %d", seed)
	broker := testkit.Kafka(t)
	redis, redisPrefix := testkit.Redis(t)
	f := &faultRun{t: t, row: row, parts: p, db: database{t, testkit.Postgres(t)}, book: books.Open(t), rng: rand.New(rand.NewPCG(seed, 3)),
		kc: kafka.Config{Brokers: broker.Brokers, Prefix: broker.Prefix, SingleNode: true}, apis: []string{testkit.Addr(t), testkit.Addr(t)}, begun: time.Now()}
	f.env = []string{
		"CARRIL_KAFKA_BROKERS=" + broker.Brokers[0], "CARRIL_KAFKA_PREFIX=" + broker.Prefix, "CARRIL_KAFKA_SINGLE_NODE=true",
		"CARRIL_REGISTRY_URL=" + testkit.Registry(t), "CARRIL_POSTGRES_URL=" + f.db.url, "CARRIL_REDIS_URL=" + redis, "CARRIL_REDIS_PREFIX=" + redisPrefix,
		"CARRIL_MARKETING_LATE=0s",
	}
	command(t, f.env, "migrate", "topics", "--embedded")
	c := &cluster{t: t, db: f.db}
	c.exec(`INSERT INTO core.plans (plan_id, retention_months, events_per_second, events_burst) VALUES ('wide', 37, 10000000, 20000000)`)
	f.tenant, f.key = f.addTenant("acme")
	f.cl = broker.Client()
	f.adm = kadm.NewClient(f.cl)
	u, err := url.Parse(f.db.url)
	require.NoError(t, err)
	f.proxy = testkit.NewProxy(t, u.Host)
	return f
}

func (f *faultRun) addTenant(slug string) (id, key string) {
	f.t.Helper()
	id = command(f.t, f.env, "tenant", "create", slug, "--plan", "wide")
	return id, command(f.t, f.env, "key", "create", "--tenant", slug, "--scopes", "core.events.write,core.events.read")
}

// ingest starts a front door; process a replica of the stages, with PostgreSQL
// behind the proxy, and with more of an environment.
func (f *faultRun) ingest(i int) *process {
	f.t.Helper()
	return f.kept(start(f.t, f.env, "ingest", "--addr", f.apis[i]))
}

func (f *faultRun) stages(name string, env ...string) *process {
	f.t.Helper()
	return f.kept(start(f.t, f.stagesEnv(name, env...), "process"))
}

func (f *faultRun) stagesEnv(name string, env ...string) []string {
	u, err := url.Parse(f.db.url)
	require.NoError(f.t, err)
	u.Host = f.proxy.Addr()
	return append(append([]string{}, f.env...), append([]string{"CARRIL_INSTANCE_ID=" + name, "CARRIL_POSTGRES_URL=" + u.String()}, env...)...)
}

func (f *faultRun) kept(p *process) *process {
	f.procs = append(f.procs, p)
	return p
}

// faultClient gives up early: what it is not told in time is unknown to it.
var faultClient = &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{MaxIdleConnsPerHost: 64}}

// event is one that the load sends, until it has a 202.
type event struct {
	tenant, key, till string
	seq               int64
	at                time.Time
	historical        bool
}

func (e event) properties() string { return fmt.Sprintf(`{"n": %d, "till": %q}`, e.seq, e.till) }

func (e event) body() string {
	extra := ""
	if e.historical {
		extra = `,"historical":true`
	}
	return fmt.Sprintf(`{"event_name":"invoice.paid","idempotency_key":%q,"occurred_at":%q,"identifiers":{"email":%q},"properties":%s%s}`,
		e.key, e.at.UTC().Format(time.RFC3339Nano), e.till+"@example.com", e.properties(), extra)
}

// send sends an event once and keeps what it was told.
func (f *faultRun) send(api, key string, e event) (outcome string, took time.Duration) {
	r := books.Request{Tenant: e.tenant, Key: e.key, OrderKey: e.till, Seq: e.seq, Body: books.Body("invoice.paid", e.properties()), SentAt: time.Now(), Outcome: books.Unknown}
	defer func() { f.book.Sent(r) }()
	req, err := http.NewRequest(http.MethodPost, "http://"+api+"/v1/core/track", strings.NewReader(e.body()))
	if err != nil {
		return r.Outcome, 0
	}
	req.Header.Set("Authorization", "Bearer "+key)
	req.Header.Set("Content-Type", "application/json")
	resp, err := faultClient.Do(req)
	took = time.Since(r.SentAt)
	if err != nil {
		f.unknown.Add(1)
		return r.Outcome, took
	}
	defer resp.Body.Close()
	var answer struct {
		EventID string `json:"event_id"`
	}
	b, _ := io.ReadAll(resp.Body)
	switch {
	case resp.StatusCode == http.StatusAccepted && json.Unmarshal(b, &answer) == nil && answer.EventID != "":
		f.acked.Add(1)
		r.Outcome = books.Accepted(answer.EventID)
	case resp.StatusCode >= 500:
		f.failed.Add(1)
		r.Outcome = books.Failed(strconv.Itoa(resp.StatusCode))
	case resp.StatusCode >= 400:
		r.Outcome = books.Refused(strconv.Itoa(resp.StatusCode))
	default:
		f.unknown.Add(1)
	}
	return r.Outcome, took
}

// load sends events from tills that each go on with the next once the last has
// its 202; stop waits until every till has it.
type load struct {
	stopping chan struct{}
	done     sync.WaitGroup
	slowest  atomic.Int64 // an answer, ns
}

func (l *load) stop() { close(l.stopping); l.done.Wait() }

func (f *faultRun) load(doors, tills int, pace time.Duration) *load {
	f.looks()
	l := &load{stopping: make(chan struct{})}
	for i := range tills {
		l.done.Go(func() {
			till := fmt.Sprintf("till-%02d", i)
			for n := int64(1); ; n++ {
				select {
				case <-l.stopping:
					return
				case <-time.After(pace):
				}
				e := event{tenant: f.tenant, key: fmt.Sprintf("%s-%06d", till, n), till: till, seq: n, at: time.Now()}
				if !f.until(l, doors, e) {
					f.t.Errorf("%s never got its 202", e.key)
					return
				}
			}
		})
	}
	return l
}

// until sends an event until it has its 202.
func (f *faultRun) until(l *load, doors int, e event) bool {
	for deadline := time.Now().Add(5 * time.Minute); time.Now().Before(deadline); {
		outcome, took := f.send(f.apis[int(e.seq)%doors], f.key, e)
		for old := l.slowest.Load(); int64(took) > old && !l.slowest.CompareAndSwap(old, int64(took)); old = l.slowest.Load() {
		}
		if strings.HasPrefix(outcome, "202:") {
			return true
		}
		time.Sleep(100 * time.Millisecond)
	}
	return false
}

// awaitAcked waits until n more events have their 202.
func (f *faultRun) awaitAcked(n int64) {
	f.t.Helper()
	want := f.acked.Load() + n
	eventually(f.t, 5*time.Minute, func() bool { return f.acked.Load() >= want }, func() string { return fmt.Sprintf("%d acknowledged of %d", f.acked.Load(), want) })
}

// looks begins to sample the append's partitions.
func (f *faultRun) looks() {
	if f.endLooks != nil {
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(time.Second)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
				if found, err := f.places(ctx); err == nil {
					for _, s := range found {
						f.book.Sampled(s)
					}
				}
			}
		}
	}()
	f.endLooks = sync.OnceFunc(func() { cancel(); <-done })
	f.t.Cleanup(f.endLooks)
}

// consumers are the stages whose places are looked at, with what they read.
var consumers = map[string]string{"append": "core.events", "append-historical": "core.events.historical", "rules": "core.event.tracked"}

// places looks at every partition: what is committed first, what is persisted
// then, the log's end before both.
func (f *faultRun) places(ctx context.Context) (found []books.Sample, err error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	conn, err := pgx.Connect(ctx, f.db.url)
	if err != nil {
		return nil, err
	}
	defer conn.Close(ctx)
	for stage, topic := range consumers {
		ends, err := f.adm.ListEndOffsets(ctx, f.kc.Topic(topic))
		if err != nil {
			return nil, err
		}
		committed, err := f.adm.FetchOffsets(ctx, f.kc.Group(stage))
		if err != nil {
			return nil, err
		}
		at := map[int32]int64{}
		rows, err := conn.Query(ctx, `SELECT partition, next_offset FROM core.stream_positions WHERE stage = $1 AND topic = $2`, stage, topic)
		if err != nil {
			return nil, err
		}
		var p int32
		var next int64
		if _, err := pgx.ForEachRow(rows, []any{&p, &next}, func() error { at[p] = next; return nil }); err != nil {
			return nil, err
		}
		var failed error
		ends.Each(func(o kadm.ListedOffset) {
			if o.Err != nil {
				failed = o.Err
				return
			}
			s := books.Sample{At: time.Now(), Stage: stage, Topic: topic, Partition: o.Partition, Committed: -1, Persisted: at[o.Partition], End: o.Offset}
			if c, ok := committed.Lookup(f.kc.Topic(topic), o.Partition); ok && c.Err == nil {
				s.Committed = c.At
			}
			found = append(found, s)
		})
		if failed != nil {
			return nil, failed
		}
	}
	return found, nil
}

// behind counts the records that are not persisted, of a stage or of all (""),
// and the messages that are not relayed; -1 while nobody can say.
func (f *faultRun) behind(stage string) (n int64) {
	found, err := f.places(context.Background())
	if err != nil {
		return -1
	}
	for _, s := range found {
		if stage == "" || s.Stage == stage {
			n += s.End - s.Persisted
		}
	}
	if stage != "" {
		return n
	}
	relays, err := f.db.tryCount(`SELECT coalesce(sum(l.counter - c.cursor), 0) FROM core.outbox_lanes l JOIN core.outbox_cursors c ON c.lane = l.lane AND c.consumer = 'relay'`)
	if err != nil {
		return -1
	}
	return n + int64(relays)
}

// heal says that the fault is over, from when the recovery is measured.
func (f *faultRun) heal() { f.healed = time.Now() }

// recoveryBound is far above what a quiet machine needs: these run beside others.
const recoveryBound = 180.0

// judge waits until everything is quiet, and holds the run against its ledger.
func (f *faultRun) judge() {
	f.t.Helper()
	if f.healed.IsZero() {
		f.heal()
	}
	eventually(f.t, 4*time.Minute, func() bool { return f.behind("") == 0 }, func() string { return fmt.Sprintf("%d are behind", f.behind("")) })
	took := time.Since(f.healed).Seconds()
	f.book.Recovered("from heal to no backlog", took, recoveryBound, "s")
	f.figure("backlog gone %.1f s after heal", took)
	if f.endLooks != nil {
		f.endLooks()
	}
	f.lastLook()
	for _, p := range f.procs {
		f.book.Log(p.name, p.log.String())
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	conn, err := pgx.Connect(ctx, f.db.url)
	require.NoError(f.t, err)
	defer conn.Close(ctx)
	d, err := books.Read(ctx, conn)
	require.NoError(f.t, err)
	d.Published = f.published(ctx)
	f.book.Judge(d, func(e *books.Evidence) {
		e.Canaries = []string{f.key, "@example.com"}
		e.Samples = slices.DeleteFunc(e.Samples, func(s books.Sample) bool { return s.At.Before(f.since) })
	})
	f.figure("%d acknowledged, %d unknown, %d refused with 5xx, %d rows, %d dead letters", f.acked.Load(), f.unknown.Load(), f.failed.Load(), len(d.Rows), len(d.DeadLetters))
	f.report()
}

// lastLook keeps the places once Kafka's offsets have followed.
func (f *faultRun) lastLook() {
	f.t.Helper()
	var found []books.Sample
	eventually(f.t, time.Minute, func() bool {
		var err error
		if found, err = f.places(context.Background()); err != nil {
			return false
		}
		for _, s := range found {
			if s.Committed >= 0 && s.Committed < s.End {
				return false
			}
		}
		return true
	}, func() string { return fmt.Sprintf("offsets are committed: %+v", found) })
	for _, s := range found {
		f.book.Sampled(s)
	}
}

// published reads core.event.tracked to its end and counts records by event.
func (f *faultRun) published(ctx context.Context) map[string]int {
	f.t.Helper()
	topic := f.kc.Topic("core.event.tracked")
	ends, err := f.adm.ListEndOffsets(ctx, topic)
	require.NoError(f.t, err)
	left := int64(0)
	ends.Each(func(o kadm.ListedOffset) { left += o.Offset })
	cl, err := kgo.NewClient(kgo.SeedBrokers(f.kc.Brokers...), kgo.ConsumeTopics(topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	require.NoError(f.t, err)
	defer cl.Close()
	counts := map[string]int{}
	for left > 0 {
		fetches := cl.PollFetches(ctx)
		require.NoError(f.t, ctx.Err(), "%d records of %s are still to be read", left, topic)
		fetches.EachRecord(func(r *kgo.Record) {
			left--
			counts[kafka.Header(r, "ce_id")]++
		})
	}
	return counts
}

// figure keeps something to print of this row.
func (f *faultRun) figure(format string, args ...any) {
	f.figures = append(f.figures, fmt.Sprintf(format, args...))
}

// report prints the row, and keeps it for the end of `make test-faults`.
func (f *faultRun) report() {
	f.t.Helper()
	report(f.t, f.row, "passed in %.0f s: %s", time.Since(f.begun).Seconds(), strings.Join(f.figures, "; "))
}

func report(t *testing.T, row, format string, args ...any) {
	t.Helper()
	line := row + ": " + fmt.Sprintf(format, args...)
	t.Log(line)
	path := os.Getenv("CARRIL_TEST_FIGURES")
	if path == "" {
		return
	}
	out, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	require.NoError(t, err)
	_, err = fmt.Fprintln(out, line)
	require.NoError(t, err)
	require.NoError(t, out.Close())
}

// skip says why a row cannot run here; it is counted, and printed too.
func skip(t *testing.T, row, why string) {
	t.Helper()
	report(t, row, "skipped: %s", why)
	t.Skip(why)
}

// rss is a process's memory in MiB.
func (p *process) rss() float64 {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", p.cmd.Process.Pid))
	if err != nil {
		return 0
	}
	pages, err := strconv.ParseFloat(strings.Fields(string(b))[1], 64)
	if err != nil {
		return 0
	}
	return pages * float64(os.Getpagesize()) / (1 << 20)
}

// awaitKilled waits until a process has killed itself; anything else is void.
func (f *faultRun) awaitKilled(p *process) {
	f.t.Helper()
	select {
	case <-p.done:
	case <-time.After(2 * time.Minute):
		require.Fail(f.t, "the failpoint was not reached: the run is void")
	}
	require.Equal(f.t, syscall.SIGKILL, p.cmd.ProcessState.Sys().(syscall.WaitStatus).Signal(), "it died of something else: %s", tail(p.log.String(), 20))
}
