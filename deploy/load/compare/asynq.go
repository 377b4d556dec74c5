package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/hibiken/asynq"
)

// putBack is how long a job of the blast that found no token stays away, at
// most. The documentation's example says ten seconds, which leaves tokens
// unused.
const putBack = time.Second

// asynqSystem is asynq as its documentation would have it: two queues with
// strict priority, the wiki's rate limit, task ids.
type asynqSystem struct {
	o        options
	provider string
	shared   bool // one bucket of all processes
	run      string
	redis    asynq.RedisConnOpt
	client   *asynq.Client
}

func newAsynq(o options, provider string, shared bool) (*asynqSystem, error) {
	redis, err := asynq.ParseRedisURI(o.Redis)
	if err != nil {
		return nil, fmt.Errorf("redis: %w", err)
	}
	return &asynqSystem{o: o, provider: provider, shared: shared, run: runName(), redis: redis}, nil
}

// Queues are this run's own: asynq has no prefix for its keys.
func codesQueue(run string) string { return "codes-" + run }
func blastQueue(run string) string { return "blast-" + run }

func (s *asynqSystem) prepare(context.Context) error {
	s.client = asynq.NewClient(s.redis)
	return s.client.Ping()
}

func (s *asynqSystem) worker(ctx context.Context, i int) (*process, error) {
	return s.o.worker(ctx, workerConfig{System: "asynq", Provider: s.provider, Run: s.run, Index: i, Shared: s.shared})
}

func (s *asynqSystem) enqueue(ctx context.Context, queue string, j job) error {
	raw, err := json.Marshal(j)
	if err != nil {
		return err
	}
	_, err = s.client.EnqueueContext(ctx, asynq.NewTask("send", raw), asynq.Queue(queue), asynq.TaskID(j.ID), asynq.Timeout(30*time.Second))
	if errors.Is(err, asynq.ErrTaskIDConflict) {
		return nil // it is promised already
	}
	return err
}

func (s *asynqSystem) code(ctx context.Context, n int) error {
	return s.enqueue(ctx, codesQueue(s.run), codeJob(s.run, n))
}

func (s *asynqSystem) blast(ctx context.Context) error {
	for _, j := range batches(s.run, s.o.Profile.Blast) {
		if err := s.enqueue(ctx, blastQueue(s.run), j); err != nil {
			return err
		}
	}
	return nil
}

func (s *asynqSystem) close(context.Context) error {
	if s.client == nil {
		return nil
	}
	i := asynq.NewInspector(s.redis)
	for _, q := range []string{codesQueue(s.run), blastQueue(s.run)} {
		_ = i.DeleteQueue(q, true) // one that nothing came into is not there
	}
	return errors.Join(i.Close(), s.client.Close())
}

func workAsynq(ctx context.Context, cfg workerConfig) error {
	redis, err := asynq.ParseRedisURI(cfg.Redis)
	if err != nil {
		return err
	}
	limit, done, err := bucketFor(cfg)
	if err != nil {
		return err
	}
	defer done()
	send := newSender(cfg.Provider, cfg.Workers)
	limited := func(err error) *throttled {
		var t *throttled
		errors.As(err, &t)
		return t
	}
	server := asynq.NewServer(redis, asynq.Config{
		Concurrency:    cfg.Workers,
		Queues:         map[string]int{codesQueue(cfg.Run): 2, blastQueue(cfg.Run): 1},
		StrictPriority: true,
		IsFailure:      func(err error) bool { return limited(err) == nil },
		RetryDelayFunc: func(n int, err error, t *asynq.Task) time.Duration {
			if l := limited(err); l != nil {
				return l.after
			}
			return asynq.DefaultRetryDelayFunc(n, err, t)
		},
		// Seconds by default, which would be the latency of everything here.
		TaskCheckInterval:        100 * time.Millisecond,
		DelayedTaskCheckInterval: 100 * time.Millisecond,
		LogLevel:                 asynq.WarnLevel,
	})
	if err := server.Start(asynq.HandlerFunc(func(ctx context.Context, t *asynq.Task) error {
		var j job
		if err := json.Unmarshal(t.Payload(), &j); err != nil {
			return fmt.Errorf("%w: %w", asynq.SkipRetry, err)
		}
		if err := token(ctx, limit, j); err != nil {
			return err
		}
		return send.send(ctx, j)
	})); err != nil {
		return err
	}
	sayReady()
	<-ctx.Done()
	server.Shutdown()
	return nil
}

// token takes one for a job: a code waits for it, a batch that finds none goes
// away for a moment, so that it holds no worker.
func token(ctx context.Context, limit bucket, j job) error {
	if j.Code {
		return limit.wait(ctx)
	}
	free, err := limit.allow(ctx)
	if err == nil && !free {
		err = &throttled{rand.N(putBack)}
	}
	return err
}
