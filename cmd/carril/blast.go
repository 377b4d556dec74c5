package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"text/tabwriter"
	"time"

	"github.com/google/uuid"

	"github.com/softcrum/carril/cmd/carril/app"
	"github.com/softcrum/carril/dispatcher/blast"
	"github.com/softcrum/carril/internal/bench"
)

type blastCmd struct {
	Create blastCreateCmd `cmd:"" help:"Make a draft."`
	Upload blastUploadCmd `cmd:"" help:"Add a file of recipients to a draft, with a progress bar; a file that broke off goes on."`
	DryRun blastDryRunCmd `cmd:"" name:"dry-run" help:"Say what a blast would do; nothing is written."`
	Start  blastStartCmd  `cmd:"" help:"Start a draft, now or at a time."`
	Pause  blastPauseCmd  `cmd:"" help:"Stop a blast at once."`
	Resume blastResumeCmd `cmd:"" help:"Let a paused blast go on."`
	Cancel blastCancelCmd `cmd:"" help:"End a blast for good."`
	Show   blastShowCmd   `cmd:"" help:"Print a blast with its progress."`
	Watch  blastWatchCmd  `cmd:"" help:"Follow a blast on one line until it is over."`
	Report blastReportCmd `cmd:"" help:"Say what has come of a blast."`
	List   blastListCmd   `cmd:"" help:"List a tenant's blasts, the newest first."`
	Allow  blastAllowCmd  `cmd:"" help:"Let a tenant's marketing go on that the outcomes of its blasts have stopped."`
}

func (blastCmd) Help() string {
	return `A blast is one template to many recipients. It begins as a draft, takes files of
recipients (or all contacts with a consent), and goes out over the marketing rail,
behind every one-time code. It pauses by itself where more than 4 % bounce or 0.1 %
complain. Its counts add up to its recipients at every moment.

  id=$(carril blast create --tenant demo --name Spring --template news)
  carril blast upload --tenant demo "$id" people.csv --columns 'Correo=address'
  carril blast dry-run --tenant demo "$id"
  carril blast start --tenant demo "$id"
  carril blast watch --tenant demo "$id"`
}

// blastOf names a tenant's blast; every command about one begins so.
type blastOf struct {
	Tenant string    `required:"" help:"Slug or id of the tenant."`
	Blast  uuid.UUID `arg:"" help:"The blast's id."`
	JSON   bool      `name:"json" help:"Print one JSON object."`
}

// blasts opens the blasts of a tenant.
func (e *environment) blasts(ctx context.Context, tenant string) (*blast.Store, uuid.UUID, func(), error) {
	pool, id, err := e.tenantDatabase(ctx, tenant)
	if err != nil {
		return nil, uuid.Nil, nil, err
	}
	limiter, done, err := app.WatchBuckets(e.set, pool)
	if err != nil {
		pool.Close()
		return nil, uuid.Nil, nil, err
	}
	return blast.New(blast.Config{First: e.set.First(), Quotas: app.BlastQuotas(e.set, limiter)}, pool), id, func() { done(); pool.Close() }, nil
}

// do runs work on the named blast and says what a refusal means.
func (c blastOf) do(e *environment, work func(ctx context.Context, s *blast.Store, tenant uuid.UUID) error) error {
	ctx, stop := signals()
	defer stop()
	s, tenant, done, err := e.blasts(ctx, c.Tenant)
	if err != nil {
		return err
	}
	defer done()
	return saidOfBlast(work(ctx, s, tenant), c.Tenant, c.Blast)
}

func saidOfBlast(err error, tenant string, id uuid.UUID) error {
	var refused *blast.Refusal
	switch {
	case errors.Is(err, blast.ErrNone):
		return fmt.Errorf("%s has no blast %s", tenant, id)
	case errors.As(err, &refused) && !refused.State:
		return fmt.Errorf("%w: %s: %s", app.ErrConfig, refused.Code, refused.Detail)
	case errors.As(err, &refused):
		return fmt.Errorf("%s: %s", refused.Code, strings.Replace(refused.Detail, "with over_quota", "with --over-quota", 1))
	}
	return err
}

// changed prints what a blast has become.
func (c blastOf) changed(e *environment, f func(s *blast.Store) func(context.Context, uuid.UUID, uuid.UUID) (*blast.Blast, error)) error {
	return c.do(e, func(ctx context.Context, s *blast.Store, tenant uuid.UUID) error {
		b, err := f(s)(ctx, tenant, c.Blast)
		if err != nil {
			return err
		}
		fmt.Fprintf(e.err, "the blast is %s\n", b.State)
		if c.JSON {
			return e.indented(b)
		}
		return nil
	})
}

type blastCreateCmd struct {
	Tenant    string `required:"" help:"Slug or id of the tenant."`
	Name      string `required:"" help:"Name for people."`
	Template  string `required:"" help:"Id of the template."`
	Version   int    `help:"Version of the template; the newest when 0."`
	Channel   string `default:"email" help:"Channel."`
	Variables string `help:"JSON object for every recipient whose own say nothing else."`
	Contacts  bool   `help:"To all contacts with a consent, frozen at the start; else to files that are uploaded."`
	Traits    string `help:"JSON object: of the contacts, those whose traits are all as given."`
	Key       line   `help:"Idempotency key: the same key makes the same draft once."`
	JSON      bool   `name:"json" help:"Print one JSON object; else the id alone."`
}

func (c blastCreateCmd) Run(e *environment) error {
	ctx, stop := signals()
	defer stop()
	s, tenant, done, err := e.blasts(ctx, c.Tenant)
	if err != nil {
		return err
	}
	defer done()
	draft := blast.Change{Name: &c.Name, TemplateID: &c.Template, Channel: &c.Channel, Audience: &blast.Audience{Type: blast.FromUpload}}
	if c.Version != 0 {
		draft.TemplateVersion = &c.Version
	}
	if c.Variables != "" {
		draft.Variables = json.RawMessage(c.Variables)
	}
	if c.Contacts {
		draft.Audience.Type = blast.FromContacts
	}
	if c.Traits != "" {
		draft.Audience.Traits = json.RawMessage(c.Traits)
	}
	b, err := s.Create(ctx, tenant, string(c.Key), draft)
	if err != nil {
		return saidOfBlast(err, c.Tenant, uuid.Nil)
	}
	if c.JSON {
		return e.indented(b)
	}
	fmt.Fprintln(e.out, b.ID)
	return nil
}

type blastDryRunCmd struct{ blastOf }

func (c blastDryRunCmd) Run(e *environment) error {
	return c.do(e, func(ctx context.Context, s *blast.Store, tenant uuid.UUID) error {
		d, err := s.DryRun(ctx, tenant, c.Blast)
		if err != nil || c.JSON {
			return errors.Join(err, e.printIf(err == nil, d))
		}
		w := tabwriter.NewWriter(e.out, 0, 4, 2, ' ', 0)
		fmt.Fprintf(w, "recipients\t%d\nlooked at\t%d\nsendable\t%d\nwithout consent\t%d\nsuppressed\t%d\nwithout address\t%d\nrequests\t%d\n",
			d.Recipients, d.LookedAt, d.Sendable, d.WithoutConsent, d.Suppressed, d.WithoutAddress, d.Requests)
		for _, why := range slices.Sorted(maps.Keys(d.RenderFailed)) {
			fmt.Fprintf(w, "of %d rendered, %s\t%d\n", d.Rendered, why, d.RenderFailed[why])
		}
		for _, l := range quotaLines(d.Quota) {
			fmt.Fprintln(w, l)
		}
		return w.Flush()
	})
}

// quotaLines says how a blast goes with the provider's quotas.
func quotaLines(f *blast.Fit) (out []string) {
	switch {
	case f == nil:
		return nil
	case !f.Known:
		return []string{"quota\tcannot be seen now"}
	}
	for _, q := range []struct {
		name string
		*blast.Quota
	}{{"day", f.Day}, {"month", f.Month}} {
		if q.Quota != nil {
			out = append(out, fmt.Sprintf("quota of the %s\t%d of %d used, %d left for marketing", q.name, q.Used, q.Limit, q.Left))
		}
	}
	out = append(out, fmt.Sprintf("fits\t%t", *f.Fits))
	if f.DaysNeeded != nil {
		out = append(out, fmt.Sprintf("days needed\t%d", *f.DaysNeeded))
	}
	return out
}

func (e *environment) printIf(ok bool, v any) error {
	if !ok {
		return nil
	}
	return e.indented(v)
}

type blastStartCmd struct {
	blastOf
	At              string `help:"When, as 2026-11-01T09:00:00Z; now when empty."`
	WithOpenUploads bool   `help:"Start although a file of recipients broke off."`
	OverQuota       bool   `help:"Start although the provider's quota does not take it all: it is spread over days."`
}

func (c blastStartCmd) Run(e *environment) error {
	how := blast.Start{WithOpenUploads: c.WithOpenUploads, OverQuota: c.OverQuota}
	if c.At != "" {
		at, err := parseWhen("--at", c.At)
		if err != nil {
			return err
		}
		how.At = &at
	}
	return c.changed(e, func(s *blast.Store) func(context.Context, uuid.UUID, uuid.UUID) (*blast.Blast, error) {
		return func(ctx context.Context, tenant, id uuid.UUID) (*blast.Blast, error) {
			b, err := s.Start(ctx, tenant, id, how)
			if err == nil {
				for _, l := range quotaLines(b.Quota) {
					fmt.Fprintln(e.err, strings.ReplaceAll(l, "\t", ": "))
				}
			}
			return b, err
		}
	})
}

type blastPauseCmd struct{ blastOf }

func (c blastPauseCmd) Run(e *environment) error {
	return c.changed(e, func(s *blast.Store) func(context.Context, uuid.UUID, uuid.UUID) (*blast.Blast, error) { return s.Pause })
}

type blastResumeCmd struct{ blastOf }

func (c blastResumeCmd) Run(e *environment) error {
	return c.changed(e, func(s *blast.Store) func(context.Context, uuid.UUID, uuid.UUID) (*blast.Blast, error) {
		return s.Resume
	})
}

type blastCancelCmd struct{ blastOf }

func (c blastCancelCmd) Run(e *environment) error {
	return c.changed(e, func(s *blast.Store) func(context.Context, uuid.UUID, uuid.UUID) (*blast.Blast, error) {
		return s.Cancel
	})
}

type blastShowCmd struct{ blastOf }

func (c blastShowCmd) Run(e *environment) error {
	return c.do(e, func(ctx context.Context, s *blast.Store, tenant uuid.UUID) error {
		b, err := s.Get(ctx, tenant, c.Blast)
		if err != nil || c.JSON {
			return errors.Join(err, e.printIf(err == nil, b))
		}
		fmt.Fprintf(e.out, "%s  %s\n%s\n", b.ID, b.Name, progressLine(b))
		return nil
	})
}

// progressLine says in one line how far a blast has come.
func progressLine(b *blast.Blast) string {
	p := b.Progress
	parts := []string{b.State}
	if b.StateReason != nil {
		parts[0] += " (" + *b.StateReason + ")"
	}
	parts = append(parts, fmt.Sprintf("%d of %d", p.Total-p.Pending, p.Total))
	for _, o := range []struct {
		name string
		n    int64
	}{{"sent", p.Sent}, {"failed", p.Failed}, {"expired", p.Expired}, {"blocked", p.Blocked}, {"cancelled", p.Cancelled}, {"need review", p.NeedsReview}, {"dead", p.Dead}, {"pending", p.Pending}} {
		if o.n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", o.n, o.name))
		}
	}
	switch p.HeldUp {
	case blast.Held:
		parts = append(parts, "held: marketing or the sender is paused")
	case blast.ForOutcomes:
		parts = append(parts, "waits for the outcomes of its first messages")
	}
	if p.EstimatedEnd != nil {
		parts = append(parts, fmt.Sprintf("%.0f/s, ends about %s", p.PerSecond, p.EstimatedEnd.Format(time.RFC3339)))
	}
	return strings.Join(parts, ", ")
}

type blastWatchCmd struct {
	blastOf
	Every time.Duration `default:"1s" help:"How often it looks."`
}

func (blastWatchCmd) Help() string {
	return `On a terminal one line that changes, else a line each time something has changed.
It ends when the blast is done, cancelled or paused: 0 for done, 1 for the others.
With --json each look is one object on a line.`
}

func (c blastWatchCmd) Run(e *environment) error {
	if c.Every < 100*time.Millisecond {
		return fmt.Errorf("%w: --every is at least 100ms", app.ErrConfig)
	}
	return c.do(e, func(ctx context.Context, s *blast.Store, tenant uuid.UUID) error {
		b, err := s.Get(ctx, tenant, c.Blast)
		if err != nil {
			return err
		}
		var done atomic.Pointer[blast.Blast]
		done.Store(b)
		end := bench.NewProgress(e.err).Phase("blast "+b.Name, func() float64 {
			p := done.Load().Progress
			return float64(p.Total-p.Pending) / float64(max(p.Total, 1))
		})
		defer end()
		last := ""
		for {
			if c.JSON {
				if err := json.NewEncoder(e.out).Encode(b); err != nil {
					return err
				}
			} else if line := progressLine(b); line != last {
				last = line
				fmt.Fprintln(e.out, line)
			}
			if blast.Over(b.State) && b.Progress.Pending == 0 || b.State == blast.Paused || b.State == blast.Draft {
				end()
				if b.State != blast.Done {
					return fmt.Errorf("the blast is %s", b.State)
				}
				return nil
			}
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(c.Every):
			}
			if b, err = s.Get(ctx, tenant, c.Blast); err != nil {
				return err
			}
			done.Store(b)
		}
	})
}

type blastReportCmd struct{ blastOf }

func (c blastReportCmd) Run(e *environment) error {
	return c.do(e, func(ctx context.Context, s *blast.Store, tenant uuid.UUID) error {
		r, err := s.Report(ctx, tenant, c.Blast)
		if err != nil || c.JSON {
			return errors.Join(err, e.printIf(err == nil, r))
		}
		w := tabwriter.NewWriter(e.out, 0, 4, 2, ' ', 0)
		fmt.Fprintf(w, "state\t%s\n", r.State)
		for _, l := range []struct {
			name string
			n    int64
		}{{"recipients", r.Recipients}, {"sent", r.Sent}, {"delivered", r.Delivered}, {"opened", r.Opened}, {"clicked", r.Clicked}, {"bounced", r.Bounced}, {"complained", r.Complained}, {"unsubscribed", r.Unsubscribed}} {
			fmt.Fprintf(w, "%s\t%d\n", l.name, l.n)
		}
		for _, outcome := range slices.Sorted(maps.Keys(r.Reasons)) {
			for _, why := range slices.Sorted(maps.Keys(r.Reasons[outcome])) {
				fmt.Fprintf(w, "%s: %s\t%d\n", outcome, why, r.Reasons[outcome][why])
			}
		}
		return w.Flush()
	})
}

type blastListCmd struct {
	Tenant string `required:"" help:"Slug or id of the tenant."`
	State  string `default:"" enum:",draft,scheduled,preparing,running,paused,cancelled,done" help:"Of one state only."`
	Limit  int    `default:"50" help:"At most so many."`
	JSON   bool   `name:"json" help:"Print one JSON array."`
}

func (c blastListCmd) Run(e *environment) error {
	ctx, stop := signals()
	defer stop()
	s, tenant, done, err := e.blasts(ctx, c.Tenant)
	if err != nil {
		return err
	}
	defer done()
	list, err := s.List(ctx, tenant, c.State, time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC), uuid.Max, c.Limit)
	if err != nil {
		return err
	}
	if c.JSON {
		return e.indented(append([]*blast.Blast{}, list...))
	}
	w := tabwriter.NewWriter(e.out, 0, 4, 2, ' ', 0)
	fmt.Fprintln(w, "BLAST\tCREATED\tSTATE\tRECIPIENTS\tTEMPLATE\tNAME")
	for _, b := range list {
		fmt.Fprintf(w, "%s\t%s\t%s\t%d\t%s/%d\t%s\n", b.ID, b.CreatedAt.Format(time.RFC3339), b.State, b.Recipients, b.TemplateID, b.TemplateVersion, b.Name)
	}
	return w.Flush()
}

type blastAllowCmd struct {
	Tenant  string `required:"" help:"Slug or id of the tenant."`
	Channel string `default:"email" help:"Channel."`
}

func (c blastAllowCmd) Run(e *environment) error {
	ctx, stop := signals()
	defer stop()
	s, tenant, done, err := e.blasts(ctx, c.Tenant)
	if err != nil {
		return err
	}
	defer done()
	err = s.Allow(ctx, tenant, c.Channel)
	if errors.Is(err, blast.ErrNone) {
		return fmt.Errorf("the marketing of %s on %s is not stopped", c.Tenant, c.Channel)
	}
	if err != nil {
		return err
	}
	fmt.Fprintln(e.err, "the tenant's marketing goes on; blasts that are paused are resumed one by one")
	return nil
}
