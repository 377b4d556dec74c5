package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"
)

// seen is a second in which each latency was seen once.
func seen(latencies ...time.Duration) *Stats {
	s := &Stats{Elapsed: time.Second}
	for _, d := range latencies {
		s.Latency.Record(d)
	}
	return s
}

func TestReport(t *testing.T) {
	t.Parallel()

	t.Run("JSONHasTheNamesThatScriptsRead", func(t *testing.T) {
		t.Parallel()
		r := Report{Bench: "track", Unit: "requests", Mode: "closed loop", Baseline: Baseline{What: "a bare handler"}, Machine: Machine{Cores: 2, Kafka: "embedded"}}
		p := Pair{Result: []*Stats{seen(time.Millisecond)}, Baseline: []*Stats{seen(time.Millisecond, time.Millisecond)}}
		p.Result[0].fail("http_503", 3)
		require.NoError(t, p.Fill(&r, 500, RatioOfRate))
		var b bytes.Buffer
		require.NoError(t, r.WriteJSON(&b))
		require.Equal(t, 1, strings.Count(b.String(), "\n"), "one object on one line")

		var got map[string]any
		require.NoError(t, json.Unmarshal(b.Bytes(), &got))
		figures := func(rate, errors float64) map[string]any {
			return map[string]any{"rate": rate, "p50_ms": 1.0, "p95_ms": 1.0, "p99_ms": 1.0, "max_ms": 1.0, "count": rate, "errors": errors}
		}
		result, baseline := figures(500, 3), figures(1000, 0)
		result["error_classes"] = map[string]any{"http_503": 3.0}
		baseline["what"] = "a bare handler"
		require.Empty(t, cmp.Diff(map[string]any{
			"bench": "track", "unit": "requests", "mode": "closed loop", "result": result, "baseline": baseline,
			"ratio": 0.5, "ratio_of": "rate", "machine": map[string]any{"cores": 2.0, "kafka": "embedded"},
		}, got))
	})

	t.Run("TheTableNamesEveryClassOfError", func(t *testing.T) {
		t.Parallel()
		r := Report{Bench: "track", Unit: "requests", Mode: "open loop", Baseline: Baseline{What: "a bare handler"},
			Machine: Machine{Cores: 2, Kafka: "4.3.1", Others: []string{"PostgreSQL 15"}}, Steps: []Step{{Name: "accepted to appended", P50: 3, Count: 9}},
			Details: map[string]any{"sent": 7}, Notes: []string{"mind this"}}
		p := Pair{Result: []*Stats{seen(2 * time.Millisecond), seen(3 * time.Millisecond)}, Baseline: []*Stats{seen(time.Millisecond), seen(time.Millisecond)}}
		p.Result[0].fail("timeout", 2)
		p.Result[1].fail("http_503", 1)
		require.NoError(t, p.Fill(&r, 1, RatioOfP95))
		require.Equal(t, &[2]float64{2, 3}, r.RatioRange)
		var b bytes.Buffer
		require.NoError(t, r.WriteTable(&b))
		for _, want := range []string{"http_503 1, timeout 2", "3.000 of the baseline's p95 (rounds: 2.000 to 3.000)", "2 cores, Apache Kafka 4.3.1, PostgreSQL 15",
			"accepted to appended", "sent: 7", "note: mind this"} {
			require.Contains(t, b.String(), want)
		}
	})

	t.Run("NothingSucceededIsAnErrorAndNoRatio", func(t *testing.T) {
		t.Parallel()
		r := Report{Bench: "track"}
		p := Pair{Result: []*Stats{{Elapsed: time.Second}}, Baseline: []*Stats{seen(time.Millisecond)}}
		p.Result[0].fail("http_401", 8)
		err := p.Fill(&r, 1, RatioOfRate)
		require.ErrorIs(t, err, ErrNoFigure)
		require.ErrorContains(t, err, "http_401:8")
	})
}

func TestInterleave(t *testing.T) {
	t.Parallel()

	t.Run("TakesTurnsAndChangesWhoIsFirst", func(t *testing.T) {
		t.Parallel()
		var order []string
		side := func(name string) func(context.Context) (*Stats, error) {
			return func(context.Context) (*Stats, error) { order = append(order, name); return seen(1), nil }
		}
		p, err := Interleave(t.Context(), 3, side("r"), side("b"))
		require.NoError(t, err)
		require.Equal(t, "b r r b b r", strings.Join(order, " "))
		require.Len(t, p.Result, 3)
		require.Len(t, p.Baseline, 3)
	})

	t.Run("EndsAtTheFirstErrorAndWithItsContext", func(t *testing.T) {
		t.Parallel()
		broken := errors.New("broken")
		_, err := Interleave(t.Context(), 3, func(context.Context) (*Stats, error) { return nil, broken },
			func(context.Context) (*Stats, error) { return seen(1), nil })
		require.ErrorIs(t, err, broken)
		ctx, cancel := context.WithCancel(t.Context())
		_, err = Interleave(ctx, 3, nil, func(context.Context) (*Stats, error) { cancel(); return seen(1), nil })
		require.ErrorIs(t, err, context.Canceled)
	})
}

func TestProgress(t *testing.T) {
	t.Parallel()
	var b bytes.Buffer
	NewProgress(&b).For("measuring", time.Second)()
	require.Empty(t, b.String(), "no terminal, no progress")

	p := &Progress{w: &b}
	end := p.Phase("measuring", func() float64 { return 0.5 })
	end()
	end()
	require.Contains(t, b.String(), "measuring")
	require.Contains(t, b.String(), "50 %")
	require.True(t, strings.HasSuffix(b.String(), "\r\x1b[K"), "the line is wiped")
}
