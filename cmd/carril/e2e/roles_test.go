package e2e

import (
	"context"
	"math/rand/v2"
	"os/exec"
	"sync"
	"testing"
	"time"

	"os"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/softcrum/carril/internal/testkit"
)

func tryCommand(env []string, args ...string) (string, error) {
	cmd := exec.Command(binary, args...)
	cmd.Env = append(os.Environ(), env...)
	out, err := cmd.Output()
	return string(out), err
}

// idsFound counts the acknowledged ids that have a row of their own key.
func idsFound(t *testing.T, db database, l *ledger) int {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	conn, err := pgx.Connect(ctx, db.url)
	require.NoError(t, err)
	defer conn.Close(ctx)
	keys, ids := make([]string, 0, len(l.ids)), make([]string, 0, len(l.ids))
	for k, id := range l.ids {
		keys, ids = append(keys, k), append(ids, id)
	}
	var n int
	err = conn.QueryRow(ctx, `SELECT count(*) FROM unnest($1::text[], $2::text[]) AS u(key, id)
JOIN core.tracked_events e ON e.occurred_at > '-infinity' AND e.event_id = u.id::uuid AND e.idempotency_key = u.key`, keys, ids).Scan(&n)
	require.NoError(t, err)
	return n
}

// cluster is a deployment of roles as separate processes over the tier's
// services, with a sandbox as its provider.
type cluster struct {
	t       *testing.T
	env     []string
	db      database
	sandbox *process
	apis    []string
	key     string
}

func newCluster(t *testing.T) *cluster {
	t.Helper()
	broker := testkit.Kafka(t)
	redis, redisPrefix := testkit.Redis(t)
	c := &cluster{t: t, db: database{t, testkit.Postgres(t)}, apis: []string{testkit.Addr(t), testkit.Addr(t)}}
	const secret = "whsec_Y2FycmlsLWUyZS1wcm92aWRlci1zZWNyZXQtMDE="
	c.sandbox = start(t, []string{"CARRIL_SANDBOX_WEBHOOK_SECRET=" + secret}, "sandbox", "--rate", "2000", "--webhook-url", "http://"+c.apis[0]+"/v1/providers/resend/webhooks",
		"--webhook-speed", "30") // 10 s after a second attempt, not 5 min: the door that they go to may be killed twice
	c.env = []string{
		"CARRIL_KAFKA_BROKERS=" + broker.Brokers[0], "CARRIL_KAFKA_PREFIX=" + broker.Prefix, "CARRIL_KAFKA_SINGLE_NODE=true",
		"CARRIL_REGISTRY_URL=" + testkit.Registry(t), "CARRIL_POSTGRES_URL=" + c.db.url, "CARRIL_REDIS_URL=" + redis, "CARRIL_REDIS_PREFIX=" + redisPrefix,
		"CARRIL_RESEND_URL=" + c.sandbox.Sandbox, "CARRIL_RESEND_KEY=re_e2e_0123456789abcdef", "CARRIL_RESEND_WEBHOOK_SECRETS=" + secret, "CARRIL_RESEND_RATE=2000",
		"CARRIL_MARKETING_LATE=0s", // how busy the machine is that tests run on says nothing of what they ask
		"CARRIL_WEBHOOK_KEY=AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=", "CARRIL_WEBHOOK_PRIVATE_TARGETS=127.0.0.0/8", "CARRIL_WEBHOOK_HTTP=true", "CARRIL_WEBHOOK_ANY_PORT=true",
	}
	command(t, c.env, "migrate", "topics", "--embedded")
	// What these tests send at once is more than any plan that is sold.
	c.exec(`INSERT INTO core.plans (plan_id, retention_months, events_per_second, events_burst) VALUES ('wide', 37, 10000000, 20000000)`)
	tenant := command(t, c.env, "tenant", "create", "acme", "--plan", "wide")
	c.key = command(t, c.env, "key", "create", "--tenant", "acme", "--scopes", "core.events.write,messaging.messages.write,messaging.sends.read")
	c.exec(`INSERT INTO messaging.templates (tenant_id, template_id, version, channel, subject, text) VALUES ($1::uuid, 'receipt', 1, 'email', 'Invoice {{ properties.invoice }}', 'Thank you')`, tenant)
	c.exec(`INSERT INTO messaging.senders (tenant_id, channel, sender, verified) VALUES ($1::uuid, 'email', 'Acme <shop@example.com>', true)`, tenant)
	c.exec(`INSERT INTO core.rules (tenant_id, rule_id, version, name, event_name, actions) VALUES ($1::uuid, gen_random_uuid(), 1, 'r', 'invoice.paid',
		'[{"type":"points","points":10},{"type":"notify","channel":"email","category":"transactional","template_id":"receipt"}]')`, tenant)
	return c
}

func (c *cluster) exec(sql string, args ...any) {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	conn, err := pgx.Connect(ctx, c.db.url)
	require.NoError(c.t, err)
	defer conn.Close(ctx)
	_, err = conn.Exec(ctx, sql, args...)
	require.NoError(c.t, err)
}

func (c *cluster) ingest(i int) *process {
	return start(c.t, c.env, "ingest", "--addr", c.apis[i])
}

// api gives one of the front doors at random.
func (c *cluster) api() (string, string) { return "http://" + c.apis[rand.IntN(len(c.apis))], c.key }

// settled waits until every event is a row, has its points, and its message has
// reached the provider once.
func (c *cluster) settled(n int) {
	c.t.Helper()
	c.db.await(n, 3*time.Minute, `SELECT count(*) FROM core.tracked_events WHERE occurred_at > '-infinity' AND event_name = 'invoice.paid'`)
	c.db.await(n, 3*time.Minute, `SELECT count(*) FROM core.points_ledger`)
	c.db.await(n, 6*time.Minute, `SELECT count(*) FROM messaging.sends WHERE requested_at > '-infinity'`)
	c.db.await(n, 3*time.Minute, `SELECT count(DISTINCT send_id) FROM messaging.send_status_history WHERE requested_at > '-infinity' AND status = 'delivered'`)
	require.Equal(c.t, n, c.sent(), "messages that the provider took")
	require.Zero(c.t, c.db.count(`SELECT count(*) FROM core.dead_letters`))
}

// TestRolesApartAndTogetherGiveTheSame runs the same events through one process
// with every role, and through two processes of each role.
func TestRolesApartAndTogetherGiveTheSame(t *testing.T) {
	const n = 300
	for name, startRoles := range map[string]func(c *cluster){
		"Together": func(c *cluster) {
			start(c.t, c.env, "all", "--addr", c.apis[0])
			c.apis = c.apis[:1]
		},
		"ApartTwoOfEach": func(c *cluster) {
			for range 2 {
				start(c.t, c.env, "maintain")
				start(c.t, c.env, "process")
				start(c.t, c.env, "dispatch")
				start(c.t, c.env, "webhooks")
			}
			c.ingest(0)
			c.ingest(1)
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t)
			startRoles(c)
			l, keys := newLedger(), keysOf(n)
			at := time.Now()
			for range 50 { // passes over what got no answer
				if postAll(c.api, keys, at, l, nil); l.acked() == n {
					break
				}
			}
			for _, k := range keys[:50] { // retries that nobody needed
				api, key := c.api()
				require.Equal(t, 202, insist(func() int { return post(api, key, k, k+"@example.com", at, l) }))
			}
			require.Equal(t, n, l.acked())
			require.Empty(t, l.bad)
			c.settled(n)
		})
	}
}

// TestOneKeyAHundredTimesOverTwoDoors is FS-CORE-0006 AC2 over two ingest
// processes at once: one id, one row, one points entry, one message.
func TestOneKeyAHundredTimesOverTwoDoors(t *testing.T) {
	c := newCluster(t)
	start(t, c.env, "maintain")
	start(t, c.env, "process")
	start(t, c.env, "dispatch")
	c.ingest(0)
	c.ingest(1)
	l, at := newLedger(), time.Now()
	var wg sync.WaitGroup
	for i := range 100 {
		wg.Go(func() {
			if status := insist(func() int { return post("http://"+c.apis[i%2], c.key, "invoice-889", "ana@example.com", at, l) }); status != 202 {
				t.Errorf("attempt %d: status %d", i, status)
			}
		})
	}
	wg.Wait()
	require.Empty(t, l.bad)
	require.Equal(t, 1, l.acked())
	c.settled(1)
}

// TestKilledRolesLoseNothing kills a random role every second, with kill -9,
// while 10,000 events come in, and starts it again.
func TestKilledRolesLoseNothing(t *testing.T) {
	const n = 10_000
	c := newCluster(t)
	roles := []string{"process", "process", "dispatch", "maintain", "ingest", "ingest"}
	live := make([]*process, len(roles))
	run := func(i int) *process {
		if roles[i] == "ingest" {
			return c.ingest(i - 4)
		}
		return start(t, c.env, roles[i])
	}
	for i := range roles {
		live[i] = run(i)
	}
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 2))
	l, keys, at := newLedger(), keysOf(n), time.Now().Add(-time.Minute)
	posted := make(chan struct{})
	go func() {
		defer close(posted)
		for range 50 { // passes over what got no answer
			if postAll(c.api, keys, at, l, nil); l.acked() == n {
				return
			}
		}
	}()
	kills := 0
	for loop := true; loop && kills < 60; {
		select {
		case <-posted:
			loop = kills < 6
		case <-time.After(time.Second):
		}
		i := rng.IntN(len(roles))
		live[i].kill()
		live[i] = run(i)
		kills++
	}
	<-posted
	require.Equal(t, n, l.acked())
	require.Empty(t, l.bad)
	require.GreaterOrEqual(t, kills, 6)
	c.settled(n)
	require.Equal(t, n, idsFound(t, c.db, l))
	t.Logf("%d kills", kills)
}

// sent counts the distinct messages that the provider took; a repeat under the
// same key is answered as before and is no second message.
func (c *cluster) sent() int {
	c.t.Helper()
	var counters struct {
		Accepted int `json:"accepted"`
	}
	getJSON(c.t, c.sandbox.Sandbox+"/sandbox/counters", &counters)
	return counters.Accepted
}
