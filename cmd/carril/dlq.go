package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/user"
	"text/tabwriter"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/softcrum/carril/cmd/carril/app"
	"github.com/softcrum/carril/dispatcher/sends"
	"github.com/softcrum/carril/internal/deadletter"
)

type dlqCmd struct {
	List    dlqListCmd    `cmd:"" help:"List dead letters, newest first."`
	Show    dlqShowCmd    `cmd:"" help:"Show one, with its record decoded where it can be."`
	Replay  dlqReplayCmd  `cmd:"" help:"Put records back on their topics, once what they died of is mended."`
	Discard dlqDiscardCmd `cmd:"" help:"Let dead letters go; they stay on record."`
}

// Help teaches the way through an incident.
func (dlqCmd) Help() string {
	return `A dead letter is a record that could not be processed (or a message that could not be sent), kept with its bytes and the reason, while everything else went on. Find the reason, mend it, then replay.

  carril dlq list --stage append --class refused_by_database
  carril dlq show 0198c0de-…
  carril dlq replay 0198c0de-…                                  one, or several, by id
  carril dlq replay --stage append --since 2h --dry-run         says how many it would be
  carril dlq replay --stage append --since 2h --yes 41          does it, if they are still 41
  carril dlq discard 0198c0de-… --note "a test of the shop's"

A replayed record is applied once, however often this is run: what was replayed or discarded before is refused and named. A message's dead letter is refused where only a person knows whether it went. Exit codes: 0 done, 1 failed or some were refused, 2 usage.`
}

// dlqFilter chooses dead letters.
type dlqFilter struct {
	Stage  string `help:"Of one stage, e.g. append, rules, rail:email.transactional."`
	Class  string `help:"Of one class, e.g. undecodable, refused_by_database, unknown_tenant."`
	Tenant string `help:"Of one tenant: slug or id."`
	Since  string `help:"Made since then: a day (2026-11-30), a time (2026-11-30T12:00:00Z) or an age (2h)." placeholder:"TIME"`
	Until  string `help:"Made before then: a time or an age." placeholder:"TIME"`
}

func (f dlqFilter) filter(ctx context.Context, db interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}) (out deadletter.Filter, err error) {
	out = deadletter.Filter{Stage: f.Stage, Class: f.Class}
	if out.Since, err = instant("since", f.Since); err != nil {
		return out, err
	}
	if out.Until, err = instant("until", f.Until); err != nil {
		return out, err
	}
	if !out.Since.IsZero() && !out.Until.IsZero() && !out.Since.Before(out.Until) {
		return out, fmt.Errorf("%w: --since lies before --until", app.ErrConfig)
	}
	if f.Tenant == "" {
		return out, nil
	}
	if id, err := uuid.Parse(f.Tenant); err == nil { // also one that is gone
		out.Tenant = id
		return out, nil
	}
	err = db.QueryRow(ctx, `SELECT tenant_id FROM core.tenants WHERE slug = $1`, f.Tenant).Scan(&out.Tenant)
	if errors.Is(err, pgx.ErrNoRows) {
		return out, fmt.Errorf("%w: no tenant %q", app.ErrConfig, f.Tenant)
	}
	return out, err
}

// instant reads a time, or an age before now; empty is none.
func instant(flag, s string) (time.Time, error) {
	if s == "" {
		return time.Time{}, nil
	}
	if age, err := time.ParseDuration(s); err == nil && age > 0 {
		return time.Now().Add(-age), nil
	}
	t, err := parseWhen("--"+flag, s)
	if err != nil {
		return t, fmt.Errorf("%w, or an age: 2h", err)
	}
	return t, nil
}

type dlqListCmd struct {
	dlqFilter
	Status string `enum:"open,replayed,discarded,all" default:"open" help:"open, replayed, discarded or all."`
	Limit  int    `default:"50" help:"At most so many."`
	JSON   bool   `name:"json" help:"Print one JSON object a line."`
}

func (c dlqListCmd) Run(e *environment) error {
	ctx, stop := signals()
	defer stop()
	pool, err := e.database(ctx)
	if err != nil {
		return err
	}
	defer pool.Close()
	f, err := c.filter(ctx, pool)
	if err != nil {
		return err
	}
	if f.Status = c.Status; c.Status == "all" {
		f.Status = ""
	}
	letters, err := deadletter.New(pool, nil).List(ctx, f, c.Limit)
	if err != nil {
		return err
	}
	return e.printLetters(letters, c.JSON)
}

func (e *environment) printLetters(letters []deadletter.Letter, asJSON bool) error {
	if asJSON {
		enc := json.NewEncoder(e.out)
		for _, l := range letters {
			if err := enc.Encode(l); err != nil {
				return err
			}
		}
		return nil
	}
	w := tabwriter.NewWriter(e.out, 0, 4, 2, ' ', 0)
	fmt.Fprintln(w, "ID\tAT\tSTATUS\tSTAGE\tCLASS\tRECORD\tREASON")
	for _, l := range letters {
		record := "-"
		if l.Topic != nil && l.Partition != nil && l.Offset != nil {
			record = fmt.Sprintf("%s/%d@%d", *l.Topic, *l.Partition, *l.Offset)
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", l.ID, l.CreatedAt.UTC().Format(time.RFC3339), l.Status, l.Stage, l.Class, record, l.Reason)
	}
	return w.Flush()
}

type dlqShowCmd struct {
	ID uuid.UUID `arg:"" help:"The dead letter's id."`
}

func (c dlqShowCmd) Run(e *environment) error {
	ctx, stop := signals()
	defer stop()
	pool, err := e.database(ctx)
	if err != nil {
		return err
	}
	defer pool.Close()
	store := deadletter.New(pool, nil)
	letters, err := store.List(ctx, deadletter.Filter{IDs: []uuid.UUID{c.ID}}, 1)
	if err != nil {
		return err
	}
	if len(letters) == 0 {
		return fmt.Errorf("dead letter %s: %w", c.ID, deadletter.ErrNotFound)
	}
	value, err := store.Value(ctx, c.ID)
	if err != nil {
		return err
	}
	out := map[string]any{"dead_letter": letters[0], "bytes": len(value), "value_base64": value}
	if codec, err := e.set.NewCodec(); err == nil && e.set.RegistryURL != "" {
		if m, err := codec.Generic(ctx, value); err == nil {
			out["record"] = m
		}
	}
	enc := json.NewEncoder(e.out)
	enc.SetIndent("", "  ")
	return enc.Encode(out)
}

// dlqChange is what replay and discard have in common.
type dlqChange struct {
	IDs []uuid.UUID `arg:"" optional:"" name:"id" help:"Ids of dead letters; or choose them by the flags."`
	dlqFilter
	DryRun bool `help:"Say how many it would be; change nothing."`
	Yes    int  `default:"-1" help:"Do it to all that the flags choose, if they are so many." placeholder:"COUNT"`
	By     line `help:"Who does it, for the record; this user at this host when empty."`
	JSON   bool `name:"json" help:"Print one JSON object."`
}

// dlqResult is what is printed of a change.
type dlqResult struct {
	Chosen    *int         `json:"chosen,omitempty"` // of a dry run
	Changed   []uuid.UUID  `json:"changed"`
	Refused   []dlqRefusal `json:"refused"`
	Published *bool        `json:"published,omitempty"` // of a replay
	done      deadletter.Done
}

type dlqRefusal struct {
	ID     uuid.UUID `json:"dead_letter_id"`
	Reason string    `json:"reason"`
}

// change does what replay and discard do alike: choose, confirm, change, report.
func (c dlqChange) change(e *environment, do func(ctx context.Context, s *deadletter.Store, f deadletter.Filter, by string) (deadletter.Done, error),
	after func(ctx context.Context, s *deadletter.Store, r *dlqResult) error) error {
	ctx, stop := signals()
	defer stop()
	pool, err := e.database(ctx)
	if err != nil {
		return err
	}
	defer pool.Close()
	f, err := c.chosen(ctx, pool)
	if err != nil {
		return err
	}
	store := deadletter.New(pool, sends.Replays{})
	if c.DryRun {
		f.Status = deadletter.StatusOpen
		n, err := store.Count(ctx, f)
		if err != nil {
			return err
		}
		return c.report(e, dlqResult{Chosen: &n})
	}
	by := string(c.By)
	if by == "" {
		by = operator()
	}
	done, err := do(ctx, store, f, by)
	r := dlqResult{Changed: done.Changed, done: done}
	for _, x := range done.Refused {
		r.Refused = append(r.Refused, dlqRefusal{x.ID, x.Err.Error()})
	}
	if err == nil && after != nil {
		err = after(ctx, store, &r)
	}
	return errors.Join(c.report(e, r), err, refusedSome(r))
}

// chosen is the filter, if it is one that may be acted on.
func (c dlqChange) chosen(ctx context.Context, db interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}) (deadletter.Filter, error) {
	f, err := c.filter(ctx, db)
	if err != nil {
		return f, err
	}
	byFlags := f.Chooses()
	f.IDs = c.IDs
	switch {
	case !f.Chooses():
		return f, fmt.Errorf("%w: %w", app.ErrConfig, deadletter.ErrNoFilter)
	case len(c.IDs) > 0 && byFlags:
		return f, fmt.Errorf("%w: name dead letters by id or by flags, not by both", app.ErrConfig)
	case byFlags && !c.DryRun && c.Yes < 0:
		return f, fmt.Errorf("%w: say --dry-run to hear how many these are, then --yes COUNT", app.ErrConfig)
	}
	return f, nil
}

func refusedSome(r dlqResult) error {
	if len(r.Refused) == 0 {
		return nil
	}
	return fmt.Errorf("%d of %d were refused", len(r.Refused), len(r.Refused)+len(r.Changed))
}

func (c dlqChange) report(e *environment, r dlqResult) error {
	if c.JSON {
		if r.Changed == nil {
			r.Changed = []uuid.UUID{}
		}
		if r.Refused == nil {
			r.Refused = []dlqRefusal{}
		}
		return json.NewEncoder(e.out).Encode(r)
	}
	if r.Chosen != nil {
		fmt.Fprintf(e.out, "%d\n", *r.Chosen)
		fmt.Fprintf(e.err, "say --yes %d to change them\n", *r.Chosen)
		return nil
	}
	for _, id := range r.Changed {
		fmt.Fprintln(e.out, id)
	}
	for _, x := range r.Refused {
		fmt.Fprintf(e.err, "%s: %s\n", x.ID, x.Reason)
	}
	return nil
}

// operator is who runs this, for the record.
func operator() string {
	name := "unknown"
	if u, err := user.Current(); err == nil {
		name = u.Username
	}
	host, err := os.Hostname()
	if err != nil {
		return name
	}
	return name + "@" + host
}

type dlqReplayCmd struct {
	dlqChange
	Note line          `help:"Why, for the record."`
	Wait time.Duration `default:"15s" help:"How long to wait until they are on their topics; 0: not at all."`
}

func (c dlqReplayCmd) Run(e *environment) error {
	return c.change(e, func(ctx context.Context, s *deadletter.Store, f deadletter.Filter, by string) (deadletter.Done, error) {
		return s.Replay(ctx, f, by, string(c.Note), c.Yes)
	}, func(ctx context.Context, s *deadletter.Store, r *dlqResult) error {
		ctx, cancel := context.WithTimeout(ctx, c.Wait)
		defer cancel()
		out, err := s.AwaitPublished(ctx, r.done)
		if err != nil {
			return err
		}
		r.Published = &out
		if !out {
			fmt.Fprintln(e.err, "they are in the outbox, and go out as soon as a `carril process` runs")
		}
		return nil
	})
}

type dlqDiscardCmd struct {
	dlqChange
	Note why `required:"" help:"Why, for the record."`
}

func (c dlqDiscardCmd) Run(e *environment) error {
	return c.change(e, func(ctx context.Context, s *deadletter.Store, f deadletter.Filter, by string) (deadletter.Done, error) {
		return s.Discard(ctx, f, by, string(c.Note), c.Yes)
	}, nil)
}
