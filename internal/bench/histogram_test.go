package bench

import (
	"math"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestHistogram(t *testing.T) {
	t.Parallel()

	t.Run("QuantilesAreWithinABucketOfTheExactOnes", func(t *testing.T) {
		t.Parallel()
		rapid.Check(t, func(t *rapid.T) {
			var h Histogram
			values := rapid.SliceOfN(rapid.Int64Range(0, int64(time.Hour)), 1, 400).Draw(t, "values")
			for _, v := range values {
				h.Record(time.Duration(v))
			}
			slices.Sort(values)
			for _, q := range []float64{0, 0.01, 0.5, 0.9, 0.95, 0.99, 1} {
				rank := max(1, int(math.Ceil(q*float64(len(values))-1e-6)))
				exact := float64(values[rank-1])
				got := float64(h.Quantile(q))
				require.GreaterOrEqual(t, got, exact, "quantile %v of %v", q, values)
				require.LessOrEqual(t, got, exact*(1+1.0/subBuckets)+1, "quantile %v of %v", q, values)
			}
			require.Equal(t, time.Duration(values[len(values)-1]), h.Max())
			require.EqualValues(t, len(values), h.Count())
		})
	})

	t.Run("MergedIsAsIfAllWereRecordedInOne", func(t *testing.T) {
		t.Parallel()
		rapid.Check(t, func(t *rapid.T) {
			var a, b, whole Histogram
			for i, v := range rapid.SliceOf(rapid.Int64Range(0, 1<<50)).Draw(t, "values") {
				part := []*Histogram{&a, &b}[i%2]
				part.Record(time.Duration(v))
				whole.Record(time.Duration(v))
			}
			a.Merge(&b)
			require.Equal(t, whole, a)
		})
	})

	t.Run("BucketsAreInOrderAndMeet", func(t *testing.T) {
		t.Parallel()
		for i := range buckets {
			require.Equal(t, i, bucketOf(upperEnd(i)))
			if i > 0 {
				require.Equal(t, i, bucketOf(upperEnd(i-1)+1))
			}
		}
	})

	t.Run("AnEmptyOneGivesZero", func(t *testing.T) {
		t.Parallel()
		var h Histogram
		require.Zero(t, h.Quantile(0.5))
		require.Zero(t, h.Mean())
		h.Record(-time.Second)
		require.Zero(t, h.Quantile(1))
		require.EqualValues(t, 1, h.Count())
	})
}
