package app

import (
	"context"

	"github.com/softcrum/carril/internal/pg"
)

// configChannel is where the database says which configuration table changed.
const configChannel = "carril_config"

// onChange has what a role remembers of a table forgotten when the table
// changes. Without a word it is forgotten by its age.
func (a *App) onChange(table string, forget func()) {
	if a.forget == nil {
		a.forget = map[string][]func(){}
	}
	a.forget[table] = append(a.forget[table], forget)
}

// hearChanges listens for the tables that roles remember. What changed while
// nobody listened is not known, so a new connection forgets everything.
func (a *App) hearChanges() {
	if len(a.forget) == 0 {
		return
	}
	l := pg.Listener{URL: a.set.direct(), Channel: configChannel}
	all := func() {
		for _, fs := range a.forget {
			for _, f := range fs {
				f()
			}
		}
	}
	heard := func(table string) {
		for _, f := range a.forget[table] {
			f()
		}
	}
	a.stack.Go(lifecyclePart("configuration changes", func(ctx context.Context) error {
		pg.KeepListening(ctx, l.Listen, all, heard, func(err error) {
			a.log.Warn("changes of the configuration are seen by their age alone for now", "error", err)
		})
		return ctx.Err()
	}))
}
