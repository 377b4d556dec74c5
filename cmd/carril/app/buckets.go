package app

import (
	"cmp"
	"context"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"

	"github.com/softcrum/carril/dispatcher/blast"
	"github.com/softcrum/carril/dispatcher/bucket"
	"github.com/softcrum/carril/dispatcher/provider/resend"
	"github.com/softcrum/carril/dispatcher/provider/sms"
	"github.com/softcrum/carril/dispatcher/provider/smtp"
	"github.com/softcrum/carril/internal/ids"
	"github.com/softcrum/carril/internal/ratelimit"
)

// Stated is what the settings say of the providers' limits, by name: of all that
// there are, whether a channel uses them or not.
func (s *Settings) Stated() map[string]bucket.Stated {
	return map[string]bucket.Stated{
		resend.Name: {RatePerSecond: cmp.Or(s.ResendRate, 5), DayQuota: s.ResendDayQuota, MonthQuota: s.ResendMonthQuota},
		smtp.Name:   {RatePerSecond: cmp.Or(s.SMTPRate, 5), DayQuota: s.SMTPDayQuota},
		sms.Name:    {RatePerSecond: cmp.Or(s.SMSRate, 10), DayQuota: s.SMSDayQuota},
	}
}

// watching makes a limiter that only looks: it is none of the askers among whom a
// rate is divided while Redis is away.
func (s *Settings) watching(deps bucket.Deps) (*bucket.Limiter, error) {
	return bucket.New(bucket.Config{Prefix: s.RedisPrefix + "carril:", Asker: ids.New().String() + "-watch", Providers: s.Stated(), Reserve: &s.QuotaReserve}, deps)
}

// bucketRedis is the client of the buckets, opened once a process.
func (a *App) bucketRedis() (*redis.Client, error) {
	if a.buckets == nil {
		rdb, err := ratelimit.Open(a.set.RedisURL)
		if err != nil {
			return nil, configError("redis-url", "cannot be used")
		}
		a.stack.OnStop("redis client of the buckets", func() { _ = rdb.Close() })
		a.buckets = rdb
	}
	return a.buckets, nil
}

// levels reads the buckets without asking for tokens.
func (a *App) levels() (*bucket.Limiter, error) {
	if a.watcher != nil {
		return a.watcher, nil
	}
	rdb, err := a.bucketRedis()
	if err != nil {
		return nil, err
	}
	l, err := a.set.watching(bucket.Deps{Redis: rdb, Pool: a.side, Log: a.log})
	if err != nil {
		return nil, err
	}
	a.watcher = l
	a.stack.Go(lifecyclePart("bucket levels", func(ctx context.Context) error {
		for {
			lctx, cancel := context.WithTimeout(ctx, 2*time.Second)
			_ = l.Load(lctx) // what it cannot read stays as it was
			cancel()
			select {
			case <-ctx.Done():
				return nil
			case <-time.After(5 * time.Second):
			}
		}
	}))
	return l, nil
}

// WatchBuckets makes a limiter for a command that looks at the buckets; its
// configuration is not loaded yet. Without a Redis URL it sees what is configured
// and nothing live. done ends its connections.
func WatchBuckets(set Settings, pool *pgxpool.Pool) (l *bucket.Limiter, done func(), err error) {
	deps, done := bucket.Deps{Pool: pool}, func() {}
	if set.RedisURL != "" {
		var rdb *redis.Client
		if rdb, err = ratelimit.Open(set.RedisURL); err != nil {
			return nil, nil, configError("redis-url", "cannot be used")
		}
		deps.Redis, done = rdb, func() { _ = rdb.Close() }
	}
	if l, err = set.watching(deps); err != nil {
		done()
		return nil, nil, err
	}
	return l, done, nil
}

// marketingProvider names the provider that carries a channel's marketing; empty
// where there is none. It is what dispatching.preferred says, for a process that
// is told no provider's secrets.
func (s *Settings) marketingProvider(channel string) string {
	for _, name := range s.providersOf(channel) {
		if name != smtp.Name { // it has no batch endpoint (FS-MSG-0005 §5)
			return name
		}
	}
	return ""
}

// BlastQuotas tells blasts how the quotas of their provider stand.
func BlastQuotas(set Settings, l *bucket.Limiter) func(ctx context.Context, channel string) (*blast.Quotas, error) {
	return func(ctx context.Context, channel string) (*blast.Quotas, error) {
		if err := l.Load(ctx); err != nil { // what an operator has just set counts
			return nil, err
		}
		v, err := l.Levels(ctx, set.marketingProvider(channel))
		q := v.Quotas
		if q.Day == 0 && q.Month == 0 {
			return nil, nil //nolint:nilnil // there are none, whether Redis is there or not
		}
		if err != nil {
			return nil, err
		}
		of := func(limit, used int) *blast.Quota {
			if limit == 0 {
				return nil
			}
			share := q.OfMarketing(limit)
			return &blast.Quota{Limit: int64(limit), Used: int64(used), Reserve: q.Reserve, Left: int64(max(0, share-used)), Share: int64(share)}
		}
		return &blast.Quotas{Day: of(q.Day, v.DayUsed), Month: of(q.Month, v.MonthUsed)}, nil
	}
}
