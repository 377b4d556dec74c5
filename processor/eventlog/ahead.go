package eventlog

import (
	"context"
	"time"

	"github.com/google/uuid"

	"github.com/softcrum/carril/internal/stream"
	"github.com/softcrum/carril/processor/identity"
)

// ahead is what the stage makes of a batch before its transaction begins: all
// that needs no look at the database's state. It is made while PostgreSQL has the
// batch before; between BEGIN and COMMIT PostgreSQL would wait for it.
type ahead struct {
	rows   []row
	keys   *keys
	lost   map[uuid.UUID]bool // keys that were somebody's already, once they are taken
	people *identity.Prepared
	events *eventRows
}

// taken gives the sequences of a batch's events.
type taken = func() (lane int32, first int64, at time.Time)

// Prepare implements stream.Preparer.
func (h *Handler) Prepare(ctx context.Context, records []stream.Record) any {
	rows := make([]row, 0, len(records))
	for i, r := range records {
		e, ok := r.Value.(*accepted)
		if !ok {
			return nil
		}
		t, err := h.deps.Tenants.Get(ctx, e.TenantID)
		if err != nil { // Apply decides what that means
			return nil
		}
		rows = append(rows, newRow(e, i, r, t.RetentionMonths))
	}
	return h.makeAhead(rows)
}

func (h *Handler) makeAhead(rows []row) *ahead {
	a := h.parted(rows)
	a.keys = h.keysOf(rows)
	return a
}

// parted makes what follows the fence.
func (h *Handler) parted(rows []row) *ahead {
	return &ahead{rows: rows, people: identity.Prepare(inputs(rows)), events: makeEvents(rows)}
}

// ready gives what was made ahead of a batch, or makes it now.
func (h *Handler) ready(ctx context.Context, b *stream.Batch) (*ahead, error) {
	if a, ok := b.Prepared.(*ahead); ok {
		return a, nil
	}
	rows, err := h.known(ctx, b)
	if err != nil {
		return nil, err
	}
	return h.makeAhead(rows), nil
}
