package rail

import (
	"maps"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// TestWindow holds the watermark to a model: a set of received and unfinished
// offsets over logs with gaps, random completions, revokes and restarts.
func TestWindow(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		type life struct {
			w    *window
			open map[int64]*entry
			next int64
		}
		start := rapid.Int64Range(0, 50).Draw(t, "start")
		var log []int64 // compaction and markers leave gaps
		for at := start; len(log) < 100; at++ {
			at += rapid.SampledFrom([]int64{0, 0, 0, 1, 7}).Draw(t, "gap")
			log = append(log, at)
		}
		cur := life{newWindow("t", 0, start), map[int64]*entry{}, start}
		committed := start
		done := map[int64]bool{} // finished in any life
		received := map[int64]bool{}
		var late []*entry // of windows that were closed
		for range rapid.IntRange(1, 80).Draw(t, "steps") {
			switch rapid.IntRange(0, 9).Draw(t, "step") {
			case 0, 1, 2, 3:
				i, _ := slices.BinarySearch(log, cur.next)
				if i == len(log) {
					continue
				}
				off := log[i]
				cur.open[off] = cur.w.receive(off, 10)
				cur.next = off + 1
				received[off] = true
			case 4, 5, 6, 7:
				if len(cur.open) == 0 {
					continue
				}
				off := rapid.SampledFrom(slices.Sorted(maps.Keys(cur.open))).Draw(t, "complete")
				cur.w.complete(cur.open[off])
				cur.w.complete(cur.open[off]) // twice changes nothing
				delete(cur.open, off)
				done[off] = true
			case 8:
				if len(late) > 0 {
					before := cur.w.watermark()
					e := rapid.SampledFrom(late).Draw(t, "late")
					e.w.complete(e)
					if cur.w.watermark() != before {
						t.Fatalf("a completion of an earlier assignment moved the watermark")
					}
				}
			case 9: // revoked: what is committed is where the next assignment starts
				committed = cur.w.watermark()
				cur.w.closed = true
				for _, e := range cur.open {
					late = append(late, e)
				}
				cur = life{newWindow("t", 0, committed), map[int64]*entry{}, committed}
			}
			mark := cur.w.watermark()
			if mark < committed {
				t.Fatalf("the watermark went back from %d to %d", committed, mark)
			}
			for off := range received {
				if off < mark && off >= start && !done[off] {
					t.Fatalf("watermark %d passed offset %d, which is not finished", mark, off)
				}
			}
			want := cur.next
			for off := range cur.open {
				want = min(want, off)
			}
			if mark != want {
				t.Fatalf("watermark %d, the model says %d", mark, want)
			}
			if cur.w.open != len(cur.open) || cur.w.bytes != 10*len(cur.open) {
				t.Fatalf("%d open, %d bytes; the model says %d", cur.w.open, cur.w.bytes, len(cur.open))
			}
		}
	})
}
