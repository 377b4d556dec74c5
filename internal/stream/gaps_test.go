package stream

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"
)

func TestGaps(t *testing.T) {
	t.Parallel()
	const gap = 250 * time.Millisecond
	cfg := Config{Topics: []string{"reports"}, Gaps: map[string]time.Duration{"reports": gap, "changes": gap}, MaxRecords: 20, CatchupRecords: 20}.withDefaults()
	of := func(topic string) (w *worker, come func(n int)) {
		w = &worker{l: &Loop{cfg: cfg}, tp: tp{topic, 0}, arrive: make(chan struct{}, 1), done: make(chan struct{})}
		offset := int64(0)
		return w, func(n int) {
			for range n {
				w.push([]*kgo.Record{{Offset: offset, Value: []byte("x")}}, offset+1)
				offset++
			}
		}
	}
	t.Run("ApplyAtOnceWhatComesAfterAQuietWhile", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			w, come := of("reports")
			for range 3 {
				time.Sleep(time.Second)
				come(1)
				batch, _ := w.next(false)
				require.Len(t, batch, 1)
			}
		})
	})
	t.Run("GatherWhatFollows", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			w, come := of("reports")
			time.Sleep(time.Second)
			come(1)
			batch, _ := w.next(false)
			require.Len(t, batch, 1)
			for range 5 {
				come(1)
				batch, wait := w.next(false)
				require.Empty(t, batch)
				require.Positive(t, wait)
				time.Sleep(wait / 2)
			}
			_, wait := w.next(false)
			require.LessOrEqual(t, wait, gap)
			time.Sleep(wait)
			batch, _ = w.next(false)
			require.Len(t, batch, 5)
		})
	})
	t.Run("HoldNoFullBatchUp", func(t *testing.T) {
		t.Parallel()
		w, come := of("reports")
		come(75)
		for range 3 {
			batch, _ := w.next(false)
			require.Len(t, batch, 20)
		}
		batch, wait := w.next(false)
		require.Empty(t, batch)
		require.Positive(t, wait)
	})
	t.Run("AreATopicsOwn", func(t *testing.T) {
		t.Parallel()
		w, come := of("codes")
		for range 3 {
			come(1)
			batch, _ := w.next(false)
			require.Len(t, batch, 1)
		}
	})
	t.Run("SpaceThePollsOfALoopThatHasNoOtherTopic", func(t *testing.T) {
		t.Parallel()
		require.Equal(t, gap/5, cfg.pollsApart())
		for _, topics := range [][]string{{"codes"}, {"changes", "codes"}, {}} {
			c := cfg
			c.Topics = topics
			require.Zero(t, c.pollsApart(), topics)
		}
	})
}
