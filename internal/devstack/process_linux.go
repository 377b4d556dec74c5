package devstack

import (
	"os/exec"
	"syscall"
)

// tie makes the kernel send sig to the child when this process dies, and
// keeps the terminal's Ctrl-C away from it: the parent drains first, then
// stops its children.
func tie(cmd *exec.Cmd, sig syscall.Signal) {
	attributes(cmd).Pdeathsig = sig
	attributes(cmd).Setpgid = true
}
