package devstack

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"time"
)

const (
	// restartLimit is how many starts in a row may fail before a part is
	// reported as failed.
	restartLimit = 8
	// firstBackoff doubles with each failed start, up to lastBackoff.
	firstBackoff = 50 * time.Millisecond
	lastBackoff  = 5 * time.Second
	// provenAfter is how long a child must have run for its death to count as
	// the first one in a row.
	provenAfter = 30 * time.Second
	// stopGrace is how long a child may take after its stop signal.
	stopGrace = 15 * time.Second
	readyPoll = 10 * time.Millisecond
)

// processSpec says how to run one child and how to know that it answers.
type processSpec struct {
	// command makes the command of one start. Its output goes to log.
	command func() (*exec.Cmd, error)
	// ready returns nil once the child answers; it is asked again and again.
	ready func(context.Context) error
	// mended is asked after a start that ended before it was ready, and says
	// whether another try makes sense. Nil: no.
	mended func(tail string) bool
	// log is the file for the child's output.
	log string
	// signal asks the child to end.
	signal os.Signal
}

// process keeps one child running: it restarts it with backoff when it dies.
type process struct {
	part   Part
	spec   processSpec
	log    *slog.Logger
	failed chan<- error

	stopping chan struct{} // closed by stop
	forced   chan struct{} // closed when stop's context ended
	ended    chan struct{} // closed when supervise returned
	once     sync.Once

	mu    sync.Mutex
	child *child
}

func newProcess(part Part, spec processSpec, log *slog.Logger, failed chan<- error) *process {
	return &process{
		part: part, spec: spec, log: log.With("part", string(part)), failed: failed,
		stopping: make(chan struct{}), forced: make(chan struct{}), ended: make(chan struct{}),
	}
}

// start runs the child until it is ready, then supervises it.
func (p *process) start(ctx context.Context) error {
	c, err := p.launch(ctx)
	if err != nil {
		close(p.ended)
		return fmt.Errorf("start the embedded %s: %w", p.part, err)
	}
	go p.supervise(c)
	return nil
}

// supervise waits for the child's death: one that was asked for ends it, any
// other is answered by a new child.
func (p *process) supervise(c *child) {
	defer close(p.ended)
	failures := 0
	for {
		select {
		case <-p.stopping:
			p.end(c)
			return
		case <-c.done:
		}
		if time.Since(c.started) > provenAfter {
			failures = 0
		}
		p.log.Warn("embedded part died, restarting", "error", c.err, "log", p.spec.log)
		for c = nil; c == nil; {
			if failures++; failures > restartLimit {
				p.failed <- fmt.Errorf("the embedded %s died and could not be restarted, see %s", p.part, p.spec.log)
				<-p.stopping
				return
			}
			if c = p.relaunch(failures); c == nil && p.isStopping() {
				return
			}
		}
	}
}

func (p *process) isStopping() bool {
	select {
	case <-p.stopping:
		return true
	default:
		return false
	}
}

// relaunch waits the backoff and starts a child; nil when that failed.
func (p *process) relaunch(failures int) *child {
	wait := min(firstBackoff<<(failures-1), lastBackoff)
	select {
	case <-p.stopping:
		return nil
	case <-time.After(wait):
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	go func() {
		select {
		case <-p.stopping:
			cancel()
		case <-ctx.Done():
		}
	}()
	c, err := p.launch(ctx)
	if err != nil {
		p.log.Warn("restart of an embedded part failed", "error", err)
		return nil
	}
	p.log.Info("embedded part restarted", "pid", c.cmd.Process.Pid)
	return c
}

// launch starts children until one is ready or trying again is no use.
func (p *process) launch(ctx context.Context) (*child, error) {
	for {
		c, err := p.attempt(ctx)
		if err == nil {
			p.mu.Lock()
			p.child = c
			p.mu.Unlock()
			return c, nil
		}
		if ctx.Err() != nil || p.spec.mended == nil || !p.spec.mended(tail(p.spec.log)) {
			return nil, err
		}
		select {
		case <-ctx.Done():
			return nil, err
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// attempt starts one child and waits until it is ready.
func (p *process) attempt(ctx context.Context) (*child, error) {
	c, err := p.spawn()
	if err != nil {
		return nil, err
	}
	for {
		readyErr := p.spec.ready(ctx)
		if readyErr == nil {
			return c, nil
		}
		select {
		case <-c.done:
			return nil, fmt.Errorf("it ended (%w), its log %s says: %s", c.err, p.spec.log, tail(p.spec.log))
		case <-ctx.Done():
			_ = c.cmd.Process.Kill()
			<-c.done
			return nil, fmt.Errorf("it does not answer (%w): %w", readyErr, ctx.Err())
		case <-time.After(readyPoll):
		}
	}
}

// child is one running process.
type child struct {
	cmd     *exec.Cmd
	started time.Time
	done    chan struct{}
	err     error // set before done is closed; never nil then
}

// errExited stands for an exit with status 0 that nobody asked for.
var errExited = errors.New("exit status 0")

// spawn starts a child from a goroutine that keeps its OS thread until the
// child ends: the parent-death signal is sent when that thread dies, not when
// the process does (golang/go#27505).
func (p *process) spawn() (*child, error) {
	cmd, err := p.spec.command()
	if err != nil {
		return nil, err
	}
	out, err := openLog(p.spec.log)
	if err != nil {
		return nil, err
	}
	cmd.Stdout, cmd.Stderr = out, out
	c := &child{cmd: cmd, started: time.Now(), done: make(chan struct{})}
	startErr := make(chan error)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		defer out.Close()
		err := cmd.Start()
		startErr <- err
		if err != nil {
			return
		}
		if c.err = cmd.Wait(); c.err == nil {
			c.err = errExited
		}
		close(c.done)
	}()
	if err := <-startErr; err != nil {
		return nil, fmt.Errorf("run %s: %w", cmd.Path, err)
	}
	return c, nil
}

func (p *process) pid() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.child == nil {
		return 0
	}
	select {
	case <-p.child.done:
		return 0
	default:
		return p.child.cmd.Process.Pid
	}
}

// stop ends the child and waits for the supervisor.
func (p *process) stop(ctx context.Context) error {
	p.once.Do(func() { close(p.stopping) })
	select {
	case <-p.ended:
		return nil
	case <-ctx.Done():
	case <-time.After(stopGrace):
	}
	close(p.forced)
	<-p.ended
	return errors.New("it did not end in time and was killed")
}

// end asks the child to end, and forces it when stop ran out of patience.
func (p *process) end(c *child) {
	_ = c.cmd.Process.Signal(p.spec.signal)
	select {
	case <-c.done:
		return
	case <-p.forced:
	}
	_ = c.cmd.Process.Kill()
	<-c.done
}

// logLimit is the size in bytes beyond which a log starts anew.
const logLimit = 8 << 20

func openLog(path string) (*os.File, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, fmt.Errorf("make the log folder: %w", err)
	}
	flags := os.O_CREATE | os.O_WRONLY | os.O_APPEND
	if info, err := os.Stat(path); err == nil && info.Size() > logLimit {
		flags |= os.O_TRUNC
	}
	f, err := os.OpenFile(path, flags, 0o644)
	if err != nil {
		return nil, fmt.Errorf("open a log: %w", err)
	}
	return f, nil
}

// tail returns the last lines of a log, for an error message.
func tail(path string) string {
	b, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	lines := strings.Split(strings.TrimSpace(string(b)), "\n")
	return strings.Join(lines[max(0, len(lines)-4):], " | ")
}
