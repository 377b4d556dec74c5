package main

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/softcrum/carril/internal/pause"
)

// fifoSystem is what one writes in an afternoon: one list in Redis for
// everything, workers that take from its end, and one token bucket before the
// provider. What a worker has in hand stands in a list of its process, and goes
// back to the front when that starts again.
type fifoSystem struct {
	o        options
	provider string
	run      string
	redis    *redis.Client
}

func runName() string {
	b := make([]byte, 5)
	_, _ = rand.Read(b) // never fails
	return "compare_" + hex.EncodeToString(b)
}

func newFIFO(o options, provider string) (*fifoSystem, error) {
	opt, err := redis.ParseURL(o.Redis)
	if err != nil {
		return nil, fmt.Errorf("redis: %w", err)
	}
	return &fifoSystem{o: o, provider: provider, run: runName(), redis: redis.NewClient(opt)}, nil
}

func (s *fifoSystem) prepare(ctx context.Context) error { return s.redis.Ping(ctx).Err() }

func (s *fifoSystem) worker(ctx context.Context, i int) (*process, error) {
	return s.o.worker(ctx, workerConfig{System: "fifo", Provider: s.provider, Run: s.run, Index: i})
}

func (s *fifoSystem) push(ctx context.Context, j job) error {
	raw, err := json.Marshal(j)
	if err != nil {
		return err
	}
	return s.redis.LPush(ctx, s.run+":queue", raw).Err()
}

func (s *fifoSystem) code(ctx context.Context, n int) error { return s.push(ctx, codeJob(s.run, n)) }

func (s *fifoSystem) blast(ctx context.Context) error {
	for _, j := range batches(s.run, s.o.Profile.Blast) {
		if err := s.push(ctx, j); err != nil {
			return err
		}
	}
	return nil
}

func (s *fifoSystem) close(ctx context.Context) error {
	keys := []string{s.run + ":queue", bucketKey(s.run)}
	for i := range s.o.Profile.Processes {
		keys = append(keys, inHand(s.run, i))
	}
	return errors.Join(s.redis.Del(ctx, keys...).Err(), s.redis.Close())
}

func inHand(run string, i int) string { return run + ":hand:" + strconv.Itoa(i) }

func workFIFO(ctx context.Context, cfg workerConfig) error {
	opt, err := redis.ParseURL(cfg.Redis)
	if err != nil {
		return err
	}
	opt.PoolSize = cfg.Workers + 4
	rd := redis.NewClient(opt)
	defer rd.Close()
	queue, hand := cfg.Run+":queue", inHand(cfg.Run, cfg.Index)
	for { // what an earlier life of this process had in hand is next
		if err := rd.LMove(ctx, hand, queue, "LEFT", "RIGHT").Err(); errors.Is(err, redis.Nil) {
			break
		} else if err != nil {
			return err
		}
	}
	send, limit := newSender(cfg.Provider, cfg.Workers), newSharedBucket(rd, cfg)
	var all sync.WaitGroup
	for range cfg.Workers {
		all.Go(func() {
			for ctx.Err() == nil {
				raw, err := rd.BLMove(ctx, queue, hand, "RIGHT", "LEFT", time.Second).Result()
				var j job
				if err != nil || json.Unmarshal([]byte(raw), &j) != nil {
					continue // none came
				}
				for ctx.Err() == nil {
					if sendNext(ctx, limit, send, j) == nil {
						_ = rd.LRem(ctx, hand, 1, raw).Err()
						break
					}
				}
			}
		})
	}
	sayReady()
	all.Wait()
	return nil
}

func sendNext(ctx context.Context, limit bucket, send *sender, j job) error {
	err := limit.wait(ctx)
	if err == nil {
		err = send.send(ctx, j)
	}
	if t := (*throttled)(nil); errors.As(err, &t) {
		pause.For(ctx, t.after)
	} else if err != nil {
		pause.For(ctx, time.Second)
	}
	return err
}
