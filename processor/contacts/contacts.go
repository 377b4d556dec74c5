// Package contacts is what operators do to contacts by hand: it finds one by an
// identifier, merges two that identity would not, and undoes a merge. Who, why
// and when stand in core.contact_merges, and mirrors hear of it through the
// contact lanes. What a merge means is processor/identity's; erasing a person is
// processor/erasure's. The commands of `carril contact` call it.
package contacts

import (
	"context"
	"errors"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/softcrum/carril/internal/db/processordb"
	"github.com/softcrum/carril/internal/identifier"
	"github.com/softcrum/carril/processor/eventlog"
	"github.com/softcrum/carril/processor/identity"
)

// Desk does it.
type Desk struct {
	Pool  *pgxpool.Pool
	Lanes *eventlog.ContactLanes
}

// Find gives the contact that an identifier belongs to. The error is an
// *identity.Refusal where there is none, and where the value is nobody's.
func (d Desk) Find(ctx context.Context, tenant uuid.UUID, kind, value string) (uuid.UUID, error) {
	v, err := identifier.Normalize(kind, value)
	if err != nil {
		return uuid.Nil, &identity.Refusal{Code: "invalid_identifier", Detail: kind + ": " + err.Error()}
	}
	id, err := processordb.New(d.Pool).OwnerOf(ctx, processordb.OwnerOfParams{TenantID: tenant, Kind: kind, Value: v})
	if errors.Is(err, pgx.ErrNoRows) {
		return uuid.Nil, &identity.Refusal{Code: identity.CodeNotFound, Detail: "nobody has this " + kind}
	}
	if err != nil {
		return uuid.Nil, fmt.Errorf("find a contact: %w", err)
	}
	return id, nil
}

// Merge makes one contact of two; Into survives.
func (d Desk) Merge(ctx context.Context, h identity.ByHand) error {
	return d.do(ctx, h, identity.Merge)
}

// Unmerge undoes the merge of From.
func (d Desk) Unmerge(ctx context.Context, h identity.ByHand) error {
	return d.do(ctx, h, identity.Unmerge)
}

func (d Desk) do(ctx context.Context, h identity.ByHand, f func(context.Context, pgx.Tx, identity.ByHand) ([]identity.Change, error)) error {
	if h.By == "" || h.Why == "" {
		return &identity.Refusal{Code: "missing_actor", Detail: "who does it and why must be said"}
	}
	return pgx.BeginFunc(ctx, d.Pool, func(tx pgx.Tx) error {
		changes, err := f(ctx, tx, h)
		if err != nil {
			return err
		}
		return d.Lanes.Emit(ctx, tx, nil, changes)
	})
}
