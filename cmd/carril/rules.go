package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/softcrum/carril/cmd/carril/app"
	"github.com/softcrum/carril/ingestor/intake"
	"github.com/softcrum/carril/ingestor/manage"
	"github.com/softcrum/carril/internal/rule"
	"github.com/softcrum/carril/processor/rules"
)

type rulesCmd struct {
	List rulesListCmd `cmd:"" help:"List a tenant's rules, the newest version of each."`
	Show rulesShowCmd `cmd:"" help:"Print a rule's versions as JSON, newest first."`
	Put  rulesPutCmd  `cmd:"" help:"Write a rule, or its next version, from a file."`
	Test rulesTestCmd `cmd:"" help:"Say what a rule would have done over past events; nothing is written."`
}

// tenantDatabase opens the database and finds the tenant.
func (e *environment) tenantDatabase(ctx context.Context, name string) (*pgxpool.Pool, uuid.UUID, error) {
	pool, err := e.database(ctx)
	if err != nil {
		return nil, uuid.Nil, err
	}
	tenant, err := app.FindTenant(ctx, pool, name)
	if err != nil {
		pool.Close()
		return nil, uuid.Nil, err
	}
	return pool, tenant, nil
}

type rulesListCmd struct {
	Tenant string `required:"" help:"Slug or id of the tenant."`
}

func (c rulesListCmd) Run(e *environment) error {
	ctx, stop := signals()
	defer stop()
	pool, tenant, err := e.tenantDatabase(ctx, c.Tenant)
	if err != nil {
		return err
	}
	defer pool.Close()
	list, err := rule.NewStore(pool).List(ctx, tenant)
	if err != nil {
		return err
	}
	w := tabwriter.NewWriter(e.out, 0, 4, 2, ' ', 0)
	fmt.Fprintln(w, "RULE\tVERSION\tON\tEVENT\tPOINTS\tACTIONS\tCAP\tNAME")
	for _, r := range list {
		limit := "-"
		if r.Cap != nil {
			limit = fmt.Sprint(r.Cap.Count)
			if r.Cap.Window != "" {
				limit += " in " + r.Cap.Window
			}
		}
		fmt.Fprintf(w, "%s\t%d\t%t\t%s\t%d\t%d\t%s\t%s\n", r.ID, r.Version, r.Enabled, r.EventName, r.Points(), len(r.Actions), limit, r.Name)
	}
	return w.Flush()
}

type rulesShowCmd struct {
	Tenant string    `required:"" help:"Slug or id of the tenant."`
	Rule   uuid.UUID `arg:"" help:"The rule's id."`
}

func (c rulesShowCmd) Run(e *environment) error {
	ctx, stop := signals()
	defer stop()
	pool, tenant, err := e.tenantDatabase(ctx, c.Tenant)
	if err != nil {
		return err
	}
	defer pool.Close()
	versions, err := rule.NewStore(pool).Versions(ctx, tenant, c.Rule)
	if errors.Is(err, rule.ErrNone) {
		return fmt.Errorf("%s has no rule %s", c.Tenant, c.Rule)
	}
	if err != nil {
		return err
	}
	return e.indented(versions)
}

func (e *environment) indented(v any) error {
	enc := json.NewEncoder(e.out)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	return enc.Encode(v)
}

const ruleFile = `A file with {"event_name", "actions", "condition", "cap", …} as PUT /v1/core/rules takes it; - reads standard input.`

type rulesPutCmd struct {
	Tenant string    `required:"" help:"Slug or id of the tenant."`
	Rule   uuid.UUID `arg:"" help:"The rule's id; of your choice where it is new."`
	File   string    `arg:"" help:"${rule_file}"`
}

func (c rulesPutCmd) Run(e *environment) error {
	draft, err := readRule(c.File)
	if err != nil {
		return err
	}
	draft.ID = c.Rule
	ctx, stop := signals()
	defer stop()
	pool, tenant, err := e.tenantDatabase(ctx, c.Tenant)
	if err != nil {
		return err
	}
	defer pool.Close()
	written, err := rule.NewStore(pool).Put(ctx, tenant, draft)
	if err != nil {
		return err
	}
	fmt.Fprintf(e.err, "version %d of the rule is the newest; running processors take it within 2 s\n", written.Version)
	return e.indented(written)
}

// maxRuleFile is what a file with a rule may have; a request has no more.
const maxRuleFile = 64 << 10

func readRule(name string) (rule.Rule, error) {
	in := io.Reader(os.Stdin)
	if name != "-" {
		f, err := os.Open(name)
		if err != nil {
			return rule.Rule{}, fmt.Errorf("%w: %w", app.ErrConfig, err)
		}
		defer f.Close()
		in = f
	}
	text, err := io.ReadAll(io.LimitReader(in, maxRuleFile+1))
	if err != nil {
		return rule.Rule{}, fmt.Errorf("read the rule: %w", err)
	}
	if len(text) > maxRuleFile {
		return rule.Rule{}, fmt.Errorf("%w: the rule has more than %d bytes", app.ErrConfig, maxRuleFile)
	}
	if err := intake.NewParser().Object(text); err != nil {
		return rule.Rule{}, fmt.Errorf("%w: the rule is no JSON that is taken: %s %s", app.ErrConfig, err.Code, err.Detail)
	}
	r, problem := manage.ReadRule(text)
	if problem != nil {
		return r, fmt.Errorf("%w: %s %s: %s", app.ErrConfig, problem.Code, problem.Pointer, problem.Detail)
	}
	for i, a := range r.Actions {
		if a.Channel != "" && !app.KnownChannel(a.Channel) {
			return r, fmt.Errorf("%w: unknown_channel /actions/%d/channel: no provider serves %q", app.ErrConfig, i, a.Channel)
		}
	}
	return r, nil
}

type rulesTestCmd struct {
	Tenant string    `required:"" help:"Slug or id of the tenant."`
	From   string    `required:"" help:"Events that occurred from this time on, as 2026-11-01 or 2026-11-01T00:00:00Z."`
	To     string    `help:"And before this time; now when empty."`
	Rule   uuid.UUID `help:"The newest version of a rule that is there; or give a file."`
	File   string    `arg:"" optional:"" help:"${rule_file}"`
	JSON   bool      `name:"json" help:"Print one JSON object."`
}

func (rulesTestCmd) Help() string {
	return `Runs the rule over the tenant's past events in the order of their times, as if it had
been in force, and prints how often it would have fired, what it would have given
and sent, and where its condition has no answer. Its cap counts from --from on; its
own valid_from and valid_until hold. Nothing is written and nothing is sent.

  carril rules test --tenant demo --from 2026-11-01 receipt.json
  carril rules test --tenant demo --from 2026-11-01 --rule 0199… --json`
}

func (c rulesTestCmd) Run(e *environment) error {
	from, to, err := parseRange(c.From, c.To)
	if err != nil {
		return err
	}
	if (c.Rule == uuid.Nil) == (c.File == "") {
		return fmt.Errorf("%w: give a file or --rule, one of the two", app.ErrConfig)
	}
	ctx, stop := signals()
	defer stop()
	pool, tenant, err := e.tenantDatabase(ctx, c.Tenant)
	if err != nil {
		return err
	}
	defer pool.Close()
	r, err := c.read(ctx, pool, tenant)
	if err != nil {
		return err
	}
	next := time.Now().Add(time.Second)
	rep, err := rules.DryRun(ctx, pool, tenant, r, from, to, func(at time.Time, events int) {
		if time.Now().After(next) {
			next = time.Now().Add(time.Second)
			done := float64(at.Sub(from)) / float64(to.Sub(from)) * 100
			fmt.Fprintf(e.err, "%3.0f %% of the range, %d events\n", done, events)
		}
	})
	if err != nil {
		return err
	}
	if c.JSON {
		return e.indented(rep)
	}
	return e.printDryRun(rep)
}

func (c rulesTestCmd) read(ctx context.Context, pool *pgxpool.Pool, tenant uuid.UUID) (*rule.Rule, error) {
	if c.File == "" {
		found, err := rule.NewStore(pool).Get(ctx, tenant, c.Rule)
		if errors.Is(err, rule.ErrNone) {
			return nil, fmt.Errorf("%s has no rule %s", c.Tenant, c.Rule)
		}
		if err != nil {
			return nil, err
		}
		return rule.Compile(*found)
	}
	draft, err := readRule(c.File)
	if err != nil {
		return nil, err
	}
	r, err := rule.Check(draft)
	if err != nil {
		return nil, fmt.Errorf("%w: the rule is not taken: %w", app.ErrConfig, err)
	}
	return r, nil
}

// parseRange reads a range of times for a command; an empty end is now.
func parseRange(from, to string) (time.Time, time.Time, error) {
	start, err := parseWhen("--from", from)
	if err != nil {
		return start, start, err
	}
	end := time.Now().UTC()
	if to != "" {
		if end, err = parseWhen("--to", to); err != nil {
			return start, end, err
		}
	}
	if !start.Before(end) {
		return start, end, fmt.Errorf("%w: --from lies before --to", app.ErrConfig)
	}
	return start, end, nil
}

func parseWhen(flag, text string) (time.Time, error) {
	for _, layout := range []string{time.RFC3339Nano, time.DateOnly} {
		if t, err := time.Parse(layout, text); err == nil {
			return t.UTC(), nil
		}
	}
	return time.Time{}, fmt.Errorf("%w: %s %q is no time: 2026-11-01, or 2026-11-01T00:00:00Z", app.ErrConfig, flag, text)
}

func (e *environment) printDryRun(rep *rules.Report) error {
	w := tabwriter.NewWriter(e.out, 0, 4, 2, ' ', 0)
	line := func(name string, v any) { fmt.Fprintf(w, "%s\t%v\n", name, v) }
	line("events of its name", rep.Seen)
	line("skipped (imports, outside its window)", rep.Skipped)
	line("fired", rep.Fired)
	line("for contacts", rep.Contacts)
	line("held back by its cap", rep.Capped)
	line("points", rep.Points)
	for _, k := range slices.Sorted(maps.Keys(rep.Messages)) {
		line("messages, "+k, rep.Messages[k])
	}
	line("messages too old", rep.TooOld)
	for _, k := range slices.Sorted(maps.Keys(rep.Failed)) {
		line("no answer, "+k, rep.Failed[k])
	}
	for _, s := range rep.Samples {
		line("  "+s.Outcome, s.EventID.String()+" "+s.OccurredAt.UTC().Format(time.RFC3339))
	}
	return w.Flush()
}
