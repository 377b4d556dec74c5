package bucket

import (
	"context"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/softcrum/carril/internal/ratelimit"
)

// configChannel is where a change of messaging.rate_limit_buckets is announced.
const configChannel = "carril_config"

// limits is messaging.rate_limit_buckets in memory. It is never changed, only
// replaced.
type limits struct {
	providers map[string]Row
	tenants   map[tenantKey]ratelimit.Bucket
}

// tenantKey names a tenant's bucket; the nil tenant is everybody's default, the
// empty rail is both rails'.
type tenantKey struct {
	provider string
	tenant   uuid.UUID
	rail     string
}

// Rates gives the buckets of an ask: the provider's as configured, else one
// request at 90 % of its stated rate; the tenant's by the most particular row,
// else none.
func (l *Limiter) Rates(provider string, tenant uuid.UUID, rail string) (global, own ratelimit.Bucket) {
	lim := l.limits.Load()
	r, ok := lim.providers[provider]
	if !ok {
		r = Default(provider, l.cfg.Providers[provider])
	}
	for _, k := range []tenantKey{{provider, tenant, rail}, {provider, tenant, ""}, {provider, uuid.Nil, rail}, {provider, uuid.Nil, ""}} {
		if b, ok := lim.tenants[k]; ok {
			return r.Bucket, b
		}
	}
	return r.Bucket, ratelimit.Bucket{}
}

// Quotas are a provider's account's limits in messages, and what share of them
// marketing leaves to transactional.
type Quotas struct {
	Day, Month int // 0: none
	Reserve    float64
}

// Quotas gives a provider's quotas: as its row says, else as it is stated.
func (l *Limiter) Quotas(provider string) Quotas {
	stated, r := l.cfg.Providers[provider], l.limits.Load().providers[provider]
	q := Quotas{Day: stated.DayQuota, Month: stated.MonthQuota, Reserve: *l.cfg.Reserve}
	if r.DayQuota != nil {
		q.Day = *r.DayQuota
	}
	if r.MonthQuota != nil {
		q.Month = *r.MonthQuota
	}
	if r.Reserve != nil {
		q.Reserve = *r.Reserve
	}
	return q
}

// Load reads the configuration once.
func (l *Limiter) Load(ctx context.Context) error {
	if l.deps.Pool == nil {
		return nil
	}
	rows, err := List(ctx, l.deps.Pool)
	if err != nil {
		return err
	}
	lim := &limits{providers: map[string]Row{}, tenants: map[tenantKey]ratelimit.Bucket{}}
	for _, r := range rows {
		k := tenantKey{provider: r.Provider, rail: r.Rail}
		switch {
		case r.Scope == ScopeGlobal && r.Rail == "": // there is one account, whichever rail asks
			lim.providers[r.Provider] = r
		case r.Scope == ScopeTenant && r.Tenant != nil:
			k.tenant = *r.Tenant
			fallthrough
		case r.Scope == ScopeTenant:
			lim.tenants[k] = r.Bucket
		}
	}
	l.limits.Store(lim)
	return nil
}

// Run keeps the configuration fresh, this process among the askers and the quotas'
// metrics true until ctx ends. What it cannot read stays as it was.
func (l *Limiter) Run(ctx context.Context) error {
	var conn *pgxpool.Conn
	defer func() { hangUp(conn) }()
	failed := false
	for ctx.Err() == nil {
		if conn == nil { // before the load: a change between the two would go unheard
			conn = l.listen(ctx)
		}
		err := l.Load(ctx)
		if err != nil && !failed && ctx.Err() == nil {
			l.deps.Log.Warn("the buckets keep their last configuration", "error", err)
		}
		failed = err != nil
		_ = l.seen(ctx) // said already by whoever noticed first
		l.measure(ctx)
		if !l.waitForChange(ctx, conn) {
			hangUp(conn)
			conn = nil
		}
	}
	return ctx.Err()
}

// listen gives a connection that hears of changes; nil where there is none.
func (l *Limiter) listen(ctx context.Context) *pgxpool.Conn {
	if l.deps.Listen == nil {
		return nil
	}
	lctx, cancel := context.WithTimeout(ctx, l.cfg.Refresh)
	defer cancel()
	conn, err := l.deps.Listen.Acquire(lctx)
	if err != nil {
		return nil
	}
	if _, err := conn.Exec(lctx, "LISTEN "+configChannel); err != nil {
		hangUp(conn)
		return nil
	}
	return conn
}

// hangUp closes a listening connection: back in the pool it would go on
// listening.
func hangUp(conn *pgxpool.Conn) {
	if conn == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = conn.Conn().Close(ctx)
	conn.Release()
}

// waitForChange returns at a notice, and after Refresh at the latest; false
// means that the connection is no good.
func (l *Limiter) waitForChange(ctx context.Context, conn *pgxpool.Conn) bool {
	wctx, cancel := context.WithTimeout(ctx, l.cfg.Refresh)
	defer cancel()
	if conn == nil {
		<-wctx.Done()
		return true
	}
	_, err := conn.Conn().WaitForNotification(wctx)
	if err != nil && wctx.Err() == nil {
		t := time.NewTimer(min(time.Second, l.cfg.Refresh))
		defer t.Stop()
		select {
		case <-ctx.Done():
		case <-t.C:
		}
	}
	return err == nil || wctx.Err() != nil && !conn.Conn().IsClosed()
}
