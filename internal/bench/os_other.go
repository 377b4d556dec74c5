//go:build !linux

package bench

import "time"

func sleepPrecisely(d time.Duration) { time.Sleep(d) }

// CPUTime is not known here.
func CPUTime() time.Duration { return 0 }
