// Package outbox makes what a transaction wants published and the transaction
// itself one thing. A lane is one producer's contiguous sequence in one store:
// rows take their sequence from the lane's counter inside the transaction, and
// the lane's owner publishes them in that order and moves the lane's cursor.
// The compare-and-set on the cursor and the owner's epoch are the safety; no
// lock is. Publication is at least once; consumers dedupe on ce_id.
//
// Events are their own outbox (store "events": core.tracked_events carries lane
// and lane_seq); everything derived goes to core.outbox. The stream loop, the
// rail workers and the API own lanes; what they publish is theirs.
package outbox

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/softcrum/carril/internal/db/streamdb"
	"github.com/softcrum/carril/internal/pg"
)

// Stores of a lane.
const (
	StoreEvents = "events"
	StoreOutbox = "outbox"
)

// AnyEpoch lets a transaction take sequences of a lane that many processes
// write, where only the relay has an owner.
const AnyEpoch = -1

// ErrFenced says that another owner has taken the lane.
var ErrFenced = errors.New("lane is owned by another")

// Message is a record to publish. Topic is named without the deployment's
// prefix; Value is framed already.
type Message struct {
	Topic   string
	Key     []byte
	Value   []byte
	Headers []kgo.RecordHeader
}

// Tombstone is the value of a message that ends its key in a compacted topic: it
// is published without a value. An empty one stands for it in the table.
var Tombstone = []byte{}

// Item is a message with its place in a lane.
type Item struct {
	Seq       int64
	WrittenAt time.Time // the writing transaction's, by the database's clock
	Message
}

// Lane is a producer's sequence in a store. Epoch is the owner's, or AnyEpoch.
type Lane struct {
	ID    int32
	Store string
	Epoch int64
}

// Open finds or makes a producer's lane in a store. With an epoch other than
// AnyEpoch it also takes the lane: older epochs are fenced from then on, and a
// newer one gives ErrFenced.
func Open(ctx context.Context, db streamdb.DBTX, producer, store string, epoch int64) (Lane, error) {
	have, err := streamdb.New(db).OpenLane(ctx, streamdb.OpenLaneParams{Producer: producer, Store: store, Epoch: epoch})
	l := Lane{ID: have.Lane, Store: store, Epoch: epoch}
	if err != nil {
		return l, fmt.Errorf("open outbox lane %s of %s: %w", producer, store, err)
	}
	if epoch != AnyEpoch && have.Epoch != epoch {
		return l, fmt.Errorf("open outbox lane %s of %s: %w", producer, store, ErrFenced)
	}
	return l, nil
}

// Take reserves n sequences of the lane inside tx and gives the first, with the
// transaction's time. The row lock stays until the transaction ends, so that
// sequence order is commit order and a rollback leaves no gap: take last, just
// before the rows are written.
func (l Lane) Take(ctx context.Context, tx pgx.Tx, n int) (first int64, at time.Time, err error) {
	taken, err := streamdb.New(tx).TakeSequences(ctx, streamdb.TakeSequencesParams{Lane: l.ID, N: int64(n), Epoch: l.Epoch})
	if errors.Is(err, pgx.ErrNoRows) {
		return 0, time.Time{}, fmt.Errorf("take %d sequences of lane %d: %w", n, l.ID, ErrFenced)
	}
	if err != nil {
		return 0, time.Time{}, fmt.Errorf("take %d sequences of lane %d: %w", n, l.ID, err)
	}
	return taken.Counter - int64(n) + 1, taken.At, nil
}

// Taken is what Queue reserved, once its statement was made.
type Taken struct {
	First int64
	At    time.Time // the transaction's, by the database's clock
}

// Queue is Take whose statement travels with the next one of tx, where tx is a
// pg.Tx; a fenced lane gives ErrFenced there.
func (l Lane) Queue(ctx context.Context, tx pgx.Tx, n int) (*Taken, error) {
	var ask pg.Captured
	_, _ = streamdb.New(&ask).TakeSequences(ctx, streamdb.TakeSequencesParams{Lane: l.ID, N: int64(n), Epoch: l.Epoch})
	taken := &Taken{}
	err := pg.Queue(ctx, tx, func(row pgx.Row) error {
		var counter int64
		err := row.Scan(&counter, &taken.At)
		if errors.Is(err, pgx.ErrNoRows) {
			err = ErrFenced
		}
		if err != nil {
			return fmt.Errorf("take %d sequences of lane %d: %w", n, l.ID, err)
		}
		taken.First = counter - int64(n) + 1
		return nil
	}, ask.SQL, ask.Args...)
	return taken, err
}

// Append writes messages to core.outbox inside tx and gives them back with
// their sequences, for Publisher.Offer after the commit.
func (l Lane) Append(ctx context.Context, tx pgx.Tx, msgs []Message) ([]Item, error) {
	if len(msgs) == 0 {
		return nil, nil
	}
	first, at, err := l.Take(ctx, tx, len(msgs))
	if err != nil {
		return nil, err
	}
	if err := l.write(ctx, tx, msgs, first); err != nil {
		return nil, err
	}
	return Number(msgs, first, at), nil
}

// Share is what one lane gets of messages that go to several.
type Share struct {
	Lane     Lane
	Messages []Message
}

// AppendShares is Append to several lanes, whose locks are taken in the order of
// the shares. It takes two round trips where a Tx has it, however many there are.
func AppendShares(ctx context.Context, tx pgx.Tx, shares []Share) error {
	taken, n := make([]*Taken, len(shares)), 0
	for i, s := range shares {
		var err error
		if taken[i], err = s.Lane.Queue(ctx, tx, len(s.Messages)); err != nil {
			return err
		}
		n += len(s.Messages)
	}
	if err := pg.Flush(ctx, tx); err != nil {
		return err
	}
	if n >= copyFrom {
		rows := make([]outboxRow, 0, n)
		for i, s := range shares {
			rows = appendRows(rows, s.Lane.ID, taken[i].First, s.Messages)
		}
		return copyRows(ctx, tx, rows)
	}
	for i, s := range shares {
		if err := s.Lane.write(ctx, tx, s.Messages, taken[i].First); err != nil {
			return err
		}
	}
	return nil
}

// copyFrom is the number of messages from which a COPY is cheaper than an
// INSERT.
const copyFrom = 100

func (l Lane) write(ctx context.Context, tx pgx.Tx, msgs []Message, first int64) error {
	n := len(msgs)
	if n >= copyFrom {
		return copyRows(ctx, tx, appendRows(make([]outboxRow, 0, n), l.ID, first, msgs))
	}
	rows := streamdb.AppendOutboxParams{Lane: l.ID, First: first,
		Topics: make([]string, n), Keys: make([][]byte, n), Values: make([][]byte, n), Headers: make([][]byte, n)}
	for i, m := range msgs {
		rows.Topics[i], rows.Keys[i], rows.Values[i], rows.Headers[i] = m.Topic, m.Key, m.Value, EncodeHeaders(m.Headers)
	}
	if err := streamdb.New(tx).AppendOutbox(ctx, rows); err != nil {
		return fmt.Errorf("write %d outbox rows: %w", n, err)
	}
	return nil
}

// outboxRow is a message at its place.
type outboxRow struct {
	lane int32
	seq  int64
	*Message
}

func appendRows(rows []outboxRow, lane int32, first int64, msgs []Message) []outboxRow {
	for i := range msgs {
		rows = append(rows, outboxRow{lane, first + int64(i), &msgs[i]})
	}
	return rows
}

func copyRows(ctx context.Context, tx pgx.Tx, rows []outboxRow) error {
	const sql = `COPY core.outbox (lane, lane_seq, topic, key, value, headers) FROM STDIN BINARY`
	err := pg.Copy(ctx, tx, sql, len(rows), func(row pg.CopyRow, i int) pg.CopyRow {
		m := rows[i]
		return row.Columns(6).Int32(m.lane).Int64(m.seq).Text(m.Topic).Bytes(m.Key).Bytes(m.Value).Bytes(EncodeHeaders(m.Headers))
	})
	if err != nil {
		return fmt.Errorf("write %d outbox rows: %w", len(rows), err)
	}
	return nil
}

// Number gives messages their sequences from first on.
func Number(msgs []Message, first int64, at time.Time) []Item {
	items := make([]Item, len(msgs))
	for i, m := range msgs {
		items[i] = Item{Seq: first + int64(i), WrittenAt: at, Message: m}
	}
	return items
}
