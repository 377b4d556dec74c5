package intake

import (
	"bytes"
	"cmp"
	"slices"
)

// uniqueSorted is unique for objects with many keys. It reorders them: they
// are about to be forgotten. Equal keys keep the order of the text, so that the
// second of them is the one that is named.
func (s *scanner) uniqueSorted(open []keyRef) {
	slices.SortFunc(open, func(a, b keyRef) int {
		if c := bytes.Compare(s.text(a), s.text(b)); c != 0 {
			return c
		}
		return cmp.Compare(a.at, b.at)
	})
	for i := 1; i < len(open); i++ {
		if bytes.Equal(s.text(open[i-1]), s.text(open[i])) {
			s.note(DuplicateKey, int(open[i].at))
			return
		}
	}
}
