//go:build kafka

package e2e

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
)

// blaster is a tenant with people who have agreed to be written to.
type blaster struct {
	*cluster
	tenant string
	key    string
	people int
}

// blaster makes a tenant of its own.
func (c *cluster) blaster(slug string, people int) *blaster {
	c.t.Helper()
	b := &blaster{cluster: c, people: people, tenant: command(c.t, c.env, "tenant", "create", slug, "--plan", "scale")}
	b.key = command(c.t, c.env, "key", "create", "--tenant", slug, "--scopes", "messaging.blasts.read,messaging.blasts.write")
	c.exec(`INSERT INTO messaging.senders (tenant_id, channel, sender, domain, verified) VALUES ($1::uuid, 'email', 'Shop <shop@example.com>', 'example.com', true)`, b.tenant)
	c.exec(`INSERT INTO messaging.templates (tenant_id, template_id, version, channel, subject, text) VALUES ($1::uuid, 'news', 1, 'email', 'News', 'This is our news.')`, b.tenant)
	c.exec(`WITH people AS (
    INSERT INTO core.contacts (tenant_id, contact_id, cell_id, known) SELECT $1::uuid, md5($2::text || n)::uuid, 'cell-1', true FROM generate_series(1, $3::int) n
), identifiers AS (
    INSERT INTO core.contact_identifiers (tenant_id, kind, value, contact_id) SELECT $1::uuid, 'email', $2::text || '-' || n || '@example.com', md5($2::text || n)::uuid FROM generate_series(1, $3::int) n
)
INSERT INTO messaging.consents (tenant_id, contact_id, channel, purpose, granted, source) SELECT $1::uuid, md5($2::text || n)::uuid, 'email', 'marketing', true, 'test' FROM generate_series(1, $3::int) n`,
		b.tenant, slug, people)
	return b
}

// call asks the API as the tenant, and again where there was no answer.
func (b *blaster) call(method, path, body string, into any) {
	b.t.Helper()
	said := ""
	eventually(b.t, time.Minute, func() bool {
		req, err := http.NewRequestWithContext(b.t.Context(), method, "http://"+b.apis[0]+"/v1/messaging/blasts"+path, strings.NewReader(body))
		require.NoError(b.t, err)
		req.Header.Set("Authorization", "Bearer "+b.key)
		req.Header.Set("Content-Type", "application/json")
		resp, err := client.Do(req)
		if err != nil {
			said = err.Error()
			return false
		}
		defer resp.Body.Close()
		said = resp.Status
		return resp.StatusCode/100 == 2 && json.NewDecoder(resp.Body).Decode(into) == nil
	}, func() string { return method + " " + path + ": " + said })
}

// start starts a blast to everybody, and gives its id.
func (b *blaster) start(name string) (id string) {
	b.t.Helper()
	var made struct {
		ID string `json:"blast_id"`
	}
	b.call(http.MethodPost, "", fmt.Sprintf(`{"name":%q,"template_id":"news","audience":{"type":"contacts"},"idempotency_key":%q}`, name, name), &made)
	require.NoError(b.t, uuid.Validate(made.ID))
	b.call(http.MethodPost, "/"+made.ID+"/start", `{}`, &struct{}{})
	return made.ID
}

// adds reads a blast and holds its parts against its total.
func (b *blaster) adds(id string) (state string, parts map[string]int) {
	b.t.Helper()
	var got struct {
		State    string         `json:"state"`
		Progress map[string]any `json:"progress"`
	}
	b.call(http.MethodGet, "/"+id, "", &got)
	parts = map[string]int{}
	sum := 0
	for _, name := range []string{"sent", "failed", "expired", "blocked", "cancelled", "needs_review", "dead", "pending", "total"} {
		n, ok := got.Progress[name].(float64)
		require.True(b.t, ok, "%s: %v", name, got.Progress)
		parts[name] = int(n)
		if name != "total" {
			sum += int(n)
		}
	}
	require.Equal(b.t, parts["total"], sum, "%v", parts)
	return got.State, parts
}

// done waits until a blast is done, and looks at its sum all the time.
func (b *blaster) done(id string, within time.Duration) map[string]int {
	b.t.Helper()
	var state string
	var parts map[string]int
	eventually(b.t, within, func() bool { state, parts = b.adds(id); return state == "done" }, func() string { return fmt.Sprint(state, parts) })
	return parts
}

// taken is one message of one request at the sandbox.
type taken struct {
	To     string `json:"to"`
	Key    string `json:"key"`
	Replay bool   `json:"replay"`
}

func (c *cluster) taken() (all []taken) {
	c.t.Helper()
	for since := uint64(0); ; {
		var page struct {
			Entries []taken `json:"entries"`
			Next    uint64  `json:"next"`
			Gone    uint64  `json:"gone"`
		}
		getJSON(c.t, c.sandbox.Sandbox+"/sandbox/receipts?since="+strconv.FormatUint(since, 10), &page)
		require.Zero(c.t, page.Gone)
		if len(page.Entries) == 0 {
			return all
		}
		all, since = append(all, page.Entries...), page.Next
	}
}

// turns tells whose each request was, by the first letter of its addresses.
func turns(all []taken) string {
	var b strings.Builder
	seen := map[string]bool{} // two requests' messages may stand among each other
	for _, r := range all {
		if !r.Replay && !seen[r.Key] {
			b.WriteByte(r.To[0])
			seen[r.Key] = true
		}
	}
	return b.String()
}

// blastSize is CARRIL_TEST_BLAST, or what a quick run takes.
func blastSize(quick int) (people int, whole bool) {
	if n, err := strconv.Atoi(os.Getenv("CARRIL_TEST_BLAST")); err == nil {
		return n, true
	}
	return quick, false
}

// rails starts what a blast needs but the processes that dispatch, which are
// started one by one; of requests a second nine tenths are permitted.
func (c *cluster) rails(requests int) (dispatch func(i int) *process) {
	c.t.Helper()
	c.env = append(c.env, fmt.Sprintf("CARRIL_RESEND_RATE=%d", requests))
	start(c.t, c.env, "maintain")
	start(c.t, c.env, "process")
	c.ingest(0)
	return func(i int) *process {
		return launch(c.t, append(c.env[:len(c.env):len(c.env)], fmt.Sprintf("CARRIL_INSTANCE_ID=d%d", i)), "dispatch")
	}
}

// TestASmallBlastBesideALargeOneOfAnother has a tenant blast alone, and then the
// same again beside another tenant's large blast: of the requests from its first
// to its last about half are its own, however the three processes that dispatch
// have divided the partitions. A quick run counts requests alone, since with few
// of them seconds are noise; CARRIL_TEST_BLAST is the large one's size, and has
// the small one take at most 2.2 times as long as alone. Nobody waits for the
// outcomes of first messages: that line is the reports', and not the rail's.
func TestASmallBlastBesideALargeOneOfAnother(t *testing.T) {
	people, whole := blastSize(6_000)
	c := newCluster(t)
	c.env = append(c.env, "CARRIL_BLAST_FIRST=-1")
	dispatch := c.rails(3)
	for _, p := range []*process{dispatch(0), dispatch(1), dispatch(2)} {
		p.awaitReady(90 * time.Second)
	}
	small, large := c.blaster("small", max(1_500, people/10)), c.blaster("large", people)
	took := func(id string) float64 {
		var s float64
		require.NoError(t, c.db.one(&s, `SELECT extract(epoch FROM finished_at - started_at)::float8 FROM messaging.blasts WHERE blast_id = $1::uuid`, id))
		return s
	}
	first := small.start("alone")
	require.Equal(t, small.people, small.done(first, 5*time.Minute)["sent"])
	alone := took(first)

	running := large.start("large")
	eventually(t, 3*time.Minute, func() bool { _, parts := large.adds(running); return parts["sent"] > 500 }, func() string { return "the large blast does not get going" })
	before := len(c.taken())
	second := small.start("beside")
	require.Equal(t, small.people, small.done(second, 5*time.Minute)["sent"])
	_, parts := large.adds(running)
	beside := took(second)
	all := turns(c.taken()[before:])
	both := all[strings.IndexByte(all, 's') : strings.LastIndexByte(all, 's')+1]
	own, other := strings.Count(both, "s"), strings.Count(both, "l")
	t.Logf("%d people: %.1f s alone, %.1f s beside %d, which had %d left: %.2f times; %s", small.people, alone, beside, large.people, parts["pending"], beside/alone, all)
	require.Positive(t, parts["pending"], "the large blast was over before the small one: make it larger")
	require.LessOrEqual(t, other, 2*own)
	require.LessOrEqual(t, own, 2*other, "nor does the large one stand still")
	if whole {
		require.LessOrEqual(t, beside/alone, 2.2)
	}
	require.Equal(t, large.people, large.done(running, 20*time.Minute)["sent"])
}

// TestABlastWhileWorkersAreKilled kills one of three dispatch processes at
// random, again and again, during a blast: the accounting adds up at every look,
// everybody gets it, and nobody twice but under the same idempotency key, which
// the provider does not repeat within its 24 hours. CARRIL_TEST_BLAST is its
// size, and has a worker killed every five seconds.
func TestABlastWhileWorkersAreKilled(t *testing.T) {
	people, whole := blastSize(4_000)
	every := 1500 * time.Millisecond
	if whole {
		every = 5 * time.Second
	}
	c := newCluster(t)
	dispatch := c.rails(5)
	workers := []*process{dispatch(0), dispatch(1), dispatch(2)}
	for _, p := range workers {
		p.awaitReady(90 * time.Second)
	}
	b := c.blaster("news", people)
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 5))
	id := b.start("news")

	stop, kills := make(chan struct{}), 0
	var killing sync.WaitGroup
	killing.Go(func() {
		for {
			select {
			case <-stop:
				return
			case <-time.After(every):
			}
			i := rng.IntN(len(workers))
			workers[i].kill()
			workers[i] = dispatch(i) // it is ready when it is
			kills++
		}
	})
	end := sync.OnceFunc(func() { close(stop); killing.Wait() })
	defer end()
	eventually(t, 20*time.Minute, func() bool { _, parts := b.adds(id); return parts["total"] == people && parts["pending"] <= people/10 },
		func() string { _, parts := b.adds(id); return fmt.Sprint(parts) })
	end() // what is left goes out by those that live
	parts := b.done(id, 5*time.Minute)
	require.Equal(t, people, parts["sent"], "%v", parts)

	times, keys, again := map[string]int{}, map[string]map[string]bool{}, 0
	for _, r := range c.taken() {
		if keys[r.To] == nil {
			keys[r.To] = map[string]bool{}
		}
		keys[r.To][r.Key] = true
		if r.Replay {
			again++
			continue
		}
		times[r.To]++
	}
	require.Len(t, times, people, "everybody")
	for to, n := range times {
		require.Equal(t, 1, n, "%s got it twice", to)
		require.Len(t, keys[to], 1, "%s was asked for under two keys", to)
	}
	require.Equal(t, people, c.sent())
	require.Positive(t, kills)
	t.Logf("%d kills; %d messages were asked for again under their own key", kills, again)
}
