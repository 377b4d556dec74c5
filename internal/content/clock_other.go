//go:build !linux

package content

import "time"

// threadTime is the wall clock where a thread's own is not to be had.
func threadTime() time.Duration { return wallTime() }
