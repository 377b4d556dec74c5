// Package tenants gives the stages what they need to know of a tenant, from a
// small cache: a retention class or a cell changes seldom, and a stage asks for
// every event.
package tenants

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/softcrum/carril/internal/db/processordb"
)

// ErrUnknown says that there is no such tenant.
var ErrUnknown = errors.New("unknown tenant")

// Tenant is what stages need to know.
type Tenant struct {
	ID              uuid.UUID
	CellID          string
	RetentionMonths int16
}

// Cache reads tenants through; entries live for life.
type Cache struct {
	pool *pgxpool.Pool
	life time.Duration
	mu   sync.Mutex
	have map[uuid.UUID]entry
}

type entry struct {
	t       Tenant
	unknown bool
	until   time.Time
}

// maxEntries bounds the cache; beyond it everything is read afresh.
const maxEntries = 100_000

// NewCache makes a cache whose entries are read again after life (default 10 s).
func NewCache(pool *pgxpool.Pool, life time.Duration) *Cache {
	if life == 0 {
		life = 10 * time.Second
	}
	return &Cache{pool: pool, life: life, have: map[uuid.UUID]entry{}}
}

// Get gives a tenant; the error is ErrUnknown where there is none.
func (c *Cache) Get(ctx context.Context, id uuid.UUID) (Tenant, error) {
	c.mu.Lock()
	e, ok := c.have[id]
	c.mu.Unlock()
	if ok && time.Now().Before(e.until) {
		if e.unknown {
			return Tenant{}, ErrUnknown
		}
		return e.t, nil
	}
	e = entry{t: Tenant{ID: id}, until: time.Now().Add(c.life)}
	found, err := processordb.New(c.pool).Tenant(ctx, id)
	e.t.CellID, e.t.RetentionMonths = found.CellID, found.RetentionMonths
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		e.unknown = true
		e.until = time.Now().Add(min(c.life, time.Second)) // it may be made at any moment
	case err != nil:
		return Tenant{}, fmt.Errorf("read a tenant: %w", err)
	}
	c.mu.Lock()
	if len(c.have) >= maxEntries {
		clear(c.have)
	}
	c.have[id] = e
	c.mu.Unlock()
	if e.unknown {
		return Tenant{}, ErrUnknown
	}
	return e.t, nil
}
