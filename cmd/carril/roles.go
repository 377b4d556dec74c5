package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"

	"github.com/softcrum/carril/cmd/carril/app"
)

type roleFlags struct {
	JSON bool `name:"json" help:"Print the ready line on standard output as one JSON object."`
}

type allCmd struct{ roleFlags }
type ingestCmd struct{ roleFlags }
type processCmd struct{ roleFlags }
type webhooksCmd struct{ roleFlags }
type maintainCmd struct{ roleFlags }

type dispatchCmd struct {
	roleFlags
	Channel string `name:"channel" help:"One channel; all when empty."`
	Rail    string `name:"rail" enum:",transactional,marketing" default:"" help:"transactional or marketing; both when empty."`
}

func (c allCmd) Run(e *environment) error     { return e.roles(app.AllRoles(), c.JSON) }
func (c ingestCmd) Run(e *environment) error  { return e.roles(app.Roles{Ingest: true}, c.JSON) }
func (c processCmd) Run(e *environment) error { return e.roles(app.Roles{Process: true}, c.JSON) }
func (c webhooksCmd) Run(e *environment) error {
	return e.roles(app.Roles{Webhooks: true}, c.JSON)
}
func (c maintainCmd) Run(e *environment) error {
	return e.roles(app.Roles{Maintain: true}, c.JSON)
}
func (c dispatchCmd) Run(e *environment) error {
	return e.roles(app.Roles{Dispatch: true, Channel: c.Channel, Rail: c.Rail}, c.JSON)
}

// signals ends its context at SIGINT or SIGTERM; a second one ends the process.
func signals() (context.Context, context.CancelFunc) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	go func() {
		<-ctx.Done()
		stop() // the second signal has its default effect
	}()
	return ctx, stop
}

// roles runs roles until a signal, or until a part fails.
func (e *environment) roles(r app.Roles, asJSON bool) error {
	tuneMemory(r, os.Getenv)
	ctx, stop := signals()
	defer stop()
	a, err := app.Start(ctx, e.set, r, e.log)
	if err != nil {
		if ctx.Err() != nil { // told to stop while it was starting
			return nil
		}
		return err
	}
	e.ready(readyLine{API: a.API, Ops: a.Ops}, asJSON)
	return errors.Join(wait(ctx, a.Failed()), a.Stop())
}

const (
	// roleMemory is the soft limit of a role's memory: the collector works harder
	// before a role reaches 512 MiB (faults P13), for what is shed under overload
	// leaves garbage faster than it would otherwise come.
	roleMemory = 352 << 20
	// roleGarbage is how much of what lives a role alone in its process leaves lying
	// before the collector runs, in percent: it has that memory anyhow, and a stage
	// that catches up pays a tenth of its processor for collecting at Go's own 100.
	roleGarbage = 300
)

// tuneMemory sets both; GOMEMLIMIT and GOGC, where they are set, count instead.
func tuneMemory(r app.Roles, getenv func(string) string) {
	roles := 0
	for _, on := range []bool{r.Ingest, r.Process, r.Dispatch, r.Webhooks, r.Maintain} {
		if on {
			roles++
		}
	}
	if getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(int64(roles) * roleMemory)
	}
	if getenv("GOGC") == "" && roles == 1 {
		debug.SetGCPercent(roleGarbage)
	}
}

// wait returns at a signal (nil) or a failure.
func wait(ctx context.Context, failed <-chan error) error {
	select {
	case <-ctx.Done():
		return nil
	case err := <-failed:
		return err
	}
}

// readyLine is what scripts wait for.
type readyLine struct {
	Ready   bool   `json:"ready"`
	API     string `json:"api,omitempty"`
	Ops     string `json:"ops,omitempty"`
	Key     string `json:"key,omitempty"`
	Sandbox string `json:"sandbox,omitempty"`
	Webhook string `json:"webhook,omitempty"`
	Data    string `json:"data,omitempty"`
}

func (e *environment) ready(l readyLine, asJSON bool) {
	l.Ready = true
	if asJSON {
		b, err := json.Marshal(l)
		if err != nil { // strings always marshal
			panic(err)
		}
		fmt.Fprintln(e.out, string(b))
		return
	}
	line := "ready"
	for _, f := range []struct{ name, value string }{{"api", l.API}, {"ops", l.Ops}, {"sandbox", l.Sandbox}} {
		if f.value != "" {
			line += " " + f.name + "=" + f.value
		}
	}
	fmt.Fprintln(e.err, line)
}

type versionCmd struct{}

func (versionCmd) Run(e *environment) error {
	version := "devel"
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" && info.Main.Version != "(devel)" {
		version = info.Main.Version
	}
	fmt.Fprintln(e.out, "carril", version)
	return nil
}
