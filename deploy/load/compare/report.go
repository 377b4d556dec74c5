package main

import (
	"fmt"
	"io"
	"math"
	"runtime"
	"text/tabwriter"
	"time"

	"github.com/softcrum/carril/internal/bench"
)

// report is what the harness found.
type report struct {
	Profile profile `json:"profile"`
	Rows    []row   `json:"rows"`
}

// row is one system's figures.
type row struct {
	System string  `json:"system"`
	Codes  figures `json:"codes"` // alone, beside the blast; from the promise to the provider
	Idle   figures `json:"idle"`  // the same before it
	Bursts figures `json:"bursts"`
	Behind figures `json:"behind_bursts"`

	Answered429 float64 `json:"answered_429_percent"` // of the requests while both had work
	Permitted   float64 `json:"permitted_rate_used"`
	Messages    float64 `json:"messages_per_second"`

	Killed     int     `json:"killed"`       // worker processes
	LeftAtKill int     `json:"left_at_kill"` // of the blast
	Duplicates int     `json:"duplicates"`   // messages that went twice
	Replays    int     `json:"replays"`      // messages asked for again under the same key, which the provider did not repeat
	Lost       int     `json:"lost"`         // promised, and never at the provider
	Done       float64 `json:"done_seconds"` // from the first code beside the blast to the blast's last message
}

type figures struct {
	P50   float64 `json:"p50_ms"`
	P95   float64 `json:"p95_ms"`
	P99   float64 `json:"p99_ms"`
	Max   float64 `json:"max_ms"`
	Count uint64  `json:"count"`
	Lost  int     `json:"lost"`
}

func plain(c code) bool  { return !c.burst && !c.shadowed }
func burst(c code) bool  { return c.burst }
func behind(c code) bool { return c.shadowed }

func (c *codes) figures(l *ledger, which func(code) bool) (f figures) {
	var h bench.Histogram
	for _, k := range c.list {
		if !which(k) {
			continue
		}
		if at, ok := l.first[codeAddress(k.n)]; ok {
			h.Record(at.Sub(k.accepted))
		} else {
			f.Lost++
		}
	}
	f.P50, f.P95, f.P99 = bench.Millis(h.Quantile(0.5)), bench.Millis(h.Quantile(0.95)), bench.Millis(h.Quantile(0.99))
	f.Max, f.Count = bench.Millis(h.Max()), h.Count()
	return f
}

// fill works the figures out; promised is how many codes were, in all.
func (r *row) fill(p profile, l *ledger, promised int, idle, beside *codes, until time.Time) {
	r.Codes, r.Idle = beside.figures(l, plain), idle.figures(l, plain)
	r.Bursts, r.Behind = beside.figures(l, burst), beside.figures(l, behind)
	if l.people() == p.Blast && l.last.Before(until) {
		until = l.last // from here on one of them had no work
	}
	var taken, refused, messages int
	for _, q := range l.seen {
		switch {
		case q.At.Before(beside.start) || q.At.After(until):
		case q.Answer == "429":
			refused++
		default:
			taken++
			messages += q.Count
		}
	}
	seconds := max(until.Sub(beside.start).Seconds(), 1e-3)
	r.Answered429 = round(100 * float64(refused) / float64(max(1, taken+refused)))
	r.Permitted = round(float64(taken) / seconds / p.permitted())
	r.Messages = round(float64(messages) / seconds)
	r.Duplicates, r.Replays = l.twice, l.replays
	r.Lost = p.Blast + promised - len(l.first)
	r.Done = round(l.last.Sub(beside.start).Seconds())
}

func round(f float64) float64 { return math.Round(f*1000) / 1000 }

func panelOf(name string, l *ledger, idle, beside *codes) bench.Panel {
	points := func(c *codes, which func(code) bool) (ps []bench.Point) {
		for _, k := range c.list {
			if at, ok := l.first[codeAddress(k.n)]; ok && which(k) {
				ps = append(ps, bench.Point{At: k.asked.Sub(c.start), Took: at.Sub(k.accepted)})
			}
		}
		return ps
	}
	return bench.Panel{Title: name, Line: time.Second, Series: []bench.Series{
		{Name: "idle", Colour: "#2166ac", Points: points(idle, plain)},
		{Name: "beside the blast", Colour: "#d6604d", Points: points(beside, plain)},
		{Name: "bursts of 10 and behind them", Colour: "#f4a582", Hollow: true, Points: points(beside, func(c code) bool { return !plain(c) })},
	}}
}

// write writes the table for people.
func (r report) write(w io.Writer) error {
	p := r.Profile
	fmt.Fprintf(w, "%g codes a second beside a blast of %d, at a provider that takes %g requests a second (%g permitted); %d workers in %d processes; %d cores\n",
		p.Rate, p.Blast, p.ProviderRate, p.permitted(), p.Workers, p.Processes, runtime.NumCPU())
	t := tabwriter.NewWriter(w, 0, 4, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "\tidle p50\tp99 ms\tbeside p50\tp99 ms\tmax ms\tburst p99\t429 %\tpermitted used\tleft at kill\ttwice\treplayed\tlost\tdone s\t")
	for _, s := range r.Rows {
		fmt.Fprintf(t, "%s\t%.0f\t%.0f\t%.0f\t%.0f\t%.0f\t%.0f\t%.2f\t%.2f\t%d\t%d\t%d\t%d\t%.0f\t\n", s.System, s.Idle.P50, s.Idle.P99, s.Codes.P50, s.Codes.P99, s.Codes.Max,
			s.Bursts.P99, s.Answered429, s.Permitted, s.LeftAtKill, s.Duplicates, s.Replays, s.Lost, s.Done)
	}
	return t.Flush()
}
