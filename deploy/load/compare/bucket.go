package main

import (
	"context"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"
	"golang.org/x/time/rate"

	"github.com/softcrum/carril/internal/pause"
)

// bucket lets one request through each interval.
type bucket interface {
	// wait takes the next place in line, and returns when it has come.
	wait(ctx context.Context) error
	// allow takes a place that is free now, or none.
	allow(ctx context.Context) (bool, error)
}

// ownBucket is a process's share of the rate, in its memory.
type ownBucket struct{ limit *rate.Limiter }

func newOwnBucket(cfg workerConfig) bucket {
	return ownBucket{rate.NewLimiter(rate.Limit(cfg.Rate/float64(cfg.Processes)), 1)}
}

func (b ownBucket) wait(ctx context.Context) error      { return b.limit.Wait(ctx) }
func (b ownBucket) allow(context.Context) (bool, error) { return b.limit.Allow(), nil }

// sharedBucket is one of all processes, on the clock of Redis.
type sharedBucket struct {
	redis    *redis.Client
	key      string
	interval float64 // milliseconds
	take     *redis.Script
}

func newSharedBucket(rd *redis.Client, cfg workerConfig) bucket {
	return sharedBucket{rd, bucketKey(cfg.Run), 1000 / cfg.Rate, redis.NewScript(`
local t = redis.call('TIME')
local now = t[1] * 1000 + t[2] / 1000
local at = math.max(now, tonumber(redis.call('GET', KEYS[1]) or 0))
if ARGV[2] == 'now' and at > now then return '-1' end
redis.call('SET', KEYS[1], string.format('%.3f', at + ARGV[1]), 'EX', 600)
return tostring(at - now)`)}
}

func bucketKey(run string) string { return run + ":bucket" }

func (b sharedBucket) wait(ctx context.Context) error {
	ms, err := b.ask(ctx, "next")
	if err != nil {
		return err
	}
	pause.For(ctx, time.Duration(ms*float64(time.Millisecond)))
	return ctx.Err()
}

func (b sharedBucket) allow(ctx context.Context) (bool, error) {
	ms, err := b.ask(ctx, "now")
	return ms >= 0, err
}

// ask gives how many milliseconds away the place is that was taken; less than
// zero when none was.
func (b sharedBucket) ask(ctx context.Context, which string) (float64, error) {
	text, err := b.take.Run(ctx, b.redis, []string{b.key}, b.interval, which).Text()
	if err != nil {
		return 0, err
	}
	return strconv.ParseFloat(text, 64)
}

// bucketFor is the bucket that a worker of asynq or River is to ask.
func bucketFor(cfg workerConfig) (bucket, func(), error) {
	if !cfg.Shared {
		return newOwnBucket(cfg), func() {}, nil
	}
	opt, err := redis.ParseURL(cfg.Redis)
	if err != nil {
		return nil, nil, err
	}
	opt.PoolSize = cfg.Workers + 4
	rd := redis.NewClient(opt)
	return newSharedBucket(rd, cfg), func() { _ = rd.Close() }, nil
}
