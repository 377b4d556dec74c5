package ledger_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/softcrum/carril/internal/testkit"
	"github.com/softcrum/carril/internal/testkit/ledger"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// healthy makes the evidence of a run in which everything held: two tenants,
// accepted, refused, repeated and unknown requests, a dead letter, sends with a
// repeat after an ambiguous fault, deliveries.
func healthy() ledger.Evidence {
	e := ledger.Evidence{Ambiguous: 1, Canaries: []string{"ana@example.com"}}
	e.Dump.Published = map[string]int{}
	at := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	seq := map[string]int64{}
	for i := range 20 {
		tenant := fmt.Sprintf("tenant-%d", i%2)
		seq[tenant]++
		id, key := fmt.Sprintf("event-%d", i), fmt.Sprintf("key-%d", i)
		r := ledger.Request{Tenant: tenant, Key: key, OrderKey: "till-1", Seq: seq[tenant], SentAt: at,
			Body: ledger.Body("invoice.paid", fmt.Sprint(i)), Outcome: ledger.Accepted(id)}
		switch {
		case i == 5: // told nothing, and never landed
			r.Outcome = ledger.Unknown
			e.Requests = append(e.Requests, r)
			continue
		case i == 6: // told nothing, landed, then repeated
			lost := r
			lost.Outcome = ledger.Unknown
			e.Requests = append(e.Requests, lost, r)
		case i == 7:
			e.Requests = append(e.Requests, r)
			e.Dump.DeadLetters = append(e.Dump.DeadLetters, ledger.DeadLetter{ID: "dead-7", Tenant: tenant, Event: id, Status: "open"})
			continue
		default:
			e.Requests = append(e.Requests, r)
		}
		lane := int32(1 + i%2)
		e.Dump.Rows = append(e.Dump.Rows, ledger.Row{Tenant: tenant, Event: id, Kind: "track", Key: key, Body: r.Body, Lane: lane, LaneSeq: laneSeq(e.Dump.Rows, lane)})
		e.Dump.Fences = append(e.Dump.Fences, id)
		e.Dump.Published[id] = 1 + i%2
		send := "send-" + id
		e.Dump.Sends = append(e.Dump.Sends, ledger.Send{Tenant: tenant, Send: send, Event: id, Recipient: key + "@example.com", Status: "delivered", Terminal: true})
		e.Receipts = append(e.Receipts, ledger.Receipt{Key: "k-" + send, Tenant: tenant, Send: send, Recipient: key + "@example.com", Answer: "200", Reported: []string{"delivered"}})
		e.Deliveries = append(e.Deliveries, ledger.Delivery{ID: "wh-" + id, Tenant: tenant, Event: id, Attempt: 1, Signature: true})
	}
	e.Receipts = append(e.Receipts, e.Receipts[0]) // after the ambiguous fault
	e.Requests = append(e.Requests, ledger.Request{Tenant: "tenant-0", Key: "bad", Body: "x", Outcome: ledger.Refused("invalid")})
	for _, lane := range []int32{1, 2} {
		n := laneSeq(e.Dump.Rows, lane) - 1
		e.Dump.Lanes = append(e.Dump.Lanes, ledger.Lane{Lane: lane, Store: "events", Counter: n, Cursor: n, Count: n, First: 1, Last: n})
	}
	for n := range int64(5) {
		e.Samples = append(e.Samples, ledger.Sample{Stage: "append", Topic: "core.events", Committed: n * 4, Persisted: n*4 + min(2, 16-n*4), End: 16})
	}
	e.Proofs = []ledger.Proof{{What: "kills", Want: 1, Got: 2}}
	e.Recoveries = []ledger.Recovery{{What: "lag back to zero", Got: 4, Bound: 60, Unit: "s"}}
	e.Counters = []ledger.Counter{{Name: "records", Got: 19, Want: 19}}
	e.Logs = []ledger.Log{{From: "process", Text: "all is well"}}
	return e
}

func laneSeq(rows []ledger.Row, lane int32) int64 {
	n := int64(1)
	for _, r := range rows {
		if r.Lane == lane {
			n++
		}
	}
	return n
}

func TestHealthyEvidenceHolds(t *testing.T) {
	require.Empty(t, ledger.Check(healthy()))
}

// TestEveryMutationIsFound damages healthy evidence in one place at a time,
// chosen by a printed seed: each must be found under its own id.
func TestEveryMutationIsFound(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 7))
	for name, m := range map[string]struct {
		id     string
		change func(e *ledger.Evidence)
	}{
		"DeleteOneRow":        {"L1", func(e *ledger.Evidence) { drop(rng, &e.Dump.Rows) }},
		"ChangeABody":         {"L1", func(e *ledger.Evidence) { pick(rng, e.Dump.Rows).Body = "other" }},
		"DeleteTheDeadLetter": {"L1", func(e *ledger.Evidence) { e.Dump.DeadLetters = nil }},
		"ReplayWithoutARow":   {"L1", func(e *ledger.Evidence) { e.Dump.DeadLetters[0].Status = "replayed" }},
		"AnswerTwoIDsForOneKey": {"L1", func(e *ledger.Evidence) {
			r := e.Requests[0]
			r.Outcome = ledger.Accepted("other")
			e.Requests = append(e.Requests, r)
		}},
		"WriteARowTwice":         {"L2", func(e *ledger.Evidence) { e.Dump.Rows = append(e.Dump.Rows, *pick(rng, e.Dump.Rows)) }},
		"LoseAFence":             {"L2", func(e *ledger.Evidence) { drop(rng, &e.Dump.Fences) }},
		"LeaveAFenceWithoutARow": {"L2", func(e *ledger.Evidence) { e.Dump.Fences = append(e.Dump.Fences, "event-7") }},
		"KeepARefusedEvent": {"L3", func(e *ledger.Evidence) {
			e.Dump.Rows = append(e.Dump.Rows, ledger.Row{Tenant: "tenant-0", Event: "e", Key: "bad", Body: "x"})
		}},
		"LeaveASendUnfinished": {"L4", func(e *ledger.Evidence) { pick(rng, e.Dump.Sends).Terminal = false }},
		"LeaveAJobOpen": {"L4", func(e *ledger.Evidence) {
			e.Dump.OpenJobs = []ledger.Job{{Worker: "rail:email.transactional", Job: "j", State: "claimed"}}
		}},
		"DuplicateOneReceipt": {"L5", func(e *ledger.Evidence) { e.Receipts = append(e.Receipts, *pick(rng, e.Receipts)) }},
		"SendUnderASecondKey": {"L5", func(e *ledger.Evidence) {
			r := *pick(rng, e.Receipts)
			r.Key = "again"
			e.Receipts = append(e.Receipts, r)
		}},
		"SwapATenantOfAReceipt":  {"L6", func(e *ledger.Evidence) { swap(&pick(rng, e.Receipts).Tenant) }},
		"SwapATenantOfADelivery": {"L6", func(e *ledger.Evidence) { swap(&pick(rng, e.Deliveries).Tenant) }},
		"SwapATenantOfARow":      {"L6", func(e *ledger.Evidence) { swap(&pick(rng, e.Dump.Rows).Tenant) }},
		"InventAReceipt": {"L6", func(e *ledger.Evidence) {
			e.Receipts = append(e.Receipts, ledger.Receipt{Key: "k", Tenant: "tenant-0", Send: "nobody's"})
		}},
		"SendToAnotherRecipient": {"L6", func(e *ledger.Evidence) { pick(rng, e.Receipts).Recipient = "eva@example.com" }},
		"InventARow": {"L6", func(e *ledger.Evidence) {
			e.Dump.Rows = append(e.Dump.Rows, ledger.Row{Tenant: "tenant-0", Event: "e", Key: "nobody's"})
		}},
		"ForgeASignature":          {"L6", func(e *ledger.Evidence) { pick(rng, e.Deliveries).Signature = false }},
		"ReverseARowsOrder":        {"L7", func(e *ledger.Evidence) { reverse(e.Dump.Rows, 1) }},
		"ForgetAStatus":            {"L8", func(e *ledger.Evidence) { pick(rng, e.Dump.Sends).Status = "sent" }},
		"LetALateOneErase":         {"L8", func(e *ledger.Evidence) { e.Receipts[0].Reported = []string{"complained", "delivered"} }},
		"DropOneOffset":            {"L9", func(e *ledger.Evidence) { e.Samples[len(e.Samples)-1].Persisted-- }},
		"CommitBeforeItPersists":   {"L9", func(e *ledger.Evidence) { s := pick(rng, e.Samples); s.Committed = s.Persisted + 1 }},
		"StayBehind":               {"L9", func(e *ledger.Evidence) { e.Samples[len(e.Samples)-1].End++ }},
		"GoBack":                   {"L9", func(e *ledger.Evidence) { e.Samples[2].Persisted = 1; e.Samples[2].Committed = 0 }},
		"RecoverTooLate":           {"L10", func(e *ledger.Evidence) { e.Recoveries[0].Got = 61 }},
		"CountOneTooFew":           {"L11", func(e *ledger.Evidence) { e.Counters[0].Got-- }},
		"LeaveAGapInALane":         {"L11", func(e *ledger.Evidence) { e.Dump.Lanes[0].Count-- }},
		"LeaveALaneUnpublished":    {"L11", func(e *ledger.Evidence) { e.Dump.Lanes[1].Cursor-- }},
		"LoseAPublication":         {"L11", func(e *ledger.Evidence) { delete(e.Dump.Published, pick(rng, e.Dump.Rows).Event) }},
		"PublishWhatWasRolledBack": {"L11", func(e *ledger.Evidence) { e.Dump.Published["event-5"] = 1 }},
		"LogARecipient":            {"L12", func(e *ledger.Evidence) { e.Logs[0].Text += " to ana@example.com" }},
		"RunWithoutTheFault":       {"VOID", func(e *ledger.Evidence) { e.Proofs[0].Got = 0 }},
	} {
		t.Run(name, func(t *testing.T) {
			e := healthy()
			m.change(&e)
			var ids []string
			for _, v := range ledger.Check(e) {
				ids = append(ids, v.ID)
			}
			require.Contains(t, ids, m.id)
		})
	}
}

func pick[T any](rng *rand.Rand, of []T) *T { return &of[rng.IntN(len(of))] }

func drop[T any](rng *rand.Rand, of *[]T) {
	i := rng.IntN(len(*of))
	*of = slices.Delete(*of, i, i+1)
}

func swap(tenant *string) {
	*tenant = map[string]string{"tenant-0": "tenant-1", "tenant-1": "tenant-0"}[*tenant]
}

// reverse turns the order of a lane's first two rows.
func reverse(rows []ledger.Row, lane int32) {
	var at []int
	for i, r := range rows {
		if r.Lane == lane {
			at = append(at, i)
		}
	}
	rows[at[0]].LaneSeq, rows[at[1]].LaneSeq = rows[at[1]].LaneSeq, rows[at[0]].LaneSeq
}

func TestBook(t *testing.T) {
	t.Parallel()
	b := ledger.Open(t)
	want := healthy()
	for _, r := range want.Requests {
		b.Sent(r)
	}
	for _, r := range want.Receipts {
		b.Received(r)
	}
	for _, d := range want.Deliveries {
		b.Delivered(d)
	}
	for _, s := range want.Samples {
		b.Sampled(s)
	}
	b.Promise("kills", 1, 2)
	b.Recovered("lag back to zero", 4, 60, "s")
	b.Counted("records", 19, 19)
	b.Log("process", "all is well")
	got, err := b.Evidence(want.Dump)
	require.NoError(t, err)
	got.Ambiguous, got.Canaries = want.Ambiguous, want.Canaries
	require.Equal(t, want, got)
}

// TestRead holds the reader against a database with one of everything.
func TestRead(t *testing.T) {
	t.Parallel()
	conn, err := pgx.Connect(t.Context(), testkit.Postgres(t))
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close(t.Context()) })
	tenant, event := uuid.New(), uuid.New()
	_, err = conn.Exec(t.Context(), `INSERT INTO core.outbox_lanes (producer, store, counter) VALUES ('p', 'events', 1);
INSERT INTO core.outbox_cursors (lane, consumer, cursor) SELECT lane, 'relay', 1 FROM core.outbox_lanes`)
	require.NoError(t, err)
	_, err = conn.Exec(t.Context(), `INSERT INTO core.event_keys VALUES ($1, $2, 'x', now(), now())`, tenant, event)
	require.NoError(t, err)
	_, err = conn.Exec(t.Context(), `INSERT INTO core.tracked_events (tenant_id, event_id, cell_id, contact_id, kind, event_name, properties, occurred_at, occurred_offset,
received_at, idempotency_key, correlation_id, retention_months, lane, lane_seq)
SELECT $1, $2, 'c', $1, 'track', 'invoice.paid', '{"b": 1, "aa": 2.50}', now(), 0, now(), 'k', 'c', 13, lane, 1 FROM core.outbox_lanes`, tenant, event)
	require.NoError(t, err)
	_, err = conn.Exec(t.Context(), `INSERT INTO core.dead_letters (dead_letter_id, stage, class, reason, event_id, record_value) VALUES (gen_random_uuid(), 's', 'c', 'r', $1, 'v')`, uuid.New())
	require.NoError(t, err)
	d, err := ledger.Read(t.Context(), conn)
	require.NoError(t, err)
	require.Len(t, d.Rows, 1)
	require.Equal(t, ledger.Body("invoice.paid", `{"b": 1, "aa": 2.50}`), d.Rows[0].Body)
	require.Equal(t, []string{event.String()}, d.Fences)
	require.Len(t, d.DeadLetters, 1)
	require.Equal(t, "open", d.DeadLetters[0].Status)
	require.Equal(t, []ledger.Lane{{Lane: d.Rows[0].Lane, Store: "events", Counter: 1, Cursor: 1, Count: 1, First: 1, Last: 1}}, d.Lanes)
	require.Empty(t, d.Sends)
	require.Empty(t, d.OpenJobs)
	require.False(t, strings.Contains(ledger.Text(ledger.Check(ledger.Evidence{Dump: d}), 9), "L11"))
}
