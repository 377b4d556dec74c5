package benchmarks

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// childStart is how long a process may take until it is ready.
const childStart = time.Minute

// child is a process of this program that dispatches.
type child struct {
	cmd   *exec.Cmd
	said  bytes.Buffer  // its standard error
	ready chan struct{} // closed by its ready line
	ended chan struct{} // closed when it has ended and been waited for
}

// lastWords are for an error; the process has ended.
func (c *child) lastWords() string {
	lines := strings.Split(strings.TrimSpace(c.said.String()), "\n")
	return c.cmd.ProcessState.String() + ": " + lines[len(lines)-1]
}

// startChildren starts the processes that dispatch, each with its share of the
// marketing rail's workers, and waits until they are ready.
func (w *whole) startChildren(ctx context.Context, cfg Config, want wholeConfig) error {
	program := cfg.Program
	if program == "" {
		var err error
		if program, err = os.Executable(); err != nil {
			return fmt.Errorf("find this program: %w", err)
		}
	}
	for i := range want.processes {
		set := w.set
		set.InstanceID += "-" + strconv.Itoa(i)
		if want.workers > 0 {
			set.Workers = max(1, (want.workers+want.processes-1-i)/want.processes)
		}
		c, err := startChild(program, set.Environ(os.Environ()))
		if err != nil {
			return err
		}
		w.children = append(w.children, c)
	}
	timeout := time.NewTimer(childStart)
	defer timeout.Stop()
	for _, c := range w.children {
		select {
		case <-c.ready:
		case <-c.ended:
			return fmt.Errorf("a dispatch process ended before it was ready: %s", c.lastWords())
		case <-timeout.C:
			return errors.New("a dispatch process is not ready after " + childStart.String())
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

func startChild(program string, environ []string) (*child, error) {
	c := &child{cmd: exec.Command(program, "dispatch", "--json"), ready: make(chan struct{}), ended: make(chan struct{})} //nolint:noctx // it ends with stopChildren, which lets it drain
	c.cmd.Env, c.cmd.Stderr, c.cmd.SysProcAttr = environ, &c.said, endsWithUs()
	out, err := c.cmd.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("start a dispatch process: %w", err)
	}
	if err := c.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start a dispatch process: %w", err)
	}
	go func() { // ends when the process does
		defer close(c.ended)
		said := sync.OnceFunc(func() { close(c.ready) })
		for lines := bufio.NewScanner(out); lines.Scan(); {
			if bytes.Contains(lines.Bytes(), []byte(`"ready":true`)) {
				said()
			}
		}
		_ = c.cmd.Wait() // how it ended stands in its state
	}()
	return c, nil
}

// stopChildren asks every process to end, and ends what does not.
func (w *whole) stopChildren() error {
	for _, c := range w.children {
		_ = c.cmd.Process.Signal(syscall.SIGTERM) // it may have ended
	}
	var errs []error
	timeout := time.NewTimer(closeTimeout)
	defer timeout.Stop()
	for _, c := range w.children {
		select {
		case <-c.ended:
		case <-timeout.C:
			timeout.Reset(0) // no more time for the others either
			errs = append(errs, errors.New("a dispatch process did not stop in time"), c.cmd.Process.Kill())
			<-c.ended
		}
	}
	w.children = nil
	return errors.Join(errs...)
}
