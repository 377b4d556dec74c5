package taxonomy

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// MaxSchemas is how many event names of a tenant may have a schema.
const MaxSchemas = 200

// keptVersions is how many versions of a name are kept, for whoever asks what
// was in force.
const keptVersions = 50

// Errors of a Store.
var (
	ErrNone    = errors.New("taxonomy: there is no schema of this name")
	ErrTooMany = fmt.Errorf("taxonomy: a tenant has at most %d schemas", MaxSchemas)
)

// Installed is a schema in force with its text.
type Installed struct {
	EventName   string          `json:"event_name"`
	Version     int             `json:"version"`
	Mode        Mode            `json:"mode"`
	Schema      json.RawMessage `json:"schema,omitempty"`
	InstalledAt time.Time       `json:"installed_at"`
}

// Store keeps schemas in core.taxonomy_schemas.
type Store struct{ pool *pgxpool.Pool }

// NewStore makes a store over a pool.
func NewStore(pool *pgxpool.Pool) *Store { return &Store{pool} }

// Put installs the next version of a schema that Check has let pass. What is in
// force already, text and mode, is not installed again. The error is ErrTooMany
// where the tenant has no room.
func (s *Store) Put(ctx context.Context, tenant uuid.UUID, event string, mode Mode, text string) (Installed, error) {
	out := Installed{EventName: event, Mode: mode, Schema: json.RawMessage(text)}
	err := pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		if err := lock(ctx, tx, tenant); err != nil {
			return err
		}
		var same bool
		err := tx.QueryRow(ctx, `SELECT version, installed_at, mode = $3 AND schema = $4 FROM core.taxonomy_schemas
WHERE tenant_id = $1 AND event_name = $2 AND ended_at IS NULL`, tenant, event, mode, text).Scan(&out.Version, &out.InstalledAt, &same)
		switch {
		case errors.Is(err, pgx.ErrNoRows):
			if err := room(ctx, tx, tenant); err != nil {
				return err
			}
		case err != nil || same:
			return err
		}
		return install(ctx, tx, tenant, text, &out)
	})
	out.InstalledAt = out.InstalledAt.UTC()
	if err != nil && !errors.Is(err, ErrTooMany) {
		return out, fmt.Errorf("install a schema: %w", err)
	}
	return out, err
}

// lock holds a tenant's schemas until the transaction ends.
func lock(ctx context.Context, tx pgx.Tx, tenant uuid.UUID) error {
	_, err := tx.Exec(ctx, `SELECT pg_advisory_xact_lock(hashtextextended('taxonomy ' || $1::text, 0))`, tenant.String())
	return err
}

func room(ctx context.Context, tx pgx.Tx, tenant uuid.UUID) error {
	var n int
	err := tx.QueryRow(ctx, `SELECT count(*) FROM core.taxonomy_schemas WHERE tenant_id = $1 AND ended_at IS NULL`, tenant).Scan(&n)
	if err == nil && n >= MaxSchemas {
		return ErrTooMany
	}
	return err
}

func install(ctx context.Context, tx pgx.Tx, tenant uuid.UUID, text string, out *Installed) error {
	const end = `UPDATE core.taxonomy_schemas SET ended_at = now() WHERE tenant_id = $1 AND event_name = $2 AND ended_at IS NULL`
	if _, err := tx.Exec(ctx, end, tenant, out.EventName); err != nil {
		return err
	}
	const insert = `INSERT INTO core.taxonomy_schemas (tenant_id, event_name, version, mode, schema)
SELECT $1, $2, coalesce(max(version), 0) + 1, $3, $4 FROM core.taxonomy_schemas WHERE tenant_id = $1 AND event_name = $2
RETURNING version, installed_at`
	if err := tx.QueryRow(ctx, insert, tenant, out.EventName, out.Mode, text).Scan(&out.Version, &out.InstalledAt); err != nil {
		return err
	}
	const trim = `DELETE FROM core.taxonomy_schemas WHERE tenant_id = $1 AND event_name = $2 AND version <= $3`
	_, err := tx.Exec(ctx, trim, tenant, out.EventName, out.Version-keptVersions)
	return err
}

// Get gives the schema in force of an event name; the error is ErrNone where
// there is none.
func (s *Store) Get(ctx context.Context, tenant uuid.UUID, event string) (Installed, error) {
	out := Installed{EventName: event}
	var text string
	err := s.pool.QueryRow(ctx, `SELECT version, mode, schema, installed_at FROM core.taxonomy_schemas
WHERE tenant_id = $1 AND event_name = $2 AND ended_at IS NULL`, tenant, event).Scan(&out.Version, &out.Mode, &text, &out.InstalledAt)
	if errors.Is(err, pgx.ErrNoRows) {
		return out, ErrNone
	}
	if err != nil {
		return out, fmt.Errorf("read a schema: %w", err)
	}
	out.Schema, out.InstalledAt = json.RawMessage(text), out.InstalledAt.UTC()
	return out, nil
}

// List gives a tenant's schemas in force without their texts, by name.
func (s *Store) List(ctx context.Context, tenant uuid.UUID) ([]Installed, error) {
	heads, err := s.Heads(ctx, tenant)
	out := make([]Installed, len(heads))
	for i, h := range heads {
		out[i] = Installed{EventName: h.Event, Version: h.Version, Mode: h.Mode, InstalledAt: h.Installed.UTC()}
	}
	return out, err
}

// Delete takes a schema out of force; the error is ErrNone where there is none.
func (s *Store) Delete(ctx context.Context, tenant uuid.UUID, event string) error {
	tag, err := s.pool.Exec(ctx, `UPDATE core.taxonomy_schemas SET ended_at = now() WHERE tenant_id = $1 AND event_name = $2 AND ended_at IS NULL`, tenant, event)
	if err != nil {
		return fmt.Errorf("delete a schema: %w", err)
	}
	if tag.RowsAffected() == 0 {
		return ErrNone
	}
	return nil
}

// Heads implements Source.
func (s *Store) Heads(ctx context.Context, tenant uuid.UUID) ([]Head, error) {
	rows, err := s.pool.Query(ctx, `SELECT tenant_id, event_name, version, mode, installed_at FROM core.taxonomy_schemas
WHERE ended_at IS NULL AND ($1 OR tenant_id = $2) ORDER BY tenant_id, event_name`, tenant == uuid.Nil, tenant)
	if err != nil {
		return nil, fmt.Errorf("read the schemas in force: %w", err)
	}
	heads, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (Head, error) {
		var h Head
		err := row.Scan(&h.Tenant, &h.Event, &h.Version, &h.Mode, &h.Installed)
		return h, err
	})
	if err != nil {
		return nil, fmt.Errorf("read the schemas in force: %w", err)
	}
	return heads, nil
}

// Texts implements Source.
func (s *Store) Texts(ctx context.Context, heads []Head) (map[Key]string, error) {
	tenants, events, versions := make([]uuid.UUID, len(heads)), make([]string, len(heads)), make([]int32, len(heads))
	for i, h := range heads {
		tenants[i], events[i], versions[i] = h.Tenant, h.Event, int32(h.Version)
	}
	rows, err := s.pool.Query(ctx, `SELECT t.tenant_id, t.event_name, t.version, t.schema
FROM ROWS FROM (unnest($1::uuid[]), unnest($2::text[]), unnest($3::int[])) AS u(tenant_id, event_name, version)
JOIN core.taxonomy_schemas t USING (tenant_id, event_name, version)`, tenants, events, versions)
	if err != nil {
		return nil, fmt.Errorf("read the texts of schemas: %w", err)
	}
	texts := make(map[Key]string, len(heads))
	var k Key
	var text string
	_, err = pgx.ForEachRow(rows, []any{&k.Tenant, &k.Event, &k.Version, &text}, func() error {
		texts[k] = text
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read the texts of schemas: %w", err)
	}
	return texts, nil
}
