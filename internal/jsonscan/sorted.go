package jsonscan

import (
	"bytes"
	"cmp"
	"slices"
)

// uniqueSorted is unique for objects with many keys. It reorders them: they
// are about to be forgotten. Equal keys keep the order of the text, so that the
// second of them is the one that is named.
func (s *Scanner) uniqueSorted(open []Ref) {
	slices.SortFunc(open, func(a, b Ref) int {
		if c := bytes.Compare(s.Text(a), s.Text(b)); c != 0 {
			return c
		}
		return cmp.Compare(a.at, b.at)
	})
	for i := 1; i < len(open); i++ {
		if bytes.Equal(s.Text(open[i-1]), s.Text(open[i])) {
			s.Note(DuplicateKey, int(open[i].at))
			return
		}
	}
}
