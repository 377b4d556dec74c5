package bench

import (
	"syscall"
	"time"
)

// sleepPrecisely sleeps in the kernel: the runtime's own timers round up to a
// whole millisecond when nothing else is to do, which an open loop would count
// as the target's latency. It blocks its thread, so one pacer alone calls it.
func sleepPrecisely(d time.Duration) {
	if d > 100*time.Millisecond {
		time.Sleep(min(d-50*time.Millisecond, 250*time.Millisecond))
		return // the rest in the next call: a long sleep is no reason to hold a thread
	}
	ts := syscall.NsecToTimespec(int64(d))
	_ = syscall.Nanosleep(&ts, nil) // woken early by a signal: the pacer looks at the clock again
}

// CPUTime is what this process has used of the cores since it began.
func CPUTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
