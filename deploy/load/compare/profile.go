package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/softcrum/carril/internal/bench"
	"github.com/softcrum/carril/internal/pause"
)

const (
	burstOf = 10
	batchOf = 100 // messages of a request, as the provider's batch endpoint takes them
	// permittedShare of the provider's rate is what every system lets through: the
	// rest is for the windows of its clock.
	permittedShare = 0.9
	// inFlight is how long codes may still take to arrive before a worker is killed:
	// what a death does is counted by itself.
	inFlight = 5 * time.Second
)

// profile is what every system is put through.
type profile struct {
	Blast        int           `json:"blast"`
	Rate         float64       `json:"rate"`
	Duration     time.Duration `json:"-"`
	Idle         time.Duration `json:"-"`
	Bursts       time.Duration `json:"-"`
	ProviderRate float64       `json:"provider_rate"`
	Workers      int           `json:"workers"`
	Processes    int           `json:"processes"`
	Kill         bool          `json:"kill"`
	Stall        time.Duration `json:"-"`
}

func (p profile) permitted() float64 { return permittedShare * p.ProviderRate }

// share is how many of the workers process i has.
func (p profile) share(i int) int { return (p.Workers + p.Processes - 1 - i) / p.Processes }

// shadow is how long a burst takes to go out while the other codes come in
// beside: what is asked for meanwhile waits for its own tenant.
func (p profile) shadow() time.Duration {
	left := p.permitted()
	if left > p.Rate {
		left -= p.Rate
	}
	return time.Duration(burstOf / left * float64(time.Second))
}

// Addresses tell whose message it is in the provider's ledger.
func codeAddress(n int) string   { return fmt.Sprintf("code-%d@example.com", n) }
func personAddress(n int) string { return fmt.Sprintf("person-%d@example.com", n) }

// job is what a queue carries: one code, or a batch of the blast that goes in
// one request.
type job struct {
	ID   string   `json:"id"` // the request's idempotency key
	Code bool     `json:"code"`
	To   []string `json:"to"`
}

func codeJob(run string, n int) job {
	return job{ID: fmt.Sprintf("%s-code-%d", run, n), Code: true, To: []string{codeAddress(n)}}
}

// batches cuts the blast as it is sent.
func batches(run string, n int) (jobs []job) {
	for from := 0; from < n; from += batchOf {
		j := job{ID: fmt.Sprintf("%s-batch-%d", run, from)}
		for i := from; i < min(n, from+batchOf); i++ {
			j.To = append(j.To, personAddress(i))
		}
		jobs = append(jobs, j)
	}
	return jobs
}

// code is one that was promised.
type code struct {
	n               int
	burst, shadowed bool
	asked, accepted time.Time
}

// codes is one measurement.
type codes struct {
	start  time.Time
	mu     sync.Mutex
	list   []code
	failed int
	bursts []time.Time
}

// ask promises codes in an open loop, and bursts of them beside.
func (o options) ask(ctx context.Context, s system, next func() int, d time.Duration) *codes {
	c := &codes{start: time.Now()}
	var all sync.WaitGroup
	one := func(burst bool) {
		all.Go(func() {
			k := code{n: next(), burst: burst, asked: time.Now()}
			err := s.code(ctx, k.n)
			k.accepted = time.Now()
			c.mu.Lock()
			defer c.mu.Unlock()
			if err != nil {
				c.failed++
				return
			}
			c.list = append(c.list, k)
		})
	}
	every := time.Duration(float64(time.Second) / o.Profile.Rate)
	burst := (o.Profile.Bursts / 2).Truncate(every) + every/2 // between two of the others
	for at := time.Duration(0); at < d; at += every {
		if o.Profile.Bursts > 0 && at > burst {
			pause.For(ctx, time.Until(c.start.Add(burst)))
			c.bursts = append(c.bursts, time.Now())
			for range burstOf {
				one(true)
			}
			burst += o.Profile.Bursts
		}
		pause.For(ctx, time.Until(c.start.Add(at)))
		if ctx.Err() != nil {
			break
		}
		one(false)
	}
	pause.For(ctx, time.Until(c.start.Add(d)))
	all.Wait()
	for i := range c.list {
		for _, at := range c.bursts {
			k := &c.list[i]
			k.shadowed = k.shadowed || !k.burst && !k.asked.Before(at) && k.asked.Before(at.Add(o.Profile.shadow()))
		}
	}
	return c
}

// measure puts one system through the profile.
func (o options) measure(ctx context.Context, name string) (r row, panel bench.Panel, err error) {
	var s system
	ledger := newLedger(o.Sandbox)
	if name == "carril" {
		s, err = o.carrilWithProvider(ctx, ledger)
	} else {
		if o.Sandbox == "" {
			if err := o.startProvider(ctx, ledger); err != nil {
				return r, panel, err
			}
		}
		s, err = o.system(name, ledger.url)
	}
	if err != nil {
		ledger.stop()
		return r, panel, err
	}
	workers := make([]*process, o.Profile.Processes)
	defer func() {
		for _, w := range workers {
			w.stop()
		}
		cctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
		defer cancel()
		err = errors.Join(err, s.close(cctx))
		ledger.stop()
	}()
	if err := s.prepare(ctx); err != nil {
		return r, panel, err
	}
	for i := range workers {
		if workers[i], err = s.worker(ctx, i); err != nil {
			return r, panel, err
		}
	}
	return o.through(ctx, name, s, workers, ledger)
}

// through is the profile itself.
func (o options) through(ctx context.Context, name string, s system, workers []*process, l *ledger) (r row, panel bench.Panel, err error) {
	var mu sync.Mutex
	n := 0
	next := func() int { mu.Lock(); defer mu.Unlock(); n++; return n }
	warm := o.ask(ctx, s, next, min(o.Profile.Idle, 5*time.Second)) // counts for losses alone
	if err := l.await(ctx, n, 0, o.Profile.Stall); err != nil {
		return r, panel, err
	}
	idle := o.ask(ctx, s, next, o.Profile.Idle)
	if err := l.await(ctx, n, 0, o.Profile.Stall); err != nil {
		return r, panel, err
	}
	if err := s.blast(ctx); err != nil {
		return r, panel, err
	}
	// Carril waits for the outcomes of a blast's first 500: past that it is at its
	// full rate, as the others are from the start.
	if err := l.await(ctx, n, min(601, o.Profile.Blast/4), o.Profile.Stall); err != nil {
		return r, panel, err
	}
	beside := o.ask(ctx, s, next, o.Profile.Duration)
	until := time.Now()
	if err := l.await(ctx, n, 0, inFlight); err != nil && !errors.Is(err, errStalled) {
		return r, panel, err
	}
	r.System = name
	if r.LeftAtKill = o.Profile.Blast - l.people(); o.Profile.Kill && r.LeftAtKill > 0 {
		r.Killed = 1
		workers[0].kill()
		pause.For(ctx, time.Second)
		if workers[0], err = s.worker(ctx, 0); err != nil {
			return r, panel, err
		}
	}
	if err := l.await(ctx, n, o.Profile.Blast, o.Profile.Stall); err != nil && !errors.Is(err, errStalled) {
		return r, panel, err
	}
	r.fill(o.Profile, l, n-warm.failed-idle.failed-beside.failed, idle, beside, until)
	return r, panelOf(name, l, idle, beside), ctx.Err()
}

// log is where a process may say something; nil: nowhere.
func (o options) log(name string) (*os.File, error) {
	if o.Logs == "" {
		return nil, nil
	}
	return os.OpenFile(fmt.Sprintf("%s/%s.log", o.Logs, name), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
}
