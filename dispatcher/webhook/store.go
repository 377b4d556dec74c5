package webhook

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/softcrum/carril/dispatcher/webhook/guard"
	"github.com/softcrum/carril/dispatcher/webhook/seal"
	"github.com/softcrum/carril/internal/ids"
	"github.com/softcrum/carril/internal/signature"
)

// StoreConfig of the endpoints; zero values take the defaults.
type StoreConfig struct {
	MaxPerTenant int           // endpoints; default 50
	Overlap      time.Duration // for which a rotated secret still signs; default 24 h
}

// StoreDeps is what the store works with.
type StoreDeps struct {
	Pool  *pgxpool.Pool
	Guard *guard.Guard
	Keys  *seal.Keys
}

// Store keeps the endpoints of tenants. Everything is scoped to the tenant that
// asks; what belongs to another gives ErrNotFound.
type Store struct {
	cfg  StoreConfig
	deps StoreDeps
}

// maxSecrets bounds how many secrets sign at once, and so a signature's header.
const maxSecrets = 5

// NewStore makes the store.
func NewStore(cfg StoreConfig, deps StoreDeps) *Store {
	setDefault(&cfg.MaxPerTenant, 50)
	setDefault(&cfg.Overlap, 24*time.Hour)
	return &Store{cfg: cfg, deps: deps}
}

// Create makes an endpoint and its signing secret, which is shown this once.
// The error is an *Error or a *guard.Error where the draft is at fault.
func (s *Store) Create(ctx context.Context, tenant uuid.UUID, d Draft) (Endpoint, signature.Secret, error) {
	none := signature.Secret{}
	id, secret := ids.New(), signature.NewSecret()
	w, err := s.check(ctx, id, Change{URL: &d.URL, Description: &d.Description, EventTypes: d.EventTypes, Headers: d.Headers})
	if err == nil && d.EventTypes == nil {
		_, err = subscription(nil)
	}
	if err == nil {
		err = checkDelivery(d.Delivery)
	}
	if err != nil {
		return Endpoint{}, none, err
	}
	secrets := []sealedSecret{{Sealed: s.deps.Keys.Seal(secretOwner(id), []byte(secret.Reveal()))}}
	var e Endpoint
	err = pgx.BeginFunc(ctx, s.deps.Pool, func(tx pgx.Tx) error {
		if err := s.room(ctx, tx, tenant); err != nil {
			return err
		}
		const sql = `INSERT INTO core.webhook_endpoints (endpoint_id, tenant_id, url, description, event_types, secrets, headers)
VALUES ($1, $2, $3, $4, $5, $6, $7) RETURNING ` + endpointColumns
		e, err = s.one(tx.Query(ctx, sql, id, tenant, w.url, w.description, w.types, secrets, w.headers))
		return err
	})
	if err != nil {
		return Endpoint{}, none, fmt.Errorf("create a webhook endpoint: %w", err)
	}
	return e, secret, nil
}

// room locks the tenant, so that two requests at once do not pass the limit.
func (s *Store) room(ctx context.Context, tx pgx.Tx, tenant uuid.UUID) error {
	var n int
	err := tx.QueryRow(ctx, `SELECT 1 FROM core.tenants WHERE tenant_id = $1 FOR NO KEY UPDATE`, tenant).Scan(&n)
	if errors.Is(err, pgx.ErrNoRows) {
		return ErrNotFound
	}
	if err == nil {
		err = tx.QueryRow(ctx, `SELECT count(*) FROM core.webhook_endpoints WHERE tenant_id = $1`, tenant).Scan(&n)
	}
	if err != nil {
		return err
	}
	if n >= s.cfg.MaxPerTenant {
		return refuse("too_many_endpoints", "", fmt.Sprintf("a tenant has at most %d endpoints", s.cfg.MaxPerTenant))
	}
	return nil
}

// checked is a draft or change in the form in which it is stored; what is not
// changed is nil.
type checked struct {
	url, description *string
	types            []string
	headers          []byte // sealed; empty but not nil: none
}

func (s *Store) check(ctx context.Context, id uuid.UUID, c Change) (out checked, err error) {
	if c.URL != nil {
		url, err := s.deps.Guard.Check(ctx, *c.URL)
		if err != nil {
			return out, err
		}
		out.url = &url
	}
	if c.Description != nil {
		if err := checkDescription(*c.Description); err != nil {
			return out, err
		}
		out.description = c.Description
	}
	if c.EventTypes != nil {
		if out.types, err = subscription(c.EventTypes); err != nil {
			return out, err
		}
	}
	if c.Headers != nil {
		out.headers, err = s.sealHeaders(id, c.Headers)
	}
	return out, err
}

func (s *Store) sealHeaders(id uuid.UUID, given map[string]string) ([]byte, error) {
	headers, err := guard.Headers(given)
	if err != nil || len(headers) == 0 {
		return []byte{}, err
	}
	plain, err := json.Marshal(headers)
	if err != nil {
		return nil, fmt.Errorf("write the headers: %w", err)
	}
	return []byte(s.deps.Keys.Seal(headersOwner(id), plain)), nil
}

// Update changes an endpoint. Deliveries that wait go to the new URL.
func (s *Store) Update(ctx context.Context, tenant, id uuid.UUID, c Change) (Endpoint, error) {
	w, err := s.check(ctx, id, c)
	if err != nil {
		return Endpoint{}, err
	}
	const sql = `UPDATE core.webhook_endpoints SET url = coalesce($3, url), description = coalesce($4, description),
    event_types = coalesce($5, event_types), headers = CASE WHEN $6::bytea IS NULL THEN headers ELSE nullif($6, '') END, updated_at = now()
WHERE endpoint_id = $1 AND tenant_id = $2 RETURNING ` + endpointColumns
	return s.changed(ctx, "update", sql, id, tenant, w.url, w.description, w.types, w.headers)
}

// Disable stops an endpoint: what waits for it is cancelled, and events that
// happen until it is enabled make no deliveries.
func (s *Store) Disable(ctx context.Context, tenant, id uuid.UUID) (Endpoint, error) {
	const sql = `UPDATE core.webhook_endpoints SET disabled_at = coalesce(disabled_at, now()),
    disabled_reason = coalesce(disabled_reason, $3), updated_at = now()
WHERE endpoint_id = $1 AND tenant_id = $2 RETURNING ` + endpointColumns
	return s.changed(ctx, "disable", sql, id, tenant, DisabledByTenant)
}

// Enable starts an endpoint again, whoever disabled it, with a clean record.
func (s *Store) Enable(ctx context.Context, tenant, id uuid.UUID) (Endpoint, error) {
	const sql = `UPDATE core.webhook_endpoints SET disabled_at = NULL, disabled_reason = NULL, failing_since = NULL, last_failed_at = NULL,
    updated_at = now()
WHERE endpoint_id = $1 AND tenant_id = $2 RETURNING ` + endpointColumns
	return s.changed(ctx, "enable", sql, id, tenant)
}

// Get gives one endpoint.
func (s *Store) Get(ctx context.Context, tenant, id uuid.UUID) (Endpoint, error) {
	const sql = `SELECT ` + endpointColumns + ` FROM core.webhook_endpoints WHERE endpoint_id = $1 AND tenant_id = $2`
	return s.changed(ctx, "get", sql, id, tenant)
}

// List gives a tenant's endpoints in the order in which they were created, after
// an id (uuid.Nil: from the first), at most limit (1 to 100).
func (s *Store) List(ctx context.Context, tenant, after uuid.UUID, limit int) ([]Endpoint, error) {
	const sql = `SELECT ` + endpointColumns + ` FROM core.webhook_endpoints
WHERE tenant_id = $1 AND endpoint_id > $2 ORDER BY endpoint_id LIMIT $3`
	rows, err := s.deps.Pool.Query(ctx, sql, tenant, after, min(max(limit, 1), 100))
	if err == nil {
		var list []Endpoint
		if list, err = pgx.CollectRows(rows, s.scan); err == nil {
			return list, nil
		}
	}
	return nil, fmt.Errorf("list webhook endpoints: %w", err)
}

// Delete removes an endpoint; what waits for it is cancelled.
func (s *Store) Delete(ctx context.Context, tenant, id uuid.UUID) error {
	tag, err := s.deps.Pool.Exec(ctx, `DELETE FROM core.webhook_endpoints WHERE endpoint_id = $1 AND tenant_id = $2`, id, tenant)
	if err == nil && tag.RowsAffected() == 0 {
		err = ErrNotFound
	}
	if err != nil {
		return fmt.Errorf("delete a webhook endpoint: %w", err)
	}
	return nil
}

// Rotate makes a new signing secret, which is shown this once. Every older one
// signs too until its overlap is over; until is when the last of them stops.
func (s *Store) Rotate(ctx context.Context, tenant, id uuid.UUID) (secret signature.Secret, until time.Time, err error) {
	secret = signature.NewSecret()
	err = pgx.BeginFunc(ctx, s.deps.Pool, func(tx pgx.Tx) error {
		var have []sealedSecret
		var now time.Time
		const read = `SELECT secrets, now() FROM core.webhook_endpoints WHERE endpoint_id = $1 AND tenant_id = $2 FOR NO KEY UPDATE`
		err := tx.QueryRow(ctx, read, id, tenant).Scan(&have, &now)
		if errors.Is(err, pgx.ErrNoRows) {
			return ErrNotFound
		}
		if err != nil {
			return err
		}
		until = now.Add(s.cfg.Overlap)
		have, err = rotated(have, now, until)
		if err != nil {
			return err
		}
		next := append([]sealedSecret{{Sealed: s.deps.Keys.Seal(secretOwner(id), []byte(secret.Reveal()))}}, have...)
		_, err = tx.Exec(ctx, `UPDATE core.webhook_endpoints SET secrets = $2, updated_at = now() WHERE endpoint_id = $1`, id, next)
		return err
	})
	if err != nil {
		return signature.Secret{}, time.Time{}, fmt.Errorf("rotate a webhook secret: %w", err)
	}
	return secret, until, nil
}

// rotated drops what is over and gives what had no end one. An older rotation's
// secret keeps its own end.
func rotated(have []sealedSecret, now, until time.Time) ([]sealedSecret, error) {
	have = slices.DeleteFunc(have, func(s sealedSecret) bool { return !s.alive(now) })
	if len(have) >= maxSecrets {
		return nil, refuse("too_many_rotations", "", fmt.Sprintf("%d secrets sign at once; wait until one is over", maxSecrets))
	}
	for i := range have {
		if have[i].Until == nil {
			have[i].Until = &until
		}
	}
	return have, nil
}

const endpointColumns = `endpoint_id, tenant_id, url, description, event_types, delivery, headers, disabled_at, coalesce(disabled_reason, ''), failing_since, created_at, updated_at`

func (s *Store) scan(r pgx.CollectableRow) (e Endpoint, err error) {
	var sealed []byte
	err = r.Scan(&e.ID, &e.TenantID, &e.URL, &e.Description, &e.EventTypes, &e.Delivery, &sealed, &e.DisabledAt, &e.DisabledReason, &e.FailingSince, &e.CreatedAt, &e.UpdatedAt)
	if err != nil {
		return e, err
	}
	e.CreatedAt, e.UpdatedAt = e.CreatedAt.UTC(), e.UpdatedAt.UTC()
	for _, at := range []*time.Time{e.DisabledAt, e.FailingSince} {
		if at != nil {
			*at = at.UTC()
		}
	}
	// Headers under a key that is gone are no reason to hide the endpoint from
	// who could give it new ones.
	headers, _ := openHeaders(s.deps.Keys, e.ID, sealed)
	e.HeaderNames = slices.AppendSeq([]string{}, maps.Keys(headers))
	slices.Sort(e.HeaderNames)
	return e, nil
}

func (s *Store) one(rows pgx.Rows, err error) (Endpoint, error) {
	if err != nil {
		return Endpoint{}, err
	}
	e, err := pgx.CollectExactlyOneRow(rows, s.scan)
	if errors.Is(err, pgx.ErrNoRows) {
		return Endpoint{}, ErrNotFound
	}
	return e, err
}

func (s *Store) changed(ctx context.Context, what, sql string, args ...any) (Endpoint, error) {
	e, err := s.one(s.deps.Pool.Query(ctx, sql, args...))
	if err != nil {
		return Endpoint{}, fmt.Errorf("%s a webhook endpoint: %w", what, err)
	}
	return e, nil
}

func setDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}
