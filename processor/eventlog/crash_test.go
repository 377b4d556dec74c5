package eventlog_test

import (
	"crypto/sha256"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/softcrum/carril/internal/pg"
	"github.com/softcrum/carril/internal/testkit"
	"github.com/softcrum/carril/processor/stagetest"
	"github.com/softcrum/carril/schemas"
)

// story is what is sent of one tenant, and what must become of it.
type story struct {
	tenant uuid.UUID
	sent   []schemas.Event
	want   []schemas.Event // the first of each key, in order
	bodies map[string]map[string]bool
	person map[uuid.UUID]int // by event
}

// tell adds n events: repeats of near and far keys, some with another body,
// among new ones of old and new people.
func (s *story) tell(b *stagetest.Bench, rng *rand.Rand, n int) []schemas.Event {
	from := len(s.sent)
	for len(s.sent) < from+n {
		key, body := fmt.Sprintf("k-%d", len(s.want)), `{"n":1}`
		if old := len(s.want); old > 0 && rng.IntN(50) == 0 {
			back := 1 + rng.IntN(min(old, []int{5, 5_000}[rng.IntN(2)]))
			key, body = s.want[old-back].IdempotencyKey, fmt.Sprintf(`{"n":%d}`, 1+rng.IntN(2))
		}
		person := rng.IntN(1 + len(s.want)/3)
		identifiers := []string{
			fmt.Sprintf(`{"external_id":"u-%d","email":"u-%d@example.com"}`, person, person),
			fmt.Sprintf(`{"external_id":"u-%d"}`, person),
		}[rng.IntN(2)]
		b.Tenant = s.tenant
		e := b.Event(key, "invoice.paid", time.Now(), identifiers, body)
		sum := sha256.Sum256([]byte(body))
		e.BodyHash = sum[:]
		s.sent = append(s.sent, e)
		if s.bodies[key] == nil {
			s.bodies[key] = map[string]bool{}
			s.want = append(s.want, e)
			s.person[e.EventID] = person
		}
		s.bodies[key][body] = true
	}
	return s.sent[from:]
}

// Whatever is cut or killed, the stage's table, its people, its lanes and its
// topic are those of the events as they were sent.
func TestAppendWithRandomCrashes(t *testing.T) { // FS-CORE-0006 AC2
	t.Parallel()
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 1))
	b := stagetest.New(t)
	at := b.Pool.Config().ConnConfig
	proxy := testkit.NewProxy(t, fmt.Sprintf("%s:%d", at.Host, at.Port))
	pool, err := pg.Open(t.Context(), pg.Config{URL: fmt.Sprintf("postgres://%s@%s/%s", at.User, proxy.Addr(), at.Database)})
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	b.Pool = pool
	var stories []*story
	for _, slug := range []string{"one", "two"} {
		stories = append(stories, &story{tenant: b.AddTenant(slug, "starter"), bodies: map[string]map[string]bool{}, person: map[uuid.UUID]int{}})
	}
	pattern := testkit.Prepared("commit")
	stop := run(b)
	rows := 0
	for range 5 {
		for _, s := range stories {
			stagetest.Send(b, schemas.TopicEvents, s.tenant, s.tell(b, rng, 1_500)...)
		}
		for range 2 {
			switch rng.IntN(4) {
			case 0:
				stop() // and a process that remembers nothing goes on
				stop = run(b)
			case 1:
				proxy.Reset()
			default:
				proxy.CutOnPattern(pattern, []testkit.When{testkit.Before, testkit.After}[rng.IntN(2)])
			}
			time.Sleep(time.Duration(rng.IntN(150)) * time.Millisecond)
		}
	}
	for _, s := range stories {
		rows += len(s.want)
	}
	b.Await(rows, eventCount)
	tracked := stagetest.Read[schemas.EventTracked](b, schemas.TopicEventTracked, rows)
	for _, s := range stories {
		s.check(b, tracked)
	}
	require.Zero(t, b.Count(`SELECT count(*) FROM core.outbox_lanes l WHERE store = 'events' AND counter <> (SELECT count(DISTINCT lane_seq) FROM core.tracked_events e
		WHERE e.occurred_at > '-infinity' AND e.lane = l.lane AND e.lane_seq BETWEEN 1 AND l.counter)`), "lanes without a gap")
	require.Zero(t, b.Count(`SELECT count(*) FROM core.dead_letters`))
	require.Zero(t, b.Count(`SELECT count(*) FROM core.contacts c WHERE NOT EXISTS (SELECT FROM core.contact_identifiers i
		WHERE i.tenant_id = c.tenant_id AND i.contact_id = c.contact_id)`), "nobody is made twice")
}

func (s *story) check(b *stagetest.Bench, all []schemas.EventTracked) {
	t := b.T
	var got []schemas.EventTracked
	for _, e := range all {
		if e.TenantID == s.tenant {
			got = append(got, e)
		}
	}
	require.Len(t, got, len(s.want))
	who, is := map[int]uuid.UUID{}, map[uuid.UUID]int{}
	for i, e := range got {
		require.Equal(t, s.want[i].IdempotencyKey, e.IdempotencyKey, "the order of what was sent")
		require.JSONEq(t, s.want[i].Payload, e.Payload, "the first body") // read back from jsonb it has spaces
		p := s.person[e.EventID]
		if _, met := who[p]; !met {
			who[p] = e.ContactID
		}
		require.Equal(t, who[p], e.ContactID, "one contact a person")
		if other, met := is[e.ContactID]; met {
			require.Equal(t, other, p, "one person a contact")
		}
		is[e.ContactID] = p
	}
	require.Equal(t, len(who), b.Count(`SELECT count(*) FROM core.contacts WHERE tenant_id = $1`, s.tenant))
	require.Zero(t, b.Count(`SELECT count(*) FROM core.tracked_events e LEFT JOIN core.contacts c USING (tenant_id, contact_id)
		WHERE e.occurred_at > '-infinity' AND e.tenant_id = $1 AND c.contact_id IS NULL`, s.tenant))
	other := 0
	for _, bodies := range s.bodies {
		other += len(bodies) - 1
	}
	require.Equal(t, other, b.Count(`SELECT count(*) FROM core.idempotency_conflicts WHERE tenant_id = $1`, s.tenant))
}
