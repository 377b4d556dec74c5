package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/softcrum/carril/cmd/carril/app"
)

// defaultData is where `carril dev` keeps its data unless it is told.
const defaultData = ".carril"

type devCmd struct {
	roleFlags
	Data  string `default:".carril" help:"Data folder; it survives restarts." placeholder:"DIR"`
	Quiet bool   `help:"Do not narrate events on the terminal."`
}

func (c devCmd) Run(e *environment) error {
	ctx, stop := signals()
	defer stop()
	d, err := app.StartDev(ctx, e.set, c.Data, e.log)
	if err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return err
	}
	if !c.JSON {
		e.welcome(d, c.Data)
	}
	e.ready(readyLine{API: d.API, Ops: d.Ops, Key: d.Demo.Key, Sandbox: d.Sandbox.URL(), Webhook: d.Receiver, Data: c.Data}, c.JSON)
	nctx, quiet := context.WithCancel(ctx)
	told := make(chan error, 1)
	if c.Quiet {
		told <- nil
	} else {
		go func() { told <- d.Narrate(nctx, e.err) }()
	}
	err = wait(ctx, d.Failed())
	quiet()
	if nerr := <-told; nerr != nil {
		e.log.Warn("the narrator stopped", "error", nerr)
	}
	return errors.Join(err, d.Stop())
}

func (e *environment) welcome(d *app.Dev, data string) {
	fmt.Fprintf(e.err, "\nCarril runs here, for one machine only. Its data is in %s.\n", data)
	for _, part := range d.Embedded {
		fmt.Fprintln(e.err, "  ", part)
	}
	fmt.Fprintf(e.err, `
  API               %s
  probes, metrics   %s/readyz  %s/metrics
  provider sandbox  %s  (the messages that would have been sent)
  webhook receiver  %s

Send an event; its timeline appears here:

%s

then, in another terminal:  bin/carril trace EVENT_ID

`, d.API, d.Ops, d.Ops, d.Sandbox.URL(), d.Receiver, d.Curl())
}
