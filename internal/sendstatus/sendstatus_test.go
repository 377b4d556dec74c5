package sendstatus_test

import (
	"context"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/softcrum/carril/internal/ids"
	"github.com/softcrum/carril/internal/sendstatus"
	"github.com/softcrum/carril/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

var ranks = map[string]int{"queued": 10, "sent": 30, "delayed": 35, "soft_bounced": 40, "failed": 45, "delivered": 50, "opened": 60, "clicked": 70, "bounced": 90, "complained": 100}

func rows(statuses ...string) (out []sendstatus.Row) {
	for _, s := range statuses {
		out = append(out, sendstatus.Row{Status: s, Rank: ranks[s], Generation: 1})
	}
	return out
}

// FS-MSG-0003 AC3
func TestDerive(t *testing.T) {
	t.Parallel()
	t.Run("IsTheSameInAnyOrderAndHoweverOften", func(t *testing.T) {
		t.Parallel()
		rapid.Check(t, func(t *rapid.T) {
			var in []sendstatus.Row
			for range rapid.IntRange(0, 8).Draw(t, "n") {
				s := rapid.SampledFrom([]string{"queued", "sent", "delayed", "soft_bounced", "failed", "delivered", "opened", "clicked", "bounced", "complained"}).Draw(t, "status")
				in = append(in, sendstatus.Row{Status: s, Rank: ranks[s], Generation: rapid.IntRange(1, 3).Draw(t, "generation")})
			}
			want := sendstatus.Derive(in)
			again := append(append([]sendstatus.Row{}, in...), in...)
			rand.Shuffle(len(again), func(i, j int) { again[i], again[j] = again[j], again[i] })
			if got := sendstatus.Derive(again); got != want {
				t.Fatalf("%v gives %q, shuffled and repeated %q", in, want, got)
			}
		})
	})
	t.Run("LetsADeliveryStandAboveAFailureI17", func(t *testing.T) {
		t.Parallel()
		require.Equal(t, "delivered", sendstatus.Derive(rows("queued", "failed", "delivered")))
	})
	t.Run("NeverLetsADeliveryEraseAComplaint", func(t *testing.T) {
		t.Parallel()
		require.Equal(t, "complained", sendstatus.Derive(rows("complained", "delivered", "opened")))
	})
	t.Run("ForgetsTheFailureOfAnEarlierGeneration", func(t *testing.T) {
		t.Parallel()
		in := append(rows("queued", "failed"), sendstatus.Row{Status: "sent", Rank: 30, Generation: 2})
		require.Equal(t, "sent", sendstatus.Derive(in))
	})
}

// TestOf holds the query to the pure function.
func TestOf(t *testing.T) {
	t.Parallel()
	pool := testkit.Pool(t)
	tenant := uuid.New()
	rng := rand.New(rand.NewPCG(1, 2))
	names := []string{"queued", "sent", "delayed", "soft_bounced", "failed", "delivered", "opened", "clicked", "bounced", "complained"}
	want := map[uuid.UUID]string{}
	var refs []sendstatus.Ref
	for i := range 200 {
		at := time.Now().UTC().Truncate(time.Millisecond).Add(time.Duration(i) * time.Second)
		id := ids.Send(tenant, uuid.New(), at, 0, "email")
		var in []sendstatus.Row
		for j := range rng.IntN(6) + 1 {
			s := names[rng.IntN(len(names))]
			r := sendstatus.Row{Status: s, Rank: ranks[s], Generation: 1 + rng.IntN(3)}
			in = append(in, r)
			_, err := pool.Exec(t.Context(), `INSERT INTO messaging.send_status_history (requested_at, retention_months, tenant_id, send_id, status, provider, provider_event_id, generation, occurred_at)
VALUES ($1, 13, $2, $3, $4, 'p', $5, $6, now())`, at, tenant, id, s, uuid.NewString(), r.Generation)
			require.NoError(t, err)
			_ = j
		}
		want[id] = sendstatus.Derive(in)
		refs = append(refs, sendstatus.Ref{SendID: id, RequestedAt: at})
	}
	got, err := sendstatus.Of(context.Background(), pool, refs)
	require.NoError(t, err)
	for id, status := range want {
		require.Equal(t, status, got[id].Status)
		require.Equal(t, ranks[status], got[id].Rank)
	}
}
