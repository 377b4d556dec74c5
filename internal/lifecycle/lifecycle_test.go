package lifecycle

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestStack(t *testing.T) {
	t.Run("StopsInReverse", func(t *testing.T) {
		s := New(slog.New(slog.DiscardHandler))
		var mu sync.Mutex
		var order []string
		for _, n := range []string{"a", "b", "c"} {
			s.OnStop(n, func() { mu.Lock(); order = append(order, n); mu.Unlock() })
		}
		require.NoError(t, s.Stop(time.Minute))
		require.NoError(t, s.Stop(time.Minute), "harmless twice")
		require.Equal(t, []string{"c", "b", "a"}, order)
	})
	t.Run("ReportsThePartThatFailed", func(t *testing.T) {
		s := New(slog.New(slog.DiscardHandler))
		s.Go(Part{"x", func(context.Context) error { return errors.New("boom") }})
		require.EqualError(t, <-s.Failed(), "x: boom")
		require.NoError(t, s.Stop(time.Minute))
	})
	t.Run("NamesThePartThatDoesNotStop", func(t *testing.T) {
		s := New(slog.New(slog.DiscardHandler))
		release := make(chan struct{})
		s.OnStop("stuck", func() { <-release })
		require.ErrorContains(t, s.Stop(time.Millisecond), "stuck")
		close(release)
	})
}
