// Package ratelimit owns the one script that hands out tokens: two GCRA buckets
// on Redis's own clock, both or neither, with an order among those who wait
// (FS-MSG-0005 §3). It knows no configuration and keeps nothing between calls:
// the rails' limiter (dispatcher/bucket) and the API's give it rates and keys,
// and decide what happens while Redis is away.
package ratelimit

import (
	"context"
	_ "embed"
	"fmt"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"
)

//go:embed buckets.lua
var source string

// Bucket is a rate and its burst. The zero value is no bucket: it grants all.
type Bucket struct {
	Capacity float64 // tokens that may go at once; at least 1
	Rate     float64 // tokens a second
}

// Mode says how an ask stands to the others.
type Mode string

// The modes of an ask.
const (
	Transactional Mode = "transactional" // waits in the order of who was served least recently
	Marketing     Mode = "marketing"     // gets nothing while anybody transactional waits, and else waits in an order of its own
	Renew         Mode = "renew"         // transactional whose last token came to nothing: its turn is the next
	Plain         Mode = "plain"         // buckets only: the API's limiter
)

// Reason says why an ask was refused, or that it was granted; the set is closed.
type Reason string

// The reasons.
const (
	Granted  Reason = "granted"
	Tenant   Reason = "tenant"   // the tenant's own bucket is empty
	Provider Reason = "provider" // the provider's bucket is empty
	Blocked  Reason = "blocked"  // the provider asked for a pause
	Waiter   Reason = "waiter"   // somebody else's turn
	Quota    Reason = "quota"    // marketing may not touch what is left of the day's or month's quota
)

// Reasons lists every reason, for metrics that pre-initialise their labels.
func Reasons() []Reason { return []Reason{Granted, Tenant, Provider, Blocked, Waiter, Quota} }

// Keys are the script's keys; all of one call carry the same hash tag.
type Keys struct {
	Provider, Tenant, Waiters, Served, Askers string
}

// Ask wants between Least and Cost tokens.
type Ask struct {
	Keys  Keys
	Mode  Mode
	Cost  int // at most this many tokens; 0 is 1
	Least int // and no fewer than this; 0 is Cost
	// Whole wants all of Cost or nothing (Least is then Cost). A bucket that can
	// never hold so many grants them once it is half full, and goes into debt.
	Whole    bool
	Depth    int // tokens that a bucket may be in debt; 0 for asks that are never Whole
	Provider Bucket
	Tenant   Bucket // zero: none
	TenantID string // no colon
	Asker    string // the process and rail that asks; one ask a tenant at a time
	Messages int    // charged to the quotas
	Quota    QuotaLimits
}

// QuotaLimits bound messages by UTC day and month; a zero limit is none.
type QuotaLimits struct {
	Day, Month int
	Reserve    float64   // share that marketing leaves to transactional, 0 to 1
	Now        time.Time // only its date is used
}

// Answer is what the script decided, at the server's time.
type Answer struct {
	Granted int
	Reason  Reason
	Wait    time.Duration // when to ask again; 0 when granted
	At      time.Time     // the server's clock; goes back with a Report
	Factor  float64       // of the provider's rate, 1 unless it was throttled lately
	Askers  int           // transactional askers seen within 30 s; 0 in other modes

	ProviderDebt time.Duration // until the provider's bucket is full again, after this ask; 0 where it was not reached
	TenantDebt   time.Duration // the same of the tenant's
}

// Report is what a provider's answer said of its limits.
type Report struct {
	Keys      Keys
	Throttled bool          // it refused for rate or quota
	Quota     bool          // … for a quota: the rate is not to blame
	GrantedAt time.Time     // Answer.At of the request; zero when unknown
	RetryIn   time.Duration // clamped by the caller; the script allows at most 15 min
	DayUsed   int           // -1 when not stated
	MonthUsed int
	Now       time.Time
}

// Script runs on any Redis of 6.2 or later, or what behaves like one.
type Script struct{ script *redis.Script }

// New compiles the script.
func New() *Script { return &Script{script: redis.NewScript(source)} }

// Take asks for tokens.
func (s *Script) Take(ctx context.Context, rdb redis.Scripter, a Ask) (Answer, error) {
	cost := max(a.Cost, 1)
	least := a.Least
	if least <= 0 || a.Whole {
		least = cost
	}
	day, month := period(a.Quota.Now)
	vals, err := s.script.Run(ctx, rdb, a.Keys.list(), "take", string(a.Mode), cost, least,
		f(a.Provider.Capacity), f(a.Provider.Rate), f(a.Tenant.Capacity), f(a.Tenant.Rate),
		a.TenantID, a.Asker, a.Messages, day, a.Quota.Day, month, a.Quota.Month, f(a.Quota.Reserve), a.Depth, a.Whole).StringSlice()
	if err != nil {
		return Answer{}, fmt.Errorf("ask the buckets: %w", err)
	}
	return readAnswer(vals)
}

// Seen keeps an asker among those that share the rate while Redis is away.
func (s *Script) Seen(ctx context.Context, rdb redis.Scripter, keys Keys, asker string) (Answer, error) {
	vals, err := s.script.Run(ctx, rdb, keys.list(), "take", "seen", 1, 1, "1", "1", "0", "0", "", asker, 0, 0, 0, 0, 0, "0").StringSlice()
	if err != nil {
		return Answer{}, fmt.Errorf("tell the buckets of asker: %w", err)
	}
	return readAnswer(vals)
}

// Report tells the buckets what a provider said.
func (s *Script) Report(ctx context.Context, rdb redis.Scripter, r Report) error {
	kind := "limits"
	switch {
	case r.Throttled && r.Quota:
		kind = "quota"
	case r.Throttled:
		kind = "rate"
	}
	granted := int64(0)
	if !r.GrantedAt.IsZero() {
		granted = r.GrantedAt.UnixMicro()
	}
	day, month := period(r.Now)
	err := s.script.Run(ctx, rdb, r.Keys.list(), "report", kind, granted, r.RetryIn.Microseconds(),
		day, r.DayUsed, month, r.MonthUsed).Err()
	if err != nil {
		return fmt.Errorf("report to the buckets: %w", err)
	}
	return nil
}

// Levels is what stands in a provider's bucket.
type Levels struct {
	Factor    float64       // of the rate
	Blocked   time.Duration // the provider asked for a pause: what is left of it
	NextToken time.Duration // at capacity 1: until the next token is there
	DayUsed   int           // messages of the day's quota, as last known
	MonthUsed int
	Waiters   []string // tenant:asker of every transactional ask that waits for the provider
}

// Levels reads a provider's bucket without taking from it.
func (s *Script) Levels(ctx context.Context, rdb redis.Scripter, keys Keys, now time.Time) (Levels, error) {
	vals, err := s.script.Run(ctx, rdb, keys.list(), "levels").StringSlice()
	if err != nil {
		return Levels{}, fmt.Errorf("read the buckets: %w", err)
	}
	if len(vals) < 8 {
		return Levels{}, fmt.Errorf("the buckets answered %d values", len(vals))
	}
	var n [8]float64
	for i := range n {
		if n[i], err = strconv.ParseFloat(vals[i], 64); err != nil {
			return Levels{}, fmt.Errorf("read the buckets: %w", err)
		}
	}
	l := Levels{Blocked: time.Duration(n[1]) * time.Microsecond, Factor: n[2], NextToken: time.Duration(n[3]) * time.Microsecond, Waiters: vals[8:]}
	day, month := period(now)
	if int64(n[6]) >= day {
		l.DayUsed = int(n[4])
	}
	if int64(n[7]) >= month {
		l.MonthUsed = int(n[5])
	}
	return l, nil
}

// list gives marketing an order of its own, beside that of the codes.
func (k Keys) list() []string {
	return []string{k.Provider, k.Tenant, k.Waiters, k.Served, k.Askers, k.Waiters + ":marketing", k.Served + ":marketing"}
}

// period numbers the UTC day and month of an instant, growing with time.
func period(now time.Time) (day, month int64) {
	if now.IsZero() {
		return 0, 0
	}
	u := now.UTC()
	return u.Unix() / 86_400, int64(u.Year())*12 + int64(u.Month())
}

func f(v float64) string { return strconv.FormatFloat(v, 'g', -1, 64) }

func readAnswer(vals []string) (Answer, error) {
	if len(vals) != 8 {
		return Answer{}, fmt.Errorf("the buckets answered %d values", len(vals))
	}
	granted, err1 := strconv.Atoi(vals[0])
	wait, err2 := strconv.ParseInt(vals[2], 10, 64)
	at, err3 := strconv.ParseInt(vals[3], 10, 64)
	factor, err4 := strconv.ParseFloat(vals[4], 64)
	askers, err5 := strconv.Atoi(vals[5])
	debt, err6 := strconv.ParseInt(vals[6], 10, 64)
	tenantDebt, err7 := strconv.ParseInt(vals[7], 10, 64)
	for _, err := range []error{err1, err2, err3, err4, err5, err6, err7} {
		if err != nil {
			return Answer{}, fmt.Errorf("read the buckets' answer: %w", err)
		}
	}
	return Answer{Granted: granted, Reason: Reason(vals[1]), Wait: time.Duration(wait) * time.Microsecond,
		At: time.UnixMicro(at), Factor: factor, Askers: askers,
		ProviderDebt: time.Duration(debt) * time.Microsecond, TenantDebt: time.Duration(tenantDebt) * time.Microsecond}, nil
}

// Open makes a client of the Redis at url that keeps a caller's deadline: one
// that hangs must cost an ask its budget and no more. It does not connect yet.
func Open(url string) (*redis.Client, error) {
	opts, err := redis.ParseURL(url)
	if err != nil {
		return nil, fmt.Errorf("parse the Redis URL: %w", err) // redis.ParseURL quotes no password
	}
	opts.ContextTimeoutEnabled = true
	opts.MaxRetries = -1
	opts.DialTimeout = time.Second
	opts.ReadTimeout, opts.WriteTimeout = time.Second, time.Second
	return redis.NewClient(opts), nil
}
