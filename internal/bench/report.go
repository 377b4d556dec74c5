package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// What a ratio compares. Of rates more is better, of times less.
const (
	RatioOfRate = "rate"
	RatioOfP95  = "p95_ms"
	RatioOfP99  = "p99_ms"
)

// Report is what one benchmark found. Its JSON names stay: scripts read them.
type Report struct {
	Bench      string         `json:"bench"`
	Unit       string         `json:"unit"` // what a rate counts: "requests", "events", "rows"
	Mode       string         `json:"mode"` // how the load was made: "closed loop, 256 connections"
	Result     Figures        `json:"result"`
	Baseline   Baseline       `json:"baseline"`
	Ratio      float64        `json:"ratio"`    // result by baseline
	RatioOf    string         `json:"ratio_of"` // which figure
	RatioRange *[2]float64    `json:"ratio_range,omitempty"`
	Machine    Machine        `json:"machine"`
	Settings   map[string]any `json:"settings,omitempty"`
	Steps      []Step         `json:"steps,omitempty"`   // where the time goes
	More       []More         `json:"more,omitempty"`    // further measurements beside the result
	Details    map[string]any `json:"details,omitempty"` // figures of this benchmark alone
	Notes      []string       `json:"notes,omitempty"`   // what a reader must know to believe the figures
}

// Figures are rates a second and latencies in milliseconds, of successes alone.
type Figures struct {
	Rate         float64           `json:"rate"`
	P50          float64           `json:"p50_ms"`
	P95          float64           `json:"p95_ms"`
	P99          float64           `json:"p99_ms"`
	Max          float64           `json:"max_ms"`
	CPU          float64           `json:"cpu_us,omitempty"` // of this process, a unit: steadier than a rate where others use the cores too
	Count        uint64            `json:"count"`
	Errors       uint64            `json:"errors"`
	ErrorClasses map[string]uint64 `json:"error_classes,omitempty"`
}

// Baseline is what the result is compared with, and what that was.
type Baseline struct {
	What string `json:"what"`
	Figures
	Steps []Step `json:"steps,omitempty"`
}

// More is a further measurement of the same kind.
type More struct {
	Name string `json:"name"`
	Figures
	Steps []Step `json:"steps,omitempty"`
}

// Machine is where it was measured.
type Machine struct {
	Cores int    `json:"cores"`
	Kafka string `json:"kafka"` // the broker's version, or "embedded"
	// Others names what the other parts were: "PostgreSQL 15.18".
	Others []string `json:"others,omitempty"`
}

// Step is a part of what happens to each event or batch, and its time.
type Step struct {
	Name  string  `json:"step"`
	P50   float64 `json:"p50_ms"`
	P95   float64 `json:"p95_ms"`
	P99   float64 `json:"p99_ms"`
	Count uint64  `json:"count"`
	Share float64 `json:"share,omitempty"` // of the whole measurement's time, where steps follow each other
}

// Share is a part of a whole, 0 to 1 where it is one.
func Share(part, whole time.Duration) float64 {
	if whole <= 0 {
		return 0
	}
	return round(float64(part) / float64(whole))
}

// FiguresOf renders what a loop saw; each operation counts as units.
func FiguresOf(s *Stats, units int) Figures {
	f := Figures{Rate: round(s.Rate() * float64(units)), Count: s.Latency.Count() * uint64(units), Errors: s.Failed()}
	f.P50, f.P95, f.P99 = quantiles(&s.Latency)
	f.Max = Millis(s.Latency.Max())
	if f.Count > 0 {
		f.CPU = round(float64(s.CPU.Microseconds()) / float64(f.Count))
	}
	if len(s.Errors) > 0 {
		f.ErrorClasses = s.Errors
	}
	return f
}

// StepOf renders the times of one step.
func StepOf(name string, h *Histogram) Step {
	s := Step{Name: name, Count: h.Count()}
	s.P50, s.P95, s.P99 = quantiles(h)
	return s
}

func quantiles(h *Histogram) (p50, p95, p99 float64) {
	return Millis(h.Quantile(0.5)), Millis(h.Quantile(0.95)), Millis(h.Quantile(0.99))
}

// Millis renders a duration in milliseconds, to the microsecond.
func Millis(d time.Duration) float64 { return round(float64(d) / float64(time.Millisecond)) }

func round(f float64) float64 { return math.Round(f*1000) / 1000 }

// of picks the figure that a ratio compares.
func (f Figures) of(ratioOf string) float64 {
	switch ratioOf {
	case RatioOfP95:
		return f.P95
	case RatioOfP99:
		return f.P99
	}
	return f.Rate
}

// ErrNoFigure says that one side of a ratio has no figure: nothing succeeded.
var ErrNoFigure = errors.New("nothing succeeded, so there is no figure to compare")

// Compare fills the ratio in.
func (r *Report) Compare(ratioOf string) error {
	result, baseline := r.Result.of(ratioOf), r.Baseline.of(ratioOf)
	r.RatioOf = ratioOf
	if result == 0 || baseline == 0 {
		return fmt.Errorf("%w (result %d, baseline %d; errors %v and %v)", ErrNoFigure,
			r.Result.Count, r.Baseline.Count, r.Result.ErrorClasses, r.Baseline.ErrorClasses)
	}
	r.Ratio = round(result / baseline)
	return nil
}

// Pair is a measurement and its baseline, round by round.
type Pair struct{ Result, Baseline []*Stats }

// Interleave measures both in turn, rounds times, each first every other time:
// what the machine does beside falls on both.
func Interleave(ctx context.Context, rounds int, result, baseline func(context.Context) (*Stats, error)) (Pair, error) {
	var p Pair
	measure := func(f func(context.Context) (*Stats, error), into *[]*Stats) error {
		s, err := f(ctx)
		if err == nil {
			err = ctx.Err()
		}
		if err == nil {
			*into = append(*into, s)
		}
		return err
	}
	for i := range rounds {
		order := []func() error{
			func() error { return measure(baseline, &p.Baseline) },
			func() error { return measure(result, &p.Result) },
		}
		if i%2 == 1 {
			slices.Reverse(order)
		}
		for _, step := range order {
			if err := step(); err != nil {
				return p, err
			}
		}
	}
	return p, nil
}

// Fill renders both sides, the ratio and how it varied over the rounds.
func (p Pair) Fill(r *Report, units int, ratioOf string) error {
	all := func(parts []*Stats) *Stats {
		s := &Stats{}
		for _, part := range parts {
			s.Merge(part)
		}
		return s
	}
	r.Result, r.Baseline.Figures = FiguresOf(all(p.Result), units), FiguresOf(all(p.Baseline), units)
	if late := all(p.Result).Late; late.Count() > 0 {
		r.detail("generator_late_p99_ms", Millis(late.Quantile(0.99)))
	}
	if len(p.Result) > 1 {
		var ratios []float64
		for i := range p.Result {
			if b := FiguresOf(p.Baseline[i], units).of(ratioOf); b > 0 {
				ratios = append(ratios, round(FiguresOf(p.Result[i], units).of(ratioOf)/b))
			}
		}
		if len(ratios) > 0 {
			r.RatioRange = &[2]float64{slices.Min(ratios), slices.Max(ratios)}
		}
	}
	return r.Compare(ratioOf)
}

func (r *Report) detail(name string, value any) {
	if r.Details == nil {
		r.Details = map[string]any{}
	}
	r.Details[name] = value
}

// WriteJSON writes the report as one object on one line.
func (r *Report) WriteJSON(w io.Writer) error { return json.NewEncoder(w).Encode(r) }

// WriteTable writes the report for people.
func (r *Report) WriteTable(w io.Writer) error {
	fmt.Fprintf(w, "%s: %s a second, %s\n", r.Bench, r.Unit, r.Mode)
	t := tabwriter.NewWriter(w, 0, 4, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "\trate/s\tp50 ms\tp95 ms\tp99 ms\tmax ms\tCPU µs\terrors\t")
	for _, m := range append([]More{{Name: "result", Figures: r.Result}, {Name: "baseline", Figures: r.Baseline.Figures}}, r.More...) {
		f := m.Figures
		fmt.Fprintf(t, "%s\t%.1f\t%.2f\t%.2f\t%.2f\t%.1f\t%.0f\t%s\t\n", m.Name, f.Rate, f.P50, f.P95, f.P99, f.Max, f.CPU, f.errors())
	}
	if err := t.Flush(); err != nil {
		return err
	}
	fmt.Fprintf(w, "  ratio     %.3f of the baseline's %s%s\n", r.Ratio, strings.TrimSuffix(r.RatioOf, "_ms"), r.spread())
	fmt.Fprintf(w, "  baseline  %s\n", r.Baseline.What)
	fmt.Fprintf(w, "  machine   %s\n", r.Machine)
	for _, m := range append([]More{{Steps: r.Steps}, {Name: "in the baseline", Steps: r.Baseline.Steps}}, r.More...) {
		if err := writeSteps(w, m); err != nil {
			return err
		}
	}
	for _, name := range slices.Sorted(maps.Keys(r.Details)) {
		fmt.Fprintf(w, "  %s: %v\n", strings.ReplaceAll(name, "_", " "), r.Details[name])
	}
	for _, n := range r.Notes {
		fmt.Fprintf(w, "  note: %s\n", n)
	}
	_, err := fmt.Fprintln(w)
	return err
}

func writeSteps(w io.Writer, m More) error {
	if len(m.Steps) == 0 {
		return nil
	}
	fmt.Fprintln(w, strings.TrimRight("  where the time goes "+m.Name, " "))
	t := tabwriter.NewWriter(w, 4, 4, 2, ' ', 0)
	fmt.Fprintln(t, "    step\tp50 ms\tp95 ms\tp99 ms\tof\tshare")
	for _, s := range m.Steps {
		fmt.Fprintf(t, "    %s\t%.2f\t%.2f\t%.2f\t%d\t%s\n", s.Name, s.P50, s.P95, s.P99, s.Count, s.share())
	}
	return t.Flush()
}

func (s Step) share() string {
	if s.Share == 0 {
		return ""
	}
	return fmt.Sprintf("%.0f %%", 100*s.Share)
}

func (r *Report) spread() string {
	if r.RatioRange == nil {
		return ""
	}
	return fmt.Sprintf(" (rounds: %.3f to %.3f)", r.RatioRange[0], r.RatioRange[1])
}

func (f Figures) errors() string {
	if f.Errors == 0 {
		return "0"
	}
	var parts []string
	for _, class := range slices.Sorted(maps.Keys(f.ErrorClasses)) {
		parts = append(parts, fmt.Sprintf("%s %d", class, f.ErrorClasses[class]))
	}
	return strings.Join(parts, ", ")
}

func (m Machine) String() string {
	kafka := "Apache Kafka " + m.Kafka
	if m.Kafka == "embedded" {
		kafka = "embedded broker"
	}
	return fmt.Sprintf("%d cores, %s", m.Cores, strings.Join(append([]string{kafka}, m.Others...), ", "))
}
