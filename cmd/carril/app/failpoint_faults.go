//go:build faults

package app

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"

	"github.com/softcrum/carril/internal/stream"
)

// failpoint kills this process at a step of a stage, where FAILPOINT names it as
// stage:point:n, at the n-th arrival there. Only a build for tests of faults has
// it.
func failpoint(stage string) stream.Hook {
	parts := strings.Split(os.Getenv("FAILPOINT"), ":")
	if len(parts) != 3 || parts[0] != stage {
		return nil
	}
	nth, err := strconv.Atoi(parts[2])
	if err != nil {
		panic(fmt.Sprintf("FAILPOINT: %v", err))
	}
	var seen atomic.Int64
	return func(p stream.Point) {
		if string(p) == parts[1] && seen.Add(1) == int64(nth) {
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {} // nothing more happens in this goroutine
		}
	}
}
