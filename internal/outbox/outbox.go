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
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

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
		Topics: make([]string, n), Keys: make([][]byte, n), Values: make([][]byte, n), Headers: make([]string, n)}
	for i, m := range msgs {
		rows.Topics[i], rows.Keys[i], rows.Values[i], rows.Headers[i] = m.Topic, m.Key, m.Value, string(EncodeHeaders(m.Headers))
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
		return row.Columns(6).Int32(m.lane).Int64(m.seq).Text(m.Topic).Bytes(m.Key).Bytes(m.Value).JSONB(string(EncodeHeaders(m.Headers)))
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

// EncodeHeaders keeps headers as [[key, value], …]; a value that is no text goes
// as base64 and says so in a third place, so that no byte of it is lost.
func EncodeHeaders(hs []kgo.RecordHeader) []byte {
	size := 2
	for _, h := range hs {
		size += len(h.Key) + len(h.Value) + 8
	}
	out := append(make([]byte, 0, size), '[')
	for i, h := range hs {
		if i > 0 {
			out = append(out, ',')
		}
		out = appendText(append(out, '['), printable(h.Key))
		if v := string(h.Value); utf8.ValidString(v) && !strings.Contains(v, "\x00") {
			out = appendText(append(out, ','), v)
		} else {
			out = append(appendText(append(out, ','), base64.StdEncoding.EncodeToString(h.Value)), `,"base64"`...)
		}
		out = append(out, ']')
	}
	return append(out, ']')
}

// appendText appends a JSON string. Headers are nearly all ids, times and names,
// which stand in it as they are.
func appendText(out []byte, s string) []byte {
	for i := range len(s) {
		if c := s[i]; c < ' ' || c > '~' || c == '"' || c == '\\' {
			b, err := json.Marshal(s)
			if err != nil { // strings always marshal
				panic(err)
			}
			return append(out, b...)
		}
	}
	return append(append(append(out, '"'), s...), '"')
}

// printable makes text that PostgreSQL takes.
func printable(s string) string {
	return strings.ReplaceAll(strings.ToValidUTF8(s, "\uFFFD"), "\x00", "\uFFFD")
}

// DecodeHeaders reads what EncodeHeaders wrote.
func DecodeHeaders(s []byte) ([]kgo.RecordHeader, error) {
	var in [][]string
	if err := json.Unmarshal(s, &in); err != nil {
		return nil, fmt.Errorf("read headers: %w", err)
	}
	hs := make([]kgo.RecordHeader, len(in))
	for i, kv := range in {
		switch {
		case len(kv) == 2:
			hs[i] = kgo.RecordHeader{Key: kv[0], Value: []byte(kv[1])}
		case len(kv) == 3 && kv[2] == "base64":
			v, err := base64.StdEncoding.DecodeString(kv[1])
			if err != nil {
				return nil, fmt.Errorf("read headers: %w", err)
			}
			hs[i] = kgo.RecordHeader{Key: kv[0], Value: v}
		default:
			return nil, fmt.Errorf("read headers: no pair of key and value")
		}
	}
	return hs, nil
}
