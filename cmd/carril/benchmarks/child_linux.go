package benchmarks

import "syscall"

// endsWithUs has the kernel end a process whose parent was killed.
func endsWithUs() *syscall.SysProcAttr { return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} }
