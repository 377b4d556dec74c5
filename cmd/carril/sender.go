package main

import (
	"context"
	"errors"
	"fmt"
	"text/tabwriter"

	"github.com/google/uuid"

	"github.com/softcrum/carril/cmd/carril/app"
	"github.com/softcrum/carril/internal/gates"
)

type senderCmd struct {
	List   senderListCmd   `cmd:"" help:"List a tenant's senders."`
	Set    senderSetCmd    `cmd:"" help:"Give a tenant one of the platform's numbers, or another sender of a channel other than email."`
	Verify senderVerifyCmd `cmd:"" help:"Say that a domain is the tenant's, as the provider shows it; what waits for it is sent."`
	Pause  senderPauseCmd  `cmd:"" help:"Stop a tenant's messages of a channel; what comes is held."`
	Resume senderResumeCmd `cmd:"" help:"Let a paused sender go on; what was held is sent."`
}

type senderOf struct {
	Tenant  string `required:"" help:"Slug or id of the tenant."`
	Channel string `default:"email" help:"The channel."`
}

// senders does something with a tenant's senders and prints what comes of it.
func (e *environment) senders(of string, f func(ctx context.Context, s *gates.Store, tenant uuid.UUID) ([]gates.Sender, error)) error {
	ctx, stop := signals()
	defer stop()
	pool, tenant, err := e.tenantDatabase(ctx, of)
	if err != nil {
		return err
	}
	defer pool.Close()
	list, err := f(ctx, gates.NewStore(pool), tenant)
	if errors.Is(err, gates.ErrNone) {
		return fmt.Errorf("%s has no such sender; `carril sender list --tenant %s` lists them", of, of)
	}
	if err != nil {
		return err
	}
	w := tabwriter.NewWriter(e.out, 0, 4, 2, ' ', 0)
	fmt.Fprintln(w, "CHANNEL\tSENDER\tDOMAIN\tVERIFIED\tPAUSED")
	for _, s := range list {
		paused := "-"
		if s.PausedAt != nil {
			paused = s.PausedAt.Format("2006-01-02T15:04:05Z")
			if s.PauseReason != nil {
				paused += " " + *s.PauseReason
			}
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%t\t%s\n", s.Channel, s.Sender, s.Domain, s.Verified, paused)
	}
	return w.Flush()
}

func one(s gates.Sender, err error) ([]gates.Sender, error) { return []gates.Sender{s}, err }

type senderListCmd struct {
	Tenant string `required:"" help:"Slug or id of the tenant."`
}

func (c senderListCmd) Run(e *environment) error {
	return e.senders(c.Tenant, func(ctx context.Context, s *gates.Store, tenant uuid.UUID) ([]gates.Sender, error) {
		return s.Senders(ctx, tenant)
	})
}

type senderSetCmd struct {
	Tenant  string `required:"" help:"Slug or id of the tenant."`
	Channel string `default:"sms" help:"The channel; the senders of email are the tenants' own."`
	Sender  why    `arg:"" help:"A number in E.164, or what the provider takes in its place."`
}

func (c senderSetCmd) Run(e *environment) error {
	if c.Channel == "email" {
		return fmt.Errorf("%w: channel: a tenant sets its sender of email itself; see carril sender verify", app.ErrConfig)
	}
	return e.senders(c.Tenant, func(ctx context.Context, s *gates.Store, tenant uuid.UUID) ([]gates.Sender, error) {
		if _, err := s.PutSender(ctx, tenant, c.Channel, string(c.Sender), nil, ""); err != nil {
			return nil, err
		}
		return one(s.VerifySender(ctx, tenant, c.Channel, "")) // it is the platform's: there is no domain to see
	})
}

type senderVerifyCmd struct {
	senderOf
	Domain string `arg:"" help:"The domain that you have seen verified at the provider; the sender's must be the same."`
}

func (c senderVerifyCmd) Run(e *environment) error {
	return e.senders(c.Tenant, func(ctx context.Context, s *gates.Store, tenant uuid.UUID) ([]gates.Sender, error) {
		return one(s.VerifySender(ctx, tenant, c.Channel, c.Domain))
	})
}

type senderPauseCmd struct {
	senderOf
	Reason why `default:"operator" help:"Why, for whoever reads it."`
}

func (c senderPauseCmd) Run(e *environment) error {
	return e.senders(c.Tenant, func(ctx context.Context, s *gates.Store, tenant uuid.UUID) ([]gates.Sender, error) {
		return one(s.PauseSender(ctx, tenant, c.Channel, string(c.Reason)))
	})
}

type senderResumeCmd struct{ senderOf }

func (c senderResumeCmd) Run(e *environment) error {
	return e.senders(c.Tenant, func(ctx context.Context, s *gates.Store, tenant uuid.UUID) ([]gates.Sender, error) {
		return one(s.ResumeSender(ctx, tenant, c.Channel))
	})
}
