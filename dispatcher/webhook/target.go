package webhook

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/softcrum/carril/internal/signature"
)

// target is an endpoint as an attempt needs it.
type target struct {
	usable       bool // it exists and is enabled
	url          string
	header       http.Header
	secrets      []sealedSecret
	failingSince *time.Time
	read         time.Time
}

// targetLife is how long a target is used before it is read again. A change is
// also heard of through Dispatcher.Forget.
const targetLife = 5 * time.Second

// targetCache holds one endpoint's target. While the database is away, the last
// one known is used.
type targetCache struct {
	d        *Dispatcher
	endpoint uuid.UUID

	mu   sync.Mutex
	have *target
	seen int64 // d.changes when it was read

	healthMu sync.Mutex
	noted    time.Time // when a failure was last written to the endpoint
	failing  bool
}

func newTargetCache(d *Dispatcher, endpoint uuid.UUID) *targetCache {
	return &targetCache{d: d, endpoint: endpoint}
}

// errSealed says that secrets or headers do not open under our keys.
var errSealed = errors.New("the endpoint's secrets do not open")

// get gives the target. The error is errSealed or the database's.
func (c *targetCache) get(ctx context.Context) (*target, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	changes := c.d.changes.Load()
	// A disabled one is always read again: it may be enabled by now, and what is
	// cancelled is not taken back.
	if c.have != nil && c.have.usable && c.seen == changes && time.Since(c.have.read) < targetLife {
		return c.have, nil
	}
	t, err := c.read(ctx)
	switch {
	case err == nil:
		c.have, c.seen = t, changes
		c.heard(t.failingSince != nil)
		return t, nil
	case errors.Is(err, errSealed) || c.have == nil || !c.have.usable:
		return nil, err
	}
	return c.have, nil
}

func (c *targetCache) read(ctx context.Context) (*target, error) {
	const sql = `SELECT url, secrets, headers, disabled_at IS NULL, failing_since FROM core.webhook_endpoints WHERE endpoint_id = $1`
	t := &target{read: time.Now()}
	var sealed []byte
	err := c.d.deps.Pool.QueryRow(ctx, sql, c.endpoint).Scan(&t.url, &t.secrets, &sealed, &t.usable, &t.failingSince)
	if errors.Is(err, pgx.ErrNoRows) {
		return t, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read a webhook endpoint: %w", err)
	}
	own, err := openHeaders(c.d.deps.Keys, c.endpoint, sealed)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errSealed, err)
	}
	t.header = http.Header{"Content-Type": {"application/json"}, "User-Agent": {c.d.cfg.UserAgent}}
	for name, value := range own {
		t.header.Set(name, value)
	}
	if _, err := t.sign(c.d.deps.Keys, c.endpoint, "probe", time.Now(), nil); err != nil {
		return nil, fmt.Errorf("%w: %w", errSealed, err)
	}
	return t, nil
}

// sign gives the headers of one attempt.
func (t *target) sign(keys opener, endpoint uuid.UUID, id string, now time.Time, body []byte) (http.Header, error) {
	secrets, err := openSecrets(keys, endpoint, t.secrets, now)
	if err != nil {
		return nil, err
	}
	if len(secrets) == 0 {
		return nil, errors.New("no signing secret is valid")
	}
	h := t.header.Clone()
	h.Set(signature.HeaderID, id)
	h.Set(signature.HeaderTimestamp, fmt.Sprint(now.Unix()))
	h.Set(signature.HeaderSignature, signature.SignAll(secrets, id, now, body))
	return h, nil
}

// health is what a verdict says of the endpoint as a whole, where the table does
// not know it yet.
type health int

const (
	healthKnown health = iota
	healthGood
	healthBad
)

// noteEvery is how often a failing endpoint's record is renewed.
const noteEvery = 10 * time.Minute

func (c *targetCache) health(now time.Time, v verdict) health {
	if !v.asked {
		return healthKnown
	}
	c.healthMu.Lock()
	defer c.healthMu.Unlock()
	switch {
	case v.outcome == delivered && c.failing:
		c.failing, c.noted = false, time.Time{}
		return healthGood
	case v.outcome != delivered && now.Sub(c.noted) >= min(noteEvery, c.d.cfg.DisableAfter/10):
		c.failing, c.noted = true, now
		return healthBad
	}
	return healthKnown
}

func (c *targetCache) heard(failing bool) {
	c.healthMu.Lock()
	c.failing = failing
	c.healthMu.Unlock()
}
