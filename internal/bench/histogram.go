package bench

import (
	"math/bits"
	"time"
)

// A value keeps its 7 leading bits: a bucket is at most 1/128 of its value wide.
const (
	subBits    = 7
	subBuckets = 1 << subBits
	maxBits    = 42 // values from 2^42 ns (73 min) on count as that
	buckets    = (maxBits - subBits + 1) * subBuckets
)

// Histogram counts durations in logarithmic buckets, to within 0.8 % of each.
// The zero value is empty. It is not safe for concurrent use: each worker has
// its own, merged at the end.
type Histogram struct {
	counts   [buckets]uint32
	n        uint64
	sum      time.Duration
	min, max time.Duration
}

// Record counts one duration; a negative one counts as 0.
func (h *Histogram) Record(d time.Duration) {
	d = max(d, 0)
	h.counts[bucketOf(d)]++
	if h.n == 0 || d < h.min {
		h.min = d
	}
	h.max = max(h.max, d)
	h.n++
	h.sum += d
}

// Merge adds what another histogram has counted.
func (h *Histogram) Merge(o *Histogram) {
	if o.n == 0 {
		return
	}
	for i, c := range o.counts {
		h.counts[i] += c
	}
	if h.n == 0 || o.min < h.min {
		h.min = o.min
	}
	h.max = max(h.max, o.max)
	h.n += o.n
	h.sum += o.sum
}

// Count is how many durations were recorded.
func (h *Histogram) Count() uint64 { return h.n }

// Max is the longest, exactly; 0 when there is none.
func (h *Histogram) Max() time.Duration { return h.max }

// Mean is exact; 0 when there is none.
func (h *Histogram) Mean() time.Duration {
	if h.n == 0 {
		return 0
	}
	return h.sum / time.Duration(h.n)
}

// Quantile is the duration that a share q of all, 0 to 1, did not exceed: the
// upper end of its bucket, and never beyond Max. 0 when there is none.
func (h *Histogram) Quantile(q float64) time.Duration {
	if h.n == 0 {
		return 0
	}
	rank := uint64(q*float64(h.n) + 0.999999)
	rank = min(max(rank, 1), h.n)
	var seen uint64
	for i, c := range h.counts {
		if seen += uint64(c); seen >= rank {
			return max(h.min, min(upperEnd(i), h.max))
		}
	}
	return h.max
}

// bucketOf: values below 2^subBits have a bucket each; beyond, every doubling is
// divided into subBuckets.
func bucketOf(d time.Duration) int {
	v := uint64(d)
	if v < subBuckets {
		return int(v)
	}
	v = min(v, 1<<maxBits-1)
	shift := bits.Len64(v) - subBits - 1
	return (shift+1)*subBuckets + int(v>>shift) - subBuckets
}

func upperEnd(bucket int) time.Duration {
	if bucket < subBuckets {
		return time.Duration(bucket)
	}
	shift := bucket/subBuckets - 1
	return time.Duration((uint64(bucket%subBuckets)+subBuckets+1)<<shift - 1)
}
