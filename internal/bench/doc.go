// Package bench measures: it makes load in a closed loop (the most that a
// target can do) or an open one (a fixed rate, latency counted from when each
// operation was due, so that a stall is seen by every operation that it
// delays), keeps latencies in a compact histogram, and turns a measurement and
// its baseline into one report, as JSON or for people.
//
// It knows nothing of the platform: what is measured, and against what, is the
// business of cmd/carril/benchmarks, its caller. A figure is never a verdict:
// nothing here passes or fails on a time.
package bench
