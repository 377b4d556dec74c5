package limit

import (
	"context"
	"net/http"
	"regexp"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func get(h http.Header, name string) string {
	if v := h[name]; len(v) == 1 {
		return v[0]
	}
	return ""
}

func TestHeaders(t *testing.T) { // FS-CORE-0006 §10
	t.Parallel()
	rdb, prefix := open(t)
	l := newLimiter(t, rdb, Config{Prefix: prefix, Budget: patient})
	t.Run("SayWhatIsLeft", func(t *testing.T) {
		t.Parallel()
		p := of(1, 400)
		h := http.Header{}
		require.Zero(t, l.Take(t.Context(), p, 3, h))
		require.Equal(t, `"plan";q=400;w=400`, get(h, "RateLimit-Policy"))
		require.Equal(t, "400", get(h, "RateLimit-Limit"))
		require.Regexp(t, `^39[789]$`, get(h, "RateLimit-Remaining"))
		require.Regexp(t, `^[1-4]$`, get(h, "RateLimit-Reset"))
		require.Equal(t, `"plan";r=`+get(h, "RateLimit-Remaining")+`;t=`+get(h, "RateLimit-Reset"), get(h, "RateLimit"))
	})
	t.Run("AreTheTighterOfTwo", func(t *testing.T) {
		t.Parallel()
		p := withOwn(of(100, 200), "k", 2, 5)
		h := http.Header{}
		require.Zero(t, l.Take(t.Context(), p, 1, h))
		require.Equal(t, `"plan";q=200;w=2, "key";q=5;w=3`, get(h, "RateLimit-Policy"))
		require.Equal(t, "5", get(h, "RateLimit-Limit"))
		require.Equal(t, "4", get(h, "RateLimit-Remaining"))
		require.Regexp(t, `^"plan";r=(199|200);t=\d, "key";r=4;t=1$`, get(h, "RateLimit"))
	})
	t.Run("OfARefusalSayWhenToComeBack", func(t *testing.T) {
		t.Parallel()
		p := of(1, 10)
		require.Zero(t, l.Take(t.Context(), p, 10, http.Header{}))
		h := http.Header{}
		wait := l.Take(t.Context(), p, 5, h)
		require.Positive(t, wait)
		require.EqualValues(t, get(h, "RateLimit-Reset"), regexp.MustCompile(`t=(\d+)$`).FindStringSubmatch(get(h, "RateLimit"))[1])
		require.Regexp(t, `^[45]$`, get(h, "RateLimit-Reset"))
		require.Regexp(t, `^[012]$`, get(h, "RateLimit-Remaining"))
		early := http.Header{}
		if l.Refused(p, early) > 0 {
			require.Equal(t, get(h, "RateLimit-Policy"), get(early, "RateLimit-Policy"))
		}
	})
	t.Run("ChargeNothingWhenTheyAreShown", func(t *testing.T) {
		t.Parallel()
		p := of(1, 10)
		for range 30 {
			h := http.Header{}
			l.Show(p, h)
			require.Equal(t, "10", get(h, "RateLimit-Remaining"))
			require.Equal(t, "0", get(h, "RateLimit-Reset"))
		}
	})
	t.Run("FollowAChangedPlan", func(t *testing.T) {
		t.Parallel()
		p := of(1, 10)
		h := http.Header{}
		l.Show(p, h)
		q := *p
		q.Tenant.EventsPerSecond, q.Tenant.EventsBurst = 30, 60
		l.Show(&q, h)
		require.Equal(t, `"plan";q=60;w=2`, get(h, "RateLimit-Policy"))
		require.Equal(t, "60", get(h, "RateLimit-Limit"))
	})
}

// What a request of a busy tenant costs: a lock, two map look-ups and the
// headers' text.
func BenchmarkTake(b *testing.B) {
	rdb, prefix := open(b)
	for _, bm := range []struct {
		name string
		own  bool
	}{{"Plan", false}, {"PlanAndKey", true}} {
		b.Run(bm.name, func(b *testing.B) {
			l := newLimiter(b, rdb, Config{Prefix: prefix, Budget: time.Second})
			p := of(100_000_000, 200_000_000)
			if bm.own {
				p = withOwn(p, "own", 50_000_000, 100_000_000)
			}
			h := http.Header{}
			ctx := context.Background()
			b.ReportAllocs()
			for b.Loop() {
				if l.Take(ctx, p, 1, h) > 0 {
					b.Fatal("refused")
				}
			}
		})
	}
}

// The hot path is measured in allocations: two for the dynamic headers.
func TestTakeAllocatesLittle(t *testing.T) {
	rdb, prefix := open(t)
	l := newLimiter(t, rdb, Config{Prefix: prefix, Budget: patient})
	p, h := of(100_000_000, 200_000_000), http.Header{}
	take := func() { l.Take(context.Background(), p, 1, h) }
	for range 2_000 { // the block has grown
		take()
	}
	require.LessOrEqual(t, testing.AllocsPerRun(2_000, take), 2.1)
}
