package benchmarks

import (
	"context"
	"fmt"

	"github.com/softcrum/carril/internal/bench"
)

// ladder gives the offered rates of a climb, requests a second.
func ladder() []float64 {
	return []float64{500, 1_000, 2_000, 3_000, 4_000, 6_000, 8_000, 10_000, 12_000, 16_000, 20_000, 24_000}
}

// The knee is past where a step keeps up with less than this share of what is
// offered, or answers 5 % of it later than this.
const (
	kneeShare = 0.95
	kneeP95   = 100 // ms
)

// climb offers one rate after the other, platform and baseline in turn, until
// two steps in a row are past the knee: one alone may be what else the machine
// did. The result is the highest step below it, the throughput that can be
// documented, or the first where there is none; every step is in More.
func (r *run) climb(ctx context.Context, rep *bench.Report, conns int, result, baseline generator) error {
	defer result.close()
	defer baseline.close()
	rep.Settings["connections"], rep.Settings["step"] = conns, (r.Duration / 2).String()
	bench.Closed(ctx, baseline.ops, r.Duration/4)
	bench.Closed(ctx, result.ops, r.Duration/4)
	tired := 0
	for _, rate := range ladder() {
		end := r.progress.For(fmt.Sprintf("%s: %g a second, baseline beside", rep.Bench, rate), r.Duration)
		load := func(ops []bench.Op) func(context.Context) (*bench.Stats, error) {
			return func(ctx context.Context) (*bench.Stats, error) {
				return bench.OpenLoop{Rate: rate, Duration: r.Duration / 2 / ladderRounds, Drain: opTimeout}.Run(ctx, ops), nil
			}
		}
		pair, err := bench.Interleave(ctx, ladderRounds, load(result.ops), load(baseline.ops))
		end()
		if err != nil {
			return err
		}
		var step bench.Report
		if err := pair.Fill(&step, 1, bench.RatioOfP95); err != nil {
			return err
		}
		rep.More = append(rep.More, bench.More{Name: fmt.Sprintf("offered %g", rate), Figures: step.Result},
			bench.More{Name: fmt.Sprintf("baseline at %g", rate), Figures: step.Baseline.Figures})
		past := step.Result.Rate < kneeShare*rate || step.Result.P95 > kneeP95 || step.Result.Errors > 0
		if tired++; !past {
			tired = 0
		}
		if tired == 2 {
			break
		}
		if past && rep.Result.Count > 0 {
			continue
		}
		rep.Mode = fmt.Sprintf("open loop up to the knee, %d connections; the result is the step at %g", conns, rate)
		rep.Result, rep.Baseline.Figures = step.Result, step.Baseline.Figures
	}
	return rep.Compare(bench.RatioOfP95)
}

// ladderRounds is how often a step's halves take turns.
const ladderRounds = 2
