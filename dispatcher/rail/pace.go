package rail

import (
	"context"
	"log/slog"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/softcrum/carril/internal/pause"
)

// PaceConfig of a process's marketing; zero values take the defaults.
type PaceConfig struct {
	// Late is how much later than usual a beat comes to count as late, and at least
	// as much again as is usual; default 4 ms.
	Late  time.Duration
	Beat  time.Duration // how far apart beats are; default 20 ms
	Every time.Duration // how often the pace is set; default 500 ms
	// Most and Well are shares of late beats: above Most the pace falls, below Well it
	// rises. Default 0.05 and 0.03; a machine that is half idle has one in
	// forty, a full one every sixth.
	Most, Well float64
	Least      float64       // batches a second below which it never falls; default 2: a blast never stands still, and a provider that permits few requests never feels the pace
	First      float64       // batches a second with which it begins, and which no look takes away that finds few late; default 2
	Forget     time.Duration // without any work, until it begins anew; default 30 s
}

func (c PaceConfig) withDefaults() PaceConfig {
	c.Late = def(c.Late, 4*time.Millisecond)
	c.Beat = def(c.Beat, 20*time.Millisecond)
	c.Every = def(c.Every, 500*time.Millisecond)
	c.Most = def(c.Most, 0.05)
	c.Well = def(c.Well, 0.03)
	c.Least = def(c.Least, 2)
	c.First = def(c.First, 2)
	c.Forget = def(c.Forget, 30*time.Second)
	return c
}

// PaceDeps is what a pace works with.
type PaceDeps struct {
	// Ping makes one round trip to the database: what a code's way is made of.
	Ping    func(ctx context.Context) error
	Log     *slog.Logger
	Metrics *PaceMetrics // nil: not measured
}

// Pace leaves the cores to codes: it says how many batches of marketing a process
// may begin a second. While a batch waits for its turn, a beat goes out every 20 ms,
// a timer and a round trip to the database, and many beats that come late say that
// this machine, or the database's, has more to do than cores. Then the pace falls by
// a third at each look; while few are late it rises, twofold until it was too much
// once and slowly after that. A machine that has cores to spare is never late, and
// there the pace is no limit after some seconds. See docs/decisions/rail-window.md.
type Pace struct {
	cfg  PaceConfig
	deps PaceDeps
	wake chan struct{}

	mu     sync.Mutex
	rate   float64 // batches a second
	found  bool    // it was too much once
	next   time.Time
	held   bool            // something waited for its turn since the last look
	asked  time.Time       // when something last asked for its turn
	begun  [5]int          // batches since the last look, and between those before it
	beats  []time.Duration // since the last look
	usual  time.Duration   // what a beat takes when nothing holds it up
	before float64         // share of late beats at the last look
}

// NewPace makes the pace of a process's marketing; Run keeps it.
func NewPace(cfg PaceConfig, deps PaceDeps) *Pace {
	p := &Pace{cfg: cfg.withDefaults(), deps: deps, wake: make(chan struct{}, 1)}
	p.rate = p.cfg.First
	if deps.Log == nil {
		p.deps.Log = slog.New(slog.DiscardHandler)
	}
	return p
}

// Wait says how long until a batch that is ready may begin; 0: now.
func (p *Pace) Wait(now time.Time) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	if now.Sub(p.asked) > p.cfg.Forget {
		p.rate, p.found, p.before, p.begun = p.cfg.First, false, 0, [5]int{}
	}
	p.asked = now
	signal(p.wake)
	if wait := p.next.Sub(now); wait > 0 {
		p.held = true
		return wait
	}
	return 0
}

// catchUp is how much of its turns a process may make up for that woke late.
const catchUp = 50 * time.Millisecond

// Began says that a batch has begun. Batches begin apart, and not all at once after
// a while without any.
func (p *Pace) Began(now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if least := now.Add(-catchUp); p.next.Before(least) {
		p.next = least
	}
	p.next = p.next.Add(time.Duration(float64(time.Second) / p.rate))
	p.begun[0]++
}

// heard takes a beat in: how long it took from when it was due.
func (p *Pace) heard(took time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.beats = append(p.beats, took)
}

// look sets the pace by the beats of late, and gives it with the share of them that
// were late.
func (p *Pace) look() (rate, share float64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	share = p.lateShare()
	switch {
	case share > p.cfg.Most:
		p.rate, p.found = max(p.cfg.Least, 0.7*p.rate), true
	case share >= p.cfg.Well, !p.held:
	case p.found:
		p.rate += 0.05*p.rate + p.cfg.Least/16
	default:
		p.rate *= 2
	}
	// What tokens or the lack of work hold back must not wind the pace up: it would be
	// no limit for long when cores run short.
	used := float64(slices.Max(p.begun[:])) / p.cfg.Every.Seconds()
	p.rate = min(p.rate, max(4*used, p.cfg.First))
	copy(p.begun[1:], p.begun[:])
	p.begun[0], p.held = 0, false
	return p.rate, share
}

// lateShare is that of the beats of the last two looks. What is usual is what the
// quickest quarter takes, for full cores make some beats late and not all. It is
// believed to be less at once, and to be more only by and by.
func (p *Pace) lateShare() float64 {
	if len(p.beats) == 0 {
		return 0
	}
	quick := max(slices.Sorted(slices.Values(p.beats))[len(p.beats)/4], time.Microsecond)
	if p.usual == 0 {
		p.usual = quick
	}
	p.usual = min(quick, p.usual+p.usual/200)
	late := 0
	for _, took := range p.beats {
		if took > p.usual+max(p.usual, p.cfg.Late) {
			late++
		}
	}
	now := float64(late) / float64(len(p.beats))
	share := (p.before + now) / 2 // so few beats are a matter of chance
	p.before, p.beats = now, p.beats[:0]
	return share
}

// Run beats and looks while there is marketing to do, until ctx ends.
func (p *Pace) Run(ctx context.Context) error {
	looked := time.Now()
	for {
		p.mu.Lock()
		idle := time.Since(p.asked) > time.Second
		p.mu.Unlock()
		if idle && !p.idle(ctx) {
			return nil
		}
		due := time.Now().Add(p.cfg.Beat)
		if !pause.For(ctx, p.cfg.Beat) {
			return nil
		}
		p.beat(ctx, due)
		if time.Since(looked) >= p.cfg.Every {
			looked = time.Now()
			rate, share := p.look()
			p.deps.Metrics.observe(rate, share)
		}
	}
}

// idle waits until there is something to do; false when ctx ends.
func (p *Pace) idle(ctx context.Context) bool {
	p.deps.Metrics.observe(math.Inf(1), 0)
	select {
	case <-ctx.Done():
		return false
	case <-p.wake:
		return true
	}
}

// beat makes one round trip. A database that does not answer is late.
func (p *Pace) beat(ctx context.Context, due time.Time) {
	pctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	took := time.Second
	if err := p.deps.Ping(pctx); err == nil {
		took = time.Since(due)
	}
	if ctx.Err() == nil {
		p.heard(took)
	}
}

// PaceMetrics of a process.
type PaceMetrics struct{ pace, late prometheus.Gauge }

// NewPaceMetrics registers them.
func NewPaceMetrics(reg prometheus.Registerer) *PaceMetrics {
	m := &PaceMetrics{
		pace: prometheus.NewGauge(prometheus.GaugeOpts{Name: "carril_rail_marketing_pace", Help: "Batches of marketing that this process may begin a second, for the sake of codes; +Inf without any to begin."}),
		late: prometheus.NewGauge(prometheus.GaugeOpts{Name: "carril_rail_late_share", Help: "Share of this process's round trips to the database that came late, while there is marketing to do."}),
	}
	reg.MustRegister(m.pace, m.late)
	return m
}

func (m *PaceMetrics) observe(pace, late float64) {
	if m != nil {
		m.pace.Set(pace)
		m.late.Set(late)
	}
}
