package eventlog

import (
	"context"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/softcrum/carril/internal/ids"
	"github.com/softcrum/carril/internal/pg"
	"github.com/softcrum/carril/internal/stream"
	"github.com/softcrum/carril/internal/testkit"
	"github.com/softcrum/carril/schemas"
)

// statements counts what a fence asks of the database.
type statements struct{ copies, inserts atomic.Int64 }

func (s *statements) TraceQueryStart(ctx context.Context, _ *pgx.Conn, q pgx.TraceQueryStartData) context.Context {
	switch {
	case strings.Contains(q.SQL, "COPY core.event_keys"):
		s.copies.Add(1)
	case strings.Contains(q.SQL, "INSERT INTO core.event_keys"):
		s.inserts.Add(1)
	}
	return ctx
}

func (*statements) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

func TestFence(t *testing.T) {
	t.Parallel()
	asked := &statements{}
	pool, err := pg.Open(t.Context(), pg.Config{URL: testkit.Postgres(t), MaxConns: 1, Tracer: asked})
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	tenant := ids.New()
	keys := func(from, to int) (rows []row) {
		for i := from; i < to; i++ {
			id := ids.Event(tenant, strconv.Itoa(i)) // not in order
			rows = append(rows, row{index: i, Event: &schemas.Event{TenantID: tenant, EventID: id, BodyHash: []byte("body"), OccurredAt: time.Now(), ReceivedAt: time.Now()}})
		}
		return rows
	}
	// won runs the rows through a fence and gives the places of those that won.
	won := func(h *Handler, rows []row, commit bool) (won []int) {
		t.Helper()
		tx, err := pool.Begin(t.Context())
		require.NoError(t, err)
		defer tx.Rollback(t.Context()) //nolint:errcheck // after a commit it is none
		k := h.keysOf(rows)
		lost, err := h.takeKeys(t.Context(), tx, k)
		require.NoError(t, err)
		winners, err := h.winners(t.Context(), tx, &stream.Batch{}, k, lost)
		require.NoError(t, err)
		for _, r := range winners {
			won = append(won, r.index)
		}
		if commit {
			require.NoError(t, tx.Commit(t.Context()))
		}
		return won
	}
	span := func(from, to int) (all []int) {
		for i := from; i < to; i++ {
			all = append(all, i)
		}
		return all
	}
	moved := func(copies, inserts int64) {
		t.Helper()
		require.Equal(t, [2]int64{copies, inserts}, [2]int64{asked.copies.Swap(0), asked.inserts.Swap(0)})
	}

	h := New(Deps{})
	require.Equal(t, span(0, 300), won(h, keys(0, 300), true))
	moved(1, 0)
	require.Equal(t, span(300, 600), won(h, keys(290, 600), true), "repeats seen lately are inserted beside the copy")
	moved(1, 1)
	require.Empty(t, won(h, keys(0, 300), true))
	moved(0, 1)

	h = New(Deps{}) // another process
	require.Equal(t, span(600, 900), won(h, keys(599, 900), true), "an older repeat fails the copy, and all are inserted")
	moved(1, 1)
	for range restBatches {
		won(h, keys(900, 1200), false)
	}
	moved(0, restBatches)

	h = New(Deps{})
	require.Len(t, won(h, keys(900, 1200), false), 300)
	require.Equal(t, span(900, 1200), won(h, keys(900, 1200), true), "what was rolled back is free, though it was seen")
	moved(1, 1)
	require.Equal(t, span(1200, 1210), won(h, append(keys(1200, 1210), keys(1200, 1205)...), true), "the first of a batch wins, and few are inserted")
	moved(0, 1)

	t.Run("TheMemoryIsBoundedAndKeepsTheLast", func(t *testing.T) {
		t.Parallel()
		r := newRecent(1 << 10)
		seen := func(rows []row) int {
			_, seen := r.split(rows, span(0, len(rows)))
			return len(seen)
		}
		require.Zero(t, seen(keys(0, 10)))
		require.Equal(t, 10, seen(keys(0, 10)))
		seen(keys(10, 10_000))
		require.Zero(t, seen(keys(0, 10)), "long gone")
		seen(keys(10_000, 10_100))
		require.Greater(t, seen(keys(10_000, 10_100)), 90)
		require.Len(t, r.slots, 1<<10)
	})
}
