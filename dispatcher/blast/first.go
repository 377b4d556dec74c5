package blast

import "time"

// First says how a blast waits for the outcomes of its first sends: bounces come
// a minute after the mails leave, and everybody shares one account. The feeder
// goes by it, and so does what a blast's progress says of its end.
type First struct {
	After int           // the first sends, after which it waits; default 500; negative: it never waits
	Share float64       // of them with an outcome before it goes on, once Least has passed; default 0.8
	Least time.Duration // before which nearly all must have one: deliveries are reported at once, bounces a minute later; default 2 min
	For   time.Duration // longest it waits; default 15 min
}

// nearlyAll is the share of outcomes after which there is nothing to wait for:
// what is missing would not change the verdict.
const nearlyAll = 0.98

func (f First) filled() First {
	if f.After == 0 {
		f.After = 500
	}
	if f.Share == 0 {
		f.Share = 0.8
	}
	if f.Least == 0 {
		f.Least = 2 * time.Minute
	}
	if f.For == 0 {
		f.For = 15 * time.Minute
	}
	return f
}

// First is how the store's blasts wait, with its defaults filled in.
func (s *Store) First() First { return s.cfg.First }

// Reached says whether a blast of which so many are fed stands where it may have
// to wait; batch is the most that one request takes.
func (f First) Reached(fed int64, batch int) bool {
	return f.After >= 0 && fed >= int64(f.After) && fed < int64(f.After+batch)
}

// Waits says whether a blast that stands there waits, since when it was fed last;
// reported and never are as Settled gives them.
func (f First) Waits(fed int64, since time.Duration, reported, never int64) bool {
	if since > f.For {
		return false
	}
	share := nearlyAll
	if since > f.Least {
		share = f.Share
	}
	return float64(reported) < share*float64(fed-never)
}
