package rail

import (
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/softcrum/carril/dispatcher/sends"
)

func queued(r *ring, tenant uuid.UUID, lane, n int) (items []*item) {
	for range n {
		it := &item{ref: sends.Ref{JobID: uuid.New(), TenantID: tenant}, lane: lane, entry: newWindow("t", 0, 0).receive(0, 1)}
		r.push(it, false)
		items = append(items, it)
	}
	return items
}

func TestRing(t *testing.T) {
	t.Parallel()
	now := time.Now()
	a, b := uuid.New(), uuid.New()
	t.Run("GivesEachTenantItsTurnWhateverItsBacklog", func(t *testing.T) {
		t.Parallel()
		r := newRing()
		queued(r, a, 0, 100)
		queued(r, b, 0, 2)
		var turns []uuid.UUID
		for range 6 {
			it, _, _ := r.next(now)
			require.True(t, r.take(it))
			turns = append(turns, it.ref.TenantID)
		}
		require.Equal(t, []uuid.UUID{a, b, a, b, a, a}, turns)
		require.Equal(t, 96, r.size)
	})
	t.Run("StepsOverATenantThatMayNotAskYet", func(t *testing.T) {
		t.Parallel()
		r := newRing()
		queued(r, a, 0, 1)
		mine := queued(r, b, 0, 1)[0]
		_, q, _ := r.next(now)
		q.askAt = now.Add(time.Second)
		it, _, _ := r.next(now)
		require.Equal(t, mine, it)
		require.True(t, r.take(it))
		it, _, when := r.next(now)
		require.Nil(t, it)
		require.Equal(t, now.Add(time.Second), when)
		it, _, _ = r.next(now.Add(time.Second))
		require.NotNil(t, it)
	})
	t.Run("PutsAsideWhatItsTenantsBucketHoldsUpWheneverItCame", func(t *testing.T) { // I49
		t.Parallel()
		r := newRing()
		queued(r, a, 0, 3)
		queued(r, a, 1, 2)
		theirs := queued(r, b, 0, 50)
		_, q, _ := r.next(now)
		q.refused(now.Add(200*time.Millisecond), 500*time.Millisecond)
		items, delays := r.behind(now, 800*time.Millisecond)
		require.Len(t, items, 3)
		require.Equal(t, []int{0, 1, 1}, []int{items[0].lane, items[1].lane, items[2].lane}, "transactional stays longest")
		require.Equal(t, []time.Duration{1200 * time.Millisecond, 1700 * time.Millisecond, 2200 * time.Millisecond}, delays)
		require.Equal(t, 2+len(theirs), r.size)

		later := queued(r, a, 0, 1) // comes after the refusal
		items, _ = r.behind(now, 800*time.Millisecond)
		require.Equal(t, later, items)

		require.True(t, r.take(q.lanes[0][0]))
		q.granted(now.Add(210 * time.Millisecond)) // just in time: the next is an interval later
		queued(r, a, 0, 2)
		items, delays = r.behind(now.Add(210*time.Millisecond), 800*time.Millisecond)
		require.Len(t, items, 2)
		require.Equal(t, 990*time.Millisecond, delays[0])

		q.granted(now.Add(time.Minute)) // the bucket has filled meanwhile
		queued(r, a, 0, 100)
		items, _ = r.behind(now.Add(time.Minute), 800*time.Millisecond)
		require.Empty(t, items)
	})
	t.Run("TakesTransactionalBeforeProductOfOneTenant", func(t *testing.T) {
		t.Parallel()
		r := newRing()
		queued(r, a, 1, 3)
		code := queued(r, a, 0, 1)[0]
		it, _, _ := r.next(now)
		require.Equal(t, code, it)
	})
	t.Run("LetsAJobInBackoffBeOvertaken", func(t *testing.T) {
		t.Parallel()
		r := newRing()
		items := queued(r, a, 0, 2)
		items[0].ready = now.Add(time.Second)
		it, _, _ := r.next(now)
		require.Equal(t, items[1], it)
		require.True(t, r.take(it))
		_, _, when := r.next(now)
		require.Equal(t, now.Add(time.Second), when)
	})
	t.Run("ForgetsTenantsWithoutWork", func(t *testing.T) {
		t.Parallel()
		r := newRing()
		for range 1000 {
			it := queued(r, uuid.New(), 0, 1)[0]
			require.True(t, r.take(it))
			require.False(t, r.take(it))
		}
		r.next(now)
		require.Empty(t, r.tenants)
		require.Zero(t, r.size)
	})
}
