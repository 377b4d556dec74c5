package rules

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/softcrum/carril/internal/rule"
)

// Cache holds the compiled rules of each tenant by event name. It reads a
// tenant's rules again after Life, or when Forget is called because the
// configuration changed. Its pool must not be the one whose transactions wait
// for it.
type Cache struct {
	pool *pgxpool.Pool
	life time.Duration
	log  *slog.Logger
	mu   sync.Mutex
	have map[uuid.UUID]tenantRules
}

type tenantRules struct {
	byName map[string][]rule.Versions
	until  time.Time
}

// NewCache makes a cache whose entries are read again after life (default 2 s).
func NewCache(pool *pgxpool.Pool, life time.Duration, log *slog.Logger) *Cache {
	if life == 0 {
		life = 2 * time.Second
	}
	return &Cache{pool: pool, life: life, log: log, have: map[uuid.UUID]tenantRules{}}
}

// Forget makes the next use read every tenant again.
func (c *Cache) Forget() {
	c.mu.Lock()
	clear(c.have)
	c.mu.Unlock()
}

// of gives a tenant's rules that any of their versions makes about an event.
func (c *Cache) of(ctx context.Context, tenant uuid.UUID, event string) ([]rule.Versions, error) {
	c.mu.Lock()
	t, ok := c.have[tenant]
	c.mu.Unlock()
	if ok && time.Now().Before(t.until) {
		return t.byName[event], nil
	}
	byName, err := c.load(ctx, tenant)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	c.have[tenant] = tenantRules{byName, time.Now().Add(c.life)}
	c.mu.Unlock()
	return byName[event], nil
}

// load reads and compiles a tenant's rules. A version that does not compile (it
// was written past the checks) is left out and logged.
func (c *Cache) load(ctx context.Context, tenant uuid.UUID) (map[string][]rule.Versions, error) {
	rows, err := rule.Judging(ctx, c.pool, tenant)
	if err != nil {
		return nil, err
	}
	byName := map[string][]rule.Versions{}
	for len(rows) > 0 {
		n := 1
		for n < len(rows) && rows[n].ID == rows[0].ID {
			n++
		}
		versions := c.compile(tenant, rows[:n])
		names := map[string]bool{}
		for _, r := range versions {
			if !names[r.EventName] {
				names[r.EventName] = true
				byName[r.EventName] = append(byName[r.EventName], versions)
			}
		}
		rows = rows[n:]
	}
	return byName, nil
}

// compile compiles the versions of one rule that can still judge an event: none
// of a rule that is off, and none behind one that judges for all time.
func (c *Cache) compile(tenant uuid.UUID, rows []*rule.Rule) rule.Versions {
	if !rows[0].Enabled {
		return nil
	}
	var versions rule.Versions
	for i, r := range rows {
		compiled, err := rule.Compile(*r)
		if err != nil {
			c.log.Error("rule left out", "tenant_id", tenant, "rule_id", r.ID, "version", r.Version, "error", err)
			if i == 0 { // an older version is not what the tenant wants now
				return nil
			}
			continue
		}
		versions = append(versions, compiled)
		if r.ValidFrom == nil && r.ValidUntil == nil {
			break
		}
	}
	return versions
}
