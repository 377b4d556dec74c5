package deadletter

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/softcrum/carril/internal/outbox"
)

// Refusal is a dead letter that stays as it is, and why.
type Refusal struct {
	ID  uuid.UUID
	Err error
}

// Done is what came of a replay or a discard.
type Done struct {
	Changed []uuid.UUID
	Refused []Refusal
	Lane    int32 // that replayed records go out by
	LastSeq int64 // the last of them in that lane; 0: none
}

// together is how many dead letters one transaction changes.
const together = 100

// Replay puts the records of the chosen dead letters back on their topics. Where
// the filter names no ids, confirmed is how many open ones it must match.
func (s *Store) Replay(ctx context.Context, f Filter, by, note string, confirmed int) (Done, error) {
	lane, err := outbox.Open(ctx, s.pool, producer, outbox.StoreOutbox, outbox.AnyEpoch)
	if err != nil {
		return Done{}, err
	}
	done := Done{Lane: lane.ID}
	err = s.each(ctx, f, confirmed, &done, func(ctx context.Context, tx pgx.Tx, found record) error {
		switch {
		case strings.HasPrefix(found.stage, "rail:"):
			return s.replaySend(ctx, tx, found, by, note)
		case found.topic == nil || found.value == nil || found.headers == nil:
			return ErrNoRecord
		}
		m, err := found.message()
		if err != nil {
			return fmt.Errorf("%w (its headers cannot be read)", ErrNoRecord)
		}
		items, err := lane.Append(ctx, tx, []outbox.Message{m})
		if err != nil {
			return err
		}
		done.LastSeq = items[0].Seq
		return mark(ctx, tx, found.id, StatusReplayed, by, note, &lane.ID, &done.LastSeq)
	})
	return done, err
}

func (s *Store) replaySend(ctx context.Context, tx pgx.Tx, found record, by, note string) error {
	if s.sends == nil || found.send == nil {
		return ErrSend
	}
	if err := s.sends.Replay(ctx, tx, *found.send, by); err != nil {
		return err
	}
	return mark(ctx, tx, found.id, StatusReplayed, by, note, nil, nil)
}

// Discard lets the chosen dead letters go: they stay on record, with who did it
// and why, and nothing asks for them any more.
func (s *Store) Discard(ctx context.Context, f Filter, by, note string, confirmed int) (Done, error) {
	var done Done
	err := s.each(ctx, f, confirmed, &done, func(ctx context.Context, tx pgx.Tx, found record) error {
		return mark(ctx, tx, found.id, StatusDiscarded, by, note, nil, nil)
	})
	return done, err
}

// each changes the chosen ones, some in a transaction. What one is refused for
// is kept for it; trouble of the database ends it, and what was committed stays.
func (s *Store) each(ctx context.Context, f Filter, confirmed int, done *Done, change func(context.Context, pgx.Tx, record) error) error {
	ids, err := s.chosen(ctx, f, confirmed)
	if err != nil {
		return err
	}
	for len(ids) > 0 {
		n := min(together, len(ids))
		var changed []uuid.UUID
		var refused []Refusal
		last := done.LastSeq
		err := pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
			for _, id := range ids[:n] {
				switch err := s.one(ctx, tx, id, change); {
				case err == nil:
					changed = append(changed, id)
				case isRefusal(err):
					refused = append(refused, Refusal{id, err})
				default:
					return fmt.Errorf("dead letter %s: %w", id, err)
				}
			}
			return nil
		})
		if err != nil {
			done.LastSeq = last
			return err
		}
		done.Changed, done.Refused, ids = append(done.Changed, changed...), append(done.Refused, refused...), ids[n:]
	}
	return nil
}

func (s *Store) one(ctx context.Context, tx pgx.Tx, id uuid.UUID, change func(context.Context, pgx.Tx, record) error) error {
	found, err := lock(ctx, tx, id)
	if err != nil {
		return err
	}
	if found.status != StatusOpen {
		return fmt.Errorf("%w: %s by %s at %s", ErrNotOpen, found.status, orUnknown(found.by), found.at.UTC().Format(time.RFC3339))
	}
	return change(ctx, tx, found)
}

// isRefusal tells what is wrong with one dead letter from trouble of everything.
func isRefusal(err error) bool {
	for _, r := range []error{ErrNotFound, ErrNotOpen, ErrNoRecord, ErrSend} {
		if errors.Is(err, r) {
			return true
		}
	}
	return false
}

// record is a dead letter with what its record brought.
type record struct {
	id, stage, status   string
	by                  *string
	at                  time.Time
	send                *uuid.UUID
	topic               *string
	key, value, headers []byte
}

// lock reads one and keeps others from changing it until the transaction ends.
func lock(ctx context.Context, tx pgx.Tx, id uuid.UUID) (record, error) {
	const sql = `SELECT dead_letter_id::text, stage, status, status_by, coalesce(status_at, created_at), send_id, topic, record_key, record_value, record_headers
FROM core.dead_letters WHERE dead_letter_id = $1 FOR UPDATE`
	var r record
	err := tx.QueryRow(ctx, sql, id).Scan(&r.id, &r.stage, &r.status, &r.by, &r.at, &r.send, &r.topic, &r.key, &r.value, &r.headers)
	if errors.Is(err, pgx.ErrNoRows) {
		return r, ErrNotFound
	}
	return r, err
}

// message is the record as it came. The relay's own stamp is left out: it gets
// that of the lane it goes out by now.
func (r record) message() (outbox.Message, error) {
	headers, err := outbox.DecodeHeaders(r.headers)
	if err != nil {
		return outbox.Message{}, err
	}
	m := outbox.Message{Topic: *r.topic, Key: r.key, Value: r.value}
	for _, h := range headers {
		if h.Key != "outbox-id" {
			m.Headers = append(m.Headers, h)
		}
	}
	if m.Key == nil {
		m.Key = []byte{}
	}
	return m, nil
}

func mark(ctx context.Context, tx pgx.Tx, id, status, by, note string, lane *int32, seq *int64) error {
	const sql = `UPDATE core.dead_letters SET status = $2, status_by = $3, status_at = now(), status_note = nullif($4, ''), replay_lane = $5, replay_seq = $6
WHERE dead_letter_id = $1::uuid`
	if _, err := tx.Exec(ctx, sql, id, status, by, note, lane, seq); err != nil {
		return fmt.Errorf("mark a dead letter: %w", err)
	}
	return nil
}

func orUnknown(s *string) string {
	if s == nil {
		return "somebody"
	}
	return *s
}
