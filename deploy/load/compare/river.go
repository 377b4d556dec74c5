package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"
)

// riverSystem is River as its documentation would have it: a queue with workers
// of its own for each kind, snoozes, unique arguments.
type riverSystem struct {
	o        options
	provider string
	shared   bool   // one bucket of all processes
	run      string // the schema too
	pool     *pgxpool.Pool
	client   *river.Client[pgx.Tx]
}

// sendArgs is a job as River carries it.
type sendArgs struct {
	ID   string   `json:"id" river:"unique"`
	Code bool     `json:"code"`
	To   []string `json:"to"`
}

// Kind is River's name of it.
func (sendArgs) Kind() string { return "send" }

func newRiver(o options, provider string, shared bool) (*riverSystem, error) {
	return &riverSystem{o: o, provider: provider, shared: shared, run: runName()}, nil
}

func (s *riverSystem) prepare(ctx context.Context) (err error) {
	if s.pool, err = pgxpool.New(ctx, s.o.Postgres); err != nil {
		return err
	}
	if _, err := s.pool.Exec(ctx, "CREATE SCHEMA "+s.run); err != nil {
		return fmt.Errorf("make a schema: %w", err)
	}
	m, err := rivermigrate.New(riverpgxv5.New(s.pool), &rivermigrate.Config{Schema: s.run, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return err
	}
	if _, err := m.Migrate(ctx, rivermigrate.DirectionUp, nil); err != nil {
		return err
	}
	s.client, err = river.NewClient(riverpgxv5.New(s.pool), &river.Config{Schema: s.run})
	return err
}

func (s *riverSystem) worker(ctx context.Context, i int) (*process, error) {
	return s.o.worker(ctx, workerConfig{System: "river", Provider: s.provider, Run: s.run, Index: i, Shared: s.shared})
}

func (s *riverSystem) code(ctx context.Context, n int) error {
	_, err := s.client.Insert(ctx, sendArgs(codeJob(s.run, n)), &river.InsertOpts{Queue: "codes", UniqueOpts: river.UniqueOpts{ByArgs: true}})
	return err
}

func (s *riverSystem) blast(ctx context.Context) error {
	var all []river.InsertManyParams
	for _, j := range batches(s.run, s.o.Profile.Blast) {
		all = append(all, river.InsertManyParams{Args: sendArgs(j), InsertOpts: &river.InsertOpts{Queue: "blast", UniqueOpts: river.UniqueOpts{ByArgs: true}}})
	}
	_, err := s.client.InsertMany(ctx, all)
	return err
}

func (s *riverSystem) close(ctx context.Context) error {
	if s.pool == nil {
		return nil
	}
	defer s.pool.Close()
	_, err := s.pool.Exec(ctx, "DROP SCHEMA IF EXISTS "+s.run+" CASCADE")
	return err
}

type riverWorker struct {
	river.WorkerDefaults[sendArgs]
	send  *sender
	limit bucket
}

// Work sends one job.
func (w *riverWorker) Work(ctx context.Context, j *river.Job[sendArgs]) error {
	err := token(ctx, w.limit, job(j.Args))
	if err == nil {
		err = w.send.send(ctx, job(j.Args))
	}
	if t := (*throttled)(nil); errors.As(err, &t) {
		return river.JobSnooze(t.after)
	}
	return err
}

func workRiver(ctx context.Context, cfg workerConfig) error {
	pc, err := pgxpool.ParseConfig(cfg.Postgres)
	if err != nil {
		return err
	}
	pc.MaxConns = 16 // as a rail of Carril's has
	pool, err := pgxpool.NewWithConfig(ctx, pc)
	if err != nil {
		return err
	}
	defer pool.Close()
	limit, done, err := bucketFor(cfg)
	if err != nil {
		return err
	}
	defer done()
	workers := river.NewWorkers()
	river.AddWorker(workers, &riverWorker{send: newSender(cfg.Provider, cfg.Workers), limit: limit})
	client, err := river.NewClient(riverpgxv5.New(pool), &river.Config{
		Schema:  cfg.Run,
		Workers: workers,
		Queues:  map[string]river.QueueConfig{"codes": {MaxWorkers: burstOf}, "blast": {MaxWorkers: cfg.Workers}},
		// A second by default, which would be the latency of what was snoozed.
		FetchPollInterval: 100 * time.Millisecond,
		FetchCooldown:     20 * time.Millisecond,
		// An hour by default, which is how long a killed worker's jobs would stay.
		JobTimeout:           30 * time.Second,
		RescueStuckJobsAfter: 31 * time.Second,
		Logger:               slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn})),
	})
	if err != nil {
		return err
	}
	if err := client.Start(context.WithoutCancel(ctx)); err != nil {
		return err
	}
	sayReady()
	<-ctx.Done()
	sctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	return client.StopAndCancel(sctx)
}
