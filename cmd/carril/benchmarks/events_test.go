package benchmarks

import (
	"bytes"
	"encoding/json"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/softcrum/carril/cmd/carril/app"
	"github.com/softcrum/carril/ingestor/intake"
	"github.com/softcrum/carril/internal/ids"
)

func TestEvents(t *testing.T) {
	t.Parallel()
	now := time.Now()
	who := tenant{id: uuid.New()}

	t.Run("AreOfTheSizeAskedForAndAccepted", func(t *testing.T) {
		t.Parallel()
		for _, size := range []int{minPayload, 400, 5_000, maxPayload} {
			body, err := eventBody(size, now)
			require.NoError(t, err)
			require.Len(t, body, size)
			st := newStencil(body)
			st.setOne(0xab, 7)
			ev, err := parse(who, intake.Track, st.bytes, now)
			require.NoError(t, err, size)
			require.Equal(t, "bench-00000000000000ab", ev.IdempotencyKey)
			require.Equal(t, ids.Event(who.id, keyOf(0xab)), ev.EventID)
			require.JSONEq(t, `{"external_id":"c-00000007","email":"c-00000007@example.com"}`, ev.Identifiers)
		}
		_, err := eventBody(minPayload-1, now)
		require.ErrorIs(t, err, app.ErrConfig)
	})

	t.Run("OfABatchEachHaveAKeyAndAPersonOfTheirOwn", func(t *testing.T) {
		t.Parallel()
		body, err := batchBody(400, now)
		require.NoError(t, err)
		st := newStencil(body)
		keys := map[string]bool{}
		for last := uint64(0); last < 1500; {
			last = st.renew(last)
			var got struct {
				Events []struct {
					Key         string            `json:"idempotency_key"`
					Identifiers map[string]string `json:"identifiers"`
				} `json:"events"`
			}
			require.NoError(t, json.Unmarshal(st.bytes, &got))
			require.Len(t, got.Events, intake.MaxBatch)
			for _, e := range got.Events {
				require.False(t, keys[e.Key], "%s is there twice", e.Key)
				keys[e.Key] = true
				require.Equal(t, e.Identifiers["external_id"]+"@example.com", e.Identifiers["email"])
			}
		}
		require.Len(t, keys, 1500)
		_, err = batchBody(20_000, now)
		require.ErrorIs(t, err, app.ErrConfig)
	})

	t.Run("AStencilLeavesItsSourceAlone", func(t *testing.T) {
		t.Parallel()
		body, err := eventBody(400, now)
		require.NoError(t, err)
		before := bytes.Clone(body)
		st := newStencil(body)
		st.renew(0)
		require.Equal(t, before, body)
		require.NotEqual(t, before, st.bytes)
	})
}

func TestNameOf(t *testing.T) {
	t.Parallel()
	for sql, want := range map[string]string{
		"begin": "begin",
		"INSERT INTO core.event_keys (a) SELECT 1":                                  "insert core.event_keys",
		"SELECT x FROM unnest($1) u JOIN core.contacts USING (a)":                   "select core.contacts",
		"WITH moved AS (\n UPDATE core.stream_positions SET a = 1) INSERT INTO x.y": "update core.stream_positions",
	} {
		require.Equal(t, want, nameOf(sql))
	}
}

func TestPhase(t *testing.T) {
	t.Parallel()
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	at := func(rows int, seconds float64) point {
		return point{rows, start.Add(time.Duration(seconds * float64(time.Second)))}
	}
	p := phase{points: []point{at(0, 0), at(100, 1), at(200, 3)}}
	require.InDelta(t, 66.7, p.rate(0, 200), 0.01)
	require.InDelta(t, 100, p.rate(0, 50), 0.1)
	require.InDelta(t, 50, p.rate(150, 200), 0.1)
	joined := phase{points: []point{at(0, 0), at(100, 1)}}.then(phase{points: []point{at(100, 60), at(200, 62)}})
	require.Equal(t, p.points, joined.points, "the time between two phases does not count")
}
