package sends

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/softcrum/carril/dispatcher/provider"
	"github.com/softcrum/carril/schemas"
)

// frozen is a row of messaging.send_requests: a generation's bytes and key.
type frozen struct {
	createdAt  time.Time
	generation int
	provider   string
	request    provider.Request
	sendIDs    []uuid.UUID
	attempts   int
	uncertain  bool
	settled    string // "", "taken", "refused"
}

// requestLife bounds the look-up of a generation's bytes: they are dropped with
// their day once no provider remembers the key.
const requestLife = 4 * 24 * time.Hour

// lastRequest reads the bytes of a job's current generation; ok is false where
// there is none, or none any more.
func (s *Store) lastRequest(ctx context.Context, tx pgx.Tx, j job) (f frozen, ok bool, err error) {
	if j.generation == 0 {
		return f, false, nil
	}
	const sql = `SELECT created_at, generation, provider, endpoint, idempotency_key, body, send_ids, attempts, uncertain, coalesce(settled, '')
FROM messaging.send_requests WHERE created_at > $1 AND job_id = $2 AND generation = $3`
	var body []byte
	err = tx.QueryRow(ctx, sql, j.now.Add(-requestLife), j.JobID, j.generation).Scan(&f.createdAt, &f.generation, &f.provider,
		&f.request.Endpoint, &f.request.IdempotencyKey, &body, &f.sendIDs, &f.attempts, &f.uncertain, &f.settled)
	if errors.Is(err, pgx.ErrNoRows) {
		return f, false, nil
	}
	if err != nil {
		return f, false, fmt.Errorf("read the frozen request of job %s: %w", j.JobID, err)
	}
	if f.request.Body, err = s.zdec.DecodeAll(body, nil); err != nil {
		return f, false, fmt.Errorf("inflate the frozen request of job %s: %w", j.JobID, err)
	}
	f.request.Count = len(f.sendIDs)
	return f, true, nil
}

// freeze makes the bytes of the next generation from rendered messages. A
// message that the adapter refuses for itself comes back in bad, by its index,
// and the others are frozen without it.
func (s *Store) freeze(j job, via string, ms []schemas.JobMessage, rendered []provider.Message) (f frozen, kept []schemas.JobMessage, bad []Outcome, err error) {
	p := s.deps.Providers[via]
	batch := s.cfg.Rail == schemas.RailMarketing && p.Capabilities().Batch
	kept = ms
	for len(kept) > 0 {
		fr, err := p.Freeze(rendered, batch)
		var me *provider.MessageError
		switch {
		case err == nil:
			gen := j.generation + 1
			return frozen{createdAt: j.now, generation: gen, provider: via, sendIDs: sendIDs(kept),
				request: provider.Request{Frozen: fr, IdempotencyKey: fmt.Sprintf("carril-%s-%d", j.JobID, gen)}}, kept, bad, nil
		case errors.As(err, &me) && me.Index >= 0 && me.Index < len(kept):
			bad = append(bad, Outcome{SendID: kept[me.Index].SendID, Failed: me.Reason.Code})
			kept, rendered = without(kept, me.Index), without(rendered, me.Index)
		default:
			var pe *provider.Error
			code := "cannot_be_frozen"
			if errors.As(err, &pe) {
				code = pe.Code
			}
			for _, m := range kept {
				bad = append(bad, Outcome{SendID: m.SendID, Failed: code})
			}
			return frozen{}, nil, bad, nil
		}
	}
	return frozen{}, nil, bad, nil
}

func without[T any](in []T, i int) []T {
	out := make([]T, 0, len(in)-1)
	return append(append(out, in[:i]...), in[i+1:]...)
}
