package outbox

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/softcrum/carril/internal/db/streamdb"
)

// Source reads what a lane's store holds beyond a sequence, in order. since is
// a lower bound of when the rows were written.
type Source interface {
	Page(ctx context.Context, lane Lane, after int64, since time.Time, limit int) ([]Item, error)
}

// TableSource reads core.outbox.
type TableSource struct{ Pool *pgxpool.Pool }

// txMargin is longer than any transaction may last: sequences are given in
// commit order, but a row's time is its transaction's start.
const txMargin = time.Hour

// Page reads up to limit messages of the lane after a sequence.
func (s TableSource) Page(ctx context.Context, lane Lane, after int64, since time.Time, limit int) ([]Item, error) {
	rows, err := streamdb.New(s.Pool).PageOutbox(ctx, streamdb.PageOutboxParams{
		Since: since.Add(-txMargin), Lane: lane.ID, After: after, MaxRows: int64(limit)})
	if err != nil {
		return nil, fmt.Errorf("page lane %d: %w", lane.ID, err)
	}
	items := make([]Item, len(rows))
	for i, r := range rows {
		hs, err := DecodeHeaders(r.Headers)
		if err != nil {
			return nil, fmt.Errorf("page lane %d: %w", lane.ID, err)
		}
		if len(r.Value) == 0 {
			r.Value = nil // a tombstone: no record of ours has an empty value
		}
		items[i] = Item{Seq: r.LaneSeq, WrittenAt: r.WrittenAt, Message: Message{Topic: r.Topic, Key: r.Key, Value: r.Value, Headers: hs}}
	}
	return items, nil
}
