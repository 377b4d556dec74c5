package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"
)

// process is one that the harness has started.
type process struct {
	cmd   *exec.Cmd
	ended chan struct{}
	ready readyLine
}

// readyLine is what carril's roles print, and the workers here.
type readyLine struct {
	Ready   bool   `json:"ready"`
	Sandbox string `json:"sandbox"`
}

// start runs a program until it says ready. An environment of nil is our own.
func (o options) start(ctx context.Context, name string, environ []string, program string, args ...string) (*process, error) {
	p := &process{cmd: exec.Command(program, args...), ended: make(chan struct{})}
	p.cmd.Env, p.cmd.SysProcAttr = environ, &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	log, err := o.log(name)
	if err != nil {
		return nil, err
	}
	if log != nil {
		p.cmd.Stderr = log
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	ready := make(chan struct{})
	go func() {
		defer close(p.ended)
		said := sync.OnceFunc(func() { close(ready) })
		for lines := bufio.NewScanner(out); lines.Scan(); {
			if l := (readyLine{}); json.Unmarshal(lines.Bytes(), &l) == nil && l.Ready {
				p.ready = l
				said()
			}
		}
		_ = p.cmd.Wait()
		if log != nil {
			_ = log.Close()
		}
	}()
	select {
	case <-ready:
		return p, nil
	case <-p.ended:
		return nil, fmt.Errorf("%s ended before it was ready: %s (-logs keeps what it said)", name, p.cmd.ProcessState)
	case <-time.After(90 * time.Second):
		p.kill()
		return nil, errors.New(name + " is not ready")
	case <-ctx.Done():
		p.kill()
		return nil, ctx.Err()
	}
}

// kill is kill -9.
func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	<-p.ended
}

// stop asks a process to end, and ends it.
func (p *process) stop() {
	if p == nil {
		return
	}
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-p.ended:
	case <-time.After(20 * time.Second):
		p.kill()
	}
}

// workerEnv carries a worker's configuration to this program's own file.
const workerEnv = "COMPARE_WORKER"

// workerConfig is what a worker process is told.
type workerConfig struct {
	System    string
	Provider  string
	Redis     string
	Postgres  string
	Run       string  // names what is this run's own
	Index     int     // which process
	Processes int     // of how many
	Shared    bool    // their bucket is one, in Redis
	Workers   int     // its share
	Rate      float64 // requests a second that all of them let through
}

func (o options) worker(ctx context.Context, cfg workerConfig) (*process, error) {
	cfg.Redis, cfg.Postgres, cfg.Workers = o.Redis, o.Postgres, o.Profile.share(cfg.Index)
	cfg.Processes, cfg.Rate = o.Profile.Processes, o.Profile.permitted()
	raw, err := json.Marshal(cfg)
	if err != nil {
		return nil, err
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	return o.start(ctx, fmt.Sprintf("%s-%d", cfg.System, cfg.Index), append(os.Environ(), workerEnv+"="+string(raw)), self)
}

// work is the whole of a worker process.
func work(ctx context.Context, raw string) error {
	var cfg workerConfig
	if err := json.Unmarshal([]byte(raw), &cfg); err != nil {
		return err
	}
	switch cfg.System {
	case "asynq":
		return workAsynq(ctx, cfg)
	case "river":
		return workRiver(ctx, cfg)
	case "fifo":
		return workFIFO(ctx, cfg)
	}
	return errors.New("no such worker")
}

func sayReady() { fmt.Println(`{"ready":true}`) }
