package apikey

import (
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"

	"github.com/softcrum/carril/internal/httpserver"
)

// knock asks a guard as a request from an address would.
func knock(t *testing.T, g *Guard, addr, key string) *httpserver.Problem {
	t.Helper()
	var problem *httpserver.Problem
	h := httpserver.Identify(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, problem = Authorize(g, r, ScopeEventsWrite)
	}), slog.New(slog.DiscardHandler))
	r := httptest.NewRequest(http.MethodPost, "/", nil)
	r.RemoteAddr = netip.AddrPortFrom(netip.MustParseAddr(addr), 40_000).String()
	r.Header.Set("Authorization", "Bearer "+key)
	h.ServeHTTP(httptest.NewRecorder(), r)
	return problem
}

func newGuard(t *testing.T, b *bundle, cfg GuardConfig) *Guard {
	t.Helper()
	g, err := NewGuard(cfg, b.Verifier, prometheus.NewRegistry())
	require.NoError(t, err)
	return g
}

func invented(t *testing.T) string {
	t.Helper()
	text, _, err := Generate("live")
	require.NoError(t, err)
	return text
}

func TestGuard(t *testing.T) {
	t.Parallel()
	t.Run("StopsWhoTriesKeysBeforeTheStoreIsAsked", func(t *testing.T) {
		t.Parallel()
		b := newBundle(t, Config{})
		g := newGuard(t, b, GuardConfig{Failures: 5, Every: 2 * time.Second})
		for range 5 {
			require.Equal(t, http.StatusUnauthorized, knock(t, g, "198.51.100.7", invented(t)).Status)
		}
		asked := b.store.lookups.Load()
		p := knock(t, g, "198.51.100.7", invented(t))
		require.Equal(t, http.StatusTooManyRequests, p.Status)
		require.Equal(t, "too_many_failures", p.Code)
		require.Equal(t, 2, p.RetryAfter)
		require.Equal(t, asked, b.store.lookups.Load())
		require.InDelta(t, 1, testutil.ToFloat64(g.refused), 0)
		require.Equal(t, http.StatusUnauthorized, knock(t, g, "198.51.100.8", invented(t)).Status, "another address is another's")
		b.pass(2 * time.Second)
		require.Equal(t, http.StatusUnauthorized, knock(t, g, "198.51.100.7", invented(t)).Status, "one more each two seconds")
		require.Equal(t, http.StatusTooManyRequests, knock(t, g, "198.51.100.7", "").Status, "no key is a failure too")
		b.pass(time.Hour)
		for range 5 {
			require.Equal(t, http.StatusUnauthorized, knock(t, g, "198.51.100.7", "x").Status)
		}
	})
	t.Run("LetsAKnownKeyOfTheSameAddressPass", func(t *testing.T) {
		t.Parallel()
		b := newBundle(t, Config{})
		g := newGuard(t, b, GuardConfig{Failures: 2})
		require.Nil(t, knock(t, g, "198.51.100.7", b.text))
		for range 10 {
			knock(t, g, "198.51.100.7", "x")
		}
		require.Nil(t, knock(t, g, "198.51.100.7", b.text))
		b.edit(func(r *Record) { r.RevokedAt = b.time() })
		b.cache.changed(b.id)
		require.Equal(t, http.StatusTooManyRequests, knock(t, g, "198.51.100.7", b.text).Status, "nobody is asked for it any more")
	})
	t.Run("CountsNoFailureOfOurs", func(t *testing.T) {
		t.Parallel()
		b := newBundle(t, Config{})
		g := newGuard(t, b, GuardConfig{Failures: 1})
		b.store.set(func(m *memory) { m.err = errDown })
		for range 5 {
			require.Equal(t, http.StatusServiceUnavailable, knock(t, g, "198.51.100.7", b.text).Status)
		}
	})
	t.Run("TakesAnIPv6NetworkForOne", func(t *testing.T) {
		t.Parallel()
		b := newBundle(t, Config{})
		g := newGuard(t, b, GuardConfig{Failures: 3})
		for i := range 3 {
			knock(t, g, fmt.Sprintf("2001:db8:1:2::%x", i+1), "x")
		}
		require.Equal(t, http.StatusTooManyRequests, knock(t, g, "2001:db8:1:2:ffff::1", "x").Status)
		require.Equal(t, http.StatusUnauthorized, knock(t, g, "2001:db8:1:3::1", "x").Status)
	})
	t.Run("IsBoundedInMemory", func(t *testing.T) {
		t.Parallel()
		b := newBundle(t, Config{})
		g := newGuard(t, b, GuardConfig{MaxAddresses: 50})
		for i := range 1_000 {
			g.failed(netip.AddrFrom4([4]byte{198, 51, byte(i >> 8), byte(i)}))
		}
		require.LessOrEqual(t, len(g.now)+len(g.old), 100)
		g.failed(netip.Addr{})
	})
	t.Run("RefusesImpossibleSettings", func(t *testing.T) {
		t.Parallel()
		b := newBundle(t, Config{})
		reg := prometheus.NewRegistry()
		_, err := NewGuard(GuardConfig{Failures: -1}, b.Verifier, reg)
		require.Error(t, err)
		_, err = NewGuard(GuardConfig{}, nil, reg)
		require.Error(t, err)
		_, err = NewGuard(GuardConfig{}, b.Verifier, reg)
		require.NoError(t, err)
		_, err = NewGuard(GuardConfig{}, b.Verifier, reg)
		require.Error(t, err, "metrics twice")
	})
}
