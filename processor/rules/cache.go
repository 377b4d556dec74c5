package rules

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/softcrum/carril/internal/db/processordb"
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
	byName map[string][]*Rule
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

func (c *Cache) rules(ctx context.Context, tenant uuid.UUID, event string) ([]*Rule, error) {
	c.mu.Lock()
	t, ok := c.have[tenant]
	c.mu.Unlock()
	if ok && time.Now().Before(t.until) {
		return t.byName[event], nil
	}
	rules, err := c.load(ctx, tenant)
	if err != nil {
		return nil, err
	}
	t = tenantRules{byName: map[string][]*Rule{}, until: time.Now().Add(c.life)}
	for _, r := range rules {
		t.byName[r.EventName] = append(t.byName[r.EventName], r)
	}
	c.mu.Lock()
	c.have[tenant] = t
	c.mu.Unlock()
	return t.byName[event], nil
}

// load reads the newest version of each enabled rule. One that does not compile
// (it was written past the checks) is left out and logged.
func (c *Cache) load(ctx context.Context, tenant uuid.UUID) ([]*Rule, error) {
	rows, err := processordb.New(c.pool).NewestRules(ctx, tenant)
	if err != nil {
		return nil, fmt.Errorf("read rules: %w", err)
	}
	var out []*Rule
	for _, row := range rows {
		r := Rule{ID: row.RuleID, Version: int(row.Version), EventName: row.EventName, Condition: row.Condition,
			ValidFrom: time.Unix(row.ValidFrom, 0), ValidUntil: time.Unix(row.ValidUntil, 0)}
		if err := json.Unmarshal(row.Actions, &r.Actions); err != nil {
			c.log.Error("rule left out", "tenant_id", tenant, "rule_id", r.ID, "error", err)
			continue
		}
		compiled, err := Compile(r)
		if err != nil {
			c.log.Error("rule left out", "tenant_id", tenant, "rule_id", r.ID, "error", err)
			continue
		}
		out = append(out, compiled)
	}
	return out, nil
}
