package bench

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/softcrum/carril/internal/pause"
)

// Op does one operation and waits for its outcome. Each worker has one of its
// own, so that an Op may keep a connection and buffers.
type Op func(ctx context.Context) error

// ErrNotStarted counts operations of an open loop whose turn never came: the
// target, or the generator, was too far behind when the time was over.
var ErrNotStarted = errors.New("not_started")

// Stats is what a loop saw.
type Stats struct {
	Latency Histogram         // of what succeeded; from when it was due in an open loop
	Late    Histogram         // open loop: from when it was due to when it was started
	Errors  map[string]uint64 // by class; see Class
	Elapsed time.Duration     // from the first start to the last end
	CPU     time.Duration     // that this process used meanwhile, generator and all; 0: unknown
}

// Rate is successes a second.
func (s *Stats) Rate() float64 {
	if s.Elapsed <= 0 {
		return 0
	}
	return float64(s.Latency.Count()) / s.Elapsed.Seconds()
}

// Failed is how many operations gave an error, or were never started.
func (s *Stats) Failed() uint64 {
	var n uint64
	for _, c := range s.Errors {
		n += c
	}
	return n
}

// Merge adds another part of the same measurement; times add up.
func (s *Stats) Merge(o *Stats) {
	s.Latency.Merge(&o.Latency)
	s.Late.Merge(&o.Late)
	s.Elapsed += o.Elapsed
	s.CPU += o.CPU
	for class, n := range o.Errors {
		s.fail(class, n)
	}
}

func (s *Stats) fail(class string, n uint64) {
	if s.Errors == nil {
		s.Errors = map[string]uint64{}
	}
	s.Errors[class] += n
}

// Class names an error for counting: what its own Class method says, else
// "failed". Texts are no classes: each would be another.
func Class(err error) string {
	var c interface{ Class() string }
	switch {
	case errors.As(err, &c):
		return c.Class()
	case errors.Is(err, ErrNotStarted):
		return ErrNotStarted.Error()
	case errors.Is(err, context.DeadlineExceeded):
		return "timeout"
	}
	return "failed"
}

// Closed runs each op again and again, one at a time, for d: the most that the
// target does with so many callers. What ends after d is not counted, unless it
// is the first of its worker: then the time is longer, not the figure empty.
func Closed(ctx context.Context, ops []Op, d time.Duration) *Stats {
	start, cpu := time.Now(), CPUTime()
	end := start.Add(d)
	parts := each(ops, func(op Op, s *Stats) {
		for from := time.Now(); ; {
			err := op(ctx)
			now := time.Now()
			if ctx.Err() != nil || now.After(end) && s.Elapsed > 0 {
				return
			}
			s.Elapsed = now.Sub(start)
			if err == nil {
				s.Latency.Record(now.Sub(from))
				from = now
				continue
			}
			s.fail(Class(err), 1)
			pause.For(ctx, time.Millisecond) // an op that fails at once would only spin
			from = time.Now()
		}
	})
	all := sum(parts)
	all.CPU = CPUTime() - cpu
	all.Elapsed = min(d, time.Since(start)) // shorter when ctx ended
	for i := range parts {
		all.Elapsed = max(all.Elapsed, parts[i].Elapsed)
	}
	return all
}

// OpenLoop is load at a fixed rate that waits for nobody: operation k is due at
// start + k/Rate whatever became of those before it.
type OpenLoop struct {
	Rate     float64       // operations a second; positive
	Duration time.Duration // of the schedule
	Drain    time.Duration // how long what is behind may take after that; default 10 s
	Sleep    func(time.Duration)
}

// Run starts each operation when it is due, or as soon as one of the ops is
// free after that. Latency counts from when it was due, so that a stall is
// charged to every operation that it delayed.
func (l OpenLoop) Run(ctx context.Context, ops []Op) *Stats {
	if l.Drain == 0 {
		l.Drain = 10 * time.Second
	}
	if l.Sleep == nil {
		l.Sleep = sleepPrecisely
	}
	start, cpu := time.Now(), CPUTime()
	ctx, cancel := context.WithDeadline(ctx, start.Add(l.Duration+l.Drain))
	defer cancel()
	due := make(chan time.Time, 1024)
	var left uint64
	var pacing sync.WaitGroup
	pacing.Go(func() { left = l.pace(ctx, start, due) })
	parts := each(ops, func(op Op, s *Stats) {
		for at := range due {
			if ctx.Err() != nil {
				s.fail(ErrNotStarted.Error(), 1)
				continue
			}
			s.Late.Record(time.Since(at))
			if err := op(ctx); err != nil {
				s.fail(Class(err), 1)
				continue
			}
			s.Latency.Record(time.Since(at))
		}
	})
	pacing.Wait()
	all := sum(parts)
	all.CPU = CPUTime() - cpu
	if left > 0 {
		all.fail(ErrNotStarted.Error(), left)
	}
	all.Elapsed = max(time.Since(start), l.Duration)
	return all
}

// pace hands out each due time when it comes, and gives how many it could not.
func (l OpenLoop) pace(ctx context.Context, start time.Time, due chan<- time.Time) (left uint64) {
	defer close(due)
	n := uint64(l.Rate * l.Duration.Seconds())
	for k := range n {
		at := start.Add(dueAfter(k, l.Rate))
		for wait := time.Until(at); wait > 0 && ctx.Err() == nil; wait = time.Until(at) {
			l.Sleep(wait)
		}
		select {
		case due <- at:
		case <-ctx.Done():
			return n - k
		}
	}
	return 0
}

// dueAfter is the offset of operation k; computed from k, it does not drift.
func dueAfter(k uint64, rate float64) time.Duration {
	return time.Duration(float64(k) / rate * float64(time.Second))
}

// each runs f for every op beside the others and waits for all.
func each(ops []Op, f func(Op, *Stats)) []Stats {
	parts := make([]Stats, len(ops))
	var wg sync.WaitGroup
	for i, op := range ops {
		wg.Go(func() { f(op, &parts[i]) })
	}
	wg.Wait()
	return parts
}

func sum(parts []Stats) *Stats {
	all := &Stats{Errors: map[string]uint64{}}
	for i := range parts {
		all.Latency.Merge(&parts[i].Latency)
		all.Late.Merge(&parts[i].Late)
		for class, n := range parts[i].Errors {
			all.fail(class, n)
		}
	}
	return all
}
