package content

import (
	"time"

	"golang.org/x/sys/unix"
)

// threadTime is how long the calling thread has had a core.
func threadTime() time.Duration {
	var t unix.Timespec
	if unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t) != nil {
		return wallTime()
	}
	return time.Duration(t.Nano())
}
