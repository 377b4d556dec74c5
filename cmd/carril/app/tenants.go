package app

import (
	"context"
	"errors"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/softcrum/carril/internal/ids"
	"github.com/softcrum/carril/internal/kafka"
	"github.com/softcrum/carril/schemas"
)

// CreateTenant makes a tenant of a plan and gives its id.
func CreateTenant(ctx context.Context, pool *pgxpool.Pool, slug, name, plan, cell string) (uuid.UUID, error) {
	id := ids.New()
	_, err := pool.Exec(ctx, `INSERT INTO core.tenants (tenant_id, slug, name, plan_id, cell_id) VALUES ($1, $2, $3, $4, $5)`, id, slug, name, plan, cell)
	var pe *pgconn.PgError
	switch {
	case errors.As(err, &pe) && pe.Code == "23505":
		return id, fmt.Errorf("%w: there is a tenant %q already", ErrConfig, slug)
	case errors.As(err, &pe) && pe.Code == "23503":
		return id, fmt.Errorf("%w: there is no plan %q", ErrConfig, plan)
	case errors.As(err, &pe) && pe.Code == "23514":
		return id, fmt.Errorf("%w: slug %q is not lower-case letters, digits and -", ErrConfig, slug)
	case err != nil:
		return id, fmt.Errorf("make a tenant: %w", err)
	}
	return id, nil
}

// FindTenant finds a tenant by slug or id.
func FindTenant(ctx context.Context, pool *pgxpool.Pool, name string) (id uuid.UUID, err error) {
	err = pool.QueryRow(ctx, `SELECT tenant_id FROM core.tenants WHERE slug = $1 OR tenant_id::text = $1`, name).Scan(&id)
	if errors.Is(err, pgx.ErrNoRows) {
		return id, fmt.Errorf("%w: there is no tenant %q", ErrConfig, name)
	}
	if err != nil {
		return id, fmt.Errorf("find a tenant: %w", err)
	}
	return id, nil
}

// MigrateTopics creates the topics and registers their schemas under
// FULL_TRANSITIVE compatibility.
func MigrateTopics(ctx context.Context, set Settings, adm *kadm.Client, specs []kafka.Spec) error {
	if _, err := kafka.CreateTopics(ctx, adm, specs); err != nil {
		return err
	}
	names := make([]string, len(specs))
	for i, s := range specs {
		names[i] = s.Name
	}
	if err := kafka.WaitForTopics(ctx, adm, names...); err != nil {
		return err
	}
	reg, err := set.registry()
	if err != nil {
		return err
	}
	return schemas.Register(ctx, reg, set.KafkaPrefix, set.Channels)
}
