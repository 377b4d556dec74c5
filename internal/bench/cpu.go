package bench

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// CPUOf is what a process of this machine has had of the processors; 0 where nobody
// says.
func CPUOf(pid int) time.Duration {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/schedstat", pid))
	if err != nil {
		return 0
	}
	spent, _, _ := strings.Cut(string(stat), " ")
	n, _ := strconv.ParseInt(spent, 10, 64)
	return time.Duration(n)
}
