// Package cores keeps apart how many cores a process was given and how many
// goroutines Go runs at once. main calls Spare; who divides the machine asks
// Given.
package cores

import (
	"os"
	"runtime"
	"sync"
)

// spare is how many goroutines may run beyond the cores.
const spare = 2

var given = sync.OnceValue(func() int { return runtime.GOMAXPROCS(0) })

// Given is the number of cores that the process may use, whatever Spare did.
func Given() int { return given() }

// Spare lets Go run more goroutines than there are cores, unless the environment
// says how many (GOMAXPROCS). While as many compute as Go runs, it looks at the
// network every 10 ms only; one more has the kernel wake it, and a transaction
// whose every answer came 5 to 10 ms late on two busy cores has it after 1.7 ms
// (docs/decisions/append.md). It is called once, before anything else runs.
func Spare() {
	if n := Given(); os.Getenv("GOMAXPROCS") == "" {
		runtime.GOMAXPROCS(n + spare)
	}
}
