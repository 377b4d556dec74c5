// Package deadletter owns what happens to records that were put aside: finding
// them, putting them back on their topic, and letting them go. Stages, relays and
// rails write core.dead_letters; `carril dlq` and the ops page call this package,
// and `carril process` runs its Relay.
//
// A replay is one transaction that marks the dead letter and writes its record,
// bytes, key and headers as they came, to an outbox lane; the lane's relay
// produces it. Killed before the commit, nothing has happened; after it, whoever
// runs the relay next publishes. What the record does then is for its stage's
// fences: a dead letter left no fence row, so it lands, and published twice it
// lands once. A send's dead letter is no record but a job, and belongs to its
// rail: it goes to Sends.
package deadletter

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Statuses of a dead letter.
const (
	StatusOpen      = "open"
	StatusReplayed  = "replayed"
	StatusDiscarded = "discarded"
)

// Errors say why a dead letter stays as it is, and what to do.
var (
	ErrNotFound = errors.New("there is no such dead letter")
	// ErrNotOpen: it was replayed or discarded before.
	ErrNotOpen = errors.New("it is not open any more")
	// ErrNoRecord: it holds nothing that could be put on a topic.
	ErrNoRecord = errors.New("it holds no record: what it was about is not repeated by putting bytes on a topic; mend the cause and discard it")
	// ErrSend: a send's, and nobody here replays sends.
	ErrSend = errors.New("it is a message's, which only its rail may send again: find out from the provider whether it went, " +
		"send the message anew under another idempotency key where it did not, and discard this one")
	// ErrChanged: the filter matches another number than was confirmed.
	ErrChanged = errors.New("the filter does not match what was confirmed")
	// ErrNoFilter: neither ids nor a criterion.
	ErrNoFilter = errors.New("name dead letters by id, or by stage, class, tenant or time")
)

// Filter chooses dead letters; empty fields choose all.
type Filter struct {
	IDs          []uuid.UUID
	Stage, Class string
	Tenant       uuid.UUID
	Since, Until time.Time // of their making; Until is exclusive
	Status       string    // empty: any
}

// Chooses says whether anything but the status narrows the filter.
func (f Filter) Chooses() bool {
	return len(f.IDs) > 0 || f.Stage != "" || f.Class != "" || f.Tenant != uuid.Nil || !f.Since.IsZero() || !f.Until.IsZero()
}

// where is the filter's condition, with its arguments from $1 on.
const where = `(cardinality($1::uuid[]) = 0 OR dead_letter_id = ANY($1)) AND ($2 = '' OR stage = $2) AND ($3 = '' OR class = $3)
AND ($4::uuid IS NULL OR tenant_id = $4) AND ($5::timestamptz IS NULL OR created_at >= $5) AND ($6::timestamptz IS NULL OR created_at < $6)
AND ($7 = '' OR status = $7)`

func (f Filter) args() []any {
	ids, tenant := f.IDs, &f.Tenant
	if ids == nil {
		ids = []uuid.UUID{}
	}
	if f.Tenant == uuid.Nil {
		tenant = nil
	}
	return []any{ids, f.Stage, f.Class, tenant, orNull(f.Since), orNull(f.Until), f.Status}
}

func orNull(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}

// Letter is a dead letter without what its record brought.
type Letter struct {
	ID        uuid.UUID  `json:"dead_letter_id"`
	Stage     string     `json:"stage"`
	Class     string     `json:"class"`
	Reason    string     `json:"reason"`
	Tenant    *uuid.UUID `json:"tenant_id,omitempty"`
	Event     *uuid.UUID `json:"event_id,omitempty"`
	Send      *uuid.UUID `json:"send_id,omitempty"`
	Topic     *string    `json:"topic,omitempty"`
	Partition *int32     `json:"partition,omitempty"`
	Offset    *int64     `json:"offset,omitempty"`
	Bytes     int        `json:"bytes"`
	Status    string     `json:"status"`
	By        *string    `json:"status_by,omitempty"`
	At        *time.Time `json:"status_at,omitempty"`
	Note      *string    `json:"status_note,omitempty"`
	CreatedAt time.Time  `json:"created_at"`
}

const letterColumns = `dead_letter_id, stage, class, reason, tenant_id, event_id, send_id, topic, topic_partition, topic_offset,
    coalesce(length(record_value), 0), status, status_by, status_at, status_note, created_at`

// Sends replays a message's dead letter as a new generation of its job, inside
// tx; an error leaves everything as it was.
type Sends interface {
	Replay(ctx context.Context, tx pgx.Tx, send uuid.UUID, by string) error
}

// Store finds and changes dead letters.
type Store struct {
	pool  *pgxpool.Pool
	sends Sends
}

// New makes a store; without sends the dead letters of messages are refused.
func New(pool *pgxpool.Pool, sends Sends) *Store { return &Store{pool, sends} }

// List gives dead letters, newest first, at most limit of them.
func (s *Store) List(ctx context.Context, f Filter, limit int) ([]Letter, error) {
	rows, err := s.pool.Query(ctx, `SELECT `+letterColumns+` FROM core.dead_letters WHERE `+where+` ORDER BY created_at DESC, dead_letter_id DESC LIMIT $8`,
		append(f.args(), limit)...)
	if err != nil {
		return nil, fmt.Errorf("list dead letters: %w", err)
	}
	letters, err := pgx.CollectRows(rows, pgx.RowToStructByPos[Letter])
	if err != nil {
		return nil, fmt.Errorf("list dead letters: %w", err)
	}
	return letters, nil
}

// Count is how many the filter chooses.
func (s *Store) Count(ctx context.Context, f Filter) (n int, err error) {
	if err := s.pool.QueryRow(ctx, `SELECT count(*) FROM core.dead_letters WHERE `+where, f.args()...).Scan(&n); err != nil {
		return 0, fmt.Errorf("count dead letters: %w", err)
	}
	return n, nil
}

// Value gives the bytes of a dead letter's record; nil where it has none.
func (s *Store) Value(ctx context.Context, id uuid.UUID) ([]byte, error) {
	var value []byte
	err := s.pool.QueryRow(ctx, `SELECT record_value FROM core.dead_letters WHERE dead_letter_id = $1`, id).Scan(&value)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, fmt.Errorf("dead letter %s: %w", id, ErrNotFound)
	}
	if err != nil {
		return nil, fmt.Errorf("read a dead letter: %w", err)
	}
	return value, nil
}

// chosen gives the ids of a filter, oldest first, if there are as many as were
// confirmed. Named ids are taken as they are: what is wrong with each is said of
// each.
func (s *Store) chosen(ctx context.Context, f Filter, confirmed int) ([]uuid.UUID, error) {
	if !f.Chooses() {
		return nil, ErrNoFilter
	}
	if len(f.IDs) > 0 {
		return f.IDs, nil
	}
	f.Status = StatusOpen
	rows, err := s.pool.Query(ctx, `SELECT dead_letter_id FROM core.dead_letters WHERE `+where+` ORDER BY created_at, topic_partition, topic_offset`, f.args()...)
	if err != nil {
		return nil, fmt.Errorf("choose dead letters: %w", err)
	}
	ids, err := pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
	if err != nil {
		return nil, fmt.Errorf("choose dead letters: %w", err)
	}
	if len(ids) != confirmed {
		return nil, fmt.Errorf("%w: %d now, %d confirmed", ErrChanged, len(ids), confirmed)
	}
	return ids, nil
}
