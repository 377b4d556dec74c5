//go:build !linux

package benchmarks

import "syscall"

func endsWithUs() *syscall.SysProcAttr { return nil }
