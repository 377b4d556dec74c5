//go:build !linux

package devstack

import (
	"os/exec"
	"syscall"
)

// tie keeps the terminal's Ctrl-C away from the child. Only Linux has a
// parent-death signal: elsewhere a child may outlive a parent that was killed.
func tie(cmd *exec.Cmd, _ syscall.Signal) {
	attributes(cmd).Setpgid = true
}
