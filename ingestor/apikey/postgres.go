package apikey

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// DB is the part of a pgx pool that the keys need.
type DB interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// Postgres keeps keys in core.api_keys.
type Postgres struct{ db DB }

// NewPostgres makes a store over a pool.
func NewPostgres(db DB) *Postgres { return &Postgres{db} }

const lookupKey = `
SELECT k.key_id, k.env, k.tenant_id, k.scopes, k.secret_hash, k.expires_at, k.revoked_at,
       coalesce(k.events_per_second, 0), coalesce(k.events_burst, 0),
       coalesce(t.slug, ''), coalesce(t.cell_id, ''), coalesce(t.plan_id, ''),
       coalesce(p.retention_months, 0), coalesce(p.events_per_second, 0), coalesce(p.events_burst, 0),
       coalesce(t.clock_policy = 'clamp', false), t.disabled_at IS NOT NULL
FROM core.api_keys k
LEFT JOIN core.tenants t USING (tenant_id)
LEFT JOIN core.plans p USING (plan_id)
WHERE k.key_id = $1`

// Lookup reads a key with its tenant's settings.
func (s *Postgres) Lookup(ctx context.Context, keyID string) (Record, error) {
	var r Record
	var tenant *uuid.UUID
	var hash []byte
	var expires, revoked *time.Time
	err := s.db.QueryRow(ctx, lookupKey, keyID).Scan(&r.KeyID, &r.Env, &tenant, &r.Scopes, &hash, &expires, &revoked,
		&r.Rate.PerSecond, &r.Rate.Burst,
		&r.Tenant.Slug, &r.Tenant.CellID, &r.Tenant.PlanID, &r.Tenant.RetentionMonths, &r.Tenant.EventsPerSecond, &r.Tenant.EventsBurst,
		&r.Tenant.Clamp, &r.Tenant.Disabled)
	if errors.Is(err, pgx.ErrNoRows) {
		return Record{}, ErrNoKey
	}
	if err != nil {
		return Record{}, fmt.Errorf("look up an api key: %w", err)
	}
	copy(r.Hash[:], hash)
	if tenant != nil {
		r.TenantID = *tenant
	}
	if expires != nil {
		r.ExpiresAt = *expires
	}
	if revoked != nil {
		r.RevokedAt = *revoked
	}
	return r, nil
}

// Rows that another replica is writing are left to it: two of them taking the
// same keys in another order would end in a deadlock.
const touchKeys = `
UPDATE core.api_keys k SET last_used_at = greatest(k.last_used_at, u.at)
FROM (SELECT unnest($1::text[]) AS key_id, unnest($2::timestamptz[]) AS at) u
WHERE k.key_id = u.key_id AND k.key_id IN (
    SELECT key_id FROM core.api_keys WHERE key_id = ANY($1) ORDER BY key_id FOR NO KEY UPDATE SKIP LOCKED)`

// Touch notes when keys were last used.
func (s *Postgres) Touch(ctx context.Context, used map[string]time.Time) error {
	keys := slices.Sorted(maps.Keys(used))
	at := make([]time.Time, len(keys))
	for i, id := range keys {
		at[i] = used[id]
	}
	if _, err := s.db.Exec(ctx, touchKeys, keys, at); err != nil {
		return fmt.Errorf("note the last use of api keys: %w", err)
	}
	return nil
}

// New says what key to make.
type New struct {
	TenantID  uuid.UUID // uuid.Nil: an operator's
	Env       string    // see Key
	Scopes    []string  // at least one
	Name      string    // for people
	ExpiresAt time.Time // zero: never
	Rate      Rate      // a limit of its own beside the plan's; zero: none. A burst of 0 is two seconds of the rate
}

// Create makes a key and returns its text, which nobody can read again.
func (s *Postgres) Create(ctx context.Context, n New) (text string, k Key, err error) {
	if len(n.Scopes) == 0 {
		return "", Key{}, errors.New("create an api key: it needs at least one scope")
	}
	if n.Rate.PerSecond < 0 || n.Rate.Burst < 0 || n.Rate.PerSecond == 0 && n.Rate.Burst > 0 {
		return "", Key{}, errors.New("create an api key: a limit is a positive rate, with or without a burst")
	}
	if n.Rate.Burst == 0 {
		n.Rate.Burst = 2 * n.Rate.PerSecond
	}
	text, k, err = Generate(n.Env)
	if err != nil {
		return "", Key{}, err
	}
	_, err = s.db.Exec(ctx, `INSERT INTO core.api_keys (key_id, tenant_id, secret_hash, scopes, name, env, expires_at, events_per_second, events_burst)
VALUES ($1, nullif($2, '00000000-0000-0000-0000-000000000000'::uuid), $3, $4, $5, $6, $7, nullif($8, 0), nullif($9, 0))`,
		k.ID, n.TenantID, k.Hash[:], n.Scopes, n.Name, n.Env, orNull(n.ExpiresAt), n.Rate.PerSecond, n.Rate.Burst)
	if err != nil {
		return "", Key{}, fmt.Errorf("create an api key: %w", err)
	}
	return text, k, nil
}

func orNull(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}

// Listed is what may be known of a key that nobody can read again.
type Listed struct {
	ID         string     `json:"key_id"`
	Name       string     `json:"name"`
	Env        string     `json:"env"`
	Scopes     []string   `json:"scopes"`
	PerSecond  *int       `json:"events_per_second"` // a limit of its own; nil: the plan's alone
	Burst      *int       `json:"events_burst"`
	CreatedAt  time.Time  `json:"created_at"`
	ExpiresAt  *time.Time `json:"expires_at"`
	RevokedAt  *time.Time `json:"revoked_at"`
	LastUsedAt *time.Time `json:"last_used_at"` // to the minute, as Config.Touch has it
}

// Ends is when the key ceased to work, or will; nil: it works until it is revoked.
func (k *Listed) Ends() *time.Time {
	if k.RevokedAt != nil && (k.ExpiresAt == nil || k.RevokedAt.Before(*k.ExpiresAt)) {
		return k.RevokedAt
	}
	return k.ExpiresAt
}

// State is live, revoked or expired at a time.
func (k *Listed) State(at time.Time) string {
	switch {
	case k.RevokedAt != nil:
		return "revoked"
	case k.ExpiresAt != nil && !k.ExpiresAt.After(at):
		return "expired"
	}
	return "live"
}

// List reads a tenant's keys, the oldest first; uuid.Nil: operators'. Those that have
// ended are left out unless they are asked for.
func (s *Postgres) List(ctx context.Context, tenant uuid.UUID, ended bool) ([]Listed, error) {
	rows, err := s.db.Query(ctx, `SELECT key_id, name, env, scopes, events_per_second, events_burst, created_at, expires_at, revoked_at, last_used_at
FROM core.api_keys WHERE tenant_id IS NOT DISTINCT FROM nullif($1, '00000000-0000-0000-0000-000000000000'::uuid)
    AND ($2 OR revoked_at IS NULL AND (expires_at IS NULL OR expires_at > now())) ORDER BY created_at, key_id`, tenant, ended)
	if err != nil {
		return nil, fmt.Errorf("list api keys: %w", err)
	}
	keys, err := pgx.CollectRows(rows, pgx.RowToStructByPos[Listed])
	if err != nil {
		return nil, fmt.Errorf("list api keys: %w", err)
	}
	return keys, nil
}

// Revoke ends a key for good; replicas that listen forget it at once. Revoking
// one that is revoked changes nothing. The error is ErrNoKey for an unknown id.
func (s *Postgres) Revoke(ctx context.Context, keyID string) error {
	tag, err := s.db.Exec(ctx, `UPDATE core.api_keys SET revoked_at = coalesce(revoked_at, now()) WHERE key_id = $1`, keyID)
	if err != nil {
		return fmt.Errorf("revoke api key %s: %w", keyID, err)
	}
	if tag.RowsAffected() == 0 {
		return fmt.Errorf("revoke api key %s: %w", keyID, ErrNoKey)
	}
	return nil
}

// A new key has the life that the old one had from its making, and all else of
// it. The old one ends with the overlap, or before when it was to.
const rotateKey = `
WITH old AS MATERIALIZED (
    SELECT * FROM core.api_keys WHERE key_id = $1 AND revoked_at IS NULL AND (expires_at IS NULL OR expires_at > now()) FOR UPDATE
), ending AS (
    UPDATE core.api_keys k SET expires_at = least(k.expires_at, now() + $4::interval) FROM old WHERE k.key_id = old.key_id
)
INSERT INTO core.api_keys (key_id, tenant_id, secret_hash, scopes, name, env, expires_at, events_per_second, events_burst)
SELECT $2, tenant_id, $3, scopes, name, env, now() + (expires_at - created_at), events_per_second, events_burst FROM old`

// Rotate makes a key that can do what another can, and ends that one after the
// overlap: both work meanwhile, so that nobody is cut off while the new one is
// brought to where it is used. The error is ErrNoKey for a key that is unknown,
// expired or revoked.
func (s *Postgres) Rotate(ctx context.Context, keyID string, overlap time.Duration) (text string, k Key, err error) {
	old, err := s.Lookup(ctx, keyID)
	if err != nil {
		return "", Key{}, fmt.Errorf("rotate api key %s: %w", keyID, err)
	}
	text, k, err = Generate(old.Env)
	if err != nil {
		return "", Key{}, err
	}
	tag, err := s.db.Exec(ctx, rotateKey, keyID, k.ID, k.Hash[:], overlap)
	if err != nil {
		return "", Key{}, fmt.Errorf("rotate api key %s: %w", keyID, err)
	}
	if tag.RowsAffected() == 0 {
		return "", Key{}, fmt.Errorf("rotate api key %s, which is expired or revoked: %w", keyID, ErrNoKey)
	}
	return text, k, nil
}

// Channel is where the triggers on keys, tenants and plans name the keys that
// changed; a pg.Listener of it is a Notifier.
const Channel = "carril_keys"
