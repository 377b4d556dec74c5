package rail

import (
	"fmt"
	"time"
)

// reading is one sample of a channel's transactional rail.
type reading struct {
	at      time.Time
	old     bool          // its oldest uncommitted record is older than the yield threshold
	young   bool          // … younger than the resume threshold
	lag     int64         // records that are not committed
	drain   time.Duration // lag divided by the rate that it may use now
	waiting time.Duration // how long one ask has waited for a token
	blind   string        // what could not be seen; empty: everything was
}

// YieldConfig of the decision; zero values take the defaults.
type YieldConfig struct {
	Budget    time.Duration // how long a transactional message may take; default 5 s
	Depth     int64         // records behind at which marketing yields whatever the rate; default 1,000
	SendP95   time.Duration // of one request; default 300 ms
	Commit    time.Duration // the worker's commit interval; default 100 ms
	ResumeFor time.Duration // how long it must be well before marketing resumes; default a tenth of Budget
	Least     time.Duration // shortest yield; default 2 s
}

func (c YieldConfig) withDefaults() YieldConfig {
	c.Budget = def(c.Budget, 5*time.Second)
	c.Depth = def(c.Depth, 1000)
	c.SendP95 = def(c.SendP95, 300*time.Millisecond)
	c.Commit = def(c.Commit, 100*time.Millisecond)
	c.ResumeFor = def(c.ResumeFor, c.Budget/10)
	c.Least = def(c.Least, 2*time.Second)
	return c
}

// yieldAt is when marketing yields: a fifth of the budget.
func (c YieldConfig) yieldAt() time.Duration { return c.Budget / 5 }

// resumeAt is when it may come back. It is never zero lag: a healthy rail has a
// request or two on its way at any moment, and marketing would never resume.
func (c YieldConfig) resumeAt(rate float64) time.Duration {
	interval := time.Duration(0)
	if rate > 0 {
		interval = time.Duration(float64(time.Second) / rate)
	}
	return min(max(c.Budget/20, 2*(c.SendP95+c.Commit), interval), c.yieldAt())
}

// decision is the state machine of the yield: quick to begin, slow to end.
type decision struct {
	cfg    YieldConfig
	yield  bool
	reason string
	since  time.Time // of the yield
	well   time.Time // since when everything is below the resume threshold; zero: it is not
}

// see takes a reading in and says whether marketing yields, and why. What cannot
// be seen counts as bad.
func (d *decision) see(r reading, rate float64) (bool, string) {
	if why := d.bad(r); why != "" {
		if !d.yield {
			d.since = r.at
		}
		d.yield, d.reason, d.well = true, why, time.Time{}
		return true, why
	}
	if !d.yield {
		return false, ""
	}
	if limit := d.cfg.resumeAt(rate); !r.young || r.drain >= limit && r.lag > 1 || r.waiting >= limit {
		d.well = time.Time{}
		return true, d.reason
	}
	if d.well.IsZero() {
		d.well = r.at
	}
	if r.at.Sub(d.well) >= d.cfg.ResumeFor && r.at.Sub(d.since) >= d.cfg.Least {
		d.yield, d.reason = false, ""
	}
	return d.yield, d.reason
}

// bad names the worst of the three signals that is over its threshold.
func (d *decision) bad(r reading) string {
	at := d.cfg.yieldAt()
	switch {
	case r.blind != "":
		return "blind: " + r.blind
	case r.old:
		return "age"
	case r.lag >= d.cfg.Depth:
		return "depth"
	case r.drain >= at && r.lag > 1: // one record on its way is no backlog, however slow the rate
		return "drain"
	case r.waiting >= at:
		return "waiting"
	}
	return ""
}

func (r reading) String() string {
	return fmt.Sprintf("lag %d, drain %s, waiting %s, old %t, young %t, blind %q", r.lag, r.drain, r.waiting, r.old, r.young, r.blind)
}
