package identity

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/softcrum/carril/internal/db/processordb"
	"github.com/softcrum/carril/internal/identifier"
)

// refuseErased takes their identifiers and traits from inputs that were received
// before somebody whom they name was erased (interleaving I14): they would bring
// the person back, or be laid to somebody who has come back since. The owners
// were read before: of an erasure that commits in between, the tombstones are
// seen here, and of one that commits later the contact is known, and emptied with
// what is written to it.
func (b *batch) refuseErased(ctx context.Context, tx pgx.Tx) error {
	var tenants []uuid.UUID
	oldest := b.now
	for _, in := range b.inputs {
		if !slices.Contains(tenants, in.TenantID) {
			tenants = append(tenants, in.TenantID)
		}
		if at := b.received(in); at.Before(oldest) {
			oldest = at
		}
	}
	keys, err := processordb.New(tx).ErasureKeys(ctx, processordb.ErasureKeysParams{Tenants: tenants, Oldest: oldest})
	if err != nil {
		return fmt.Errorf("read erasure keys: %w", err)
	}
	if len(keys) == 0 {
		return nil
	}
	erased, err := b.tombstones(ctx, tx, keys)
	if err != nil || len(erased) == 0 {
		return err
	}
	for i, in := range b.inputs {
		for _, id := range b.ids[i] {
			if at, ok := erased[id.key]; ok && !at.Before(b.received(in)) {
				b.refuseInput(i)
				break
			}
		}
	}
	return nil
}

func (b *batch) received(in Input) time.Time {
	if in.ReceivedAt.IsZero() {
		return b.now
	}
	return in.ReceivedAt
}

func (b *batch) refuseInput(i int) {
	if b.erased == nil {
		b.erased = make([]bool, len(b.inputs))
		b.inputs = slices.Clone(b.inputs) // the caller's own stay as they are
	}
	b.erased[i], b.ids[i], b.inputs[i].Traits = true, nil, ""
}

// tombstones gives those of the batch's identifiers whose owner was erased.
func (b *batch) tombstones(ctx context.Context, tx pgx.Tx, keys []processordb.ErasureKeysRow) (map[key]time.Time, error) {
	by := make(map[uuid.UUID][]byte, len(keys))
	for _, k := range keys {
		by[k.TenantID] = k.Key
	}
	type hashed struct {
		tenant uuid.UUID
		hash   string
	}
	var ask processordb.TombstonesParams
	of := map[hashed]key{}
	for _, id := range b.distinct {
		k, ok := by[id.tenant]
		if !ok {
			continue
		}
		h := identifier.Hash(k, id.kind, id.value)
		ask.Tenants, ask.Hashes = append(ask.Tenants, id.tenant), append(ask.Hashes, h)
		of[hashed{id.tenant, string(h)}] = id.key
	}
	rows, err := processordb.New(tx).Tombstones(ctx, ask)
	if err != nil {
		return nil, fmt.Errorf("look for tombstones: %w", err)
	}
	erased := make(map[key]time.Time, len(rows))
	for _, r := range rows {
		erased[of[hashed{r.TenantID, string(r.Hash)}]] = r.ErasedAt
	}
	return erased, nil
}
